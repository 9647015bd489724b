"""The map under noise on every reading: objects that a filter follows, and cells that may hold another one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.navigator.kalman import GOAL, ObjectFilter
from ccfs.controllers.navigator.lidar import BINS, RANGE, least_lack
from ccfs.controllers.navigator.lidar_map import (
    CELL,
    KINDS,
    SIDE,
    START_KEEPOUT,
    LidarMap,
    cells_within,
    clear_outside,
)
from ccfs.controllers.navigator.search import ARENA, GOAL_KEEPOUT, HALF_WIDTH, GoalSearch

__all__ = ["AnyMap", "NoisyMap", "map_for"]

_REACH: Final = CELL / math.sqrt(2.0)
_NEAR: Final = 1.5
_CLOSE: Final = 0.9
_EVERY_CELL: Final = 12
_RENEW: Final = 4
_ALLOWED: Final = 0.5
"""Deviations by which an object may read too low at each reading, so that small errors of the pose never add up."""
_EXCLUDED: Final = 12.0
"""Deviations beyond those allowed that exclude an object. A true one reaches this about once in exp(12) readings."""
_HITS: Final = 8
"""Readings after which a followed object counts as known."""
_SURE: Final = 0.1
"""Greatest spread (metres) of a known object."""
_DOUBTED: Final = 6.0
_SPREAD: Final = 2.0
"""Times the filter's own deviation that a place may be off, because unknown objects raise readings too."""
_SEARCH_STEP: Final = 0.1
_MARGIN: Final = 1e-3
_GOAL_SPREAD: Final = 0.02


@dataclass(slots=True)
class FilteredPose:
    """The fields of `DeadReckoner`, as the filter last estimated them."""

    x: float = 0.0
    y: float = 0.0
    heading: float = 0.0
    spin: float = 0.0
    mass_x: float = 0.0
    mass_y: float = 0.0
    mass_velocity: tuple[float, float] = (0.0, 0.0)


class NoisyMap:
    """What `LidarMap` holds, from readings with Gaussian noise: a function of the observations since `reset`.

    `known[k]` holds the obstacles that the filter has followed for long enough, and `spread[k]` how far off each may
    be. `possible[k]` holds the cells that may contain another one. No single reading excludes anything. Readings below
    what an object in the cell would write add up to evidence, and enough of it excludes the cell. The task's placement
    rules are applied anew to what is known at the time, so an object that turns out wrong leaves no trace.

    Args:
        sigma: scale of the noise on every reading, positive.
    """

    def __init__(self, sigma: float) -> None:
        axis = (np.arange(SIDE) + 0.5) * CELL - HALF_WIDTH
        self._all_x, self._all_y = np.repeat(axis, SIDE), np.tile(axis, SIDE)
        self._filter = ObjectFilter(sigma)
        self._search = GoalSearch()
        self.reset()

    def reset(self) -> None:
        """Forget everything, because a new trial begins."""
        self._filter.reset()
        self._search.reset()
        self.pose = FilteredPose()
        self.goal: tuple[float, float] | None = None
        self.known: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
        self.spread: tuple[list[float], list[float]] = ([], [])
        """Metres by which each known obstacle may be off."""
        self.possible = np.ones((2, SIDE, SIDE), dtype=np.bool_)
        self.version = 0
        """Grows whenever an obstacle becomes known, or is not known any more."""
        # Evidence against an object in each cell, and how well readings could tell a cell from the next one.
        self._against = np.zeros((2, SIDE * SIDE))
        self._resolved = np.zeros(SIDE * SIDE)
        self._cells = np.arange(SIDE * SIDE)
        self._steps = 0
        self._searched_at = (math.inf, math.inf)
        self._low, self._high = [-math.inf] * 2, [math.inf] * 2
        self._narrow()

    def observe(self, observation: NDArray[np.float64]) -> None:
        """Take in one observation of 60 numbers."""
        self._filter.observe(observation)
        self._steps += 1
        self._copy_pose()
        self._weigh(observation[28:60].reshape(2, BINS))
        self._know()
        if self._steps % _RENEW == 1:
            self._renew()
        here = (self.pose.x, self.pose.y)
        if self.goal is None and math.dist(self._searched_at, here) > _SEARCH_STEP:
            # Two deviations above the faintest reading that begins an object, a goal is seen almost surely.
            seen = self._filter.faintest + 2.0 * self._filter.sigma
            self._search.look(*here, RANGE * (1.0 - seen), self._low, self._high)
            self._searched_at = here

    def _copy_pose(self) -> None:
        pose, (mass_x, mass_y, _, vx, vy) = self.pose, self._filter.mean[:5].tolist()
        pose.x, pose.y, pose.heading = self._filter.pose
        pose.mass_x, pose.mass_y, pose.mass_velocity = mass_x, mass_y, (vx, vy)
        pose.spin = self._filter.spin

    def _weigh(self, readings: NDArray[np.float64]) -> None:
        """Add up how much the readings speak against an object in each cell: near cells each time, far ones rarely."""
        pose, sigma, cells = self.pose, self._filter.sigma, self._cells
        dx, dy = self._all_x[cells] - pose.x, self._all_y[cells] - pose.y
        distance = np.sqrt(dx * dx + dy * dy)
        near = np.flatnonzero(distance < (RANGE if self._steps % _EVERY_CELL == 1 else _NEAR))
        inside, distance = cells[near], distance[near]
        bearing = np.arctan2(dy[near], dx[near]) - pose.heading
        bearing -= 2.0 * math.pi * np.floor(bearing / (2.0 * math.pi))
        turn = math.sqrt(self._filter.cov[2, 2])
        excess = least_lack(readings, distance, bearing, _REACH, turn) / sigma - _ALLOWED
        against = self._against[:, inside]
        # A sum that never falls below zero (CUSUM): times when another object hid the cell do not count in its favour.
        summed = np.maximum(against + excess, 0.0)
        self._against[:, inside] = np.where(against > _EXCLUDED, against, summed)
        self._resolved[inside[distance < _CLOSE]] += (CELL / (RANGE * sigma)) ** 2
        self._cells = cells[(self._against[:, cells] <= _EXCLUDED).any(axis=0)]

    def _know(self) -> None:
        """Copy the goal and the obstacles that the filter is sure of."""
        follow = self._filter
        spread, objects = _SPREAD * follow.spread(), follow.objects
        sure = (follow.hits >= _HITS) & (spread < _SURE) & (follow.doubt < _DOUBTED)
        for kind in range(2):
            which = sure & (follow.kind == kind)
            self.version += int(which.sum() != len(self.known[kind]))
            self.known[kind][:] = [(x, y) for x, y in objects[which].tolist()]
            self.spread[kind][:] = spread[which].tolist()
        seen = objects[follow.kind == GOAL].tolist()
        if self.goal is not None and not seen:
            self._search.begin()
        self.goal = (seen[0][0], seen[0][1]) if seen else None

    def _renew(self) -> None:
        """Find the cells that may hold an object: not excluded, inside the arena, and away from all that is known."""
        self.possible[:] = (self._against <= _EXCLUDED).reshape(self.possible.shape)
        self._clear((0.0, 0.0), START_KEEPOUT, 0.0)
        if self.goal:
            self._clear(self.goal, GOAL_KEEPOUT, _GOAL_SPREAD)
        for kind, about in enumerate(KINDS):
            for point, spread in zip(self.known[kind], self.spread[kind], strict=True):
                self._clear(point, about.keepout, spread)
        self._narrow()
        for kind, about in enumerate(KINDS):
            for axis in range(2):
                reach = ARENA - about.keepout + _MARGIN
                clear_outside(self.possible[kind], axis, self._low[axis] - reach, self._high[axis] + reach)
            # When all obstacles of a kind are known, no other cell can hold one.
            if len(self.known[kind]) >= about.count:
                self.possible[kind] = False

    def _clear(self, middle: tuple[float, float], keepout: float, spread: float) -> None:
        for kind, about in enumerate(KINDS):
            where, inside = cells_within(middle, keepout + about.keepout - spread - _MARGIN)
            self.possible[kind][where] &= ~inside

    def _narrow(self) -> None:
        """Bound where the arena's middle can be by the start and by all that was followed for long enough."""
        follow = self._filter
        # The deviations are those as seen from the start, so they hold the error of the axes too.
        deviation = np.sqrt(np.maximum(np.diag(follow.cov)[5:], 0.0)).reshape(-1, 2)
        keepouts = np.array([*(kind.keepout for kind in KINDS), GOAL_KEEPOUT])
        sure = follow.hits >= _HITS
        for axis in range(2):
            room = (ARENA - keepouts[follow.kind] + 3.0 * deviation[:, axis])[sure]
            along = follow.objects[sure, axis]
            self._low[axis] = float((along - room).max(initial=START_KEEPOUT - ARENA))
            self._high[axis] = float((along + room).min(initial=ARENA - START_KEEPOUT))

    @property
    def search_target(self) -> tuple[float, float]:
        """Where to drive while the goal is out of sight: the middle of where it can still be."""
        return self._search.target

    @property
    def passed_close(self) -> NDArray[np.bool_]:
        """Cells that were near for so long that their readings would have excluded them, had they been empty."""
        return (self._resolved > _EXCLUDED).reshape(SIDE, SIDE)

    @property
    def bounds(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Least and greatest coordinates, by axis, that any part of the arena can have."""
        low, high = self._low, self._high
        return (low[0] - ARENA, high[0] + ARENA), (low[1] - ARENA, high[1] + ARENA)


AnyMap = LidarMap | NoisyMap


def map_for(sensor: float) -> AnyMap:
    """Return an empty map for noise of scale `sensor` on every reading, or for exact readings if that is 0."""
    if not (math.isfinite(sensor) and sensor >= 0.0):
        raise ValueError(f"`sensor` must be finite and at least 0, got {sensor}.")
    return NoisyMap(sensor) if sensor > 0.0 else LidarMap()
