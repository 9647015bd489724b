"""Mean paths of every pair of held actions, each with a brake at its end, prepared once in the robot's frame."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.navigator.robot import DECAY, MASS_AHEAD, STEP, NoisyRobot

__all__ = ["Bundle", "Rollouts"]

_BRAKE_TIMES: Final = np.array([3.0, 6.0, 10.0, 15.0, 22.0])
_FIRST_THRUST: Final = (1.0, -1.0)
_SECOND_THRUST: Final = (1.0, 0.0, -1.0)
_TURNS: Final = (-1.0, -0.5, 0.0, 0.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Paths in the robot's present frame, with x along its heading. Arrays are (samples, candidates)."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    cos: NDArray[np.float64]
    sin: NDArray[np.float64]
    """Direction of the heading, relative to the present one."""
    end_vx: NDArray[np.float64]
    end_vy: NDArray[np.float64]
    """Velocity after the held actions, before the brake."""


class Rollouts:
    """All candidates: a first action for a few steps, a second one for more steps, then full brake on a fixed heading.

    The robot's motion is linear in its velocity and in the thrust along the heading, and only the turns decide the
    heading. So everything but the velocity term is a constant of the candidate.
    """

    def __init__(self, robot: NoisyRobot, first_steps: int, second_steps: int) -> None:
        pairs = [
            (first, turn, second, later)
            for first in _FIRST_THRUST
            for turn in _TURNS
            for second in _SECOND_THRUST
            for later in _TURNS
        ]
        self.actions = np.array([(first, turn) for first, turn, _, _ in pairs])
        self.steps = first_steps + second_steps
        mean_thrust = {value: robot.mean_thrust(value) for value in _SECOND_THRUST}
        mean_turn = {value: robot.mean_turn(value) for value in _TURNS}
        lengths = (first_steps, second_steps)
        thrust = _held([[mean_thrust[p[0]], mean_thrust[p[2]]] for p in pairs], lengths)
        turn = _held([[mean_turn[p[1]], mean_turn[p[3]]] for p in pairs], lengths)
        # Positive, because it divides below. Without any thrust left under noise, a brake never ends.
        self.decelerate = max(mean_thrust[1.0], 1e-4) / (1.0 - DECAY)
        heading = np.cumsum(turn, axis=0)
        during = heading - 0.5 * turn
        # v[t] = DECAY v[t-1] + thrust, solved by a sum: what was added at a step has decayed since.
        keep = DECAY ** np.arange(1, self.steps + 1)[:, None]
        vx = keep * np.cumsum(thrust * np.cos(during) / keep, axis=0)
        vy = keep * np.cumsum(thrust * np.sin(during) / keep, axis=0)
        moved_x, moved_y = _moved(vx, np.zeros_like(vx[:1])), _moved(vy, np.zeros_like(vy[:1]))
        carried = _moved(keep, np.ones_like(keep[:1]))
        # Every second step is a sample, and the last held step always is one.
        rows = np.arange(1, self.steps, 2) if self.steps % 2 == 0 else np.arange(0, self.steps, 2)
        self.times = rows + 1.0
        self._carried = carried[rows]
        self._cos, self._sin = np.cos(heading[rows]), np.sin(heading[rows])
        # The model moves the mass centre, and the origin is behind it along the heading.
        self._x = moved_x[rows] + MASS_AHEAD * (1.0 - self._cos)
        self._y = moved_y[rows] - MASS_AHEAD * self._sin
        self._end_vx, self._end_vy, self._end_keep = vx[-1], vy[-1], float(keep[-1, 0])
        times = _BRAKE_TIMES[:, None]
        self._brake_times = times
        self._coast = STEP * DECAY * (1.0 - DECAY**times) / (1.0 - DECAY)
        end_cos, end_sin = self._cos[-1], self._sin[-1]
        count = (len(_BRAKE_TIMES), 1)
        self._all_cos = np.concatenate((self._cos, np.tile(end_cos, count)))
        self._all_sin = np.concatenate((self._sin, np.tile(end_sin, count)))
        self.held_samples = len(rows)

    def bundle(self, ahead: float, left: float) -> Bundle:
        """Return the paths from a velocity of the mass centre, given in the robot's frame."""
        x, y = self._x + self._carried * ahead, self._y + self._carried * left
        end_vx, end_vy = self._end_vx + self._end_keep * ahead, self._end_vy + self._end_keep * left
        cos, sin = self._cos[-1], self._sin[-1]
        along, across = cos * end_vx + sin * end_vy, cos * end_vy - sin * end_vx
        slide, drift = self._stopping(along), self._coast * across
        return Bundle(
            x=np.concatenate((x, x[-1] + cos * slide - sin * drift)),
            y=np.concatenate((y, y[-1] + sin * slide + cos * drift)),
            cos=self._all_cos,
            sin=self._all_sin,
            end_vx=end_vx,
            end_vy=end_vy,
        )

    def _stopping(self, along: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the distance along the heading at the brake samples, with full brake until the robot stands."""
        speed, limit = np.abs(along), self.decelerate
        stop = np.log1p(speed / limit) / -math.log(DECAY)
        time = np.minimum(self._brake_times, stop)
        covered = (speed + limit) * DECAY * (1.0 - DECAY**time) / (1.0 - DECAY) - limit * time
        return np.asarray(np.sign(along) * STEP * np.maximum(covered, 0.0))


def _held(values: list[list[float]], lengths: tuple[int, int]) -> NDArray[np.float64]:
    return np.repeat(np.array(values).T, lengths, axis=0)


def _moved(velocity: NDArray[np.float64], initial: NDArray[np.float64]) -> NDArray[np.float64]:
    before = np.concatenate((initial, velocity[:-1]))
    return np.asarray(STEP * np.cumsum(0.45 * before + 0.55 * velocity, axis=0))
