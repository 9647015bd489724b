"""The tables of a run: their columns, and their rows as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pyarrow as pa

from ccfs.files.digests import OBSERVATION_BYTES
from ccfs.runs.recording import ShiftRow, StepRow, TrajectoryRow

__all__ = ["shift_table", "step_rows", "step_schema", "step_table", "trajectory_rows"]

FORMAT = "ccfs-trace-1"


def step_schema(dimension: int) -> pa.Schema:
    """Return the columns of a public trace. None of them tells the arm."""
    vectors = [pa.field(f"center_{i}", pa.float64()) for i in range(dimension)]
    actions = [pa.field(f"action_{i}", pa.float64()) for i in range(dimension)]
    return _schema(
        [
            pa.field("trial", pa.int64(), nullable=False),
            pa.field("t", pa.int32(), nullable=False),
            *vectors,
            pa.field("source", pa.string(), nullable=False),
            pa.field("index", pa.int32(), nullable=False),
            *actions,
            pa.field("skipped", pa.string(), nullable=False),
            pa.field("reward", pa.float64(), nullable=False),
            pa.field("cost", pa.float64()),
            pa.field("goal", pa.bool_(), nullable=False),
            pa.field("terminated", pa.bool_(), nullable=False),
            pa.field("truncated", pa.bool_(), nullable=False),
            pa.field("observation", pa.binary(OBSERVATION_BYTES), nullable=False),
            pa.field("chain", pa.binary(32), nullable=False),
        ]
    )


def trajectory_schema() -> pa.Schema:
    """Return the columns of a trajectory table."""
    return _schema(
        [
            pa.field("trial", pa.int64(), nullable=False),
            pa.field("reset_seed", pa.int64(), nullable=False),
            pa.field("outcome", pa.string(), nullable=False),
            pa.field("steps", pa.int32(), nullable=False),
            pa.field("total_reward", pa.float64(), nullable=False),
            pa.field("total_cost", pa.float64()),
            pa.field("goal_step", pa.int32()),
            pa.field("first_cost_step", pa.int32()),
            pa.field("error", pa.string()),
            pa.field("first_observation", pa.binary(OBSERVATION_BYTES), nullable=False),
            pa.field("chain", pa.binary(32), nullable=False),
        ]
    )


def shift_schema(dimension: int) -> pa.Schema:
    """Return the columns of a private log."""
    return _schema(
        [
            pa.field("trial", pa.int64(), nullable=False),
            pa.field("t", pa.int32(), nullable=False),
            *(pa.field(f"shift_{i}", pa.float64(), nullable=False) for i in range(dimension)),
            pa.field("energy", pa.float64(), nullable=False),
            pa.field("spent", pa.float64(), nullable=False),
        ]
    )


def _schema(fields: list[pa.Field]) -> pa.Schema:
    return pa.schema(fields, metadata={"format": FORMAT})


def step_table(rows: Sequence[StepRow], dimension: int) -> pa.Table:
    """Return public steps as a table."""
    columns = {name: [getattr(row, name) for row in rows] for name in StepRow.__slots__ if name not in _VECTORS}
    for i in range(dimension):
        columns[f"center_{i}"] = [row.center[i] for row in rows]
        columns[f"action_{i}"] = [None if row.action is None else row.action[i] for row in rows]
    return pa.table(columns, schema=step_schema(dimension))


def trajectory_table(rows: Sequence[TrajectoryRow]) -> pa.Table:
    """Return trajectory lines as a table."""
    return pa.Table.from_pylist([asdict(row) for row in rows], schema=trajectory_schema())


def shift_table(rows: Sequence[ShiftRow], dimension: int) -> pa.Table:
    """Return private lines as a table."""
    columns = {name: [getattr(row, name) for row in rows] for name in ShiftRow.__slots__ if name not in _VECTORS}
    for i in range(dimension):
        columns[f"shift_{i}"] = [row.shift[i] for row in rows]
    return pa.table(columns, schema=shift_schema(dimension))


def step_rows(table: pa.Table) -> list[StepRow]:
    """Return a trace table's rows as values."""
    dimension = dimension_of(table, "center")
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    centers = list(zip(*(columns.pop(f"center_{i}") for i in range(dimension)), strict=True))
    actions = list(zip(*(columns.pop(f"action_{i}") for i in range(dimension)), strict=True))
    names = list(columns)
    return [
        StepRow(center=center, action=None if action[0] is None else action, **dict(zip(names, values, strict=True)))
        for center, action, *values in zip(centers, actions, *columns.values(), strict=True)
    ]


def trajectory_rows(table: pa.Table) -> list[TrajectoryRow]:
    """Return a trajectory table's rows as values."""
    return [TrajectoryRow(**row) for row in table.to_pylist()]


def shift_rows(table: pa.Table) -> list[ShiftRow]:
    """Return a private log's rows as values."""
    dimension = dimension_of(table, "shift")
    rows = []
    for row in table.to_pylist():
        shift = tuple(row.pop(f"shift_{i}") for i in range(dimension))
        rows.append(ShiftRow(shift=shift, **row))
    return rows


def dimension_of(table: pa.Table, name: str) -> int:
    """Return the number of columns `name_0`, `name_1`, ..."""
    return sum(column.startswith(f"{name}_") for column in table.column_names)


_VECTORS = ("center", "action", "shift")
