"""Alternative feasible kernels: repair after the draw, fixed-weight mixtures and anchored mixtures, with their radii.

They change how an action is drawn, so that conditioning on the whole retained set needs no new certificate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from ccfs.certificates import _boxes, checks, gaussian
from ccfs.certificates.occupancy import BoxUnion
from ccfs.certificates.rounding import fraction_lower, fraction_upper

__all__ = [
    "AnchoredMixture",
    "FixedMixture",
    "GaussianComparison",
    "anchored_coefficient",
    "anchored_radius",
    "fixed_repair",
    "set_diameter",
]

Array = NDArray[np.float64]
Labels = Sequence[int] | NDArray[np.int64]
# Population probabilities have a relative error of about 1e-13 near the set, and 1e-15 of their log masses far away.
# The allowances are far larger.
_ALLOWANCE = 1e-9
_FAR_ALLOWANCE = 1e-13


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianComparison:
    """What a move of the center by a given distance can do to laws that compare like Gaussians of scale `sigma`.

    Every kernel of this module that obeys the Gaussian comparison has one. It says nothing about other kernels.
    """

    sigma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", checks.positive("sigma", self.sigma))

    def event_lower(self, p: float, *, shift: float) -> float:
        """Return the least probability, after a move by `shift`, of an event of at least `p` before, rounded down."""
        return gaussian.event_lower(p, self._mu(shift))

    def event_upper(self, p: float, *, shift: float) -> float:
        """Return the greatest probability, after a move by `shift`, of an event of at most `p` before, rounded up."""
        return gaussian.event_upper(p, self._mu(shift))

    def total_variation(self, *, shift: float) -> float:
        """Return the greatest total variation between the laws at two centers `shift` apart, rounded up."""
        return gaussian.total_variation(self._mu(shift))

    def renyi(self, order: float, *, shift: float) -> float:
        """Return the greatest Renyi divergence of `order` (1 is KL) between the laws at two centers, rounded up."""
        return gaussian.renyi(self._mu(shift), order)

    def radius(self, lower_a: float, upper_b: float) -> float:
        """Return how far the center may move before label B can overtake label A, rounded down."""
        return gaussian.radius(lower_a, upper_b, self.sigma)

    def _mu(self, shift: float) -> float:
        return fraction_upper(Fraction(checks.nonnegative("shift", shift)) / Fraction(self.sigma))


def fixed_repair(*, sigma: float) -> GaussianComparison:
    """Return the comparison for a Gaussian draw that is then repaired by one map, the same at every center.

    Proposition 11 (prop:fixed-randomized-repair): the law of T(z, U), with z Gaussian around the center and U
    independent auxiliary randomness, is the image of the Gaussian under a common channel.

    Assumes: the same T and the same law of U at every center. A projection qualifies, and so does a clip, or a
    projection on a component that is chosen at random by fixed weights. A repair that is computed again after the
    center has moved does not qualify, and neither does drawing until a proposal is accepted.

    Args:
        sigma: Gaussian scale, in the units of a shift.

    Raises:
        ValueError: `sigma` is not positive.

    >>> fixed_repair(sigma=0.5).event_lower(0.5, shift=0.0)
    0.5
    """
    return GaussianComparison(sigma=sigma)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedMixture:
    """P_c = sum_j w_j G_c( . | box j): pick a convex component by fixed weights, then condition on it.

    Theorem 12 (thm:mode-stable): this family obeys the Gaussian event, total-variation and divergence comparisons,
    although the union of the components need not be convex. `comparison` has them.

    Assumes: weights that do not depend on the center. Boxes are convex, and BoxUnion has checked that they do not
    overlap.

    Args:
        components: the boxes and sigma.
        weights: w, one per box, at least 0 and with sum 1.

    Raises:
        ValueError: the weights do not fit.
    """

    components: BoxUnion
    weights: Array

    def __post_init__(self) -> None:
        weights = _boxes.real_array("weights", self.weights)
        if not weights.shape == (self.components.count,):
            raise ValueError(
                f"`weights` must hold one weight for each of the {self.components.count} components, "
                f"got shape {weights.shape}."
            )
        # The sum of rounded weights misses 1 by a few units in the last place.
        if not (np.all(weights >= 0.0) and abs(math.fsum(weights) - 1.0) <= 1e-12):
            raise ValueError(f"`weights` must be at least 0 and sum to 1, got {weights}. Divide them by their sum.")
        weights = weights / math.fsum(weights)
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)

    @property
    def comparison(self) -> GaussianComparison:
        """The Gaussian comparison at this scale, which holds here by Theorem 12 (thm:mode-stable)."""
        return GaussianComparison(sigma=self.components.sigma)

    def label_probabilities(self, center: ArrayLike, regions: BoxUnion, labels: Labels) -> Array:
        """Return P_c(label y), shape [..., max label + 1], in double precision (a population value, not a bound).

        Args:
            center: c, shape [..., dim].
            regions: disjoint boxes on which the label is constant. Points outside of them have no label.
            labels: one label per region.
        """
        shares = component_label_shares(self.components, center, regions, labels)
        return np.asarray(np.einsum("j,...jy->...y", self.weights, shares))

    def radius(self, center: ArrayLike, regions: BoxUnion, labels: Labels) -> float:
        """Return the radius of the top label at one center: the Gaussian radius of its label probabilities.

        The probabilities are population values in double precision, moved outward by 1e-9 of themselves (more from
        thousands of sigmas away) before the radius is rounded down. Ties give 0.
        """
        probabilities = self.label_probabilities(center, regions, labels)
        top, runner = _top_two(probabilities, self.components.log_box_masses(center))
        return self.comparison.radius(top, runner)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchoredMixture:
    """A mixture of convex components whose weights follow the center at temperature `tau`, tied to an anchor.

    w_j(c) is proportional to pi_j(anchor)^(1 - tau) pi_j(c)^tau, where pi_j is the share of component j under
    conditioning. tau = 0 is a fixed-weight mixture, and tau = 1 is conditioning on the whole set.

    Assumes: bounded components (Proposition 13, prop:anchored-comparison). The constructor checks this.

    Args:
        components: the boxes and sigma.
        anchor: a_0 in the paper, shape [dim].
        tau: temperature, in [0, 1].

    Raises:
        ValueError: a component is unbounded, or `anchor` or `tau` does not fit.
    """

    components: BoxUnion
    anchor: Array
    tau: float

    def __post_init__(self) -> None:
        anchor = _boxes.checked_center("anchor", self.anchor, self.components.dim)
        if not anchor.ndim == 1:
            raise ValueError(f"`anchor` must be one center, got shape {anchor.shape}.")
        anchor.setflags(write=False)
        object.__setattr__(self, "anchor", anchor)
        object.__setattr__(self, "tau", checks.probability("tau", self.tau))
        # Called for its refusal: an unbounded component has no diameter.
        set_diameter(self.components)

    @property
    def diameter(self) -> float:
        """Diameter of the union, rounded up."""
        return set_diameter(self.components)

    def weights(self, center: ArrayLike) -> Array:
        """Return the component weights at `center`, shape [..., components]."""
        fixed = self.components.log_box_shares(self.anchor)
        moving = self.components.log_box_shares(center)
        logs = (1.0 - self.tau) * fixed + self.tau * moving
        return np.asarray(np.exp(logs - logsumexp(logs, axis=-1, keepdims=True)))

    def label_probabilities(self, center: ArrayLike, regions: BoxUnion, labels: Labels) -> Array:
        """Return nu_c(label y), shape [..., max label + 1], as `FixedMixture.label_probabilities` does."""
        shares = component_label_shares(self.components, center, regions, labels)
        return np.asarray(np.einsum("...j,...jy->...y", self.weights(center), shares))

    def radius(self, center: ArrayLike, regions: BoxUnion, labels: Labels) -> float:
        """Return the radius of the top label at one center by `anchored_radius`, with the allowance of FixedMixture."""
        probabilities = self.label_probabilities(center, regions, labels)
        top, runner = _top_two(probabilities, self.components.log_box_masses(center))
        return anchored_radius(top, runner, sigma=self.components.sigma, diameter=self.diameter, tau=self.tau)


def anchored_coefficient(*, sigma: float, diameter: float, tau: float) -> float:
    """Return C_tau = 1 / (2 sigma^2) + tau^2 D^2 / (8 sigma^4), rounded up: KL of anchored laws per squared distance.

    This is the coefficient of Proposition 13 (prop:anchored-comparison).

    Args and Raises: as `anchored_radius`.

    >>> anchored_coefficient(sigma=1.0, diameter=2.0, tau=0.0)
    0.5
    """
    return fraction_upper(_coefficient(sigma, diameter, tau))


def anchored_radius(p_top: float, p_runner: float, *, sigma: float, diameter: float, tau: float) -> float:
    """Return (p_top - p_runner) / sqrt(2 C_tau), the radius of an anchored mixture.

    Proposition 13 (prop:anchored-comparison), by Pinsker's inequality: the top label of the anchored mixture is
    constant in the open ball.

    Assumes: at the center of the ball, `p_top` bounds the top label's probability from below and `p_runner` that of
    every other label from above. The components are bounded and convex, and their union has at most this diameter.

    Args:
        p_top: lower bound on the probability of the top label, p_A in the paper.
        p_runner: upper bound on the probability of every other label, p_B in the paper.
        sigma: Gaussian scale, in the units of the radius.
        diameter: D_K, an upper bound on the distance of two points of the retained set, in the same units.
        tau: temperature in [0, 1]. At 0 the Gaussian radius is available too, and it is never smaller.

    Returns:
        The radius, rounded down. It is 0 unless p_top > p_runner.

    Raises:
        TypeError: an argument is not a real number.
        ValueError: an argument is out of range.

    >>> anchored_radius(0.75, 0.25, sigma=1.0, diameter=3.0, tau=0.0)
    0.5
    """
    # Fractions, because the difference of two near doubles could be rounded up.
    gap = Fraction(checks.probability("p_top", p_top)) - Fraction(checks.probability("p_runner", p_runner))
    doubled = 2 * _coefficient(sigma, diameter, tau)
    return fraction_lower(_root_bracket(gap * gap / doubled)[0]) if gap > 0 else 0.0


def set_diameter(boxes: BoxUnion) -> float:
    """Return the greatest distance between two points of a bounded union of boxes, rounded up."""
    if not (np.all(np.isfinite(boxes.lows)) and np.all(np.isfinite(boxes.highs))):
        raise ValueError("`components` must be bounded for an anchored mixture, got a box with an infinite side.")
    reach = np.maximum(np.abs(boxes.highs[:, None] - boxes.lows[None]), np.abs(boxes.highs[None] - boxes.lows[:, None]))
    # Doubles find the candidates, with room for their rounding. Exact arithmetic then decides between these.
    rough = np.sqrt((reach**2).sum(axis=-1))
    pairs = np.argwhere(rough >= rough.max() * (1.0 - 1e-9))
    return max(_pair_diameter(boxes, int(i), int(j)) for i, j in pairs if i <= j)


def component_label_shares(components: BoxUnion, center: ArrayLike, regions: BoxUnion, labels: Labels) -> Array:
    """Return G_c(label y | component j), shape [..., components, max label + 1]."""
    names = _boxes.checked_labels(labels, regions.count)
    if not regions.dim == components.dim:
        raise ValueError(f"`regions` must have dimension {components.dim}, got {regions.dim}.")
    point = _boxes.checked_center("center", center, components.dim)
    whole = components.log_box_masses(point)
    shares = np.zeros((*whole.shape, int(names.max()) + 1))
    for j in range(components.count):
        # Boxes with parallel sides meet in a box, or not at all.
        low, high = np.maximum(regions.lows, components.lows[j]), np.minimum(regions.highs, components.highs[j])
        meets = np.all(low < high, axis=1)
        if np.any(meets):
            pieces = BoxUnion(low[meets], high[meets], components.sigma)
            logs = pieces.log_label_masses(point, names[meets]) - whole[..., j, None]
            # A share is at most 1, also after rounding.
            shares[..., j, : logs.shape[-1]] = np.exp(np.minimum(logs, 0.0))
    return shares


def _top_two(probabilities: Array, log_masses: Array) -> tuple[float, float]:
    """Return a lower value for the greatest probability and an upper value for the next one, at a single center.

    A label that exists keeps a positive probability even where the double underflows, because 0 would make the radius
    infinite.
    """
    if not probabilities.ndim == 1:
        raise ValueError(f"`center` must be a single center here, got probabilities of shape {probabilities.shape}.")
    top, *others = sorted((float(p) for p in probabilities), reverse=True)
    allowance = min(max(_ALLOWANCE, _FAR_ALLOWANCE * float(np.abs(log_masses).max())), 1.0)
    runner = max(min(others[0] * (1.0 + allowance), 1.0), 1e-300) if others else 0.0
    return top * (1.0 - allowance), runner


def _coefficient(sigma: float, diameter: float, tau: float) -> Fraction:
    variance = Fraction(checks.positive("sigma", sigma)) ** 2
    width = Fraction(checks.nonnegative("diameter", diameter))
    share = Fraction(checks.probability("tau", tau))
    return 1 / (2 * variance) + (share * width / variance) ** 2 / 8


def _pair_diameter(boxes: BoxUnion, i: int, j: int) -> float:
    total = Fraction(0)
    for axis in range(boxes.dim):
        low, high = ([Fraction(float(side[box, axis])) for box in (i, j)] for side in (boxes.lows, boxes.highs))
        total += max(high[0] - low[1], high[1] - low[0]) ** 2
    return fraction_upper(_root_bracket(total)[1])


def _root_bracket(value: Fraction) -> tuple[Fraction, Fraction]:
    """Return fractions below and above the square root of a nonnegative fraction, 2^-190 of it apart or equal."""
    if value == 0:
        return Fraction(0), Fraction(0)
    # So many that the integer root below has about 200 bits, whatever the size of the value.
    bits = 200 - (value.numerator.bit_length() - value.denominator.bit_length()) // 2
    scale = Fraction(2) ** bits
    root = math.isqrt(math.floor(value * scale * scale))
    return root / scale, root / scale if Fraction(root) ** 2 == value * scale * scale else (root + 1) / scale
