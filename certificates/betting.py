"""Confidence bounds of the average mean of bounded trials that are independent and need not have the same law."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from flint import arb
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.validated import exact, log_product, log_sum, lower_float, precision, upper_float

__all__ = ["mean_lower", "mean_upper"]

Values = Sequence[float] | NDArray[np.float64]
_ROUNDINGS = 4  # of a factor 1 + bet * (value - lowest): three operations, and one for a product that underflows


def mean_lower(values: Values, *, delta: float, lowest: float = 0.0, highest: float = 1.0) -> float:
    """Return a lower confidence bound on the average of the means of bounded independent trials.

    Let x_1, ..., x_n be the trials, d_i = x_i - lowest, and D the average of the means of the d_i. For fixed bets
    g_1, ..., g_K > 0 with weights w_k that add up to 1, the bound is lowest + d, with the greatest d such that

        sum_k w_k prod_i (1 + g_k d_i) / (1 + g_k d)^n >= 1 / delta.

    Proof. The trials are independent, so prod_i (1 + g d_i) has the mean prod_i (1 + g E d_i). All factors are
    positive, and a product is greatest when its factors are equal to their average. So this mean is at most
    (1 + g D)^n, and the left side at d = D has a mean of at most 1. By Markov's inequality it reaches 1 / delta with
    probability at most delta. The left side falls when d grows, so D is below the bound only if that happens.

    The bets are the powers of two from about sqrt(8 log(1 / delta) / n) upwards, over the range, with slowly falling
    weights. They depend on n, delta and the range alone. The first is nearly the best one for trials that are either
    `lowest` or `highest`. The greater ones gain when the trials vary less or lie close to `lowest`.

    Assumes: independent trials whose number and whose range were fixed before sampling. They may have different laws:
    one draw at each member of a cohort qualifies, and so do draws from one law.

    Args:
        values: one number per trial.
        delta: failure probability, in (0, 1).
        lowest: least value that a trial can have.
        highest: greatest value that a trial can have.

    Returns:
        The bound, rounded down. It is `lowest` when nothing can be said.

    Raises:
        TypeError: an argument is not a number, or `values` is not a sequence of them.
        ValueError: there is no trial, a value is outside of the range, or an argument is out of range.

    >>> f"{mean_lower([1.0] * 211 + [0.0] * 45, delta=0.001 / 6):.3f}"
    '0.701'

    References:
        Waudby-Smith and Ramdas (2024), "Estimating means of bounded random variables by betting". They let the bets
        follow the data, which needs one common mean. Fixed bets do not.
    """
    table, low, high = _trials(values, lowest, highest)
    distance = _distance_lower(table - low, high - low, checks.delta(delta))
    with precision():
        return min(max(lower_float(exact(low) + exact(distance)), low), high)


def mean_upper(values: Values, *, delta: float, lowest: float = 0.0, highest: float = 1.0) -> float:
    """Return an upper confidence bound on the average of the means of bounded independent trials.

    It is the bound of `mean_lower` for the distances from `highest`, turned around.

    Assumes, Args, Raises: as `mean_lower`.

    Returns:
        The bound, rounded up. It is `highest` when nothing can be said.

    >>> f"{mean_upper([0.0] * 250 + [0.5] * 6, delta=0.001):.3f}"
    '0.047'
    """
    table, low, high = _trials(values, lowest, highest)
    distance = _distance_lower(high - table, high - low, checks.delta(delta))
    with precision():
        return max(min(upper_float(exact(high) - exact(distance)), high), low)


def _trials(values: Values, lowest: object, highest: object) -> tuple[NDArray[np.float64], float, float]:
    low, high = checks.finite("lowest", lowest), checks.finite("highest", highest)
    if not 1e-150 <= high - low <= 1e150:
        raise ValueError(f"`highest` must exceed `lowest` by 1e-150 to 1e150, got {low} and {high}.")
    table = checks.doubles("values", values)
    if not len(table):
        raise ValueError("`values` must hold at least one trial, got none.")
    outside = np.flatnonzero(~((table >= low) & (table <= high)))
    if len(outside):
        raise ValueError(
            f"`values` must be in [{low}, {high}], got {table[outside[0]]} at {outside[0]}. "
            "`lowest` and `highest` are what a trial can give at all, not what was seen."
        )
    return table, low, high


def _distance_lower(distances: NDArray[np.float64], reach: float, delta: float) -> float:
    """Return the greatest double d that `mean_lower` can prove for distances in [0, reach], each rounded once."""
    trials = len(distances)
    with precision():
        bets, log_weights = _bets(trials, reach, delta)
        products = [log_product(1.0 + distances * bet, roundings=_ROUNDINGS) for bet in bets]
        threshold = -exact(delta).log()

        def is_rejected(distance: float) -> bool:
            terms = [
                weight + product - trials * (exact(bet) * exact(distance)).log1p()
                for bet, weight, product in zip(bets, log_weights, products, strict=True)
            ]
            return bool(log_sum(terms) >= threshold)

        low, high = 0.0, reach
        if not is_rejected(low):
            return 0.0
        while low < (middle := 0.5 * (low + high)) < high:
            low, high = (middle, high) if is_rejected(middle) else (low, middle)
        return low


def _bets(trials: int, reach: float, delta: float) -> tuple[list[float], list[arb]]:
    """Return the bets of `mean_lower`, rounded, and the logarithms of their weights, which add up to 1."""
    least = upper_float((-8 * exact(delta).log() / trials).sqrt())
    first = math.frexp(least)[1] - 1  # 2^first is the greatest power of two that is at most `least`
    last = max(trials.bit_length() - 1, first + 4)
    total = sum((arb(1) / (k + 2) for k in range(last - first + 1)), arb(0))
    # Any positive bet is valid, so that its rounding is of no concern.
    return (
        [math.ldexp(1.0, power) / reach for power in range(first, last + 1)],
        [-((k + 2) * total).log() for k in range(last - first + 1)],
    )
