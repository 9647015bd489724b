from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ccfs.runs.events import (
    AllOf,
    CostAtMost,
    GoalBeforeCost,
    NoAbstention,
    NoCostUntilGoal,
    NotTerminated,
    ReturnAtLeast,
    Terminated,
    holds,
    is_lost_by_ending,
)
from ccfs.runs.outcomes import Outcome


@dataclasses.dataclass
class Made:
    """A hand-made trace: costs, goals and an outcome."""

    cost: np.ndarray
    goal: np.ndarray
    outcome: Outcome
    executed: int
    reward: np.ndarray


def made(costs, goals="", outcome=Outcome.HORIZON):
    cost = np.array([float(value) for value in costs])
    goal = np.array([letter == "g" for letter in goals.ljust(len(cost), "-")], dtype=bool)
    executed = len(cost) - (outcome is Outcome.ABSTAINED)
    return Made(cost=cost, goal=goal, outcome=outcome, executed=executed, reward=np.ones(len(cost)))


nan = float("nan")
EVENTS = {
    "safe": NoCostUntilGoal(horizon=4),
    "reach": GoalBeforeCost(horizon=4),
    "cheap": CostAtMost(limit=1.0, horizon=4),
    "acts": NoAbstention(horizon=4),
    "earns": ReturnAtLeast(value=4.0, horizon=4),
}


@pytest.mark.parametrize(
    ("trace", "true"),
    [
        (made([0, 0, 0, 0]), {"safe", "cheap", "acts", "earns"}),
        (made([0, 0, 0, 1]), {"cheap", "acts", "earns"}),
        (made([0, 1, 1, 0]), {"acts", "earns"}),
        (made([0, 0, 1, 1], "-g"), {"safe", "reach", "acts", "earns"}),
        (made([0, 1, 0, 0], "-g"), {"cheap", "acts", "earns"}),  # cost at the goal step itself counts
        (made([0, 0], "-g", Outcome.GOAL), {"safe", "reach", "cheap", "acts"}),
        (made([0, 1], "--", Outcome.COST), set()),
        (made([0, 0, 0, 0], "", Outcome.ABSTAINED), set()),
        (made([0, 0, 0, 0], "g", Outcome.ABSTAINED), {"safe", "reach"}),  # the goal stopped these events
        (made([0, 0, 0], "", Outcome.TERMINATED), set()),
        (made([0, 0, 0], "--g", Outcome.TERMINATED), {"safe", "reach"}),
        (made([0, 0, 0, 0], "", Outcome.TERMINATED), {"safe", "cheap", "acts", "earns"}),  # at the last step
        (made([0, 0, 0, 1], "", Outcome.TERMINATED), {"cheap", "acts", "earns"}),
        (made([0, 0, 0], "", Outcome.TRUNCATED), set()),
        (made([0, 0, 0], "", Outcome.CRASHED), set()),
        (made([0, 0, 0, 0], "", Outcome.NONFINITE), set()),
        (made([0, 0, 0, 0], "---g", Outcome.NONFINITE), set()),  # the goal came with a number that is not finite
        (made([0, 0, 0, 0, 9], "", Outcome.NONFINITE), {"safe", "cheap", "acts", "earns"}),  # after the event's horizon
        (made([0, nan, 0, 0]), {"acts", "earns"}),
        (made([nan] * 4), {"acts", "earns"}),
        (made([nan] * 4, "g"), {"acts", "earns"}),
        (made([0, 0, 0, 0, 0], "----g"), {"safe", "cheap", "acts", "earns"}),  # goal after the event's horizon
        (made([], "", Outcome.CRASHED), set()),
        (made([], "", Outcome.NONFINITE), set()),
    ],
)
def test_events_on_hand_made_traces(trace, true):
    assert {name for name, event in EVENTS.items() if holds(event, trace)} == true


ENDS, LASTS, EARNS = Terminated(horizon=4), NotTerminated(horizon=4), ReturnAtLeast(value=3.0, horizon=4)


@pytest.mark.parametrize(
    ("trace", "ends", "lasts", "earns"),
    [
        (made([0] * 4), False, True, True),
        (made([0] * 3, "", Outcome.TERMINATED), True, False, True),  # a lander that has landed
        (made([0] * 2, "", Outcome.TERMINATED), True, False, False),
        (made([0] * 4, "", Outcome.TERMINATED), True, False, True),  # at the last step
        (made([0] * 5, "", Outcome.TERMINATED), False, True, True),  # after the event's horizon
        (made([0] * 3, "", Outcome.TRUNCATED), False, True, False),  # it could have gone on
        (made([0] * 3, "--g", Outcome.GOAL), False, True, True),
        (made([0] * 3, "", Outcome.COST), False, False, False),
        (made([0] * 4, "", Outcome.ABSTAINED), False, False, False),  # the wrapper says terminated, the world did not
        (made([0] * 5, "", Outcome.ABSTAINED), False, True, True),
        (made([0] * 4, "", Outcome.NONFINITE), False, False, False),
        (made([0] * 5, "", Outcome.NONFINITE), False, True, True),
        (made([0] * 3, "", Outcome.CRASHED), False, False, False),
        (made([], "", Outcome.CRASHED), False, False, False),
    ],
)
def test_events_of_episodic_tasks_on_hand_made_traces(trace, ends, lasts, earns):
    assert (holds(ENDS, trace), holds(LASTS, trace), holds(EARNS, trace)) == (ends, lasts, earns)


@pytest.mark.parametrize(
    ("event", "trace", "is_lost"),
    [
        (EARNS, made([0] * 3, "", Outcome.TERMINATED), False),  # a success
        (EARNS, made([0] * 2, "", Outcome.TERMINATED), False),  # earned too little
        (EARNS, made([0] * 3, "", Outcome.TRUNCATED), True),
        (ENDS, made([0] * 4), False),
        (ENDS, made([0] * 3, "", Outcome.TRUNCATED), True),
        (LASTS, made([0] * 3, "", Outcome.TERMINATED), False),
        (LASTS, made([0] * 3, "", Outcome.COST), True),
        (EVENTS["safe"], made([0] * 3, "", Outcome.TERMINATED), True),
        (EVENTS["safe"], made([0, 1, 0], "", Outcome.TERMINATED), False),  # a cost had decided
        (EVENTS["safe"], made([0, 1], "", Outcome.COST), False),
        (EVENTS["safe"], made([0, 1, 0, 0]), False),
        (EVENTS["reach"], made([0] * 4), False),  # no goal in time
        (EVENTS["reach"], made([0] * 3, "", Outcome.TERMINATED), True),
        (EVENTS["reach"], made([1, 0, 0], "--g", Outcome.TERMINATED), False),
        (EVENTS["cheap"], made([1, 0, 0], "", Outcome.TERMINATED), True),
        (EVENTS["cheap"], made([1, 1, 0], "", Outcome.TERMINATED), False),
        (EVENTS["acts"], made([0, 0], "", Outcome.ABSTAINED), True),
        (AllOf(events=(EVENTS["safe"], ENDS)), made([0] * 3, "", Outcome.TERMINATED), True),
        (AllOf(events=(LASTS, EARNS)), made([0] * 3, "", Outcome.TERMINATED), False),
    ],
)
def test_a_failure_by_the_ending_alone_is_told_from_the_others(event, trace, is_lost):
    assert is_lost_by_ending(event, trace) is is_lost


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_event_of_ones_own_is_lost_by_the_ending_of_a_broken_trial_only(outcome):
    class Never:
        def holds(self, trace):
            return False

    is_broken = outcome in {Outcome.ABSTAINED, Outcome.CRASHED, Outcome.NONFINITE}
    assert is_lost_by_ending(Never(), made([0] * 3, outcome=outcome)) is is_broken


class Careless:
    """An event of a user that looks at costs alone."""

    def holds(self, trace):
        return not (trace.cost > 0.0).any()


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_event_of_ones_own_never_holds_for_a_broken_trajectory(outcome):
    is_broken = outcome in {Outcome.ABSTAINED, Outcome.CRASHED, Outcome.NONFINITE}
    trace = made([0, 0, 0, 0], outcome=outcome)
    assert holds(Careless(), trace) is not is_broken
    assert holds(AllOf(events=(Careless(),)), trace) is not is_broken


def test_a_subclass_of_a_built_in_event_is_one_of_ones_own():
    class Loose(NoAbstention):
        def holds(self, trace):
            return True

    assert not holds(Loose(horizon=4), made([0], outcome=Outcome.CRASHED))


def test_all_of_is_the_conjunction():
    both = AllOf(events=(EVENTS["safe"], EVENTS["earns"]))
    assert holds(both, made([0, 0, 0, 0]))
    assert not holds(both, made([0, 0], "-g", Outcome.GOAL))


@pytest.mark.parametrize("verdict", [None, 1, float("nan"), np.array([True]), "yes"])
def test_holds_refuses_a_verdict_that_is_no_bool(verdict):
    class Sloppy:
        def holds(self, trace):
            return verdict

    with pytest.raises(TypeError, match="True or False"):
        holds(Sloppy(), made([0]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoCostUntilGoal(horizon=0), "`horizon`"),
        (lambda: GoalBeforeCost(horizon=2.0), "`horizon`"),
        (lambda: CostAtMost(limit=nan, horizon=1), "`limit`"),
        (lambda: ReturnAtLeast(value=float("inf"), horizon=1), "`value`"),
        (lambda: Terminated(horizon=0), "`horizon`"),
        (lambda: NotTerminated(horizon=nan), "`horizon`"),
        (lambda: AllOf(events=()), "`events`"),
        (lambda: AllOf(events=("safe",)), "`events`"),
    ],
)
def test_events_refuse(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
