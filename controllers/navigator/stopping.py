"""Whether the robot can still stop in time after one more action, and the action that brakes."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.navigator.clearance import Surroundings
from ccfs.controllers.navigator.lidar_map import CELL
from ccfs.controllers.navigator.noisy_map import AnyMap
from ccfs.controllers.navigator.robot import BRAKE_LIMIT, DECAY, MASS_AHEAD, STEP, THRUST, thrust_gain, turn_of

__all__ = ["brake_action", "would_be_safe"]

_AHEAD: Final = 3
"""Where an observation holds the velocity along the heading."""
# Steps of the brake at which clearance is checked, dense at first, while the robot is fast.
_TIMES: Final = np.array([0.0, 2.0, 4.0, 7.0, 11.0, 16.0, 24.0, 40.0])[:, None]
_REST: Final = 0.003
"""Least clearance (metres) at rest."""
_LEVEL: Final = 1e-4
"""Differences in clearance (metres) up to this do not count."""
_PAD: Final = CELL * math.sqrt(2.0)
"""A possible obstacle is anywhere in its cell, and the field is read at a cell's middle: half a diagonal each."""


def would_be_safe(
    drawn: AnyMap, surroundings: Surroundings, actions: NDArray[np.float64], margin: float, room: float = 0.0
) -> NDArray[np.bool_]:
    """Say for each action whether full brake one step later still keeps clear of everything that may be there.

    This is a prediction from a fitted model of the robot, not a proof. `margin` stands for the model's error, which
    grows with the speed. An action that keeps as clear as an immediate brake is accepted too. Otherwise a robot that is
    too near, because the map has changed, could never leave.

    Assumes: `surroundings` was refreshed from `drawn`, and the brake itself runs without noise.

    Args:
        drawn: the map after the present observation.
        surroundings: its distance fields.
        actions: shape (n, 2), inside the action box.
        margin: least clearance at every sample of the stopping path, in metres per m/s of speed, in addition to 3 mm.
        room: metres of clearance in addition to those. With any room, keeping as clear as a brake is not enough.
    """
    vx, vy = drawn.pose.mass_velocity
    along = math.cos(drawn.pose.heading) * vx + math.sin(drawn.pose.heading) * vy
    least, speed = _least_clearance(drawn, surroundings, np.concatenate((actions, _brake(along)[None])))
    needed = _REST + room + margin * speed
    if room == 0.0:
        # The last row is an immediate brake. Whoever keeps as clear as that is accepted, see above.
        needed = np.minimum(needed, least[-1] - _LEVEL)
    return np.asarray(least[:-1] > needed[:-1])


def _least_clearance(
    drawn: AnyMap, surroundings: Surroundings, actions: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the least clearance of each action's stopping path, and the speed at its beginning."""
    pose = drawn.pose
    turn = turn_of(actions[:, 1])
    heading = pose.heading + turn
    # Thrust acts while the robot turns, on average halfway.
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
    return clearance.min(axis=0), np.hypot(next_vx, next_vy)


def _stopping(along: NDArray[np.float64]) -> NDArray[np.float64]:
    speed = np.abs(along)
    # The second term is when the robot stands. A brake that went on would drive it backwards.
    time = np.minimum(_TIMES, np.log1p(speed / BRAKE_LIMIT) / -math.log(DECAY))
    covered = (speed + BRAKE_LIMIT) * DECAY * (1.0 - DECAY**time) / (1.0 - DECAY) - BRAKE_LIMIT * time
    return np.asarray(np.sign(along) * STEP * np.maximum(covered, 0.0))


def brake_action(observation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the action that takes away the speed along the heading as fast as the robot can, without turning."""
    return _brake(float(observation[_AHEAD]))


def _brake(along: float) -> NDArray[np.float64]:
    kept = DECAY * along
    # Thrust is linear below 0.05, so the last bit of speed is removed exactly instead of overshot.
    if abs(kept) < THRUST:
        return np.array([-0.05 * kept / THRUST, 0.0])
    return np.array([-math.copysign(1.0, kept), 0.0])
