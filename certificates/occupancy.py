"""Gaussians conditioned on unions of boxes: occupancy, moments, divergences and the ordered-pair event criterion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, roots_legendre

from ccfs.certificates import _boxes, checks
from ccfs.certificates._event import EventComparison, EventVerdict, compare_events
from ccfs.certificates._truncated import Intervals, Moments, divergence, excess_exponential, moments, orient

__all__ = ["BoxUnion", "EventComparison", "EventVerdict"]

Array = NDArray[np.float64]
Values = float | NDArray[np.float64]
_LOG_TWO_PI = float(np.log(2.0 * np.pi))
_FARTHEST = 1e150  # sigmas. The square of a larger distance is no double.


@dataclass(frozen=True, slots=True, eq=False, init=False)
class BoxUnion:
    """A retained set K that is a union of axis-parallel boxes, under a Gaussian proposal of scale `sigma`.

    Q_c denotes the proposal centered at c and conditioned on K. Every method takes one center (shape [dim]) and returns
    a number, a vector or a matrix. It also takes a batch of centers (shape [..., dim]) and returns that many of them.

    Accuracy: these are population diagnostics in double precision, NOT certified enclosures. Nothing is rounded to a
    safe side. The tests compare with 120-digit arithmetic, inside the set and up to 300 sigma away, for boxes as thin
    as 1e-9 sigma or unbounded. There covariances, KL and Renyi divergences have a relative error of at most 1e-12
    (2e-14 is typical), and log masses one of 2e-14 per axis plus 1e-15 of themselves. So a mass has a relative error of
    about 1e-15 (distance / sigma)^2. The same is true for shares of boxes on opposite sides of a far center.

    Args:
        lows: lower corners, shape [boxes, dim], -inf allowed.
        highs: upper corners, shape [boxes, dim], inf allowed. Interiors must be disjoint.
        sigma: Gaussian scale, in the units of the corners.

    Raises:
        TypeError: a corner is not a real double.
        ValueError: corners are in the wrong order, boxes overlap, or `sigma` is not positive.

    >>> band = BoxUnion([[-1.0], [0.9]], [[-0.9], [1.0]], 1.0)
    >>> round(band.occupancy([-0.1]), 12)
    0.050784466222
    """

    lows: Array
    highs: Array
    sigma: float

    def __init__(self, lows: ArrayLike, highs: ArrayLike, sigma: float) -> None:
        low, high = _boxes.checked_boxes(lows, highs)
        object.__setattr__(self, "lows", low)
        object.__setattr__(self, "highs", high)
        object.__setattr__(self, "sigma", checks.positive("sigma", sigma))

    @property
    def count(self) -> int:
        """Number of boxes."""
        return int(self.lows.shape[0])

    @property
    def dim(self) -> int:
        """Dimension of the space."""
        return int(self.lows.shape[1])

    @property
    def is_convex(self) -> bool:
        """Whether the boxes tile one box (exact)."""
        return _boxes.is_one_box(self.lows, self.highs)

    def occupancy(self, center: ArrayLike) -> Values:
        """Return G_c(K), the probability that a proposal is retained. It underflows to 0 beyond 38 sigma."""
        return _scalar(np.exp(self.log_occupancy(center)))

    def log_occupancy(self, center: ArrayLike) -> Values:
        """Return log G_c(K), finite at every distance."""
        return _scalar(logsumexp(self.log_box_masses(center), axis=-1))

    def log_box_masses(self, center: ArrayLike) -> Array:
        """Return log G_c(box) for every box, shape [..., boxes]."""
        law, at = self._laws(self._center("center", center))
        return np.asarray((at.log_integral - 0.5 * (law.tilt**2 + _LOG_TWO_PI)).sum(axis=-1))

    def log_label_masses(self, center: ArrayLike, labels: Sequence[int] | NDArray[np.int64]) -> Array:
        """Return the log of the joint retained-label masses s_y(c), shape [..., max label + 1]: -inf without a box."""
        names = _boxes.checked_labels(labels, self.count)
        masses = self.log_box_masses(center)
        groups = [masses[..., names == label] for label in range(int(names.max()) + 1)]
        empty = np.full(masses.shape[:-1], -np.inf)
        return np.stack([logsumexp(group, axis=-1) if group.shape[-1] else empty for group in groups], axis=-1)

    def label_masses(self, center: ArrayLike, labels: Sequence[int] | NDArray[np.int64]) -> Array:
        """Return the joint retained-label masses s_y(c) = G_c(K and label y), shape [..., max label + 1].

        Args:
            center: c, shape [..., dim].
            labels: one nonnegative label per box.
        """
        return np.asarray(np.exp(self.log_label_masses(center, labels)))

    def log_box_shares(self, center: ArrayLike) -> Array:
        """Return log Q_c(box) for every box, shape [..., boxes]. Shares sum to 1 at every distance of the center."""
        return self._log_shares(*self._laws(self._center("center", center)))

    def mean(self, center: ArrayLike) -> Array:
        """Return the mean of Q_c. (mean - c) / sigma^2 is the gradient of log occupancy (eq:occupancy-derivatives)."""
        point = self._center("center", center)
        law, at = self._laws(point)
        shares, means, reference = self._shares_and_means(point, law, at)
        return np.asarray(reference + self.sigma * (shares * means).sum(axis=-2))

    def covariance(self, center: ArrayLike) -> Array:
        """Return the covariance of Q_c, a sum of nonnegative parts: within boxes, and between their means."""
        return self.sigma**2 * self._covariance(self._center("center", center))

    def local_ratio(self, center: ArrayLike) -> Values:
        """Return Lambda(c), the greatest eigenvalue of the covariance of Q_c over sigma squared.

        Proposition 4 (prop:local-diagnostic): above 1, the Gaussian KL rate fails along the top direction for all small
        displacements. A value of at most 1 says nothing about other centers.
        """
        return _scalar(np.linalg.eigvalsh(self._covariance(self._center("center", center)))[..., -1])

    def kl(self, a: ArrayLike, b: ArrayLike) -> Values:
        """Return KL(Q_a || Q_b), with full relative accuracy at every displacement.

        It equals eq:occupancy-kl and eq:integrated-covariance (see `kl_direct`, `kl_path`). It is evaluated as the log
        of the centered moment generating function of Q_a at the displacement, a sum of nonnegative terms.
        """
        start, stop = self._pair(a, b)
        return _scalar(self._kl(start, (stop - start) / self.sigma))

    def kl_direct(self, a: ArrayLike, b: ArrayLike) -> Values:
        """Return KL(Q_a || Q_b) literally by eq:occupancy-kl. It cancels for small displacements and far centers."""
        start, stop = self._pair(a, b)
        move = (stop - start) / self.sigma
        slope = (self.mean(start) - start) / self.sigma
        change = np.asarray(self.log_occupancy(stop)) - np.asarray(self.log_occupancy(start))
        return _scalar(0.5 * (move * move).sum(axis=-1) + change - (slope * move).sum(axis=-1))

    def kl_path(self, a: ArrayLike, b: ArrayLike, *, nodes: int = 16) -> Values:
        """Return KL(Q_a || Q_b) by eq:integrated-covariance, with Gauss-Legendre quadrature along the segment."""
        start, stop = self._pair(a, b)
        points, weights = roots_legendre(checks.count("nodes", nodes, minimum=1))
        move = (stop - start) / self.sigma
        total = np.zeros(np.broadcast_shapes(start.shape, stop.shape)[:-1])
        for t, weight in zip(0.5 * (1.0 + points), 0.5 * weights, strict=True):
            covariance = self._covariance(start + t * (stop - start))
            total = total + weight * (1.0 - t) * np.einsum("...i,...ij,...j->...", move, covariance, move)
        return _scalar(total)

    def renyi(self, a: ArrayLike, b: ArrayLike, order: float) -> Values:
        """Return the Renyi divergence of finite positive `order` of Q_a from Q_b. Order 1 is KL.

        This is eq:occupancy-renyi, written as a nonnegative combination of KL divergences so that nothing cancels.
        Above order 1 it is KL(a, b) + KL(a, a + (1 - order)(b - a)) / (order - 1). Below order 1 it is
        [order KL(c, a) + (1 - order) KL(c, b)] / (1 - order) with c = order a + (1 - order) b.
        """
        power = checks.positive("order", order)
        start, stop = self._pair(a, b)
        step = stop - start
        move = step / self.sigma
        if power == 1.0:
            return _scalar(self._kl(start, move))
        rest = 1.0 - power
        if power > 1.0:
            return _scalar(self._kl(start, move) + self._kl(start, rest * move) / (power - 1.0))
        # The point c of the docstring. Both divergences start from it, so neither is a difference.
        middle = start + rest * step
        return _scalar(self._kl(middle, -rest * move) * (power / rest) + self._kl(middle, power * move))

    def event_comparison(self, a: ArrayLike, b: ArrayLike) -> EventComparison:
        """Decide the ordered-pair criterion of Proposition 3 (prop:event-criterion) for single centers a and b.

        The verdict is HOLDS or FAILS only when the numbers leave no doubt at their own accuracy, else UNDECIDED. See
        `ccfs.certificates._event` for what is computed and how exactly.
        """
        start, stop = self._pair(a, b)
        if not start.ndim == stop.ndim == 1:
            raise ValueError(f"`a` and `b` must be single centers here, got shapes {start.shape} and {stop.shape}.")
        return compare_events(self.lows, self.highs, self.sigma, start, stop)

    def event_margin(self, a: ArrayLike, b: ArrayLike) -> float:
        """Return the least slack over t in eq:event-probit-criterion, in standard deviations.

        If the Gaussian event comparison from Q_a to Q_b holds, this is a positive lower bound on the slack. If an event
        violates it, this is the negative slack at that event. See `event_comparison` for doubt.
        """
        return self.event_comparison(a, b).margin

    def event_holds(self, a: ArrayLike, b: ArrayLike) -> bool:
        """Return whether every event obeys the Gaussian comparison from Q_a to Q_b. False also when undecided."""
        return self.event_comparison(a, b).verdict is EventVerdict.HOLDS

    def _center(self, name: str, value: ArrayLike) -> Array:
        return _boxes.checked_center(name, value, self.dim)

    def _pair(self, a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
        start, stop = self._center("a", a), self._center("b", b)
        try:
            np.broadcast_shapes(start.shape, stop.shape)
        except ValueError:
            raise ValueError(f"`a` and `b` must broadcast, got shapes {start.shape} and {stop.shape}.") from None
        return start, stop

    def _laws(self, center: Array) -> tuple[Intervals, Moments]:
        """Return every box's law in every coordinate, arrays [..., boxes, dim]."""
        seen = center[..., None, :]
        width = np.broadcast_to((self.highs - self.lows) / self.sigma, (*center.shape[:-1], *self.lows.shape))
        law = orient((self.lows - seen) / self.sigma, (self.highs - seen) / self.sigma, width)
        if not np.all(law.tilt < _FARTHEST):
            raise OverflowError(f"a center is {law.tilt.max():.3g} sigma from a box, farther than doubles can square.")
        return law, moments(law)

    def _log_shares(self, law: Intervals, at: Moments) -> Array:
        """Return log Q_c(box). Squared distances are subtracted as products, so far centers keep their digits."""
        logs = (at.log_integral - 0.5 * law.tilt**2).sum(axis=-1)
        # Everything is taken relative to the likeliest box, whose share cannot underflow.
        best = np.argmax(logs, axis=-1)[..., None, None]
        tilt, flipped = np.take_along_axis(law.tilt, best, axis=-2), np.take_along_axis(law.flipped, best, axis=-2)
        ends = np.where(law.flipped, -self.highs, self.lows)
        # On the same side of the center the gap of two ends is known better than the difference of their distances.
        same_side = (law.tilt > 0.0) & (tilt > 0.0) & (law.flipped == flipped)
        with np.errstate(invalid="ignore"):
            apart = (ends - np.take_along_axis(ends, best, axis=-2)) / self.sigma
        gap = np.where(same_side, apart, law.tilt - tilt)
        integral = at.log_integral - np.take_along_axis(at.log_integral, best, axis=-2)
        relative = (integral - 0.5 * gap * (law.tilt + tilt)).sum(axis=-1)
        return np.asarray(relative - logsumexp(relative, axis=-1, keepdims=True))

    def _shares_and_means(self, center: Array, law: Intervals, at: Moments) -> tuple[Array, Array, Array]:
        """Return shares [..., boxes, 1], box means relative to a reference in sigmas [..., boxes, dim], reference.

        The reference is a point of the likeliest box. Seen from a far center the means would differ in their last
        digits only.
        """
        logs = self._log_shares(law, at)
        anchor = np.where(law.tilt > 0.0, np.where(law.flipped, self.highs, self.lows), center[..., None, :])
        reference = np.take_along_axis(anchor, np.argmax(logs, axis=-1)[..., None, None], axis=-2)
        means = (anchor - reference) / self.sigma + law.sign * at.mean
        return np.exp(logs)[..., None], means, reference[..., 0, :]

    def _covariance(self, center: Array) -> Array:
        law, at = self._laws(center)
        shares, means, _ = self._shares_and_means(center, law, at)
        # With the root of the share on both sides, the product below is symmetric and has no negative eigenvalue but
        # for rounding.
        apart = np.sqrt(shares) * (means - (shares * means).sum(axis=-2, keepdims=True))
        matrix = np.matmul(np.swapaxes(apart, -1, -2), apart)
        within = (shares * at.variance).sum(axis=-2)
        return np.asarray(matrix + within[..., None] * np.eye(self.dim))

    def _kl(self, center: Array, move: Array) -> Array:
        """Return KL from the law at `center` to the law at center + sigma `move`."""
        center, move = np.broadcast_arrays(center, move)
        law, at = self._laws(center)
        shares, means, _ = self._shares_and_means(center, law, at)
        seen = move[..., None, :]
        own = divergence(law, at, np.broadcast_to(seen, law.tilt.shape)).sum(axis=-1)
        average = (shares[..., 0] * own).sum(axis=-1)
        apart = means - (shares * means).sum(axis=-2, keepdims=True)
        # The mean of y over the boxes is 0. So the log of the mean of exp(y) is log(1 + mean of exp(y) - 1 - y),
        # without a negative term.
        y = own - average[..., None] + (seen * apart).sum(axis=-1)
        with np.errstate(divide="ignore", over="ignore"):
            # Past 30 the log of exp(y) - 1 - y is taken apart, so that exp(y) cannot overflow.
            late = y > 30.0
            safe = np.where(late, y, 30.0)
            log_excess = np.where(
                late, safe + np.log1p(-(1.0 + safe) * np.exp(-safe)), np.log(excess_exponential(np.minimum(y, 30.0)))
            )
            gap = np.logaddexp(0.0, logsumexp(self._log_shares(law, at) + log_excess, axis=-1))
        return np.asarray(average + gap)


def _scalar(values: Array | np.float64) -> Values:
    return float(values) if np.ndim(values) == 0 else np.asarray(values)
