from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pytest
from toys import Line, Push

from ccfs.attacks.attack import Attack, AttackError
from ccfs.attacks.rules import NoShift, OpposedShift, ScriptedShift
from ccfs.certificates.schedule import ProposalSchedule
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.runs.events import NoAbstention, holds
from ccfs.runs.outcomes import Outcome
from ccfs.runs.record import ShiftRow, StepRow, TrajectoryRow, lines_of, schema_of, table_of
from ccfs.runs.trace import traces
from ccfs.runs.trial import StopRule, run_trial
from ccfs.runtime.components import AcceptAll, BoxVerifier
from ccfs.runtime.program import CausalProgram
from ccfs.runtime.streams import Streams
from ccfs.runtime.wrapper import ProposalWrapper

FOUR = ProposalSchedule(count=4, sigma=0.2, rho=0.5)


def trial(env=None, *, attack=None, verifier=None, horizon=30, stop=StopRule(), number=0, controller=None):  # noqa: B008
    env = env or Line()
    program = CausalProgram.for_space(env.action_space, verifier=verifier or AcceptAll())
    wrapped = ProposalWrapper(env, program=program, schedule=FOUR, seed=0, horizon=horizon, attack=attack)
    streams = Streams(protocol="test", root=5, arm="a", trial=number, reset_seed=11 + number)
    return run_trial(wrapped, controller or Push(), horizon=horizon, stop=stop, streams=streams)


def stored(recorder, row):
    """One trial through the file format and back."""
    lines = lines_of(TrajectoryRow, read_parquet(parquet_bytes(table_of(TrajectoryRow, [row]))))
    return traces(lines, read_parquet(parquet_bytes(recorder.table)))[0]


def test_trial_zero_shift_gives_byte_identical_traces():
    nominal, row = trial()
    shifted, shifted_row = trial(attack=Attack(rule=NoShift(), limit=1.0, schedule=FOUR))
    assert parquet_bytes(table_of(StepRow, nominal.steps, 2)) == parquet_bytes(table_of(StepRow, shifted.steps, 2))
    assert row == shifted_row
    assert nominal.shifts == []
    assert len(shifted.shifts) == 30


def test_trial_shift_changes_the_chain_and_stays_in_the_private_log():
    nominal, row = trial()
    shifted, shifted_row = trial(attack=Attack(rule=OpposedShift(), limit=4.0, schedule=FOUR))
    assert row.chain != shifted_row.chain
    assert [step.center for step in nominal.steps] == [step.center for step in shifted.steps]
    assert shifted.shifts[-1].spent <= 4.0


def test_step_schema_has_no_field_that_tells_the_arm():
    names = set(schema_of(StepRow, 2).names)
    assert names.isdisjoint({"arm", "attack", "shift", "shift_0", "energy", "spent", "budget"})


def test_tables_round_trip_and_are_deterministic():
    recorder, row = trial(attack=Attack(rule=OpposedShift(), limit=4.0, schedule=FOUR), verifier=None)
    first = parquet_bytes(table_of(StepRow, recorder.steps, 2))
    assert first == parquet_bytes(table_of(StepRow, list(recorder.steps), 2))
    assert lines_of(StepRow, read_parquet(first)) == recorder.steps
    assert lines_of(TrajectoryRow, read_parquet(parquet_bytes(table_of(TrajectoryRow, [row])))) == [row]
    assert lines_of(ShiftRow, read_parquet(parquet_bytes(table_of(ShiftRow, recorder.shifts, 2)))) == recorder.shifts


@pytest.mark.extras
def test_tables_are_readable_without_us(tmp_path):
    import pandas

    recorder, _ = trial()
    path = tmp_path / "steps.parquet"
    path.write_bytes(parquet_bytes(table_of(StepRow, recorder.steps, 2)))
    frame = pandas.read_parquet(path)
    assert len(frame) == 30
    assert frame["source"].unique().tolist() == ["proposal"]
    assert frame["action_0"].tolist() == [step.action[0] for step in recorder.steps]


def test_trace_reads_only_the_columns_that_are_asked_for(tmp_path, monkeypatch):
    recorder, row = trial()
    steps = tmp_path / "steps.parquet"
    steps.write_bytes(parquet_bytes(table_of(StepRow, recorder.steps, 2)))
    read = []
    monkeypatch.setattr(
        "ccfs.runs.trace.read_parquet", lambda path, columns=None: read.append(columns) or read_parquet(path, columns)
    )
    (trace,) = traces([row], steps)
    assert (trace.outcome, trace.executed) == (Outcome.HORIZON, 30)
    assert read == []
    assert trace.reward.shape == (30,)
    assert read == [["trial"], ["reward"]]
    np.testing.assert_array_equal(trace.actions, [step.action for step in recorder.steps])
    np.testing.assert_array_equal(trace.centers, [step.center for step in recorder.steps])


def test_trace_of_abstention_has_no_action_and_no_executed_step():
    recorder, row = trial(verifier=BoxVerifier(low=(5.0, 5.0), high=(6.0, 6.0)))
    trace = stored(recorder, row)
    assert (trace.outcome, trace.executed, trace.source) == (Outcome.ABSTAINED, 0, ("abstain",))
    assert np.isnan(trace.actions).all()
    assert trace.index.tolist() == [-1]


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


def test_tables_size_of_the_papers_study_stays_under_250_megabytes():
    # 3,072 trajectories of 500 steps: random actions do not compress, so 16 of them measure what the rest will take.
    rows, steps = [], []
    for number in range(16):
        recorder, row = trial(horizon=100, number=number)
        rows.append(row)
        steps.extend(recorder.steps)
    size = len(parquet_bytes(table_of(StepRow, steps, 2))) + len(parquet_bytes(table_of(TrajectoryRow, rows)))
    assert size / len(steps) * 3072 * 500 < 250e6


def test_parse_refuses_a_flipped_bit_in_a_data_page():
    recorder, _ = trial()
    content = bytearray(parquet_bytes(table_of(StepRow, recorder.steps, 2)))
    content[300] ^= 1
    with pytest.raises((OSError, pa.ArrowInvalid)):
        read_parquet(bytes(content))
