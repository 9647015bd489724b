"""A batch depends on its protocol alone, and takes memory for the columns of its steps, not for Python objects."""

from __future__ import annotations

import json
import tracemalloc

import pyarrow as pa
import pytest

from ccfs.files.toml import read_toml
from ccfs.protocol.model import parse_protocol
from ccfs.runs.batches import parse_canonical, plan, run_batch

PROTOCOL = """
name = "long"
seed = 1
horizon = {horizon}
batch = 2
trials = {{ initial_law = 2 }}
claim = {{ delta = 0.05, target = 0.5, bound = "clopper-pearson" }}
environment = {{ make = "corridor", arguments = {{ horizon = {horizon} }} }}
controllers = [{{ name = "steer", make = "steering" }}]
schedules = [{{ name = "four", action = {{ count = 4, sigma = 0.2 }} }}]
program = {{ verifier = {{ make = "accept-all" }} }}
events = [{{ name = "acts", event = "no-abstention" }}]
"""


def most_memory(horizon: int) -> int:
    """Return the greatest number of bytes that a batch holds at once, in Python's memory and in Arrow's."""
    made = parse_protocol(read_toml(PROTOCOL.format(horizon=horizon)), where="test")
    batch = next(plan(made, made.arms[0], None))
    before = pa.default_memory_pool().bytes_allocated()
    tracemalloc.start()
    try:
        files = run_batch(made.canonical, batch)
        python = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(map(len, files)) < 200 * horizon + 20_000
    return python + pa.default_memory_pool().bytes_allocated() - before


@pytest.mark.slow
def test_batch_takes_memory_for_its_columns_only():
    most_memory(10)  # whatever is made once per process
    few, many = 2 * 1_000, 2 * 4_000
    extra = most_memory(many // 2) - most_memory(few // 2)
    # A step is 105 packed bytes here. While a table is written there are also its columns and the file: three of each.
    # One Python object for each step took more than 800 bytes.
    assert extra / (many - few) < 4 * 105


GREEDY = """
from ccfs.envs.toys.corridor import make

def greedy(options):
    return make(horizon=options["horizon"].pop())
"""


def test_batch_that_changes_its_arguments_does_not_change_the_next_one(tmp_path, monkeypatch):
    """A worker reads the protocol once. A part that empties what it was given empties its own copy."""
    (tmp_path / "greedy_part.py").write_text(GREEDY)
    monkeypatch.syspath_prepend(tmp_path)
    greedy = 'make = "greedy_part:greedy", arguments = { options = { horizon = [3] } }'
    text = PROTOCOL.format(horizon=3).replace('make = "corridor", arguments = { horizon = 3 }', greedy)
    made = parse_protocol(read_toml(text), where="test")
    batch = next(plan(made, made.arms[0], None))
    assert run_batch(made.canonical, batch) == run_batch(made.canonical, batch)
    assert parse_canonical(made.canonical).hash == made.hash
    assert json.loads(parse_canonical(made.canonical).canonical) == json.loads(made.canonical)
