"""Round observations to a declared grid, so that their last bits do not depend on the processor."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Grid"]

_GREATEST_EXPONENT = 60


@lru_cache  # because `finfo` takes longer than the rounding
def _exact_below(dtype: np.dtype[Any]) -> float:
    """Return the number below which a kind of float holds every integer."""
    return float(2.0 ** (np.finfo(dtype).nmant + 1))


class Grid:
    """The multiples of `resolution`, a power of two from 2**-60 to 2**60. None leaves every value as it is.

    Vector instructions of different processors give observations that differ in their last bits. Two such values
    almost always round to the same multiple. They do not only if a tie (half of `resolution`) is between them.

    >>> Grid(0.25)(np.array([0.3, 0.375, -1e-9]))
    array([0.25, 0.5 , 0.  ])
    """

    def __init__(self, resolution: float | None) -> None:
        self.resolution = resolution
        if resolution is None:
            return
        is_number = isinstance(resolution, (int, float)) and not isinstance(resolution, bool)
        is_power = is_number and 0.0 < resolution < math.inf and math.frexp(resolution)[0] == 0.5
        if not (is_power and 2.0**-_GREATEST_EXPONENT <= resolution <= 2.0**_GREATEST_EXPONENT):
            raise ValueError(
                f"`resolution` must be a power of two from 2**-60 to 2**60, such as 2.0**-20, got {resolution!r}."
            )

    def __call__(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the nearest multiples, ties to even, as a new array of the same dtype and shape.

        Integers and booleans are exact already and are returned as they are. So are NaN, infinities and numbers so
        large that the dtype itself is coarser than the grid. Zero is always positive, because its
        sign is such a last bit.
        """
        array = np.array(values)
        if self.resolution is None or array.dtype.kind != "f":
            return array
        # Multiples below this are exact in the dtype. So are all products here, which only change the exponent.
        limit = self.resolution * _exact_below(array.dtype)
        wide = array.astype(np.float64) if array.dtype.itemsize < 8 else array
        inside = np.abs(wide) < limit
        if not inside.all():
            wide = np.where(inside, wide, 0.0)
        rounded = np.rint(wide / self.resolution)
        rounded *= self.resolution
        rounded += 0.0  # minus zero becomes zero
        np.copyto(array, rounded, where=inside, casting="same_kind")
        return array
