"""A verifier that accepts an action only if the robot can still stop after it, and fallbacks on the same map."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.navigator.clearance import Surroundings
from ccfs.controllers.navigator.controller import VERSION, Navigator
from ccfs.controllers.navigator.lidar_map import CELL, LidarMap
from ccfs.controllers.navigator.robot import DECAY, MASS_AHEAD, STEP, THRUST, thrust_gain, turn_of

__all__ = ["BrakeFallback", "MapGuard", "NavigatorFallback", "StopFallback", "brake_action", "would_be_safe"]

_TIMES: Final = np.array([0.0, 2.0, 4.0, 7.0, 11.0, 16.0, 24.0, 40.0])[:, None]
_LIMIT: Final = THRUST / (1.0 - DECAY)
_PAD: Final = CELL * math.sqrt(2.0)
"""A possible obstacle lies anywhere in its cell and the field is read at a cell's middle: half a diagonal each."""


def would_be_safe(
    drawn: LidarMap, surroundings: Surroundings, actions: NDArray[np.float64], margin: float
) -> NDArray[np.bool_]:
    """Say for each action whether, one step later, full brake on that heading still keeps clear of everything possible.

    Assumes: `surroundings` was refreshed from `drawn`, and the braking itself is carried out without noise. It is a
    prediction from a fitted model of the robot, not a proof: `margin` stands for the model's error.

    Args:
        drawn: the map after the present observation.
        surroundings: its distance fields.
        actions: shape (n, 2), inside the action box.
        margin: least clearance (metres) at every sample of the stopping path.
    """
    pose = drawn.pose
    turn = turn_of(actions[:, 1])
    heading = pose.heading + turn
    during = pose.heading + 0.5 * turn
    thrust = THRUST * thrust_gain(actions[:, 0])
    vx, vy = pose.mass_velocity
    next_vx, next_vy = DECAY * vx + thrust * np.cos(during), DECAY * vy + thrust * np.sin(during)
    cos, sin = np.cos(heading), np.sin(heading)
    x = pose.mass_x + STEP * (0.45 * vx + 0.55 * next_vx) - MASS_AHEAD * cos
    y = pose.mass_y + STEP * (0.45 * vy + 0.55 * next_vy) - MASS_AHEAD * sin
    along, across = cos * next_vx + sin * next_vy, cos * next_vy - sin * next_vx
    slide = _stopping(along)
    drift = STEP * DECAY * (1.0 - DECAY**_TIMES) / (1.0 - DECAY) * across
    path_x, path_y = x + cos * slide - sin * drift, y + sin * slide + cos * drift
    facing = np.broadcast_to(cos, path_x.shape), np.broadcast_to(sin, path_x.shape)
    clearance = surroundings.clearance(drawn, path_x, path_y, *facing, _PAD)
    return np.asarray((clearance > margin).all(axis=0))


def _stopping(along: NDArray[np.float64]) -> NDArray[np.float64]:
    speed = np.abs(along)
    time = np.minimum(_TIMES, np.log1p(speed / _LIMIT) / -math.log(DECAY))
    covered = (speed + _LIMIT) * DECAY * (1.0 - DECAY**time) / (1.0 - DECAY) - _LIMIT * time
    return np.asarray(np.sign(along) * STEP * np.maximum(covered, 0.0))


def brake_action(drawn: LidarMap) -> NDArray[np.float64]:
    """Return the action that takes away the speed along the heading as fast as the robot can, without turning."""
    vx, vy = drawn.pose.mass_velocity
    along = DECAY * (math.cos(drawn.pose.heading) * vx + math.sin(drawn.pose.heading) * vy)
    # Thrust is linear below 0.05, so the last bit of speed is met exactly instead of being overshot.
    if abs(along) < THRUST:
        return np.array([-0.05 * along / THRUST, 0.0])
    return np.array([-math.copysign(1.0, along), 0.0])


class MapGuard:
    """A `Verifier` with memory: keeps a map, told once a step, and accepts the actions that `would_be_safe`."""

    def __init__(self, margin: float = 0.01) -> None:
        if not (math.isfinite(margin) and margin >= 0.0):
            raise ValueError(f"`margin` must be finite and at least 0, got {margin}.")
        self.margin = margin
        self.map = LidarMap()
        self.surroundings = Surroundings()
        self._last: NDArray[np.float64] | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of the code version and the margin."""
        return hashlib.sha256(repr((VERSION, "guard", self.margin)).encode()).hexdigest()

    def reset(self) -> None:
        """Forget the map: a new episode begins."""
        self.map.reset()
        self._last = None

    def observe(self, observation: NDArray[np.float64]) -> None:
        """Add a new step's observation to the map."""
        self.map.observe(observation)
        self.surroundings.refresh(self.map)
        self._last = np.array(observation, dtype=np.float64)

    def accepts(self, observation: NDArray[np.float64], actions: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which actions leave a safe stop; refuse to answer for an observation that it was not told."""
        self.require(observation)
        return would_be_safe(self.map, self.surroundings, actions, self.margin)

    def require(self, observation: NDArray[np.float64]) -> None:
        """Raise unless `observation` is the one last told: a stale map must not vouch for anything."""
        if self._last is None or not np.array_equal(self._last, observation):
            raise RuntimeError("`observation` is not the last one observed. Tell the guard each step with `observe`.")


@dataclass(frozen=True, slots=True, eq=False)
class BrakeFallback:
    """Brake along the heading. The guard must be part of the same program, so that it is told each step."""

    guard: MapGuard

    def action(self, observation: NDArray[np.float64], center: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the braking action."""
        self.guard.require(observation)
        return brake_action(self.guard.map)


class NavigatorFallback:
    """The navigator's own action, without noise, on the guard's map: the fallback that makes progress."""

    def __init__(self, guard: MapGuard) -> None:
        self.guard = guard
        self._navigator = Navigator(0.0, drawn=guard.map)

    def action(self, observation: NDArray[np.float64], center: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the navigator's center for the guard's map."""
        self.guard.require(observation)
        return self._navigator.decide()

    def reset(self) -> None:
        """Forget the route: a new episode begins."""
        self._navigator.reset()

    def observe(self, observation: NDArray[np.float64]) -> None:
        """Do nothing: the guard keeps the map."""


@dataclass(frozen=True, slots=True)
class StopFallback:
    """No thrust and no turn, whatever is observed."""

    def action(self, observation: NDArray[np.float64], center: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return zeros."""
        return np.zeros(2)
