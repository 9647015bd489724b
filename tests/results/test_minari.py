"""Exported trajectories, read back by Minari itself, are those of the run."""

from __future__ import annotations

from pathlib import Path

import minari
import numpy as np
import pytest
from toy_protocol import protocol
from typer.testing import CliRunner

from ccfs.cli.main import app
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.protocol.model import load_protocol
from ccfs.results.minari import export_minari
from ccfs.runs.executors import serial_engine
from ccfs.runs.manifest import write_manifest
from ccfs.runs.record import StepRow, TrajectoryRow, lines_of, observation_digest
from ccfs.runs.run import run
from ccfs.runs.store import RunError

pytestmark = pytest.mark.slow
ABSTAINS = {
    "fallback": (
        'make = "center"\nunverified = true',
        'make = "fixed"\narguments = { values = [9.0] }',
    ),
    "box": ("low = [-0.5], high = [0.5]", "low = [-0.2], high = [0.2]"),
}


@pytest.fixture(autouse=True)
def _datasets_here(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    return run(protocol(folder, trials=6), folder / "run", serial_engine(), where="p")


def stored(store, folder):
    steps, rows = [], []
    for path in sorted((store.root / "traces" / folder).glob("*.parquet")):
        steps += lines_of(StepRow, read_parquet(path.read_bytes()))
        rows += lines_of(TrajectoryRow, read_parquet((store.root / "trajectories" / folder / path.name).read_bytes()))
    return steps, rows


@pytest.mark.parametrize("attack", [None, "push"])
def test_export_minari_holds_the_stored_trajectories(store, attack):
    made = export_minari(store, "toy/steer-v0", arm="steer/four", attack=attack)
    dataset = minari.load_dataset("toy/steer-v0")
    steps, rows = stored(store, f"steer/four/{attack or 'nominal'}")
    assert (made.episodes, made.steps, made.left_out) == (6, 36, ())
    assert (dataset.total_episodes, dataset.total_steps) == (6, 36)
    for episode, row in zip(dataset.iterate_episodes(), rows, strict=True):
        mine = [step for step in steps if step.trial == row.trial]
        assert episode.actions.tolist() == [list(step.action) for step in mine]
        assert episode.rewards.tolist() == [step.reward for step in mine]
        assert episode.truncations.tolist() == [False] * 5 + [True]
        assert episode.infos["cost"][1:, 0].tolist() == [step.cost for step in mine]
        assert episode.infos["index"][1:, 0].tolist() == [step.index for step in mine]
        digests = [observation_digest(observation) for observation in episode.observations]
        assert digests == [row.first_observation, *(step.observation for step in mine)]
    (metadata,) = dataset.storage.get_episode_metadata([3])
    assert (metadata["trial"], metadata["reset_seed"], metadata["outcome"]) == (3, 103, "horizon")


@pytest.mark.parametrize("attack", [None, "push"])
def test_recovered_environment_gives_the_observations_of_the_dataset_again(store, attack):
    export_minari(store, "toy/steer-v0", arm="steer/four", attack=attack)
    dataset = minari.load_dataset("toy/steer-v0")
    env = dataset.recover_environment()
    assert (env.observation_space, env.action_space) == (dataset.observation_space, dataset.action_space)
    for episode in dataset.iterate_episodes():
        (metadata,) = dataset.storage.get_episode_metadata([episode.id])
        seen = [env.reset(seed=int(metadata["reset_seed"]))[0]]
        for action, reward, cost in zip(episode.actions, episode.rewards, episode.infos["cost"][1:, 0], strict=True):
            observation, given, _, _, info = env.step(action)
            seen.append(observation)
            assert (given, info["cost"]) == (reward, cost)
        np.testing.assert_array_equal(np.array(seen), episode.observations)
    env.close()


def test_recovered_safety_gymnasium_is_rounded_and_has_five_results(tmp_path):
    whole = load_protocol(Path(__file__).parents[2] / "experiments/goal2/ladder.toml")
    short = whole.first(1).model_copy(update={"horizon": 3})
    exported = run(short, tmp_path / "run", serial_engine(), where="p")
    export_minari(exported, "goal2/ladder-v0", arm=short.arms[0].name)
    dataset = minari.load_dataset("goal2/ladder-v0")
    env, episode = dataset.recover_environment(), dataset[0]
    seen = [env.reset(seed=short.trials.seeds[0])[0]]
    for action in episode.actions:
        observation, _, _, _, info = env.step(action)
        assert "cost" in info
        seen.append(observation)
    np.testing.assert_array_equal(np.array(seen), episode.observations)
    env.close()


def test_export_minari_cuts_abstained_trajectories_and_leaves_out_empty_ones(tmp_path):
    abstaining = run(protocol(tmp_path, trials=12, **ABSTAINS), tmp_path / "run", serial_engine(), where="p")
    _, rows = stored(abstaining, "steer/one/nominal")
    empty = tuple(row.trial for row in rows if row.steps == 0)
    assert empty
    assert any(0 < row.steps < 6 for row in rows)
    made = export_minari(abstaining, "toy/abstains-v0", arm="steer/one")
    assert made.left_out == empty
    kept = [row for row in rows if row.steps]
    for episode, row in zip(minari.load_dataset("toy/abstains-v0").iterate_episodes(), kept, strict=True):
        assert len(episode.actions) == row.steps == len(episode.observations) - 1
        assert not episode.terminations.any()
        assert episode.truncations.tolist() == [False] * (row.steps - 1) + [True]


def test_export_minari_refuses_what_does_not_replay(store, tmp_path):
    forged = run(protocol(tmp_path, trials=4), tmp_path / "run", serial_engine(), where="p")
    name = "trajectories/steer/one/nominal/batch-00000.parquet"
    table = read_parquet(forged.read(name))
    content = table.to_pydict()
    content["chain"][2] = b"\1" * 32
    forged.write(name, parquet_bytes(table.from_pydict(content, schema=table.schema)))
    with pytest.raises(RunError, match="was changed"):
        export_minari(forged, "toy/forged-v0", arm="steer/one")
    write_manifest(forged, forged.protocol())
    with pytest.raises(RunError, match=r"batch-00000.parquet: trial 2 does not replay"):
        export_minari(forged, "toy/forged-v0", arm="steer/one")
    assert minari.list_local_datasets() == {}


def test_export_minari_names_what_may_be_chosen(store):
    with pytest.raises(ValueError, match="`arm` must be one of steer/one, steer/four, got None"):
        export_minari(store, "toy/steer-v0")
    with pytest.raises(ValueError, match="`attack` must be one of nominal, push, got pull"):
        export_minari(store, "toy/steer-v0", arm="steer/one", attack="pull")


def test_export_command_writes_once(store):
    arguments = ["export", str(store.root), "--minari", "toy/steer-v0", "--arm", "steer/one"]
    first, second = (CliRunner().invoke(app, arguments) for _ in range(2))
    assert (first.exit_code, first.output) == (0, "Dataset toy/steer-v0: 6 episodes, 36 steps.\n")
    assert second.exit_code == 2
    assert "`dataset_id` must be new" in second.output
    assert np.isfinite(minari.load_dataset("toy/steer-v0")[0].observations).all()


@pytest.mark.parametrize("name", ["foo", "", "a b/c", "demo/steering"])
def test_export_command_refuses_a_bad_dataset_id_in_one_line(store, name):
    answer = CliRunner().invoke(app, ["export", str(store.root), "--minari", name, "--arm", "steer/one"])
    assert (answer.exit_code, type(answer.exception)) == (2, SystemExit)
    words = "`dataset_id` (`--minari`) must be a name with a version, such as demo/steering-v0"
    assert answer.output == f"{words}, got {name!r}.\n"


def test_export_minari_has_the_environments_observations_and_what_was_read_of_them(tmp_path):
    sensor = ("action = { count = 1, sigma = 0.2 }", "action = { count = 1, sigma = 0.2 }\nsensor = { sigma = 0.05 }")
    store = run(protocol(tmp_path, trials=4, x=sensor), tmp_path / "run", serial_engine(), where="p")
    export_minari(store, "toy/sensed-v0", arm="steer/one")
    steps, rows = stored(store, "steer/one/nominal")
    for episode, row in zip(minari.load_dataset("toy/sensed-v0").iterate_episodes(), rows, strict=True):
        mine = [step for step in steps if step.trial == row.trial]
        digests = [observation_digest(observation) for observation in episode.observations]
        assert digests == [row.first_observation, *(step.observation for step in mine)]
        readings = [observation_digest(reading) for reading in episode.infos["reading"]]
        assert readings == [*(step.reading for step in mine), mine[-1].observation]


def test_export_minari_has_discrete_actions_as_their_space_has_them(tmp_path):
    changes = {
        "a": ('make = "corridor"\narguments = { horizon = 6, post = 0.6 }', 'make = "toys:Buttons"'),
        "b": ('make = "steering"\narguments = { gain = 0.2 }', 'make = "toys:Scores"'),
        "c": ("action = { count = 1, sigma = 0.2 }", "score = { count = 1, sigma = 0.2 }"),
        "d": ("action = { count = 4, sigma = 0.2, multiplier = 1.05 }", "score = { count = 2, sigma = 0.2 }"),
        "e": ('make = "box", arguments = { low = [-0.5], high = [0.5] }', 'make = "accept-all"'),
        "f": ("arguments = { direction = [1.0] }", "arguments = { direction = [1.0, 0.0, 0.0] }"),
    }
    store = run(protocol(tmp_path, trials=4, **changes), tmp_path / "run", serial_engine(), where="p")
    export_minari(store, "toy/buttons-v0", arm="steer/one", attack="push")
    dataset = minari.load_dataset("toy/buttons-v0")
    steps, rows = stored(store, "steer/one/push")
    for episode, row in zip(dataset.iterate_episodes(), rows, strict=True):
        assert episode.actions.tolist() == [int(step.action[0]) for step in steps if step.trial == row.trial]
        assert all(dataset.action_space.contains(action) for action in episode.actions)
