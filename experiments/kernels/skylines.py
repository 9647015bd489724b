"""Skylines: columns of boxes with gaps, each cut into two labels at its own level, and the kernels that draw from them.

Which label lies below is drawn for every column: moving sideways then changes what conditioning prefers, because the
shares of the columns move, and leaves alone what fixed shares prefer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates.kernels import AnchoredMixture, FixedMixture
from ccfs.certificates.occupancy import BoxUnion

Array = NDArray[np.float64]
Probabilities = Callable[[Array], Array]
SIGMA = 0.3
COLUMNS = (2, 3, 5)
FILL = 0.7
TEMPERATURES = (0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skyline:
    """A convex partition (one box a column), fixed weights by area, and regions of constant label that cut each box."""

    components: BoxUnion
    weights: Array
    regions: BoxUnion
    labels: tuple[int, ...]

    def conditioning(self, centers: Array) -> Array:
        """Return label probabilities of the Gaussian conditioned on the whole union, [..., 2]."""
        masses = self.joint_masses(centers)
        return np.asarray(masses / masses.sum(axis=-1, keepdims=True))

    def joint_masses(self, centers: Array) -> Array:
        """Return the joint retained-label masses, [..., 2]."""
        return self.regions.label_masses(centers, self.labels)

    def repair(self, centers: Array) -> Array:
        """Return label probabilities of: draw, pick a column by the fixed weights, clip the draw onto it.

        What a clip sends into a region is the region widened to infinity at every face it shares with its box.
        """
        total = np.zeros((*np.shape(centers)[:-1], 2))
        for box, weight in enumerate(self.weights.tolist()):
            low, high = self.components.lows[box], self.components.highs[box]
            pieces = [2 * box, 2 * box + 1]
            widened = (
                np.where(self.regions.lows[pieces] == low, -np.inf, self.regions.lows[pieces]),
                np.where(self.regions.highs[pieces] == high, np.inf, self.regions.highs[pieces]),
            )
            names = [self.labels[piece] for piece in pieces]
            total += weight * BoxUnion(*widened, SIGMA).label_masses(centers, names)
        return total

    def fixed(self, centers: Array) -> Array:
        """Return label probabilities of the fixed-weight mixture."""
        mixture = FixedMixture(components=self.components, weights=self.weights)
        return mixture.label_probabilities(centers, self.regions, self.labels)

    def anchored(self, anchor: Array, tau: float) -> AnchoredMixture:
        """Return the anchored mixture at one temperature."""
        return AnchoredMixture(components=self.components, anchor=anchor, tau=tau)

    def kernels(self, anchor: Array) -> dict[str, Probabilities]:
        """Return label probabilities as functions of the center, for every kernel of the study."""
        found: dict[str, Probabilities] = {}
        found |= {"repair": self.repair, "fixed": self.fixed, "conditioning": self.conditioning}
        for tau in TEMPERATURES:
            mixture = self.anchored(anchor, tau)
            found[f"anchored {tau}"] = lambda c, m=mixture: m.label_probabilities(c, self.regions, self.labels)
        return found


def draw(number: int, seed: int) -> Skyline:
    """Draw skyline `number`: columns across [-1, 1], ends 0.2 to 1 beyond the level, the lower label at random."""
    rng = np.random.default_rng([seed, number])
    count = COLUMNS[number % len(COLUMNS)]
    width = 2.0 / count
    left = -1.0 + width * (np.arange(count) + 0.5 * (1.0 - FILL))
    right = left + FILL * width
    level = rng.uniform(-0.4, 0.4, size=count)
    bottom, top = level - rng.uniform(0.2, 1.0, size=count), level + rng.uniform(0.2, 1.0, size=count)
    below = rng.integers(0, 2, size=count).tolist()
    if len(set(below)) == 1:
        below[0] = 1 - below[0]
    area = (right - left) * (top - bottom)
    lows = np.stack([left, bottom], axis=1), np.stack([left, level], axis=1)
    highs = np.stack([right, level], axis=1), np.stack([right, top], axis=1)
    interleaved = [np.stack(pair, axis=1).reshape(-1, 2) for pair in (lows, highs)]
    return Skyline(
        components=BoxUnion(lows[0], highs[1], SIGMA),
        weights=area / area.sum(),
        regions=BoxUnion(*interleaved, SIGMA),
        labels=tuple(label for lower in below for label in (lower, 1 - lower)),
    )


def center(number: int, seed: int, place: int) -> Array:
    """Draw the nominal center `place` of skyline `number`."""
    return np.asarray(np.random.default_rng([seed, number, place + 1]).uniform([-0.7, -0.6], [0.7, 0.6]))
