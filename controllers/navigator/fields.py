"""Two fields on square grids: how far the nearest marked cell is, and how long the way to a target takes."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["FAR", "arrival_time", "capped_distance"]

FAR: Final = 1e5
"""The arrival time of a cell that no sweep has reached."""
_SETTLED: Final = 1e-2


def capped_distance(marked: NDArray[np.bool_], reach: int) -> NDArray[np.float64]:
    """Return each cell's distance, in cells, to the nearest marked one, or `reach` + 1 if none is within `reach`.

    Distances between cell middles are Euclidean and exact. Squares are minimised along one axis, then the other.
    """
    # Squares, because those of the two axes add up.
    far = float((reach + 1) ** 2)
    squares = np.where(marked, np.float32(0.0), np.float32(far))
    for axis in range(2):
        squares = _spread(squares.T if axis else squares, reach)
        squares = squares.T if axis else squares
    return np.asarray(np.sqrt(np.minimum(squares, far), dtype=np.float64))


def _spread(squares: NDArray[np.float32], reach: int) -> NDArray[np.float32]:
    result = squares.copy()
    for offset in range(1, reach + 1):
        moved = squares + np.float32(offset * offset)
        np.minimum(result[offset:], moved[:-offset], out=result[offset:])
        np.minimum(result[:-offset], moved[offset:], out=result[:-offset])
    return result


def arrival_time(
    slowness: NDArray[np.float64], target: NDArray[np.bool_], sweeps: int, start: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the time to reach the target at the local slowness (time per cell): the eikonal equation, upwind.

    Each sweep recomputes every cell from its neighbours, so a `start` from an older map is corrected in both
    directions. After a small change of the map, a few sweeps are enough.

    Args:
        slowness: positive, one value per cell.
        target: cells where the time is zero.
        sweeps: greatest number of passes over the grid. They stop early when nothing changes any more.
        start: an earlier field to begin with, or None.
    """
    # Single precision and reused arrays, because this loop takes a large share of the controller's time.
    slow = slowness.astype(np.float32)
    padded = np.full((slow.shape[0] + 2, slow.shape[1] + 2), FAR, dtype=np.float32)
    time = padded[1:-1, 1:-1]
    if start is not None:
        time[:] = start
    double = 2.0 * slow * slow
    open_cells = np.where(target, np.float32(0.0), np.float32(1.0))
    time *= open_cells
    across, along, gap, only = np.empty_like(slow), np.empty_like(slow), np.empty_like(slow), np.empty_like(target)
    for sweep in range(sweeps):
        np.minimum(padded[:-2, 1:-1], padded[2:, 1:-1], out=across)
        np.minimum(padded[1:-1, :-2], padded[1:-1, 2:], out=along)
        np.subtract(across, along, out=gap)
        np.abs(gap, out=gap)
        np.minimum(across, along, out=across)
        # A gap above the slowness means that only the nearer neighbour is upwind.
        np.greater_equal(gap, slow, out=only)
        np.multiply(gap, gap, out=along)
        np.subtract(double, along, out=along)
        np.maximum(along, 0.0, out=along)
        np.sqrt(along, out=along)
        along += gap
        along *= 0.5
        np.copyto(along, slow, where=only)
        along += across
        along *= open_cells
        # Asked now and then, because the comparison takes as long as a part of a sweep.
        if sweep % 8 == 7 and not (np.abs(along - time) > _SETTLED).any():
            break
        time[:] = along
    return time.astype(np.float64)
