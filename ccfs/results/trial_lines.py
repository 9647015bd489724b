"""One table with a line for every trial of a run: outcome, events, who acted, energy spent and the trace's hash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import pyarrow as pa

from ccfs.protocol.model import Protocol
from ccfs.results.derive import refuse_missing_trials
from ccfs.runs.batches import Batch
from ccfs.runs.counting import Judged, recorded_events, verdicts
from ccfs.runs.manifest import manifest_faults
from ccfs.runs.reader import RunReader
from ccfs.runs.store import RunError, Store

__all__ = ["event_column", "fallback_column", "trial_lines"]


def event_column(event: str) -> str:
    """Return the column that says whether a trial is in the event of this name."""
    return f"in {event}"


def fallback_column(fallback: str) -> str:
    """Return the column that counts the steps of the fallback of this name."""
    return f"fallback {fallback}"


def trial_lines(store: Store, protocol: Protocol) -> pa.Table:
    """Return one line for every trial of every arm and attack of a finished run, in the protocol's order.

    People read the numbers from these lines as they read a certificate. So a run is refused if it is not finished, if
    one of its files was changed, added or removed, or if the code of an event was changed. (An old report page does
    not matter, because it is not read.)

    The columns of the trajectory table are preceded by `controller`, `schedule` and `attack`. A column per event says
    whether the trial is in it. Others count the steps by `proposals`, by each fallback, and `abstained`. The column
    `spent` is the energy of an attacked trial, rounded up, and 0 for a nominal one.
    """
    faults = [fault for fault in manifest_faults(store) if not fault.startswith("report.html:")]
    if faults:
        raise RunError(f"{store.root}: {faults[0]} Audit this run before reading its trials.")
    refuse_missing_trials(store, protocol)
    reader = RunReader(store, protocol)
    with recorded_events(store, protocol) as events:
        lines = [
            line
            for attack in (None, *protocol.attacks)
            for arm in protocol.arms
            for batch in reader.batches(arm, attack)
            for line in _batch_lines(reader, protocol, batch, (arm.controller.name, arm.schedule.name), events)
        ]
    return pa.Table.from_pylist(lines, schema=_schema(protocol))


def _schema(protocol: Protocol) -> pa.Schema:
    text, number, whole = pa.string(), pa.float64(), pa.int32()
    return pa.schema(
        [
            ("controller", text),
            ("schedule", text),
            ("attack", text),
            ("trial", whole),
            ("reset_seed", pa.int64()),
            ("outcome", text),
            ("steps", whole),
            ("goal_step", whole),
            ("first_cost_step", whole),
            ("total_reward", number),
            ("total_cost", number),
            *((event_column(spec.name), pa.bool_()) for spec in protocol.events),
            ("proposals", whole),
            *((fallback_column(part.name), whole) for part in protocol.program.fallbacks),
            ("abstained", whole),
            ("spent", number),
            ("chain", pa.binary(32)),
        ]
    )


def _batch_lines(
    reader: RunReader, protocol: Protocol, batch: Batch, arm: tuple[str, str], events: Mapping[str, Judged]
) -> Iterator[dict[str, object]]:
    names = [part.name for part in protocol.program.fallbacks]
    spent = reader.spent(batch)
    inside = verdicts(reader.store, protocol, batch, events)
    for number, (row, trace) in enumerate(zip(reader.trajectories(batch), reader.traces(batch), strict=True)):
        acted = Counter(zip(trace.source, trace.index.tolist(), strict=True))
        yield {
            "controller": arm[0],
            "schedule": arm[1],
            "attack": batch.attack,
            "trial": row.trial,
            "reset_seed": row.reset_seed,
            "outcome": row.outcome,
            "steps": row.steps,
            "goal_step": row.goal_step,
            "first_cost_step": row.first_cost_step,
            "total_reward": row.total_reward,
            "total_cost": row.total_cost,
            **{event_column(name): found[number] for name, found in inside.items()},
            "proposals": sum(count for (source, _), count in acted.items() if source == "proposal"),
            **{fallback_column(name): acted["fallback", i] for i, name in enumerate(names)},
            "abstained": sum(count for (source, _), count in acted.items() if source == "abstain"),
            "spent": spent.get(row.trial, 0.0),
            "chain": row.chain,
        }
