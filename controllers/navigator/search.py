"""Where a goal that is out of sight can still be."""

from __future__ import annotations

from typing import Final

import numpy as np

__all__ = ["ARENA", "GOAL_KEEPOUT", "HALF_WIDTH", "GoalSearch"]

HALF_WIDTH: Final = 3.6
"""The map reaches this far from the start in each direction. No object of the task is farther away."""
ARENA: Final = 2.0
"""Half the side of the square in which the task places everything. Each thing keeps its keepout from the edge."""
GOAL_KEEPOUT: Final = 0.305
_CELL: Final = 0.1
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
            i, j = np.nonzero(hopeful)
            self.target = (float(_AXIS[i].mean()), float(_AXIS[j].mean()))
