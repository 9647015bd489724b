"""Replay stored trials from the protocol alone and compare them bit for bit with what was stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ccfs.batches import Batch, replay
from ccfs.protocol import NOMINAL, Protocol
from ccfs.store import Store
from ccfs.tables import (
    dimension_of,
    parse,
    shift_rows,
    shift_table,
    step_rows,
    step_table,
    table_bytes,
    trajectory_rows,
    trajectory_table,
)

__all__ = ["replay_faults"]


def replay_faults(store: Store, protocol: Protocol, trials: Sequence[tuple[Batch, int]]) -> Iterator[str]:
    """Yield one line for each trial that does not give the stored bytes again."""
    canonical = protocol.canonical
    for batch, trial in trials:
        tables = [parse(store.read(name)) for name in batch.files]
        dimension = dimension_of(tables[0], "center")
        recorder, row = replay(canonical, batch, trial)
        kept = [step for step in step_rows(tables[0]) if step.trial == trial]
        line = [stored for stored in trajectory_rows(tables[1]) if stored.trial == trial]
        if table_bytes(trajectory_table(line)) != table_bytes(trajectory_table([row])):
            yield f"{batch.files[1]}: trial {trial} does not replay."
        if table_bytes(step_table(kept, dimension)) != table_bytes(step_table(recorder.steps, dimension)):
            yield f"{batch.files[0]}: trial {trial} does not replay."
        if batch.attack != NOMINAL:
            shifts = [shift for shift in shift_rows(tables[2]) if shift.trial == trial]
            if table_bytes(shift_table(shifts, dimension)) != table_bytes(shift_table(recorder.shifts, dimension)):
                yield f"{batch.files[2]}: trial {trial} does not replay."
