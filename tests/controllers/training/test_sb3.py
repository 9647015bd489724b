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
