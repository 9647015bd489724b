"""Numbers as a report prints them: lower bounds rounded down, upper bounds rounded up, exact ones in full."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from ccfs.certificates import checks
from ccfs.certificates.bounds import Bound

__all__ = ["exact_text", "interval", "lower_text", "rate_text", "upper_text"]

# Wide enough for every double written out with a few decimals.
_WIDE = Context(prec=400)


def lower_text(value: float, decimals: int = 4) -> str:
    """Return `value` with `decimals` decimals, never above it.

    >>> lower_text(0.96666), lower_text(1.0), lower_text(float("inf"))
    ('0.9666', '1.0000', '∞')
    """
    return _text(value, decimals, ROUND_FLOOR)


def upper_text(value: float, decimals: int = 4) -> str:
    """Return `value` with `decimals` decimals, never below it.

    >>> upper_text(0.96661), upper_text(0.5)
    ('0.9667', '0.5000')
    """
    return _text(value, decimals, ROUND_CEILING)


def exact_text(value: float) -> str:
    """Return the shortest decimal that reads back as the same double.

    >>> exact_text(0.001)
    '0.001'
    """
    return repr(float(value)).removesuffix(".0")


def rate_text(successes: int, trials: int) -> str:
    """Return an observed rate, which bounds nothing: four decimals to nearest.

    >>> rate_text(2, 3)
    '0.6667'
    """
    return f"{successes / trials:.4f}" if trials else "–"


def interval(successes: int, trials: int, bound: Bound, *, delta: float) -> tuple[float, float]:
    """Return a two-sided interval for an observed rate that fails with probability at most `delta`, rounded outwards.

    Both ends use the premise of `bound`: Clopper and Pearson's where trials are alike, the cohort's where they are not
    (for the Hoeffding rule too, which has the same premise), the anytime one where the run chose when to stop.

    >>> low, high = interval(5, 10, Bound.CLOPPER_PEARSON, delta=0.05)
    >>> lower_text(low), upper_text(high)
    ('0.1870', '0.8130')
    """
    hits, total = checks.tally(successes, trials)
    share = checks.delta(delta) / 2.0
    rule = Bound.COHORT if bound is Bound.HOEFFDING else bound
    low, missed = rule.lower(hits, total, delta=share), rule.lower(total - hits, total, delta=share)
    return low, 1.0 if missed == 0.0 else min(math.nextafter(1.0 - missed, math.inf), 1.0)


def _text(value: float, decimals: int, rounding: str) -> str:
    if math.isnan(value):
        raise ValueError("`value` must be a number, got nan. A bound that is not a number bounds nothing.")
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    unit = Decimal(1).scaleb(-decimals)
    rounded = Decimal(value).quantize(unit, rounding=rounding, context=_WIDE)
    return str(rounded if rounded else abs(rounded))  # a zero has no sign
