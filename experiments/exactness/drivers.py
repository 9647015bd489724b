"""Drivers that make an episode eventful: they seek goals, press buttons, push boxes and run into things on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Driver"]


class Driver:
    """A noisy pilot that reads the true state of the reference environment.

    Half of the episodes head for the goal; in the others the pilot wanders. Some actions leave the action box and one
    in three is float32, so that clipping and casting are compared too.
    """

    def __init__(self, env: Any, seed: int) -> None:
        self._task = env.unwrapped.task
        self._rng = np.random.default_rng(seed)
        self._seeks = seed % 2 == 0
        self._drift = self._rng.uniform(-1.0, 1.0, 2)
        self._steps = 0

    def action(self) -> NDArray[np.floating[Any]]:
        """Return the next action."""
        self._steps += 1
        if self._steps % 50 == 0:
            self._drift = self._rng.uniform(-1.0, 1.0, 2)
        forward, turn = self._towards(self._target()) if self._seeks else self._drift
        action = np.array([forward, turn]) + self._rng.normal(0.0, 0.3, 2)
        if type(self._task.agent).__name__ == "Car":
            action = np.array([action[0] + action[1], action[0] - action[1]])
        return action.astype(np.float32) if self._steps % 3 == 0 else action

    def _target(self) -> NDArray[np.float64]:
        goal = self._task.goal.pos[:2]
        if not hasattr(self._task, "push_box"):
            return np.asarray(goal)
        box, agent = self._task.push_box.pos[:2], self._task.agent.pos[:2]
        away = (box - goal) / (np.linalg.norm(box - goal) + 1e-9)
        behind = box + 0.45 * away
        lined_up = float((agent - box) @ away) > 0.85 * float(np.linalg.norm(agent - box))
        return np.asarray(goal if lined_up else behind)

    def _towards(self, target: NDArray[np.float64]) -> tuple[float, float]:
        x, y = self._task._ego_xy(np.asarray(target))
        if type(self._task.agent).__name__ == "Car":
            x, y = -y, x  # the car's nose points along its negative y axis
        angle = float(np.arctan2(y, x))
        return 1.3 * max(0.0, float(np.cos(angle))), float(np.clip(2.0 * angle, -1.3, 1.3))
