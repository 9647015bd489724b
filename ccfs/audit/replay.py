"""Replay stored trials from the protocol alone, and say where one does not come out as it is stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ccfs.files.parquet import read_parquet
from ccfs.protocol.model import Protocol
from ccfs.runs.batches import Batch
from ccfs.runs.host import Host
from ccfs.runs.reader import RunReader
from ccfs.runs.record import ShiftRow, StepRow, TrajectoryRow, lines_of
from ccfs.runs.repeats import difference
from ccfs.runs.store import RunError, Store

__all__ = ["NoReplayError", "replay_faults"]

Row = StepRow | TrajectoryRow | ShiftRow
_CONFINED = "A replay has no network, writes to a scratch folder only and has limits (docs/threat-model.md)"


class NoReplayError(Exception):
    """A trial that could not be run here, which says nothing about the stored one."""


def replay_faults(store: Store, protocol: Protocol, host: Host, trials: Sequence[tuple[Batch, int]]) -> Iterator[str]:
    """Run trials again from the protocol alone, and yield one line for each table that does not come out the same.

    Raises:
        NoReplayError: a trial cannot be run here.
    """
    reader = RunReader(store, protocol)
    for batch, trial in trials:
        if not batch.keeps_traces:
            try:
                found = difference(reader, batch, trial, host.replay(batch, trial))
            except (RunError, RuntimeError, ValueError, KeyError) as error:
                raise _no_replay(batch, trial, error) from error
            if found is not None:
                yield f"{batch.trajectories}: trial {trial} does not replay: {found}"
            continue
        ((row, steps),) = reader.steps(batch, {trial})
        kept: list[Sequence[Row]] = [steps, [row]]
        if batch.is_attacked:
            kept.append([line for line in reader.shifts(batch) if line.trial == trial])
        try:
            again = _again(host.replay(batch, trial), protocol.horizon)
        except (RunError, RuntimeError, ValueError, KeyError) as error:
            raise _no_replay(batch, trial, error) from error
        for name, stored, made in zip(batch.files, kept, again, strict=True):
            # The repr of a double is exact, and unlike NaN itself the repr of NaN equals itself.
            if repr(stored) != repr(made):
                yield f"{name}: trial {trial} does not replay{_first_difference(stored, made)}."


def _no_replay(batch: Batch, trial: int, error: Exception) -> NoReplayError:
    return NoReplayError(f"trial {trial} of {batch.arm} ({batch.attack}) cannot run here: {error}")


def _again(tables: Sequence[bytes], horizon: int) -> list[Sequence[Row]]:
    kinds = (StepRow, TrajectoryRow, ShiftRow)
    read = [read_parquet(table, most=horizon, where="the replay") for table in tables]
    return [lines_of(kind, table) for kind, table in zip(kinds, read, strict=False)]


def _first_difference(kept: Sequence[Row], again: Sequence[Row]) -> str:
    """Return in words where two lists of lines differ first."""
    for before, now in zip(kept, again, strict=False):
        if isinstance(now, TrajectoryRow) and now.error is not None and now.error != getattr(before, "error", None):
            return f": it crashed here with {now.error}. {_CONFINED}"
        for name in before._fields:
            if repr(getattr(before, name)) != repr(getattr(now, name)):
                place = "" if isinstance(before, TrajectoryRow) else f" at step {before.t}"
                doubt = " (is the controller deterministic?)" if name == "center" else ""
                return f": first difference{place}: {name}{doubt}"
    return f": {len(kept)} lines are stored, {len(again)} come from the replay"
