"""Training with Stable-Baselines3: it ends in a zoo entry, on seeds that are kept for training."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
from rich.console import Console

from ccfs.controllers import from_sb3, zoo


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_train_with_sb3_takes_any_task_of_gymnasium_without_a_price(tmp_path: Path) -> None:
    from ccfs.controllers.training.sb3 import train_sb3

    common = {"seed": 4, "steps": 64, "folder": tmp_path, "console": Console(quiet=True), "settings": {"n_epochs": 2}}
    card = train_sb3("CartPole-v1", penalty=0.0, **common)
    assert card.config == {"penalty": 0.0, "environments": 1, "n_steps": 64, "batch_size": 64, "n_epochs": 2}
    assert zoo.load(tmp_path / card.name).actor.center(np.zeros(4)).shape == (2,)
    # CartPole reports no cost, so a price of it would mean nothing.
    with pytest.raises(KeyError, match="cost"):
        train_sb3("CartPole-v1", penalty=0.5, **(common | {"folder": tmp_path / "other"}))


_SMALL = {"seed": 4, "steps": 384, "penalty": 0.0, "environments": 2, "settings": {"n_steps": 32, "n_epochs": 2}}
_KILLED = """
import os, signal
from pathlib import Path
from unittest.mock import Mock
from rich.console import Console
from ccfs.controllers.training import sb3

def write(path, content, *, then=sb3.write_atomically):
    then(path, content)
    if path.name == "checkpoint.zip":
        os.kill(os.getpid(), signal.SIGKILL)

sb3.STRETCH, sb3.write_atomically = 128, write
sb3.train_sb3("CartPole-v1", folder=Path({folder!r}), console=Console(quiet=True), **{settings!r})
"""


@pytest.mark.slow
@pytest.mark.slow
def test_train_with_sb3_goes_on_after_a_kill_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ccfs.controllers.training import sb3

    def train(folder: Path) -> zoo.ZooEntry:
        card = sb3.train_sb3("CartPole-v1", folder=folder, console=Console(quiet=True), **_SMALL)
        return zoo.load(folder / card.name)

    monkeypatch.setattr(sb3, "STRETCH", 128)
    cut = tmp_path / "cut"
    code = _KILLED.format(folder=str(cut), settings=_SMALL)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    with monkeypatch.context() as patched:  # again after the last save, when only the entry is left to write
        patched.setattr(zoo, "write", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(cut)
    assert (cut / "sb3ppo-cartpole-v1-4" / "checkpoint.zip").exists()
    one, other = train(cut), train(tmp_path / "whole")
    assert (one.actor.digest, one.card.curve, one.card.steps) == (other.actor.digest, other.card.curve, 384)
    assert not list(tmp_path.rglob("checkpoint.zip"))


def test_train_with_sb3_does_not_go_on_with_other_settings(tmp_path: Path) -> None:
    from ccfs.controllers.training.sb3 import train_sb3

    settings = tmp_path / "sb3ppo-cartpole-v1-4" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"penalty": 0.25}')
    settings.with_name("checkpoint.zip").write_bytes(b"")
    with pytest.raises(ValueError, match="a training with the same settings"):
        train_sb3("CartPole-v1", seed=4, steps=64, penalty=0.0, folder=tmp_path, console=Console(quiet=True))


@pytest.mark.slow
def test_train_with_sb3_goes_on_after_a_wrong_setting_was_mended(tmp_path: Path) -> None:
    from ccfs.controllers.training.sb3 import train_sb3

    def train(**settings: int) -> zoo.Card:
        common = {"seed": 4, "steps": 64, "penalty": 0.0, "folder": tmp_path, "console": Console(quiet=True)}
        return train_sb3("CartPole-v1", **common, settings=settings)

    with pytest.raises(TypeError, match="n_epoch"):
        train(n_epoch=1)
    assert train(n_epochs=1).steps == 64


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
