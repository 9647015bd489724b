"""Replay stored trials from the protocol alone and compare them bit for bit with what was stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ccfs.protocol.model import Protocol
from ccfs.runs.batches import Batch, replay
from ccfs.runs.reader import RunReader
from ccfs.runs.record import ShiftRow, StepRow, TrajectoryRow
from ccfs.runs.store import Store

__all__ = ["replay_faults"]

Row = StepRow | TrajectoryRow | ShiftRow


def replay_faults(store: Store, protocol: Protocol, trials: Sequence[tuple[Batch, int]]) -> Iterator[str]:
    """Yield one line for each trial that does not give the stored bytes again."""
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
            # repr of a double is exact, and by repr NaN equals itself.
            if repr(kept) != repr(again):
                yield f"{name}: trial {trial} does not replay{_first_difference(kept, again)}."


def _first_difference(kept: Sequence[Row], again: Sequence[Row]) -> str:
    """Return where two lists of lines differ first, in words; nothing but words hangs on it."""
    for before, now in zip(kept, again, strict=False):
        for name in before._fields:
            if repr(getattr(before, name)) != repr(getattr(now, name)):
                place = "" if isinstance(before, TrajectoryRow) else f" at step {before.t}"
                doubt = " (is the controller deterministic?)" if name == "center" else ""
                return f": first difference{place}: {name}{doubt}"
    return f": {len(kept)} lines are stored, {len(again)} come from the replay"
