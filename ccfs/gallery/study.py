"""What the gallery shows of a shape: maps over centers, radii at one center, and where its label really changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from ccfs.certificates.conditional import odds_radius, renyi_radius
from ccfs.certificates.event_map import axis_event_slack
from ccfs.certificates.filtered import joint_mass_radius, substituted_radius
from ccfs.certificates.kernels import set_diameter
from ccfs.certificates.occupancy import BoxUnion, EventVerdict
from ccfs.certificates.rounding import fraction_upper
from ccfs.gallery.shape import Shape

__all__ = ["MOVE", "ROUNDING", "Maps", "Near", "Radius", "Study", "radii_at", "study"]

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
    """Return the radii at the center. A label that exists keeps a positive mass, or radii would be infinite."""
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
    # A coordinate that is free in every box says nothing about the label and has no diameter.
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


MOVE = 0.1
"""Length of the moves whose events are compared, in sigmas."""
GRID = {1: 241, 2: 64}
ROUNDING = 1e-9
"""Differences smaller than this are taken for rounding."""
RAYS, STEPS, FAR = 72, 100, 4.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Maps:
    """Values over a grid of centers, one axis per dimension. In the plane, rows follow the second axis."""

    axes: tuple[Array, ...]
    log_occupancy: Array
    local_ratio: Array
    event_slack: Array
    label: NDArray[np.int64]

    @property
    def fails(self) -> NDArray[np.bool_]:
        """Where some event violates the Gaussian comparison for one of the axis moves."""
        return self.event_slack < -ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Near:
    """A window around the chosen center, and by how much its label leads (log odds) at the centers in it."""

    axes: tuple[Array, ...]
    lead: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Study:
    """Everything that the page says about a shape."""

    shape: Shape
    maps: Maps
    label: int
    occupancy: float
    probability: float
    local_ratio: float
    radii: tuple[Radius, ...]
    change: Array | None
    near: Near
    events: tuple[tuple[str, EventVerdict], ...]

    @property
    def change_distance(self) -> float:
        """Distance of the nearest label change that was found, infinite if none was."""
        return math.inf if self.change is None else float(np.linalg.norm(self.change - self.shape.center))

    @property
    def broken(self) -> tuple[Radius, ...]:
        """The radii inside which the label changes."""
        return tuple(radius for radius in self.radii if radius.value > self.change_distance)


def study(shape: Shape) -> Study:
    """Compute maps, radii, the nearest label change and the event verdicts of a shape."""
    boxes, center = shape.boxes, shape.center
    masses = boxes.label_masses(center, shape.labels)
    total = float(masses.sum())
    if not total > 0.0:
        raise ValueError("`center` is so far from every box that no double holds the retained mass. Move it closer.")
    radii, change = radii_at(shape, masses), _nearest_change(shape)
    distance = math.inf if change is None else float(np.linalg.norm(change - center))
    # A check of ourselves: the search below knows nothing of the theorems.
    broken = [radius.name for radius in radii if radius.is_sound and radius.value > distance]
    if broken:
        raise RuntimeError(
            f"the label changes {distance} from the center, inside the sound radii {broken}. That is a bug in ccfs."
        )
    return Study(
        shape=shape,
        maps=_maps(shape),
        label=int(np.argmax(masses)),
        occupancy=total,
        probability=float(masses.max()) / total,
        local_ratio=float(boxes.local_ratio(center)),
        radii=radii,
        change=change,
        near=_near(shape, [radius.value for radius in radii] + [distance]),
        events=_events(shape),
    )


def _window(shape: Shape) -> list[tuple[float, float]]:
    """Return the part of every axis to draw: all finite ends and the center, and two and a half sigmas around them."""
    found = []
    for axis in range(shape.boxes.dim):
        ends = np.concatenate([shape.boxes.lows[:, axis], shape.boxes.highs[:, axis], shape.center[[axis]]])
        inner = ends[np.isfinite(ends)]
        found.append((float(inner.min()) - 2.5 * shape.boxes.sigma, float(inner.max()) + 2.5 * shape.boxes.sigma))
    return found


def _maps(shape: Shape) -> Maps:
    axes = tuple(np.linspace(low, high, GRID[shape.boxes.dim]) for low, high in _window(shape))
    centers = np.stack(np.meshgrid(*axes), axis=-1)
    step = MOVE * shape.boxes.sigma
    slack = [
        axis_event_slack(shape.boxes, centers, axis=axis, step=sign * step)
        for axis in range(shape.boxes.dim)
        for sign in (1.0, -1.0)
    ]
    return Maps(
        axes=axes,
        log_occupancy=np.asarray(shape.boxes.log_occupancy(centers)),
        local_ratio=np.asarray(shape.boxes.local_ratio(centers)),
        event_slack=np.asarray(np.minimum.reduce(slack)),
        label=np.argmax(shape.boxes.log_label_masses(centers, shape.labels), axis=-1),
    )


def _near(shape: Shape, lengths: list[float]) -> Near:
    """Return a window that holds the finite radii and the nearest change, within what the maps show."""
    # An infinite radius, or none, gives no scale to draw at.
    reach = max([length for length in lengths if 0.0 < length < math.inf], default=shape.boxes.sigma)
    axes = tuple(
        np.linspace(max(at - 1.6 * reach, low), min(at + 1.6 * reach, high), GRID[shape.boxes.dim])
        for at, (low, high) in zip(shape.center.tolist(), _window(shape), strict=True)
    )
    return Near(axes=axes, lead=_lead(shape, np.stack(np.meshgrid(*axes), axis=-1)))


def _lead(shape: Shape, points: Array) -> Array:
    """Return the log odds of the chosen center's label against the strongest other one, at other centers."""
    own = int(np.argmax(shape.boxes.log_label_masses(shape.center, shape.labels)))
    masses = shape.boxes.log_label_masses(points, shape.labels)
    others = np.delete(masses, own, axis=-1)
    if others.shape[-1] == 0:
        return np.full(masses.shape[:-1], np.inf)
    return np.asarray(masses[..., own] - others.max(axis=-1))


def _nearest_change(shape: Shape) -> Array | None:
    """Return the nearest center with another label that a search along rays finds, or None."""
    boxes, center = shape.boxes, shape.center
    if len(set(shape.labels)) == 1:
        return None
    units = np.asarray([[1.0], [-1.0]])
    if boxes.dim == 2:
        angles = np.linspace(0.0, 2.0 * np.pi, RAYS, endpoint=False)
        units = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    reach = np.linspace(0.0, FAR * boxes.sigma, STEPS + 1)
    negative = _lead(shape, center + reach[:, None, None] * units) < 0.0
    found = []
    for ray in np.flatnonzero(negative.any(axis=0)):
        # The first place on the ray with another label. The change is between it and the one before.
        last = int(np.argmax(negative[:, ray]))
        low, high = float(reach[last - 1]), float(reach[last])
        along = _along(shape, units[ray])
        # A tie at the center itself has no bracket: the label changes there.
        found.append((float(brentq(along, low, high, xtol=1e-12)) if along(low) > 0.0 else low, int(ray)))
    if not found:
        return None
    distance, ray = min(found)
    return np.asarray(center + distance * units[ray])


def _along(shape: Shape, unit: Array) -> Callable[[float], float]:
    return lambda distance: float(_lead(shape, shape.center + distance * unit))


def _events(shape: Shape) -> tuple[tuple[str, EventVerdict], ...]:
    """Return the decided event comparison for a short move from the center both ways along every axis."""
    found = []
    for axis in range(shape.boxes.dim):
        for sign, word in ((1.0, "+"), (-1.0, "-")):
            stop = shape.center.copy()
            stop[axis] += sign * MOVE * shape.boxes.sigma
            found.append((f"{word}z{'₁₂'[axis]}", shape.boxes.event_comparison(shape.center, stop).verdict))
    return tuple(found)
