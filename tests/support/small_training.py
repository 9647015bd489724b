"""Two small tasks for training tests: one of pure noise, with its checkpoint, and one that can be learnt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gymnasium.spaces import Box

from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.state import TrainingState

NOISE_CONFIG = TrainingConfig(
    environment="SafetyNoise0-v0", seed=5, total_steps=400, steps_per_epoch=100, environments=2, update_iterations=1,
    hidden_sizes=(4,),
)  # fmt: skip
SMALL = {
    "environments": 4, "steps_per_epoch": 200, "total_steps": 2_000, "update_iterations": 3, "hidden_sizes": (8,),
    "batch_size": 32, "episode_window": 10,
}  # fmt: skip


class Noise:
    """Observations are noise and episodes last ten steps."""

    observation_space, action_space = Box(-np.inf, np.inf, (3,)), Box(-1.0, 1.0, (2,))

    def reset(self, *, seed: int | None = None):
        self.rng, self.time = np.random.default_rng(seed), 0
        return self.rng.normal(size=3), {}

    def step(self, action):
        self.time += 1
        return self.rng.normal(size=3), float(action[0]), float(action[1] > 1.0), False, self.time >= 10, {}


def noise_checkpoint(folder: Path) -> Path:
    """Train two of the four epochs of `NOISE_CONFIG` and return the checkpoint."""
    state = TrainingState.fresh(NOISE_CONFIG, observation_size=3, action_size=2)
    state.versions = frozenset({"numpy==0"})
    for _ in range(2):
        state.run_epoch([Noise(), Noise()])
    state.save(folder / "runs" / "checkpoint.npz")
    return folder / "runs" / "checkpoint.npz"


class Target:
    """The action is paid for being near the observed target; leaving the box costs 1. Episodes last 20 steps."""

    observation_space, action_space = Box(-np.inf, np.inf, (3,)), Box(-1.0, 1.0, (2,))

    def __init__(self, refused_resets: int = 0) -> None:
        self.seeds: list[int] = []
        self.refused_resets = refused_resets

    def reset(self, *, seed: int | None = None):
        self.seeds.append(seed)
        if self.refused_resets:
            self.refused_resets -= 1
            raise AssertionError("World has starting cost! {}")
        self.rng, self.time = np.random.default_rng(seed), 0
        return self._observe(), {}

    def step(self, action):
        reward = -float(np.abs(action - self.target).sum())
        cost = float(np.abs(action).max() > 1.0)
        self.time += 1
        return self._observe(), reward, cost, False, self.time >= 20, {}

    def _observe(self):
        self.target = self.rng.uniform(-0.5, 0.5, 2)
        return np.append(self.target, float(self.time))


def config_with(**changes) -> TrainingConfig:
    """Return the settings of a short run on `Target`, with changes."""
    return TrainingConfig(environment="SafetyTarget0-v0", **({"seed": 11} | SMALL | changes))


def make(config: TrainingConfig) -> list[Target]:
    """Return the environments of a run."""
    return [Target() for _ in range(config.environments)]


def fresh(config: TrainingConfig) -> TrainingState:
    """Return the state before the first epoch on `Target`."""
    return TrainingState.fresh(config, observation_size=3, action_size=2)
