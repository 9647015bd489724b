"""The coarse route: the time to the goal from everywhere, on a map with known obstacles and unseen places."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.navigator.fields import FAR, arrival_time, capped_distance
from ccfs.controllers.navigator.lidar_map import CELL, HALF_WIDTH, SIDE
from ccfs.controllers.navigator.noisy_map import AnyMap
from ccfs.controllers.navigator.robot import STEP, NoisyRobot
from ccfs.controllers.navigator.settings import NavigatorSettings

__all__ = ["GOAL_RADIUS", "Route"]

ROUTE_CELL: Final = 2 * CELL
_SIDE: Final = SIDE // 2
_SWEEPS: Final = 250
_MORE_SWEEPS: Final = 24
_REACH: Final = 9
_HAZARD: Final = 0.20
_VASE: Final = 0.26
_UNSEEN: Final = 0.24
_DEAREST: Final = 150.0
_STRETCH: Final = 6
_BLOCK: Final = 0.15
_MOVED: Final = 0.1
_AROUND: Final = 0.5
_SEEK: Final = 0.6
_RISE: Final = 3.0
"""Greatest difference between neighbouring cells that counts, in cruising times per cell."""
GOAL_RADIUS: Final = 0.3


class Route:
    """The field of arrival times (steps) and the directions down it, computed from a map."""

    def __init__(self, settings: NavigatorSettings, robot: NoisyRobot) -> None:
        self._settings = settings
        self._scale = settings.risk_scale + settings.risk_scale_noise * robot.sigma
        # The least clearance of an open way, as a rule and at present.
        self._closed = self._least = settings.closed + settings.closed_noise * robot.sigma
        self.pace = STEP * min(settings.cruise_share * robot.terminal_speed, settings.cruise_limit)
        """Assumed metres per step in the open."""
        axis = (np.arange(_SIDE) + 0.5) * ROUTE_CELL - HALF_WIDTH
        self._x, self._y = axis[:, None], axis[None, :]
        self._fine = (np.arange(SIDE) + 0.5) * CELL - HALF_WIDTH
        self.time: NDArray[np.float64] = np.zeros((_SIDE, _SIDE))
        self.closed = np.zeros((_SIDE, _SIDE), dtype=np.bool_)
        """Cells that no route passes through."""
        self.blocks: list[tuple[float, float]] = []
        """Places that count as closed, because the robot was stuck in front of them."""
        self._target = (math.inf, math.inf)
        self._corners = self._around()
        self.down_x = np.zeros((_SIDE, _SIDE))
        self.down_y = np.zeros((_SIDE, _SIDE))

    def plan(self, drawn: AnyMap, *, fresh: bool, narrow: bool = False) -> None:
        """Recompute the field, to the goal if it is known, otherwise to where it may be.

        Args:
            drawn: the map.
            fresh: forget the last field. If False, start from it and follow small changes of the map.
            narrow: count somewhat narrower gaps as open.
        """
        self._least = self._closed * (self._settings.narrow_share if narrow else 1.0)
        target = drawn.goal or drawn.search_target
        fresh = fresh or math.dist(target, self._target) > _MOVED
        self._target = target
        area = self._area(drawn)
        x, y = self._x[area[0]], self._y[:, area[1]]
        # The target is deep inside the goal. At its edge, a later arrival would seem as good as an early one.
        # A place where the goal may be can also hold an obstacle, so its surroundings are enough.
        reach = ROUTE_CELL if drawn.goal else _SEEK
        inside = (x - target[0]) ** 2 + (y - target[1]) ** 2 < reach**2
        slowness = self._slowness(drawn, area)
        # Outside of the area nothing is closed: no way leads there anyway.
        self.closed[:] = False
        self.closed[area] = slowness >= _DEAREST * ROUTE_CELL / self.pace
        if fresh:
            time = arrival_time(slowness, inside, _SWEEPS)
            self.time[:] = FAR
        else:
            time = arrival_time(slowness, inside, _MORE_SWEEPS, self.time[area])
        self.time[area] = time
        self._corners = self._around()
        # Added to the length below, 1e-9 keeps flat places, such as the target, from dividing by zero.
        fall_x, fall_y = _fall(self.time), _fall(self.time.T).T
        length = np.sqrt(fall_x**2 + fall_y**2) + 1e-9
        self.down_x, self.down_y = fall_x / length, fall_y / length

    def _area(self, drawn: AnyMap) -> tuple[slice, slice]:
        """Return the cells in or around the arena. The fastest way never goes farther out."""
        pose = drawn.pose
        ends = []
        for (low, high), here in zip(drawn.bounds, (pose.x, pose.y), strict=True):
            first = (min(low + 0.2, here) - _AROUND + HALF_WIDTH) / ROUTE_CELL
            last = (max(high - 0.2, here) + _AROUND + HALF_WIDTH) / ROUTE_CELL
            ends.append(slice(max(0, int(first)), min(_SIDE, int(last) + 1)))
        return ends[0], ends[1]

    def _slowness(self, drawn: AnyMap, area: tuple[slice, slice]) -> NDArray[np.float64]:
        """Return the time per cell: cruising time, plus prices for risk and for doubt."""
        settings = self._settings
        x, y = self._x[area[0]], self._y[:, area[1]]
        clearance = self._clearance(drawn, area)
        unseen = drawn.possible[0] | drawn.possible[1]
        doubtful = settings.doubt * np.exp(-np.maximum(self._away(unseen, area), 0.0) / self._scale)
        # What could not be excluded from close by is probably an obstacle, so it costs as much as a known one.
        taken = self._price(self._away(unseen & drawn.passed_close, area))
        unsure = np.maximum(doubtful, taken)
        for block_x, block_y in self.blocks:
            unsure[(x - block_x) ** 2 + (y - block_y) ** 2 < _BLOCK**2] = _DEAREST
        price = np.minimum(np.maximum(self._price(clearance), unsure), _DEAREST)
        return np.asarray((1.0 + price) * (ROUTE_CELL / self.pace))

    def _clearance(self, drawn: AnyMap, area: tuple[slice, slice]) -> NDArray[np.float64]:
        """Return the clearance at the best place of each cell, so that a gap does not depend on the grid."""
        rows, columns = _fine(area)
        x, y = self._fine[rows, None], self._fine[None, columns]
        clearance = np.full((x.size, y.size), _REACH * CELL)
        for known, radius in zip(drawn.known, (_HAZARD, _VASE), strict=True):
            squares = np.full(clearance.shape, (_REACH * CELL + radius) ** 2)
            for other_x, other_y in known:
                np.minimum(squares, (x - other_x) ** 2 + (y - other_y) ** 2, out=squares)
            np.minimum(clearance, np.sqrt(squares) - radius, out=clearance)
        return _best(clearance)

    def _away(self, cells: NDArray[np.bool_], area: tuple[slice, slice]) -> NDArray[np.float64]:
        """Return the clearance from obstacles that may be in the marked fine cells, at the best place of each cell."""
        return _best(capped_distance(cells[_fine(area)], _REACH)) * CELL - _UNSEEN

    def _price(self, clearance: NDArray[np.float64]) -> NDArray[np.float64]:
        settings = self._settings
        price = settings.route_risk * np.exp(-np.maximum(clearance, 0.0) / self._scale)
        return np.asarray(np.where(clearance < self._least, _DEAREST, price))

    def block_ahead(self, drawn: AnyMap) -> None:
        """Close the most expensive place within the next stretch of the way."""
        x, y = drawn.pose.x, drawn.pose.y
        dearest, place = -1.0, (x, y)
        for _ in range(_STRETCH):
            before = float(self.time_at(np.array([x]), np.array([y]))[0])
            down_x, down_y = self.down_at(np.array([x]), np.array([y]))
            x, y = x + ROUTE_CELL * float(down_x[0]), y + ROUTE_CELL * float(down_y[0])
            spent = before - float(self.time_at(np.array([x]), np.array([y]))[0])
            if spent > dearest:
                dearest, place = spent, (x, y)
        self.blocks.append(place)

    def _around(self) -> NDArray[np.float64]:
        """Return the times at the four corners of each square between cell middles, one row per corner.

        The time inside a wall says nothing about the way past it. So a corner counts as only a little later than the
        earliest one. Clearance decides how near to a wall the robot may pass.
        """
        time = self.time
        corners = np.stack((time[:-1, :-1], time[:-1, 1:], time[1:, :-1], time[1:, 1:])).reshape(4, -1)
        np.minimum(corners, corners.min(axis=0) + _RISE * ROUTE_CELL / self.pace, out=corners)
        return np.asarray(corners)

    def time_at(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the arrival time at points, interpolated between cell middles."""
        # A little below the last middle, so that the square of its four corners exists.
        u = np.minimum(np.maximum((x + HALF_WIDTH) / ROUTE_CELL - 0.5, 0.0), _SIDE - 1.001)
        v = np.minimum(np.maximum((y + HALF_WIDTH) / ROUTE_CELL - 0.5, 0.0), _SIDE - 1.001)
        i, j = u.astype(np.intp), v.astype(np.intp)
        u -= i
        v -= j
        i *= _SIDE - 1
        i += j
        corners = self._corners
        low, high = corners[0].take(i), corners[2].take(i)
        # In place and with `take`, because this is asked for thousands of points per step.
        low += v * (corners[1].take(i) - low)
        high += v * (corners[3].take(i) - high)
        high -= low
        high *= u
        low += high
        return np.asarray(low)

    def is_closed_at(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Say which points are in closed cells."""
        return np.asarray(self.closed[self._cell(x), self._cell(y)])

    def _cell(self, along: NDArray[np.float64]) -> NDArray[np.intp]:
        index = ((along + HALF_WIDTH) / ROUTE_CELL).astype(np.intp)
        return np.minimum(np.maximum(index, 0), _SIDE - 1)

    def down_at(
        self, x: NDArray[np.float64], y: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the unit direction of the fastest way at points."""
        i, j = self._cell(x), self._cell(y)
        return self.down_x[i, j], self.down_y[i, j]


def _fall(time: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the signed fall along the first axis towards the lower neighbour, zero if both are higher (upwind)."""
    padded = np.pad(time, ((1, 1), (0, 0)), mode="edge")
    before, after = time - padded[:-2], time - padded[2:]
    return np.asarray(np.where(after >= before, np.maximum(after, 0.0), -np.maximum(before, 0.0)))


def _fine(area: tuple[slice, slice]) -> tuple[slice, slice]:
    """Return the map's cells that make up an area of route cells."""
    rows, columns = area
    return slice(2 * rows.start, 2 * rows.stop), slice(2 * columns.start, 2 * columns.stop)


def _best(fine: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the greatest of the four values in each route cell."""
    return np.asarray(
        np.maximum(np.maximum(fine[::2, ::2], fine[::2, 1::2]), np.maximum(fine[1::2, ::2], fine[1::2, 1::2]))
    )
