"""The radii the gallery compares at a center: which are certificates for this shape, which are not, and why."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates.conditional import odds_radius, renyi_radius
from ccfs.certificates.filtered import joint_mass_radius, substituted_radius
from ccfs.certificates.kernels import set_diameter
from ccfs.certificates.occupancy import BoxUnion
from ccfs.certificates.schedule import fraction_upper
from ccfs.gallery_shape import Shape

__all__ = ["Radius", "radii_at"]

Array = NDArray[np.float64]
# Masses are population values in doubles: moved outward by this much of themselves before a radius is rounded down.
ALLOWANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Radius:
    """A radius at the chosen center, whether it is a certificate, and why."""

    name: str
    value: float
    is_sound: bool
    reason: str


def radii_at(shape: Shape, masses: Array) -> tuple[Radius, ...]:
    """Return the radii at the center; a competitor that exists keeps a positive mass, or radii would be infinite."""
    sigma, boxes = shape.boxes.sigma, shape.boxes
    order = np.sort(masses)[::-1]
    is_alone = len(set(shape.labels)) == 1
    runner_mass = 0.0 if is_alone else max(float(order[1]), 1e-300)
    top, runner = float(order[0]) * (1.0 - ALLOWANCE), min(runner_mass * (1.0 + ALLOWANCE), 1.0)
    total = float(masses.sum())
    p, q = min(top / total, 1.0), min(runner / total, 1.0)
    found = [
        Radius(
            name="joint mass",
            value=joint_mass_radius(top, runner, sigma),
            is_sound=True,
            reason="masses of fixed events, not divided by what was kept (Theorem joint-mass)",
        )
    ]
    bounded = ~np.all(np.isinf(boxes.lows) & np.isinf(boxes.highs), axis=0)
    lows, highs = boxes.lows[:, bounded], boxes.highs[:, bounded]
    if bounded.any() and np.all(np.isfinite(lows)) and np.all(np.isfinite(highs)):
        diameter = set_diameter(BoxUnion(lows, highs, sigma))
        found += _diameter_radii(p, q, sigma, diameter, is_bounded=bool(bounded.all()))
    convex = boxes.is_convex
    found.append(
        Radius(
            name="substituted",
            value=substituted_radius(p, q, sigma),
            is_sound=convex,
            reason="sound because this set is convex (Corollary convex-event)"
            if convex
            else "conditional probabilities put into the ordinary formula: no theorem stands behind it here",
        )
    )
    return tuple(found)


def _diameter_radii(p: float, q: float, sigma: float, diameter: float, *, is_bounded: bool) -> list[Radius]:
    """Return the radii that follow from the diameter of the set, or of its bounded coordinates if the rest is free.

    Free coordinates stay Gaussian and independent, with ratio 1; Popoviciu bounds the others (appendix two-band).
    """
    least = Fraction(0) if is_bounded else Fraction(1)
    ratio = fraction_upper(max(Fraction(diameter) ** 2 / (4 * Fraction(sigma) ** 2), least))
    why = f"the set is {diameter:.4g} across{'' if is_bounded else ' where it is bounded'}, which bounds"
    found = [
        Radius(
            name="conditional Rényi",
            value=renyi_radius(p, q, sigma=sigma, covariance_ratio=ratio),
            is_sound=True,
            reason=f"{why} the covariance at every center (Proposition diameter-radii)",
        )
    ]
    if is_bounded:
        odds = odds_radius(p, q, sigma=sigma, diameter=diameter)
        reason = f"{why} how fast odds can turn (eq. diameter-radii)"
        found.append(Radius(name="conditional odds", value=odds, is_sound=True, reason=reason))
    return found
