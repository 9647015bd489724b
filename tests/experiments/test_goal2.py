"""The kept SafetyPointGoal2 results: sealed, of the shipped protocols and controllers, rederived from trial lines."""

from __future__ import annotations

import csv
import importlib
import json
import math
import re
import shutil
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest
from stored_studies import EXPERIMENTS

from ccfs.attacks.ledger import energy_limit
from ccfs.certificates.bounds import Bound
from ccfs.certificates.schedule import Stage
from ccfs.certificates.stratified import StratifiedCertificate
from ccfs.certificates.trajectory import certify_event
from ccfs.controllers import zoo
from ccfs.files.parquet import read_parquet
from ccfs.protocol.model import load_protocol
from ccfs.report.figures import interval
from ccfs.results.certify import certify
from ccfs.runs.counting import certificate
from ccfs.runs.executors import serial_engine
from ccfs.runs.run import run
from ccfs.runs.store import Store
from ccfs.study.tune import load_tuning

pytestmark = pytest.mark.slow
FOLDER = EXPERIMENTS / "goal2"
sys.path.insert(0, str(FOLDER))
NAMES = ("records", "seeds", "summary", "disturbances", "tightness")
records, seeds, summary, disturbances, tightness = (importlib.import_module(name) for name in NAMES)
KEPT = sorted(path.name for path in (FOLDER / "results").iterdir())
FILES = {"table": "protocol"}


def certificates(name):
    return records.stored_certificates(name)


def lines_of(name, document):
    controller, schedule = document.arm.split("/")
    found = records.lines(name).to_pylist()
    return [line for line in found if (line["controller"], line["schedule"]) == (controller, schedule)]


def is_inside(kind, line):
    """Say from the trajectory line alone whether a trial is in one of the study's two events: a second counting."""
    goal, cost = line["goal_step"], line["first_cost_step"]
    reached = goal is not None and (cost is None or cost > goal)
    if kind == "goal-before-cost":
        return reached
    assert kind == "no-cost-until-goal"
    return reached or (goal is None and cost is None and line["outcome"] == "horizon" and line["steps"] == 500)


@pytest.mark.parametrize("name", KEPT)
def test_kept_files_have_their_checksums_and_one_changed_byte_is_found(name, tmp_path):
    assert records.broken_seals(records.RESULTS / name) == []
    shutil.copytree(records.RESULTS / name, tmp_path / name)
    content = bytearray((tmp_path / name / "trajectories.parquet").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / name / "trajectories.parquet").write_bytes(bytes(content))
    assert records.broken_seals(tmp_path / name) == ["trajectories.parquet"]


@pytest.mark.parametrize("name", KEPT)
def test_kept_results_are_of_the_protocol_files_and_of_the_shipped_controllers(name):
    protocol = records.stored_protocol(name)
    shipped = load_protocol(FOLDER / f"{FILES.get(name, name)}.toml").model_dump()
    assert shipped == protocol.model_dump()
    digests = json.loads((records.RESULTS / name / "provenance.json").read_text())["controllers"]
    for spec in protocol.controllers:
        if spec.make == "zoo":
            assert digests[spec.name] == zoo.load(spec.arguments["name"]).card.digest


@pytest.mark.parametrize("name", KEPT)
def test_kept_certificates_follow_from_the_trial_lines(name):
    protocol = records.stored_protocol(name)
    documents = list(certificates(name))
    assert len(documents) + len(list(records.stored_families(name))) == protocol.claims
    for document in documents:
        assert document.protocol == protocol.hash
        lines = lines_of(name, document)
        nominal = [line for line in lines if line["attack"] == "nominal"]
        arm = next(arm for arm in protocol.arms if arm.name == document.arm)
        if protocol.trials.seeds is None:
            declared = [protocol.streams(arm, trial).reset_seed for trial in range(protocol.trials.count)]
        else:
            declared = [seed for seed in protocol.trials.seeds for _ in range(protocol.trials.per_seed)]
        assert [line["reset_seed"] for line in nominal] == declared
        held = [line[f"in {document.event}"] for line in nominal]
        inside = sum(held)
        # All that its numbers depend on: delta, the number of claims, target, bound and noise too.
        assert document.trajectory == certificate(protocol, arm, document.event, held)
        assert document.definition in protocol.events
        assert (document.trajectory.successes, document.trajectory.trials) == (inside, len(nominal))
        if isinstance(document.trajectory, StratifiedCertificate):
            by_seed = np.array([line[f"in {document.event}"] for line in nominal]).reshape(-1, protocol.trials.per_seed)
            pilot = protocol.trials.draws.pilot
            assert document.trajectory.pilot_successes == tuple(by_seed[:, :pilot].sum(axis=1).tolist())
            assert document.trajectory.main_successes == tuple(by_seed[:, pilot:].sum(axis=1).tolist())
        if document.definition.event != "cost-at-most":
            assert inside == sum(is_inside(document.definition.event, line) for line in nominal)
        for attacked in document.attacks:
            shifted = [line for line in lines if line["attack"] == attacked.attack]
            assert len(shifted) == attacked.trials == len(nominal)
            assert sum(line[f"in {document.event}"] for line in shifted) == attacked.successes
            assert max(line["spent"] for line in shifted) == attacked.energy <= attacked.energy_limit


@pytest.mark.parametrize("name", KEPT)
def test_no_attack_brought_the_observed_rate_below_what_is_certified(name):
    """Beyond chance, that is: the upper end of a 1 - 1e-6 interval must reach the certified probability."""
    for document in certificates(name):
        for attacked in document.attacks:
            if attacked.budget is not None:
                _, high = interval(attacked.successes, attacked.trials, Bound.COHORT, delta=1e-6)
                assert high >= document.trajectory.lower_at(attacked.budget)


def test_results_page_and_tables_are_rederived_from_the_trial_lines():
    assert summary.text() == (FOLDER / "RESULTS.md").read_text(encoding="utf-8")
    for name in KEPT:
        made = records.tables(records.lines(name), records.stored_protocol(name))
        assert made == (records.RESULTS / name / "table.md").read_text(encoding="utf-8")


NUMBER = re.compile(r"(?<![\w.^])-?\d*\.\d+")
HISTORY = {"1.72", "48.2", "73.7", "70.5", "0.0012"}
"""Millions of training steps of an earlier agent, the first edition's expected costs, a budget of the first guard."""


def further_numbers():
    """Yield what the page has from other kept files, or as a ratio of two numbers."""
    for name, file, levels in (("million", "protocol", [0.99]), ("navigator", "navigator", [0.99, 0.9])):
        found = json.loads((EXPERIMENTS / "million" / f"{name}.json").read_text(encoding="utf-8"))
        protocol = load_protocol(EXPERIMENTS / "million" / f"{file}.toml")
        yield found["p_lower"]
        for target in levels:
            yield certify_event(
                found["successes"],
                found["trials"],
                delta=protocol.claim.delta,
                family=protocol.family,
                target=target,
                schedule=protocol.arms[0].schedule.plan,
                bound=protocol.bound,
                event=protocol.events[0].name,
            ).budget
    (navigator,) = certificates("navigator")
    yield navigator.trajectory.p_lower
    protocol = records.stored_protocol("noisyguard")
    guarded = next(found for found in certificates("noisyguard") if found.event == "goal-before-cost").trajectory
    for target in (0.5, 0.8, 0.95):
        yield from summary.ladder_budget(protocol, protocol.arms[0], guarded, guarded.event, target).budgets.values()
    protocol = records.stored_protocol("strata")
    budgets = [row.certificate.budget for row in records.rows(records.lines("strata"), protocol, "no-cost-until-goal")]
    yield max(budgets) / min(budgets)
    yield from (attacked.successes / attacked.trials for _, attacked in records.scored_and_run("scores"))
    for name in ("families", "strata"):
        table = read_parquet((tightness.WEIGHTS / f"{name}.parquet").read_bytes())
        yield from (table[part][0].as_py() for part in table.column_names if part.endswith("where fitted"))
    yield float(records.stored_protocol("table").arms[0].schedule.plan.blocks(Stage.ACTION)[0].resolved(2).charge)


def test_decimals_on_the_page_of_the_study_are_those_of_the_kept_results():
    """Up to rounding in the last digit. Numbers with a percent sign may be a hundred times a result."""
    page = re.sub(r"\]\([^)]*\)|`[^`]*`", "", (FOLDER.parents[1] / "docs" / "goal2.md").read_text(encoding="utf-8"))
    files = [FOLDER / "RESULTS.md", FOLDER / "paper.csv", *FOLDER.glob("*.toml"), FOLDER / "pilots" / "sigma.toml"]
    known = {Decimal(found) for path in files for found in NUMBER.findall(path.read_text(encoding="utf-8"))}
    known |= {100 * number for number in known} | {Decimal(repr(number)) for number in further_numbers()}

    def is_known(text):
        number = Decimal(text)
        return any(abs(found - number) < Decimal(1).scaleb(number.as_tuple().exponent) for found in known)

    shown = set(NUMBER.findall(page)) - HISTORY
    assert len(shown) > 150
    assert [text for text in sorted(shown) if not is_known(text)] == []
    assert not is_known("0.9137")


def test_no_certified_seed_was_used_for_anything_else():
    assert seeds.overlaps() == []
    assert seeds.stray_development_seeds() == []
    assert {first for first, _ in seeds.attack_seeds().values()} == {3_000_100_000, 3_000_300_000}
    cohorts = [path for path in FOLDER.glob("*.toml") if load_protocol(path).trials.seeds is not None]
    assert sum(name.startswith("cohort") for name in seeds.spans()) == len(cohorts) > 10


def test_attack_network_that_was_trained_on_other_seeds_is_found(monkeypatch):
    monkeypatch.setattr(seeds, "attack_seeds", lambda: {"critic": (3_000_100_000, 5_500_003)})
    assert seeds.stray_development_seeds() == [5_500_003]


def test_cost_study_is_rederived_from_the_trial_lines():
    content = (records.RESULTS / "costs" / "costs.json").read_bytes()
    assert records.costs("costs").to_bytes() == content
    study = json.loads(content)
    protocol = records.stored_protocol("costs")
    assert (study["lowest"], study["highest"]) == (0.0, protocol.horizon)
    for arm in protocol.arms:
        found = study["arms"][arm.name]
        mine = [
            line
            for line in records.lines("costs").to_pylist()
            if f"{line['controller']}/{line['schedule']}" == arm.name and line["attack"] == "nominal"
        ]
        assert all(line["outcome"] == "horizon" and line["steps"] == protocol.horizon for line in mine)
        assert [[line["total_cost"]] for line in mine] == found["certificate"]["totals"]
        assert found["certificate"]["family"] == len(protocol.arms)
        assert found["expected"] == sorted(found["expected"])  # grows with the budget


def test_expected_cost_without_shift_is_at_least_a_quarter_below_the_first_edition():
    """What its page had: 48.2, 73.7 and 70.5, on its own seeds and by its own bound."""
    study = json.loads((records.RESULTS / "costs" / "costs.json").read_text(encoding="utf-8"))
    for found, first in zip(study["arms"].values(), (48.2, 73.7, 70.5), strict=True):
        assert found["expected"][0] <= 0.75 * first


def test_returns_are_rederived_from_the_trial_lines():
    content = (records.RESULTS / "costs" / "returns.json").read_bytes()
    assert records.returns("costs").to_bytes() == content
    study = json.loads(content)
    for name, found in study["arms"].items():
        totals = [line["total_reward"] for line in records.lines("costs").to_pylist() if line["controller"] in name]
        assert found["observed_mean"] == pytest.approx(np.mean(totals))  # so none was cut
        assert found["expected"] == sorted(found["expected"], reverse=True)
        assert found["expected"][0] < found["observed_mean"]


def test_pilot_of_the_scale_is_counted_again_from_its_trial_lines():
    record = json.loads((records.PILOTS / "sigma.json").read_text(encoding="utf-8"))
    lines = read_parquet((records.PILOTS / "sigma.parquet").read_bytes()).to_pylist()
    made = load_tuning(records.PILOTS / "sigma.toml")
    assert record["base"] == made.base.hash
    for setting in record["settings"]:
        (pilot,) = setting["pilots"]
        mine = [line for line in lines if line["protocol"] == pilot]
        inside = [line["controller"] for line in mine if line["in no-cost-until-goal"]]
        counts = [inside.count(agent) for agent in ("C1", "C2", "C3")]
        assert len(mine) == 3 * setting["trials"]
        assert min(counts) == setting["successes"]
        assert made.pilot(setting["values"], setting["name"], 0).hash == pilot
    best = max(record["settings"], key=lambda setting: setting["expected"])
    assert (best["name"], best["values"]["schedules.wide.action.sigma"]) == (record["chosen"], 1.0)
    law = load_protocol(FOLDER / "law.toml")
    assert {used.protocol for used in law.trials.used_before} == {s["pilots"][0] for s in record["settings"]}


def test_kept_weights_are_those_of_the_certificates_that_were_declared_before():
    """The bias and gain certificates of the families study have S and Q of the same trials, by another way."""
    kept = disturbances.weights_of("families", "C1/one")
    for document in records.stored_families("families"):
        key = document.disturbance.features
        for line, score, energy in zip(kept, document.claim.scores, document.claim.energies, strict=True):
            assert (line[f"{key} S0"], line[f"{key} S1"]) == score
            assert ((line[f"{key} Q0"], 0.0), (0.0, line[f"{key} Q1"])) == energy


def test_named_disturbances_are_certified_again_from_kept_weights_and_trial_lines():
    with disturbances.TABLE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    arms = [(name, arm) for name, arms in disturbances.ARMS.items() for arm in arms]
    shown = len(disturbances.NAMED) * len(disturbances.SIZES)
    assert [(row["results"], row["arm"]) for row in rows] == [pair for pair in arms for _ in range(shown)]
    for name, arm in arms:
        lines = [line for line in records.lines(name).to_pylist() if line["attack"] == "nominal"]
        mine = [line for line in lines if f"{line['controller']}/{line['schedule']}" == arm]
        for row in rows:
            if (row["results"], row["arm"]) == (name, arm):
                counts = (len(mine), sum(line[f"in {row['event']}"] for line in mine))
                assert (int(row["trials"]), int(row["in the event"])) == counts
    few = [row for row in rows if (row["results"], row["arm"], row["size"]) == ("attacks", "C2/one", "0.5")]
    assert len(few) == len(disturbances.NAMED)
    (arm,) = (arm for arm in records.stored_protocol("attacks").arms if arm.name == "C2/one")
    for row, named in zip(few, disturbances.NAMED, strict=True):
        made, alone = disturbances.certified("attacks", arm, row["event"], named, 0.5)
        assert (repr(made.lower), repr(alone), f"{made.box[0][1]:g}") == (
            row["lower"],
            row["count alone"],
            row["at most"],
        )


def test_shares_of_the_allowed_drop_are_rederived_from_kept_lines_and_weights():
    with tightness.TABLE.open(newline="", encoding="utf-8") as file:
        rows = [tuple(row) for row in csv.reader(file)]
    assert rows == [
        tightness.HEADS,
        *tightness.run_lines(),
        *tightness.simulated_lines(),
        *tightness.fitted_lines(),
    ]
    for name, study in {"families": "families", "strata": "strata", "lidar": "strata", "toward": "strata"}.items():
        table = read_parquet((tightness.WEIGHTS / f"{name}.parquet").read_bytes())
        lines = {line["trial"]: line["in no-cost-until-goal"] for line in tightness.nominal(study, tightness.ARM)}
        assert [lines[trial] for trial in table["trial"].to_pylist()] == table["held"].to_pylist()
    for row in rows[1:]:
        drop, low, high, allowed = map(float, row[6:])
        assert low <= drop <= high
        assert high < allowed  # nobody comes near the bound


def test_the_adversary_that_simulates_futures_keeps_its_budget_and_gives_its_kept_trials_again():
    lookahead = importlib.import_module("lookahead")
    lines = lookahead.kept()
    assert [(float(line[0]), int(line[1])) for line in lines] == [
        (budget, trial) for budget in lookahead.BUDGETS for trial in range(lookahead.PAIRS)
    ]
    seeds = {line["trial"]: line["reset_seed"] for line in tightness.nominal("harm", tightness.ARM)}
    (block,) = records.stored_protocol("harm").arms[0].schedule.plan.blocks(Stage.ACTION)
    for budget, trial, seed, outcome, _, energy, _ in lines:
        assert seeds[int(trial)] == int(seed)
        assert outcome in ("goal", "horizon", "cost")
        assert 0.0 <= float(energy) <= energy_limit(float(budget), block)
    for budget in lookahead.BUDGETS:
        short = next(line for line in lines if float(line[0]) == budget and float(line[5]) > 0.0 and int(line[4]) < 80)
        assert lookahead.Attacker(budget).run(int(short[1])) == short


def test_slope_of_plans_over_time_is_that_of_a_known_law():
    """Failed if the noise of the first piece, with weight 0.6, and other noise are above 1. So |g|^2 = (0.6 phi(1))^2.

    A false alarm: below 1 in 10,000, if the interval were exact.
    """
    rng = np.random.default_rng(20261119)
    noise = rng.standard_normal((4000, 6, 8, 2))
    first = noise[:, :, :4, 0].sum(axis=2) / 2.0
    failed = 0.6 * first + 0.8 * rng.standard_normal(first.shape) > 1.0
    truth = (0.6 * math.exp(-0.5) / math.sqrt(2.0 * math.pi)) ** 2
    found, _, high = tightness.timed_slope(failed, noise, 4)
    assert abs(found - truth) < 2.0 * (high - found) < 0.4 * truth
    # Half of the piece has half of the squared slope in each part, so the sum stays. Twice the piece halves it.
    assert abs(tightness.timed_slope(failed, noise, 2)[0] - truth) < 0.3 * truth
    assert abs(tightness.timed_slope(failed, noise, 8)[0] - truth / 2) < 0.2 * truth
    found, _, high = tightness.timed_slope(rng.permuted(failed, axis=1), noise, 4)
    assert abs(found) < 2.0 * (high - found) < 0.4 * truth


def test_the_one_late_trial_of_the_ladder_runs_out_of_time_on_its_way_around():
    (late,) = (line for line in records.lines("ladder").to_pylist() if not line["in goal-before-cost"])
    assert (late["reset_seed"], late["outcome"], late["first_cost_step"]) == (5_900_322, "horizon", None)
    module = importlib.import_module("late")
    row, seen = module.again(None, module.PATIENT)
    assert row.chain == late["chain"]  # these settings are the navigator of the ladder
    assert len(seen) == late["steps"] == 500
    assert seen[:70] == [3.0] * 70  # out of sight
    assert min(seen[:250]) < 1.2
    assert max(seen[300:400]) == 3.0  # it went away again
    assert 0.8 < seen[-1] < 0.9


@pytest.mark.parametrize("name", ["navigator", "ladder", "sensing", "guarded", "noisyguard"])
def test_kept_trials_that_were_not_late_are_found_again_with_the_navigator_of_today(name):
    protocol = records.stored_protocol(name)
    arm = protocol.arms[0]
    line = next(line for line in records.lines(name).to_pylist() if line["steps"] < 200)
    found = importlib.import_module("stock").replay(protocol, arm, line["trial"], parts=protocol)
    assert (line["attack"], f"{line['controller']}/{line['schedule']}") == ("nominal", arm.name)
    assert (found.chain, found.steps) == (line["chain"], line["steps"])


def test_the_guard_with_wrong_readings_keeps_nine_tenths_for_every_layout():
    """The aim that noisyguard.toml declares, from its trial lines: the law of layouts, and readings wrong by 0.02."""
    protocol = records.stored_protocol("noisyguard")
    assert (protocol.trials.seeds, protocol.claim.target) == (None, 0.9)
    held = [is_inside("goal-before-cost", line) for line in records.lines("noisyguard").to_pylist()]
    schedule = protocol.arms[0].schedule.plan
    found = certify_event(
        sum(held), len(held), delta=protocol.claim.delta, family=protocol.family, target=0.9, schedule=schedule,
        bound=Bound.CLOPPER_PEARSON, event="goal-before-cost",
    )  # fmt: skip
    assert found.budgets["sensor"] >= 0.02


def test_layout_of_the_late_trial_is_hard_and_mended_for_other_noise_only():
    late = importlib.import_module("late")
    with late.TABLE.open(newline="", encoding="utf-8") as file:
        rows = [tuple(row) for row in csv.reader(file)]
    assert rows[0] == late.HEADS
    both = [(seed, name) for seed in late.SEEDS for name in ("ladder", "today")]
    assert [row[:2] for row in rows[1:]] == [(str(seed or "ladder"), name) for seed, name in both]
    assert late.line(900, "today") == rows[4]
    outcomes = {name: [row[2] for row in rows[1:] if row[1] == name] for name in ("ladder", "today")}
    assert outcomes["ladder"][0] == outcomes["today"][0] == "horizon"
    assert [outcomes[name][1:].count("goal") for name in ("ladder", "today")] == [3, 8]
    assert all(row[4] == "" for row in rows[1:])  # no cost


def test_observation_budgets_are_rederived_for_one_arm():
    from ccfs.controllers.lipschitz import lipschitz_upper, observation_budget

    with (FOLDER / "observation.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["eta"]]
    row = rows[0]
    controller = row["arm"].split("/")[0]
    spec = next(spec for spec in records.stored_protocol(row["results"]).controllers if spec.name == controller)
    bound = lipschitz_upper(zoo.actor(spec.arguments["name"]))
    document = next(d for d in certificates(row["results"]) if d.arm == row["arm"])
    assert float(row["budget"]) == document.trajectory.budget
    eta = observation_budget(document.trajectory.budget, bound, horizon=500)
    assert float(row["eta"]) == pytest.approx(eta, rel=1e-3)


def test_strata_give_at_least_1_4_times_the_budget_of_the_cohort_bound_from_the_same_trials():
    """The aim that was set before the first trial."""
    protocol = records.stored_protocol("strata")
    rows = records.rows(records.lines("strata"), protocol, protocol.events[0].name)
    budgets = {row.bound: row.certificate.budget for row in rows}
    assert budgets["stratified"] >= 1.4 * budgets["cohort"]


def test_an_agent_without_navigator_or_map_is_certified_for_at_least_0_3():
    """The aim that was set before the first trial."""
    budgets = [c.trajectory.budget for c in certificates("agents") if c.event == "no-cost-until-goal"]
    assert len(budgets) == 3
    assert min(budgets) >= 0.3


def test_an_agent_is_certified_for_at_least_0_3_for_the_law_of_layouts_too():
    """The aim that was set before the first trial. Each arm has draws of its own."""
    budgets = {c.arm: c.trajectory.budget for c in certificates("law")}
    assert max(budgets.values()) >= 0.3
    drawn = [line["reset_seed"] for line in records.lines("law").to_pylist()]
    assert len(budgets) == 6
    assert len(set(drawn)) > 0.99 * len(drawn)


def test_named_bias_is_certified_for_four_times_what_the_count_gives():
    """The aim that was set before the first trial, from the scores and energies of the 4,096 trials."""
    documents = {document.claim.name: document for document in records.stored_families("families")}
    lines = records.lines("families").to_pylist()
    protocol = records.stored_protocol("families")
    assert list(documents) == sorted(spec.name for spec in protocol.families)
    for document in documents.values():
        assert document.claim.successes == sum(line[f"in {document.event}"] for line in lines)
        assert document.claim.trials == len(lines) == 4_096
        (spec,) = (spec for spec in protocol.families if spec.name == document.claim.name)
        assert [tuple(pair) for pair in document.claim.box] == [(-most, most) for most in spec.box]
        assert (document.claim.delta, document.claim.family) == (protocol.claim.delta, protocol.claims)
    documents["bias"].claim.recheck()
    assert documents["bias"].is_certified
    assert documents["bias"].share_of_count <= 1 / 4


def test_scores_foretell_what_attacked_trials_show():
    found = list(records.scored_and_run("scores"))
    assert len(found) == 3
    for score, attacked in found:
        assert score.rate_lower <= attacked.successes / attacked.trials <= score.rate_upper
        low, high = interval(attacked.successes, attacked.trials, Bound.COHORT, delta=0.05)
        assert low <= score.rate <= high


def test_stock_environment_gives_the_same_trace():
    """What `make table` says at its end. Both must draw the same noise, although their protocols differ."""
    stock = importlib.import_module("stock")
    assert stock.compare(load_protocol(records.HERE / "protocol.toml").first(1), 1).different == 0


def test_audit_replays_trials_of_the_table_in_its_confined_child(tmp_path):
    """The limits of the child must leave room for MuJoCo, which reserves far more memory than it uses."""
    look = load_protocol(records.HERE / "protocol.toml").first(1)
    run(look, tmp_path / "run", serial_engine(), where="p")
    certify(Store(tmp_path / "run"))
    # In a process of its own: trials of a run that this process made are replayed here and not in a child.
    command = [sys.executable, "-m", "ccfs", "audit", tmp_path / "run", "--replay", "all"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "12 replayed bit for bit" in done.stdout) == (0, True), done.stdout
