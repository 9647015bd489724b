"""How the nominal trials of a run ended, in one line an arm, for claims that are not certified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ccfs.building import build_event
from ccfs.counting import finished_batches
from ccfs.outcomes import Outcome
from ccfs.preflight import needs_cost, needs_goal
from ccfs.protocol import Arm, Protocol
from ccfs.recording import TrajectoryRow
from ccfs.run_certificate import RunCertificate
from ccfs.store import Store
from ccfs.tables import parse, trajectory_rows

__all__ = ["endings"]

_WORDS = {
    Outcome.ABSTAINED: "abstained",
    Outcome.CRASHED: "crashed",
    Outcome.NONFINITE: "met a number that is not finite",
    Outcome.TERMINATED: "were ended early by the environment",
    Outcome.TRUNCATED: "were cut short by the environment",
    Outcome.COST: "stopped at a cost",
    Outcome.GOAL: "stopped at the goal",
    Outcome.HORIZON: "ran all steps",
}


def endings(store: Store, protocol: Protocol, documents: Sequence[RunCertificate]) -> Iterator[str]:
    """Yield a line for each arm with a claim that is not certified or a trial that abstained or crashed.

    After it stands what the trajectory lines tell about the cause: a cost that was never reported, a goal never met.
    """
    failed = {document.arm for document in documents if not document.trajectory.is_certified}
    events = {spec.name: build_event(protocol, spec) for spec in protocol.events}
    for arm in protocol.arms:
        rows = _rows(store, protocol, arm)
        outcomes = {Outcome(row.outcome) for row in rows}
        if arm.name not in failed and not outcomes & {Outcome.ABSTAINED, Outcome.CRASHED}:
            continue
        yield f"{arm.name}: {'; '.join(_parts(rows))}."
        moved = [row for row in rows if row.steps]
        costly = [name for name, event in events.items() if needs_cost(event)]
        if costly and moved and all(row.total_cost is None for row in moved):
            key = protocol.environment.cost
            yield (
                f"{arm.name}: no step reported a cost, which {', '.join(costly)} needs: "
                f"{key!r} never appeared in info (see `environment.cost`)."
            )
        aiming = [name for name, event in events.items() if needs_goal(event)]
        if aiming and moved and all(row.goal_step is None for row in rows):
            key = protocol.environment.goal
            yield (
                f"{arm.name}: no trial met a goal, which {', '.join(aiming)} needs: "
                f"{key!r} never appeared in info as true (see `environment.goal`)."
            )


def _rows(store: Store, protocol: Protocol, arm: Arm) -> list[TrajectoryRow]:
    batches = finished_batches(store, protocol, arm, None)
    return [row for batch in batches for row in trajectory_rows(parse(store.read(batch.files[1])))]


def _parts(rows: Sequence[TrajectoryRow]) -> Iterator[str]:
    """Yield how many trials ended in each way, the worst ways first."""
    for outcome, words in _WORDS.items():
        ended = [row for row in rows if row.outcome == outcome.value]
        if not ended:
            continue
        text = f"{len(ended)} of {len(rows)} {words}"
        if outcome is Outcome.CRASHED:
            kinds = Counter(row.error or "unknown" for row in ended).most_common()
            text += ": " + ", ".join(f"{kind} ({number} trial{'s' * (number > 1)})" for kind, number in kinds)
        if outcome in (Outcome.ABSTAINED, Outcome.CRASHED, Outcome.NONFINITE):
            text += f", first at step {min(row.steps for row in ended)}"
        yield text
