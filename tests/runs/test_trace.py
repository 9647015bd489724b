from __future__ import annotations

import numpy as np
from small_trial import stored, trial

from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.runs.outcomes import Outcome
from ccfs.runs.record import StepRow, table_of
from ccfs.runs.trace import traces
from ccfs.runtime.components import BoxVerifier
from ccfs.runtime.wrapper import Widths


def test_trace_reads_only_the_columns_that_are_asked_for(tmp_path, monkeypatch):
    recorder, row = trial()
    steps = tmp_path / "steps.parquet"
    steps.write_bytes(parquet_bytes(table_of(StepRow, recorder.steps, Widths(2, 2))))
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
