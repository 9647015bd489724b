"""The paper's three exact witnesses, each number enclosed in exact fractions and each claim an exact comparison."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ccfs.certificates.rational import (
    BITS,
    Exact,
    Interval,
    log,
    normal_cdf,
    normal_density,
    normal_quantile,
    sqrt,
)

__all__ = [
    "ConfidenceFilterWitness",
    "LShapeWitness",
    "StrictCheck",
    "TwoBandWitness",
    "confidence_filter",
    "l_shape",
    "two_band",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrictCheck:
    """One claim about a witness, and whether its enclosures prove it. False means not proved. It may still be true."""

    claim: str
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceFilterWitness:
    """Proposition 5 (prop:confidence-filter): a softmax threshold keeps two tails, and the substituted radius fails."""

    displacement: Fraction
    boundary_distance: Fraction
    joint_mass_radius: Fraction
    joint_mass_radius_enclosed: Interval
    top_probability: Interval
    substituted_radius: Interval
    top_probability_shifted: Interval

    @property
    def checks(self) -> tuple[StrictCheck, ...]:
        """The proposition's claims as exact comparisons."""
        half = Fraction(1, 2)
        return (
            StrictCheck(claim="label zero is selected at a: p_0(a) > 1/2", holds=self.top_probability.is_above(half)),
            StrictCheck(
                claim="label one is selected at b: p_0(b) < 1/2", holds=self.top_probability_shifted.is_below(half)
            ),
            StrictCheck(
                claim="b lies strictly inside the substituted radius: |b - a| < r_cond(a)",
                holds=self.substituted_radius.is_above(self.displacement),
            ),
            StrictCheck(
                claim="the substituted radius crosses the boundary: r_cond(a) > 1/10",
                holds=self.substituted_radius.is_above(self.boundary_distance),
            ),
            StrictCheck(
                claim="the joint-mass radius equals the distance to the boundary, 1/10",
                holds=self.joint_mass_radius == self.boundary_distance
                and self.joint_mass_radius_enclosed.contains(self.joint_mass_radius),
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LShapeWitness:
    """Proposition 6 (prop:lshape-witness): on a compact connected set a short shift breaks KL, TV and the events.

    KL and TV compare the Gaussian at a with the one at b, both conditioned on the L-shape. The names with `gaussian_`
    are the same divergences without conditioning.
    """

    displacement: Fraction
    kl: Interval
    gaussian_kl: Fraction
    variance_ratio: Interval
    total_variation: Interval
    gaussian_total_variation: Interval
    event_nominal: Interval
    event_shifted: Interval
    event_excess: Interval
    crossing: Interval
    substituted_radius: Interval

    @property
    def checks(self) -> tuple[StrictCheck, ...]:
        """The proposition's claims as exact comparisons."""
        kl_excess = self.kl - self.gaussian_kl
        tv_excess = self.total_variation - self.gaussian_total_variation
        return (
            StrictCheck(claim="Q_a(E) > 0.52747658", holds=self.event_nominal.is_above(Fraction("0.52747658"))),
            StrictCheck(claim="Q_b(E) < 0.49888514", holds=self.event_shifted.is_below(Fraction("0.49888514"))),
            StrictCheck(claim="Q_a(E) - Φ(1/15) > 9/10000", holds=self.event_excess.is_above(Fraction(9, 10000))),
            StrictCheck(
                claim="KL(Q_a‖Q_b) exceeds the Gaussian KL by more than 1/5000",
                holds=kl_excess.is_above(Fraction(1, 5000)),
            ),
            StrictCheck(
                claim="TV(Q_a, Q_b) exceeds the Gaussian TV by more than 1/500",
                holds=tv_excess.is_above(Fraction(1, 500)),
            ),
            StrictCheck(claim="the local variance ratio exceeds one", holds=self.variance_ratio.is_above(1)),
            StrictCheck(
                claim="the labels at a and b differ: Q_b(E) < 1/2 < Q_a(E)",
                holds=self.event_shifted.is_below(Fraction(1, 2)) and self.event_nominal.is_above(Fraction(1, 2)),
            ),
            StrictCheck(
                claim="b lies strictly inside the substituted radius: ‖a - b‖ < r_cond(a)",
                holds=self.substituted_radius.is_above(self.displacement),
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoBandWitness:
    """Appendix app:two-band: on a nonconvex filter a covariance certificate is more than twice the joint-mass one."""

    boundary_distance: Fraction
    retained_mass: Interval
    top_probability: Interval
    joint_mass_radius: Interval
    covariance_radius: Interval
    substituted_radius: Interval

    @property
    def checks(self) -> tuple[StrictCheck, ...]:
        """The strict ordering of the four radii as exact comparisons."""
        return (
            StrictCheck(
                claim="the lower band is selected: p_-(a) > 1/2", holds=self.top_probability.is_above(Fraction(1, 2))
            ),
            StrictCheck(claim="r_mass < r_cov", holds=self.joint_mass_radius.is_below(self.covariance_radius)),
            StrictCheck(claim="2 r_mass < r_cov", holds=(2 * self.joint_mass_radius).is_below(self.covariance_radius)),
            StrictCheck(
                claim="r_cov stays inside the boundary: r_cov < 1/10",
                holds=self.covariance_radius.is_below(self.boundary_distance),
            ),
            StrictCheck(
                claim="the substituted radius crosses the boundary: r_cond > 1/10",
                holds=self.substituted_radius.is_above(self.boundary_distance),
            ),
        )


def confidence_filter(*, bits: int = BITS) -> ConfidenceFilterWitness:
    """Enclose every number of Proposition 5 (prop:confidence-filter).

    With sigma = 1 and logits (0, u log 9), a proposal u is kept when its largest softmax probability exceeds 0.9. That
    is the case when abs(u) > 1, with label zero on the left and label one on the right. By reflection the boundary is
    exactly at zero. The joint masses at a are Φ(-1 - a) and Φ(-1 + a), so Φ⁻¹ undoes Φ and the joint-mass radius is an
    exact fraction.

    Args:
        bits: how tight the enclosures are, about 2**-bits of their size.
    """
    center, shifted = Fraction(-1, 10), Fraction(1, 100)
    left, right = normal_cdf(-1 - center, bits=bits), normal_cdf(-1 + center, bits=bits)
    top = _share(left, right).rounded(bits)
    return ConfidenceFilterWitness(
        displacement=shifted - center,
        boundary_distance=abs(center),
        joint_mass_radius=((-1 - center) - (-1 + center)) / 2,
        joint_mass_radius_enclosed=_half_gap(left, right, bits),
        top_probability=top,
        substituted_radius=_half_gap(top, 1 - top, bits),
        top_probability_shifted=_share(
            normal_cdf(-1 - shifted, bits=bits), normal_cdf(-1 + shifted, bits=bits)
        ).rounded(bits),
    )


def l_shape(*, bits: int = BITS) -> LShapeWitness:
    """Enclose every number of Proposition 6 (prop:lshape-witness) and of the table in its appendix.

    The set is [0, 1] x [0, 1/2] together with [0, 1/2] x [1/2, 1], sigma = 3/20, a = (13/20, 49/100) and b = a plus
    1/100 along the first axis. The mass of a box is a product of Φ differences, and masses add up because interiors are
    disjoint. KL comes from the occupancy identity (eq:occupancy-kl). TV comes from the halfspace left of the point
    where the two conditioned densities cross.

    Args:
        bits: how tight the enclosures are, about 2**-bits of their size.
    """
    sigma, height = Fraction(3, 20), Fraction(49, 100)
    nominal, shifted, threshold = Fraction(13, 20), Fraction(66, 100), Fraction(633, 1000)
    displacement = shifted - nominal
    at_a = _LShapeLaw(center=nominal, height=height, sigma=sigma, bits=bits)
    at_b = _LShapeLaw(center=shifted, height=height, sigma=sigma, bits=bits)
    mass_a, first, second = at_a.moments()
    log_ratio = log(at_b.moments()[0] / mass_a, bits=bits)
    mean = first / mass_a
    gaussian_kl = (displacement / sigma) ** 2 / 2
    crossing = (nominal + shifted) / 2 + sigma**2 / displacement * log_ratio
    event_nominal = at_a.left_of(threshold)
    return LShapeWitness(
        displacement=displacement,
        kl=(gaussian_kl + log_ratio - displacement / sigma * mean).rounded(bits),
        gaussian_kl=gaussian_kl,
        variance_ratio=(second / mass_a - mean.squared()).rounded(bits),
        total_variation=(at_a.left_of(crossing) - at_b.left_of(crossing)).rounded(bits),
        gaussian_total_variation=2 * normal_cdf(displacement / sigma / 2, bits=bits) - 1,
        event_nominal=event_nominal,
        event_shifted=at_b.left_of(threshold),
        event_excess=event_nominal - normal_cdf(displacement / sigma, bits=bits),
        crossing=crossing.rounded(bits),
        substituted_radius=(sigma * normal_quantile(event_nominal, bits=bits)).rounded(bits),
    )


def two_band(*, bits: int = BITS) -> TwoBandWitness:
    """Enclose the five numbers of the two-band appendix (app:two-band) at distance 1/10 from the boundary.

    Here sigma = 1, and the filter keeps R x ([-1, -0.9] ∪ [0.9, 1]). The second coordinate of what is kept is in
    [-1, 1]. So by Popoviciu the conditional covariance is at most the identity at every center, and the forward-KL
    radius sqrt(2 J) holds with ratio 1 and an infinite ball (Proposition 9, prop:diameter-radii). By reflection the
    boundary is exactly at zero.

    Args:
        bits: how tight the enclosures are, about 2**-bits of their size.
    """
    distance, inner = Fraction(1, 10), Fraction(9, 10)
    lower_band = normal_cdf(1 - distance, bits=bits) - normal_cdf(inner - distance, bits=bits)
    upper_band = normal_cdf(1 + distance, bits=bits) - normal_cdf(inner + distance, bits=bits)
    top = _share(lower_band, upper_band).rounded(bits)
    rest = 1 - top
    # J(p, q) with p + q = 1 is p log 2p + q log 2q.
    divergence = top * log(2 * top, bits=bits) + rest * log(2 * rest, bits=bits)
    return TwoBandWitness(
        boundary_distance=distance,
        retained_mass=lower_band + upper_band,
        top_probability=top,
        joint_mass_radius=_half_gap(lower_band, upper_band, bits),
        covariance_radius=sqrt(2 * divergence, bits=bits),
        substituted_radius=_half_gap(top, rest, bits),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LShapeLaw:
    """The Gaussian at (center, height) conditioned on the L-shape, in enclosures."""

    center: Fraction
    height: Fraction
    sigma: Fraction
    bits: int

    def moments(self) -> tuple[Interval, Interval, Interval]:
        """Enclose the mass and the first two moments of (z_1 - center) / sigma over the L-shape, not normalised."""
        mass = first = second = Interval.of(0)
        for right, weight in self._columns():
            low, high = -self.center / self.sigma, (right - self.center) / self.sigma
            density_low, density_high = (normal_density(end, bits=self.bits) for end in (low, high))
            share = self._between(low, high)
            mass += share * weight
            first += (density_low - density_high) * weight
            second += (share + low * density_low - high * density_high) * weight
        return mass, first, second

    def left_of(self, threshold: Interval | Exact) -> Interval:
        """Enclose the conditional probability of z_1 <= threshold, for a threshold between 1/2 and 1."""
        cut = Interval.of(threshold)
        # In this range the cut passes through the lower, wide box only.
        if not (cut.is_above(Fraction(1, 2)) and cut.is_below(1)):
            raise ValueError(f"`threshold` must lie strictly between 1/2 and 1, got {cut}.")
        (_, wide), (narrow_right, narrow) = self._columns()
        low = -self.center / self.sigma
        inside = self._between(low, (cut - self.center) / self.sigma) * wide
        inside += self._between(low, (narrow_right - self.center) / self.sigma) * narrow
        return (inside / self.moments()[0]).rounded(self.bits)

    def _columns(self) -> tuple[tuple[Fraction, Interval], tuple[Fraction, Interval]]:
        """Return (right edge, mass of the second coordinate) of the lower, wide box and of the upper, narrow one."""
        bottom, middle, top = (Fraction(edge, 2) - self.height for edge in (0, 1, 2))
        wide = self._between(bottom / self.sigma, middle / self.sigma)
        narrow = self._between(middle / self.sigma, top / self.sigma)
        return (Fraction(1), wide), (Fraction(1, 2), narrow)

    def _between(self, low: Interval | Exact, high: Interval | Exact) -> Interval:
        return normal_cdf(high, bits=self.bits) - normal_cdf(low, bits=self.bits)


def _share(part: Interval, rest: Interval) -> Interval:
    """Enclose part / (part + rest), with each variable written once so that the enclosure stays tight."""
    return 1 / (1 + rest / part)


def _half_gap(high: Interval, low: Interval, bits: int) -> Interval:
    """Enclose (Φ⁻¹(high) - Φ⁻¹(low)) / 2, the radius at sigma = 1. With joint masses it is that of Theorem 7."""
    return ((normal_quantile(high, bits=bits) - normal_quantile(low, bits=bits)) / 2).rounded(bits)
