"""The same quantities at 50 digits by the textbook formulas: an oracle that shares no code with `ccfs`."""

from __future__ import annotations

from collections.abc import Sequence

import mpmath as mp
import numpy as np
from numpy.typing import ArrayLike

DIGITS = 50


class Oracle:
    """A Gaussian of scale sigma on a union of disjoint boxes; every number is an mpf."""

    def __init__(self, lows: ArrayLike, highs: ArrayLike, sigma: float) -> None:
        self.lows, self.highs = np.asarray(lows, dtype=float), np.asarray(highs, dtype=float)
        self.sigma = sigma

    def box_masses(self, center: Sequence[mp.mpf]) -> list[mp.mpf]:
        """Return G_c(box) of every box, as products of normal CDF differences."""
        with mp.workdps(DIGITS):
            return [mp.fprod(self._factors(box, center)) for box in range(len(self.lows))]

    def label_masses(self, center: Sequence[mp.mpf], labels: Sequence[int]) -> list[mp.mpf]:
        """Return G_c(K and label y) for every label."""
        with mp.workdps(DIGITS):
            masses = self.box_masses(center)
            return [
                mp.fsum(mass for mass, name in zip(masses, labels, strict=True) if name == label)
                for label in range(max(labels) + 1)
            ]

    def kl(self, a: ArrayLike, b: ArrayLike) -> mp.mpf:
        """Return KL(Q_a || Q_b) by eq. occupancy-kl."""
        with mp.workdps(DIGITS):
            start, stop = _exact(a), _exact(b)
            masses = self.box_masses(start)
            total = mp.fsum(masses)
            log_ratio = mp.log(mp.fsum(self.box_masses(stop)) / total)
            value = log_ratio
            for axis, (low, high) in enumerate(zip(start, stop, strict=True)):
                step = (high - low) / self.sigma
                slope = mp.fsum(m * self._mean(box, axis, low) for box, m in enumerate(masses)) / total
                value += step * step / 2 - slope * step
            return value

    def rate(self, a: ArrayLike, b: ArrayLike) -> mp.mpf:
        """Return the Gaussian KL of the displacement, half its squared length in sigmas."""
        with mp.workdps(DIGITS):
            pairs = zip(_exact(a), _exact(b), strict=True)
            return mp.fsum(((stop - start) / self.sigma) ** 2 for start, stop in pairs) / 2

    def log_occupancy(self, center: ArrayLike) -> mp.mpf:
        """Return log G_c(K)."""
        with mp.workdps(DIGITS):
            return mp.log(mp.fsum(self.box_masses(_exact(center))))

    def fixed_kl(self, a: ArrayLike, b: ArrayLike) -> mp.mpf:
        """Return the KL of the mixtures that keep the box shares of a: the average of the boxes' own divergences."""
        with mp.workdps(DIGITS):
            masses = self.box_masses(_exact(a))
            own = [Oracle(self.lows[[box]], self.highs[[box]], self.sigma).kl(a, b) for box in range(len(self.lows))]
            return mp.fsum(m * k for m, k in zip(masses, own, strict=True)) / mp.fsum(masses)

    def directional_ratio(self, center: ArrayLike, direction: ArrayLike) -> mp.mpf:
        """Return Var<u, X> / sigma^2 under Q_c, from raw moments."""
        with mp.workdps(DIGITS):
            point, unit = _exact(center), _exact(direction)
            masses = self.box_masses(point)
            total = mp.fsum(masses)
            first = second = mp.mpf(0)
            for box, mass in enumerate(masses):
                means = [self._mean(box, axis, c) for axis, c in enumerate(point)]
                inner = mp.fsum(u * m for u, m in zip(unit, means, strict=True))
                spread = mp.fsum(
                    u * u * (self._square(box, axis, c) - m * m)
                    for axis, (u, c, m) in enumerate(zip(unit, point, means, strict=True))
                )
                first += mass * inner
                second += mass * (inner * inner + spread)
            return second / total - (first / total) ** 2

    def _ends(self, box: int, axis: int, center: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
        low, high = mp.mpf(float(self.lows[box, axis])), mp.mpf(float(self.highs[box, axis]))
        return (low - center) / self.sigma, (high - center) / self.sigma

    def _factors(self, box: int, center: Sequence[mp.mpf]) -> list[mp.mpf]:
        return [_between(*self._ends(box, axis, c)) for axis, c in enumerate(center)]

    def _mean(self, box: int, axis: int, center: mp.mpf) -> mp.mpf:
        low, high = self._ends(box, axis, center)
        return (_density(low) - _density(high)) / _between(low, high)

    def _square(self, box: int, axis: int, center: mp.mpf) -> mp.mpf:
        low, high = self._ends(box, axis, center)
        return 1 + (_weighted(low) - _weighted(high)) / _between(low, high)


def quantile(p: mp.mpf) -> mp.mpf:
    """Return the standard normal quantile."""
    with mp.workdps(DIGITS):
        return (
            mp.sqrt(2) * mp.erfinv(2 * p - 1)
            if p > mp.mpf("1e-20")
            else mp.findroot(lambda x: mp.log(mp.ncdf(x)) - mp.log(p), -mp.sqrt(-2 * mp.log(p)))
        )


def relative_error(value: float, truth: mp.mpf) -> float:
    """Return |value - truth| / |truth| as a float."""
    with mp.workdps(DIGITS):
        return float(abs(mp.mpf(float(value)) - truth) / abs(truth))


def _exact(point: ArrayLike) -> list[mp.mpf]:
    return [mp.mpf(float(x)) for x in np.asarray(point, dtype=float)]


def _between(low: mp.mpf, high: mp.mpf) -> mp.mpf:
    """Return Phi(high) - Phi(low), from the tail both are nearer to."""
    return mp.ncdf(-low) - mp.ncdf(-high) if low > 0 else mp.ncdf(high) - mp.ncdf(low)


def _density(x: mp.mpf) -> mp.mpf:
    return mp.mpf(0) if mp.isinf(x) else mp.npdf(x)


def _weighted(x: mp.mpf) -> mp.mpf:
    return mp.mpf(0) if mp.isinf(x) else x * mp.npdf(x)
