"""Audit a run: hash every file again, derive every number again, replay trials bit for bit, and name each fault."""

from __future__ import annotations

import re
import secrets
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from ccfs.audit.batch import batch_faults, has_names
from ccfs.audit.replay import NoReplayError, replay_faults
from ccfs.certificates.schedule import Schedule
from ccfs.files.digests import canonical_json, text_digest
from ccfs.files.documents import Document, DocumentError, Table
from ccfs.files.merkle import drawn, least_exposed
from ccfs.files.reading import RefusedFileError, entries
from ccfs.protocol.model import Arm, AttackSpec, EventSpec, Protocol
from ccfs.protocol.registry import IN_MEMORY
from ccfs.results.certificate import RunCertificate
from ccfs.results.derive import certificate_name, derive
from ccfs.results.families import FamilyDocument, derive_families, family_name
from ccfs.results.scores import SCORES, ScoresDocument
from ccfs.runs.batches import Batch, plan
from ccfs.runs.counting import is_enough, recorded_events, verdicts
from ccfs.runs.host import ChildHost, Host, HostError, host_of
from ccfs.runs.manifest import MANIFEST, UNLISTED, manifest_faults, read_manifest
from ccfs.runs.provenance import (
    PROVENANCE,
    Provenance,
    changed_events,
    code_tables,
    differences,
    packages,
    trial_targets,
)
from ccfs.runs.registration import BEGUN, REGISTRATION, read_registration
from ccfs.runs.signature import signature_faults, signing_key
from ccfs.runs.store import RunError, Store, Trust
from ccfs.runs.trust import foreign_parts, object_places, places_of, shipped_events

__all__ = [
    "MOST_OF_A_KIND",
    "AuditReport",
    "Draw",
    "Exposure",
    "audit",
    "fault_lines",
    "kind_faults",
    "lock_faults",
    "signature_notes",
]

MOST_OF_A_KIND = 10
_FIXED = ("batches/", "counts.parquet")  # files that hold the hash of every trial, or the counts of every image
_SINGLE_FILES = ("protocol.json", PROVENANCE, REGISTRATION, BEGUN, SCORES, *UNLISTED, "report.html")


class Exposure(Table):
    """What a random draw of trials would have exposed."""

    probability: float = Field(gt=0.0, lt=1.0, description="At least this probability.")
    forged: int = Field(ge=1, description="So many forged trials, or more, are met with that probability.")


class AuditReport(Document):
    """What an audit found. A run without faults is clean as far as it was checked."""

    format: Literal["ccfs/audit/1"] = Field(default="ccfs/audit/1", description="Kind and version of this document.")
    protocol: str = Field(default="", description="Hash of the protocol, empty if it could not be read.")
    faults: tuple[str, ...] = Field(description="What is wrong, one sentence each. Empty for a clean run.")
    unchecked: tuple[str, ...] = Field(
        default=(), description="What was not checked, because it would run code that the run names."
    )
    would_run: tuple[str, ...] = Field(
        default=(), description="That code: place in the protocol, name, arguments and digest. `--trust` runs it."
    )
    notes: tuple[str, ...] = Field(
        default=(), description="What differs here from where the run was made, and is no fault."
    )
    files: int = Field(default=0, ge=0, description="Number of files of the run.")
    trajectories: int = Field(default=0, ge=0, description="Number of trajectories of the run, or of its images.")
    replayed: int = Field(default=0, ge=0, description="How many of them were replayed bit for bit.")
    seed: str | None = Field(
        default=None, description="Seed by which the replayed ones were drawn, or null if none or all were replayed."
    )
    exposure: tuple[Exposure, ...] = Field(
        default=(), description="How many forged ones the draw would have exposed, and how probably."
    )

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong in what was checked."""
        return not self.faults


@dataclass(slots=True)
class _Findings:
    faults: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    batches: list[tuple[Arm, AttackSpec | None, Batch]] = field(default_factory=list)


def audit(store: Store, *, replay: int | None = 0, expected: str | None = None, seed: str | None = None) -> AuditReport:
    """Audit a finished run.

    Hashes are checked first. If a file was changed, removed or added, the audit ends there, because derived numbers
    would not be about what was recorded. A run without a manifest has a fault, but its journalled batches are still
    checked.

    Code that the run names does not run unless the run is trusted (`Store.trust`). What could not be checked is said.
    Trials are replayed in a child process that is confined. In a run that this process made itself, they are replayed
    here.

    Args:
        store: the run.
        replay: how many trials to replay, drawn at random from the whole run. None replays all.
        expected: the hash of the protocol that the run must have. None accepts any protocol.
        seed: seed of the draw. None takes fresh random numbers of this machine, which no author could know.
    """
    if replay is not None and not replay >= 0:
        raise ValueError(f"`replay` must be at least 0, got {replay}.")
    faults = list(kind_faults(store))
    if faults:
        return AuditReport(faults=tuple(faults))
    files = sum(1 for _ in store.files())
    faults = [*lock_faults(store), *manifest_faults(store), *signature_faults(store)]
    if faults:
        return AuditReport(faults=(*faults, *_faults_without_manifest(store)), files=files)
    try:
        protocol = store.protocol()
    except (RuntimeError, ValueError) as error:
        return AuditReport(faults=(f"protocol.json: {error}",), files=files)
    found = _Findings()
    if store.read("protocol.json") != protocol.canonical.encode() + b"\n":
        found.faults.append("protocol.json: must be the canonical text of its protocol.")
    if expected is not None and protocol.hash != expected:
        found.faults.append(f"protocol.json: has the hash {protocol.hash}, expected {expected}.")
    try:
        read_registration(store, protocol)
    except RunError as error:
        found.faults.append(f"{REGISTRATION}: {error}")
    recorded = _compare_provenance(store, protocol, found)
    foreign = foreign_parts(protocol)
    is_trusted = store.trust is not Trust.NONE
    of_objects = object_places(protocol)
    barred = (*of_objects, *(() if is_trusted else (part.place for part in foreign)))
    # Without traces, counting reads stored verdicts and runs nothing.
    counted = protocol.events if is_trusted or not protocol.keeps_traces else shipped_events(protocol)
    if not protocol.keeps_traces:
        found.notes.append(
            "the run keeps no traces: its counts are stored verdicts, and only a replay asks the events."
        )
    if len(counted) < len(protocol.events):
        left = ", ".join(spec.name for spec in protocol.events if spec not in counted)
        found.unchecked.append(f"whether the counts of the events {left} follow from the traces.")
    for spec in protocol.events:
        if spec.event == IN_MEMORY:
            found.unchecked.append(f"whether the stored verdicts of {spec.name}, an event in memory, are right.")
    for arm in protocol.arms:
        can_ask = not (replay == 0 or set(places_of(protocol, next(plan(protocol, arm, None)))) & set(barred))
        _check_arm(store, protocol, arm, found, can_count=counted == protocol.events, can_ask=can_ask)
    found.faults += _stray_files(store, protocol, found)
    if not found.faults:
        _check_certificates(store, protocol, counted, found)
        _check_families(store, protocol, counted, found)
        _check_scores(store, protocol, found)
    found.notes += signature_notes(store)
    if store.exists("report.html"):
        found.notes.append("report.html: only its hash was checked. `ccfs report` writes the page again from the run.")
    total = sum(len(batch.trials) for _, _, batch in found.batches)
    free = [batch for _, _, batch in found.batches if not set(barred) & set(places_of(protocol, batch))]
    draw = Draw.of(store, sum(len(batch.trials) for batch in free), replay, seed)
    replayed = 0
    if not found.faults and draw.chosen:
        replayed = _replay(store, protocol, _located(free, draw.chosen), recorded, barred, found)
    if draw.total < total and replay != 0:
        why = ": their objects are in memory. `ccfs.audit_policy` takes them" if of_objects else ""
        found.unchecked.append(f"whether {total - draw.total} of {total} trajectories replay{why}.")
    return AuditReport(
        faults=tuple(found.faults),
        unchecked=tuple(found.unchecked),
        would_run=tuple(map(str, foreign)),
        notes=tuple(found.notes),
        protocol=protocol.hash,
        files=files,
        trajectories=total,
        replayed=replayed,
        seed=draw.seed if replayed else None,
        exposure=draw.exposure if replayed else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Which trials or images an audit replays.

    Args:
        total: how many there are.
        chosen: positions of those that were drawn, ascending.
        seed: the seed of the draw, None if there was nothing to draw.
    """

    total: int
    chosen: list[int]
    seed: str | None

    @classmethod
    def of(cls, store: Store, total: int, count: int | None, seed: str | None) -> Draw:
        """Draw `count` of the trials of a finished run, or take all."""
        if count is None or count >= total or count == 0:
            return cls(total=total, chosen=[] if count == 0 else list(range(total)), seed=None)
        fresh = secrets.token_hex(16) if seed is None else seed
        # What fixes the trials and nothing else, so that a page written later does not change the draw.
        files = {name: value for name, value in read_manifest(store).items() if name.startswith(_FIXED)}
        fixed = text_digest(canonical_json(files))
        return cls(total=total, chosen=drawn(total, count, seed=fresh, fixed=fixed), seed=fresh)

    @property
    def exposure(self) -> tuple[Exposure, ...]:
        """How many forged trials the draw would have exposed."""
        if not self.chosen:
            return ()
        found = [(rate, least_exposed(self.total, len(self.chosen), per_cent=rate)) for rate in (95, 99)]
        return tuple(Exposure(probability=rate / 100, forged=forged) for rate, forged in found)


def _located(batches: list[Batch], positions: Sequence[int]) -> list[tuple[Batch, int]]:
    """Return the trials at these ascending positions, counted over the batches in order."""
    found, begin, pending = [], 0, iter(batches)
    batch = next(pending)
    for position in positions:
        while position >= begin + len(batch.trials):
            begin += len(batch.trials)
            batch = next(pending)
        found.append((batch, batch.trials[position - begin]))
    return found


def _replay(
    store: Store,
    protocol: Protocol,
    chosen: list[tuple[Batch, int]],
    recorded: object,
    barred: tuple[str, ...],
    found: _Findings,
) -> int:
    """Replay trials, collect what is found, and return how many were replayed without a fault."""
    host = host_of(store, protocol)
    if isinstance(host, ChildHost) and host.free and foreign_parts(protocol):
        found.notes.append(f"the code of the run was not kept from {', '.join(host.free)} on this machine.")
    _compare_controllers(host, protocol, recorded, barred, found)
    if not found.faults:
        try:
            found.faults += replay_faults(store, protocol, host, chosen)
        except NoReplayError as error:
            found.unchecked.append(f"whether {len(chosen)} trajectories replay: {error}")
            return 0
    return 0 if found.faults else len(chosen)


def signature_notes(store: Store) -> list[str]:
    """Return a note about the key that signed a run. `signature_faults` has checked that its signature is valid."""
    key = signing_key(store)
    if key is None:
        return []
    whose = "`ccfs verify CERTIFICATE --run RUN --signer FILE` tells whether that is somebody whom you know"
    return [f"signed by the key {key.fingerprint}. {whose}."]


def kind_faults(store: Store) -> Iterator[str]:
    """Yield a fault for each link, which may show another file tomorrow, and for anything that is no plain file."""
    try:
        for name, status in entries(store.root):
            if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
                yield f"{name}: must be a plain file or folder."
    except RefusedFileError as error:
        yield str(error)


def lock_faults(store: Store) -> Iterator[str]:
    """Yield a fault if something was written into the lock, which no manifest covers."""
    path = store.path("lock")
    if path.exists() and path.stat().st_size:
        yield "lock: must be empty."


def _faults_without_manifest(store: Store) -> Iterator[str]:
    """Yield the faults of the journalled batches of a run without a manifest. Other batches may not have run yet."""
    if store.exists(MANIFEST):
        return
    try:
        protocol = store.protocol()
    except (RuntimeError, ValueError) as error:
        yield f"protocol.json: {error}"
        return
    for arm in protocol.arms:
        for attack in (None, *protocol.attacks):
            for batch in plan(protocol, arm, attack):
                if store.exists(batch.journal):
                    yield from _batch_faults(store, protocol, arm, attack, batch, arm.schedule.plan)


def _compare_provenance(store: Store, protocol: Protocol, found: _Findings) -> object:
    """Compare code and packages with the recorded ones, and return the recorded digests of the controllers."""
    try:
        recorded = Provenance.from_bytes(store.read(PROVENANCE), where=PROVENANCE).model_dump()
    except (RunError, DocumentError) as error:
        found.faults.append(str(error))
        return None
    if recorded.get("protocol") != protocol.hash:
        found.faults.append(f"{PROVENANCE}: belongs to another protocol.")
        return None
    for event, what in changed_events(protocol, recorded):
        found.faults.append(f"{PROVENANCE}: the event {event!r} is not the one of the run: {what}.")
    _compare_code(protocol, recorded.get("code"), found)
    for name, before, now in differences(recorded.get("packages"), packages()):
        found.notes.append(f"packages {name}: {before} when the run was made, {now} here.")
    return recorded.get("controllers")


def _compare_code(protocol: Protocol, recorded: object, found: _Findings) -> None:
    """Note changed code. That is no fault, because only a replay can tell whether the change matters."""
    here = code_tables(trial_targets(protocol))["code"]
    for name, before, now in differences(recorded, here):
        if name in here:  # code that is not on this machine is named by the replay
            found.notes.append(
                f"code {name}: {before} when the run was made, {now} here. The code that audits is not the code that "
                "ran. Trials that replay do not depend on the difference."
            )


def _compare_controllers(
    host: Host, protocol: Protocol, recorded: object, barred: tuple[str, ...], found: _Findings
) -> None:
    """Name changed controllers as faults. A replay with another one proves nothing about the recorded one."""
    names = [part.name for part in protocol.controllers if f"controllers.{part.name}" not in barred]
    try:
        digests = host.controllers(names)
    except (HostError, ValueError) as error:
        found.notes.append(f"what the protocol names cannot be made here: {error}")
        return
    kept = recorded if isinstance(recorded, dict) else {}
    for name, before, now in differences({key: kept.get(key) for key in names}, digests):
        found.faults.append(f"{PROVENANCE}: controllers {name}: {before} when the run was made, {now} here.")


def _schedule(store: Store, protocol: Protocol, arm: Arm, found: _Findings, *, can_ask: bool) -> Schedule:
    """Return the schedule of an arm. Names of slices are replaced by numbers if the environment may be asked."""
    schedule = arm.schedule.plan
    if not (protocol.attacks and any(has_names(schedule, stage) for stage in schedule.stages)):
        return schedule
    if can_ask:
        try:
            return host_of(store, protocol).schedule(arm)
        except (HostError, ValueError) as error:
            found.notes.append(f"what the protocol names cannot be made here: {error}")
            return schedule
    found.notes.append(
        f"schedule {arm.schedule.name}: only the environment knows where the named slices are, so energies of sensor "
        "shifts were not charged again. Use --replay."
    )
    return schedule


def _check_arm(store: Store, protocol: Protocol, arm: Arm, found: _Findings, *, can_count: bool, can_ask: bool) -> None:
    """Check the batches of an arm and of its attacks, and where an anytime run stopped."""
    planned = list(plan(protocol, arm, None))
    finished = [batch for batch in planned if store.exists(batch.journal)]
    if finished != planned[: len(finished)] or not finished:
        found.faults.append(f"batches/{arm.name}/nominal: batches are missing in the middle.")
        return
    if protocol.claim.stop_at_budget is None and finished != planned:
        found.faults.append(f"{planned[len(finished)].journal}: is missing.")
        return
    trials = sum(len(batch.trials) for batch in finished)
    schedule = _schedule(store, protocol, arm, found, can_ask=can_ask)
    for attack in (None, *protocol.attacks):
        for batch in plan(protocol, arm, attack, trials):
            found.faults += _batch_faults(store, protocol, arm, attack, batch, schedule)
            found.batches.append((arm, attack, batch))
    if not found.faults and can_count:
        is_whole = len(finished) == len(planned)
        try:
            found.faults += _stopping_faults(store, protocol, arm, finished, is_whole=is_whole)
        except HostError as error:
            found.unchecked.append(f"where the run of {arm.name} stopped: {error}")
        except (RuntimeError, ValueError) as error:
            found.faults.append(f"batches/{arm.name}/nominal: cannot be counted: {error}")


def _batch_faults(
    store: Store, protocol: Protocol, arm: Arm, attack: AttackSpec | None, batch: Batch, schedule: Schedule
) -> list[str]:
    try:
        return list(batch_faults(store, protocol, arm, attack, batch, schedule))
    except Exception as error:  # a forged table can make a reader raise anything
        return [f"{batch.traces}: cannot be audited: {error}"]


def _stray_files(store: Store, protocol: Protocol, found: _Findings) -> Iterator[str]:
    planned = {name for _, _, batch in found.batches for name in (*batch.files, batch.journal)}
    planned |= {certificate_name(arm, event) for arm in protocol.arms for event in protocol.events}
    planned |= {
        family_name(arm, event, family)
        for arm in protocol.arms
        for event in protocol.events
        for family in protocol.families
    }
    for name in store.files():
        if name not in planned and name not in _SINGLE_FILES:
            yield f"{name}: is not in the protocol's plan."


def _stopping_faults(
    store: Store, protocol: Protocol, arm: Arm, finished: list[Batch], *, is_whole: bool
) -> Iterator[str]:
    """Yield a fault unless the run stopped exactly where its rule says."""
    with recorded_events(store, protocol) as events:
        found = [verdicts(store, protocol, batch, events) for batch in finished]
    so_far: dict[str, list[bool]] = {spec.name: [] for spec in protocol.events}
    for position, batch in enumerate(finished):
        for name, inside in found[position].items():
            so_far[name] += inside
        is_last = position + 1 == len(finished)
        if is_enough(protocol, arm, so_far) != is_last and not (is_last and is_whole):
            what = "the run stopped before its rule allowed" if is_last else "the run went on after its rule said stop"
            yield f"{batch.journal}: {what}."
            return


def _check_certificates(store: Store, protocol: Protocol, counted: tuple[EventSpec, ...], found: _Findings) -> None:
    """Derive the certificates of the events that may be counted. The others must at least follow from their counts."""
    try:
        expected = dict(derive(store, protocol, counted)) if counted else {}
    except HostError as error:
        found.unchecked.append(f"whether the counts follow from the traces: {error}")
        return
    except (RuntimeError, ValueError) as error:
        found.faults.append(f"certificates: cannot be rederived: {error}")
        return
    stored = {name for name in store.files() if name.startswith("certificates/")}
    if not stored:
        found.notes.append("the run has not been certified.")
        return
    for name in sorted(stored | set(expected)):
        if name in expected and not (name in stored and expected[name].is_written_as(store.read(name))):
            found.faults.append(f"{name}: is not what the traces give.")
        elif name not in expected:
            try:
                quoted = RunCertificate.from_bytes(store.read(name), where=name)
            except DocumentError as error:
                found.faults.append(str(error))
                continue
            if (quoted.protocol, certificate_path(quoted)) != (protocol.hash, name):
                found.faults.append(f"{name}: is the certificate of another claim.")


def _check_families(store: Store, protocol: Protocol, counted: tuple[EventSpec, ...], found: _Findings) -> None:
    """Derive the certificates of named disturbances. What may not be weighed must at least follow from its weights."""
    stored = {name for name in store.files() if name.startswith("families/")}
    if not stored:  # then the run has no other certificates either, which is noted already
        return
    own = [spec.name for spec in protocol.families if spec.is_own]
    weighed = [spec for spec in protocol.families if store.trust is not Trust.NONE or not spec.is_own]
    if len(weighed) < len(protocol.families):
        found.unchecked.append(f"whether the weights of the disturbances {', '.join(own)} follow from the traces.")
    try:
        pairs = derive_families(store, protocol, counted, weighed) if counted and weighed else ()
        expected = {name: made.to_bytes() for name, made in pairs}
    except HostError as error:
        found.unchecked.append(f"whether the weights of the disturbances follow from the traces: {error}")
        return
    except (RuntimeError, ValueError) as error:
        found.faults.append(f"families: cannot be rederived: {error}")
        return
    for name in sorted(stored | set(expected)):
        if name in expected:
            if name not in stored or expected[name] != store.read(name):
                found.faults.append(f"{name}: is not what the traces give.")
            continue
        try:
            quoted = FamilyDocument.from_bytes(store.read(name), where=name)
            quoted.claim.recheck()
        except DocumentError as error:
            found.faults.append(str(error))
            continue
        place = f"families/{quoted.arm}/{quoted.event}/{quoted.disturbance.name}.json"
        if (quoted.protocol, place) != (protocol.hash, name):
            found.faults.append(f"{name}: is the certificate of another claim.")


def _check_scores(store: Store, protocol: Protocol, found: _Findings) -> None:
    """Compute the intervals of scored attacks again from their ratios."""
    if not store.exists(SCORES):
        return
    try:
        quoted = ScoresDocument.from_bytes(store.read(SCORES), where=SCORES)
        if quoted.protocol != protocol.hash:
            raise ValueError("belongs to another protocol.")
        for one in quoted.scores:
            one.recheck()
    except (RuntimeError, ValueError) as error:
        found.faults.append(f"{SCORES}: {error}")
    found.notes.append(f"{SCORES}: its ratios are quoted. `ccfs score` computes them again from replayed trials.")


def certificate_path(document: RunCertificate) -> str:
    """Return the file where a certificate belongs."""
    return f"certificates/{document.arm}/{document.event}.json"


def fault_lines(faults: Sequence[str], *, most: int = MOST_OF_A_KIND) -> Iterator[str]:
    """Yield the faults in their order, at most `most` of a kind, and say how many more of that kind there are.

    Two faults are of one kind if they say the same about different files, trials or steps. This is for printing only.
    Whether a run is clean depends on all faults.
    """
    if not most >= 1:
        raise ValueError(f"`most` must be at least 1, got {most}.")
    kinds = [_kind(fault) for fault in faults]
    totals, seen = Counter(kinds), Counter[str]()
    for fault, kind in zip(faults, kinds, strict=True):
        seen[kind] += 1
        if seen[kind] <= most:
            yield fault
        if seen[kind] == most < totals[kind]:
            yield f"... and {totals[kind] - most} more of this kind."


def _kind(fault: str) -> str:
    """Return what a fault says, without its file's name and without numbers and digests."""
    _, _, words = fault.partition(": ")
    return re.sub(r"\b(?:[0-9a-f]{16,}|\d[\d.e+-]*)", "#", words or fault)
