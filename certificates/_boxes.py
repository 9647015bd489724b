"""Checks of boxes, centers and labels, and exact facts about unions of boxes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["checked_boxes", "checked_center", "checked_labels", "is_one_box", "real_array"]

Array = NDArray[np.float64]


def real_array(name: str, value: ArrayLike) -> Array:
    """Return `value` as a new float64 array without NaN. Refuse bools, strings, objects and complex numbers."""
    array = np.asarray(value)
    # A longdouble would be rounded, and the answer would be about another set.
    if array.dtype.kind not in "iuf" or (array.dtype.itemsize > 8 and array.dtype.kind == "f"):
        raise TypeError(f"`{name}` must be an array of real doubles, got dtype {array.dtype}.")
    result = array.astype(np.float64)
    if np.any(np.isnan(result)):
        raise ValueError(f"`{name}` must not contain nan, got {result}. Check the computation that produced it.")
    return result


def checked_boxes(lows: ArrayLike, highs: ArrayLike) -> tuple[Array, Array]:
    """Return read-only bounds of shape [boxes, dim] with low < high everywhere and disjoint interiors."""
    low, high = real_array("lows", lows), real_array("highs", highs)
    if not (low.ndim == 2 and low.shape == high.shape and low.size > 0):
        raise ValueError(
            f"`lows` and `highs` must have one shape [boxes, dim] with at least one of each, got {low.shape} and "
            f"{high.shape}. Write a single box as [[...]]."
        )
    if not np.all(low < high):
        box, axis = np.argwhere(~(low < high))[0]
        raise ValueError(
            f"`lows` must be below `highs`, got {low[box, axis]} and {high[box, axis]} for box {box}, axis {axis}."
        )
    for first in range(len(low) - 1):
        rest = slice(first + 1, None)
        # Boxes may share a face, which has no mass.
        shared = np.minimum(high[first], high[rest]) - np.maximum(low[first], low[rest]) > 0.0
        hit = np.flatnonzero(shared.all(axis=1))
        if hit.size:
            raise ValueError(
                f"boxes must have disjoint interiors, but boxes {first} and {first + 1 + hit[0]} overlap. "
                "Cut one of them at the other's faces."
            )
    low.setflags(write=False)
    high.setflags(write=False)
    return low, high


def checked_center(name: str, value: ArrayLike, dim: int) -> Array:
    """Return finite centers of shape [..., dim]."""
    center = real_array(name, value)
    if not (center.ndim >= 1 and center.shape[-1] == dim):
        raise ValueError(f"`{name}` must have shape [..., {dim}], got {center.shape}.")
    if not np.all(np.isfinite(center)):
        raise ValueError(f"`{name}` must be finite, got {center}.")
    return center


def checked_labels(labels: Sequence[int] | NDArray[np.int64], boxes: int) -> NDArray[np.int64]:
    """Return one nonnegative label per box."""
    array = np.asarray(labels)
    if array.dtype.kind not in "iu":
        raise TypeError(f"`labels` must be integers, got dtype {array.dtype}.")
    if not array.shape == (boxes,):
        raise ValueError(f"`labels` must hold one label for each of the {boxes} boxes, got shape {array.shape}.")
    if not np.all(array >= 0):
        raise ValueError(f"`labels` must be at least 0, got {array.min()}.")
    return array.astype(np.int64)


def is_one_box(lows: Array, highs: Array) -> bool:
    """Return whether disjoint boxes tile one box. For a finite union of boxes this is the same as being convex.

    Every coordinate is replaced by its rank among the ends of that axis. This keeps the tiling and makes all volumes
    integers. So their comparison is exact, also with infinite sides.
    """
    total = [0] * len(lows)
    hull = 1
    ranks = []
    for axis in range(lows.shape[1]):
        ends = np.unique(np.concatenate([lows[:, axis], highs[:, axis]]))
        ranks.append(np.searchsorted(ends, highs[:, axis]) - np.searchsorted(ends, lows[:, axis]))
        hull *= len(ends) - 1
    for box in range(len(lows)):
        total[box] = 1
        for sides in ranks:
            total[box] *= int(sides[box])
    return sum(total) == hull
