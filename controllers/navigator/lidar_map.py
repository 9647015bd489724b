"""The map that a Point robot draws by itself: objects seen exactly, and cells that may hold an unseen one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.navigator.lidar import RANGE, arcs, exact_sightings, is_excluded
from ccfs.controllers.navigator.robot import DeadReckoner
from ccfs.controllers.navigator.search import ARENA, GOAL_KEEPOUT, HALF_WIDTH, GoalSearch
from ccfs.controllers.navigator.suspects import Suspects, contradicts

__all__ = [
    "CELL",
    "HALF_WIDTH",
    "KINDS",
    "SIDE",
    "START_KEEPOUT",
    "LidarMap",
    "ObjectKind",
    "cells_within",
    "clear_outside",
]

CELL: Final = 0.04
SIDE: Final = round(2 * HALF_WIDTH / CELL)
_REACH: Final = CELL / math.sqrt(2.0)
_SAME: Final = 0.05
_TRUST: Final = 2.9


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectKind:
    """One kind of obstacle as the task places it: how many there are, and how near to other things they can be."""

    count: int
    keepout: float
    first: int
    """Index of its first lidar bin in the observation."""


HAZARD: Final = ObjectKind(count=10, keepout=0.18, first=28)
VASE: Final = ObjectKind(count=10, keepout=0.15, first=44)
KINDS: Final = (HAZARD, VASE)
_GOAL_FIRST: Final = 12
START_KEEPOUT: Final = 0.4
_MARGIN: Final = 1e-3
_FULL_CARVE: Final = 12
_NEAR: Final = 1.5
_CLOSE: Final = 0.9
_SEARCH_STEP: Final = 0.1


class LidarMap:
    """Pose, goal, known obstacles and possible obstacles: a deterministic function of the observations since `reset`.

    `known[k]` holds the exact centres of kind k (0 hazards, 1 vases). `possible[k]` holds the cells that may contain
    the centre of another one. While no vase has been pushed, every obstacle is in one of the two. A cell is removed
    only if some reading contradicts an object anywhere in it, or if the task's placement rules do: ten of each kind,
    and nothing nearer than the two keepouts to another object, to the goal or to the start.
    """

    def __init__(self) -> None:
        axis = (np.arange(SIDE) + 0.5) * CELL - HALF_WIDTH
        self._all_x, self._all_y = np.repeat(axis, SIDE), np.tile(axis, SIDE)
        self.pose = DeadReckoner()
        self._suspects = (Suspects(), Suspects())
        self._search = GoalSearch()
        self.reset()

    def reset(self) -> None:
        """Forget everything, because a new trial begins."""
        self.pose.reset()
        for suspects in self._suspects:
            suspects.reset()
        self.goal: tuple[float, float] | None = None
        self.known: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
        self._inferred: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
        self.possible = np.ones((2, SIDE, SIDE), dtype=np.bool_)
        self.version = 0
        """Grows whenever an obstacle becomes known."""
        self._flat = self.possible.reshape(2, -1)
        # As `possible`, but without trusting obstacles that were only inferred.
        self._sound = np.ones_like(self.possible)
        self._sound_flat = self._sound.reshape(2, -1)
        self._close = np.zeros(SIDE * SIDE, dtype=np.bool_)
        self._cells = np.arange(SIDE * SIDE)
        self._carved_at = (math.inf, math.inf, 0.0)
        self._carves = 0
        self._steps = 0
        self._search.reset()
        self._searched_at = (math.inf, math.inf)
        self._low, self._high = [-math.inf, -math.inf], [math.inf, math.inf]

    def observe(self, observation: NDArray[np.float64]) -> None:
        """Take in one observation of 60 numbers."""
        started = self.pose.started
        self._steps += 1
        self.pose.observe(observation)
        if not started:
            for kind in range(2):
                self._clear_disc(kind, (0.0, 0.0), KINDS[kind].keepout + START_KEEPOUT)
            self._bound_arena((0.0, 0.0), START_KEEPOUT)
        self._see_goal(observation[_GOAL_FIRST : _GOAL_FIRST + 16])
        for kind, about in enumerate(KINDS):
            readings = observation[about.first : about.first + 16]
            # Exact sightings first: a suspect that turns out to be known needs no further proof.
            for sighting in exact_sightings(readings):
                self._see(kind, self._point(*sighting))
            # The two kinds take turns, which halves the work per step.
            if len(self.known[kind]) < about.count and self._steps % 2 == kind:
                pose = self.pose
                for point in self._suspects[kind].observe(readings, pose.x, pose.y, pose.heading):
                    if self._may_hold(kind, point):
                        self._see(kind, point, sound=False)
            self._doubt(kind, readings)
            if self._steps % _FULL_CARVE == 1:
                self._bound_by_arcs(kind, readings)
        if self.goal is None and math.dist(self._searched_at, (self.pose.x, self.pose.y)) > _SEARCH_STEP:
            self._search.look(self.pose.x, self.pose.y, RANGE, self._low, self._high)
            self._searched_at = (self.pose.x, self.pose.y)
        x, y, heading = self._carved_at
        pose = self.pose
        # A robot that has not moved learns nothing new.
        if abs(pose.x - x) + abs(pose.y - y) > 0.01 or abs(pose.heading - heading) > 0.02:
            self._carve(observation[28:60].reshape(2, 16))
            self._carved_at = (pose.x, pose.y, pose.heading)

    def _point(self, distance: float, bearing: float) -> tuple[float, float]:
        angle = self.pose.heading + bearing
        return self.pose.x + distance * math.cos(angle), self.pose.y + distance * math.sin(angle)

    def _may_hold(self, kind: int, point: tuple[float, float]) -> bool:
        i, j = (int((value + HALF_WIDTH) / CELL) for value in point)
        return 0 <= i < SIDE and 0 <= j < SIDE and bool(self.possible[kind, i, j])

    def _see_goal(self, readings: NDArray[np.float64]) -> None:
        seen = exact_sightings(readings)
        if seen:
            goal = self._point(*seen[0])
            if self.goal is None or math.dist(goal, self.goal) > _SAME:
                for kind in range(2):
                    self._clear_disc(kind, goal, KINDS[kind].keepout + GOAL_KEEPOUT)
                self._bound_arena(goal, GOAL_KEEPOUT)
            self.goal = goal
        elif self.goal is not None and math.dist(self.goal, (self.pose.x, self.pose.y)) < _TRUST:
            # A goal this near is always seen, so it must have moved.
            self.goal = None
            self._search.begin()

    def _see(self, kind: int, point: tuple[float, float], *, sound: bool = True) -> None:
        known = self.known[kind]
        for index, other in enumerate(known):
            if math.dist(other, point) < _SAME:
                if not sound:
                    return
                # The newest sighting is kept, because a vase may have been pushed.
                known[index] = point
                if other in self._inferred[kind]:
                    self._inferred[kind].remove(other)
                    self._clear_around(kind, point, sound=True)
                return
        known.append(point)
        self.version += 1
        if sound:
            self._bound_arena(point, KINDS[kind].keepout)
        else:
            self._inferred[kind].append(point)
        self._clear_around(kind, point, sound=sound)
        # When all obstacles of a kind are known, no other cell can hold one.
        if len(known) >= KINDS[kind].count:
            self._flat[kind] = False

    def _doubt(self, kind: int, readings: NDArray[np.float64]) -> None:
        """Remove inferred obstacles that a reading contradicts, and count their surroundings as possible again."""
        for point in tuple(self._inferred[kind]):
            dx, dy = point[0] - self.pose.x, point[1] - self.pose.y
            if contradicts(readings, math.hypot(dx, dy), math.atan2(dy, dx) - self.pose.heading):
                self._inferred[kind].remove(point)
                self.known[kind].remove(point)
                self.version += 1
                self._reopen()

    def _reopen(self) -> None:
        """Restore what was cleared because of inferred obstacles, and clear it again for those that are left."""
        self.possible[:] = self._sound
        for kind, inferred in enumerate(self._inferred):
            for point in inferred:
                self._clear_around(kind, point, sound=False)
        for kind, known in enumerate(self.known):
            if len(known) >= KINDS[kind].count:
                self._flat[kind] = False

    def _clear_around(self, kind: int, point: tuple[float, float], *, sound: bool) -> None:
        for other_kind in range(2):
            self._clear_disc(other_kind, point, KINDS[kind].keepout + KINDS[other_kind].keepout, sound=sound)

    def _clear_disc(self, kind: int, middle: tuple[float, float], radius: float, *, sound: bool = True) -> None:
        """Clear the cells of which every point is nearer than `radius`, for good if the reason is sound."""
        # A little less, for the drift of the pose.
        where, inside = cells_within(middle, radius - _MARGIN)
        self.possible[kind][where] &= ~inside
        if sound:
            self._sound[kind][where] &= ~inside

    @property
    def spread(self) -> tuple[list[float], list[float]]:
        """Uncertainty (metres) of each known obstacle's place: none, because sightings are exact."""
        return [0.0] * len(self.known[0]), [0.0] * len(self.known[1])

    @property
    def search_target(self) -> tuple[float, float]:
        """Where to drive while the goal is out of sight: the middle of where it can still be."""
        return self._search.target

    @property
    def passed_close(self) -> NDArray[np.bool_]:
        """Cells that the robot has been close to. If such a cell is still possible, it probably holds an obstacle."""
        return self._close.reshape(SIDE, SIDE)

    @property
    def bounds(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Least and greatest coordinates, by axis, that any part of the arena can have."""
        low, high = self._low, self._high
        return (low[0] - ARENA, high[0] + ARENA), (low[1] - ARENA, high[1] + ARENA)

    def _bound_by_arcs(self, kind: int, readings: NDArray[np.float64]) -> None:
        """Bound the arena by the arcs that each hold an object."""
        keepout = KINDS[kind].keepout
        for distance, first, last in arcs(readings):
            ends = [self._point(distance, first + share * (last - first)) for share in (0.0, 0.5, 1.0)]
            # How far an arc bulges beyond the chord of its ends. The middle alone would miss it between the three
            # points.
            sagitta = distance * (last - first) ** 2 / 8.0
            for axis in range(2):
                low = min(end[axis] for end in ends) - sagitta
                high = max(end[axis] for end in ends) + sagitta
                self._narrow(axis, low, high, keepout)

    def _narrow(self, axis: int, low: float, high: float, keepout: float) -> None:
        self._low[axis] = max(self._low[axis], low - (ARENA - keepout) - _MARGIN)
        self._high[axis] = min(self._high[axis], high + (ARENA - keepout) + _MARGIN)

    def _bound_arena(self, point: tuple[float, float], keepout: float) -> None:
        """Narrow where the arena's middle can be, and clear the cells outside every arena that is left."""
        for axis in range(2):
            self._narrow(axis, point[axis], point[axis], keepout)
            for kind, about in enumerate(KINDS):
                reach = ARENA - about.keepout + _MARGIN
                for layers in (self.possible, self._sound):
                    clear_outside(layers[kind], axis, self._low[axis] - reach, self._high[axis] + reach)

    def _carve(self, readings: NDArray[np.float64]) -> None:
        """Clear what the readings contradict: near cells each time, far cells less often, as they change slowly."""
        horizon = RANGE - _REACH if self._carves % _FULL_CARVE == 0 else _NEAR
        self._carves += 1
        cells = self._cells
        dx, dy = self._all_x[cells] - self.pose.x, self._all_y[cells] - self.pose.y
        distance = np.sqrt(dx * dx + dy * dy)
        near = np.flatnonzero(distance < horizon)
        bearing = np.arctan2(dy[near], dx[near]) - self.pose.heading
        bearing -= 2.0 * math.pi * np.floor(bearing / (2.0 * math.pi))
        inside = cells[near]
        left = ~is_excluded(readings, distance[near], bearing, _REACH)
        self._flat[:, inside] &= left
        self._sound_flat[:, inside] &= left
        self._close[inside[distance[near] < _CLOSE]] = True
        # A cell that is cleared for good for both kinds is never looked at again.
        self._cells = cells[self._sound_flat[0, cells] | self._sound_flat[1, cells]]


def cells_within(middle: tuple[float, float], radius: float) -> tuple[tuple[slice, slice], NDArray[np.bool_]]:
    """Return a part of the grid around a point, and which of its cells are nearer than `radius` with every corner."""
    low = [max(0, int((value - radius + HALF_WIDTH) / CELL)) for value in middle]
    high = [max(0, int((value + radius + HALF_WIDTH) / CELL) + 1) for value in middle]
    x = (np.arange(low[0], min(high[0], SIDE)) + 0.5) * CELL - HALF_WIDTH - middle[0]
    y = (np.arange(low[1], min(high[1], SIDE)) + 0.5) * CELL - HALF_WIDTH - middle[1]
    # From the middle of a cell to its farthest corner.
    reach = max(radius - _REACH, 0.0)
    return (slice(low[0], high[0]), slice(low[1], high[1])), x[:, None] ** 2 + y[None, :] ** 2 < reach * reach


def clear_outside(layer: NDArray[np.bool_], axis: int, low: float, high: float) -> None:
    """Clear the cells of a grid that are below `low` or above `high` along an axis."""
    along = layer if axis == 0 else layer.T
    along[: max(0, math.floor((low + HALF_WIDTH) / CELL))] = False
    along[max(0, math.ceil((high + HALF_WIDTH) / CELL)) :] = False
