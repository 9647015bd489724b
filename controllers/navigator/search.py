"""Where a goal that is out of sight can still be."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

__all__ = ["ARENA", "GOAL_KEEPOUT", "HALF_WIDTH", "GoalSearch"]

HALF_WIDTH: Final = 3.6
"""The map reaches this far from the start in each direction. No object of the task is farther away."""
ARENA: Final = 2.0
"""Half the side of the square in which the task places everything. Each thing keeps its keepout from the edge."""
GOAL_KEEPOUT: Final = 0.305
_CELL: Final = 0.1
_THERE: Final = 0.8
"""Distance (metres) of the middle below which the robot is as good as there, and has not seen the goal."""
_AXIS: Final = (np.arange(round(2 * HALF_WIDTH / _CELL)) + 0.5) * _CELL - HALF_WIDTH


class GoalSearch:
    """Cells that may hold a goal that has not been seen, and the place to drive to meanwhile."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the search, because a new trial begins."""
        self.target = (0.0, 0.0)
        """The middle of where the goal can still be."""
        self.begin()

    def begin(self) -> None:
        """Count every cell as possible again, because the goal has moved."""
        self._hopeful = np.ones((len(_AXIS), len(_AXIS)), dtype=np.bool_)

    def look(self, x: float, y: float, sight: float, low: list[float], high: list[float]) -> None:
        """Remove the places where the goal would have been seen from here, and aim at the middle of the rest.

        Args:
            x: x of the robot.
            y: y of the robot.
            sight: distance up to which a goal is always seen.
            low: least coordinates that the arena's middle can have.
            high: its greatest coordinates.
        """
        across, along = _AXIS[:, None], _AXIS[None, :]
        hopeful = self._hopeful
        hopeful &= (across - x) ** 2 + (along - y) ** 2 > (sight - _CELL) ** 2
        for index, axis in enumerate((across, along)):
            hopeful &= (axis > low[index] - (ARENA - GOAL_KEEPOUT) - _CELL) & (
                axis < high[index] + (ARENA - GOAL_KEEPOUT) + _CELL
            )
        if hopeful.any():
            self.target = self._aim(x, y)

    def _aim(self, x: float, y: float) -> tuple[float, float]:
        i, j = np.nonzero(self._hopeful)
        places_x, places_y = _AXIS[i], _AXIS[j]
        middle = (float(places_x.mean()), float(places_y.mean()))
        if math.dist(middle, (x, y)) > _THERE:
            return middle
        # Between two places where the goal may be, the robot would stay for ever. So it looks at the nearer one.
        nearest = int(((places_x - x) ** 2 + (places_y - y) ** 2).argmin())
        return float(places_x[nearest]), float(places_y[nearest])
