"""Lower confidence bands of a distribution function, which hold at all order statistics together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np
from flint import arb
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.binomial import cohort_lower
from ccfs.certificates.rounding import fraction_lower
from ccfs.certificates.validated import exact, lower_float, precision, upper_float

__all__ = ["cohort_band", "crossing_upper", "law_band"]

# The time of `crossing_upper` grows faster than the number of trials. Beyond this the other band takes over.
_MOST_EXACT = 2**14
_PER_UNIT = 16  # exponents are tried in steps of 1/16
_NEGLIGIBLE = 1e-30  # of the largest state. Leaving a state out makes the band lower, never wrong.
_TINY = 2.0**-900  # smaller terms would be rounded absolutely
_MOST_RANKS = 1024

Levels = tuple[float, ...]


def cohort_band(trials: int, *, delta: float) -> Levels:
    """Return levels u_1, ..., u_n such that F(X_(i)) >= u_i for all i together, for trials with different laws.

    F is the average distribution function and X_(i) the i-th smallest of n independent totals.

    Proof. For a fixed level u let q be the least point with F(q) >= u. If F(X_(i)) < u, then X_(i) < q, so at least i
    totals are below q, although each is so with an average probability of at most u. For u = cohort_lower(i, n, d) this
    has probability at most d, by the proof there. So F(X_(i)) >= u, except with probability d. This is done for about 4
    sqrt(n) ranks, closer to each other at both ends. The last one has a quarter of delta, because it decides what may
    lie beyond everything that was seen. The others have equal shares of the rest. F grows, so a rank between two of
    them has the level of the lower one.

    Assumes: independent totals, whose number was fixed before sampling.

    Args:
        trials: number of totals, n.
        delta: failure probability of all levels together.

    Returns:
        The levels in order, rounded down. A level of 0 says nothing.

    Raises:
        TypeError: an argument has the wrong kind.
        ValueError: an argument is out of range.

    >>> levels = cohort_band(256, delta=0.0005)
    >>> f"{levels[0]:.1f} {levels[127]:.3f} {levels[255]:.3f}"
    '0.0 0.364 0.966'
    """
    number = checks.count("trials", trials, minimum=1)
    steps = min(math.ceil(4.0 * math.sqrt(number)), number, _MOST_RANKS)
    # Even steps of the arcsine of the square root, in which counts have nearly the same spread everywhere. Without the
    # rounding, the last bit of a sine could decide about a rank.
    places = (number * math.sin(math.pi * j / (2 * steps)) ** 2 for j in range(1, steps + 1))
    return _cohort_levels(number, tuple(sorted({math.ceil(round(place, 9)) for place in places})), checks.delta(delta))


@lru_cache(maxsize=64)
def _cohort_levels(trials: int, ranks: tuple[int, ...], delta: float) -> Levels:
    levels = [0.0] * trials
    for rank in ranks[:-1]:
        share = fraction_lower(Fraction(3, 4) * Fraction(delta) / (len(ranks) - 1))
        levels[rank - 1] = cohort_lower(rank, trials, delta=share)
    levels[-1] = cohort_lower(trials, trials, delta=0.25 * delta if len(ranks) > 1 else delta)
    return tuple((np.maximum.accumulate(levels) + 0.0).tolist())  # -0.0 becomes 0.0


def law_band(trials: int, *, delta: float) -> Levels:
    """Return levels u_1, ..., u_n such that F(X_(i)) >= u_i for all i together, for draws from one law.

    Let U_(i) be the order statistics of n independent uniform numbers. F(X_(1)), ..., F(X_(n)) are jointly at least as
    large as these, so it is enough that U_(i) < u_i for some i has probability at most delta. The levels give each i
    nearly the same probability exp(-c), as those of Berk and Jones do. With p = i / n and the relative entropy KL(p, u)
    = p log(p / u) + (1 - p) log((1 - p) / (1 - u)) they are the roots of

        n KL(p, u) + log(1 - u (1 - p) / (p (1 - u))) + log(max(1, 2 pi n p (1 - p))) / 2 = c,

    the approximation of Bahadur and Rao. Nothing rests on it: `crossing_upper` bounds the probability for the levels as
    they are, and c is the least multiple of 1/16 for which it is small enough. By Chernoff's bound c = log(4 n / (3
    delta)) + log(2 pi n) / 2 is always enough. As in `cohort_band`, the last level has a quarter of delta, if that
    makes it greater.

    Assumes: independent totals with one law, whose number was fixed before sampling.

    Args, Raises: as `cohort_band`.

    Returns:
        The levels in order. Beyond 16,384 trials they are those of `cohort_band`, which hold for one law too.

    >>> levels = law_band(256, delta=0.0005)
    >>> f"{levels[0]:.1e} {levels[127]:.3f} {levels[255]:.3f}"
    '2.8e-08 0.366 0.966'

    References:
        Bahadur and Ranga Rao (1960), "On deviations of the sample mean".
        Berk and Jones (1979), "Goodness-of-fit test statistics that dominate the Kolmogorov statistics".
        Moscovich, Nadler and Spiegelman (2016), "On the exact Berk-Jones statistics and their p-value calculation".
    """
    number, level = checks.count("trials", trials, minimum=1), checks.delta(delta)
    return _law_levels(number, level) if number <= _MOST_EXACT else cohort_band(number, delta=level)


@lru_cache(maxsize=64)
def _law_levels(trials: int, delta: float) -> Levels:
    with precision():
        # Chernoff's bound of each level with the union bound over them needs no computed probability.
        enough = (exact(4 * trials) / 3).log() - exact(delta).log() + (2 * arb.pi() * trials).log() / 2
        last = math.ceil(upper_float(enough) * _PER_UNIT)
        greatest = max(lower_float(((exact(delta) / 4).log() / trials).exp()), 0.0)
    least = math.floor(-math.log(delta) * _PER_UNIT)
    guess = round(math.log(max(10.0 * math.log(trials), 1.0) / delta) * _PER_UNIT)

    def levels(sixteenths: int) -> Levels:
        *others, at_end = _even_levels(trials, sixteenths)
        unit = _unit(trials)
        return (*others, max(at_end, math.floor(greatest / unit) * unit))

    return levels(_first_enough(lambda at: crossing_upper(levels(at)) <= delta, guess, least - 1, last))


def _unit(trials: int) -> float:
    """Return the grid of the levels, fine enough for them and coarse enough for `crossing_upper`."""
    return math.ldexp(1.0, trials.bit_length() - 52)


def _first_enough(is_enough: Callable[[int], bool], guess: int, low: int, high: int) -> int:
    """Return the first number after `low` that is enough, or `high`, which is known to be.

    To ask takes a while, so the search begins at the guess and doubles its steps.
    """
    step = 1
    if guess >= high or is_enough(guess):
        high = min(guess, high)
        while high - step > low and is_enough(high - step):
            high, step = high - step, 2 * step
        low = max(high - step, low)
    else:
        low = guess
        while low + step < high and not is_enough(low + step):
            low, step = low + step, 2 * step
        high = min(low + step, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def crossing_upper(levels: Sequence[float]) -> float:
    """Return an upper bound on the probability that some U_(i) of n uniform numbers is below its level.

    Let N(t) be a Poisson process of rate n on [0, 1]. Given N(1) = n its points are n independent uniform numbers, and
    U_(i) >= u_i says that fewer than i of them are below u_i. So the probability that no level is crossed is

        n! / n^n times the sum of prod_i a_i^(k_i) / k_i!,   a_i = n (u_i - u_(i-1)),

    over all k with k_1 + ... + k_i < i for each i, and k_1 + ... + k_(n+1) = n, where u_0 = 0 and u_(n+1) = 1. The sum
    is formed from left to right by the value of k_1 + ... + k_i. All of its terms are positive, so its relative error
    is at most the number of roundings of a term, which are counted. Terms that are left out make the bound larger.

    Args:
        levels: u_1 <= ... <= u_n in [0, 1), multiples of 2^-52 n', where n' is the least power of two above n, so that
            the a_i are exact doubles.

    Returns:
        The bound, rounded up, at most 1.

    Raises:
        ValueError: there is no level, or the levels are not as they must be.

    >>> f"{crossing_upper([0.25, 0.25]):.4f}"  # 1 - P(both are at least 0.25)
    '0.4375'
    """
    number = len(levels)
    edges = np.array([0.0, *levels])
    is_fit = number and (np.diff(edges) >= 0.0).all() and edges[-1] < 1.0
    if not (is_fit and (np.floor(edges / _unit(number)) * _unit(number) == edges).all()):
        raise ValueError("`levels` must grow from at least 0 to less than 1, in multiples of 2^-52 n', got others.")
    means = number * np.diff(edges)
    state, first, exponent, roundings = np.ones(1), 0, 0, 0
    for done, mean in enumerate(means.tolist(), start=1):
        kernel = _poisson_terms(mean, done - first)
        state = np.convolve(state, kernel)[: done - first]
        if not state.size:
            return 1.0
        # A kernel entry has two roundings per factor, then come one product and the sums.
        roundings += 3 * len(kernel) + 2
        top = float(state.max())
        scale = math.frexp(top)[1]
        # Without the smallest states no product underflows, so that every rounding is a relative one.
        state = np.ldexp(state, -scale)
        state[state < _NEGLIGIBLE] = 0.0
        exponent += scale
        kept = int(np.argmax(state > 0.0))
        state, first = state[kept:], first + kept
    rest = _poisson_terms(number * (1.0 - float(edges[-1])), number - first + 1, is_whole=True)
    ends = [number - first - i for i in range(len(state))]
    total = math.fsum(
        float(value) * float(rest[end]) for value, end in zip(state, ends, strict=True) if rest[end] > _TINY
    )
    roundings += 2 * len(rest) + 4
    with precision():
        scale_back = (exact(number + 1).lgamma() - number * exact(number).log()).exp()
        kept_part = exact(total) * arb(2) ** exponent * scale_back * (1 - arb(roundings) * arb(2) ** -52)
        return min(max(-lower_float(kept_part - 1), 0.0), 1.0)


def _poisson_terms(mean: float, most: int, *, is_whole: bool = False) -> NDArray[np.float64]:
    """Return mean^k / k! for k = 0, 1, ..., up to `most` of them, without a negligible tail unless it `is_whole`."""
    terms = [1.0]
    for k in range(1, most):
        following = terms[-1] * (mean / k)
        if not is_whole and k > mean and following < _NEGLIGIBLE:
            break
        terms.append(following)
    return np.array(terms)


def _even_levels(trials: int, sixteenths: int) -> Levels:
    """Return for each rank the greatest u on the grid at which the left side in `law_band` is at least sixteenths / 16.

    The left side falls when u grows. Doubles find a candidate, and enclosures decide between its neighbours, so the
    levels are the same everywhere.
    """
    unit = _unit(trials)
    ranks = np.arange(1, trials + 1)
    low, high = np.zeros(trials), ranks / trials
    for _ in range(60):
        middle = 0.5 * (low + high)
        is_far = _exponents(ranks, trials, middle) >= sixteenths / _PER_UNIT
        low, high = np.where(is_far, middle, low), np.where(is_far, high, middle)
    steps = np.floor(low / unit).astype(np.int64).tolist()
    with precision():
        wanted = exact(sixteenths) / _PER_UNIT
        return tuple(_settled(rank, trials, step, unit, wanted) for rank, step in enumerate(steps, start=1))


def _exponents(ranks: NDArray[np.int64], trials: int, u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the left side in `law_band`, in doubles."""
    missed = trials - ranks
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = ranks * np.log(ranks / (trials * u))
        entropy += np.where(missed > 0, missed * np.log(missed / (trials * (1.0 - u))), 0.0)
        ratio = np.log1p(-u * missed / (ranks * (1.0 - u)))
    spread = 0.5 * np.log(np.maximum(1.0, 2.0 * math.pi * ranks * missed / trials))
    return np.where(u > 0.0, entropy + ratio + spread, math.inf)


def _settled(rank: int, trials: int, step: int, unit: float, wanted: arb) -> float:
    missed = trials - rank
    wide = 2 * arb.pi() * rank * missed / trials
    spread = wide.log() / 2 if wide > 1 else arb(0)

    def is_far(place: int) -> bool:
        if place <= 0:
            return True
        u = exact(place) * exact(unit)
        entropy = rank * (exact(rank) / (trials * u)).log()
        if missed:
            entropy += missed * (exact(missed) / (trials * (1 - u))).log() + (-u * missed / (rank * (1 - u))).log1p()
        return bool(entropy + spread >= wanted)

    place = max(step, 0)
    while not is_far(place):
        place -= 1
    while (place + 1) * unit * trials < rank and is_far(place + 1):
        place += 1
    return place * unit
