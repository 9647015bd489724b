"""Read the finished batches of a run in one way for every command."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ccfs.files.parquet import parquet_head, read_parquet
from ccfs.files.reading import RefusedFileError
from ccfs.protocol.model import Arm, AttackSpec, Protocol
from ccfs.runs.batches import Batch, Verdicts, plan
from ccfs.runs.outcomes import Outcome
from ccfs.runs.record import ShiftRow, StepRow, TrajectoryRow, has_columns, lines_of
from ccfs.runs.store import RunError, Store
from ccfs.runs.trace import Trace, traces

__all__ = ["NoTracesError", "RunReader"]

Row = StepRow | TrajectoryRow | ShiftRow


class NoTracesError(RunError):
    """What was asked for needs traces, and the run keeps none."""


class RunReader:
    """The stored trials of a run. It refuses tables that cannot be those of their batch, before it reads their rows."""

    def __init__(self, store: Store, protocol: Protocol) -> None:
        self.store, self._protocol = store, protocol

    def batches(self, arm: Arm, attack: AttackSpec | None) -> list[Batch]:
        """Return the journalled batches of an arm, in order."""
        return [batch for batch in plan(self._protocol, arm, attack) if self.store.exists(batch.journal)]

    def trajectories(self, batch: Batch) -> list[TrajectoryRow]:
        """Return the trajectory lines of a batch."""
        found = lines_of(TrajectoryRow, self._table(TrajectoryRow, batch, batch.trajectories))
        if [row.trial for row in found] != list(batch.trials):
            first, last = batch.trials[0], batch.trials[-1]
            where = self.store.path(batch.trajectories)
            raise RunError(f"{where}: must hold the trials {first} to {last}, each once and in order.")
        return found

    def outcomes(self, batch: Batch) -> list[str]:
        """Return how each trial of a batch ended."""
        if len(found := self._table(TrajectoryRow, batch, batch.trajectories, ["outcome"])) != len(batch.trials):
            raise RunError(f"{self.store.path(batch.trajectories)}: must hold {len(batch.trials)} trials.")
        return list(found.column("outcome").to_pylist())

    def traces(self, batch: Batch) -> list[Trace]:
        """Return the traces of a batch, in the order of its trials. A trace reads a column when it is first needed."""
        found = traces(self.trajectories(batch), self._checked(StepRow, batch, batch.traces))
        # Otherwise a line that claims steps without any would be a success of every event that finds nothing wrong.
        for trace in found:
            if len(trace) != trace.executed + (trace.outcome is Outcome.ABSTAINED):
                where = self.store.path(batch.traces)
                raise RunError(f"{where}: trial {trace.trial} must have {trace.executed} steps, got {len(trace)}.")
        return found

    def columns(self, batch: Batch, names: Sequence[str]) -> pa.Table:
        """Return columns of a batch's public steps."""
        return self._table(StepRow, batch, batch.traces, names)

    def steps(self, batch: Batch, trials: Collection[int]) -> Iterator[tuple[TrajectoryRow, list[StepRow]]]:
        """Yield some trials of a batch, each with its steps."""
        table = self._table(StepRow, batch, batch.traces)
        # Filtered before `lines_of`, which makes Python objects and takes most of the time.
        wanted = table.filter(pc.is_in(table.column("trial"), pa.array(sorted(trials), type=pa.int64())))
        groups = groupby(lines_of(StepRow, wanted), key=lambda step: step.trial)
        by_trial = {trial: list(group) for trial, group in groups}
        for row in self.trajectories(batch):
            if row.trial in trials:
                yield row, by_trial.get(row.trial, [])

    def shifts(self, batch: Batch) -> list[ShiftRow]:
        """Return the private log of an attacked batch."""
        return lines_of(ShiftRow, self._table(ShiftRow, batch, batch.private))

    def spent(self, batch: Batch) -> dict[int, float]:
        """Return the energy that each trial of a batch spent, rounded up. A nominal batch has no entries."""
        if not batch.is_attacked:
            return {}
        log = self._table(ShiftRow, batch, batch.private, ["trial", "spent"])
        found: dict[int, float] = {}
        for trial, spent in zip(log.column("trial").to_pylist(), log.column("spent").to_pylist(), strict=True):
            found[trial] = max(found.get(trial, 0.0), spent)
        return found

    def verdicts(self, batch: Batch) -> dict[str, tuple[bool, ...]]:
        """Return the stored verdicts about each trial of a batch, by event."""
        return self._verdicts(batch).events

    def judgements(self, batch: Batch) -> dict[str, list[tuple[bool, bool]]]:
        """Return for each event of a run without traces, and each trial, whether it is inside and whether it was lost.

        A trial is lost if it failed because of how it ended.
        """
        found, where = self._verdicts(batch), self.store.path(batch.verdicts)
        names = {spec.name for spec in self._protocol.events}
        if found.lost is None or set(found.lost) != set(found.events) or not names <= set(found.events):
            raise RunError(f"{where}: must have the verdicts of the events {', '.join(sorted(names))}.")
        made = {}
        for name, inside in found.events.items():
            lost = set(found.lost[name])
            failed = {trial for trial, is_inside in zip(batch.trials, inside, strict=True) if not is_inside}
            if not lost <= failed or len(lost) != len(found.lost[name]):
                raise RunError(f"{where}: must call only trials lost that are not in {name}, each once.")
            made[name] = [(is_in, trial in lost) for trial, is_in in zip(batch.trials, inside, strict=True)]
        return made

    def _verdicts(self, batch: Batch) -> Verdicts:
        found = self.store.read_document(Verdicts, batch.verdicts)
        if found.trials != batch.trials or any(len(said) != len(batch.trials) for said in found.events.values()):
            raise RunError(f"{self.store.path(batch.verdicts)}: must have one verdict for each trial of its batch.")
        return found

    def _table(self, kind: type[Row], batch: Batch, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        try:
            return read_parquet(self._checked(kind, batch, name), columns)
        except RefusedFileError as error:
            raise RunError(str(error)) from None

    def _checked(self, kind: type[Row], batch: Batch, name: str) -> Path:
        """Return the path of a table after a look at its footer: its columns, and how many rows it may have."""
        if kind is StepRow and not self._protocol.keeps_traces:
            raise NoTracesError(
                f'{self.store.root}: keeps no traces (`traces = "hashes"` in its protocol). '
                "`ccfs retrace RUN -o FOLDER --trials 0:100` makes those of chosen trials again."
            )
        path = self.store.path(name)
        most = len(batch.trials) * (1 if kind is TrajectoryRow else self._protocol.horizon)
        try:
            schema, rows = parquet_head(path)
        except OSError as error:
            raise RunError(f"{path}: cannot be read: {error.strerror}.") from error
        except RefusedFileError as error:
            raise RunError(str(error)) from None
        try:
            is_known = has_columns(kind, schema)
        except ValueError as error:
            raise RunError(f"{path}: {error}") from None
        if not is_known:
            raise RunError(f"{path}: has other columns than this format.")
        if rows > most:
            raise RunError(f"{path}: must have at most {most} rows, as its batch, got {rows}.")
        return path
