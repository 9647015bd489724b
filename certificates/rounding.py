"""Rounding to the safe side: an exact number as the next double, or as decimals, below or above it.

`ccfs.certificates.validated` rounds the balls of Arb.
"""

from __future__ import annotations

import math
from fractions import Fraction

from ccfs.certificates._interval import Interval

__all__ = ["exact_text", "fraction_lower", "fraction_upper", "lower_text", "upper_text"]


def fraction_upper(value: Fraction) -> float:
    """Return the least double that is at least `value`."""
    try:
        nearest = float(value)
    except OverflowError:
        # Above every double there is only infinity. Below every double, the least double is an upper bound.
        return math.inf if value > 0 else -math.nextafter(math.inf, 0.0)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def fraction_lower(value: Fraction) -> float:
    """Return the greatest double that is at most `value`."""
    return -fraction_upper(-value)  # negation of a double is exact


def lower_text(value: float | Fraction, decimals: int = 4) -> str:
    """Return `value` with `decimals` decimals, never above it.

    >>> lower_text(0.96666), lower_text(0.3), lower_text(1.0), lower_text(float("inf"))
    ('0.9666', '0.2999', '1.0000', '∞')
    """
    return _infinite(value) or Interval.of(Fraction(value)).decimals(decimals)[0]


def upper_text(value: float | Fraction, decimals: int = 4) -> str:
    """Return `value` with `decimals` decimals, never below it.

    >>> upper_text(0.96661), upper_text(0.2), upper_text(0.5)
    ('0.9667', '0.2001', '0.5000')
    """
    return _infinite(value) or Interval.of(Fraction(value)).decimals(decimals)[1]


def exact_text(value: float) -> str:
    """Return the shortest decimal that reads back as the same double.

    >>> exact_text(0.001)
    '0.001'
    """
    return repr(float(value)).removesuffix(".0")


def _infinite(value: float | Fraction) -> str | None:
    """Return the text of an infinity, None for a finite number. Refuse NaN."""
    if isinstance(value, Fraction) or math.isfinite(value):
        return None
    if math.isnan(value):
        raise ValueError("`value` must be a number, got nan. A bound that is not a number bounds nothing.")
    return "∞" if value > 0 else "-∞"
