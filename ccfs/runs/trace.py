"""Give an event the public trace of a trial as arrays, which are read from the file when they are first needed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ccfs.files.parquet import parquet_columns, read_parquet
from ccfs.runs.outcomes import Outcome
from ccfs.runs.record import TrajectoryRow

__all__ = ["Trace", "traces"]


class _StepFile:
    """The columns of one trace file, each read once and only when needed."""

    def __init__(self, source: Path | pa.Table) -> None:
        self._source = source
        self._columns: dict[str, NDArray[Any]] = {}

    def column(self, name: str) -> NDArray[Any]:
        """Return a column. A number that is not there is NaN."""
        if name not in self._columns:
            source = self._source
            table = read_parquet(source, [name]) if isinstance(source, Path) else source
            self._columns[name] = table.column(name).to_numpy()
        return self._columns[name]

    @cached_property
    def names(self) -> list[str]:
        if isinstance(self._source, Path):
            return parquet_columns(self._source)
        return list(self._source.column_names)

    @cached_property
    def slices(self) -> dict[int, slice]:
        """The rows of each trial. The rows of one trial stand together."""
        trials = self.column("trial")
        if not len(trials):  # every trial of the file ended before its first step
            return {}
        # A trial begins where the number changes. The first row counts as a change.
        starts = np.flatnonzero(np.diff(trials, prepend=trials[:1] - 1))
        ends = [*starts[1:].tolist(), len(trials)]
        found = {int(trials[a]): slice(a, b) for a, b in zip(starts.tolist(), ends, strict=True)}
        if len(found) != len(starts):
            raise ValueError(f"{self._source}: must hold the steps of each trial together.")
        return found


class Trace:
    """The public record of one trial. An event may depend on it and on nothing else.

    Arrays have one entry per step, in order, and are copies. A trial that abstained has one step more than it executed:
    the last one has the source "abstain", and nothing ran. Observations are not here, because a run stores their
    digests only. If an event needs one, have the environment report it as its cost or its goal.

    >>> [name for name in dir(Trace) if not name.startswith("_")]
    ['actions', 'centers', 'cost', 'executed', 'goal', 'index', 'outcome', 'reward', 'source', 'trial']
    """

    def __init__(self, row: TrajectoryRow, steps: _StepFile) -> None:
        self._row, self._steps = row, steps

    def __len__(self) -> int:
        """Return the number of recorded steps, with a last one that abstained."""
        rows = self._steps.slices.get(self.trial, slice(0, 0))
        return int(rows.stop - rows.start)

    def __repr__(self) -> str:
        return f"Trace(trial={self.trial}, outcome={self.outcome}, executed={self.executed})"

    @property
    def trial(self) -> int:
        """Number of the trial, from 0."""
        return self._row.trial

    @property
    def outcome(self) -> Outcome:
        """Why the trial took no further step, such as `Outcome.HORIZON` or `Outcome.TERMINATED`."""
        return Outcome(self._row.outcome)

    @property
    def executed(self) -> int:
        """Number of steps that the environment took. An abstained step is not among them."""
        return self._row.steps

    @property
    def reward(self) -> NDArray[np.float64]:
        """Reward of each step, float64 of shape (steps,). It is 0 for an abstained step."""
        return self._floats("reward")

    @property
    def cost(self) -> NDArray[np.float64]:
        """Cost of each step, float64 of shape (steps,). It is NaN where the environment reported none."""
        return self._floats("cost")

    @property
    def goal(self) -> NDArray[np.bool_]:
        """Whether the goal was met at each step, bool of shape (steps,)."""
        return np.asarray(self._column("goal"), dtype=np.bool_)

    @property
    def source(self) -> tuple[str, ...]:
        """Who supplied the action of each step: "proposal", "fallback" or, for nobody, "abstain"."""
        return tuple(str(value) for value in self._column("source"))

    @property
    def index(self) -> NDArray[np.int64]:
        """Which proposal of the block or which fallback acted, from 0, int64 of shape (steps,). Nobody is -1."""
        return np.asarray(self._column("index"), dtype=np.int64)

    @property
    def centers(self) -> NDArray[np.float64]:
        """The controller's centers, clipped and never shifted, float64 of shape (steps, d)."""
        return self._matrix("center")

    @property
    def actions(self) -> NDArray[np.float64]:
        """The actions that ran, float64 of shape (steps, d). They are NaN for an abstained step."""
        return self._matrix("action")

    def _column(self, name: str) -> NDArray[Any]:
        """Return a column as a copy, so that an event that writes into it does not change what others read."""
        rows = self._steps.slices.get(self.trial, slice(0))
        return self._steps.column(name)[rows].copy()

    def _floats(self, name: str) -> NDArray[np.float64]:
        return np.asarray(self._column(name), dtype=np.float64)

    def _matrix(self, name: str) -> NDArray[np.float64]:
        columns = [column for column in self._steps.names if column.startswith(f"{name}_")]
        return np.stack([self._floats(column) for column in columns], axis=1)


def traces(lines: Iterable[TrajectoryRow], steps: Path | pa.Table) -> list[Trace]:
    """Return the traces of some trials, given their lines and the table or file with their steps."""
    file = _StepFile(steps)
    return [Trace(line, file) for line in lines]
