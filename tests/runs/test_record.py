"""The lines of a run: what they are packed to, what the chain covers, and that a growing table keeps no objects."""

from __future__ import annotations

import hashlib
import math
import struct
import tracemalloc

import numpy as np
import pytest
from small_trial import FOUR, trial

from ccfs.attacks.attack import Attack
from ccfs.attacks.rules import OpposedShift
from ccfs.files.parquet import ROW_GROUP, parquet_bytes, read_parquet
from ccfs.files.reading import RefusedFileError
from ccfs.runs.record import (
    Lines,
    LinesFile,
    ShiftRow,
    StepLines,
    StepRow,
    TrajectoryRow,
    chain_start,
    chain_step,
    lines_of,
    observation_digest,
    schema_of,
    table_of,
    widths_of,
)
from ccfs.runtime.wrapper import Widths

TWO = Widths(center=2, action=2)
ACTED = StepRow(
    trial=7,
    t=3,
    center=(0.25, -0.0),
    source="fallback",
    index=1,
    action=(1.5, math.inf),
    skipped="stop,brake",
    reward=-2.0,
    cost=0.5,
    goal=True,
    terminated=False,
    truncated=True,
    observation=bytes(range(16)),
    chain=bytes(range(32)),
)
ABSTAINED = ACTED._replace(action=None, cost=None, source="abstain", index=-1, skipped="")
SENSED = Widths(center=2, action=2, sensor=3)
READ = ACTED._replace(reading=bytes(range(1, 17)))
ENDED = TrajectoryRow(
    trial=7,
    reset_seed=2**40,
    outcome="crashed",
    steps=3,
    total_reward=1.0,
    total_cost=None,
    goal_step=None,
    first_cost_step=2,
    error="KeyError",
    first_observation=bytes(16),
    chain=bytes(32),
)
SHIFTED = ShiftRow(trial=7, t=3, shift=(0.1, 0.2), energy=0.3, spent=0.4)


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (StepRow, [ACTED, ABSTAINED]),
        (StepRow, []),
        (TrajectoryRow, [ENDED, ENDED._replace(error=None, total_cost=2.0, goal_step=1, first_cost_step=None)]),
        (ShiftRow, [SHIFTED]),
    ],
)
def test_lines_come_back_from_their_table(kind, lines):
    table = table_of(kind, lines, TWO)
    assert table.schema.equals(schema_of(kind, TWO), check_metadata=True)
    assert lines_of(kind, read_parquet(parquet_bytes(table))) == lines


def test_lines_keep_a_nan_and_tell_it_from_nothing():
    (line,) = lines_of(StepRow, table_of(StepRow, [ACTED._replace(cost=math.nan, action=(math.nan, 0.0))], TWO))
    assert math.isnan(line.cost)
    assert math.isnan(line.action[0])


def test_chain_hashes_the_layout_that_the_formats_page_states():
    start = chain_start(11, TWO, bytes(16))
    assert start == hashlib.sha256(b"ccfs-chain-2" + struct.pack("<qI", 11, 2) + bytes(16)).digest()
    fields = struct.pack(
        "<iid???16s2d?2d?d", 3, 1, -2.0, True, False, True, bytes(range(16)), 0.25, -0.0, True, 1.5, math.inf, True, 0.5
    )
    texts = struct.pack("<I8sI10s", 8, b"fallback", 10, b"stop,brake")
    assert chain_step(start, ACTED, TWO) == hashlib.sha256(start + fields + texts).digest()
    fields = struct.pack(
        "<iid???16s2d?2d?d", 3, -1, -2.0, True, False, True, bytes(range(16)), 0.25, -0.0, False, 0, 0, False, 0
    )
    texts = struct.pack("<I7sI", 7, b"abstain", 0)
    assert chain_step(start, ABSTAINED, TWO) == hashlib.sha256(start + fields + texts).digest()


@pytest.mark.parametrize("name", [name for name in StepRow._fields if name not in ("trial", "chain")])
def test_chain_covers_every_public_field(name):
    others = {
        "t": 4,
        "center": (0.25, 0.0),
        "source": "proposal",
        "index": 2,
        "action": None,
        "skipped": "stop",
        "reward": math.nan,
        "cost": None,
        "goal": False,
        "terminated": True,
        "truncated": False,
        "observation": bytes(16),
        "reading": bytes(16),
    }
    other = READ._replace(**{name: others[name]})
    assert chain_step(bytes(32), other, SENSED) != chain_step(bytes(32), READ, SENSED)
    if name != "reading":
        assert chain_step(bytes(32), ACTED._replace(**{name: others[name]}), TWO) != chain_step(bytes(32), ACTED, TWO)


def test_chain_tells_nothing_from_zero_and_texts_from_each_other():
    zero = ABSTAINED._replace(cost=0.0, action=(0.0, 0.0))
    texts = [ACTED._replace(source="ab", skipped="c"), ACTED._replace(source="a", skipped="bc")]
    lines = [ABSTAINED, zero, zero._replace(cost=None), zero._replace(action=None), *texts]
    assert len({chain_step(bytes(32), line, TWO) for line in lines}) == len(lines)


def test_step_lines_link_as_the_chain_does():
    lines, chain = StepLines(TWO), bytes(32)
    for line in (ACTED, ABSTAINED, ACTED):
        before = chain
        chain = lines.link(line, before)
        assert chain == chain_step(before, line, TWO)
    assert [line.chain for line in lines_of(StepRow, lines.table())][-1] == chain


def test_observation_digest_tells_dtype_shape_and_content_apart():
    arrays = [np.zeros(4), np.zeros((2, 2)), np.zeros(4, dtype=np.float32), np.zeros(8, dtype=np.float32), np.ones(4)]
    assert len({observation_digest(array) for array in arrays}) == len(arrays)
    matrix = np.arange(6.0).reshape(2, 3)
    assert observation_digest(matrix) == observation_digest(np.asfortranarray(matrix))


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 5, ROW_GROUP, ROW_GROUP + 5, 2 * ROW_GROUP + 5])
def test_growing_file_has_the_bytes_of_the_whole_table(count):
    def line(t):
        return SHIFTED._replace(t=t, energy=0.5 * t)

    whole, growing = Lines(ShiftRow, TWO), Lines(ShiftRow, TWO)
    file = LinesFile(growing)
    for t in range(count):
        whole.append(line(t))
        growing.append(line(t))
        if t % 50_000 == 49_999:
            file.take()
            assert len(growing) < ROW_GROUP
    assert file.finish() == parquet_bytes(whole.table())


def test_lines_take_as_much_memory_as_their_columns():
    def grown(count):
        lines = StepLines(TWO)
        tracemalloc.start()
        try:
            chain = bytes(32)
            for t in range(count):
                chain = lines.link(ACTED._replace(t=t, reward=float(t)), chain)
            return tracemalloc.get_traced_memory()[0] / count, lines.layout.dtype.itemsize
        finally:
            tracemalloc.stop()

    size, width = grown(20_000)
    assert width < 130
    assert size < 1.5 * width  # a growing buffer keeps some room free, an object takes several times as much


def test_step_schema_has_no_field_that_tells_the_arm():
    names = set(schema_of(StepRow, TWO).names)
    assert names.isdisjoint({"arm", "attack", "shift", "shift_0", "energy", "spent", "budget"})


def test_tables_round_trip_and_are_deterministic():
    recorder, row = trial(attack=Attack(rule=OpposedShift(), limit=4.0, schedule=FOUR), verifier=None)
    first = parquet_bytes(table_of(StepRow, recorder.steps, TWO))
    assert first == parquet_bytes(table_of(StepRow, list(recorder.steps), TWO))
    assert lines_of(StepRow, read_parquet(first)) == recorder.steps
    assert lines_of(TrajectoryRow, read_parquet(parquet_bytes(table_of(TrajectoryRow, [row])))) == [row]
    assert lines_of(ShiftRow, read_parquet(parquet_bytes(table_of(ShiftRow, recorder.shifts, TWO)))) == recorder.shifts


@pytest.mark.extras
def test_tables_are_readable_without_us(tmp_path):
    import pandas

    recorder, _ = trial()
    path = tmp_path / "steps.parquet"
    path.write_bytes(parquet_bytes(table_of(StepRow, recorder.steps, TWO)))
    frame = pandas.read_parquet(path)
    assert len(frame) == 30
    assert frame["source"].unique().tolist() == ["proposal"]
    assert frame["action_0"].tolist() == [step.action[0] for step in recorder.steps]


def test_tables_size_of_the_papers_study_stays_under_250_megabytes():
    # 3,072 trajectories of 500 steps: random actions do not compress, so 16 of them measure what the rest will take.
    rows, steps = [], []
    for number in range(16):
        recorder, row = trial(horizon=100, number=number)
        rows.append(row)
        steps.extend(recorder.steps)
    size = len(parquet_bytes(table_of(StepRow, steps, TWO))) + len(parquet_bytes(table_of(TrajectoryRow, rows)))
    assert size / len(steps) * 3072 * 500 < 250e6


def test_parse_refuses_a_flipped_bit_in_a_data_page():
    recorder, _ = trial()
    content = bytearray(parquet_bytes(table_of(StepRow, recorder.steps, TWO)))
    content[300] ^= 1
    with pytest.raises(RefusedFileError, match="CRC checksum verification failed"):
        read_parquet(bytes(content))


@pytest.mark.parametrize(
    ("kind", "lines", "widths"),
    [
        (StepRow, [READ, READ._replace(action=None)], SENSED),
        (StepRow, [ACTED._replace(action=(2.0,))], Widths(center=2, action=1)),
        (ShiftRow, [SHIFTED._replace(sensor=(0.1, 0.0, 0.2)), SHIFTED._replace(shift=None)], SENSED),
        (ShiftRow, [SHIFTED._replace(sensor=(0.1, 0.0, 0.2), shift=None)], SENSED),
    ],
)
def test_lines_of_several_widths_come_back_from_their_table(kind, lines, widths):
    table = table_of(kind, lines, widths)
    assert widths_of(table) == widths
    assert lines_of(kind, read_parquet(parquet_bytes(table))) == lines


def test_tables_without_a_sensor_stage_have_no_column_of_it():
    assert "reading" not in schema_of(StepRow, TWO).names
    assert not any(name.startswith("sensor") for name in schema_of(ShiftRow, TWO).names)
    assert "reading" in schema_of(StepRow, SENSED).names
    assert [name for name in schema_of(ShiftRow, SENSED).names if name.startswith("sensor")] == [
        "sensor_0",
        "sensor_1",
        "sensor_2",
    ]


def test_chain_of_a_sensor_stage_hashes_the_widths_and_the_reading_as_the_formats_page_states():
    start = chain_start(11, SENSED, bytes(16))
    assert start == hashlib.sha256(b"ccfs-chain-2" + struct.pack("<qIII", 11, 2, 2, 3) + bytes(16)).digest()
    fields = struct.pack(
        "<iid???16s16s2d?2d?d", 3, 1, -2.0, True, False, True, bytes(range(16)), bytes(range(1, 17)), 0.25, -0.0,
        True, 1.5, math.inf, True, 0.5,
    )  # fmt: skip
    texts = struct.pack("<I8sI10s", 8, b"fallback", 10, b"stop,brake")
    assert chain_step(start, READ, SENSED) == hashlib.sha256(start + fields + texts).digest()
    others = [TWO, SENSED, SENSED._replace(sensor=4), Widths(center=2, action=1), Widths(center=1, action=2)]
    assert len({chain_start(11, widths, bytes(16)) for widths in others}) == len(others)
