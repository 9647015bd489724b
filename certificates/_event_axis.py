"""The event criterion for moves along one axis: branch and bound on an exact one-dimensional law."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from ccfs.certificates._event_tools import Margins, Tail, cumulative, probit, quantile
from ccfs.certificates._truncated import log_masses

__all__ = ["axis_margins"]

Array = NDArray[np.float64]
_ROUNDS = 80
_POINTS = 60_000
_GAP = 1e-8
# A probability above this is better described by its complement.
_LOG_CLOSE_TO_ONE = -0.1


def axis_margins(start: Array, stop: Array, rest: Array, rho: float, doubt: float) -> Margins:
    """Bracket the least slack for intervals [start, stop] of log cross-section mass `rest`; a at 0 and b at rho > 0.

    The tangent of T at the left end of a cell, with the likelihood ratio there as its slope, stays below T; where it is
    above h at both ends of the cell it is above the convex h between them. The same with the complements from the right
    end. Cells whose bound is not within 1e-8 of the least slack seen are halved.

    Unbounded tails, where the cross-section g is constant: F_c = k_c Phi with k_c = g / occupancy. The elasticity of h
    grows with p because the inverse Mills ratio is log-concave, so that h(k p) / h(p) is monotone in p with limit k at
    0. The criterion holds in the tail if k_b > k_a and it holds at the tail's inner end; if k_b < k_a it fails.
    """
    breaks = np.unique(np.concatenate([start, stop]))
    inner = breaks[np.isfinite(breaks)]
    if inner.size == 0:
        return Margins(lower=rho, upper=0.0, tail=Tail.HOLDS)
    samples = np.concatenate([inner[0] - 2.0 ** np.arange(7), inner[-1] + 2.0 ** np.arange(7)])
    grid = np.unique(np.concatenate([breaks, samples]))
    grid = grid[(grid >= breaks[0]) & (grid <= breaks[-1])]
    for _ in range(_ROUNDS):
        bounds, slack, gain = _cells(grid, start, stop, rest, rho)
        bounds[(grid[1:] <= inner[0]) | (grid[:-1] >= inner[-1])] = np.inf
        least = min(float(slack.min()), rho)
        middle = 0.5 * grid[:-1] + 0.5 * grid[1:]
        open_cells = bounds < least - min(_GAP, 0.25 * abs(least))
        open_cells &= (middle > grid[:-1]) & (middle < grid[1:])
        if not np.any(open_cells) or grid.size > _POINTS:
            break
        grid = np.sort(np.concatenate([grid, middle[open_cells]]))
    tail = Tail.BOUNDED
    for unbounded, lead in ((np.isneginf(grid[0]), gain), (np.isposinf(grid[-1]), -gain)):
        if unbounded and tail is not Tail.OPEN:
            tail = Tail.HOLDS if lead > doubt else Tail.OPEN
    upper = least if tail is Tail.BOUNDED else min(least, 0.0)
    return Margins(lower=min(float(bounds.min()), least), upper=upper, tail=tail)


def _cells(grid: Array, start: Array, stop: Array, rest: Array, rho: float) -> tuple[Array, Array, float]:
    """Return lower bounds on the slack in the cells, the slack at the points, and log occupancy at a minus at b."""
    left, right = grid[:-1], grid[1:]
    covers = (start[:, None] <= left) & (right <= stop[:, None])
    profile = np.full(left.shape, -np.inf)
    covered = covers.any(axis=0)
    profile[covered] = logsumexp(np.where(covers, rest[:, None], -np.inf)[:, covered], axis=0)
    cell_a, cell_b = (profile + log_masses(left - c, right - c, right - left) for c in (0.0, rho))
    total_a, total_b = float(logsumexp(cell_a)), float(logsumexp(cell_b))
    cell_a, cell_b = cell_a - total_a, cell_b - total_b
    below_a, above_a = cumulative(cell_a)
    below_b, above_b = cumulative(cell_b)
    probit_a, probit_b = probit(below_a, above_a), probit(below_b, above_b)
    with np.errstate(invalid="ignore"):
        slack = np.where(np.isfinite(probit_a) & np.isfinite(probit_b), probit_b - probit_a + rho, np.inf)
        ratio = rho * grid - 0.5 * rho * rho + total_a - total_b
        by_left = _tangent(below_b[:-1], ratio[:-1] + cell_a, slack[:-1], rho - probit_a[1:])
        by_right = _tangent(above_a[1:], cell_b - ratio[1:], slack[1:], rho + probit_b[:-1])
    bounds = np.maximum(by_left, by_right)
    bounds[~covered] = np.inf
    return bounds, slack, total_a - total_b


def _tangent(log_value: Array, log_rise: Array, slack: Array, offset: Array) -> Array:
    """Return the bound from one end of the cells: the slack there and where the tangent arrives at the other end."""
    arrival = np.logaddexp(log_value, np.where(np.isnan(log_rise), -np.inf, log_rise))
    bound = np.minimum(slack, quantile(arrival) + offset)
    return np.where((arrival <= _LOG_CLOSE_TO_ONE) & ~np.isnan(bound), bound, -np.inf)
