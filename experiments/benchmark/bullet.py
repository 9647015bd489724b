"""Tasks of Bullet-Safety-Gym whose episodes follow from the reset seed alone.

The library draws from numpy's global generator and ignores the seed of a reset, and its simulator remembers earlier
episodes. So each reset makes the task anew, with a state of the global generator of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

__all__ = ["Repeatable", "make"]


def make(env_id: str) -> Repeatable:
    """Make a task by its id, such as "SafetyBallRun-v0"."""
    return Repeatable(env_id)


class Repeatable(gymnasium.Env[Any, Any]):
    """A task that repeats. Its cost is `info["cost"]`."""

    def __init__(self, env_id: str) -> None:
        import bullet_safety_gym  # noqa: F401 registers its tasks

        self._id, self._state = env_id, np.random.RandomState(0).get_state()
        self._inner = self._made()
        self.observation_space, self.action_space = self._inner.observation_space, self._inner.action_space
        self.spec = self._inner.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. Without a seed it follows from where the last one ended."""
        self._inner.close()
        if seed is not None:
            self._state = np.random.RandomState(seed).get_state()
        self._inner = self._made()
        with self._own_generator():
            return self._inner.reset()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        with self._own_generator():
            observation, reward, terminated, truncated, info = self._inner.step(action)
        return observation, float(reward), bool(terminated), bool(truncated), info

    def close(self) -> None:
        """Close the simulator."""
        self._inner.close()

    def _made(self) -> gymnasium.Env[Any, Any]:
        with self._own_generator():
            return gymnasium.make(self._id)

    @contextlib.contextmanager
    def _own_generator(self) -> Iterator[None]:
        # Everybody else finds numpy's global generator as it was.
        others = np.random.get_state()  # noqa: NPY002
        np.random.set_state(self._state)  # noqa: NPY002
        try:
            yield
        finally:
            self._state = np.random.get_state()  # noqa: NPY002
            np.random.set_state(others)  # noqa: NPY002
