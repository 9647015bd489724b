"""Run a protocol: run the batches that are missing, store each one when it is finished, and stop when allowed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from pathlib import Path

from ccfs.files.digests import canonical_json
from ccfs.files.imports import add_modules
from ccfs.protocol.model import Arm, Protocol
from ccfs.runs.batches import Batch, plan, run_batch
from ccfs.runs.build import check
from ccfs.runs.counting import is_enough, recorded_events, verdicts
from ccfs.runs.executors import Engine, Files, Pool
from ccfs.runs.journal import commit, is_finished
from ccfs.runs.judging import run_hashed
from ccfs.runs.manifest import MANIFEST, write_manifest
from ccfs.runs.objects import Claimed, Objects
from ccfs.runs.provenance import (
    PROVENANCE,
    TABLES,
    Provenance,
    changed_events,
    differences,
    provenance,
    read_provenance,
)
from ccfs.runs.registration import BEGUN, REGISTRATION, refuse_other, registered, take_registration
from ccfs.runs.repeats import refuse_other_repeats
from ccfs.runs.store import RunError, Store, Trust

__all__ = ["run", "run_objects"]

Advance = Callable[[int], None]


def run(
    protocol: Protocol,
    root: Path,
    engine: Engine,
    *,
    where: str,
    advance: Advance = lambda trials: None,
    found: Advance | None = None,
    modules: Path | None = None,
    registration: bytes | None = None,
) -> Store:
    """Run every trial of a protocol that is not yet in the run directory `root`, and write the manifest.

    At the end some trials are run again from fresh parts. A run is refused if one of them comes out differently, and
    then it gets no manifest (`ccfs.runs.repeats`).

    An interruption at any moment, even by kill -9, loses at most the batches in flight. The same call again then gives
    the bytes of an uninterrupted run. A finished run that is refused keeps its manifest, because every journalled
    batch is compared with its files before anything is written.

    Args:
        protocol: what to run.
        root: the run directory. It must be absent, empty or a run of the same protocol.
        engine: where batches run.
        where: the protocol's file, for errors.
        advance: called with a number of trials when they are finished.
        found: called instead with trials that an earlier call had finished. None calls `advance` with these too.
        modules: a folder in which this process and its workers find the user's own modules. Nothing stored names it,
            because it is a place on this machine. None looks only where Python does.
        registration: the signed record of the protocol (`ccfs.runs.registration`), which the run takes in before its
            first trial. A run that was begun without one is refused.
    """
    place = None if modules is None else str(modules.resolve())
    if modules is not None:
        add_modules(modules)
    if registration is not None:
        refuse_other(registered(registration, REGISTRATION), protocol, REGISTRATION)
    store = Store(root, trust=Trust.HERE)
    store.refuse_foreign()
    with store.locked():
        record = _claim(store, protocol, lambda: provenance(protocol, check(protocol, where=where)), registration)
        _refuse_changed_batches(store, protocol)
        was_finished = store.exists(MANIFEST)
        function = run_batch if protocol.keeps_traces else run_hashed
        work = partial(function, protocol.canonical, expected=canonical_json(record), modules=place)
        with Pool(engine, work) as pool:
            if protocol.claim.stop_at_budget is None:
                _run_all(store, protocol, pool, advance, found or advance)
            else:
                _run_sequentially(store, protocol, pool, advance, found or advance)
            # A manifest says that the trials repeated. It is removed before a new batch is written.
            if not (was_finished and store.exists(MANIFEST)):
                refuse_other_repeats(store, protocol, pool)
        write_manifest(store, protocol)
    return store


def run_objects(objects: Objects, claim: Claimed, root: Path, *, advance: Advance = lambda trials: None) -> Store:
    """Run every trial of objects of this program, and write the manifest.

    The folder must be new, because nobody can tell whether objects are those that a run was begun with. Some trials are
    run again at the end, as `run` does.

    Args:
        objects: what to run.
        claim: the numbers of the claim.
        root: the run directory. It must be absent or empty.
        advance: called with a number of trials when they are finished.
    """
    protocol, wrapped = objects.protocol(claim), objects.wrapped(claim)
    store = Store(root)
    store.refuse_foreign()
    if store.is_run:
        raise RunError(
            f"{root}: must be a new folder, but holds a run. Objects in memory cannot resume one: name "
            "another folder, or delete this one."
        )
    with store.locked():
        _claim(store, protocol, lambda: objects.record(protocol))
        generators: list[dict[str, object]] = []

        def ran(trials: int) -> None:
            if not generators:  # after the first trial
                generators.append(objects.generators())
            advance(trials)

        for batch in plan(protocol, protocol.arms[0], None):
            commit(store, batch, objects.files(protocol, batch, wrapped, ran))
        objects.refuse_other_repeats(store, protocol, claim, wrapped, generators[0], advance)
        write_manifest(store, protocol)
    return store


def _claim(
    store: Store, protocol: Protocol, made: Callable[[], dict[str, object]], registration: bytes | None = None
) -> dict[str, object]:
    """Claim the directory for this protocol and return the provenance, as `made` gives it.

    Refuse the directory before anything is written.
    """
    if store.is_run:
        owner = store.protocol()
        if owner.hash != protocol.hash:
            raise RunError(
                f"{store.root}: belongs to the protocol {owner.name!r} with hash {owner.hash[:16]}, "
                f"got {protocol.name!r} with hash {protocol.hash[:16]}. Choose another run directory."
            )
    record = made()
    if store.exists(PROVENANCE):
        _refuse_other_provenance(store, protocol, record)
        take_registration(store, protocol, registration, is_begun=True)
        return record
    if not {"protocol.json", REGISTRATION, BEGUN}.issuperset(store.files()):
        raise RunError(
            f"{store.root}: has results but no {PROVENANCE}, so the code that made them is unknown. "
            f"Restore {PROVENANCE} to resume, or choose another run directory."
        )
    # The protocol first: a folder with a protocol alone is resumed, a folder with anything else is refused.
    store.write_json("protocol.json", protocol.model_dump(mode="json"))
    take_registration(store, protocol, registration, is_begun=False)
    store.write(PROVENANCE, Provenance.model_validate(record).to_bytes())
    return record


def _refuse_other_provenance(store: Store, protocol: Protocol, record: dict[str, object]) -> None:
    """Refuse to go on with other code, packages or controllers, because a run has one of each."""
    known = read_provenance(store)
    if known.get("protocol") != record["protocol"]:
        raise RunError(f"{store.path(PROVENANCE)}: belongs to another protocol. Choose another run directory.")
    for key in TABLES:
        other = [f"{name} {before}, got {now}" for name, before, now in differences(known.get(key), record[key])]
        if other:
            more = f" (and {len(other) - 1} more)" if len(other) > 1 else ""
            raise RunError(
                f"{store.root}: was begun with `{key}` {other[0]}{more}. "
                "Restore it to resume, or choose another run directory."
            )
    for event, what in changed_events(protocol, known, are_made=True):
        raise RunError(
            f"{store.root}: was begun with another event {event!r}: {what}. "
            "Restore it to resume, or choose another run directory."
        )


def _refuse_changed_batches(store: Store, protocol: Protocol) -> None:
    """Refuse a run if a file is not the one in its journal, before anything is written."""
    for arm in protocol.arms:
        for attack in (None, *protocol.attacks):
            for batch in plan(protocol, arm, attack):
                is_finished(store, batch)


def _run_all(store: Store, protocol: Protocol, pool: Pool[Batch], advance: Advance, found: Advance) -> None:
    arms = [(arm, attack) for attack in (None, *protocol.attacks) for arm in protocol.arms]
    _keep(store, [batch for arm, attack in arms for batch in plan(protocol, arm, attack)], pool, advance, found)


def _run_sequentially(store: Store, protocol: Protocol, pool: Pool[Batch], advance: Advance, found: Advance) -> None:
    """Run each arm's nominal trials until they certify enough, then as many of each of its attacks."""
    for arm in protocol.arms:
        trials = _run_until_enough(store, protocol, arm, pool, advance, found)
        attacked = [batch for attack in protocol.attacks for batch in plan(protocol, arm, attack, trials)]
        _keep(store, attacked, pool, advance, found)


def _keep(store: Store, batches: list[Batch], pool: Pool[Batch], advance: Advance, found: Advance) -> None:
    missing = []
    for batch in batches:
        if is_finished(store, batch):
            found(len(batch.trials))
        else:
            missing.append(batch)
    for batch, files in pool.completed(missing):
        commit(store, batch, files)
        advance(len(batch.trials))


def _run_until_enough(
    store: Store, protocol: Protocol, arm: Arm, pool: Pool[Batch], advance: Advance, found: Advance
) -> int:
    """Run nominal batches in order until the budget is certified, and return the number of trials.

    That number is a stopping time, so the last batch may depend on the trials alone and not on which worker is quick.
    Results that arrive early wait for their turn, and results after the stopping time are dropped.
    """
    batches = list(plan(protocol, arm, None))
    are_inside: dict[str, list[bool]] = {spec.name: [] for spec in protocol.events}
    kept = trials = 0
    # Closed at the `break`, so that the batches in flight are cancelled at once.
    with recorded_events(store, protocol) as events, closing(_in_order(store, pool, batches)) as stream:
        for batch, files in stream:
            if files is not None:
                commit(store, batch, files)
            for name, inside in verdicts(store, protocol, batch, events).items():
                are_inside[name] += inside
            kept, trials = kept + 1, trials + len(batch.trials)
            (found if files is None else advance)(len(batch.trials))
            if is_enough(protocol, arm, are_inside):
                break
    for batch in batches[kept:]:
        if store.exists(batch.journal):
            raise RunError(f"{store.path(batch.journal)}: is after the stopping time. Audit this run, or begin anew.")
    return trials


def _in_order(
    store: Store, pool: Pool[Batch], batches: list[Batch]
) -> Generator[tuple[Batch, Files | None], None, None]:
    """Yield the batches in order. Stored ones come without files, the others with the files to commit."""
    first = next((i for i, batch in enumerate(batches) if not is_finished(store, batch)), len(batches))
    for batch in batches[:first]:
        yield batch, None
    waiting: dict[int, Files] = {}
    position = first
    with closing(pool.completed(batches[first:])) as results:
        for batch, files in results:
            waiting[batch.number] = files
            while position in waiting:
                yield batches[position], waiting.pop(position)
                position += 1
