"""What `ccfs study run` says about the trials that are kept: the same, others, none, or a quick look."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from toy_protocol import protocol

from ccfs.cli.shipped import _comparison
from ccfs.experiments import Study
from ccfs.files.parquet import parquet_bytes
from ccfs.results.trial_lines import trial_lines
from ccfs.runs.executors import serial_engine
from ccfs.runs.run import run

pytestmark = pytest.mark.slow


def test_kept_trials_are_compared_and_those_of_a_quick_look_are_not(tmp_path):
    made = protocol(tmp_path, trials=4)
    store = run(made, tmp_path / "run", serial_engine(), where="p")
    lines = trial_lines(store, made)
    kept = tmp_path / "kept.parquet"
    kept.write_bytes(parquet_bytes(lines))
    study = Study(name="toy", protocol=tmp_path / "protocol.toml", kept=kept, paper=None)
    assert _comparison(study, store) == f"{len(lines)} trials are kept too, all with the same trace hash."
    changed = lines.to_pylist()
    changed[0]["chain"] = bytes(32)
    kept.write_bytes(parquet_bytes(pa.Table.from_pylist(changed, schema=lines.schema)))
    assert "1 of them with ANOTHER trace hash" in _comparison(study, store)
    assert _comparison(replace(study, kept=None), store).startswith("No trial of this run is kept")
    look = run(made.first(2), tmp_path / "look", serial_engine(), where="p")
    assert _comparison(study, look) == "A quick look draws noise of its own, so its traces are compared with nothing."
