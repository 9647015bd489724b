"""Where actions came from, step by step: counts over a run's public traces, columns read batch by batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ccfs.counting import finished_batches
from ccfs.protocol import Arm, AttackSpec, Protocol
from ccfs.store import Store

__all__ = ["Sources", "proposal_bins", "sources"]

_COLUMNS = 120


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sources:
    """Shares of trials, array [kind, column], over time columns with `edges`; what is missing to 1 has ended."""

    names: tuple[str, ...]
    styles: tuple[str, ...]
    shares: NDArray[np.float64]
    totals: tuple[int, ...]
    edges: tuple[float, ...]
    trials: int


def proposal_bins(count: int) -> list[tuple[str, int]]:
    """Return (name, first index past the bin) for the proposals of a block: singly, from seven on in doubling bins.

    >>> proposal_bins(2)
    [('proposal 1', 1), ('proposal 2', 2)]
    >>> proposal_bins(7)
    [('proposal 1', 1), ('proposal 2', 2), ('proposals 3–4', 4), ('proposals 5–7', 7)]
    """
    ends = list(range(1, count + 1)) if count <= 6 else [1, 2]
    while ends[-1] < count:
        ends.append(min(2 * ends[-1], count))
    starts = [0, *ends[:-1]]
    return [
        (f"proposal {end}" if end == start + 1 else f"proposals {start + 1}–{end}", end)
        for start, end in zip(starts, ends, strict=True)
    ]


def sources(store: Store, protocol: Protocol, arm: Arm, attack: AttackSpec | None) -> Sources:
    """Count each step's source over the trials of an arm. A trial that abstained stays counted as abstained."""
    schedules = arm.schedule.schedules
    block = max(entry.count for entry in schedules) if isinstance(schedules, tuple) else schedules.count
    bins = proposal_bins(block)
    fallbacks = [f"fallback {part.name}" for part in protocol.program.fallbacks]
    names = (*(name for name, _ in bins), *fallbacks, "abstained")
    counts = np.zeros((len(names), protocol.horizon), dtype=np.int64)
    ends = np.array([end for _, end in bins])
    trials = 0
    for batch in finished_batches(store, protocol, arm, attack):
        table = pq.read_table(store.path(batch.files[0]), columns=["t", "source", "index"])
        step, index = table.column("t").to_numpy(), table.column("index").to_numpy()
        source = table.column("source").to_numpy()
        kind = np.full(len(step), len(names) - 1)
        proposed, fell = source == "proposal", source == "fallback"
        kind[proposed] = np.searchsorted(ends, index[proposed], side="right")
        kind[fell] = len(bins) + index[fell]
        np.add.at(counts, (kind, step), 1)
        trials += len(batch.trials)
    totals = tuple(int(row.sum()) for row in counts)
    counts[-1] = np.cumsum(counts[-1])
    columns = np.array_split(np.arange(protocol.horizon), min(protocol.horizon, _COLUMNS))
    shares = np.stack([counts[:, part].mean(axis=1) for part in columns], axis=1) / max(trials, 1)
    return Sources(
        names=names,
        styles=_styles(len(bins), len(fallbacks)),
        shares=shares,
        totals=totals,
        edges=(*(float(part[0]) for part in columns), float(protocol.horizon)),
        trials=trials,
    )


def _styles(bins: int, fallbacks: int) -> tuple[str, ...]:
    return (
        *(f"p{min(i, 5)}" for i in range(bins)),
        *(f"f{min(i, 2)}" for i in range(fallbacks)),
        "abstained",
    )
