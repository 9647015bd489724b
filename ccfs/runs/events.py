"""Decide events from public traces. Abstention, a number that is not finite or a crash is always a failure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.runs.outcomes import Outcome
from ccfs.runs.trace import Trace

__all__ = [
    "AllOf",
    "CostAtMost",
    "Event",
    "GoalBeforeCost",
    "NoAbstention",
    "NoCostUntilGoal",
    "NotTerminated",
    "ReturnAtLeast",
    "Terminated",
    "holds",
    "is_lost_by_ending",
    "total_cost",
]

# Every run records the digest of its event's class and of all that this class reaches in this file. After a change
# there, runs that were made before are not counted again: `ccfs certify` refuses them. Comments and docstrings may
# change freely, and a new event may be added, as long as nothing that stands here mentions it.


@runtime_checkable
class Event(Protocol):
    """A measurable set of public traces, fixed before sampling.

    Write your own event for what the shipped ones do not say. If the environment reported no cost, the cost is NaN in
    the trace. So ask whether all costs are at most 0, `(trace.cost <= 0).all()`, not whether none is positive.

    An event of your own never holds for a trial that abstained, crashed or met a number that is not finite. A shipped
    event may hold for such a trial if the trial reached its goal before.
    """

    def holds(self, trace: Trace) -> bool:
        """Return whether the event holds. The answer must depend on the trace alone."""
        ...


def holds(event: Event, trace: Trace) -> bool:
    """Return whether an event holds. Refuse an answer that is not a bool, so that NaN or None is never a success."""
    # The events of this file look at the outcome themselves. For any other event, also a subclass of one of these, a
    # broken trial is never a success. No list of their names, because adding to it would change the digest of each.
    if trace.outcome in _BROKEN and type(event).__module__ != __name__:
        return False
    verdict = event.holds(trace)
    if not isinstance(verdict, (bool, np.bool_)):
        raise TypeError(f"`holds` must return True or False, got {verdict!r} from {event!r}.")
    return bool(verdict)


def _sound_steps(trace: Trace) -> int:
    """Return how many steps were executed and gave finite numbers, from the first step on."""
    return trace.executed - (trace.outcome is Outcome.NONFINITE)


def _is_full(trace: Trace, horizon: int) -> bool:
    """Return whether the first `horizon` steps all happened, or the protocol's rule stopped the trial at the goal."""
    sound = _sound_steps(trace)
    return sound >= horizon or (trace.outcome is Outcome.GOAL and sound == trace.executed)


def total_cost(trace: Trace, horizon: int) -> float:
    """Return the total cost over `horizon` steps, or until the protocol's rule stops at the goal.

    It is infinite if it is unknown, because the trial ended early or a step reported no cost.
    """
    if not _is_full(trace, horizon):
        return math.inf
    total = math.fsum(trace.cost[:horizon])
    return math.inf if math.isnan(total) else total


def _is_costless(cost: NDArray[np.float64]) -> bool:
    return bool((cost <= 0.0).all())  # an unknown cost is NaN, and NaN must not count as no cost


def _goal_step(trace: Trace, horizon: int) -> int | None:
    met = np.flatnonzero(trace.goal[: min(_sound_steps(trace), horizon)])
    return int(met[0]) if met.size else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Horizon:
    horizon: int

    def __post_init__(self) -> None:
        checks.count("horizon", self.horizon, minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCostUntilGoal(_Horizon):
    """No positive cost up to and including the first goal step, or over all `horizon` steps without a goal.

    The paper's event of the learned-controller evaluation. A timeout without cost is a success.
    """

    def holds(self, trace: Trace) -> bool:
        """Return whether the trace avoids cost."""
        goal = _goal_step(trace, self.horizon)
        if goal is not None:
            return _is_costless(trace.cost[: goal + 1])
        return _sound_steps(trace) >= self.horizon and _is_costless(trace.cost[: self.horizon])


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalBeforeCost(_Horizon):
    """A goal within `horizon` steps and no positive cost up to and including its step."""

    def holds(self, trace: Trace) -> bool:
        """Return whether the trace reaches the goal before any cost."""
        goal = _goal_step(trace, self.horizon)
        return goal is not None and _is_costless(trace.cost[: goal + 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAtMost(_Horizon):
    """Total cost over `horizon` steps (or until the protocol's rule stops at the goal) at most `limit`."""

    limit: float

    def __post_init__(self) -> None:
        checks.count("horizon", self.horizon, minimum=1)
        checks.finite("limit", self.limit)

    def holds(self, trace: Trace) -> bool:
        """Return whether the total cost stays within the limit."""
        return total_cost(trace, self.horizon) <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnAtLeast(_Horizon):
    """Total reward at least `value`: of the first `horizon` steps, or of an episode that the environment terminated.

    A terminated episode earns nothing more, so its return is known. An episode that the environment truncated before
    `horizon` steps could have gone on, so its return is unknown and it fails.
    """

    value: float

    def __post_init__(self) -> None:
        checks.count("horizon", self.horizon, minimum=1)
        checks.finite("value", self.value)

    def holds(self, trace: Trace) -> bool:
        """Return whether the return is large enough."""
        return self._is_known(trace) and math.fsum(trace.reward[: self.horizon]) >= self.value

    def _is_known(self, trace: Trace) -> bool:
        return trace.outcome is Outcome.TERMINATED or _is_full(trace, self.horizon)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated(_Horizon):
    """The environment terminated the episode within `horizon` steps. MountainCar does so when the flag is reached."""

    def holds(self, trace: Trace) -> bool:
        """Return whether the environment terminated the episode in time."""
        return trace.outcome is Outcome.TERMINATED and trace.executed <= self.horizon


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTerminated(_Horizon):
    """The environment did not terminate the episode within `horizon` steps. CartPole does so when the pole falls.

    An episode that the environment truncated before was not terminated. Neither was one that the protocol's rule
    stopped at the goal.
    """

    def holds(self, trace: Trace) -> bool:
        """Return whether the episode lasted."""
        if trace.outcome is Outcome.TERMINATED:
            return trace.executed > self.horizon
        return trace.outcome is Outcome.TRUNCATED or _is_full(trace, self.horizon)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAbstention(_Horizon):
    """An action was accepted at every step of the horizon, or until the protocol's rule stopped at the goal."""

    def holds(self, trace: Trace) -> bool:
        """Return whether nothing ended the trial early."""
        return _is_full(trace, self.horizon)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllOf:
    """The conjunction of several events."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))
        if not (self.events and all(isinstance(event, Event) for event in self.events)):
            raise TypeError(f"`events` must hold at least one event, got {self.events!r}.")

    def holds(self, trace: Trace) -> bool:
        """Return whether every event holds."""
        return all(holds(event, trace) for event in self.events)


_BROKEN = frozenset({Outcome.ABSTAINED, Outcome.NONFINITE, Outcome.CRASHED})


def is_lost_by_ending(event: Event, trace: Trace) -> bool:
    """Return whether a trial fails an event because of how it ended, and not because of what happened until then.

    For an event of the user's own only a broken trial is such a failure, because the event was then not asked.
    """
    if holds(event, trace):
        return False
    if type(event).__module__ != __name__:
        return trace.outcome in _BROKEN
    if isinstance(event, (Terminated, NotTerminated)):
        return trace.outcome not in (Outcome.TERMINATED, Outcome.HORIZON)
    if isinstance(event, AllOf):
        return any(is_lost_by_ending(part, trace) for part in event.events)
    if isinstance(event, ReturnAtLeast):
        return not event._is_known(trace)
    horizon = event.horizon if isinstance(event, _Horizon) else 0
    if _is_full(trace, horizon):
        return False
    if isinstance(event, CostAtMost):
        return math.fsum(trace.cost) <= event.limit
    if isinstance(event, (NoCostUntilGoal, GoalBeforeCost)):
        return _goal_step(trace, horizon) is None and _is_costless(trace.cost[: _sound_steps(trace)])
    return True
