"""How far points of a path are from touching anything that is on the map or may be there."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.navigator.fields import capped_distance
from ccfs.controllers.navigator.lidar_map import CELL, HALF_WIDTH, SIDE
from ccfs.controllers.navigator.noisy_map import AnyMap
from ccfs.controllers.navigator.robot import ARROW_AHEAD

__all__ = ["ARROW_RADIUS", "HAZARD_RADIUS", "VASE_RADIUS", "Surroundings"]

HAZARD_RADIUS: Final = 0.20
"""A hazard costs when the robot's origin is this near to its centre."""
VASE_RADIUS: Final = 0.2414
"""The body can touch a vase from this distance, whatever the rotation of the vase."""
ARROW_RADIUS: Final = 0.2121
"""The middle of the robot's arrow can touch a vase from this distance."""
_REACH: Final = 12
_WINDOW: Final = 25
_SIGHT: Final = 1.4


class Surroundings:
    """A local copy of the map around the robot, for fast clearance queries. Refresh it every few steps."""

    def __init__(self) -> None:
        self._hazard = self._vase = np.zeros((1, 1))
        self._corner = (0, 0)

    def refresh(self, drawn: AnyMap) -> None:
        """Recompute the distance fields of the possible obstacles in a window around the robot."""
        pose = drawn.pose
        i, j = (int((value + HALF_WIDTH) / CELL) for value in (pose.x, pose.y))
        self._corner = tuple(min(max(index - _WINDOW, 0), SIDE - 1) for index in (i, j))  # type: ignore[assignment]
        rows = slice(self._corner[0], max(i + _WINDOW, 1))
        columns = slice(self._corner[1], max(j + _WINDOW, 1))
        self._hazard = CELL * capped_distance(drawn.possible[0, rows, columns], _REACH)
        self._vase = CELL * capped_distance(drawn.possible[1, rows, columns], _REACH)

    def clearance(
        self,
        drawn: AnyMap,
        x: NDArray[np.float64],
        y: NDArray[np.float64],
        cos: NDArray[np.float64],
        sin: NDArray[np.float64],
        pad: float,
    ) -> NDArray[np.float64]:
        """Return the clearance (metres, negative inside) of poses given in the map's frame.

        Args:
            drawn: the map.
            x: x of the robot's origin.
            y: y of the robot's origin.
            cos: cosine of the heading.
            sin: sine of the heading.
            pad: metres taken off the distance to possible obstacles, because their cells are not points.
        """
        arrow_x, arrow_y = x + ARROW_AHEAD * cos, y + ARROW_AHEAD * sin
        clearance = self._lookup(self._hazard, x, y) - (HAZARD_RADIUS + pad)
        np.minimum(clearance, self._lookup(self._vase, x, y) - (VASE_RADIUS + pad), out=clearance)
        np.minimum(clearance, self._lookup(self._vase, arrow_x, arrow_y) - (ARROW_RADIUS + pad), out=clearance)
        np.minimum(clearance, _nearest(drawn, 0, x, y) - HAZARD_RADIUS, out=clearance)
        np.minimum(clearance, _nearest(drawn, 1, x, y) - VASE_RADIUS, out=clearance)
        np.minimum(clearance, _nearest(drawn, 1, arrow_x, arrow_y) - ARROW_RADIUS, out=clearance)
        return clearance

    def _lookup(
        self, field: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        i = ((x + (HALF_WIDTH - CELL * self._corner[0])) / CELL).astype(np.intp)
        j = ((y + (HALF_WIDTH - CELL * self._corner[1])) / CELL).astype(np.intp)
        # Outside of the window the edge of the field stands for what is there.
        np.clip(i, 0, field.shape[0] - 1, out=i)
        np.clip(j, 0, field.shape[1] - 1, out=j)
        return np.asarray(field[i, j])


def _nearest(drawn: AnyMap, kind: int, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distance to where the nearest known obstacle of a kind may be. Those far from here are left out."""
    pose = drawn.pose
    # An obstacle farther than one metre does not matter to a stopping path.
    best = np.full(x.shape, 1.0)
    for (other_x, other_y), spread in zip(drawn.known[kind], drawn.spread[kind], strict=True):
        if (other_x - pose.x) ** 2 + (other_y - pose.y) ** 2 < _SIGHT**2:
            dx, dy = x - other_x, y - other_y
            np.minimum(best, np.sqrt(dx * dx + dy * dy) - spread, out=best)
    return best
