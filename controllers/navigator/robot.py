"""The Point robot as measured: how it moves, exactly and on average under noise, and where it is by its sensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ARROW_AHEAD",
    "BRAKE_LIMIT",
    "DECAY",
    "MASS_AHEAD",
    "STEP",
    "THRUST",
    "DeadReckoner",
    "NoisyRobot",
    "thrust_gain",
    "turn_of",
]

STEP: Final = 0.02
"""Seconds per step."""
DECAY: Final = 0.9623
"""Share of its velocity that the robot keeps over one step."""
THRUST: Final = 0.0566
"""Speed (m/s) that saturated thrust adds in one step, along the heading."""
MASS_AHEAD: Final = 0.0193
"""Metres from the robot's origin to its centre of mass, along the heading. A turn moves the origin around it."""
ARROW_AHEAD: Final = 0.1
"""Metres from the robot's origin to the middle of its arrow, which touches vases before the body does."""
BRAKE_LIMIT: Final = THRUST / (1.0 - DECAY)
"""Terminal speed (m/s)."""
_FORCE_RANGE: Final = 0.05
_TURN_INPUTS: Final = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])
_TURN_RATES: Final = np.array([0.0, 0.0006, 0.0087, 0.0158, 0.0203, 0.0263, 0.033, 0.041, 0.0488, 0.0562, 0.06, 0.06])
# The simulator moves with the velocity at the end of each of ten sub-steps. So a velocity that ramps from one
# observation to the next covers the mean of its sub-step ends, not the trapezoid.
_LAST, _NEXT = 0.45 * STEP, 0.55 * STEP


def thrust_gain(inputs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of full thrust, in [-1, 1], that the first action coordinate gives. It saturates at 0.05."""
    return np.asarray(np.clip(inputs / _FORCE_RANGE, -1.0, 1.0))


def turn_of(inputs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the steady turn (radians per step) of the second action coordinate, from the measured table."""
    return np.asarray(np.sign(inputs) * np.interp(np.abs(inputs), _TURN_INPUTS, _TURN_RATES))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyRobot:
    """What an action center does on average when Gaussian noise of scale `sigma` is added and clipped to the box.

    At a center of +-1, noise flips the sign of the thrust with probability Phi(-1/sigma), so most of the thrust is kept
    even under large noise.
    """

    sigma: float
    _noise: NDArray[np.float64] = field(init=False, repr=False, compare=False)
    _weight: NDArray[np.float64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma >= 0.0):
            raise ValueError(f"`sigma` must be finite and at least 0, got {self.sigma}.")
        # A plain sum: the clipped response has kinks, where finer rules gain nothing.
        nodes = np.linspace(-6.0, 6.0, 2401)
        weight = np.exp(-0.5 * nodes * nodes)
        object.__setattr__(self, "_noise", self.sigma * nodes)
        object.__setattr__(self, "_weight", weight / weight.sum())

    def _noisy(self, center: float) -> NDArray[np.float64]:
        return np.clip(center + self._noise, -1.0, 1.0)

    def mean_thrust(self, center: float) -> float:
        """Return the mean speed (m/s) that a step adds along the heading."""
        return THRUST * float((thrust_gain(self._noisy(center)) * self._weight).sum())

    @property
    def terminal_speed(self) -> float:
        """Return the mean speed (m/s) that full thrust ends in."""
        return self.mean_thrust(1.0) / (1.0 - DECAY)

    def mean_turn(self, center: float) -> float:
        """Return the mean turn (radians per step)."""
        return float((turn_of(self._noisy(center)) * self._weight).sum())


class DeadReckoner:
    """The pose since `reset`, by dead reckoning. The origin is the start, and the axes are those of the compass.

    It integrates the velocity of the centre of mass, which thrust changes smoothly. The velocity of the origin jumps
    with every turn. Measured against the simulator, the pose drifts by less than half a millimetre in 500 steps.
    """

    __slots__ = ("heading", "mass_velocity", "mass_x", "mass_y", "spin", "started", "x", "y")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the path. The next observation is at the origin."""
        self.x = self.y = self.heading = self.spin = 0.0
        self.mass_x = self.mass_y = 0.0
        self.mass_velocity = (0.0, 0.0)
        self.started = False

    def observe(self, observation: NDArray[np.float64]) -> None:
        """Advance by one step. Reads the velocimeter, the gyro and the magnetometer."""
        _, _, _, ahead, left, _, _, _, spin, north, east, _ = observation[:12].tolist()
        heading = math.atan2(-north, -east)
        cos, sin = math.cos(heading), math.sin(heading)
        # The velocimeter sits at the origin. The mass centre ahead of it swings with the turn.
        left += spin * MASS_AHEAD
        velocity = (cos * ahead - sin * left, sin * ahead + cos * left)
        if self.started:
            self.mass_x += _LAST * self.mass_velocity[0] + _NEXT * velocity[0]
            self.mass_y += _LAST * self.mass_velocity[1] + _NEXT * velocity[1]
        else:
            self.mass_x, self.mass_y = MASS_AHEAD * cos, MASS_AHEAD * sin
            self.started = True
        self.x, self.y = self.mass_x - MASS_AHEAD * cos, self.mass_y - MASS_AHEAD * sin
        self.heading, self.spin, self.mass_velocity = heading, spin, velocity
