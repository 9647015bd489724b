"""Exported controllers: what a card says is what was trained, and an entry that was touched is refused."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from rich.console import Console
from typer.testing import CliRunner

from ccfs.cli.main import app
from ccfs.controllers import ZooError, from_sb3, zoo
from ccfs.controllers.training import runner
from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.export import export
from ccfs.controllers.training.seeds import EVALUATION_SEED_LIMIT
from ccfs.controllers.training.state import CURVE, TrainingDivergedError, TrainingState

CONFIG = TrainingConfig(
    environment="SafetyNoise0-v0", seed=5, total_steps=400, steps_per_epoch=100, environments=2, update_iterations=1,
    hidden_sizes=(4,),
)  # fmt: skip


class Noise:
    """Observations are noise and episodes last ten steps."""

    observation_space, action_space = Box(-np.inf, np.inf, (3,)), Box(-1.0, 1.0, (2,))

    def reset(self, *, seed: int | None = None):
        self.rng, self.time = np.random.default_rng(seed), 0
        return self.rng.normal(size=3), {}

    def step(self, action):
        self.time += 1
        return self.rng.normal(size=3), float(action[0]), float(action[1] > 1.0), False, self.time >= 10, {}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    state = TrainingState.fresh(CONFIG, observation_size=3, action_size=2)
    state.versions = frozenset({"numpy==0"})
    for _ in range(2):
        state.run_epoch([Noise(), Noise()])
    state.save(tmp_path / "runs" / "checkpoint.npz")
    return tmp_path / "runs" / "checkpoint.npz"


def test_export_writes_the_truth(checkpoint: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["train", "export", str(checkpoint), "--zoo", str(tmp_path / "zoo"), "--record", str(tmp_path / "record")]
    )
    assert result.exit_code == 0, result.output
    assert "200 steps" in result.output
    state = TrainingState.load(checkpoint)
    entry = zoo.load(tmp_path / "zoo" / CONFIG.name)
    assert entry.card.steps == state.steps == 200
    assert entry.card.config["total_steps"] == 400
    assert entry.card.seed == 5
    assert entry.card.versions == ("numpy==0",)
    assert entry.card.training_reset_seeds == (EVALUATION_SEED_LIMIT, 2**32 - 1)
    assert entry.actor.digest == state.actor().digest == entry.card.digest
    resumed = TrainingState.load(tmp_path / "record" / "checkpoints" / f"{CONFIG.name}.npz")
    assert resumed.parameters.tobytes() == state.parameters.tobytes()
    assert (tmp_path / "record" / "curves" / f"{CONFIG.name}.csv").read_text().count("\n") == 3


def test_export_repeats_to_the_byte(checkpoint: Path, tmp_path: Path) -> None:
    cards = [export(checkpoint, zoo_folder=tmp_path / name, record=tmp_path / name) for name in ("a", "b")]
    assert cards[0] == cards[1]


def test_export_does_not_replace_a_controller_trained_further(checkpoint: Path, tmp_path: Path) -> None:
    folders = {"zoo_folder": tmp_path / "zoo", "record": tmp_path}
    export(checkpoint, **folders)
    young = TrainingState.fresh(CONFIG, observation_size=3, action_size=2)
    young.save(tmp_path / "young.npz")
    with pytest.raises(ValueError, match="must hold at least one epoch"):
        export(tmp_path / "young.npz", **folders)
    young.run_epoch([Noise(), Noise()])
    young.save(tmp_path / "young.npz")
    with pytest.raises(ValueError, match="a checkpoint of 100 is behind it"):
        export(tmp_path / "young.npz", **folders)
    assert zoo.load(tmp_path / "zoo" / CONFIG.name).card.steps == 200


def test_load_refuses_whatever_does_not_match_its_card(checkpoint: Path, tmp_path: Path) -> None:
    export(checkpoint, zoo_folder=tmp_path / "zoo", record=tmp_path)
    good = tmp_path / "zoo" / CONFIG.name
    card = json.loads((good / "card.json").read_text())
    written = (good / "actor.npz").read_bytes()

    def changed(actor: bytes, **fields: object) -> Path:
        folder = tmp_path / "bad"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "actor.npz").write_bytes(actor)
        (folder / "card.json").write_text(json.dumps(card | fields))
        return folder

    for place in (0, len(written) // 2, len(written) - 1):
        flipped = bytearray(written)
        flipped[place] ^= 1
        with pytest.raises(ZooError, match=r"actor\.npz has SHA-256"):
            zoo.load(changed(bytes(flipped)))
    with pytest.raises(ZooError, match="the actor's digest is"):
        zoo.load(changed(written, digest="0" * 64))
    with pytest.raises(ZooError, match="must have format"):
        zoo.load(changed(written, format="ccfs.zoo-card/2"))
    with pytest.raises(ZooError, match="must have the keys"):
        zoo.load(changed(written, accuracy=1.0))
    for field, value in (
        ("steps", "many"), ("steps", -1), ("steps", True), ("steps", 1.5), ("seed", None), ("name", 3),
        ("algorithm", None), ("environment", []), ("command", {}), ("config", []), ("curve", "flat"),
        ("versions", "numpy==0"), ("versions", [1]), ("training_reset_seeds", [1]),
        ("training_reset_seeds", [2, 1]), ("training_reset_seeds", ["1", "2"]), ("training_reset_seeds", 7),
        ("actor_sha256", 0), ("digest", "0" * 63), ("digest", "G" * 64),
    ):  # fmt: skip
        with pytest.raises(ZooError, match=f"`{field}` of a card must be"):
            zoo.load(changed(written, **{field: value}))
    (changed(written) / "card.json").write_text("{")
    with pytest.raises(ZooError, match="A card must be JSON"):
        zoo.load(tmp_path / "bad")
    with pytest.raises(ZooError, match="No controller"):
        zoo.load(tmp_path / "nowhere")
    assert zoo.load(changed(written)).card.steps == 200


def test_shipped_controllers_are_the_papers_and_match_their_cards() -> None:
    entries = {name: zoo.load(name) for name in zoo.names()}
    seeds = {entry.card.seed for entry in entries.values() if entry.card.environment == "SafetyPointGoal2-v0"}
    assert {1120275774, 1346831933, 658990255} <= seeds
    for name, entry in entries.items():
        assert entry.card.name == name
        assert entry.actor.center(np.zeros(entry.actor.observation_size)).shape == (entry.actor.action_size,)


def test_shipped_controllers_are_not_ahead_of_the_committed_checkpoints() -> None:
    """Training may have gone on since an agent was certified; a checkpoint never lags behind its card."""
    record = Path(__file__).parents[2] / "experiments" / "training"
    found = {path.stem: TrainingState.load(path) for path in (record / "checkpoints").glob("*.npz")}
    assert found.keys() == {name for name in zoo.names() if name.startswith("ppolag-")}
    for name, state in found.items():
        card = zoo.load(name).card
        rows = (record / "curves" / f"{name}.csv").read_text().splitlines()
        assert card.steps <= state.steps == 20_000 * (len(rows) - 1)
        assert card.curve["last"]["steps"] == card.steps
        at_export = dict(zip(CURVE, state.curve[card.steps // 20_000 - 1], strict=True))
        assert card.curve["last"]["return"] == pytest.approx(at_export["return"], abs=1e-4)
        assert card.curve["last"]["multiplier"] == pytest.approx(at_export["multiplier"], abs=1e-4)
        if card.steps == state.steps:
            assert card.digest == state.actor().digest
        assert card.training_reset_seeds[0] >= EVALUATION_SEED_LIMIT


@pytest.mark.parametrize("million", [1, 2, 3, 5])
def test_stored_milestones_have_the_step_counts_of_their_folders(million: int) -> None:
    folder = Path(__file__).parents[2] / "experiments" / "training" / "milestones" / f"{million}m"
    entries = [zoo.load(path) for path in sorted(folder.iterdir())]
    assert [entry.card.name for entry in entries] == [name for name in zoo.names() if name.startswith("ppolag-")]
    assert {entry.card.steps for entry in entries} == {million * 1_000_000}


def test_status_shows_how_far_runs_are(checkpoint: Path) -> None:
    result = CliRunner().invoke(app, ["train", "status", str(checkpoint.parents[1])])
    assert result.exit_code == 0, result.output
    assert "200" in result.output


def test_train_refuses_bad_input(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("seeds = [1]")
    plan = str(tmp_path / "plan.toml")
    for arguments, message in (
        (["--algo", "dqn"], "must be ppo-lag or sb3-ppo"),
        (["--steps", "30000"], "`--steps` must be a multiple of 20000"),
        (["--steps", "0"], "`--steps` must be a multiple of 20000"),
        (["--plan", str(tmp_path / "none.toml")], "No such file"),
        (["--plan", plan, "--seed", "0"], "`--seed` must not be given here: the plan says it"),
        (["--plan", plan, "-o", "elsewhere"], "`--output` must not be given here: the plan says it"),
        (["--penalty", "0.1"], "`--penalty` must not be given here: it belongs to sb3-ppo"),
        (["--algo", "sb3-ppo", "--plan", plan], "`--plan` must not be given here"),
    ):
        result = CliRunner().invoke(app, ["train", *arguments])
        assert result.exit_code == 2
        assert message in result.output


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"garbage"])
def test_a_broken_checkpoint_is_named_by_every_command(checkpoint: Path, tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "runs" / checkpoint.parent.name
    folder.mkdir(parents=True)
    (folder / "checkpoint.npz").write_bytes(content)
    with pytest.raises(ValueError, match="must be a whole checkpoint"):
        TrainingState.load(folder / "checkpoint.npz")
    shown = CliRunner().invoke(app, ["train", "status", str(tmp_path / "runs")])
    assert shown.exit_code == 0
    assert "must be a whole checkpoint" in shown.output
    exported = CliRunner().invoke(app, ["train", "export", str(folder / "checkpoint.npz"), "--zoo", str(tmp_path)])
    assert exported.exit_code == 2
    assert "must be a whole checkpoint" in exported.output


def test_divergence_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(plan: object, console: object) -> None:
        raise TrainingDivergedError("Epoch 3 left a weight that is not finite.")

    monkeypatch.setattr(runner, "run_plan", diverge)
    result = CliRunner().invoke(app, ["train", "-o", str(tmp_path)])
    assert result.exit_code == 2
    assert "ccfs train: Epoch 3 left a weight" in result.output


def test_train_stopped_by_a_signal_says_how_to_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(runner, "run_plan", lambda plan, console: signal.raise_signal(signal.SIGTERM))
    result = CliRunner().invoke(app, ["train", "-o", str(tmp_path)])
    assert result.exit_code == 130
    assert "the same command continues" in result.output
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.usefixtures("_omnisafe")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_train_with_sb3_ends_in_a_controller(tmp_path: Path) -> None:
    from ccfs.controllers.training.sb3 import train_sb3

    card = train_sb3("SafetyPointGoal1-v0", seed=4, steps=64, penalty=0.5, folder=tmp_path, console=Console(quiet=True))
    entry = zoo.load(tmp_path / card.name)
    assert entry.card.steps == 64
    assert any(version.startswith("stable-baselines3==") for version in entry.card.versions)
    assert entry.actor.digest == from_sb3(tmp_path / card.name / "model.zip").digest
    assert entry.actor.center(np.zeros(60)).shape == (2,)
    with pytest.raises(FileExistsError, match="holds a model already"):
        train_sb3("SafetyPointGoal1-v0", seed=4, steps=2, penalty=0.5, folder=tmp_path, console=Console(quiet=True))


@pytest.mark.usefixtures("_omnisafe")
def test_stopped_sb3_says_that_nothing_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ccfs.controllers.training import sb3

    monkeypatch.setattr(sb3, "train_sb3", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    result = CliRunner().invoke(app, ["train", "--algo", "sb3-ppo", "-o", str(tmp_path)])
    assert result.exit_code == 130
    assert "Nothing was saved" in result.output


def test_priced_cost_takes_another_seed_when_a_world_starts_with_cost() -> None:
    from ccfs.controllers.training.sb3 import PricedCost

    class Refusing(gymnasium.Env):
        observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

        def __init__(self) -> None:
            self.seeds: list[int] = []

        def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict[str, object]]:
            self.seeds.append(seed)
            assert len(self.seeds) > 2, "World has starting cost!"
            return np.zeros(1), {}

    env = Refusing()
    PricedCost(env, penalty=0.1, seed=5).reset()
    assert len(set(env.seeds)) == 3
