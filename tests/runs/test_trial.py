from __future__ import annotations

import sys

import numpy as np
import pytest
from small_trial import FOUR, stored, trial
from toys import Buttons, Line, Push, Scores

from ccfs.attacks.attack import Attack, AttackError
from ccfs.attacks.rules import NoShift, OpposedShift, ScriptedShift
from ccfs.certificates.schedule import ProposalSchedule, Schedule
from ccfs.files.parquet import parquet_bytes
from ccfs.runs.events import NoAbstention, holds
from ccfs.runs.outcomes import Outcome
from ccfs.runs.record import StepRow, observation_digest, table_of
from ccfs.runs.trial import StopRule, run_trial
from ccfs.runtime.components import AcceptAll
from ccfs.runtime.program import CausalProgram
from ccfs.runtime.streams import Streams
from ccfs.runtime.wrapper import ProposalWrapper, Widths


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


def test_trial_that_crashes_says_once_what_was_raised_and_where(caplog):
    """A trial keeps the class alone, so the message would be lost, and with it why nothing is certified."""

    class Broken(Push):
        def center(self, observation):
            raise KeyError("weights\x1b[2K")

    for _ in range(3):
        trial(controller=Broken())
    (line,) = caplog.messages
    assert line.startswith("Trial 0 crashed, which counts as a failure: KeyError: ")
    assert "weights" in line
    assert "\x1b" not in line
    assert "(test_trial.py, line " in line


def test_trial_that_crashes_with_an_error_that_cannot_be_shown_is_a_crash():
    class ShyError(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    class Broken(Push):
        def center(self, observation):
            raise ShyError

    _, row = trial(controller=Broken())
    assert (row.outcome, row.error) == ("crashed", "ShyError")


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


SENSOR = Schedule(action=FOUR, sensor=ProposalSchedule(count=1, sigma=[0.1, 0.0, 0.2]))


def test_trial_with_a_sensor_stage_records_true_observations_and_what_was_read():
    """Oracle: the readings that the controller got, and the observations that the environment gave."""
    read, true = [], []

    class Reading(Push):
        def center(self, observation):
            read.append(observation_digest(observation))
            return super().center(observation)

    class Watched(Line):
        def _see(self):
            seen = super()._see()
            true.append(observation_digest(seen))
            return seen

    recorder, row = trial(Watched(), schedule=SENSOR, controller=Reading())
    assert [step.reading for step in recorder.steps] == read
    assert [row.first_observation, *(step.observation for step in recorder.steps)] == true
    assert not set(read) & set(true)


def test_trial_zero_shift_of_the_sensor_gives_byte_identical_traces():
    nominal, row = trial(schedule=SENSOR)
    shifted, shifted_row = trial(
        schedule=SENSOR, attack=Attack(rule=NoShift(), limit=1.0, schedule=SENSOR, stage="all")
    )
    assert parquet_bytes(nominal.table) == parquet_bytes(shifted.table)
    assert row == shifted_row
    assert all(line.sensor == (0.0, 0.0, 0.0) and line.shift == (0.0, 0.0) for line in shifted.shifts)


def test_trial_shift_of_the_sensor_changes_the_readings_and_no_center_of_a_deaf_controller():
    nominal, _ = trial(schedule=SENSOR)
    attack = Attack(rule=OpposedShift(), limit=4.0, schedule=SENSOR, stage="sensor")
    shifted, _ = trial(schedule=SENSOR, attack=attack)
    assert [step.reading for step in nominal.steps] != [step.reading for step in shifted.steps]
    assert [step.action for step in nominal.steps] == [step.action for step in shifted.steps]
    assert shifted.shifts[-1].spent == pytest.approx(4.0, rel=1e-9)
    assert all(line.shift is None for line in shifted.shifts)


def test_trial_logs_the_shift_of_a_reading_that_nobody_decided_on():
    attack = Attack(rule=OpposedShift(norm=0.01), limit=4.0, schedule=SENSOR, stage="sensor")
    recorder, row = trial(schedule=SENSOR, attack=attack, stop=StopRule(cost=True))
    assert row.outcome == "cost"
    assert [line.t for line in recorder.shifts] == list(range(row.steps + 1))
    whole, _ = trial(schedule=SENSOR, attack=Attack(rule=OpposedShift(), limit=4.0, schedule=SENSOR, stage="sensor"))
    assert len(whole.shifts) == 30


def test_trial_logs_the_shift_of_a_step_in_which_the_environment_failed():
    recorder, row = trial(Line(breaks_at=4), attack=Attack(rule=OpposedShift(), limit=4.0, schedule=FOUR))
    assert (row.outcome, row.steps) == ("crashed", 4)
    assert [line.t for line in recorder.shifts] == [0, 1, 2, 3, 4]


def test_trial_that_cannot_begin_logs_no_shift_of_the_trial_before():
    class Once(Line):
        resets = 0

        def reset(self, *, seed=None, options=None):
            self.resets += 1
            if self.resets > 1:
                raise RuntimeError("no world for this seed")
            return super().reset(seed=seed, options=options)

    env = Once()
    program = CausalProgram.for_space(env.action_space, verifier=AcceptAll())
    attack = Attack(rule=OpposedShift(norm=0.01), limit=4.0, schedule=SENSOR, stage="sensor")
    wrapped = ProposalWrapper(env, program=program, schedule=SENSOR, seed=0, horizon=30, attack=attack)
    shifts = []
    for number in range(2):
        streams = Streams(protocol="test", root=5, arm="a", trial=number, reset_seed=11 + number)
        recorder, row = run_trial(wrapped, Push(), horizon=30, stop=StopRule(cost=True), streams=streams)
        shifts.append(len(recorder.shifts))
    assert (row.outcome, shifts[1]) == ("crashed", 0)
    assert shifts[0] > 0


@pytest.mark.parametrize("sigma", [0.1, 1e39])
def test_trial_ends_when_an_observation_or_its_reading_is_not_finite(sigma):
    schedule = Schedule(score=ProposalSchedule(count=1, sigma=1.0), sensor=ProposalSchedule(count=1, sigma=sigma))
    _, row = trial(Buttons(), schedule=schedule, controller=Scores())
    # A reading in single precision cannot hold noise of this size.
    assert (row.outcome, row.steps) == (("horizon", 30) if sigma < 1.0 else ("nonfinite", 0))
    _, row = trial(Line(nan_at=4), schedule=SENSOR)
    assert (row.outcome, row.steps) == ("nonfinite", 4)


def test_trial_of_discrete_actions_records_scores_and_numbers():
    recorder, row = trial(Buttons(groups=[2, 3]), schedule=FOUR, controller=Scores((0.0, 0.1, 0.0, 0.1, 0.2)))
    assert (row.outcome, row.steps) == ("horizon", 30)
    assert {len(step.center) for step in recorder.steps} == {5}
    assert {step.action for step in recorder.steps} <= {(float(a), float(b)) for a in range(2) for b in range(3)}
    trace = stored(recorder, row)
    assert (trace.centers.shape, trace.actions.shape) == ((30, 5), (30, 2))
    np.testing.assert_array_equal(trace.actions.sum(axis=1), trace.reward)
