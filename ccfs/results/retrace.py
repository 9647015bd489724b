"""Make the traces of a run again that keeps none, and check each of them against its stored line and hash."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from ccfs.files.atomic import write_together
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.protocol.model import Arm, Protocol
from ccfs.runs.batches import Batch
from ccfs.runs.host import host_of
from ccfs.runs.manifest import manifest_faults
from ccfs.runs.reader import RunReader
from ccfs.runs.record import TrajectoryRow, lines_of
from ccfs.runs.store import RunError, Store, Trust
from ccfs.runs.trust import foreign_parts, places_of, untrusted

__all__ = ["retrace"]


def retrace(store: Store, folder: Path, trials: Collection[int], *, arm: str | None = None) -> int:
    """Run trials of a run again, write their traces and lines below a new folder, and return their number.

    The events are not asked. Their verdicts are in the run.

    Args:
        store: a finished run that keeps no traces.
        folder: where the files go. It must be absent or empty.
        trials: numbers of the trials.
        arm: name of an arm. None is for all arms.

    Raises:
        RunError: a file of the run was changed, or a trial does not come out as it is stored.
        UntrustedError: the trials are code that the run names, and nobody said that it may run.
    """
    protocol = store.protocol()
    if protocol.keeps_traces:
        raise ValueError(f"{store.root}: keeps its traces. They are in {store.root / 'traces'}.")
    known = [found for found in protocol.arms if arm in (None, found.name)]
    if not known:
        raise ValueError(f"`--arm` must be one of {', '.join(a.name for a in protocol.arms)}, got {arm!r}.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: must be a new folder.")
    faults = manifest_faults(store)
    if faults:
        raise RunError(f"{store.root}: {faults[0]} Audit this run first.")
    made = sum(_batches(store, protocol, found, folder, set(trials)) for found in known)
    if not made:
        raise ValueError(f"`--trials` must name trials of the run, which are 0 to {protocol.trials.count - 1}.")
    return made


def _batches(store: Store, protocol: Protocol, arm: Arm, folder: Path, wanted: set[int]) -> int:
    reader, made = RunReader(store, protocol), 0
    for batch in reader.batches(arm, None):
        chosen = [trial for trial in batch.trials if trial in wanted]
        if chosen:
            _refuse_untrusted(store, protocol, batch)
            write_together({folder / name: content for name, content in _files(store, protocol, batch, chosen).items()})
            made += len(chosen)
    return made


def _files(store: Store, protocol: Protocol, batch: Batch, trials: list[int]) -> dict[str, bytes]:
    """Return the files of a batch as a run with traces has them, with these trials in them."""
    host, whole = host_of(store, protocol), replace(batch, keeps_traces=True, is_judged=False)
    stored = {row.trial: row for row in RunReader(store, protocol).trajectories(batch)}
    parts = []
    for trial in trials:
        steps, line = (
            read_parquet(content, most=protocol.horizon, where=trial) for content in host.replay(whole, trial)
        )
        (row,) = lines_of(TrajectoryRow, line)
        # The line holds the last hash of the trace. The repr of a double is exact, and that of NaN equals itself.
        if repr(row) != repr(stored[trial]):
            raise RunError(
                f"{store.path(batch.trajectories)}: trial {trial} does not come out as it is stored. "
                "Use the versions that `ccfs audit` names."
            )
        parts.append((steps, line))
    joined = (parquet_bytes(pa.concat_tables(tables)) for tables in zip(*parts, strict=True))
    return dict(zip(whole.files, joined, strict=True))


def _refuse_untrusted(store: Store, protocol: Protocol, batch: Batch) -> None:
    places = [place for place in places_of(protocol, batch) if not place.startswith("events.")]
    foreign = foreign_parts(protocol, places)
    if foreign and store.trust is Trust.NONE:
        raise untrusted(store.root, "making traces again", foreign)
