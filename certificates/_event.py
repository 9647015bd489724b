"""The ordered-pair event criterion on unions of boxes: does every event obey the Gaussian comparison from a to b?

Proposition 3 (prop:event-criterion) asks for Phi^-1(F_b(t)) >= Phi^-1(F_a(t)) - rho at every t. F is the law of the
projection X on the direction of the move, and rho is the length of the move in units of sigma. Equivalently, the least
Q_b-mass T(p) of an event with Q_a-mass p is at least h(p) = Phi(Phi^-1(p) - rho). Both functions are convex, and the
slope of T is the likelihood ratio, exp(rho X) times a constant. So a polygon below T that is above h at its corners is
above h between them. This is how a finite computation covers every t.

*Slack* is the left side of the criterion minus the right side. The two methods below bracket its least value: the axis
method for moves along one axis, the lattice method for every other direction. Both compute in double precision, and
neither gives a certified enclosure. A verdict other than UNDECIDED needs a margin above the numerical one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import log_ndtr, logsumexp, ndtri_exp

from ccfs.certificates import _boxes
from ccfs.certificates._truncated import log_masses, reach

__all__ = ["EventComparison", "EventVerdict", "compare_events", "probit"]

Array = NDArray[np.float64]
_LOG_HALF = -math.log(2.0)

# Axis method: it stops at these sizes, or when no cell can be more than _GAP below the least slack seen.
_ROUNDS = 80
_POINTS = 60_000
_GAP = 1e-8
# A probability above this is better described by its complement.
_LOG_CLOSE_TO_ONE = -0.1

# Lattice method: points across the projected set, exponential tilts of the laws, and the error of the FFT as a share
# of the greatest entry.
_STEPS = 32_768
_TILTS = (0.0, *(sign * size for size in (1.5, 3.0, 5.0, 8.0, 12.0, 18.0, 24.0, 36.0, 60.0) for sign in (-1.0, 1.0)))
_ERROR = 1e-11
# Sides are cut off where the density has fallen by exp(-200), at 20 sigma inside. They leave less than this.
_DROP = 200.0
_LOG_MISSING = -180.0


class EventVerdict(Enum):
    """What is known about the comparison of all events."""

    HOLDS = "every event obeys the Gaussian comparison"
    FAILS = "some event violates the Gaussian comparison"
    UNDECIDED = "the smallest slack is within the numerical margin, or beyond the tail analysis"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventComparison:
    """A verdict and a bracket of the least slack, in standard deviations. `doubt` is the numerical margin."""

    verdict: EventVerdict
    margin_lower: float
    margin_upper: float
    doubt: float

    @property
    def margin(self) -> float:
        """The end of the bracket that decides: the upper end when the comparison fails, else the lower end."""
        return self.margin_upper if self.verdict is EventVerdict.FAILS else self.margin_lower


def compare_events(lows: Array, highs: Array, sigma: float, a: Array, b: Array) -> EventComparison:
    """Decide the criterion of Proposition 3 (prop:event-criterion) for one ordered pair of centers.

    Convex unions, and unions that are one box in the moved coordinates, hold by Corollary 2 (cor:convex-event). The
    axis method finds the slack to about 1e-8. The lattice method decides all other directions.

    Args:
        lows: lower corners, shape [boxes, dim].
        highs: upper corners.
        sigma: Gaussian scale.
        a: the center from which the comparison starts, shape [dim].
        b: the center to which it goes.
    """
    move = (b - a) / sigma
    active = np.flatnonzero(move)
    if active.size == 0:
        return EventComparison(verdict=EventVerdict.HOLDS, margin_lower=0.0, margin_upper=0.0, doubt=0.0)
    width = (highs - lows) / sigma
    at_a, at_b = (log_masses((lows - c) / sigma, (highs - c) / sigma, width) for c in (a, b))
    totals = logsumexp(at_a.sum(axis=1)), logsumexp(at_b.sum(axis=1))
    rho = float(np.linalg.norm(move))
    # Log masses carry errors in proportion to their size. The factor leaves room for the sums of them.
    doubt = 256.0 * float(np.finfo(np.float64).eps) * (1.0 + max(abs(float(x)) for x in totals) + rho * rho)
    if active.size == 1:
        axis = int(active[0])
        rest = np.delete(at_a, axis, axis=1).sum(axis=1)
        start, stop = (lows[:, axis] - a[axis]) / sigma, (highs[:, axis] - a[axis]) / sigma
        # Mirrored if need be, so that the move goes to the right.
        if move[axis] < 0.0:
            start, stop = -stop, -start
        margins = _axis_margins(start, stop, rest, rho, doubt)
    else:
        margins = _lattice_margins((lows - a) / sigma, (highs - a) / sigma, move, at_a, at_b)
    # Boxes that differ only along the axes that do not move: in the moved coordinates the law is that of one box.
    fixed = bool(np.all(lows[:, active] == lows[0, active]) and np.all(highs[:, active] == highs[0, active]))
    return _verdict(margins, doubt, convex=fixed or _boxes.is_one_box(lows, highs))


def _verdict(margins: _Margins, doubt: float, *, convex: bool) -> EventComparison:
    lower, upper = min(margins.lower, margins.tail.value), margins.upper
    if convex:
        # Proved for convex sets, so rounding has no say.
        lower = max(lower, 0.0)
        verdict, upper = EventVerdict.HOLDS, max(lower, upper)
    elif upper < -doubt:
        verdict = EventVerdict.FAILS
    elif margins.lower > doubt and margins.tail is not _Tail.OPEN:
        verdict = EventVerdict.HOLDS
    else:
        verdict = EventVerdict.UNDECIDED
    return EventComparison(verdict=verdict, margin_lower=lower, margin_upper=upper, doubt=doubt)


class _Tail(Enum):
    """What is known about the slack in unbounded tails. The value is the least slack that remains possible."""

    BOUNDED = math.inf
    HOLDS = 0.0
    OPEN = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class _Margins:
    """Lower bound on the slack outside the tails, least slack seen at any event, and the state of the tails."""

    lower: float
    upper: float
    tail: _Tail


def _axis_margins(start: Array, stop: Array, rest: Array, rho: float, doubt: float) -> _Margins:
    """Bracket the least slack on a line, by branch and bound on the exact law of the projection.

    The tangent of T at the left end of a cell has the likelihood ratio there as its slope and stays below T. Where it
    is above h at both ends of the cell, it is above the convex h between them. The complements give the same from the
    right end. A cell is halved if its bound is not within 1e-8 of the least slack seen.

    In an unbounded tail the cross-section g is constant, so F_c = k_c Phi with k_c = g / occupancy. The inverse Mills
    ratio is log-concave, so the elasticity of h grows with p, and h(k p) / h(p) is monotone in p with the limit k at 0.
    If k_b > k_a, the criterion holds in the tail as soon as it holds at the tail's inner end. If k_b < k_a, it fails.

    Args:
        start: left ends of the intervals, with a at 0 and b at rho.
        stop: right ends.
        rest: log mass of the cross-section of each interval.
        rho: length of the move in sigmas, positive.
        doubt: numerical margin.
    """
    breaks = np.unique(np.concatenate([start, stop]))
    inner = breaks[np.isfinite(breaks)]
    if inner.size == 0:
        return _Margins(lower=rho, upper=0.0, tail=_Tail.HOLDS)
    # Points beyond the finite ends show the slack in unbounded tails.
    samples = np.concatenate([inner[0] - 2.0 ** np.arange(7), inner[-1] + 2.0 ** np.arange(7)])
    grid = np.unique(np.concatenate([breaks, samples]))
    grid = grid[(grid >= breaks[0]) & (grid <= breaks[-1])]
    for _ in range(_ROUNDS):
        bounds, slack, gain = _cells(grid, start, stop, rest, rho)
        # Cells inside of a tail are decided by the argument about tails, not by tangents.
        bounds[(grid[1:] <= inner[0]) | (grid[:-1] >= inner[-1])] = np.inf
        least = min(float(slack.min()), rho)
        middle = 0.5 * grid[:-1] + 0.5 * grid[1:]
        open_cells = bounds < least - min(_GAP, 0.25 * abs(least))
        # A cell between two neighbouring doubles cannot be halved.
        open_cells &= (middle > grid[:-1]) & (middle < grid[1:])
        if not np.any(open_cells) or grid.size > _POINTS:
            break
        grid = np.sort(np.concatenate([grid, middle[open_cells]]))
    tail = _Tail.BOUNDED
    for unbounded, lead in ((np.isneginf(grid[0]), gain), (np.isposinf(grid[-1]), -gain)):
        if unbounded and tail is not _Tail.OPEN:
            tail = _Tail.HOLDS if lead > doubt else _Tail.OPEN
    # Far out in an unbounded tail the slack tends to 0.
    upper = least if tail is _Tail.BOUNDED else min(least, 0.0)
    return _Margins(lower=min(float(bounds.min()), least), upper=upper, tail=tail)


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
    below_a, above_a = _cumulative(cell_a)
    below_b, above_b = _cumulative(cell_b)
    probit_a, probit_b = probit(below_a, above_a), probit(below_b, above_b)
    with np.errstate(invalid="ignore"):
        slack = np.where(np.isfinite(probit_a) & np.isfinite(probit_b), probit_b - probit_a + rho, np.inf)
        # Log of the likelihood ratio of b to a, which is the slope of T.
        ratio = rho * grid - 0.5 * rho * rho + total_a - total_b
        by_left = _tangent(below_b[:-1], ratio[:-1] + cell_a, slack[:-1], rho - probit_a[1:])
        by_right = _tangent(above_a[1:], cell_b - ratio[1:], slack[1:], rho + probit_b[:-1])
    bounds = np.maximum(by_left, by_right)
    bounds[~covered] = np.inf
    return bounds, slack, total_a - total_b


def _tangent(log_value: Array, log_rise: Array, slack: Array, offset: Array) -> Array:
    """Return the bound from one end of the cells, by the slack there and the tangent's value at the other end."""
    arrival = np.logaddexp(log_value, np.where(np.isnan(log_rise), -np.inf, log_rise))
    bound = np.minimum(slack, _quantile(arrival) + offset)
    # Next to probability 1 a log has few digits left. The cell then relies on its other end.
    return np.where((arrival <= _LOG_CLOSE_TO_ONE) & ~np.isnan(bound), bound, -np.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Law:
    """Enclosures of the log masses of a law on consecutive lattice points."""

    lower: Array
    upper: Array

    def cut(self, points: slice) -> _Law:
        return _Law(lower=self.lower[points], upper=self.upper[points])


def _lattice_margins(lows: Array, highs: Array, move: Array, at_a: Array, at_b: Array) -> _Margins:
    """Bracket the least slack for a move in any direction, by laws of the projection on a lattice.

    In every box the projection X is a sum of independent truncated normals. Each is rounded down to a lattice of
    spacing h. The sum S of the m rounded terms has S <= X <= S + m h, and its law under either center is a convolution.

    - The events {S <= x} are real events with computed masses. A violation among them is a violation.
    - The likelihood ratio increases with X, so it is at least its value at S. Neyman-Pearson with that smaller ratio
      bounds T from below by a polygon, at a relative price of exp(-rho m h).

    The price in slack is about rho m h, where h is the length of the projected set over 32768. Convolution by FFT has
    an absolute error below 1e-11 of the greatest entry. So it is done for several exponential tilts of the same laws.
    Each tilt shows another part of the tails at full size, and every entry keeps its best enclosure. Sides of the set
    farther than 20 sigma are treated as unbounded.

    Args:
        lows: lower corners relative to a, in sigmas, shape [boxes, dim].
        highs: upper corners.
        move: b - a in sigmas.
        at_a: log masses per box and axis under the center a.
        at_b: the same under b.
    """
    rho = float(np.linalg.norm(move))
    active = np.flatnonzero(move)
    starts, stops = _windows(lows, highs, move)
    step, base, law_a, law_b = _projected_laws(starts[:, active], stops[:, active], move[active], at_a, at_b)
    lows, highs = np.where(starts > lows, -np.inf, lows), np.where(stops < highs, np.inf, highs)
    gain = float(logsumexp(at_a.sum(axis=1)) - logsumexp(at_b.sum(axis=1)))
    ratio = rho * step * (base + np.arange(law_a.upper.size)) - 0.5 * rho * rho + gain
    low_end = _tail_law(lows, highs, move, at_a, at_b)
    high_end = _tail_law(lows - move, highs - move, -move, at_b, at_a)
    # Rounding down moves a threshold by at most one step per axis, hence the overlap of the two halves.
    middle = int(np.argmax(np.logaddexp.accumulate(law_a.upper) >= _LOG_HALF))
    overlap = max(middle - active.size - 1, 0)
    # From the other end the two laws change places. The greatest X that rounds to a point gives the least inverse
    # ratio.
    backward = -(ratio + rho * step * active.size)[::-1]
    lower = min(
        _half_margin(law_a, ratio, middle + 1, rho, low_end),
        _half_margin(law_b.cut(slice(None, None, -1)), backward, ratio.size - overlap, rho, high_end),
    )
    open_tail = low_end.is_full or high_end.is_full
    return _Margins(
        lower=min(lower, rho), upper=_least_slack(law_a, law_b, rho), tail=_Tail.OPEN if open_tail else _Tail.BOUNDED
    )


def _projected_laws(
    starts: Array, stops: Array, move: Array, at_a: Array, at_b: Array
) -> tuple[float, int, _Law, _Law]:
    """Return the spacing of the lattice, the first index, and the laws of the rounded projection at a and at b."""
    slope = move / np.linalg.norm(move)
    begin, end = np.minimum(starts * slope, stops * slope), np.maximum(starts * slope, stops * slope)
    step = float((end.sum(axis=1).max() - begin.sum(axis=1).min()) / _STEPS)
    first, last = (np.floor(x / step).astype(np.int64) for x in (begin, end))
    base = int(first.sum(axis=1).min())
    laws = []
    for center, masses in ((np.zeros_like(move), at_a.sum(axis=1)), (move, at_b.sum(axis=1))):
        shares = masses - logsumexp(masses)
        total = np.full((2, int(last.sum(axis=1).max()) - base + 1), -np.inf)
        for box, share in enumerate(shares):
            pieces = []
            for k in range(move.size):
                points = step * np.arange(first[box, k], last[box, k] + 2)
                pieces.append(_cell_masses(np.clip(points, begin[box, k], end[box, k]) / slope[k], center[k]))
            part = share + _convolved(pieces, step)
            offset = int(first[box].sum()) - base
            target = total[:, offset : offset + part.shape[1]]
            np.logaddexp(target, part, out=target)
        laws.append(_Law(lower=total[0], upper=total[1]))
    return step, base, laws[0], laws[1]


def _windows(lows: Array, highs: Array, move: Array) -> tuple[Array, Array]:
    """Return the parts of the intervals that at least one of the centers can reach."""
    starts, stops = [], []
    for center in (0.0, move):
        beyond, before = np.maximum(center - highs, 0.0), np.maximum(lows - center, 0.0)
        starts.append(np.maximum(lows, np.minimum(highs, center) - reach(beyond, _DROP)))
        stops.append(np.minimum(highs, np.maximum(lows, center) + reach(before, _DROP)))
    return np.minimum(*starts), np.maximum(*stops)


def _cell_masses(edges: Array, center: float) -> Array:
    """Return the log masses of the cells between monotone `edges`, which may coincide at the ends, as a law."""
    left, right = np.minimum(edges[:-1], edges[1:]), np.maximum(edges[:-1], edges[1:])
    logs = np.full(left.size, -np.inf)
    real = right > left
    logs[real] = log_masses(left[real] - center, right[real] - center, (right - left)[real])
    return np.asarray(logs - logsumexp(logs))


def _convolved(pieces: list[Array], step: float) -> Array:
    """Return lower and upper values, shape [2, size], of the log of the convolution of laws given by log masses."""
    length = sum(piece.size - 1 for piece in pieces) + 1
    size = next_fast_len(length, real=True)
    # In logs, a probability is between nothing and 1 until a tilt says more.
    best = np.stack([np.full(length, -np.inf), np.zeros(length)])
    for tilt in _TILTS:
        product, norm = np.ones(size // 2 + 1, dtype=np.complex128), 0.0
        for piece in pieces:
            # Tilting commutes with convolution: it multiplies by exp(tilt x), and exponents add up.
            tilted = piece + tilt * step * np.arange(piece.size)
            scale = float(logsumexp(tilted))
            norm += scale
            product *= rfft(np.exp(tilted - scale), size)
        law = irfft(product, size)[:length]
        error = _ERROR * law.max()
        back = norm - tilt * step * np.arange(length)
        with np.errstate(divide="ignore"):
            best[0] = np.maximum(best[0], np.log(np.maximum(law - error, 0.0)) + back)
            best[1] = np.minimum(best[1], np.log(np.maximum(law, 0.0) + error) + back)
    return np.asarray(best)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TailLaw:
    """T(p) >= factor h_reach(p) for every p, with h_reach(p) = Phi(Phi^-1(p) - reach)."""

    log_factor: float
    reach: float
    is_full: bool


def _tail_law(lows: Array, highs: Array, move: Array, at_from: Array, at_to: Array) -> _TailLaw:
    """Bound T near 0 by what every box does, with bounds relative to the center from which the move starts.

    In each box, split the moved axes into those that are unbounded against the move and the others. The former span a
    convex product, so its sections obey the comparison with their part of the move (Corollary 2, cor:convex-event). On
    the latter the likelihood ratio is at least its value at a finite corner. Jensen's inequality for the convex h then
    averages over sections and boxes.
    """
    active = move != 0.0
    against = np.where(move > 0.0, lows, highs)
    unbounded = active & ~np.isfinite(against)
    corner = np.where(unbounded | ~active, 0.0, against)
    per_axis = np.where(unbounded | ~active, 0.0, move * corner - 0.5 * move**2 + at_from - at_to)
    shares = at_to.sum(axis=1) - logsumexp(at_to.sum(axis=1)) - at_from.sum(axis=1) + logsumexp(at_from.sum(axis=1))
    return _TailLaw(
        log_factor=float((shares + per_axis.sum(axis=1)).min()),
        reach=float(np.sqrt(np.where(unbounded, move**2, 0.0).sum(axis=1).max())),
        is_full=bool((unbounded == active).all(axis=1).any()),
    )


def _half_margin(law: _Law, ratio: Array, count: int, rho: float, tail: _TailLaw) -> float:
    """Return a lower bound on the slack for events up to point `count` of `law`, which starts at an end of the set.

    Below some point the tail law is used. There h(p) / h_reach(p) grows with p, so one check covers all smaller p.
    """
    # What the windows cut off is added wherever it counts against the criterion.
    below = np.logaddexp(np.logaddexp.accumulate(law.upper)[:count], _LOG_MISSING)
    above = np.append(np.logaddexp.accumulate(law.lower[::-1])[::-1][1:], -np.inf)[:count]
    x = np.where(below < _LOG_HALF, _quantile(below), -_quantile(above))
    with np.errstate(invalid="ignore"):
        slack = _quantile(np.logaddexp.accumulate((law.lower + ratio)[:count])) - x + rho
        ends = _quantile(tail.log_factor + log_ndtr(x - tail.reach)) - x + rho
    onward = np.minimum.accumulate(np.where(np.isnan(slack), -np.inf, slack)[::-1])[::-1]
    ends = np.where(np.isnan(ends), -np.inf, np.minimum(ends, rho - tail.reach))
    return float(np.minimum(onward, ends).max())


def _least_slack(law_a: _Law, law_b: _Law, rho: float) -> float:
    """Return the least slack at the events {S <= x}, at the ends of the enclosures that favour the criterion."""
    # Here it is added in favour of the criterion: only a sure violation is one.
    below_b = np.logaddexp(np.logaddexp.accumulate(law_b.upper)[:-1], _LOG_MISSING)
    below_a = np.logaddexp.accumulate(law_a.lower)[:-1]
    above_b = np.logaddexp.accumulate(law_b.lower[::-1])[::-1][1:]
    above_a = np.logaddexp(np.logaddexp.accumulate(law_a.upper[::-1])[::-1][1:], _LOG_MISSING)
    greatest_b = np.where(below_b < _LOG_HALF, _quantile(below_b), -_quantile(above_b))
    least_a = np.where(above_a < _LOG_HALF, -_quantile(above_a), _quantile(below_a))
    with np.errstate(invalid="ignore"):
        slack = greatest_b - least_a + rho
    return float(np.min(slack, initial=rho, where=np.isfinite(slack)))


def _cumulative(cells: Array) -> tuple[Array, Array]:
    """Return the log mass below and above each end of a cell, from the log masses of the cells."""
    nothing = np.array([-np.inf])
    below = np.concatenate([nothing, np.logaddexp.accumulate(cells)])
    above = np.concatenate([np.logaddexp.accumulate(cells[::-1])[::-1], nothing])
    return np.minimum(below, 0.0), np.minimum(above, 0.0)


def probit(below: Array, above: Array) -> Array:
    """Return the normal quantile of a probability, from its log and the log of its complement."""
    return np.where(below < above, _quantile(np.minimum(below, above)), -_quantile(np.minimum(below, above)))


def _quantile(log_probability: Array) -> Array:
    """Return the normal quantile of exp(log_probability), with full accuracy only below one half."""
    with np.errstate(all="ignore"):
        return np.asarray(ndtri_exp(np.minimum(log_probability, 0.0)))
