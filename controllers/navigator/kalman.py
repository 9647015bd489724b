"""One Kalman filter for all that noisy readings say: the robot's motion, the goal and the obstacles around it."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.navigator.lidar import BINS, RANGE
from ccfs.controllers.navigator.robot import DECAY, MASS_AHEAD, STEP

__all__ = ["GOAL", "GROUPS", "ObjectFilter", "written"]

GROUPS: Final = (28, 44, 12)
"""Index of the first lidar bin of hazards, vases and the goal in an observation."""
GOAL: Final = 2
_BIN: Final = 2.0 * math.pi / BINS
_FIELD: Final = 0.5
"""Strength of the compass field."""
_POSE: Final = 5
"""The state begins with x, y of the mass centre, the heading, and x, y of its velocity."""
_SPUN: Final = (0.22, 0.78)
"""Shares of the last and of the present spin in the mean spin of a step: the spin settles early in a step."""
_FULL_SPIN: Final = 3.0
_TURN_ERROR: Final = (0.0006, 0.0045)
"""Error (radians) of a step's turn by the gyro: at full spin, and for each rad/s below it, where friction sticks."""
_PUSH: Final = 0.02034
"""Speed along the heading that a step at a unit of measured acceleration adds."""
_SPEED_ERROR: Final = (0.0003, 0.002)
"""Error (m/s) of a step's change of speed, along the heading and across it."""
_GATE: Final = 3.5
"""Readings farther than this many deviations from the expected one are another object's, or contradict this one."""
_ALLOWED: Final = 0.5
"""Deviations that an object may read too low at each reading, so that small errors of the pose never add up."""
_BIRTH: Final = 3.0
_FAINT: Final = 5.0
_WIDE: Final = 0.5
_SAME: Final = 0.2
_MOST: Final = 14
_CONTRADICTED: Final = 15.0


def written(closeness: NDArray[np.float64], place: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Return what objects write into each bin, and its slopes by closeness and by place.

    An object at place p (bearing in bins) writes its closeness into bin b for p in [b, b+1]. From there its share falls
    linearly to 0 over one bin on each side.

    Args:
        closeness: one value per object.
        place: in [0, 16), one per object.
    """
    offset = (place[:, None] - np.arange(BINS) + 7.0) % BINS - 7.0
    share = np.clip(np.minimum(offset + 1.0, 2.0 - offset), 0.0, 1.0)
    slope = np.where((share > 0.0) & (share < 1.0), np.where(offset < 0.0, 1.0, -1.0), 0.0)
    return closeness[:, None] * share, share, closeness[:, None] * slope


class ObjectFilter:
    """Pose, velocity and the objects around, as one Gaussian that each observation of 60 numbers narrows.

    This is an extended Kalman filter for localisation and mapping. A lidar bin is expected to read the greatest value
    that any followed object writes into it, and informs about that object. Since objects and pose are one Gaussian, a
    better heading also turns the map, and known objects correct the pose.

    Args:
        sigma: scale of the noise on every reading, positive.
    """

    def __init__(self, sigma: float) -> None:
        if not (math.isfinite(sigma) and sigma > 0.0):
            raise ValueError(f"`sigma` must be finite and positive, got {sigma}.")
        self.sigma = sigma
        self.reset()

    def reset(self) -> None:
        """Forget everything. The next observation is at the origin, at rest."""
        self.started = False
        self.mean = np.zeros(_POSE)
        self.cov = np.zeros((_POSE, _POSE))
        self.kind = np.zeros(0, dtype=np.intp)
        """Group of each followed object, in the order of `GROUPS`."""
        self.hits = np.zeros(0, dtype=np.intp)
        """Readings of its own bin that fitted each object."""
        self.doubt = np.zeros(0)
        """How strongly readings contradict each object: sums of deviations above `_ALLOWED`."""
        self.spin = 0.0

    @property
    def faintest(self) -> float:
        """Closeness from which on a reading can begin a new object."""
        return _FAINT * self.sigma

    @property
    def objects(self) -> NDArray[np.float64]:
        """Positions of the followed objects, one row each."""
        return self.mean[_POSE:].reshape(-1, 2)

    @property
    def pose(self) -> tuple[float, float, float]:
        """Position of the robot's origin, and its heading."""
        x, y, heading = self.mean[:3].tolist()
        return x - MASS_AHEAD * math.cos(heading), y - MASS_AHEAD * math.sin(heading), heading

    def spread(self) -> NDArray[np.float64]:
        """Return the greatest standard deviation of each object's place as seen from the robot."""
        if not len(self.kind):
            return np.zeros(0)
        blocks = self.cov[_POSE:, _POSE:].reshape(len(self.kind), 2, len(self.kind), 2)
        own = blocks[np.arange(len(self.kind)), :, np.arange(len(self.kind))]
        cross = self.cov[:2, _POSE:].reshape(2, -1, 2).transpose(1, 0, 2)
        relative = own + self.cov[:2, :2] - cross - cross.transpose(0, 2, 1)
        half = 0.5 * (relative[:, 0, 0] + relative[:, 1, 1])
        apart = np.hypot(0.5 * (relative[:, 0, 0] - relative[:, 1, 1]), relative[:, 0, 1])
        return np.asarray(np.sqrt(np.maximum(half + apart, 0.0)))

    def observe(self, observation: NDArray[np.float64]) -> None:
        """Advance by one step and take in its readings."""
        if self.started:
            self._move(observation)
        else:
            self._begin(observation)
        rows, errors = self._body_rows(observation)
        self._correct(rows, errors)
        rows, errors, group = self._lidar_rows(observation)
        clean = group == GOAL
        # The goal is alone in its group. Nothing else can raise its readings, so they tell about the pose too.
        self._correct(rows[clean], errors[clean])
        self._correct(rows[~clean], errors[~clean], is_consider=True)
        self.spin = float(observation[8])
        self._drop()
        self._find(observation)

    def _begin(self, observation: NDArray[np.float64]) -> None:
        heading = math.atan2(-observation[9], -observation[10])
        self.mean[:3] = MASS_AHEAD * math.cos(heading), MASS_AHEAD * math.sin(heading), heading
        # Wide enough to be no information of its own: the same reading follows as a correction.
        self.cov[2, 2] = (10.0 * self.sigma / _FIELD) ** 2
        self.started = True

    def _move(self, observation: NDArray[np.float64]) -> None:
        """Predict the state one step later by the gyro and the accelerometer."""
        spin = float(observation[8])
        # The accelerometer sits at the origin, which a turn pulls towards the mass centre.
        push = float(observation[0]) - spin * spin * MASS_AHEAD
        heading, vx, vy = self.mean[2:_POSE].tolist()
        heading += STEP * (_SPUN[0] * self.spin + _SPUN[1] * spin)
        cos, sin = math.cos(heading), math.sin(heading)
        # Along the heading the accelerometer tells the change. Across it there is only drag.
        along, across = cos * vx + sin * vy + _PUSH * push, DECAY * (cos * vy - sin * vx)
        next_vx, next_vy = cos * along - sin * across, sin * along + cos * across
        change = np.eye(_POSE)
        change[3:, 3:] = [[cos * cos + DECAY * sin * sin, (1.0 - DECAY) * cos * sin]] * 2
        change[4, 3:] = (1.0 - DECAY) * cos * sin, sin * sin + DECAY * cos * cos
        # Drag also makes the velocity follow the heading. That slope is left out: with it the navigator did no better.
        change[3:, 2] = -_PUSH * push * sin, _PUSH * push * cos
        change[:2, 3:] = STEP * (0.45 * np.eye(2) + 0.55 * change[3:, 3:])
        change[:2, 2] = 0.55 * STEP * change[3:, 2]
        self.mean[0] += STEP * (0.45 * vx + 0.55 * next_vx)
        self.mean[1] += STEP * (0.45 * vy + 0.55 * next_vy)
        self.mean[2:_POSE] = heading, next_vx, next_vy
        self.cov[:_POSE] = change @ self.cov[:_POSE]
        self.cov[:, :_POSE] = self.cov[:, :_POSE] @ change.T
        slow = max(_FULL_SPIN - abs(spin), 0.0)
        turn = _TURN_ERROR[0] + _TURN_ERROR[1] * slow
        self.cov[2, 2] += turn * turn + (STEP * self.sigma) ** 2
        ahead, aside = _SPEED_ERROR[0] ** 2 + (_PUSH * self.sigma) ** 2, _SPEED_ERROR[1] ** 2
        facing = np.array([[cos, -sin], [sin, cos]])
        self.cov[3:_POSE, 3:_POSE] += facing @ np.diag([ahead, aside]) @ facing.T

    def _body_rows(self, observation: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the slopes and errors of the velocimeter and the magnetometer."""
        heading, vx, vy = self.mean[2:_POSE].tolist()
        cos, sin = math.cos(heading), math.sin(heading)
        ahead, left = cos * vx + sin * vy, cos * vy - sin * vx
        rows = np.zeros((4, len(self.mean)))
        rows[0, 2:_POSE] = left, cos, sin
        rows[1, 2:_POSE] = -ahead, -sin, cos
        rows[2, 2], rows[3, 2] = -_FIELD * cos, _FIELD * sin
        # The velocimeter sits at the origin. The mass centre ahead of it swings with the turn.
        expected = (ahead, left - MASS_AHEAD * float(observation[8]), -_FIELD * sin, -_FIELD * cos)
        return rows, observation[[3, 4, 9, 10]] - expected

    def _polar(self, points: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        x, y, heading = self.pose
        dx, dy = points[:, 0] - x, points[:, 1] - y
        distance = np.maximum(np.hypot(dx, dy), 1e-3)
        return dx, dy, distance, (np.arctan2(dy, dx) - heading) / _BIN % BINS

    def _lidar_rows(self, observation: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        """Return slopes, errors and groups of the bins that fit a followed object. Count fits and contradictions."""
        count, size = len(self.kind), len(self.mean)
        self._explained = np.zeros((len(GROUPS), BINS))
        if not count:
            return np.zeros((0, size)), np.zeros(0), np.zeros(0)
        dx, dy, distance, place = self._polar(self.objects)
        closeness = np.maximum(1.0 - distance / RANGE, 0.0)
        value, by_closeness, by_place = written(closeness, place)
        readings = np.stack([observation[first : first + BINS] for first in GROUPS])
        masked = np.where(self.kind[None, :, None] == np.arange(len(GROUPS))[:, None, None], value[None], 0.0)
        who = masked.argmax(axis=1)
        group, bins = np.nonzero(masked.max(axis=1) > 0.0)
        seen = who[group, bins]
        # Slopes of each reading by the object's place, then by the pose, which moves the other way.
        closer, aside = by_closeness[seen, bins] / -RANGE, by_place[seen, bins] / _BIN
        far, east, north = distance[seen], dx[seen], dy[seen]
        by_x = closer * east / far - aside * north / far**2
        by_y = closer * north / far + aside * east / far**2
        number = np.arange(len(seen))
        rows = np.zeros((len(seen), size))
        rows[number, _POSE + 2 * seen], rows[number, _POSE + 2 * seen + 1] = by_x, by_y
        rows[:, 0], rows[:, 1] = -by_x, -by_y
        cos, sin = math.cos(self.mean[2]), math.sin(self.mean[2])
        # A turn moves the origin around the mass centre too.
        rows[:, 2] = -aside - MASS_AHEAD * (sin * by_x - cos * by_y)
        errors = readings[group, bins] - value[seen, bins]
        deviation = np.sqrt(((rows @ self.cov) * rows).sum(axis=1) + self.sigma**2)
        fits = np.abs(errors) < _GATE * deviation
        self._explained[group, bins] = value[seen, bins] + _BIRTH * deviation
        own = by_closeness[seen, bins] == 1.0
        np.add.at(self.hits, seen[fits & own], 1)
        doubt = np.zeros(count)
        np.add.at(doubt, seen, -errors / deviation - _ALLOWED)
        self.doubt = np.maximum(self.doubt + doubt, 0.0)
        return rows[fits], errors[fits], group[fits]

    def _correct(self, rows: NDArray[np.float64], errors: NDArray[np.float64], *, is_consider: bool = False) -> None:
        """Take in readings by a Kalman update. With `is_consider` they leave the robot's own state as it is."""
        if not len(rows):
            return
        across = self.cov @ rows.T
        total = rows @ across + self.sigma**2 * np.eye(len(rows))
        gain = np.linalg.solve(total, across.T).T
        own, own_cov = self.mean[:_POSE].copy(), self.cov[:_POSE, :_POSE].copy()
        self.mean += gain @ errors
        self.cov -= gain @ across.T
        self.cov = 0.5 * (self.cov + self.cov.T)
        if is_consider:
            # The Schmidt-Kalman filter: the pose keeps its uncertainty, which the objects' errors still follow.
            self.mean[:_POSE], self.cov[:_POSE, :_POSE] = own, own_cov

    def _drop(self) -> None:
        """Forget objects that readings contradict, and the newer one of two in one place."""
        if not len(self.kind):
            return
        points = self.objects
        gaps = points[:, None] - points[None]
        same = (gaps**2).sum(axis=2) < _SAME * _SAME
        same &= self.kind[:, None] == self.kind[None]
        older = self.hits[None] > self.hits[:, None]
        older |= (self.hits[None] == self.hits[:, None]) & (
            np.arange(len(self.kind))[None] < np.arange(len(self.kind))[:, None]
        )
        keep = ~(same & older).any(axis=1) & (self.doubt < _CONTRADICTED)
        if not keep.all():
            self._select(keep)

    def _select(self, keep: NDArray[np.bool_]) -> None:
        state = np.concatenate((np.ones(_POSE, dtype=np.bool_), np.repeat(keep, 2)))
        self.mean, self.cov = self.mean[state], self.cov[np.ix_(state, state)]
        self.kind, self.hits, self.doubt = self.kind[keep], self.hits[keep], self.doubt[keep]

    def _find(self, observation: NDArray[np.float64]) -> None:
        """Follow new objects: peaks of the readings that nothing followed explains."""
        for group, first in enumerate(GROUPS):
            values = observation[first : first + BINS].tolist()
            explained = self._explained[group].tolist()
            for index, own in enumerate(values):
                after, before = values[(index + 1) % BINS], values[index - 1]
                if own > max(self.faintest, explained[index]) and own >= after and own >= before:
                    self._follow(group, index, own, before, after)

    def _follow(self, group: int, index: int, own: float, before: float, after: float) -> None:
        # The neighbours bound the place within the bin, because other objects can only raise them.
        low, high = max(1.0 - before / own, 0.0), min(after / own, 1.0)
        if high - low > _WIDE or (self.kind == group).sum() >= (1 if group == GOAL else _MOST):
            return
        place = min(max(0.5 * (low + high), 0.0), 1.0)
        distance, bearing = RANGE * (1.0 - own), _BIN * (index + place)
        x, y, heading = self.pose
        cos, sin = math.cos(heading + bearing), math.sin(heading + bearing)
        point = np.array([x + distance * cos, y + distance * sin])
        others = self.objects[self.kind == group]
        if len(others) and ((others - point) ** 2).sum(axis=1).min() < _SAME * _SAME:
            return
        wide = _BIN * math.hypot((high - low) / math.sqrt(12.0), self.sigma / own)
        polar = np.array([[cos, -distance * sin], [sin, distance * cos]])
        by_pose = np.zeros((2, len(self.mean)))
        by_pose[:, :2] = np.eye(2)
        by_pose[:, 2] = MASS_AHEAD * math.sin(heading) - distance * sin, distance * cos - MASS_AHEAD * math.cos(heading)
        cross = by_pose @ self.cov
        own_cov = cross @ by_pose.T + polar @ np.diag([(RANGE * self.sigma) ** 2, wide * wide]) @ polar.T
        self.cov = np.block([[self.cov, cross.T], [cross, own_cov]])
        self.mean = np.concatenate((self.mean, point))
        self.kind = np.append(self.kind, group)
        self.hits, self.doubt = np.append(self.hits, 1), np.append(self.doubt, 0.0)
