"""Certificates from conditional label probabilities where a covariance or diameter bound on the retained law is proved.

All functions take `p`, a lower bound on the selected label's conditional probability, and `q`, an upper bound on that
of every competitor. The two probabilities add up to at most 1, so `q` is capped at 1 - p. The functions return 0 unless
p > q.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from flint import arb
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.binomial import bonferroni, clopper_pearson_lower, clopper_pearson_upper
from ccfs.certificates.filtered import Abstention
from ccfs.certificates.validated import exact, lower_float, precision

__all__ = [
    "PAPER_ORDERS",
    "ConditionalCertificate",
    "CovariancePremise",
    "DiameterPremise",
    "cost",
    "diameter_kl_counts",
    "diameter_kl_radius",
    "forward_kl_cost",
    "forward_kl_counts",
    "forward_kl_radius",
    "odds_counts",
    "odds_radius",
    "renyi_counts",
    "renyi_radius",
    "reverse_kl_counts",
    "reverse_kl_radius",
]

# The orders of the paper's conditional divergence reanalysis.
PAPER_ORDERS: tuple[float, ...] = (1.0, *(1 + k / 20 for k in range(1, 81)), 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)
# The costs subtract numbers that nearly agree when p is close to q, hence more bits than elsewhere.
_BITS = 192


def cost(order: float, p: float, q: float) -> float:
    """Return the least reverse Renyi divergence that permits a tie, C_order(p, q) of Proposition 9.

    It is -log(1 - p - q + 2 M(p, q)), with M the power mean of exponent 1 - order, and the geometric mean at order 1.
    Zero probabilities take the continuous limit, so q = 0 gives -log(1 - p). The cost grows with p and falls with q, so
    confidence bounds may take the place of the probabilities.

    Args:
        order: Renyi order, alpha in the paper, at least 1.
        p: lower bound on the selected conditional probability.
        q: upper bound on the competitors', capped at 1 - p.

    Returns:
        The divergence, rounded down. It is infinite at p = 1.

    Raises:
        TypeError: an argument is not a real number.
        ValueError: the order is below 1, or a probability is outside of [0, 1].

    >>> cost(1.0, 0.5, 0.5), cost(2.0, 1.0, 0.0)
    (0.0, inf)

    References:
        Li et al. (2019), "Certified adversarial robustness with additive noise", Lemma 1.
    """
    level = _order(order)
    with precision(_BITS):
        pair = _ordered_pair(p, q)
        if pair is None:
            return 0.0
        divergence = _renyi_cost(level, *pair)
        return math.inf if divergence is None else _down(divergence)


def forward_kl_cost(p: float, q: float) -> float:
    """Return the least forward KL divergence that permits a tie, J(p, q), rounded down.

    It is p log(2 p / (p + q)) + q log(2 q / (p + q)), at most log 2 (paper, after Proposition 9, prop:diameter-radii).

    Args and Raises: as `cost`, without the order.

    >>> f"{forward_kl_cost(1.0, 0.0):.6f}"
    '0.693147'
    """
    with precision(_BITS):
        pair = _ordered_pair(p, q)
        return 0.0 if pair is None else _down(_forward_cost(*pair))


def renyi_radius(
    p: float,
    q: float,
    *,
    sigma: float,
    covariance_ratio: float,
    ball: float = math.inf,
    orders: Iterable[float] = PAPER_ORDERS,
) -> float:
    """Return the conditional Renyi radius, the best over a finite set of orders.

    Proposition 9 (prop:diameter-radii): the conditional decision is constant in the open ball whose radius is the
    maximum over orders of min(ball / order, sigma sqrt(2 C_order(p, q) / (order Lambda))). All orders use the same two
    bounds, so choosing the best one spends no further delta.

    Assumes: at EVERY center closer than `ball`, the largest eigenvalue of the retained law's covariance is at most
    covariance_ratio * sigma^2, by proof. The covariance at the anchor, or an estimate, does not suffice.

    Args:
        p: lower bound on the selected conditional probability.
        q: upper bound on the competitors'.
        sigma: proposal scale, in the units of the radius.
        covariance_ratio: Lambda in the paper.
        ball: R in the paper, how far from the anchor the covariance bound is proved. Infinite for a global proof.
        orders: Renyi orders to try, alpha in the paper, each at least 1.

    Returns:
        The radius, rounded down. It is 0 unless p > q.

    Raises:
        TypeError: an argument is not a real number.
        ValueError: an argument is out of range, or there is no order.

    >>> renyi_radius(0.99, 0.005, sigma=0.25, covariance_ratio=1.0) > 0.3
    True
    """
    scale, ratio, reach = _premise(sigma, covariance_ratio, ball)
    levels = tuple(_order(order) for order in orders)
    if not levels:
        raise ValueError("`orders` must hold at least one order, got none. `PAPER_ORDERS` is the paper's set.")
    with precision(_BITS):
        pair = _ordered_pair(p, q)
        if pair is None:
            return 0.0
        return max(_covariance_radius(_renyi_cost(level, *pair), level, scale, ratio, reach) for level in levels)


def reverse_kl_radius(p: float, q: float, *, sigma: float, covariance_ratio: float, ball: float = math.inf) -> float:
    """Return the order-one case of `renyi_radius`, rounded down. It is never smaller than `forward_kl_radius`.

    Assumes, Args, Raises: as `renyi_radius`.
    """
    return renyi_radius(p, q, sigma=sigma, covariance_ratio=covariance_ratio, ball=ball, orders=(1.0,))


def forward_kl_radius(p: float, q: float, *, sigma: float, covariance_ratio: float, ball: float = math.inf) -> float:
    """Return the forward-KL radius min(ball, sigma sqrt(2 J(p, q) / Lambda)), rounded down.

    It is at most sigma sqrt(2 log 2 / Lambda), whatever the probabilities (paper, after Proposition 9).

    Assumes, Args, Raises: as `renyi_radius`.

    >>> f"{forward_kl_radius(1.0, 0.0, sigma=0.25, covariance_ratio=1.0):.5f}"
    '0.29435'
    """
    scale, ratio, reach = _premise(sigma, covariance_ratio, ball)
    with precision(_BITS):
        pair = _ordered_pair(p, q)
        return 0.0 if pair is None else _covariance_radius(_forward_cost(*pair), 1.0, scale, ratio, reach)


def diameter_kl_radius(p: float, q: float, *, sigma: float, diameter: float) -> float:
    """Return (2 sigma^2 / D) sqrt(2 J(p, q)), rounded down: the forward-KL radius of a retained set of diameter D.

    This is the first radius of eq:diameter-radii. A set of diameter D has a covariance of at most D^2 / 4 (Popoviciu).

    Assumes: no two retained points are farther apart than `diameter`.

    Args:
        p: lower bound on the selected conditional probability.
        q: upper bound on the competitors'.
        sigma: proposal scale, in the units of the radius.
        diameter: D in the paper, in the same units.

    Raises:
        TypeError: an argument is not a real number.
        ValueError: an argument is out of range.
    """
    scale = checks.positive("sigma", sigma)
    width = checks.positive("diameter", diameter)
    with precision(_BITS):
        pair = _ordered_pair(p, q)
        if pair is None:
            return 0.0
        return _down(2 * exact(scale) ** 2 / exact(width) * _root(2 * _forward_cost(*pair)))


def odds_radius(p: float, q: float, *, sigma: float, diameter: float) -> float:
    """Return (sigma^2 / D) log(p / q), rounded down. It is infinite when q = 0.

    This is the second radius of eq:diameter-radii. Over the retained set the log likelihood ratio of two centers at
    distance d varies by at most D d / sigma^2.

    Assumes, Args, Raises: as `diameter_kl_radius`.
    """
    scale = checks.positive("sigma", sigma)
    width = checks.positive("diameter", diameter)
    with precision(_BITS):
        pair = _ordered_pair(p, q)
        if pair is None:
            return 0.0
        top, runner = pair
        if runner == 0:
            return math.inf
        return _down(exact(scale) ** 2 / exact(width) * (top / runner).log())


@dataclass(frozen=True, slots=True, kw_only=True)
class CovariancePremise:
    """At every center closer than `ball` the retained covariance is at most covariance_ratio * sigma^2, by proof."""

    covariance_ratio: float
    ball: float
    orders: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiameterPremise:
    """No two retained points are farther apart than `diameter`."""

    diameter: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionalCertificate:
    """The filtered decision is `label` at every center closer than `radius`, except with probability delta.

    `lower` bounds the conditional probability of `label` among retained proposals from below, and `upper` that of every
    competitor from above. Both hold together with probability at least 1 - delta.

    Assumes: `premise`.
    """

    label: int
    radius: float
    lower: float
    upper: float
    counts: tuple[int, ...]
    sigma: float
    delta: float
    rule: str
    premise: CovariancePremise | DiameterPremise

    @property
    def retained(self) -> int:
        """Proposals that the filter kept."""
        return sum(self.counts)


def renyi_counts(
    counts: Sequence[int] | NDArray[np.int64],
    *,
    selected: int,
    sigma: float,
    covariance_ratio: float,
    delta: float,
    ball: float = math.inf,
    orders: Iterable[float] = PAPER_ORDERS,
) -> ConditionalCertificate | Abstention:
    """Certify the selected label from retained label counts by `renyi_radius`.

    Half of `delta` bounds the selected conditional probability from below, the other half all competitors' from above.

    Assumes: the covariance premise of `renyi_radius`. The number of proposals was fixed in advance, so that the labels
    of the retained ones are independent draws. `selected` was chosen on other proposals.

    Args:
        counts: retained proposals per label, at least two labels.
        selected: label to certify, A in the paper.
        sigma: proposal scale, in the units of the radius.
        covariance_ratio: Lambda in the paper.
        delta: failure probability.
        ball: R, as in `renyi_radius`.
        orders: Renyi orders to try.

    Returns:
        The certificate, with its radius rounded down. An abstention if nothing was retained, or if the bounds do not
        separate the labels.

    Raises:
        TypeError: a count is not an integer.
        ValueError: an argument is out of range.
    """
    premise = CovariancePremise(covariance_ratio=covariance_ratio, ball=ball, orders=tuple(orders))
    return _from_counts(counts, selected, sigma, delta, "renyi", premise, _renyi)


def reverse_kl_counts(
    counts: Sequence[int] | NDArray[np.int64],
    *,
    selected: int,
    sigma: float,
    covariance_ratio: float,
    delta: float,
    ball: float = math.inf,
) -> ConditionalCertificate | Abstention:
    """Certify from retained label counts by `reverse_kl_radius`. Assumes, Args, Returns: as `renyi_counts`."""
    premise = CovariancePremise(covariance_ratio=covariance_ratio, ball=ball, orders=(1.0,))
    return _from_counts(counts, selected, sigma, delta, "reverse-kl", premise, _renyi)


def forward_kl_counts(
    counts: Sequence[int] | NDArray[np.int64],
    *,
    selected: int,
    sigma: float,
    covariance_ratio: float,
    delta: float,
    ball: float = math.inf,
) -> ConditionalCertificate | Abstention:
    """Certify from retained label counts by `forward_kl_radius`. Assumes, Args, Returns: as `renyi_counts`."""
    premise = CovariancePremise(covariance_ratio=covariance_ratio, ball=ball, orders=(1.0,))
    return _from_counts(counts, selected, sigma, delta, "forward-kl", premise, _forward_kl)


def diameter_kl_counts(
    counts: Sequence[int] | NDArray[np.int64], *, selected: int, sigma: float, diameter: float, delta: float
) -> ConditionalCertificate | Abstention:
    """Certify from retained label counts by `diameter_kl_radius`. Assumes: its premise, and as `renyi_counts`."""
    premise = DiameterPremise(diameter=diameter)
    return _from_counts(counts, selected, sigma, delta, "diameter-kl", premise, _diameter_kl)


def odds_counts(
    counts: Sequence[int] | NDArray[np.int64], *, selected: int, sigma: float, diameter: float, delta: float
) -> ConditionalCertificate | Abstention:
    """Certify from retained label counts by `odds_radius`. Assumes: its premise, and as `renyi_counts`."""
    premise = DiameterPremise(diameter=diameter)
    return _from_counts(counts, selected, sigma, delta, "odds", premise, _odds)


_Premise = TypeVar("_Premise", CovariancePremise, DiameterPremise)


def _renyi(p: float, q: float, sigma: float, premise: CovariancePremise) -> float:
    ratio, ball, orders = premise.covariance_ratio, premise.ball, premise.orders
    return renyi_radius(p, q, sigma=sigma, covariance_ratio=ratio, ball=ball, orders=orders)


def _forward_kl(p: float, q: float, sigma: float, premise: CovariancePremise) -> float:
    return forward_kl_radius(p, q, sigma=sigma, covariance_ratio=premise.covariance_ratio, ball=premise.ball)


def _diameter_kl(p: float, q: float, sigma: float, premise: DiameterPremise) -> float:
    return diameter_kl_radius(p, q, sigma=sigma, diameter=premise.diameter)


def _odds(p: float, q: float, sigma: float, premise: DiameterPremise) -> float:
    return odds_radius(p, q, sigma=sigma, diameter=premise.diameter)


def _from_counts(
    counts: Sequence[int] | NDArray[np.int64],
    selected: int,
    sigma: float,
    delta: float,
    rule: str,
    premise: _Premise,
    radius: Callable[[float, float, float, _Premise], float],
) -> ConditionalCertificate | Abstention:
    tallies = checks.counts("counts", counts)
    label = checks.count("selected", selected)
    if not label < len(tallies):
        raise ValueError(f"`selected` must be a label index below {len(tallies)}, got {label}.")
    # Nobody knows before the draw which competitor will be the strongest, so each of them has a share of the second
    # half.
    half, each = bonferroni(delta, 2), bonferroni(delta, 2 * (len(tallies) - 1))
    retained = sum(tallies)
    if retained == 0:
        radius(0.0, 1.0, sigma, premise)  # to refuse a wrong premise here too
        return Abstention(reason="no proposal was retained, so nothing is known about the conditional labels")
    lower = clopper_pearson_lower(tallies[label], retained, delta=half)
    # The upper bound grows with the count, so that of the strongest competitor holds for all of them.
    strongest = max(count for other, count in enumerate(tallies) if other != label)
    upper = clopper_pearson_upper(strongest, retained, delta=each)
    certified = radius(lower, upper, sigma, premise)
    if not certified > 0.0:
        return Abstention(
            reason=f"the lower bound {lower:.6g} on label {label} does not exceed the upper bound {upper:.6g} "
            "on its competitors"
        )
    return ConditionalCertificate(
        label=label,
        radius=certified,
        lower=lower,
        upper=upper,
        counts=tallies,
        sigma=sigma,
        delta=checks.delta(delta),
        rule=rule,
        premise=premise,
    )


def _covariance_radius(divergence: arb | None, order: float, sigma: float, ratio: float, ball: float) -> float:
    # An order above 1 needs the covariance as far as the tilted center a + order (b - a).
    reach = _down(exact(ball) / exact(order)) if math.isfinite(ball) else math.inf
    if divergence is None:
        return reach
    return min(reach, _down(exact(sigma) * _root(2 * divergence / (exact(order) * exact(ratio)))))


def _down(ball: arb) -> float:
    return max(lower_float(ball), 0.0)


def _order(order: float) -> float:
    level = checks.finite("order", order)
    if not level >= 1.0:
        raise ValueError(f"`order` must be at least 1, got {level}. Below 1 the divergence bound is not proved here.")
    return level


def _premise(sigma: float, covariance_ratio: float, ball: float) -> tuple[float, float, float]:
    reach = checks.real("ball", ball)
    if not reach > 0.0:
        raise ValueError(f"`ball` must be positive or infinite, got {reach}.")
    return checks.positive("sigma", sigma), checks.positive("covariance_ratio", covariance_ratio), reach


def _ordered_pair(p: float, q: float) -> tuple[arb, arb] | None:
    """Return (p, min(q, 1 - p)) as balls, or None unless the first certainly exceeds the second."""
    top = exact(checks.probability("p", p))
    # Comparisons of balls are true only if they are true for all their points.
    runner = exact(checks.probability("q", q))
    # Not `min`: two balls that overlap are in no order, and then 1 - top is the safe choice.
    if not runner <= 1 - top:
        runner = 1 - top
    return (top, runner) if top > runner else None


def _renyi_cost(order: float, p: arb, q: arb) -> arb | None:
    """Enclose C_order(p, q) for an ordered pair. None says infinite, which happens at p = 1 only."""
    if p == 1:
        return None
    if q == 0:
        mean = arb(0)
    elif order == 1.0:
        mean = (p * q).sqrt()
    else:
        power = exact(order) - 1
        # The power mean of exponent 1 - order, written so that no power of a small q becomes huge.
        mean = q * (2 / (1 + (q / p) ** power)) ** (1 / power)
    return -(1 - p - q + 2 * mean).log()


def _forward_cost(p: arb, q: arb) -> arb:
    """Enclose J(p, q) for an ordered pair."""
    total = p + q
    top = p * (2 * p / total).log()
    # q log q tends to 0 with q, but the logarithm of 0 has no enclosure.
    return top + q * (2 * q / total).log() if q > 0 else top


def _root(ball: arb) -> arb:
    """Enclose the square root of a number known to be nonnegative, whose enclosure may reach below zero."""
    return ball.nonnegative_part().sqrt()
