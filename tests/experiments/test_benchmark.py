"""The benchmark: each kept row is whole, follows from rows.toml and its trial lines, and stands on the page."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np
import pyarrow as pa
import pytest

from ccfs.certificates.trajectory import certify_event
from ccfs.controllers import from_omnisafe, zoo
from ccfs.files.toml import toml_text
from ccfs.protocol.model import Protocol, load_protocol
from ccfs.results.certificate import claim_record
from ccfs.results.trial_lines import event_column
from ccfs.runs.build import build_arm
from ccfs.runs.store import Store
from ccfs.runs.trial import StopRule, run_trial

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "experiments" / "benchmark"


@pytest.fixture(scope="module")
def study():
    sys.path.insert(0, str(HERE))
    try:
        import page
    finally:
        sys.path.remove(str(HERE))
    yield page
    for name in ("page", "run", "bullet", "stock_omnisafe", "_shared", "_shared.figures"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def kept(study):
    found = study.kept_rows()
    assert found
    return found


def declared(study, row, agent: str, digest: str, folder: Path) -> Protocol:
    path = folder / f"{row.name}.toml"
    path.write_text(toml_text(study.run.protocol_of(row, agent, digest)), encoding="utf-8")
    return load_protocol(path)


def test_benchmark_keeps_only_rows_that_are_declared(study, kept) -> None:
    folders = {path.name for path in study.run.RESULTS.iterdir() if (path / "sums").exists()}
    assert folders == {row.name for row in kept}


def test_benchmark_rows_are_whole(study, kept) -> None:
    for row in kept:
        study.run.refuse_broken(row)


def test_benchmark_seal_notices_a_changed_an_added_and_a_missing_file(study, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    study.run.seal(tmp_path)
    assert study.run.broken_seals(tmp_path) == []
    (tmp_path / "a").write_text("changed")
    (tmp_path / "b").unlink()
    (tmp_path / "c").write_text("added")
    assert study.run.broken_seals(tmp_path) == ["a", "b", "c"]


def test_benchmark_protocols_follow_from_the_table_of_rows(study, kept, tmp_path: Path) -> None:
    for row in kept:
        agent = row.agent or (row.folder / "agent").relative_to(ROOT).as_posix()
        expected = declared(study, row, agent, study.card_of(row).digest, tmp_path)
        assert Store(row.folder).protocol().hash == expected.hash, row.name


def test_benchmark_agents_are_what_their_rows_say(study, kept) -> None:
    for row in kept:
        card = study.card_of(row)
        assert (card.environment, card.seed) == (row.env_id, row.seed)
        # SB3 ends with a whole rollout, so it may train a little longer. Nobody trained less than the row asks for.
        assert row.steps <= card.steps < 1.1 * row.steps


def test_benchmark_counts_are_those_of_the_trial_lines(study, kept) -> None:
    for row in kept:
        lines = study.run.lines_of(row)
        assert len(lines) == row.claim.trials
        for certificate in study.run.certificates(row):
            assert certificate.protocol == Store(row.folder).protocol().hash
            counted = Counter(line[event_column(certificate.event)] for line in lines)
            assert (certificate.successes, certificate.trials) == (counted[True], len(lines)), row.name


def test_benchmark_costs_follow_from_the_trial_lines(study, kept) -> None:
    for row in kept:
        derived = study.run.costs(row, Store(row.folder).protocol(), study.run.lines_of(row))
        path = row.folder / "costs.json"
        assert (derived is not None) == path.exists()
        if derived is not None:
            assert derived.to_bytes() == path.read_bytes(), row.name


def test_benchmark_page_shows_the_kept_rows(study, kept) -> None:
    page = study.PAGE.read_text(encoding="utf-8")
    assert study.with_tables(page) == page
    assert page.count("\n| ") > len(kept)


def test_benchmark_page_sums_up_the_rows_of_a_million_steps(study, kept) -> None:
    """A new row that makes a sentence of "What the rows say so far" wrong is noticed here."""
    found = {
        row.name: {certificate.event: certificate for certificate in study.run.certificates(row)}
        for row in kept
        if row.environment["make"] == "safety-gymnasium" and row.steps == 1_000_000
    }
    arriving = {name for name, one in found.items() if one["goal-before-cost"].budgets["sensor"] is not None}
    safe = {name for name, one in found.items() if one["no-cost-until-goal"].budgets["sensor"] is not None}
    of = {task: {name for name in found if task in name} for task in ("Goal1", "Goal2", "Button1", "Push1")}
    assert of["Goal1"] - arriving == {"PointGoal1-cpo-1"}
    assert arriving <= of["Goal1"]
    for algorithm, least, most in (("trpolag", 6, 6), ("ppolag", 28, 47), ("ppo-penalty", 28, 47), ("cpo", 28, 47)):
        mine = [found[f"PointGoal1-{algorithm}-{seed}"]["goal-before-cost"].successes for seed in range(3)]
        assert least <= max(mine) - min(mine) <= most
    assert of["Push1"] <= safe
    assert max(found[name]["goal-before-cost"].successes for name in of["Push1"]) == 9
    for task in ("Goal2", "Button1"):
        assert set() < of[task] & safe < of[task]


def test_benchmark_rows_are_made_for_every_task_and_algorithm(study) -> None:
    found = {(row.task, row.algorithm) for row in study.run.rows().values()}
    safety = {f"{robot}{task}" for robot in ("Point", "Car") for task in ("Goal1", "Goal2", "Button1", "Push1")}
    assert {(task, name) for task in safety for name in ("ppolag", "trpolag", "ppo-penalty", "cpo")} <= found


def test_benchmark_every_declared_row_has_a_protocol_of_its_own(study, tmp_path: Path) -> None:
    rows = study.run.rows().values()
    hashes = {declared(study, row, "a", "0" * 64, tmp_path).hash for row in rows}
    assert len(hashes) == len(rows)


class Forgetful(gymnasium.Env):
    """As Bullet-Safety-Gym does: draws from numpy's global generator, ignores seeds, remembers earlier episodes."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self) -> None:
        self.episodes = 0

    def reset(self, *, seed: int | None = None, options: object = None):
        self.episodes += 1
        return self._drawn(), {}

    def step(self, action):
        return self._drawn(), 0.0, False, False, {"cost": 0}

    def _drawn(self) -> np.ndarray:
        return np.array([np.random.uniform() + self.episodes])  # noqa: NPY002


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_benchmark_bullet_tasks_repeat_from_their_seed_alone(study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bullet_safety_gym", ModuleType("bullet_safety_gym"))
    monkeypatch.setitem(
        gymnasium.registry, "Forgetful-v0", gymnasium.envs.registration.EnvSpec("Forgetful-v0", Forgetful)
    )

    def episode(env, seed: int) -> list[float]:
        return [float(env.reset(seed=seed)[0][0]), *(float(env.step(np.zeros(1))[0][0]) for _ in range(3))]

    one, other = study.run.bullet.make("Forgetful-v0"), study.run.bullet.make("Forgetful-v0")
    np.random.seed(1)  # noqa: NPY002
    state = np.random.get_state()[1].tobytes()  # noqa: NPY002
    first = episode(one, 5)
    episode(one, 6)
    assert episode(one, 5) == first == episode(other, 5) != episode(other, 6)
    # Nobody else's draws are touched.
    assert np.random.get_state()[1].tobytes() == state  # noqa: NPY002


def test_benchmark_check_finds_a_trial_that_differs(study, kept, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    row = next(row for row in kept if row.agent is None)
    lines = study.run.read_parquet((row.folder / "trajectories.parquet").read_bytes())
    monkeypatch.setattr(study.run, "certify", lambda row, *_, **__: Store(row.folder))
    monkeypatch.setattr(study.run, "trial_lines", lambda *_: lines)
    assert study.run.main(["--check", row.name]) == 0
    chains = lines["chain"].to_pylist()
    other = pa.array([*chains[:-1], chains[0]], lines.schema.field("chain").type)
    monkeypatch.setattr(
        study.run, "trial_lines", lambda *_: lines.set_column(lines.schema.get_field_index("chain"), "chain", other)
    )
    assert study.run.main(["--check", row.name]) == 1
    assert f"1 of {len(lines)} trials differ" in capsys.readouterr().out


def test_benchmark_check_uses_no_trials_that_are_there_already(
    study, kept, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = next(row for row in kept if row.agent is None)
    lines = study.run.read_parquet((row.folder / "trajectories.parquet").read_bytes())
    monkeypatch.setattr(study.run, "RUNS", tmp_path)
    given = []

    def certify(row, *_, ending):
        folder = tmp_path / f"{row.name}{ending}"
        given.append((folder, folder.exists(), folder.parent.is_dir()))
        return Store(row.folder)

    monkeypatch.setattr(study.run, "certify", certify)
    monkeypatch.setattr(study.run, "trial_lines", lambda *_: lines)
    assert study.run.check(row)
    assert study.run.check(row)
    assert [(was_there, has_parent) for _, was_there, has_parent in given] == [(False, True)] * 2
    assert given[0][0] != given[1][0]
    assert list(tmp_path.iterdir()) == []


def test_benchmark_check_needs_a_row_that_is_kept(study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(study.run, "RESULTS", tmp_path)
    with pytest.raises(study.run.RefusedError, match="must be a kept row"):
        study.run.main(["--check", "CartPole-sb3-ppo-0"])
    for words in (["--check"], [], ["--check", "CartPole-sb3-ppo-9"]):
        with pytest.raises(study.run.RefusedError, match=r"usage.*Got: n"):
            study.run.main(words)


@pytest.fixture
def copied(study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A kept row in a folder of its own, which a test may change."""
    row = study.run.rows()["Pendulum-sb3-ppo-0"]
    shutil.copytree(row.folder, tmp_path / row.name)
    monkeypatch.setattr(study.run, "RESULTS", tmp_path)
    study.run.refuse_broken(row)
    return row


def test_benchmark_refuses_a_kept_row_that_somebody_changed(study, copied) -> None:
    (found,) = copied.folder.glob("certificates/agent/noise/*.json")
    document = found.read_text()
    found.write_text(document.replace('"successes":206', '"successes":216'))
    with pytest.raises(study.run.RefusedError, match="must have their checksums, got others for certificates"):
        study.run.make(copied)
    # With a seal of its own the numbers themselves tell.
    study.run.seal(copied.folder)
    with pytest.raises(study.run.RefusedError, match=r"but 0\.76\d+ from its counts"):
        study.run.check(copied)


def test_benchmark_refuses_costs_that_do_not_follow_from_the_trials(study, copied) -> None:
    (copied.folder / "costs.json").write_text("{}")
    study.run.seal(copied.folder)
    with pytest.raises(study.run.RefusedError, match=r"costs.json does not follow"):
        study.run.make(copied)


@pytest.mark.parametrize("changed", [{"steps": 10}, {"seed": 1}, {"environment": "SafetyPointGoal1-v0"}])
def test_benchmark_refuses_an_agent_that_the_row_does_not_ask_for(study, copied, changed) -> None:
    card = study.card_of(copied)
    fields = study.run._fields(card, **changed)
    entry = zoo.load(copied.folder / "agent")
    shutil.rmtree(copied.folder / "agent")
    zoo.write(copied.folder / "agent", entry.actor, **fields)
    with pytest.raises(study.run.RefusedError, match="the card of the agent must say Pendulum-v1, seed 0"):
        study.run.agent_of(copied)


def test_benchmark_check_says_that_the_declaration_changed(study, copied) -> None:
    other = replace(copied, settings=copied.settings.model_copy(update={"horizon": 199}))
    with pytest.raises(study.run.RefusedError, match=r"rows.toml and the agent must be as they were"):
        study.run.check(other)


def forge(study, row, *, lines=None, **claim) -> None:
    """Write certificates and costs anew for other trial lines or another claim, and seal the row."""
    path = row.folder / "trajectories.parquet"
    schema = study.run.read_parquet(path.read_bytes()).schema
    lines = study.run.lines_of(row) if lines is None else lines
    path.write_bytes(study.run.parquet_bytes(pa.Table.from_pylist(lines, schema=schema)))
    protocol = Store(row.folder).protocol()
    (arm,) = protocol.arms
    for event in protocol.events:
        found = row.folder / study.run.certificate_name(arm, event)
        document = study.run.verify(found, None)
        changed = {"delta": document.delta, "family": document.family, "target": document.target, **claim}
        inside = [line[event_column(event.name)] for line in lines]
        proof = certify_event(
            sum(inside), len(inside), bound=protocol.bound, event=event.name, schedule=arm.schedule.plan, **changed
        )  # fmt: skip
        counted = {"planned_trials": len(lines), "outcomes": dict(Counter(line["outcome"] for line in lines))}
        found.write_text(document.model_copy(update={"claim": claim_record(proof), **counted}).to_json())
    totals = study.run.costs(row, protocol, lines)
    if totals is not None:
        (row.folder / "costs.json").write_bytes(totals.to_bytes())
    study.run.seal(row.folder)


@pytest.mark.parametrize("claim", [{"delta": 0.5}, {"target": 0.1}, {"family": 2}])
def test_benchmark_refuses_certificates_of_another_claim_than_the_protocol_makes(study, copied, claim) -> None:
    """Each of them holds by itself, and has the counts of the trial lines and the hash of the protocol."""
    forge(study, copied)
    study.run.refuse_broken(copied)
    forge(study, copied, **claim)
    with pytest.raises(study.run.RefusedError, match=r"does not follow from the protocol .* differs in claim\."):
        study.run.check(copied)


def test_benchmark_refuses_certificates_of_more_noise_than_the_protocol_has(study, copied) -> None:
    (found,) = copied.folder.glob("certificates/agent/noise/*.json")
    document = study.run.verify(found, None)
    (arm,) = Store(copied.folder).protocol().arms
    blocks = arm.schedule.model_dump(mode="json")
    blocks["action"]["sigma"] = 20.0
    proof = certify_event(
        document.successes, document.trials, delta=document.delta, family=document.family, target=document.target,
        schedule=type(arm.schedule).model_validate(blocks).plan, bound=document.trajectory.bound, event=document.event,
    )  # fmt: skip
    found.write_text(document.model_copy(update={"claim": claim_record(proof)}).to_json())
    study.run.seal(copied.folder)
    with pytest.raises(study.run.RefusedError, match=r"differs in claim\."):
        study.run.check(copied)


@pytest.mark.parametrize("copies", [1, 3])
def test_benchmark_refuses_trials_left_out_or_counted_twice(study, copied, copies) -> None:
    inside = [line for line in study.run.lines_of(copied) if line["in return-at-least-minus-400"]]
    forge(study, copied, lines=(copies * inside)[: copied.claim.trials])
    with pytest.raises(study.run.RefusedError, match="must be those of the 256 planned trials, in order"):
        study.run.check(copied)


@pytest.fixture
def driven(study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A kept row with two events and an agent of our trainer, in a folder of its own."""
    row = study.run.rows()["PointGoal1-trpolag-0"]
    shutil.copytree(row.folder, tmp_path / row.name)
    monkeypatch.setattr(study.run, "RESULTS", tmp_path)
    study.run.refuse_broken(row)
    return row


def test_benchmark_refuses_certificates_of_another_event(study, driven) -> None:
    one, other = sorted(driven.folder.glob("certificates/agent/noise/*.json"))
    one.write_bytes(other.read_bytes())
    study.run.seal(driven.folder)
    with pytest.raises(study.run.RefusedError, match=r"goal-before-cost does not follow .* differs in event"):
        study.run.check(driven)
    other.rename(other.with_name("further.json"))
    study.run.seal(driven.folder)
    with pytest.raises(study.run.RefusedError, match=r"of no event of its protocol: .*further\.json"):
        study.run.check(driven)


def test_benchmark_refuses_an_agent_that_the_trials_are_not_of(study, driven, monkeypatch: pytest.MonkeyPatch) -> None:
    other = HERE / "results" / "PointGoal1-ppolag-0" / "agent"
    shutil.rmtree(driven.folder / "agent")
    shutil.copytree(other, driven.folder / "agent")
    study.run.seal(driven.folder)
    with pytest.raises(study.run.RefusedError, match="must have the training settings of this row"):
        study.run.check(driven)
    # A card that says what the row wants is not enough: the trials are of other weights.
    config = study.run._config(driven).as_dict()
    entry = zoo.load(other)
    shutil.rmtree(driven.folder / "agent")
    zoo.write(driven.folder / "agent", entry.actor, **study.run._fields(entry.card, config=config))
    study.run.seal(driven.folder)
    with pytest.raises(study.run.RefusedError, match="and the agent must be as they were"):
        study.run.check(driven)


def test_benchmark_does_not_train_where_a_kept_agent_is_gone(study, driven) -> None:
    shutil.rmtree(driven.folder / "agent")
    study.run.seal(driven.folder)
    with pytest.raises(study.run.RefusedError, match=r"PointGoal1-trpolag-0: .*agent"):
        study.run.make(driven)


def test_benchmark_events_follow_from_the_first_cost_and_the_first_goal(kept, study) -> None:
    """A second counting, from other columns of the trial lines."""
    for row in kept:
        if row.environment["make"] != "safety-gymnasium":
            continue
        for line in study.run.lines_of(row):
            goal, cost = line["goal_step"], line["first_cost_step"]
            arrived = goal is not None and (cost is None or cost > goal)
            assert line["in goal-before-cost"] == arrived
            assert line["in no-cost-until-goal"] == (arrived or (goal is None and cost is None))
            assert (line["outcome"], line["steps"]) == ("horizon", row.settings.horizon)
            assert (line["total_cost"] == 0.0) == (cost is None)


def test_benchmark_explains_an_agent_that_it_cannot_train(study, tmp_path: Path) -> None:
    row = replace(study.run.rows()["Pendulum-sb3-ppo-0"], algorithm="mine")
    with pytest.raises(study.run.RefusedError, match=r"there is no agent in .*, and mine cannot be trained here"):
        study.run.train(row, tmp_path / "agent")
    row = replace(study.run.rows()["PointGoal1-ppolag-0"], training={"cost_limmit": 5.0})
    with pytest.raises(
        study.run.RefusedError, match=r"training of PointGoal1-ppolag-0 has a wrong setting: .*cost_limmit"
    ):
        study.run.train(row, tmp_path / "agent")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('tasks = ["CartPole"]\nalgorithms', 'tasks = ["Acrobot"]\nalgorithms', "one of CartPole, .*, got Acrobot"),
        ("steps = 50_000", "step = 50_000", "key `rows.0.steps` is missing"),
        ("steps = 50_000", "steps = 50_000\ntrainig = {}", "unknown key `rows.0.trainig`"),
        ('algorithms = ["sb3-ppo"]', 'algorithms = ["../../x"]', "`rows.0.algorithms.0`: string should match pattern"),
        ("seeds = [0]", "seeds = 8", "`rows.0.seeds`: input should be a valid list, got 8"),
        ("seeds = [0]", "seeds = [0, 0]", "must differ in task, algorithm or seed, got CartPole-sb3-ppo-0 twice"),
        ('arguments = { id = "CartPole-v1" }', "arguments = { g = 9.0 }", "name the task by `id` or `env_id`"),
        ("delta = 0.001", "delta = ", "must be a TOML file"),
    ],
)
def test_benchmark_explains_mistakes_in_the_table_of_rows(
    study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old, new, told
) -> None:
    text = (HERE / "rows.toml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "rows.toml").write_text(text.replace(old, new, 1), encoding="utf-8")
    monkeypatch.setattr(study.run, "HERE", tmp_path)
    with pytest.raises(study.run.RefusedError, match=f"rows.toml: .*{told}"):
        study.run.rows()


def test_benchmark_environments_keep_arguments_that_are_no_texts(study) -> None:
    row = study.run.rows()["PointGoal1-ppolag-0"]
    arguments = {"g": 9.0, "env_id": "Safety{task}-v0"}
    settings = row.settings.model_copy(update={"environment": {"make": "safety-gymnasium", "arguments": arguments}})
    other = replace(row, settings=settings)
    assert other.environment["arguments"] == {"g": 9.0, "env_id": "SafetyPointGoal1-v0"}
    assert other.env_id == "SafetyPointGoal1-v0"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_benchmark_trials_are_found_again(study, kept) -> None:
    """One trial of each Safety-Gymnasium row, by its kept agent. `run.py --check` runs all of them."""
    for number, row in enumerate(row for row in kept if row.environment["make"] == "safety-gymnasium"):
        protocol, line = Store(row.folder).protocol(), study.run.lines_of(row)[number]
        (arm,) = protocol.arms
        wrapped, controller = build_arm(protocol, arm, None)
        try:
            streams = protocol.streams(arm, line["trial"])
            stop = StopRule(goal=protocol.stop.goal, cost=protocol.stop.cost)
            found = run_trial(wrapped, controller, horizon=protocol.horizon, stop=stop, streams=streams)[1]
        finally:
            wrapped.close()
        assert all(line[name] == getattr(found, name) for name in ("chain", "steps", "total_cost", "goal_step")), row


@pytest.mark.slow
def test_benchmark_commands_run_from_any_folder_and_tell_bad_input_by_their_exit_code(tmp_path: Path) -> None:
    for words, code, told in ((["--list"], 0, "CartPole-sb3-ppo-0"), (["no-row"], 2, "Got: no row no-row")):
        command = [sys.executable, str(HERE / "run.py"), *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == code
        assert told in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("_omnisafe")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_benchmark_takes_an_algorithm_of_stock_omnisafe(study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(study.run.rows()["PointGoal1-omnisafe-CPO-0"], steps=200, training={"steps_per_epoch": 200})
    monkeypatch.setattr(study.run, "RUNS", tmp_path / "runs")
    study.run.train(row, tmp_path / "agent")
    entry = zoo.load(tmp_path / "agent")
    assert (entry.card.algorithm, entry.card.environment, entry.card.steps) == ("CPO of OmniSafe", row.env_id, 200)
    assert entry.card.command == row.command
    (made,) = (tmp_path / "runs" / row.name).glob("*/*/config.json")
    assert entry.actor.digest == from_omnisafe(made.parent).digest
