"""Confidence bounds for success probabilities from counts, each with the sampling premise under which it holds."""

from __future__ import annotations

from fractions import Fraction

from ccfs.certificates import checks
from ccfs.certificates.rounding import fraction_lower
from ccfs.certificates.validated import (
    anytime_root,
    binomial_root,
    binomial_upper_tail,
    exact,
    lower_float,
    precision,
    refined,
    upper_float,
)

__all__ = [
    "anytime_lower",
    "bonferroni",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
    "cohort_lower",
    "hoeffding_lower",
    "winner_pvalue",
]


def clopper_pearson_lower(successes: int, trials: int, *, delta: float) -> float:
    """Return a lower confidence bound on one success probability, exact up to the last bit.

    With probability at least 1 - delta the bound is at most p. It is the p at which `successes` or more out of `trials`
    has probability delta.

    Assumes: independent trials with the SAME success probability p, and a number of trials that was fixed in advance.
    For one trial at each of several fixed starting points use `cohort_lower`. For a run that stops by looking at its
    results use `anytime_lower`.

    Args:
        successes: observed successes, s.
        trials: number of trials, n.
        delta: failure probability, in (0, 1).

    Returns:
        The greatest double that is proved to be at most the bound. It is 0 when nothing succeeded.

    Raises:
        TypeError: a count is not an integer.
        ValueError: successes exceed trials, there is no trial, or delta is outside of (0, 1).

    >>> clopper_pearson_lower(256, 256, delta=0.001) < 0.001 ** (1 / 256)
    True

    References:
        Clopper and Pearson (1934), "The use of confidence or fiducial limits illustrated in the case of the binomial".
    """
    hits, total = checks.tally(successes, trials)
    level = checks.delta(delta)
    if hits == 0:
        return 0.0
    # The ball of a tiny root may reach below 0.
    return max(lower_float(refined(lambda: binomial_root(hits, total, level))), 0.0)


def clopper_pearson_upper(successes: int, trials: int, *, delta: float) -> float:
    """Return an upper confidence bound on one success probability, exact up to the last bit.

    With probability at least 1 - delta the bound is at least p. It is one minus the lower bound for failures.

    Assumes, Args, Raises: as `clopper_pearson_lower`.

    Returns:
        The least double that is proved to be at least the bound. It is 1 when nothing failed.

    >>> clopper_pearson_upper(10, 10, delta=0.05)
    1.0
    """
    hits, total = checks.tally(successes, trials)
    level = checks.delta(delta)
    if hits == total:
        return 1.0
    # The ball of a root next to 1 may reach above 1.
    return min(upper_float(refined(lambda: 1 - binomial_root(total - hits, total, level))), 1.0)


def hoeffding_lower(successes: int, trials: int, *, delta: float) -> float:
    """Return Hoeffding's lower confidence bound on the average success probability of the trials.

    The bound is successes / trials - sqrt(log(1 / delta) / (2 trials)), and never below 0. The paper's SafetyPointGoal2
    table uses it. `cohort_lower` has the same premise and is never smaller when delta <= exp(-2 / trials).

    Assumes: independent trials, and a number of trials that was fixed in advance. The success probabilities may differ.

    Args and Raises: as `clopper_pearson_lower`.

    Returns:
        The bound, rounded down.

    >>> f"{hoeffding_lower(211, 256, delta=0.001 / 6):.3f}"
    '0.694'

    References:
        Hoeffding (1963), "Probability inequalities for sums of bounded random variables", Theorem 1.
    """
    hits, total = checks.tally(successes, trials)
    level = checks.delta(delta)
    with precision():
        # -log(delta) and not log(1 / delta), because the quotient would be rounded first.
        slack = (-exact(level).log() / (2 * total)).sqrt()
        return max(lower_float(exact(Fraction(hits, total)) - slack), 0.0)


def cohort_lower(successes: int, trials: int, *, delta: float) -> float:
    """Return a lower confidence bound on the average success probability of a fixed cohort.

    The bound is min(clopper_pearson_lower(s, n, delta), max(s - 1, 0) / n), where s of n trials succeeded.

    Proof. Let trial i succeed with probability p_i, P the average of the p_i, S the number of successes, and L(s) the
    bound, which does not decrease with s. If L exceeds P at no s there is nothing to show. Else let c be the least s
    with L(s) > P. Then the bound fails exactly when S >= c. From (c - 1) / n >= L(c) > P follows c - 1 >= n P, so
    Hoeffding (1956, Theorem 4) gives P(S <= c - 1) >= P(Binomial(n, P) <= c - 1), that is, P(S >= c) <= P(Binomial(n,
    P) >= c). The latter is at most delta because clopper_pearson_lower(c, n, delta) > P.

    Why not Clopper-Pearson alone. Take two trials with p_1 = 0.1026 and p_2 = 0, so P = 0.0513. At delta = 0.1 the
    Clopper-Pearson bound for 1 of 2 is 1 - sqrt(0.9) = 0.05132 > P, and it is issued with probability 0.1026 > delta.
    Hoeffding's comparison of the sum with the binomial reverses next to the mean. The second term of the minimum keeps
    the bound away from there.

    Assumes: independent trials, one at each member of a cohort that was fixed in advance (one draw per reset seed). The
    claim is about the cohort's average and about no other starting point.

    Args and Raises: as `clopper_pearson_lower`.

    Returns:
        The bound, rounded down.

    >>> f"{cohort_lower(211, 256, delta=0.001 / 6):.3f}"
    '0.726'

    References:
        Hoeffding (1956), "On the distribution of the number of successes in independent trials", Theorem 4.
    """
    hits, total = checks.tally(successes, trials)
    # Next to the mean a sum of unequal trials can exceed the binomial tail, see the docstring.
    away_from_mean = fraction_lower(Fraction(max(hits - 1, 0), total))
    return min(clopper_pearson_lower(hits, total, delta=delta), away_from_mean)


def anytime_lower(successes: int, trials: int, *, delta: float, prior: tuple[float, float] = (0.5, 0.5)) -> float:
    """Return a lower confidence bound that holds at every number of trials at once.

    For the true p, the ratio of the Beta(prior) mixture of likelihoods to the likelihood at p is a nonnegative
    martingale that starts at 1. By Ville's inequality it ever reaches 1 / delta with probability at most delta. The
    bound is the least p whose ratio is below 1 / delta. So a run may stop at any time, for instance when the target is
    certified.

    Assumes: independent trials with the same success probability, counted in the order in which they were drawn, and a
    `prior` that was chosen before the first. Not valid for a cohort of fixed starting points, whose success
    probabilities differ.

    Args:
        successes: successes so far.
        trials: trials so far.
        delta: failure probability over all stopping times.
        prior: parameters of the mixing Beta distribution, both positive.

    Returns:
        The bound, rounded down.

    Raises:
        TypeError: a count is not an integer, or `prior` is not a pair.
        ValueError: successes exceed trials, there is no trial, or delta or `prior` is out of range.

    >>> 0.2499 < anytime_lower(1, 1, delta=0.5) < 0.25
    True

    References:
        Ville (1939), "Étude critique de la notion de collectif".
    """
    hits, total = checks.tally(successes, trials)
    level = checks.delta(delta)
    if not isinstance(prior, tuple) or len(prior) != 2:
        raise TypeError(f"`prior` must be a pair (a, b) of positive numbers, got {prior!r}.")
    weights = (checks.positive("prior[0]", prior[0]), checks.positive("prior[1]", prior[1]))
    if hits == 0:
        return 0.0
    # The ball of a tiny root may reach below 0.
    return max(lower_float(refined(lambda: anytime_root(hits, total, level, weights))), 0.0)


def bonferroni(delta: float, count: int) -> float:
    """Return the failure probability of each of `count` claims that together fail with probability at most delta.

    Args:
        delta: failure probability of the family.
        count: number of claims.

    Returns:
        delta / count, rounded down, so that the shares add up to at most delta.

    Raises:
        TypeError: `count` is not an integer.
        ValueError: delta is outside of (0, 1), or a share would be 0 as a double.

    >>> bonferroni(0.001, 64_000)
    1.5625e-08
    """
    level = checks.delta(delta)
    # Rounded up, the shares could add up to more than delta.
    share = fraction_lower(Fraction(level) / checks.count("count", count, minimum=1))
    if not share > 0.0:
        raise ValueError(f"`delta` must leave each of {count} claims a positive share, got {level}.")
    return share


def winner_pvalue(winner: int, competitor: int) -> float:
    """Return the exact one-sided p-value against "the winner's probability is at most the competitor's".

    Given how many draws carry either label, the winner's count is binomial. Under the hypothesis its success
    probability is at most 1/2, so its upper tail at 1/2 is a valid p-value (paper, appendix on the experimental
    protocol).

    Assumes: independent draws whose number was fixed in advance, and two labels that were named before them.

    Args:
        winner: draws that carry the declared winner.
        competitor: draws that carry the other label.

    Returns:
        The p-value, rounded up. It is 1 when neither label was drawn.

    Raises:
        TypeError: a count is not an integer.
        ValueError: a count is negative.

    >>> 0.125 <= winner_pvalue(3, 0) < 0.1251
    True
    """
    won = checks.count("winner", winner)
    lost = checks.count("competitor", competitor)
    with precision():
        return min(upper_float(binomial_upper_tail(won, won + lost, exact(0.5))), 1.0)
