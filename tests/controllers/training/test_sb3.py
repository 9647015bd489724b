"""Training with Stable-Baselines3: it ends in a zoo entry, on seeds that are kept for training."""

from __future__ import annotations

from pathlib import Path

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
    assert card.config == {"penalty": 0.0, "n_steps": 64, "batch_size": 64, "n_epochs": 2}
    assert zoo.load(tmp_path / card.name).actor.center(np.zeros(4)).shape == (2,)
    # CartPole reports no cost, so a price of it would mean nothing.
    with pytest.raises(KeyError, match="cost"):
        train_sb3("CartPole-v1", penalty=0.5, **(common | {"folder": tmp_path / "other"}))


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
