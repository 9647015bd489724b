"""A verifier without memory for Point tasks. It computes a box of accepted actions from one observation's lidars."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["LidarBox"]

_RANGE: Final = 3.0
# Sixteen bins of 22.5 degrees, counted to the left from straight ahead.
_AHEAD, _BEHIND = [14, 15, 0, 1], [6, 7, 8, 9]
_LEFT, _RIGHT = [0, 1, 2, 3], [12, 13, 14, 15]
# Places in an observation of 60 numbers.
_FORWARD_SPEED: Final = 3
_HAZARDS, _VASES = slice(28, 44), slice(44, 60)
_NUMBERS: Final = 60
# The Point robot as measured: seconds per step, share of its speed kept per step, speed that full thrust adds per step.
_STEP, _DECAY, _THRUST = 0.02, 0.9623, 0.0566
_DECELERATION: Final = _THRUST / _STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class LidarBox:
    """A `Verifier` that bounds thrust and turn by what the 16 hazard and 16 vase bins of `SafetyPointGoal2-v0` show.

    Forward thrust (a0 > 0) is allowed only if the robot could still stop after one more step of it, before it comes
    within `keep_away` of the nearest object in the four bins ahead (+-45 degrees). The same holds for backward thrust
    and the four bins behind. A turn towards the side (front quarter) with the nearer object is allowed only if that
    object is farther away than `reach`. This is a fixed heuristic, not a proof of safety, because it sees bins and not
    shapes.

    Args:
        keep_away: metres to an object's middle. Contact is at 0.20 (hazard) to 0.25 (vase).
        reach: metres below which the robot may not turn towards the nearer side.
    """

    keep_away: float = 0.3
    reach: float = 0.6

    def __post_init__(self) -> None:
        for name in ("keep_away", "reach"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0.0):
                raise ValueError(f"`{name}` must be finite and greater than 0, got {getattr(self, name)}.")

    def box(self, observation: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the least and the greatest accepted action for an observation."""
        if observation.shape != (_NUMBERS,) or not np.isfinite(observation).all():
            raise ValueError(f"`observation` must be {_NUMBERS} finite numbers, got shape {observation.shape}.")
        distance = _RANGE * (1.0 - np.maximum(observation[_HAZARDS], observation[_VASES]))
        speed = _DECAY * float(observation[_FORWARD_SPEED])
        low, high = np.full(2, -1.0), np.full(2, 1.0)
        if not self._may_push(speed, distance[_AHEAD].min()):
            high[0] = 0.0
        if not self._may_push(-speed, distance[_BEHIND].min()):
            low[0] = 0.0
        left, right = distance[_LEFT].min(), distance[_RIGHT].min()
        if left <= self.reach and left <= right:
            high[1] = 0.0
        if right <= self.reach and right <= left:
            low[1] = 0.0
        return low, high

    def accepts(self, observation: NDArray[np.float64], actions: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which actions are in the observation's box."""
        low, high = self.box(observation)
        return np.asarray(((actions >= low) & (actions <= high)).all(axis=1))

    def _may_push(self, speed: float, distance: float) -> bool:
        """Say whether one more step of thrust still leaves room to stop."""
        faster = max(speed + _THRUST, 0.0)
        return distance - self.keep_away > _STEP * faster + faster * faster / (2.0 * _DECELERATION)
