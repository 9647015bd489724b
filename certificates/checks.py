"""Argument checks for all packages. Each negates the condition that it accepts, so that NaN is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "count",
    "counts",
    "delta",
    "doubles",
    "finite",
    "nonnegative",
    "open_unit",
    "positive",
    "probability",
    "real",
    "tally",
]


def real(name: str, value: object) -> float:
    """Return `value` as a float that may be infinite but not NaN. Refuse bools, strings, arrays and None."""
    # In Python a bool is an int, so True would pass for 1.
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (Real, np.floating, np.integer)):
        raise TypeError(f"`{name}` must be a real number, got {value!r} of type {type(value).__name__}.")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"`{name}` must be within the range of a double, got a larger number.") from None
    if math.isnan(number):
        raise ValueError(f"`{name}` must be a number, got nan. Check the computation that produced it.")
    # A large int or a Fraction would be rounded, and the certificate would be about another number.
    if math.isfinite(number) and number != value:
        raise ValueError(f"`{name}` must be exactly representable as a double, got {value!r}. Pass a float.")
    return number


def finite(name: str, value: object) -> float:
    """Return `value` as a finite float."""
    number = real(name, value)
    if not math.isfinite(number):
        raise ValueError(f"`{name}` must be finite, got {number}.")
    return number


def positive(name: str, value: object) -> float:
    """Return `value` as a finite float above zero."""
    number = finite(name, value)
    if not number > 0.0:
        raise ValueError(f"`{name}` must be positive, got {number}.")
    return number


def nonnegative(name: str, value: object) -> float:
    """Return `value` as a finite float that is at least zero."""
    number = finite(name, value)
    if not number >= 0.0:
        raise ValueError(f"`{name}` must be at least 0, got {number}.")
    return number


def probability(name: str, value: object) -> float:
    """Return `value` as a float in [0, 1]."""
    number = real(name, value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"`{name}` must be a probability in [0, 1], got {number}.{_as_share(number)}")
    return number


def open_unit(name: str, value: object) -> float:
    """Return `value` as a float in (0, 1)."""
    number = real(name, value)
    if not 0.0 < number < 1.0:
        raise ValueError(f"`{name}` must be in (0, 1), got {number}.{_as_share(number)}")
    return number


def _as_share(number: float) -> str:
    """Return what to write for a number that is meant in percent, empty if it cannot be."""
    return f" Write {number / 100.0:g} for {number:g}%." if 2.0 <= number < 100.0 else ""


def delta(value: object) -> float:
    """Return a failure probability in (0, 1)."""
    number = real("delta", value)
    if not 0.0 < number < 1.0:
        raise ValueError(
            f"`delta` must be in (0, 1), got {number}. It is the failure probability: 0.001 for 99.9% confidence."
        )
    return number


def count(name: str, value: object, *, minimum: int = 0) -> int:
    """Return `value` as an int of at least `minimum`. Refuse bools, arrays, tensors and floats, whole ones too."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"`{name}` must be an integer, got {value!r} of type {type(value).__name__}.")
    number = int(value)
    if not number >= minimum:
        raise ValueError(f"`{name}` must be at least {minimum}, got {number}.")
    return number


def tally(successes: object, trials: object) -> tuple[int, int]:
    """Return (successes, trials) with 0 <= successes <= trials and trials >= 1."""
    total = count("trials", trials, minimum=1)
    hits = count("successes", successes)
    if not hits <= total:
        raise ValueError(f"`successes` must be at most `trials`, got {hits} of {total}.")
    return hits, total


def counts(name: str, values: Sequence[int] | NDArray[np.int64], *, minimum_length: int = 2) -> tuple[int, ...]:
    """Return label counts as a tuple of nonnegative ints with at least `minimum_length` labels.

    A mapping from label to count is refused, because its iteration would give the labels.
    """
    is_sequence = isinstance(values, (Sequence, np.ndarray)) and not isinstance(values, (str, bytes, bytearray))
    if not is_sequence:
        raise TypeError(f"`{name}` must be a sequence of integers, got {values!r} of type {type(values).__name__}.")
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise ValueError(f"`{name}` must have one dimension, got shape {values.shape}.")
    if not len(values) >= minimum_length:
        raise ValueError(f"`{name}` must hold at least {minimum_length} labels, got {len(values)}.")
    return tuple(count(f"{name}[{i}]", value) for i, value in enumerate(values))


def doubles(name: str, values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return finite numbers as an array of doubles with one dimension. Refuse bools, strings and other kinds."""
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, (Sequence, np.ndarray)):
        raise TypeError(f"`{name}` must be a sequence of numbers, got {values!r} of type {type(values).__name__}.")
    if not isinstance(values, np.ndarray):
        return np.array([finite(f"{name}[{i}]", value) for i, value in enumerate(values)], dtype=np.float64)
    # A long double would be rounded, and a bool is no measurement.
    if values.dtype.kind not in "fiu" or values.dtype.itemsize > 8:
        raise TypeError(f"`{name}` must be an array of doubles, got {values.dtype}.")
    if values.ndim != 1:
        raise ValueError(f"`{name}` must have one dimension, got shape {values.shape}.")
    table = values.astype(np.float64)
    if not np.isfinite(table).all():
        raise ValueError(f"`{name}` must be finite, got nan or infinity. Check the computation that produced it.")
    if not (table == values).all():
        raise ValueError(f"`{name}` must be exactly representable as doubles. Pass floats.")
    return table
