"""The population: 64 corridors with obstacles, seven states in each, and the actions that are feasible there.

The paper prints no layouts; these are ours, drawn from its description. A vehicle in a corridor of half-width 1 acts by
(forward, lateral): it first slides sideways to `lateral`, then drives by `forward`. Avoid: the drive must not enter an
obstacle, and the slide must end inside the corridor. Reach: it must make headway of at least HEADWAY. How far the drive
may go is constant between the sides of the obstacles, so that the feasible actions are a union of rectangles. One
obstacle, the blocker, stands closer ahead than HEADWAY: every feasible action passes it above or below, and that is the
label.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates.occupancy import BoxUnion

Array = NDArray[np.float64]
LAYOUTS, STATES = 64, 7
SIGMA = 0.35
HEADWAY, LONGEST = 0.2, 1.0
NOMINAL_FORWARD = 0.6
BLOCKER_HALF_WIDTH = (0.2, 0.45)
BLOCKER_MIDDLE = (-0.2, 0.2)
OTHERS = (1, 3)
OTHER_WIDTH = (0.1, 0.35)
OTHER_AHEAD = (0.25, 0.95)
OFFSETS = (-0.55, -0.35, -0.15, 0.05, 0.25, 0.45, 0.65)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One corridor: the blocker's middle and half-width, and the other obstacles as rows (bottom, top, ahead)."""

    middle: float
    half_width: float
    others: Array

    def free_distance(self, lateral: float) -> float:
        """Return how far the vehicle can drive along one lateral position."""
        if abs(lateral - self.middle) < self.half_width:
            return 0.0
        ahead = [far for bottom, top, far in self.others.tolist() if bottom < lateral < top]
        return min([LONGEST, *ahead])

    def feasible(self) -> tuple[BoxUnion, tuple[int, ...]]:
        """Return the feasible actions and their labels: 0 below the blocker, 1 above.

        Coordinates are (forward, lateral position after the slide), so that the states of one layout share the set and
        differ in their center only.
        """
        sides = {-1.0, 1.0, self.middle - self.half_width, self.middle + self.half_width}
        sides |= {float(side) for side in self.others[:, :2].ravel() if -1.0 < side < 1.0}
        cuts = sorted(sides)
        lows, highs, labels = [], [], []
        for bottom, top in pairwise(cuts):
            reach = self.free_distance(0.5 * (bottom + top))
            if reach > HEADWAY:
                lows.append([HEADWAY, bottom])
                highs.append([reach, top])
                labels.append(int(0.5 * (bottom + top) > self.middle))
        return BoxUnion(lows, highs, SIGMA), tuple(labels)


def draw(number: int, seed: int) -> Layout:
    """Draw layout `number`: the blocker near the middle, one to three other obstacles anywhere ahead."""
    rng = np.random.default_rng([seed, number])
    middle, half = rng.uniform(*BLOCKER_MIDDLE), rng.uniform(*BLOCKER_HALF_WIDTH)
    rows = []
    for _ in range(rng.integers(OTHERS[0], OTHERS[1] + 1)):
        bottom, width, ahead = rng.uniform(-1.0, 1.0), rng.uniform(*OTHER_WIDTH), rng.uniform(*OTHER_AHEAD)
        rows.append([bottom, min(bottom + width, 1.0), ahead])
    return Layout(middle=float(middle), half_width=float(half), others=np.asarray(rows))


def center(layout: Layout, state: int) -> Array:
    """Return the nominal action of one reference state: straight on, from an offset to the blocker's middle."""
    return np.asarray([NOMINAL_FORWARD, layout.middle + OFFSETS[state]])
