"""Objects that one reading only suggests. They are followed until several poses agree on their position."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.navigator.lidar import BINS, RANGE

__all__ = ["Suspects", "contradicts", "suggestions"]

_BIN: Final = 2.0 * math.pi / BINS
_AGREE: Final = 6e-5
"""Closeness (0.2 mm) within which a reading counts as this object's own."""
_CONTRADICT: Final = 1e-3
_APART: Final = 0.012
_MATCHES: Final = 5
_PARALLAX: Final = 0.04
"""Least sideways motion, as a share of the distance. Driving straight at an object says nothing of its bearing."""
_SAME: Final = 0.02
_MOST: Final = 48
_FIELDS: Final = 7


def suggestions(readings: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Return (distance, bearing) of each object that would explain one bin together with one of its neighbours."""
    values = readings.tolist()
    found = []
    for index, own in enumerate(values):
        if own <= 0.0:
            continue
        after, before = values[(index + 1) % BINS], values[index - 1]
        distance = RANGE * (1.0 - own)
        # An object's shares add up to its closeness, so the other neighbour must read at least the rest.
        if after <= own and before >= own - after:
            found.append((distance, _BIN * (index + after / own)))
        if before <= own and after >= own - before:
            found.append((distance, _BIN * (index + 1.0 - before / own)))
    return found


def contradicts(readings: NDArray[np.float64], distance: float, bearing: float) -> bool:
    """Say whether an object there would have written more into some bin than was read."""
    closeness = 1.0 - distance / RANGE
    place = bearing / _BIN
    index = math.floor(place)
    share = place - index
    written = ((index, closeness), (index + 1, share * closeness), (index - 1, (1.0 - share) * closeness))
    return any(value > readings[at % BINS] + _CONTRADICT for at, value in written)


class Suspects:
    """Positions that readings of one kind suggest. Readings from enough poses confirm a position."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all suspects."""
        # Columns: x, y, matches, x and y of the pose at the last match, x and y of the pose that suggested it.
        self._rows = np.zeros((0, _FIELDS))

    def observe(self, readings: NDArray[np.float64], x: float, y: float, heading: float) -> list[tuple[float, float]]:
        """Check the suspects against a new reading, add new ones, return the positions confirmed by it."""
        confirmed = self._check(readings, x, y, heading)
        self._add(readings, x, y, heading)
        return confirmed

    def _check(self, readings: NDArray[np.float64], x: float, y: float, heading: float) -> list[tuple[float, float]]:
        rows = self._rows
        if not len(rows):
            return []
        dx, dy = rows[:, 0] - x, rows[:, 1] - y
        squared = dx * dx + dy * dy
        closeness = 1.0 - np.sqrt(squared) / RANGE
        place = (np.arctan2(dy, dx) - heading) / _BIN
        index = np.floor(place).astype(np.intp)
        share = place - index
        own = readings[index % BINS]
        wrong = closeness > own + _CONTRADICT
        wrong |= share * closeness > readings[(index + 1) % BINS] + _CONTRADICT
        wrong |= (1.0 - share) * closeness > readings[(index - 1) % BINS] + _CONTRADICT
        # A second reading from the same place says nothing new.
        apart = (rows[:, 3] - x) ** 2 + (rows[:, 4] - y) ** 2 > _APART * _APART
        match = apart & (np.abs(own - closeness) < _AGREE)
        rows[match, 2] += 1.0
        rows[match, 3], rows[match, 4] = x, y
        # Twice the triangle of both poses and the object. Over the squared distance it is the parallax.
        sideways = np.abs((rows[:, 5] - x) * dy - (rows[:, 6] - y) * dx)
        done = match & ~wrong & (rows[:, 2] >= _MATCHES) & (sideways > _PARALLAX * squared)
        confirmed = [(float(row[0]), float(row[1])) for row in rows[done]]
        self._rows = rows[~(wrong | done)]
        return confirmed

    def _add(self, readings: NDArray[np.float64], x: float, y: float, heading: float) -> None:
        fresh = []
        for distance, bearing in suggestions(readings):
            angle = heading + bearing
            fresh.append((x + distance * math.cos(angle), y + distance * math.sin(angle), 1.0, x, y, x, y))
        if not fresh:
            return
        new = np.array(fresh)
        old = self._rows
        if len(old):
            near = (new[:, None, 0] - old[None, :, 0]) ** 2 + (new[:, None, 1] - old[None, :, 1]) ** 2
            # A higher match count is worth more than a newer position, so keep the old one if both agree.
            new = new[(near > _SAME * _SAME).all(axis=1)]
        self._rows = np.concatenate((old, new))[-_MOST:]
