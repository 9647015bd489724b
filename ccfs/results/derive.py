"""Certify a finished run: count each event on the nominal traces, and write one certificate for each arm and event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import cast

from ccfs.attacks.ledger import attacked_stages
from ccfs.protocol.model import Arm, AttackSpec, EventSpec, Protocol
from ccfs.protocol.registry import IN_MEMORY
from ccfs.results.certificate import (
    AttackedCount,
    CodeDigests,
    Ended,
    RegistrationRecord,
    RunCertificate,
    claim_record,
)
from ccfs.runs.batches import plan
from ccfs.runs.build import attack_limit, build_event
from ccfs.runs.counting import certificate, lost, merkle_root, recorded_events, tally
from ccfs.runs.events import Event
from ccfs.runs.outcomes import Outcome
from ccfs.runs.preflight import needs_cost, needs_goal
from ccfs.runs.provenance import event_digest, read_provenance
from ccfs.runs.reader import RunReader
from ccfs.runs.record import TrajectoryRow
from ccfs.runs.registration import read_registration
from ccfs.runs.store import RunError, Store
from ccfs.runs.trust import shipped_events

__all__ = [
    "certificate_name",
    "certified_trials",
    "code_digests",
    "derive",
    "endings",
    "refuse_missing_trials",
]

_WORDS = {
    Outcome.ABSTAINED: "abstained",
    Outcome.CRASHED: "crashed",
    Outcome.NONFINITE: "met a number that is not finite",
    Outcome.TERMINATED: "were terminated by the environment",
    Outcome.TRUNCATED: "were truncated by the environment",
    Outcome.COST: "stopped at a cost",
    Outcome.GOAL: "stopped at the goal",
    Outcome.HORIZON: "ran all steps",
}


def certificate_name(arm: Arm, event: EventSpec) -> str:
    """Return the file of a certificate inside the run."""
    return f"certificates/{arm.name}/{event.name}.json"


def derive(
    store: Store, protocol: Protocol, events: Sequence[EventSpec] | None = None
) -> Iterator[tuple[str, RunCertificate]]:
    """Yield every certificate with its file name, or those of some events, computed from the stored traces alone.

    Assumes: the trials are the planned ones. With a stopping rule they are the first of them, otherwise all. A run with
    other trials is refused, because whoever may leave trials out can choose the counts. A run is also refused if the
    code of an event is not the recorded one.
    """
    # All arms are counted before the first certificate is made, because only then all code of the events is known.
    wanted = protocol.events if events is None else tuple(events)
    with recorded_events(store, protocol.model_copy(update={"events": wanted})) as judged:
        tallies = {
            (arm.name, attack and attack.name): tally(store, protocol, arm, attack, judged)
            for arm in protocol.arms
            for attack in (None, *protocol.attacks)
        }
        by_ending = {arm.name: lost(store, protocol, arm, judged) for arm in protocol.arms}
    record, registration = read_provenance(store), _registration(store, protocol)
    reader = RunReader(store, protocol)
    digests = _texts(record.get("controllers"))
    for arm in protocol.arms:
        nominal = tallies[arm.name, None]
        certified_trials(store, protocol, arm)
        files = [name for batch in reader.batches(arm, None) for name in batch.files] if protocol.keeps_traces else []
        root = None if protocol.keeps_traces else merkle_root(store, protocol, arm)
        energies = {spec.name: _greatest_energy(reader, arm, spec) for spec in protocol.attacks}
        outcomes = Counter(outcome for batch in reader.batches(arm, None) for outcome in reader.outcomes(batch))
        for event in wanted:
            yield (
                certificate_name(arm, event),
                RunCertificate(
                    protocol=protocol.hash,
                    arm=arm.name,
                    event=event.name,
                    definition=event,
                    horizon=protocol.horizon,
                    seed=protocol.seed,
                    environment=protocol.environment,
                    controller=digests.get(arm.controller.name, ""),
                    is_center_clipped=protocol.program.clip_center,
                    unverified_fallbacks=tuple(part.name for part in protocol.program.fallbacks if part.unverified),
                    resolution=protocol.environment.resolution,
                    quick_look_of=protocol.quick_look_of,
                    planned_trials=protocol.trials.count,
                    outcomes=cast(dict[Ended, int], dict(outcomes)),
                    lost=cast(dict[Ended, int], dict(by_ending[arm.name][event.name])),
                    attacks=tuple(
                        AttackedCount(
                            attack=spec.name,
                            stages=tuple(stage.value for stage in attacked_stages(arm.schedule.plan, spec.stage)),
                            budget=spec.budget,
                            energy_limit=attack_limit(spec, arm),
                            energy=energies[spec.name],
                            successes=sum(tallies[arm.name, spec.name][event.name]),
                            trials=len(tallies[arm.name, spec.name][event.name]),
                        )
                        for spec in protocol.attacks
                    ),
                    traces={name: store.digest(name) for name in files},
                    provenance=code_digests(record, arm, event),
                    claim=claim_record(certificate(protocol, arm, event.name, nominal[event.name])),
                    registration=registration,
                    root=root,
                ),
            )


def code_digests(
    record: Mapping[str, object], arm: Arm, event: EventSpec, families: Collection[str] = ()
) -> CodeDigests:
    """Return the digests of the code behind a claim about an arm and an event, and about some disturbances.

    Args:
        record: the provenance of the run.
        arm: the arm. Other controllers are left out.
        event: the event. Others are left out.
        families: places of named disturbances, such as "families.bias". Others are left out.
    """
    code, parts, packages = (_texts(record.get(key)) for key in ("code", "parts", "packages"))
    behind = record.get("events")
    for name, found in behind.items() if isinstance(behind, dict) else ():
        parts[f"events.{name}"] = event_digest(_texts(found))
    ours = {f"events.{event.name}", f"controllers.{arm.controller.name}", *families}
    return CodeDigests(
        ccfs=code.get("ccfs", ""),
        parts={
            place: digest
            for place, digest in parts.items()
            if place in ours or not place.startswith(("events.", "controllers.", "families."))
        },
        packages=packages,
    )


def _registration(store: Store, protocol: Protocol) -> RegistrationRecord | None:
    """Return the registration of a run as a certificate carries it, or None if the run is not registered."""
    found = read_registration(store, protocol)
    if found is None:
        return None
    registered, begun = found
    key, time = registered.key.fingerprint, registered.record.time
    return RegistrationRecord(record=registered.digest, key=key, time=time, begun=begun.time)


def _texts(table: object) -> dict[str, str]:
    return {str(name): str(value) for name, value in table.items()} if isinstance(table, dict) else {}


def refuse_missing_trials(store: Store, protocol: Protocol) -> None:
    """Raise unless every arm has the trials that its numbers may be computed from, which are the planned ones."""
    for arm in protocol.arms:
        certified_trials(store, protocol, arm)


def certified_trials(store: Store, protocol: Protocol, arm: Arm) -> int:
    """Return the number of nominal trials of an arm. Raise unless its numbers may be computed from them."""
    trials = sum(len(batch.trials) for batch in RunReader(store, protocol).batches(arm, None))
    planned = protocol.trials.count
    if protocol.claim.stop_at_budget is None and trials != planned:
        raise RunError(f"{store.root}: {arm.name} must have all {planned} planned trials, got {trials}.")
    for attack in (None, *protocol.attacks):
        if RunReader(store, protocol).batches(arm, attack) != list(plan(protocol, arm, attack, trials)):
            under = "nominal" if attack is None else attack.name
            raise RunError(f"{store.root}: {arm.name}/{under} must have its first {trials} trials, got others.")
    return trials


def _greatest_energy(reader: RunReader, arm: Arm, attack: AttackSpec) -> float:
    return max((spent for batch in reader.batches(arm, attack) for spent in reader.spent(batch).values()), default=0.0)


def endings(store: Store, protocol: Protocol, documents: Sequence[RunCertificate]) -> Iterator[str]:
    """Yield a line for each arm with a claim that is not certified or a trial that abstained or crashed.

    Further lines name likely causes: a way of ending that decided an event, a cost that was never reported, or a goal
    that was never met.
    """
    failed = {document.arm for document in documents if not document.trajectory.is_certified}
    events = {spec.name: build_event(protocol, spec) for spec in shipped_events(protocol) if spec.event != IN_MEMORY}
    for arm in protocol.arms:
        ends = _Ends(RunReader(store, protocol), arm)
        is_worth_a_line = arm.name in failed or not ends.first.keys().isdisjoint((Outcome.ABSTAINED, Outcome.CRASHED))
        if is_worth_a_line:
            yield f"{arm.name}: {'; '.join(_parts(ends))}."
        for document in documents:
            if document.arm == arm.name:
                yield from (f"{arm.name}, {document.event}: {remark}" for remark in document.remarks)
        if is_worth_a_line:
            yield from _missing_signals(protocol, arm, ends, events)


class _Ends:
    """How the nominal trials of an arm ended, batch by batch: there may be a million of them.

    `first` has the least number of steps of each outcome.
    """

    def __init__(self, reader: RunReader, arm: Arm) -> None:
        self.counts, self.errors, self.first = Counter[Outcome](), Counter[str](), dict[Outcome, int]()
        self.trials, self.moved, self.priced, self.met = 0, 0, 0, 0
        for batch in reader.batches(arm, None):
            for row in reader.trajectories(batch):
                self._add(row)

    def _add(self, row: TrajectoryRow) -> None:
        outcome = Outcome(row.outcome)
        self.counts[outcome] += 1
        self.first[outcome] = min(row.steps, self.first.get(outcome, row.steps))
        if outcome is Outcome.CRASHED:
            self.errors[row.error or "unknown"] += 1
        self.trials += 1
        self.moved += row.steps > 0
        self.priced += row.steps > 0 and row.total_cost is not None
        self.met += row.goal_step is not None


def _missing_signals(protocol: Protocol, arm: Arm, ends: _Ends, events: Mapping[str, Event]) -> Iterator[str]:
    """Yield a line for a cost or a goal that an event needs and that no trial of an arm reported."""
    costly = [name for name, event in events.items() if needs_cost(event)]
    if costly and ends.moved and not ends.priced:
        key = protocol.environment.cost
        yield (
            f"{arm.name}: no step reported a cost, which {', '.join(costly)} needs: "
            f"{key!r} never appeared in info (see `environment.cost`)."
        )
    aiming = [name for name, event in events.items() if needs_goal(event)]
    if aiming and ends.moved and not ends.met:
        key = protocol.environment.goal
        yield (
            f"{arm.name}: no trial met a goal, which {', '.join(aiming)} needs: "
            f"{key!r} never appeared in info as true (see `environment.goal`)."
        )


def _parts(ends: _Ends) -> Iterator[str]:
    """Yield how many trials ended in each way, the worst ways first."""
    for outcome, words in _WORDS.items():
        if not ends.counts[outcome]:
            continue
        text = f"{ends.counts[outcome]} of {ends.trials} {words}"
        if outcome is Outcome.CRASHED:
            kinds = ends.errors.most_common()
            text += ": " + ", ".join(f"{kind} ({number} trial{'s' * (number > 1)})" for kind, number in kinds)
        if outcome in (Outcome.ABSTAINED, Outcome.CRASHED, Outcome.NONFINITE):
            text += f", first at step {ends.first[outcome]}"
        yield text
