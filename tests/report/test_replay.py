"""The replayed part of a report: true to the trace and to stock, refused where it is not, and nobody else's code."""

from __future__ import annotations

import copy
import importlib
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from toy_protocol import protocol as toy_protocol

import ccfs.report.maps
from ccfs.certificates.bounds import Bound
from ccfs.envs.registration import builder_of
from ccfs.envs.safety.fast import LightBuilder
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.protocol.model import NOMINAL, load_protocol
from ccfs.report.counts import Ending, Trial, bars, ended_trials, shipped_events
from ccfs.report.drawings import Disc, scene_for
from ccfs.report.maps import Drawn, Picture, fallback_figure, fallback_map, map_figure, picture
from ccfs.report.page import render
from ccfs.report.replay import (
    LAYOUTS,
    ReplayError,
    Retold,
    _wanted,
    first_replayed,
    layouts,
    replays,
    retell,
    stored_trial,
)
from ccfs.results.certify import certify
from ccfs.results.table import table_rows
from ccfs.results.trial_lines import trial_lines
from ccfs.runs.build import part_targets
from ccfs.runs.executors import process_engine, serial_engine
from ccfs.runs.manifest import write_manifest
from ccfs.runs.run import run
from ccfs.runs.store import Store

pytestmark = pytest.mark.slow
TEXT = """
name = "maps"
seed = 3
horizon = 90
batch = 4

[trials]
cohort = { first = 3_000_050_002, count = 6 }

[claim]
delta = 0.05
target = 0.5
bound = "cohort"

[environment]
make = "safety-gymnasium"
arguments = { env_id = "SafetyPointGoal2-v0" }

[[controllers]]
name = "C1"
make = "zoo"
arguments = { name = "AGENT" }

[[schedules]]
name = "four"
action = { count = 4, sigma = 0.2, multiplier = 1.05 }

[program]
verifier = { make = "lidar-box", arguments = { keep_away = 0.3, reach = 0.6 } }

[[program.fallbacks]]
name = "center"
make = "center"
unverified = true

[stop]
goal = true
cost = true

[[events]]
name = "safe"
event = "no-cost-until-goal"

[[attacks]]
name = "push"
rule = "constant"
budget = 0.5
arguments = { direction = [0.0, 1.0] }
"""
ARM = "C1/four"
# A stored agent, not the shipped one: it touches hazards and vases within few steps, whatever training does next.
AGENT = Path(__file__).parents[2] / "experiments/training/milestones/2m/ppolag-pointgoal2-1120275774"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("maps")
    (folder / "p.toml").write_text(TEXT.replace("AGENT", AGENT.as_posix()))
    store = run(load_protocol(folder / "p.toml"), folder / "run", serial_engine(), where="p")
    certify(store)
    return store


@pytest.fixture
def store(finished, tmp_path):
    shutil.copytree(finished.root, tmp_path / "copy")
    return Store(tmp_path / "copy")


@pytest.fixture
def no_picture(monkeypatch):
    """Rendering loads textures for seconds; tests that are not about it go without."""
    monkeypatch.setattr(ccfs.report.maps, "picture", lambda *_: Picture(missing="not asked for."))


@pytest.fixture(scope="module")
def page(finished, tmp_path_factory):
    """The whole page, with its picture, where this machine can draw one."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(finished), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trials(finished):
    return ended_trials(trial_lines(finished, finished.protocol()), finished.protocol())


@pytest.fixture(scope="module")
def made(finished, trials):
    return replays(finished, finished.protocol(), trials, "push", most_steps=10**6, engine=serial_engine())


def cells(text):
    """The numbers of the page's table and of its bars, read from the HTML."""
    table = text[text.index('<section id="table">') : text.index('<section id="not-claimed">')]
    numbers = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", table[table.index("<tbody>") :])
    bars_found = {}
    for label in re.findall(r'class="bar" role="img" aria-label="([^"]*)"', text):
        head, parts = label.split(": ")
        arm, attack, _ = head.split(", ")
        bars_found[arm, attack] = {k: int(v) for k, v in (part.rsplit(" ", 1) for part in parts.split(", "))}
    return numbers, bars_found


def test_page_counts_are_those_of_the_table_rows(finished, page):
    protocol = finished.protocol()
    rows = table_rows(trial_lines(finished, protocol), protocol, "safe", (Bound.HOEFFDING, Bound.COHORT))
    numbers, found = cells(page.read_text(encoding="utf-8"))
    expected = [row.cells(0.5, "push") for row in rows]
    shared = [str(rows[0].trials), *expected[0][3:7], expected[0][10]]
    first = [*expected[0][:2], *expected[0][7:10], "hoeffding", *shared]
    assert numbers == [*first, *expected[1][7:10], "cohort ◆"]
    nominal = found[ARM, NOMINAL]
    assert nominal.get("goal", 0) == rows[0].counts["Goal"]
    assert nominal.get("timeout", 0) == rows[0].counts["Timeout"]
    assert nominal["cost"] == rows[0].counts["Cost"] > 0
    assert sum(nominal.values()) == rows[0].trials == 6
    pushed = found[ARM, "push"]
    assert pushed.get("goal", 0) + pushed.get("timeout", 0) == rows[0].shifted["push"]


def test_replays_find_the_cause_that_stock_reports(finished, trials, made):
    """Oracle: the `info` of stock's own code (without pictures) at the cost, from the stored actions."""
    protocol = finished.protocol()
    stock = LightBuilder(**copy.deepcopy(builder_of("SafetyPointGoal2-v0")[1].kwargs))
    failed = [trial for trial in trials if trial.ending is Ending.COST and trial.key in made.told]
    shortest = {made.told[trial.key].causes: trial for trial in sorted(failed, key=lambda trial: -trial.steps)}
    assert set(shortest) == {"hazard", "vase"}
    for trial in shortest.values():
        row, steps = stored_trial(finished, protocol, trial.key)
        stock.reset(seed=row.reset_seed)
        for step in steps:
            *_, info = stock.step(np.array(step.action))
        hit = {"hazard": info["cost_hazards"], "vase": info["cost_vases_contact"] or info["cost_vases_velocity"]}
        assert made.told[trial.key].causes == " and ".join(name for name, value in hit.items() if value)
        place = stock.task.agent.pos
        assert made.told[trial.key].path[-1].tolist() == place[:2].tolist()


def test_retold_knows_the_nearest_obstacle_in_the_robots_frame(finished, trials, made):
    """Oracle: distances do not depend on the frame, so the offset's length is the least distance to a disc's centre."""
    scene = scene_for(finished.protocol())
    scene.env.reset(seed=trials[0].reset_seed)
    x, y = scene.place()
    least = min(np.hypot(d.center[0] - x, d.center[1] - y) for d in scene.discs() if d.kind in ("hazard", "vase"))
    told = made.told[trials[0].key]
    assert np.hypot(*told.nearest[0]) == pytest.approx(least, abs=1e-12)
    assert {disc.kind for disc in told.discs} == {"hazard", "vase", "goal"}
    task = scene.env.unwrapped.task
    ahead, left = task.agent.mat[:, 0], task.agent.mat[:, 1]
    nearest = scene.place() + told.nearest[0, 0] * ahead[:2] + told.nearest[0, 1] * left[:2]
    assert min(np.hypot(*(nearest - disc.center)) for disc in scene.discs()) < 1e-9
    scene.close()


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("action_0", lambda value: np.nextafter(value, 2.0)),
        ("observation", lambda value: b"\1" * 16),
        ("source", lambda value: "fallback" if value == "proposal" else "proposal"),
        ("cost", lambda value: 1.0 - value),
    ],
)
def test_tampered_trajectory_is_refused_and_not_drawn(store, no_picture, column, change):
    protocol = store.protocol()
    name = f"traces/{ARM}/nominal/batch-00000.parquet"
    table = read_parquet(store.read(name))
    place = table.column("trial").to_pylist().index(1) + 5
    values = table.column(column).to_pylist()
    values[place] = change(values[place])
    field = table.schema.field(column)
    changed = table.set_column(table.column_names.index(column), field, pa.array(values, type=field.type))
    store.write(name, parquet_bytes(changed))
    write_manifest(store, protocol)  # a forger would, too
    text = render(store)
    assert "1 of the trajectories to replay did not come out as stored" in text
    assert f"{ARM}, nominal: trial 1 does not replay" in text
    maps = text[text.index('<section id="maps">') : text.index('<section id="picture">')]
    drawn = re.search(r"trial 1, reset seed.*?</figure>", maps, flags=re.DOTALL)
    assert drawn, "its attacked twin is still drawn"
    assert "nominal: refused, it does not replay" in drawn[0]
    assert 'class="line track s0"' not in drawn[0]
    assert 'class="line track s1"' in drawn[0]


def test_retell_refuses_another_seed_and_another_end(finished, trials):
    protocol = finished.protocol()
    scene = scene_for(protocol)
    row, steps = stored_trial(finished, protocol, trials[0].key)
    with pytest.raises(ReplayError, match="first observation"):
        retell(protocol, scene, row._replace(reset_seed=trials[1].reset_seed), steps)
    with pytest.raises(ReplayError, match="end of the hash chain"):
        retell(protocol, scene, row._replace(chain=b"\0" * 32), steps)
    with pytest.raises(ReplayError, match="record of step 0"):
        retell(protocol, scene, row, [steps[0]._replace(chain=b"\0" * 32)])
    assert len(retell(protocol, scene, row, steps[:3]).path) == 4
    scene.close()


def test_report_stays_within_its_steps_and_says_so(finished, trials, no_picture):
    protocol = finished.protocol()
    few = replays(finished, protocol, trials, "push", most_steps=200, engine=serial_engine())
    assert 0 < few.steps <= 200
    assert few.steps == sum(len(told.is_fallback) for told in few.told.values())
    assert few.left_out > 0
    text = render(finished, most_steps=200)
    assert f"{len(few.told)} of 12 trajectories ({few.steps} steps) ran again" in text
    assert f"The limit of 200 steps left out {few.left_out} more" in text
    nothing = render(finished, most_steps=0)
    assert '<section id="maps">' not in nothing
    assert "Total cost so far" in nothing
    with pytest.raises(ValueError, match="`most_steps`"):
        render(finished, most_steps=-1)


def test_picture_is_left_out_and_told_where_nothing_renders(finished, trials, monkeypatch):
    def broken(protocol, *, pictures):
        raise OSError("no EGL device")

    monkeypatch.setattr("ccfs.report.maps.scene_for", broken)
    row, steps = stored_trial(finished, finished.protocol(), trials[0].key)
    found = picture(finished.protocol(), row, steps[:2])
    assert found == Picture(missing="this machine could not render off-screen (OSError).")
    assert "No picture: this machine could not render off-screen (OSError)." in render(finished, most_steps=300)


def test_report_has_the_same_bytes_again(finished, no_picture):
    assert render(finished) == render(finished)


def test_report_names_no_one_elses_code(finished, no_picture, monkeypatch, tmp_path):
    """Neither controllers nor verifiers nor events of the protocol are imported; the environment is ours."""
    custom = (
        '[[attacks]]\nname = "push"',
        '[[events]]\nname = "own"\nevent = "toys:NoAbstention"\narguments = { horizon = 6 }\n\n'
        '[[attacks]]\nname = "push"',
    )
    toy = run(toy_protocol(tmp_path, trials=4, event=custom), tmp_path / "run", serial_engine(), where="p")
    certify(toy)

    asked, real = [], importlib.import_module

    def recorded(name, package=None):
        asked.append(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", recorded)
    assert "ccfs table" in render(toy)
    assert [spec.name for spec in shipped_events(toy.protocol()).events] == ["safe"]
    assert '<section id="maps">' in render(finished)
    assert {"ccfs.envs.safety.point_maps", "ccfs.envs.toys.drawings"} <= set(asked)
    targets = [part_targets(store.protocol()) for store in (toy, finished)]
    named = {path.partition(":")[0] for table in targets for paths in table.values() for path in paths}
    named -= {"ccfs.runs.events"}  # the shipped events, which counting needs
    assert {"ccfs.controllers.zoo", "ccfs.envs.safety.lidar_box", "ccfs.runtime.components", "toys"} <= named
    assert named.isdisjoint(asked)


@pytest.mark.parametrize(
    ("made", "arguments"),
    [
        ("absent_module:make", {"env_id": "SafetyPointGoal2-v0"}),
        ("safety-gymnasium", {"env_id": "SafetyRacecarCircle1-v0"}),
        ("safety-gymnasium", {"env_id": "SafetyPointGoal2-v0", "config": {"agent_name": "Point"}}),
        ("safety-gymnasium", {"env_id": 7}),
        ("safety-gymnasium", {"env_id": "SafetyPointGoal2-v0", "max_episode_steps": "many"}),
        ("safety-gymnasium", {"env_id": "SafetyPointGoal2-v0", "render_mode": "human"}),
    ],
)
def test_scene_is_made_of_shipped_tasks_with_known_arguments_only(finished, made, arguments):
    protocol = finished.protocol()
    spec = protocol.environment.model_copy(update={"make": made, "arguments": arguments})
    assert scene_for(protocol.model_copy(update={"environment": spec})) is None


def retold(nearest, fell, path=None, causes=""):
    path = np.zeros((len(fell) + 1, 2)) if path is None else np.asarray(path)
    goal = Disc(name="goal", center=(1.0, 1.0), radius=0.3, kind="goal")
    return Retold(
        trial=0,
        path=path,
        nearest=np.array(nearest, dtype=float).reshape(-1, 2),
        is_fallback=np.array(fell, dtype=bool),
        causes=causes,
        discs=(goal,),
    )


def test_fallback_map_counts_every_step_once():
    told = [retold([(0.05, 0.1), (0.05, 0.1), (5.0, 0.0), (np.nan, np.nan)], [True, False, True, False])]
    counts = fallback_map(told)
    assert (counts.totals, counts.far, counts.trajectories) == ((2, 4), (1, 2), 1)
    # 0.05 m ahead is the first row above the middle, 0.1 m to the left the first column left of it.
    assert (counts.steps[6, 5], counts.fallbacks[6, 5]) == (2, 1)
    text = str(fallback_figure(counts, "label").svg())
    assert "fallback in 1 of 2 steps" in text
    assert text.count('class="cell"') == 1
    assert fallback_map([]).totals == (0, 0)


def test_map_figure_draws_bands_where_fallbacks_acted_and_marks_ends():
    path = [(0.0, 0.0), (0.1, 0.0), (0.2, 0.0), (0.3, 0.0), (0.4, 0.0)]
    told = retold(np.zeros((4, 2)), [True, False, True, True], path)
    drawn = [Drawn(style="s0", name="nominal", retold=told, ending=Ending.GOAL, at=4)]
    text = str(map_figure(drawn, "label").svg())
    assert "after" not in text
    assert text.count('class="line band s0"') == 2
    assert text.count('class="line track s0"') == 1
    assert text.count('class="end s0"') == 1
    # One unit is as long across as up, and the bar says how long.
    bar = float(re.search(r"v-6M[\d.]+ [\d.]+h([\d.]+)", text)[1])
    first, last = re.search(r'track s0" d="M([\d.]+) .*L([\d.]+) [\d.]+"', text).groups()
    assert (float(last) - float(first)) / 0.4 == pytest.approx(bar, rel=0.02)


def test_map_figure_marks_the_place_of_the_first_cost_and_not_the_last_one():
    path = [(0.0, 0.0), (0.1, 0.0), (0.2, 0.0), (0.3, 0.0), (0.4, 0.0)]
    told = retold(np.zeros((4, 2)), [False] * 4, path, causes="hazard")
    item = Drawn(style="s0", name="nominal", retold=told, ending=Ending.COST, at=2)
    text = str(map_figure([item], "label").svg())
    until, after = (re.search(rf'track {kind}s0" d="M([\d.]+) .*?L([\d.]+) [\d.]+"', text) for kind in ("", "after "))
    assert until[2] == after[1]
    assert f'd="M{until[2]} ' in text[text.index('class="cross"') :]
    assert item.words == "hazard"
    # A goal that came before the cost is what came first.
    assert Drawn(style="s0", name="nominal", retold=told, ending=Ending.GOAL, at=2).words == "goal"


def ended(trial, ending, attack=NOMINAL):
    return Trial(arm="a/b", attack=attack, trial=trial, reset_seed=trial, steps=5, ending=ending, at=5)


def test_layouts_show_every_ending_before_one_twice_and_failures_first():
    nominal = [Ending.GOAL] * 20 + [Ending.COST, Ending.TIMEOUT]
    pushed = [Ending.GOAL] * 19 + [Ending.COST, Ending.COST, Ending.GOAL]
    trials = [ended(i, end) for i, end in enumerate(nominal)] + [ended(i, end, "x") for i, end in enumerate(pushed)]
    # Trial 19 fails under the attack alone. Trial 21 shows two more endings, trial 20 the last one, 0 another pair.
    assert layouts(trials, "a/b", "x") == [19, 21, 20, 0]
    assert layouts(trials, "a/b", None) == [20, 21, 0, 1]
    assert layouts(trials[:2], "a/b", None) == [0, 1]


def test_replays_take_the_arms_in_turn(finished, trials):
    """A limit that leaves something out leaves every arm its first layout, failures first."""
    protocol = finished.protocol()
    twice = protocol.model_copy(update={"controllers": (*protocol.controllers, replaced_name(protocol, "twin"))})
    more = [*trials, *(replace(trial, arm=trial.arm.replace(trial.arm.split("/")[0], "twin")) for trial in trials)]
    order = list(dict.fromkeys(_wanted(twice, more, "push")))
    first, second = (arm.name for arm in twice.arms)
    leading = [(arm, kind, layouts(more, arm, "push")[0]) for arm in (first, second) for kind in (NOMINAL, "push")]
    assert [key for key in order if key in leading] == leading
    assert max(map(order.index, leading)) < 6  # at most one of the first trials of each arm between
    assert len(order) == 2 * (6 + LAYOUTS)  # all nominal trials, and the layouts under the attack


def replaced_name(protocol, name):
    return protocol.controllers[0].model_copy(update={"name": name})


def test_bars_lose_no_trial():
    kinds = [Ending.COST, Ending.COST, Ending.GOAL, Ending.ABSTAINED, Ending.CRASHED, Ending.EARLY, Ending.TIMEOUT]
    (bar,) = bars([ended(i, kind) for i, kind in enumerate(kinds)])
    assert {part.name: part.count for part in bar.segments} == {
        "goal": 1, "timeout": 1, "cost": 2, "abstained": 1, "ended by the environment": 1, "crashed": 1
    }  # fmt: skip
    assert all(part.has_room for part in bar.segments)


def test_page_counts_do_not_depend_on_what_is_replayed(finished, no_picture):
    """Claims, table and bars are the same, byte for byte, whether much, little or nothing runs again."""
    parts = set()
    for steps in (0, 200, 10**6):
        text = render(finished, most_steps=steps)
        parts.add(text[text.index('<section id="claims">') : text.index('<section id="sources">')])
    assert len(parts) == 1


def test_bar_numbers_without_room_are_written_beside():
    kinds = [Ending.GOAL] * 95 + [Ending.TIMEOUT] * 5
    (bar,) = bars([ended(i, kind) for i, kind in enumerate(kinds)])
    assert [part.has_room for part in bar.segments] == [True, True]
    kinds = [Ending.GOAL] * 89 + [Ending.TIMEOUT] * 1 + [Ending.COST] * 10
    (bar,) = bars([ended(i, kind) for i, kind in enumerate(kinds * 2)])
    assert {part.name: part.has_room for part in bar.segments} == {"goal": True, "timeout": False, "cost": True}


def test_first_replayed_ends_at_the_first_gap(finished, trials, made):
    keys = [trial.key for trial in trials if trial.attack == NOMINAL]
    assert len(first_replayed(trials, ARM, made)) == 6
    gap = type(made)(told={key: made.told[key] for key in keys if key[2] != 2}, refused=(), left_out=0, steps=0)
    assert [told.trial for told in first_replayed(trials, ARM, gap)] == [0, 1]


def test_page_in_a_browser_shows_the_replayed_sections(browser, page):
    shown = browser.dom(page)
    for section in ("table", "outcomes", "fallbacks", "maps", "picture"):
        assert f'<section id="{section}">' in shown
    assert shown.count('class="line track') == 2 * LAYOUTS
    width, _ = browser.size(page, width=390)
    assert width == 390


def test_page_asks_for_nothing_and_its_picture_is_inside(page):
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"https?://|url\(|@import|<script|<link", text) == []
    sources = re.findall(r'<img src="([^"]{22})', text)
    assert sources == ["data:image/jpeg;base64"] if "No picture:" not in text else sources == []
    assert len(text) < 3_000_000


def test_replays_are_the_same_in_other_processes(finished, trials, made):
    protocol = finished.protocol()
    apart = replays(finished, protocol, trials, "push", most_steps=10**6, engine=process_engine(1))
    assert list(apart.told) == list(made.told)
    for key, told in made.told.items():
        assert apart.told[key].path.tobytes() == told.path.tobytes()
        assert apart.told[key].nearest.tobytes() == told.nearest.tobytes()
        assert (apart.told[key].causes, apart.told[key].discs) == (told.causes, told.discs)
