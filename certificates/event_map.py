"""Where the event comparison fails: the ordered-pair criterion, sampled at many centers for moves along one axis."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from ccfs.certificates import _boxes, checks
from ccfs.certificates._event import probit
from ccfs.certificates._truncated import log_masses
from ccfs.certificates.occupancy import BoxUnion

__all__ = ["axis_event_slack"]

Array = NDArray[np.float64]
_REACH = 8.0  # sigmas past the outermost box or center, where a Gaussian has less than 1e-15 left


def axis_event_slack(boxes: BoxUnion, centers: ArrayLike, *, axis: int, step: float, spacing: float = 0.1) -> Array:
    """Return the least slack seen in eq:event-probit-criterion for the move from c to c + step along `axis`.

    A slack that is negative beyond rounding names a halfspace that violates the Gaussian comparison, so the comparison
    fails (Proposition 3, prop:event-criterion). A positive slack says that no sampled halfspace violates it, which
    proves nothing. `BoxUnion.event_comparison` decides one pair at a time.

    Args:
        boxes: the retained set and sigma.
        centers: c, shape [..., dim].
        axis: the coordinate that moves.
        step: signed length of the move, in the units of sigma, not 0.
        spacing: greatest distance of neighbouring thresholds, in sigmas. All centers share the thresholds.

    Returns:
        Slack in standard deviations, shape [...], good to about 1e-9. It is not rounded to a side.

    Raises:
        ValueError: `axis` or `spacing` is out of range, or `step` is 0.

    >>> bands = BoxUnion([[-1.0], [0.9]], [[-0.9], [1.0]], 1.0)
    >>> bool(axis_event_slack(bands, [0.0], axis=0, step=0.1) < 0.0)
    True
    """
    points = _boxes.checked_center("centers", centers, boxes.dim)
    moved = checks.count("axis", axis)
    if not moved < boxes.dim:
        raise ValueError(f"`axis` must be below the dimension {boxes.dim}, got {moved}.")
    move = checks.finite("step", step) / boxes.sigma
    if move == 0.0:
        raise ValueError("`step` must not be 0: a center compared with itself violates nothing.")
    grid = _thresholds(boxes, points, moved, checks.positive("spacing", spacing))
    flat = points.reshape(-1, boxes.dim)
    cells = _log_cells(boxes, flat, moved, grid)
    shifted = flat.copy()
    shifted[:, moved] += boxes.sigma * move
    start, stop = _probits(cells), _probits(_log_cells(boxes, shifted, moved, grid))
    # A move to the left reverses the order of the halfspaces, hence both signs.
    with np.errstate(invalid="ignore"):
        slack = np.sign(move) * (stop - start) + abs(move)
    known = np.isfinite(start) & np.isfinite(stop)
    return np.asarray(np.where(known, slack, np.inf).min(axis=-1).reshape(points.shape[:-1]))


def _thresholds(boxes: BoxUnion, points: Array, axis: int, spacing: float) -> Array:
    """Return thresholds that include every end of a box and are at most `spacing` apart inside the boxes."""
    ends = np.unique(np.concatenate([boxes.lows[:, axis], boxes.highs[:, axis]]))
    finite = ends[np.isfinite(ends)]
    seen = np.concatenate([finite, [points[..., axis].min(), points[..., axis].max()]])
    low, high = seen.min() - _REACH * boxes.sigma, seen.max() + _REACH * boxes.sigma
    inner = np.unique(np.clip(ends, low, high))
    parts = [
        np.linspace(a, b, max(int(np.ceil((b - a) / (spacing * boxes.sigma))), 4), endpoint=False)
        for a, b in pairwise(inner)
    ]
    return np.asarray(np.unique(np.concatenate([*parts, inner[-1:], ends])))


def _log_cells(boxes: BoxUnion, points: Array, axis: int, grid: Array) -> Array:
    """Return the log mass of K between neighbouring thresholds, shape [points, cells]."""
    seen = points[:, None, :]
    width = np.broadcast_to((boxes.highs - boxes.lows) / boxes.sigma, (len(points), *boxes.lows.shape))
    masses = log_masses((boxes.lows - seen) / boxes.sigma, (boxes.highs - seen) / boxes.sigma, width)
    rest = np.delete(masses, axis, axis=-1).sum(axis=-1)
    left, right = grid[:-1], grid[1:]
    covers = (boxes.lows[:, axis, None] <= left) & (right <= boxes.highs[:, axis, None])
    profile = np.full((len(points), len(left)), -np.inf)
    for pattern in np.unique(covers, axis=1).T:
        if pattern.any():
            here = (covers == pattern[:, None]).all(axis=0)
            profile[:, here] = logsumexp(rest[:, pattern], axis=-1)[:, None]
    at = points[:, axis, None]
    sides = np.broadcast_to((right - left) / boxes.sigma, profile.shape)
    return np.asarray(profile + log_masses((left - at) / boxes.sigma, (right - at) / boxes.sigma, sides))


def _probits(cells: Array) -> Array:
    """Return normal quantiles of the conditional law at the inner thresholds."""
    cells = cells - logsumexp(cells, axis=-1, keepdims=True)
    below = np.logaddexp.accumulate(cells, axis=-1)[:, :-1]
    above = np.logaddexp.accumulate(cells[:, ::-1], axis=-1)[:, ::-1][:, 1:]
    return probit(np.minimum(below, 0.0), np.minimum(above, 0.0))
