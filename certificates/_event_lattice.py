"""The event criterion for moves in any direction: laws of the projection bracketed on a lattice.

In every box the projection X is a sum of independent truncated normals. Each is rounded down to a lattice of spacing h,
so that the sum S of the m rounded terms has S <= X <= S + m h, and its law under either center is a convolution. Then

- the events {S <= x} are real events with computed masses: a violation among them is a violation;
- the likelihood ratio, increasing in X, is at least its value at S: Neyman-Pearson with that smaller ratio bounds T
  from below by a polygon, at a relative price of exp(-rho m h).

The price in slack is about rho m h, h being the length of the projected set over 32768. Convolution by FFT has an
absolute error below 1e-11 of the greatest entry, so it is done for several exponential tilts of the same laws: each
shows another part of the tails at full size, and every entry keeps its best enclosure. Sides of the set farther than 20
sigma are treated as unbounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import log_ndtr, logsumexp

from ccfs.certificates._event_tools import Margins, Tail, quantile
from ccfs.certificates._truncated import log_masses, reach

__all__ = ["lattice_margins"]

Array = NDArray[np.float64]
_STEPS = 32_768
_LOG_HALF = -math.log(2.0)
_TILTS = (0.0, *(sign * size for size in (1.5, 3.0, 5.0, 8.0, 12.0, 18.0, 24.0, 36.0, 60.0) for sign in (-1.0, 1.0)))
_ERROR = 1e-11
# Sides cut off where the density has fallen by exp(-200), at 20 sigma inside, leave less than this.
_DROP = 200.0
_LOG_MISSING = -180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Law:
    """Enclosures of the log masses of a law on consecutive lattice points."""

    lower: Array
    upper: Array

    def cut(self, points: slice) -> _Law:
        return _Law(lower=self.lower[points], upper=self.upper[points])


def lattice_margins(lows: Array, highs: Array, move: Array, at_a: Array, at_b: Array) -> Margins:
    """Bracket the least slack; bounds relative to a and in units of sigma, `at_a` and `at_b` log masses per axis."""
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
    backward = -(ratio + rho * step * active.size)[::-1]
    lower = min(
        _half_margin(law_a, ratio, middle + 1, rho, low_end),
        _half_margin(law_b.cut(slice(None, None, -1)), backward, ratio.size - overlap, rho, high_end),
    )
    open_tail = low_end.is_full or high_end.is_full
    return Margins(
        lower=min(lower, rho), upper=_least_slack(law_a, law_b, rho), tail=Tail.OPEN if open_tail else Tail.BOUNDED
    )


def _projected_laws(
    starts: Array, stops: Array, move: Array, at_a: Array, at_b: Array
) -> tuple[float, int, _Law, _Law]:
    """Return lattice spacing, first index and the laws of the rounded projection under both centers."""
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
    """Return what is left of the intervals after dropping what neither center can reach."""
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
    best = np.stack([np.full(length, -np.inf), np.zeros(length)])
    for tilt in _TILTS:
        product, norm = np.ones(size // 2 + 1, dtype=np.complex128), 0.0
        for piece in pieces:
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
    """Bound T near 0 by what every box does; bounds relative to the center moved from.

    In one box split the moved axes into those unbounded against the move and the others. On the former, a convex
    product, sections obey the comparison with their part of the move (Corollary convex-event); on the latter the
    likelihood ratio is at least its value at a finite corner. Jensen's inequality for the convex h averages both
    sections and boxes.
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

    Below some point the tail law is used: h(p) / h_reach(p) grows with p, so that one check covers all smaller p.
    """
    below = np.logaddexp(np.logaddexp.accumulate(law.upper)[:count], _LOG_MISSING)
    above = np.append(np.logaddexp.accumulate(law.lower[::-1])[::-1][1:], -np.inf)[:count]
    x = np.where(below < _LOG_HALF, quantile(below), -quantile(above))
    with np.errstate(invalid="ignore"):
        slack = quantile(np.logaddexp.accumulate((law.lower + ratio)[:count])) - x + rho
        ends = quantile(tail.log_factor + log_ndtr(x - tail.reach)) - x + rho
    onward = np.minimum.accumulate(np.where(np.isnan(slack), -np.inf, slack)[::-1])[::-1]
    ends = np.where(np.isnan(ends), -np.inf, np.minimum(ends, rho - tail.reach))
    return float(np.minimum(onward, ends).max())


def _least_slack(law_a: _Law, law_b: _Law, rho: float) -> float:
    """Return the least slack at the events {S <= x}, taken at the ends of the enclosures that favour the criterion."""
    below_b = np.logaddexp(np.logaddexp.accumulate(law_b.upper)[:-1], _LOG_MISSING)
    below_a = np.logaddexp.accumulate(law_a.lower)[:-1]
    above_b = np.logaddexp.accumulate(law_b.lower[::-1])[::-1][1:]
    above_a = np.logaddexp(np.logaddexp.accumulate(law_a.upper[::-1])[::-1][1:], _LOG_MISSING)
    greatest_b = np.where(below_b < _LOG_HALF, quantile(below_b), -quantile(above_b))
    least_a = np.where(above_a < _LOG_HALF, -quantile(above_a), quantile(below_a))
    with np.errstate(invalid="ignore"):
        slack = greatest_b - least_a + rho
    return float(np.min(slack, initial=rho, where=np.isfinite(slack)))
