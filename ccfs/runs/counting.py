"""Count successes in stored traces, and say what such counts certify or could certify at best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from ccfs.certificates import checks
from ccfs.certificates.binomial import bonferroni
from ccfs.certificates.bounds import Bound, Sampling
from ccfs.certificates.rounding import exact_text, lower_text
from ccfs.certificates.stratified import StratifiedCertificate, certify_strata
from ccfs.certificates.trajectory import TrajectoryCertificate, certify_event
from ccfs.files.merkle import MerkleTree
from ccfs.protocol.model import Arm, AttackSpec, EventSpec, Protocol
from ccfs.protocol.registry import IN_MEMORY
from ccfs.runs.batches import Batch
from ccfs.runs.build import build_event
from ccfs.runs.events import Event, is_lost_by_ending
from ccfs.runs.host import ChildHost, Judgement, child_of
from ccfs.runs.judging import answers, leaf, made_events, refuse_changed
from ccfs.runs.provenance import changed_events, read_provenance
from ccfs.runs.reader import RunReader
from ccfs.runs.store import Store, Trust
from ccfs.runs.trace import Trace
from ccfs.runs.trust import foreign_parts, is_own, untrusted

__all__ = [
    "Certificate",
    "Judged",
    "StoredEvent",
    "certificate",
    "impossible",
    "is_enough",
    "judged_here",
    "lost",
    "merkle_root",
    "recorded_events",
    "refuse_changed_events",
    "shortfall",
    "tally",
    "verdicts",
]

_MOST_TRIALS = 1_000_000  # of a protocol


class _Told:
    """An event whose judgements come from somewhere else than from the stored traces."""

    def judged(self, batch: Batch) -> list[Judgement]:
        """Return for each trial of a batch whether it is in the event, and whether it failed by how it ended."""
        raise NotImplementedError


class _Elsewhere(_Told):
    """An event of the user's own that is judged in a confined child process."""

    def __init__(self, host: ChildHost, name: str) -> None:
        self._host, self._name = host, name

    def judged(self, batch: Batch) -> list[Judgement]:
        """Ask the child."""
        return self._host.judge(batch, [self._name])[self._name]


class _Kept(_Told):
    """An event of a run without traces, which judged each trial when it had run. Its verdicts are stored."""

    def __init__(self, reader: RunReader, name: str) -> None:
        self._reader, self._name = reader, name

    def judged(self, batch: Batch) -> list[Judgement]:
        """Read the verdicts."""
        return self._reader.judgements(batch)[self._name]


Certificate = TrajectoryCertificate | StratifiedCertificate
"""What the nominal trials of an arm certify, from their number or from the numbers at each reset seed."""
Judged = Event | _Told
"""An event of this process, or one that was or is judged elsewhere."""


@contextmanager
def recorded_events(store: Store, protocol: Protocol) -> Iterator[dict[str, Judged]]:
    """Give the events of a run to whoever counts, and refuse them if they are not those that the run was made with.

    Files are compared before any code of an event runs. What the events have loaded by then, and while they counted, is
    compared at the end. So use a count only after this has ended without an exception.

    Code that the protocol names runs only as far as the run is trusted (`Store.trust`).

    Raises:
        UntrustedError: an event is such code, and nobody said that it may run.
    """
    refuse_changed_events(store, protocol)
    if not protocol.keeps_traces:
        reader = RunReader(store, protocol)
        yield {spec.name: _Kept(reader, spec.name) for spec in protocol.events}
        return
    own = [spec.name for spec in protocol.events if is_own(spec)]
    if own and store.trust is Trust.NONE:
        parts = foreign_parts(protocol, [f"events.{name}" for name in own])
        raise untrusted(store.root, f"counting {', '.join(own)}", parts)
    if own and store.trust is Trust.CONFINED:
        host = child_of(store, protocol)
        yield {
            spec.name: _Elsewhere(host, spec.name) if spec.name in own else _event(store, protocol, spec)
            for spec in protocol.events
        }
        return
    with made_events(protocol, read_provenance(store), store.root, partial(_event, store, protocol)) as made:
        yield dict(made)


class StoredEvent:
    """An event that nobody can make again. Its verdicts were stored when its trials were run."""

    def __init__(self, store: Store, protocol: Protocol, name: str) -> None:
        reader = RunReader(store, protocol)
        self._inside = {
            trial: said
            for arm in protocol.arms
            for batch in reader.batches(arm, None)
            for trial, said in zip(batch.trials, reader.verdicts(batch)[name], strict=True)
        }

    def holds(self, trace: Trace) -> bool:
        """Return the stored verdict about a trial."""
        return self._inside[trace.trial]


def _event(store: Store, protocol: Protocol, spec: EventSpec) -> Event:
    return StoredEvent(store, protocol, spec.name) if spec.event == IN_MEMORY else build_event(protocol, spec)


def verdicts(store: Store, protocol: Protocol, batch: Batch, events: Mapping[str, Judged]) -> dict[str, list[bool]]:
    """Return for each event whether each trial of a batch is in it. Each trial must be stored exactly once.

    An event that answers differently when it is asked again is refused, because it has a memory or random numbers of
    its own.
    """
    traces = _traces(store, protocol, batch, events)
    found: dict[str, list[bool]] = {}
    for name, event in events.items():
        if isinstance(event, _Told):
            found[name] = [is_inside for is_inside, _ in event.judged(batch)]
            continue
        found[name] = answers(store.root, name, event, traces)
    return found


def _traces(store: Store, protocol: Protocol, batch: Batch, events: Mapping[str, Judged]) -> list[Trace]:
    """Return the traces of a batch, or none if no event of this process asks for them."""
    is_asked = any(not isinstance(event, _Told) for event in events.values())
    return RunReader(store, protocol).traces(batch) if is_asked else []


def lost(store: Store, protocol: Protocol, arm: Arm, events: Mapping[str, Judged]) -> dict[str, Counter[str]]:
    """Return for each event how many nominal trials failed because of how they ended, by their outcome."""
    found: dict[str, Counter[str]] = {name: Counter() for name in events}
    reader = RunReader(store, protocol)
    for batch in reader.batches(arm, None):
        traces, outcomes = _traces(store, protocol, batch, events), reader.outcomes(batch)
        for name, event in events.items():
            if isinstance(event, _Told):
                are_lost = [is_lost for _, is_lost in event.judged(batch)]
            else:
                are_lost = [is_lost_by_ending(event, trace) for trace in traces]
            found[name].update(outcome for outcome, is_lost in zip(outcomes, are_lost, strict=True) if is_lost)
    return found


def judged_here(store: Store, protocol: Protocol, batch: Batch, names: Sequence[str]) -> dict[str, list[Judgement]]:
    """Judge a batch by events of the user's own in this process. The confined child process calls this."""
    specs = tuple(spec for spec in protocol.events if spec.name in names)
    with recorded_events(store, protocol.model_copy(update={"events": specs})) as events:
        inside = verdicts(store, protocol, batch, events)
        traces = RunReader(store, protocol).traces(batch)
        return {
            name: [
                (is_inside, not isinstance(event, _Told) and is_lost_by_ending(event, trace))
                for is_inside, trace in zip(inside[name], traces, strict=True)
            ]
            for name, event in events.items()
        }


def refuse_changed_events(store: Store, protocol: Protocol) -> None:
    """Refuse a run if the code of an event has changed since, because it would count other trials. Nothing is run."""
    refuse_changed(store.root, changed_events(protocol, read_provenance(store)))


def tally(
    store: Store, protocol: Protocol, arm: Arm, attack: AttackSpec | None, events: Mapping[str, Judged]
) -> dict[str, list[bool]]:
    """Return for each event whether each trial of an arm is in it, in order. `recorded_events` gives the events."""
    found: dict[str, list[bool]] = {name: [] for name in events}
    for batch in RunReader(store, protocol).batches(arm, attack):
        for name, inside in verdicts(store, protocol, batch, events).items():
            found[name] += inside
    return found


def merkle_root(store: Store, protocol: Protocol, arm: Arm) -> str:
    """Return the root of the Merkle tree over the nominal trials of an arm, each with its line and its verdicts."""
    reader, tree = RunReader(store, protocol), MerkleTree()
    names = [spec.name for spec in protocol.events]
    for batch in reader.batches(arm, None):
        kept = reader.judgements(batch)
        said = zip(*(kept[name] for name in names), strict=True)
        for row, verdict in zip(reader.trajectories(batch), said, strict=True):
            tree.add(leaf(row, verdict))
    return tree.root


def certificate(
    protocol: Protocol, arm: Arm, event: str, inside: Sequence[bool], bound: Bound | None = None
) -> Certificate:
    """Return the certificate of an arm under the protocol's claim, with its bound or with another one for a count.

    Args:
        protocol: the protocol.
        arm: the arm.
        event: name of the event.
        inside: whether each nominal trial of the arm is in the event, in order.
        bound: a rule for counts. With several trials at each reset seed it counts those that are independent of each
            other: all on a cohort, the first at each seed on a law. None is the bound of the protocol.
    """
    claim, rule = protocol.claim, bound or protocol.bound
    if rule is None:
        return _stratified(protocol, arm, event, inside)
    independent = inside if protocol.sampling is Sampling.COHORT else inside[:: protocol.trials.per_seed]
    return certify_event(
        sum(independent),
        len(independent),
        delta=claim.delta,
        family=protocol.family,
        target=claim.target,
        schedule=arm.schedule.plan,
        bound=rule,
        event=event,
    )


def _stratified(protocol: Protocol, arm: Arm, event: str, inside: Sequence[bool]) -> StratifiedCertificate:
    draws, spec, claim = protocol.trials.draws, protocol.claim.strata, protocol.claim
    if draws is None or spec is None:
        raise ValueError(f"`trials.draws` must be given for a stratified bound, but {protocol.name} has none.")
    if not inside or len(inside) % draws.total:
        raise ValueError(f"`inside` must have {draws.total} trials at each reset seed, got {len(inside)} in all.")
    strata = [inside[start : start + draws.total] for start in range(0, len(inside), draws.total)]
    return certify_strata(
        [sum(stratum[: draws.pilot]) for stratum in strata],
        draws.pilot,
        [sum(stratum[draws.pilot :]) for stratum in strata],
        draws.main,
        delta=claim.delta,
        family=protocol.family,
        target=claim.target,
        schedule=arm.schedule.plan,
        sampling=protocol.sampling,
        grid=spec.grid,
        prior=spec.prior,
        cap=spec.cap,
        event=event,
    )


def is_enough(protocol: Protocol, arm: Arm, found: Mapping[str, Sequence[bool]]) -> bool:
    """Return whether each event is certified for the budget at which the run may stop, by the trials so far."""
    wanted = protocol.claim.stop_at_budget
    if wanted is None:
        return False
    budgets = [certificate(protocol, arm, name, inside).budget for name, inside in found.items()]
    return all(budget is not None and budget >= wanted for budget in budgets)


def impossible(protocol: Protocol) -> str | None:
    """Return why no outcome of the trials could certify the claim of a protocol, or None if one could."""
    claim, trials = protocol.claim, protocol.trials.count
    if protocol.bound is not None:
        return shortfall(trials, delta=claim.delta, family=protocol.family, target=claim.target, bound=protocol.bound)
    if certificate(protocol, protocol.arms[0], "event", [True] * trials).is_certified:
        return None
    return (
        f"even {trials} of {trials} successes would not certify the target {exact_text(claim.target)} with the "
        "stratified bound; more reset seeds or more draws are needed"
    )


def shortfall(trials: int, *, delta: float, family: int, target: float, bound: Bound) -> str | None:
    """Return why `trials` trials cannot certify `target` even if all succeed, or None if they can.

    Each bound is greatest when all trials succeed, and then it does not fall when there are more trials. Bisection
    therefore finds the least number of trials that is enough.

    >>> shortfall(200, delta=0.001, family=1, target=0.99, bound=Bound.CLOPPER_PEARSON)
    'even 200 of 200 would certify only 0.9660, below the target 0.99; at least 688 trials are needed'
    >>> shortfall(688, delta=0.001, family=1, target=0.99, bound=Bound.CLOPPER_PEARSON)
    """
    total = checks.count("trials", trials, minimum=1)
    level, share = checks.open_unit("target", target), bonferroni(delta, family)

    def best(number: int) -> float:
        return bound.lower(number, number, delta=share)

    if best(total) >= level:
        return None
    # Throughout, `few` trials are too few and `many` are enough.
    few, many = total, _MOST_TRIALS
    is_reachable = best(many) >= level
    while is_reachable and many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if best(middle) >= level else (middle, many)
    least = f"at least {many}" if is_reachable else f"more than {_MOST_TRIALS}"
    return (
        f"even {total} of {total} would certify only {lower_text(best(total))}, below the target {exact_text(level)}; "
        f"{least} trials are needed"
    )
