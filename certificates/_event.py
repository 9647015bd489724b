"""The ordered-pair event criterion on unions of boxes: does every event obey the Gaussian comparison from a to b?

Proposition event-criterion asks for Phi^-1(F_b(t)) >= Phi^-1(F_a(t)) - rho at every t, F the law of the projection X on
the direction of the move. Equivalently the least Q_b-mass T(p) of an event with Q_a-mass p is at least
h(p) = Phi(Phi^-1(p) - rho). Both are convex, and T has the likelihood ratio exp(rho X) times a constant as its slope.
A polygon below T that is above h at its corners is therefore above h between them: this is how a finite computation
covers every t. What is computed is double precision, not an enclosure; a verdict other than UNDECIDED needs a margin
above the numerical one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from ccfs.certificates import _boxes
from ccfs.certificates._event_axis import axis_margins
from ccfs.certificates._event_lattice import lattice_margins
from ccfs.certificates._event_tools import Margins, Tail
from ccfs.certificates._truncated import log_masses

__all__ = ["EventComparison", "EventVerdict", "compare_events"]

Array = NDArray[np.float64]


class EventVerdict(Enum):
    """What is known about the comparison of all events."""

    HOLDS = "every event obeys the Gaussian comparison"
    FAILS = "some event violates the Gaussian comparison"
    UNDECIDED = "the smallest slack is within the numerical margin, or beyond the tail analysis"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventComparison:
    """A verdict and the bracket of the least slack, in standard deviations; `doubt` is the numerical margin."""

    verdict: EventVerdict
    margin_lower: float
    margin_upper: float
    doubt: float

    @property
    def margin(self) -> float:
        """The end of the bracket that decides: the upper one when the comparison fails, else the lower one."""
        return self.margin_upper if self.verdict is EventVerdict.FAILS else self.margin_lower


def compare_events(lows: Array, highs: Array, sigma: float, a: Array, b: Array) -> EventComparison:
    """Decide the criterion for one ordered pair.

    Convex unions, and unions that are a fixed box in the moved coordinates, hold by Corollary convex-event. A move
    along one axis is decided by bisection to about 1e-8; other directions on a lattice (see `_event_lattice`).
    """
    move = (b - a) / sigma
    active = np.flatnonzero(move)
    if active.size == 0:
        return EventComparison(verdict=EventVerdict.HOLDS, margin_lower=0.0, margin_upper=0.0, doubt=0.0)
    width = (highs - lows) / sigma
    at_a, at_b = (log_masses((lows - c) / sigma, (highs - c) / sigma, width) for c in (a, b))
    totals = logsumexp(at_a.sum(axis=1)), logsumexp(at_b.sum(axis=1))
    rho = float(np.linalg.norm(move))
    doubt = 256.0 * float(np.finfo(np.float64).eps) * (1.0 + max(abs(float(x)) for x in totals) + rho * rho)
    if active.size == 1:
        axis = int(active[0])
        rest = np.delete(at_a, axis, axis=1).sum(axis=1)
        start, stop = (lows[:, axis] - a[axis]) / sigma, (highs[:, axis] - a[axis]) / sigma
        if move[axis] < 0.0:
            start, stop = -stop, -start
        margins = axis_margins(start, stop, rest, rho, doubt)
    else:
        margins = lattice_margins((lows - a) / sigma, (highs - a) / sigma, move, at_a, at_b)
    fixed = bool(np.all(lows[:, active] == lows[0, active]) and np.all(highs[:, active] == highs[0, active]))
    return _verdict(margins, doubt, convex=fixed or _boxes.is_one_box(lows, highs))


def _verdict(margins: Margins, doubt: float, *, convex: bool) -> EventComparison:
    lower, upper = min(margins.lower, margins.tail.value), margins.upper
    if convex:
        lower = max(lower, 0.0)
        verdict, upper = EventVerdict.HOLDS, max(lower, upper)
    elif upper < -doubt:
        verdict = EventVerdict.FAILS
    elif margins.lower > doubt and margins.tail is not Tail.OPEN:
        verdict = EventVerdict.HOLDS
    else:
        verdict = EventVerdict.UNDECIDED
    return EventComparison(verdict=verdict, margin_lower=lower, margin_upper=upper, doubt=doubt)
