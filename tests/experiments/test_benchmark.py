"""The benchmark: each kept row is whole, follows from rows.toml and its trial lines, and stands on the page."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np
import pyarrow as pa
import pytest

from ccfs.controllers import from_omnisafe, zoo
from ccfs.files.toml import toml_text
from ccfs.protocol.model import Protocol, load_protocol
from ccfs.results.trial_lines import event_column
from ccfs.runs.store import Store

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "experiments" / "benchmark"


@pytest.fixture(scope="module")
def study():
    sys.path.insert(0, str(HERE))
    try:
        import lander  # noqa: F401
        import page
    finally:
        sys.path.remove(str(HERE))
    yield page
    for name in ("page", "run", "lander", "bullet", "stock_omnisafe"):
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
        assert study.run.broken_seals(row.folder) == [], row.name


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
        assert len(lines) == row.claim["trials"]
        for certificate in study.certificates(row):
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
    assert study.with_table(page) == page
    assert page.count("\n| ") > len(kept)


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


class World:
    """A world that remembers how often it was stepped."""

    def __init__(self, *, gravity: float) -> None:
        self.gravity, self.steps, self.bodies = gravity, 0, 0


class Moon(gymnasium.Env):
    """Resets and steps as LunarLander-v2 does: in one world for all episodes, from which it removes its bodies."""

    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self) -> None:
        self.world = World(gravity=-10.0)

    def _destroy(self) -> None:
        self.world.bodies = 0

    def reset(self, *, seed: int | None = None, options: object = None):
        super().reset(seed=seed)
        self._destroy()
        self.world.bodies = 3
        return self.step(None)[0], {}

    def step(self, action):
        self.world.steps += 1
        assert self.world.bodies == 3
        return np.array([self.np_random.uniform() + self.world.steps + self.world.gravity]), 0.0, False, False, {}


def test_benchmark_lander_has_a_world_of_its_own_for_each_episode(study) -> None:
    lander = sys.modules["lander"].Lander
    env, other = lander(Moon()), Moon()
    first = float(env.reset(seed=5)[0][0])
    assert float(other.reset(seed=5)[0][0]) == first != float(other.reset(seed=5)[0][0])
    env.step(None)
    assert float(env.reset(seed=6)[0][0]) != first == float(env.reset(seed=5)[0][0])


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


def test_benchmark_check_needs_a_row_that_is_kept(study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(study.run, "RESULTS", tmp_path)
    with pytest.raises(SystemExit, match="must be a kept row"):
        study.run.main(["--check", "CartPole-sb3-ppo-0"])
    for words in (["--check"], [], ["--check", "CartPole-sb3-ppo-9"]):
        with pytest.raises(SystemExit, match="usage"):
            study.run.main(words)


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
