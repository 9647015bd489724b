"""KL of a conditioned Gaussian against the ordinary rate, for both directions of a base geometry at one scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from _shared.geometries import Geometry, top_direction
from _shared.oracle import Oracle, relative_error
from numpy.typing import NDArray

from ccfs.certificates.occupancy import BoxUnion

Array = NDArray[np.float64]
DIRECTIONS = ("covariance", "independent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """The anchor, two unit directions [2, dim] and the displaced centers [2, distances, dim] on one set of boxes."""

    boxes: BoxUnion
    start: Array
    units: Array
    stops: Array

    @property
    def rate(self) -> Array:
        """The Gaussian KL of the displacements that doubles really make, [2, distances]."""
        return np.asarray(0.5 * (((self.stops - self.start) / self.boxes.sigma) ** 2).sum(axis=-1))


def moves(geometry: Geometry, volume: str, sigma: float, distances: tuple[float, ...], free: Array) -> Moves:
    """Displace the anchor by each distance, in sigmas, along its top covariance eigenvector and along `free`."""
    boxes = BoxUnion(*geometry.bounds(volume), sigma)
    units = np.stack([top_direction(boxes.covariance(geometry.anchor) / sigma**2), free])
    stops = geometry.anchor + sigma * np.asarray(distances)[None, :, None] * units[:, None, :]
    return Moves(boxes=boxes, start=geometry.anchor, units=units, stops=stops)


def ratios(at: Moves) -> dict[str, Array]:
    """Return arrays [directions, distances] for KL(Q_anchor || Q_displaced).

    `kl_ratio` divides KL by the Gaussian rate; `fixed_ratio` does so for the mixture that keeps the anchor's box
    shares, whose KL is the average of the boxes' own divergences because the boxes are disjoint. `anchor_ratio` is
    Var<u, X> / sigma^2 at the anchor. `kl_direct` and `kl_path` are the two identities of the paper, literally.
    """
    boxes, start, stops, rate = at.boxes, at.start, at.stops, at.rate
    kl = np.asarray(boxes.kl(start, stops))
    shares = np.exp(boxes.log_box_shares(start))
    parts = [BoxUnion(boxes.lows[[box]], boxes.highs[[box]], boxes.sigma) for box in range(boxes.count)]
    own = np.stack([np.asarray(part.kl(start, stops)) for part in parts], axis=-1)
    anchor_ratio = np.einsum("ui,ij,uj->u", at.units, boxes.covariance(start) / boxes.sigma**2, at.units)
    return {
        "anchor_ratio": np.broadcast_to(anchor_ratio[:, None], kl.shape),
        "kl": kl,
        "kl_ratio": kl / rate,
        "fixed_ratio": own @ shares / rate,
        "kl_direct": np.asarray(boxes.kl_direct(start, stops)),
        "kl_path": np.asarray(boxes.kl_path(start, stops)),
    }


def oracle_errors(at: Moves, direction: int, distance: int) -> dict[str, float]:
    """Return the relative errors of one cell against 50 digits."""
    found = ratios(at)
    truth = Oracle(at.boxes.lows, at.boxes.highs, at.boxes.sigma)
    stop, unit = at.stops[direction, distance], at.units[direction]
    exact = {
        "kl": truth.kl(at.start, stop),
        "fixed_ratio": truth.fixed_kl(at.start, stop) / truth.rate(at.start, stop),
        "anchor_ratio": truth.directional_ratio(at.start, unit),
    }
    return {name: relative_error(float(found[name][direction, distance]), value) for name, value in exact.items()}


def worst_of(errors: list[dict[str, float]]) -> dict[str, float]:
    """Return the greatest error under every name."""
    return {name: max(error[name] for error in errors) for name in errors[0]}
