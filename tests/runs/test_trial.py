from __future__ import annotations

import sys

import pytest
from small_trial import FOUR, stored, trial
from toys import Line, Push

from ccfs.attacks.attack import Attack, AttackError
from ccfs.attacks.rules import NoShift, OpposedShift, ScriptedShift
from ccfs.files.parquet import parquet_bytes
from ccfs.runs.events import NoAbstention, holds
from ccfs.runs.outcomes import Outcome
from ccfs.runs.record import StepRow, table_of
from ccfs.runs.trial import StopRule
from ccfs.runtime.wrapper import Widths


def test_trial_zero_shift_gives_byte_identical_traces():
    nominal, row = trial()
    shifted, shifted_row = trial(attack=Attack(rule=NoShift(), limit=1.0, schedule=FOUR))
    assert parquet_bytes(table_of(StepRow, nominal.steps, Widths(2, 2))) == parquet_bytes(
        table_of(StepRow, shifted.steps, Widths(2, 2))
    )
    assert row == shifted_row
    assert nominal.shifts == []
    assert len(shifted.shifts) == 30


def test_trial_shift_changes_the_chain_and_stays_in_the_private_log():
    nominal, row = trial()
    shifted, shifted_row = trial(attack=Attack(rule=OpposedShift(), limit=4.0, schedule=FOUR))
    assert row.chain != shifted_row.chain
    assert [step.center for step in nominal.steps] == [step.center for step in shifted.steps]
    assert shifted.shifts[-1].spent <= 4.0


@pytest.mark.parametrize(
    ("env", "stop", "outcome", "steps"),
    [
        (Line(noise=0.0), StopRule(), Outcome.HORIZON, 30),
        (Line(noise=0.0, steps=7), StopRule(), Outcome.TRUNCATED, 7),
        (Line(noise=0.0, steps=30), StopRule(), Outcome.HORIZON, 30),
        (Line(noise=0.0, ends_at=7), StopRule(), Outcome.TERMINATED, 7),
        (Line(noise=0.0, ends_at=30), StopRule(), Outcome.TERMINATED, 30),
        (Line(noise=0.0, ends_at=30, steps=30), StopRule(), Outcome.TERMINATED, 30),
        (Line(noise=0.0, ends_at=7, steps=7), StopRule(), Outcome.TERMINATED, 7),
        (Line(noise=0.0, ends_at=31), StopRule(), Outcome.HORIZON, 30),
        (Line(noise=0.0, nan_at=4), StopRule(), Outcome.NONFINITE, 4),
        (Line(noise=0.0, breaks_at=4), StopRule(), Outcome.CRASHED, 4),
    ],
)
def test_trial_outcome(env, stop, outcome, steps):
    _, row = trial(env, stop=stop)
    assert (row.outcome, row.steps) == (outcome.value, steps)


def test_trial_that_terminates_at_the_last_step_keeps_both_flags_and_no_event_calls_it_survival():
    """The wrapper truncates at the horizon by itself, which must not hide that the environment ended there."""
    recorder, row = trial(Line(noise=0.0, ends_at=5), horizon=5)
    last = recorder.steps[-1]
    assert (last.terminated, last.truncated) == (True, True)
    trace = stored(recorder, row)

    class Survives:
        def holds(self, trace):
            return trace.outcome is not Outcome.TERMINATED

    class Arrives:
        def holds(self, trace):
            return trace.outcome is Outcome.HORIZON

    assert not holds(Survives(), trace)
    assert not holds(Arrives(), trace)
    # All five steps were taken, which is all that these speak of; a step more was not.
    assert holds(NoAbstention(horizon=5), trace)
    assert not holds(NoAbstention(horizon=6), trace)


def test_trial_stop_rules_end_at_the_first_cost_and_goal():
    _, free = trial()
    _, at_cost = trial(stop=StopRule(cost=True))
    _, at_goal = trial(stop=StopRule(goal=True))
    assert (at_cost.outcome, at_cost.steps) == ("cost", free.first_cost_step + 1)
    assert (at_goal.outcome, at_goal.steps) == ("goal", free.goal_step + 1)


def test_trial_crashing_controller_is_a_crash_with_the_kind_of_error():
    class Broken(Push):
        def center(self, observation):
            raise KeyError("weights")

    recorder, row = trial(controller=Broken())
    assert (row.outcome, row.error, row.steps) == ("crashed", "KeyError", 0)
    # A file in which no trial has a step is read like any other.
    trace = stored(recorder, row)
    assert (trace.outcome, trace.cost.shape, trace.source) == (Outcome.CRASHED, (0,), ())


def test_trial_broken_shift_rule_is_not_counted_but_raised():
    with pytest.raises(AttackError):
        trial(attack=Attack(rule=ScriptedShift(shifts=((0.0, 0.0, 0.0),)), limit=1.0, schedule=FOUR))


def test_trial_shift_rule_that_exits_is_not_counted_but_raised():
    class Exits:
        def reset(self):
            pass

        def shift(self, history, rng, *, allowance):
            sys.exit(0)

    with pytest.raises(AttackError):
        trial(attack=Attack(rule=Exits(), limit=1.0, schedule=FOUR))
