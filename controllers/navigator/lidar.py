"""What the aliased pseudo-lidar says: which objects it locates exactly, and where no object can be."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["BINS", "RANGE", "arcs", "exact_sightings", "is_excluded", "least_lack"]

BINS: Final = 16
RANGE: Final = 3.0
_BIN: Final = 2.0 * math.pi / BINS
_EXACT: Final = 2e-6
"""Slack of the sum of three readings that a grid of 2^-20 may have rounded: three halves of it, and a little."""
_SLACK: Final = 1e-3
"""Slack in closeness before a reading excludes anything: 3 mm, for drift and for vases that tremble."""


def exact_sightings(readings: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Return (distance, bearing) of the objects that one group of 16 bins determines exactly.

    An object of closeness s = 1 - distance / 3 writes s into its own bin. It writes a*s into the next bin and (1-a)*s
    into the previous one, where a is its place within the bin. Each bin keeps the greatest value. So a bin that is at
    least as great as both neighbours holds a true closeness. If its neighbours add up to it, nothing else interfered,
    and a is exact.
    """
    values = readings.tolist()
    found = []
    for index, own in enumerate(values):
        after, before = values[(index + 1) % BINS], values[index - 1]
        if own > 0.0 and own >= after and own >= before and abs(before + after - own) < _EXACT:
            found.append((RANGE * (1.0 - own), _BIN * (index + after / own)))
    return found


def arcs(readings: NDArray[np.float64]) -> list[tuple[float, float, float]]:
    """Return (distance, first bearing, last bearing) of arcs that each hold an object for sure.

    Those are the bins that are at least as great as both neighbours. The neighbours bound the place within the bin.
    """
    values = readings.tolist()
    found = []
    for index, own in enumerate(values):
        after, before = values[(index + 1) % BINS], values[index - 1]
        if own > 0.0 and own >= after and own >= before:
            first, last = max(1.0 - before / own, 0.0), min(after / own, 1.0)
            found.append((RANGE * (1.0 - own), _BIN * (index + first), _BIN * (index + max(first, last))))
    return found


def least_lack(
    readings: NDArray[np.float64],
    distance: NDArray[np.float64],
    bearing: NDArray[np.float64],
    reach: float,
    turn: float = 0.0,
) -> NDArray[np.float64]:
    """Return for each point by how much the readings are below what an object within `reach` of it would write.

    An object within `reach` of the point writes at least its least closeness times its least share into each of three
    bins. The greatest lack of the three is returned, which is positive if a reading excludes the object.

    Args:
        readings: one row of 16 bins per group.
        distance: distance of each point from the robot's origin.
        bearing: bearing of each point from the heading, in radians in [0, 2 pi).
        reach: radius around the point that must be empty.
        turn: error (radians) that the bearing may have.

    Returns:
        One row per group.
    """
    place = bearing / _BIN
    index = place.astype(np.intp)
    share = place - index
    index %= BINS
    # Moving by `reach` changes the bearing by at most asin(reach / distance) and the distance by `reach`.
    blur = (np.arcsin(np.minimum(reach / np.maximum(distance, 1e-9), 1.0)) + turn) / _BIN
    # Beyond the range nothing is written and nothing is excluded. Two negative factors must not make a reading.
    closeness = np.maximum(1.0 - (distance + reach) / RANGE, 0.0)
    # Near the edge of its bin, the object may be in the next one and write less into this one.
    own = closeness * np.minimum(1.0, 1.0 + np.minimum(share, 1.0 - share) - blur)
    after = closeness * (share - blur)
    before = closeness * (1.0 - share - blur)
    # The bins are a ring: two more columns at the end make index + 1 and index - 1 valid.
    nearby = np.concatenate((readings, readings[:, :1], readings[:, -1:]), axis=1)
    lack = own - nearby[:, index]
    np.maximum(lack, after - nearby[:, index + 1], out=lack)
    np.maximum(lack, before - nearby[:, index - 1], out=lack)
    return np.asarray(lack)


def is_excluded(
    readings: NDArray[np.float64],
    distance: NDArray[np.float64],
    bearing: NDArray[np.float64],
    reach: float,
) -> NDArray[np.bool_]:
    """Say for each point whether no object of the groups can be within `reach` of it. Arguments as `least_lack`."""
    return np.asarray(least_lack(readings, distance, bearing, reach) > _SLACK)
