"""Replay stored trials from the protocol alone and compare them bit for bit with what was stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from ccfs.files.parquet import read_parquet
from ccfs.protocol.model import NOMINAL, Protocol
from ccfs.runs.batches import Batch, replay
from ccfs.runs.recording import ShiftRow, StepRow, TrajectoryRow
from ccfs.runs.store import Store
from ccfs.runs.tables import shift_rows, step_rows, trajectory_rows

__all__ = ["replay_faults"]

Row = StepRow | TrajectoryRow | ShiftRow


def replay_faults(store: Store, protocol: Protocol, trials: Sequence[tuple[Batch, int]]) -> Iterator[str]:
    """Yield one line for each trial that does not give the stored bytes again."""
    canonical = protocol.canonical
    for batch, trial in trials:
        tables = [read_parquet(store.read(name)) for name in batch.files]
        recorder, row = replay(canonical, batch, trial)
        stored: list[tuple[str, Sequence[Row], Sequence[Row]]] = [
            (batch.files[0], step_rows(tables[0]), recorder.steps),
            (batch.files[1], trajectory_rows(tables[1]), [row]),
        ]
        if batch.attack != NOMINAL:
            stored.append((batch.files[2], shift_rows(tables[2]), recorder.shifts))
        for name, kept, again in stored:
            # repr of a double is exact, and by repr NaN equals itself.
            mine = [line for line in kept if line.trial == trial]
            if repr(mine) != repr(list(again)):
                yield f"{name}: trial {trial} does not replay{_first_difference(mine, again)}."


def _first_difference(kept: Sequence[Row], again: Sequence[Row]) -> str:
    """Return where two lists of lines differ first, in words; nothing but words hangs on it."""
    for before, now in zip(kept, again, strict=False):
        for name in (field.name for field in fields(before)):
            if repr(getattr(before, name)) != repr(getattr(now, name)):
                place = "" if isinstance(before, TrajectoryRow) else f" at step {before.t}"
                doubt = " (is the controller deterministic?)" if name == "center" else ""
                return f": first difference{place}: {name}{doubt}"
    return f": {len(kept)} lines are stored, {len(again)} come from the replay"
