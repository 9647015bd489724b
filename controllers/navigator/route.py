"""The coarse route: time to the goal from everywhere, slow beside known obstacles and through unseen places."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.navigator.fields import arrival_time, capped_distance
from ccfs.controllers.navigator.lidar_map import CELL, HALF_WIDTH, SIDE, LidarMap
from ccfs.controllers.navigator.robot import STEP
from ccfs.controllers.navigator.settings import NavigatorSettings

__all__ = ["GOAL_RADIUS", "Route"]

ROUTE_CELL: Final = 2 * CELL
_SIDE: Final = SIDE // 2
_SWEEPS: Final = 250
_MORE_SWEEPS: Final = 24
_REACH: Final = 5
_HAZARD: Final = 0.20
_VASE: Final = 0.26
_UNSEEN: Final = 0.24
_DEAREST: Final = 60.0
GOAL_RADIUS: Final = 0.3


class Route:
    """The field of arrival times (steps) and the directions down it, remade from a map."""

    def __init__(self, settings: NavigatorSettings, sigma: float) -> None:
        self._settings = settings
        self._scale = settings.risk_scale + settings.risk_scale_noise * sigma
        axis = (np.arange(_SIDE) + 0.5) * ROUTE_CELL - HALF_WIDTH
        self._x, self._y = axis[:, None], axis[None, :]
        self.time: NDArray[np.float64] = np.zeros((_SIDE, _SIDE))
        self.down_x = np.zeros((_SIDE, _SIDE))
        self.down_y = np.zeros((_SIDE, _SIDE))

    def plan(self, drawn: LidarMap, *, fresh: bool) -> None:
        """Remake the field: to the goal where it is known, else towards where it may be.

        Args:
            drawn: the map.
            fresh: forget the last field; else follow the map's changes from it.
        """
        middle, radius = (drawn.goal, GOAL_RADIUS) if drawn.goal else (drawn.search_target, 0.3)
        target = (self._x - middle[0]) ** 2 + (self._y - middle[1]) ** 2 < (radius - 0.05) ** 2
        if fresh:
            self.time = arrival_time(self._slowness(drawn), target, _SWEEPS)
        else:
            self.time = arrival_time(self._slowness(drawn), target, _MORE_SWEEPS, self.time)
        gradient_x, gradient_y = np.gradient(self.time)
        length = np.sqrt(gradient_x**2 + gradient_y**2) + 1e-9
        self.down_x, self.down_y = -gradient_x / length, -gradient_y / length

    def _slowness(self, drawn: LidarMap) -> NDArray[np.float64]:
        """Time a cell: cruising, dearer by the risk that rollouts would see there, and by doubt."""
        settings = self._settings
        clearance = np.full((_SIDE, _SIDE), _REACH * ROUTE_CELL)
        for known, radius in zip(drawn.known, (_HAZARD, _VASE), strict=True):
            for x, y in known:
                distance = np.sqrt((self._x - x) ** 2 + (self._y - y) ** 2)
                np.minimum(clearance, distance - radius, out=clearance)
        unseen = drawn.possible[0] | drawn.possible[1]
        coarse = unseen.reshape(_SIDE, 2, _SIDE, 2).any(axis=(1, 3))
        unsure = capped_distance(coarse, _REACH) * ROUTE_CELL - _UNSEEN
        price = self._price(clearance) + settings.doubt * self._price(np.maximum(unsure, 0.0))
        return np.asarray(ROUTE_CELL / (STEP * settings.cruise_speed) * (1.0 + np.minimum(price, _DEAREST)))

    def _price(self, clearance: NDArray[np.float64]) -> NDArray[np.float64]:
        settings = self._settings
        price = settings.route_risk * np.exp(-np.maximum(clearance, 0.0) / self._scale)
        return np.asarray(price + 200.0 * np.maximum(-clearance, 0.0))

    def time_at(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the arrival time at points, interpolated between cell middles."""
        u = np.clip((x + HALF_WIDTH) / ROUTE_CELL - 0.5, 0.0, _SIDE - 1.001)
        v = np.clip((y + HALF_WIDTH) / ROUTE_CELL - 0.5, 0.0, _SIDE - 1.001)
        i, j = u.astype(np.intp), v.astype(np.intp)
        u, v = u - i, v - j
        time = self.time
        low = time[i, j] * (1.0 - v) + time[i, j + 1] * v
        high = time[i + 1, j] * (1.0 - v) + time[i + 1, j + 1] * v
        return np.asarray(low * (1.0 - u) + high * u)

    def down_at(
        self, x: NDArray[np.float64], y: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the unit direction of the fastest way at points."""
        i = np.clip(((x + HALF_WIDTH) / ROUTE_CELL).astype(np.intp), 0, _SIDE - 1)
        j = np.clip(((y + HALF_WIDTH) / ROUTE_CELL).astype(np.intp), 0, _SIDE - 1)
        return self.down_x[i, j], self.down_y[i, j]
