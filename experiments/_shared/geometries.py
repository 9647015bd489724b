"""Random unions of disjoint boxes near the unit cube: the two families of the box studies, each with paired volumes.

The paper names the families and prints no generator; this one is ours. Disjointness comes from the first axis, which is
cut into one slot per box. On every other axis a box sits either on a staircase that drifts with its slot, with a jitter
(`coherent`), or anywhere in the cube (`scattered`). The anchor is the center of a retained box, the one nearest to the
mean of all: a nominal proposal that is itself kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
FAMILIES = ("coherent", "scattered")
VOLUMES = ("balanced", "skewed")
FILL = 0.8
SIDE = (0.25, 0.45)
DRIFT = (0.2, 0.8)
JITTER = 0.1
SKEW = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Box centers [boxes, dim], the half-sides all boxes have if balanced [dim], and volume factors if skewed."""

    centers: Array
    half_sides: Array
    factors: Array

    @property
    def anchor(self) -> Array:
        """The center of the middlemost box; it depends on neither volumes nor scale."""
        apart = ((self.centers - self.centers.mean(axis=0)) ** 2).sum(axis=1)
        return np.asarray(self.centers[int(np.argmin(apart))])

    def bounds(self, volume: str) -> tuple[Array, Array]:
        """Return lower and upper corners. Both settings share the centers and the total volume."""
        if volume not in VOLUMES:
            raise ValueError(f"`volume` must be one of {VOLUMES}, got {volume!r}.")
        dim = self.centers.shape[1]
        half = np.broadcast_to(self.half_sides, self.centers.shape).copy()
        if volume == "skewed":
            # Not on the first axis: there the slots keep the boxes apart.
            half[:, 1:] *= self.factors[:, None] ** (1.0 / (dim - 1))
        return self.centers - half, self.centers + half


def draw(family: str, dim: int, count: int, rng: np.random.Generator) -> Geometry:
    """Draw one base geometry: sides, drifts and jitters uniform, volume factors log-uniform in SKEW^±1."""
    if family not in FAMILIES:
        raise ValueError(f"`family` must be one of {FAMILIES}, got {family!r}.")
    slot = (np.arange(count) + 0.5) / count - 0.5
    half = 0.5 * rng.uniform(*SIDE, size=dim)
    half[0] = 0.5 * FILL / count
    drift = rng.uniform(*DRIFT, size=dim) * rng.choice([-1.0, 1.0], size=dim)
    jitter = rng.uniform(-JITTER, JITTER, size=(count, dim))
    anywhere = rng.uniform(-0.5, 0.5, size=(count, dim)) * (1.0 - 2.0 * half)
    centers = slot[:, None] * drift + jitter if family == "coherent" else anywhere
    centers[:, 0] = slot
    factors = SKEW ** rng.uniform(-1.0, 1.0, size=count)
    return Geometry(centers=0.5 + centers, half_sides=half, factors=factors * count / factors.sum())


def unit_vector(dim: int, rng: np.random.Generator) -> Array:
    """Draw a uniform direction."""
    vector = rng.standard_normal(dim)
    return np.asarray(vector / np.linalg.norm(vector))


def top_direction(covariance: Array) -> Array:
    """Return the eigenvector of the greatest eigenvalue, its largest entry positive."""
    vector = np.linalg.eigh(covariance)[1][:, -1]
    return np.asarray(vector * np.sign(vector[int(np.argmax(np.abs(vector)))]))
