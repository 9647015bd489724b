"""Read the finished batches of a run in one way for every command, and compare them with a replay."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from ccfs.files.parquet import read_parquet
from ccfs.protocol.model import Arm, AttackSpec, Protocol
from ccfs.runs.batches import Batch, plan, replay
from ccfs.runs.record import ShiftRow, StepRow, TrajectoryRow, lines_of
from ccfs.runs.store import RunError, Store
from ccfs.runs.trace import Trace, traces

__all__ = ["RunReader", "replay_faults"]


class RunReader:
    """The stored trials of a run. It refuses a trajectory table that does not hold each trial of its batch once."""

    def __init__(self, store: Store, protocol: Protocol) -> None:
        self._store, self._protocol = store, protocol

    def batches(self, arm: Arm, attack: AttackSpec | None) -> list[Batch]:
        """Return the journalled batches of an arm, in order."""
        return [batch for batch in plan(self._protocol, arm, attack) if self._store.exists(batch.journal)]

    def trajectories(self, batch: Batch) -> list[TrajectoryRow]:
        """Return the trajectory lines of a batch."""
        found = lines_of(TrajectoryRow, self._read(batch.trajectories))
        if [row.trial for row in found] != list(batch.trials):
            first, last = batch.trials[0], batch.trials[-1]
            where = self._store.path(batch.trajectories)
            raise RunError(f"{where}: must hold the trials {first} to {last}, each once and in order.")
        return found

    def traces(self, batch: Batch) -> list[Trace]:
        """Return the traces of a batch, in the order of its trials. A trace reads a column when it is first needed."""
        return traces(self.trajectories(batch), self._store.path(batch.traces))

    def columns(self, batch: Batch, names: Sequence[str]) -> pa.Table:
        """Return columns of a batch's public steps."""
        return read_parquet(self._store.path(batch.traces), names)

    def steps(self, batch: Batch, trials: Collection[int]) -> Iterator[tuple[TrajectoryRow, list[StepRow]]]:
        """Yield some trials of a batch, each with its steps."""
        table = self._read(batch.traces)
        # Filtered before `lines_of`, which makes Python objects and takes most of the time.
        wanted = table.filter(pc.is_in(table.column("trial"), pa.array(sorted(trials), type=pa.int64())))
        groups = groupby(lines_of(StepRow, wanted), key=lambda step: step.trial)
        by_trial = {trial: list(group) for trial, group in groups}
        for row in self.trajectories(batch):
            if row.trial in trials:
                yield row, by_trial.get(row.trial, [])

    def shifts(self, batch: Batch) -> list[ShiftRow]:
        """Return the private log of an attacked batch."""
        return lines_of(ShiftRow, self._read(batch.private))

    def spent(self, batch: Batch) -> dict[int, float]:
        """Return the energy that each trial of a batch spent, rounded up. A nominal batch has no entries."""
        if not batch.is_attacked:
            return {}
        log = read_parquet(self._store.path(batch.private), ["trial", "spent"])
        found: dict[int, float] = {}
        for trial, spent in zip(log.column("trial").to_pylist(), log.column("spent").to_pylist(), strict=True):
            found[trial] = max(found.get(trial, 0.0), spent)
        return found

    def _read(self, name: str) -> pa.Table:
        return read_parquet(self._store.read(name))


Row = StepRow | TrajectoryRow | ShiftRow


def replay_faults(store: Store, protocol: Protocol, trials: Sequence[tuple[Batch, int]]) -> Iterator[str]:
    """Run trials again from the protocol alone, and yield one line for each table that does not come out the same."""
    canonical, reader = protocol.canonical, RunReader(store, protocol)
    for batch, trial in trials:
        ((kept_row, kept_steps),) = reader.steps(batch, {trial})
        recorder, row = replay(canonical, batch, trial)
        stored: list[tuple[str, Sequence[Row], Sequence[Row]]] = [
            (batch.traces, kept_steps, recorder.steps),
            (batch.trajectories, [kept_row], [row]),
        ]
        if batch.is_attacked:
            kept_shifts = [line for line in reader.shifts(batch) if line.trial == trial]
            stored.append((batch.private, kept_shifts, recorder.shifts))
        for name, kept, again in stored:
            # The repr of a double is exact, and unlike NaN itself the repr of NaN equals itself.
            if repr(kept) != repr(again):
                yield f"{name}: trial {trial} does not replay{_first_difference(kept, again)}."


def _first_difference(kept: Sequence[Row], again: Sequence[Row]) -> str:
    """Return in words where two lists of lines differ first."""
    for before, now in zip(kept, again, strict=False):
        for name in before._fields:
            if repr(getattr(before, name)) != repr(getattr(now, name)):
                place = "" if isinstance(before, TrajectoryRow) else f" at step {before.t}"
                doubt = " (is the controller deterministic?)" if name == "center" else ""
                return f": first difference{place}: {name}{doubt}"
    return f": {len(kept)} lines are stored, {len(again)} come from the replay"
