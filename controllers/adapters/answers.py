"""What every adapter checks of an observation before, and of an answer after, the policy has run."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["GRID", "answered", "on_grid", "single_precision"]

GRID: Final = 2.0**-22
"""Centers are multiples of this: matrix libraries differ in the last bits, a certificate's replay must not."""


def single_precision(observation: ArrayLike, size: int | None = None) -> NDArray[np.float32]:
    """Return the observation as a finite float32 vector, of length `size` if that is known."""
    x = np.asarray(observation, dtype=np.float32)
    if not (x.ndim == 1 and size in (None, x.shape[0])):
        raise ValueError(f"`observation` must have shape ({'n' if size is None else size},), got {x.shape}.")
    if not bool(np.isfinite(x).all()):
        raise ValueError("`observation` must be finite in single precision, got a NaN or an infinity.")
    return x


def answered(name: str, answer: ArrayLike) -> NDArray[np.float64]:
    """Return an answer as a float64 vector of its own; NaN, infinities, other shapes and kinds are refused."""
    given = np.asarray(answer)
    if given.dtype.kind not in "biuf":
        raise TypeError(f"`{name}` must return real numbers, got {type(answer).__name__} of {given.dtype}.")
    if not (given.ndim == 1 and given.size > 0):
        raise ValueError(f"`{name}` must return a vector, got shape {given.shape}.")
    vector = np.array(given, dtype=np.float64)
    if not bool(np.isfinite(vector).all()):
        raise ValueError(f"`{name}` must return finite numbers, got {vector}.")
    return vector


def on_grid(name: str, answer: ArrayLike) -> NDArray[np.float64]:
    """Return a checked answer, rounded to multiples of `GRID`."""
    return np.asarray(np.rint(answered(name, answer) / GRID) * GRID, dtype=np.float64)
