"""Observed rates as a report prints them, and intervals around them."""

from __future__ import annotations

from fractions import Fraction

from ccfs.certificates import checks
from ccfs.certificates.bounds import Bound
from ccfs.certificates.rounding import fraction_upper

__all__ = ["interval", "rate_text"]


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
    >>> f"{low:.4f}, {high:.4f}"
    '0.1871, 0.8129'
    """
    hits, total = checks.tally(successes, trials)
    share = checks.delta(delta) / 2.0
    rule = Bound.COHORT if bound is Bound.HOEFFDING else bound
    low, missed = rule.lower(hits, total, delta=share), rule.lower(total - hits, total, delta=share)
    return low, fraction_upper(1 - Fraction(missed))
