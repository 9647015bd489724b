"""Count successes in stored traces, and say whether the counts already certify what the protocol asks for."""

from __future__ import annotations

from ccfs.certificates.bounds import Bound
from ccfs.certificates.trajectory import TrajectoryCertificate, certify_event
from ccfs.protocol.model import Arm, AttackSpec, Protocol
from ccfs.runs.batches import Batch
from ccfs.runs.build import build_event
from ccfs.runs.events import holds
from ccfs.runs.provenance import changed_events, read_provenance
from ccfs.runs.reader import RunReader
from ccfs.runs.store import RunError, Store

__all__ = [
    "certificate",
    "is_enough",
    "refuse_changed_events",
    "successes",
    "tally",
]


def successes(store: Store, protocol: Protocol, batch: Batch) -> dict[str, int]:
    """Return how many trials of a batch are in each event; refuse tables that do not hold each trial once."""
    events = {spec.name: build_event(protocol, spec) for spec in protocol.events}
    counts = dict.fromkeys(events, 0)
    for trace in RunReader(store, protocol).traces(batch):
        for name, event in events.items():
            counts[name] += holds(event, trace)
    return counts


def refuse_changed_events(store: Store, protocol: Protocol) -> None:
    """Raise if an event's code is not the one that the run was made with: it would count other trials."""
    for event, file in changed_events(protocol, read_provenance(store)):
        raise RunError(
            f"{store.root}: the event {event!r} is not the one that the run was made with: {file} was changed since. "
            "Restore it, or run the protocol again in another directory."
        )


def tally(store: Store, protocol: Protocol, arm: Arm, attack: AttackSpec | None) -> tuple[dict[str, int], int]:
    """Return the successes of each event and the number of trials of an arm."""
    counts = dict.fromkeys((spec.name for spec in protocol.events), 0)
    trials = 0
    for batch in RunReader(store, protocol).batches(arm, attack):
        for name, count in successes(store, protocol, batch).items():
            counts[name] += count
        trials += len(batch.trials)
    return counts, trials


def certificate(
    protocol: Protocol, arm: Arm, event: str, hits: int, trials: int, bound: Bound | None = None
) -> TrajectoryCertificate:
    """Return the certificate that an arm's count gives under the protocol's claim, or under another bound rule."""
    return certify_event(
        hits,
        trials,
        delta=protocol.claim.delta,
        family=protocol.family,
        target=protocol.claim.target,
        schedule=arm.schedule.blocks,
        bound=bound or protocol.bound,
        event=event,
    )


def is_enough(protocol: Protocol, arm: Arm, counts: dict[str, int], trials: int) -> bool:
    """Return whether every event's certified budget has reached the one at which the run may stop."""
    wanted = protocol.claim.stop_at_budget
    if wanted is None:
        return False
    budgets = [certificate(protocol, arm, name, hits, trials).budget for name, hits in counts.items()]
    return all(budget is not None and budget >= wanted for budget in budgets)
