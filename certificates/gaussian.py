"""The Gaussian comparison: what a shift of `mu` standard deviations can do to an event, and what follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ccfs.certificates import checks
from ccfs.certificates.validated import exact, lower_float, normal_cdf, normal_quantile, precision, upper_float

__all__ = [
    "Divergences",
    "chi_square",
    "divergences",
    "event_lower",
    "event_upper",
    "kl",
    "radius",
    "radius_upper",
    "renyi",
    "total_variation",
]


def event_lower(p: float, mu: float) -> float:
    """Return the least probability, after a shift of size `mu`, of an event that has probability at least `p` before.

    The probability is at least Phi(Phi^-1(p) - mu). Theorem 14 (thm:adaptive-trajectory) extends this comparison to
    shifts that are chosen step by step, as long as their energy is at most mu squared.

    Assumes: the two laws are images, under one common causal program, of Gaussians whose whitened means differ by at
    most `mu`. A conditional probability does not qualify (see `ccfs.certificates.filtered`).

    Args:
        p: lower bound on the probability before the shift.
        mu: size of the shift in standard deviations, at least 0.

    Returns:
        The lower bound on the probability after the shift, rounded down.

    Raises:
        TypeError: an argument is not a real number.
        ValueError: `p` is outside of [0, 1], or `mu` is negative or not finite.

    >>> event_lower(0.5, 0.0), event_lower(0.0, 1.0), event_lower(1.0, 3.0)
    (0.5, 0.0, 1.0)
    """
    probability = checks.probability("p", p)
    shift = checks.nonnegative("mu", mu)
    if probability in (0.0, 1.0) or shift == 0.0:
        return probability
    with precision():
        return max(lower_float(normal_cdf(normal_quantile(exact(probability)) - exact(shift))), 0.0)


def event_upper(p: float, mu: float) -> float:
    """Return the greatest probability, after a shift of size `mu`, of an event that has probability at most `p` before.

    The probability is at most Phi(Phi^-1(p) + mu), returned rounded up.

    Assumes, Args, Raises: as `event_lower`, with `p` an upper bound.

    >>> event_upper(0.5, 0.0), event_upper(0.0, 1.0), event_upper(1.0, 3.0)
    (0.5, 0.0, 1.0)
    """
    probability = checks.probability("p", p)
    shift = checks.nonnegative("mu", mu)
    if probability in (0.0, 1.0) or shift == 0.0:
        return probability
    with precision():
        return min(upper_float(normal_cdf(normal_quantile(exact(probability)) + exact(shift))), 1.0)


def total_variation(mu: float) -> float:
    """Return the greatest total variation of two laws at Gaussian distance `mu`: 2 Phi(mu / 2) - 1, rounded up.

    Assumes and Raises: as `event_lower`.

    >>> total_variation(0.0)
    0.0
    """
    shift = checks.nonnegative("mu", mu)
    if shift == 0.0:
        return 0.0
    with precision():
        # 2 Phi(mu / 2) - 1 = erf(mu / sqrt(8)), without the subtraction.
        return min(upper_float((exact(shift) / exact(8).sqrt()).erf()), 1.0)


def kl(mu: float) -> float:
    """Return the greatest KL divergence, either way, of two laws at Gaussian distance `mu`: mu^2 / 2, rounded up.

    >>> kl(2.0)
    2.0
    """
    return renyi(mu, 1.0)


def renyi(mu: float, order: float) -> float:
    """Return the greatest Renyi divergence of two laws at Gaussian distance `mu`: order mu^2 / 2, rounded up.

    Order 1 is the KL divergence. The value is infinite when it exceeds every double.

    Assumes: as `event_lower`.

    Args:
        mu: distance of the whitened means, at least 0.
        order: Renyi order, above 0.

    >>> renyi(1.0, 2.0)
    1.0
    """
    shift = checks.nonnegative("mu", mu)
    factor = checks.positive("order", order)
    with precision():
        return upper_float(exact(factor) * exact(shift) ** 2 / 2)


def chi_square(mu: float) -> float:
    """Return the greatest chi-square divergence of two laws at Gaussian distance `mu`: exp(mu^2) - 1, rounded up.

    It is the variance of the likelihood ratio. The value is infinite when it exceeds every double.

    Assumes and Raises: as `event_lower`.

    >>> chi_square(0.0)
    0.0
    """
    shift = checks.nonnegative("mu", mu)
    if shift == 0.0:
        return 0.0
    if shift > 40.0:
        return math.inf  # exp(1600) is above every double
    with precision():
        return upper_float((exact(shift) ** 2).expm1())


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergences:
    """How far a shift of size `mu` can move the law of the public trace, each number rounded up.

    Theorem 14 (thm:adaptive-trajectory) bounds the probability of every event under every causal shift whose energy is
    at most mu squared on every path. So telling the shifted law from the nominal one is at least as hard as telling two
    normal laws apart whose means differ by mu. Every divergence that does not grow under post-processing is then at
    most that of these two normal laws, in either order of the two laws.
    """

    mu: float
    total_variation: float
    kl: float
    chi_square: float

    def renyi(self, order: float) -> float:
        """Return the greatest Renyi divergence of this order, rounded up."""
        return math.inf if self.mu == math.inf else renyi(self.mu, order)


def divergences(mu: float) -> Divergences:
    """Return what Theorem 14 says about divergences at a shift of size `mu`, which may be infinite.

    Assumes: as `event_lower`.

    Raises:
        TypeError: `mu` is not a real number.
        ValueError: `mu` is negative or NaN.

    >>> divergences(1.0).kl
    0.5
    """
    if checks.real("mu", mu) == math.inf:
        return Divergences(mu=math.inf, total_variation=1.0, kl=math.inf, chi_square=math.inf)
    return Divergences(mu=float(mu), total_variation=total_variation(mu), kl=kl(mu), chi_square=chi_square(mu))


def radius(lower_a: float, upper_b: float, sigma: float) -> float:
    """Return how far a Gaussian center may move before event B can become as likely as event A.

    The radius is sigma / 2 [Phi^-1(lower_a) - Phi^-1(upper_b)]. Event A stays more likely in the OPEN ball.

    Assumes: `lower_a` and `upper_b` bound the probabilities of two events under the isotropic Gaussian of scale
    `sigma`. Both events are fixed in the space of the draw and do not move with the center.

    Args:
        lower_a: lower bound on the probability of the selected event.
        upper_b: upper bound on the probability of every competing event.
        sigma: Gaussian scale, in the units of the returned radius.

    Returns:
        The radius, rounded down. It is 0 unless lower_a > upper_b. It is infinite when A is certain or B impossible,
        because this is then so at every center.

    Raises:
        TypeError: an argument is not a real number.
        ValueError: a bound is outside of [0, 1], or `sigma` is not positive.

    >>> radius(0.5, 0.5, 1.0)
    0.0

    References:
        Cohen, Rosenfeld and Kolter (2019), "Certified adversarial robustness via randomized smoothing", Theorem 1.
    """
    lower = checks.probability("lower_a", lower_a)
    upper = checks.probability("upper_b", upper_b)
    scale = checks.positive("sigma", sigma)
    if not lower > upper:
        return 0.0
    # Gaussians with the same covariance have the same null sets.
    if lower == 1.0 or upper == 0.0:
        return math.inf
    with precision():
        gap = normal_quantile(exact(lower)) - normal_quantile(exact(upper))
        return max(lower_float(exact(scale) / 2 * gap), 0.0)


def radius_upper(upper_a: float, lower_b: float, sigma: float) -> float:
    """Return an upper bound on what `radius` gives at the true probabilities, rounded up. Not a certificate.

    It serves to compare certificates with what they could at most be.

    Assumes: `upper_a` and `lower_b` bound the two probabilities from the OTHER sides than in `radius`.
    """
    upper = checks.probability("upper_a", upper_a)
    lower = checks.probability("lower_b", lower_b)
    scale = checks.positive("sigma", sigma)
    if not upper > lower:
        return 0.0
    if upper == 1.0 or lower == 0.0:
        return math.inf
    with precision():
        gap = normal_quantile(exact(upper)) - normal_quantile(exact(lower))
        return upper_float(exact(scale) / 2 * gap)
