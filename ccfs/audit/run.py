"""Audit a run: hash every file again, derive every number again, replay trials bit for bit, and name each fault."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from ccfs.audit.batch import batch_faults, has_names
from ccfs.certificates.schedule import Schedule
from ccfs.files.documents import Document, DocumentError
from ccfs.protocol.model import Arm, AttackSpec, Protocol
from ccfs.results.certify import certificate_name, derive
from ccfs.runs.batches import Batch, plan
from ccfs.runs.build import build_arm, build_controller, event_references
from ccfs.runs.counting import is_enough, recorded_events, successes
from ccfs.runs.manifest import MANIFEST, manifest_faults
from ccfs.runs.provenance import (
    PROVENANCE,
    Provenance,
    changed_events,
    code_tables,
    differences,
    packages,
    trial_targets,
)
from ccfs.runs.reader import replay_faults
from ccfs.runs.store import RunError, Store

__all__ = ["MOST_OF_A_KIND", "AuditReport", "audit", "fault_lines"]

MOST_OF_A_KIND = 10
_SINGLE_FILES = ("protocol.json", PROVENANCE, MANIFEST, "report.html")


class AuditReport(Document):
    """What an audit found. A run without faults is clean."""

    format: Literal["ccfs/audit/1"] = Field(default="ccfs/audit/1", description="Kind and version of this document.")
    protocol: str = Field(default="", description="Hash of the protocol, empty if it could not be read.")
    faults: tuple[str, ...] = Field(description="What is wrong, one sentence each. Empty for a clean run.")
    notes: tuple[str, ...] = Field(
        default=(), description="What differs here from where the run was made, or was not checked. No fault."
    )
    files: int = Field(default=0, ge=0, description="Number of files of the run.")
    trajectories: int = Field(default=0, ge=0, description="Number of trajectories of the run.")
    replayed: int = Field(default=0, ge=0, description="Number of trajectories that were replayed bit for bit.")

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


@dataclass(slots=True)
class _Findings:
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    batches: list[tuple[Arm, AttackSpec | None, Batch]] = field(default_factory=list)


def audit(store: Store, *, replay: int | None = 0, expected: str | None = None) -> AuditReport:
    """Audit a finished run.

    Hashes are checked first. If a file was changed, removed or added, the audit ends there, because derived numbers
    would not be about what was recorded. A run without a manifest has a fault, but its journalled batches are still
    checked.

    Replaying runs the code that the protocol names. Audit a stranger's run with `replay=0` until you have read its
    protocol. That runs none of the code, and the notes say what could not be checked.

    Args:
        store: the run.
        replay: how many trials to replay, spread evenly over the run. None replays all.
        expected: the hash of the protocol that the run must have. None accepts any protocol.
    """
    files = sum(1 for _ in store.files())
    faults = list(_kind_faults(store)) or [*_lock_faults(store), *manifest_faults(store)]
    if faults:
        return AuditReport(faults=(*faults, *_faults_without_manifest(store)), files=files)
    try:
        protocol = store.protocol()
    except (RuntimeError, ValueError) as error:
        return AuditReport(faults=(f"protocol.json: {error}",), files=files)
    found, runs_code = _Findings(), replay != 0
    if store.read("protocol.json") != protocol.canonical.encode() + b"\n":
        found.faults.append("protocol.json: must be the canonical text of its protocol.")
    if expected is not None and protocol.hash != expected:
        found.faults.append(f"protocol.json: has the hash {protocol.hash}, expected {expected}.")
    _compare_provenance(store, protocol, found, runs_code=runs_code)
    can_count = runs_code or not event_references(protocol)
    if not can_count:
        found.notes.append(
            "events are counted by code that the protocol names, so nothing was counted again. Use --replay."
        )
    for arm in protocol.arms:
        _check_arm(store, protocol, arm, found, can_count=can_count, runs_code=runs_code)
    found.faults += _stray_files(store, protocol, found)
    if not found.faults and can_count:
        _check_certificates(store, protocol, found)
    if store.exists("report.html"):
        found.notes.append("report.html: only its hash was checked. `ccfs report` writes the page again from the run.")
    trials = [(batch, trial) for _, _, batch in found.batches for trial in batch.trials]
    chosen = trials if replay is None else _spread(trials, replay)
    if not found.faults:
        found.faults += replay_faults(store, protocol, chosen)
    return AuditReport(
        faults=tuple(found.faults),
        notes=tuple(found.notes),
        protocol=protocol.hash,
        files=files,
        trajectories=len(trials),
        replayed=0 if found.faults else len(chosen),
    )


def _kind_faults(store: Store) -> Iterator[str]:
    """Yield a fault for each link, which may show another file tomorrow, and for anything that is no plain file."""
    for path in sorted(store.root.rglob("*")):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            yield f"{path.relative_to(store.root).as_posix()}: must be a plain file or folder."


def _lock_faults(store: Store) -> Iterator[str]:
    path = store.path("lock")
    if path.exists() and path.stat().st_size:
        yield "lock: must be empty."


def _faults_without_manifest(store: Store) -> Iterator[str]:
    """Yield the faults of the journalled batches of a run without a manifest. Other batches may not have run yet."""
    if store.exists(MANIFEST) or any(_kind_faults(store)):
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


def _compare_provenance(store: Store, protocol: Protocol, found: _Findings, *, runs_code: bool) -> None:
    try:
        recorded = Provenance.from_bytes(store.read(PROVENANCE), where=PROVENANCE).model_dump()
    except (RunError, DocumentError) as error:
        found.faults.append(str(error))
        return
    if recorded.get("protocol") != protocol.hash:
        found.faults.append(f"{PROVENANCE}: belongs to another protocol.")
        return
    for event, what in changed_events(protocol, recorded):
        found.faults.append(f"{PROVENANCE}: the event {event!r} is not the one of the run: {what}.")
    _compare_code(protocol, recorded.get("code"), found)
    for name, before, now in differences(recorded.get("packages"), packages()):
        found.notes.append(f"packages {name}: {before} when the run was made, {now} here.")
    if runs_code:
        _compare_controllers(protocol, recorded.get("controllers"), found)


def _compare_code(protocol: Protocol, recorded: object, found: _Findings) -> None:
    """Note changed code. That is no fault, because only a replay can tell whether the change matters."""
    here = code_tables(trial_targets(protocol))["code"]
    for name, before, now in differences(recorded, here):
        if name in here:  # code that is not on this machine is named by the replay
            found.notes.append(
                f"code {name}: {before} when the run was made, {now} here. The code that audits is not the code that "
                "ran. Trials that replay do not depend on the difference."
            )


def _compare_controllers(protocol: Protocol, recorded: object, found: _Findings) -> None:
    """Name changed controllers as faults. A replay with another one proves nothing about the recorded one."""
    try:
        digests = {arm.controller.name: build_controller(protocol, arm).digest for arm in protocol.arms}
    except ValueError as error:
        found.notes.append(f"what the protocol names cannot be made here: {error}")
        return
    for name, before, now in differences(recorded, digests):
        found.faults.append(f"{PROVENANCE}: controllers {name}: {before} when the run was made, {now} here.")


def _schedule(protocol: Protocol, arm: Arm, found: _Findings, *, runs_code: bool) -> Schedule:
    """Return the schedule of an arm. Names of slices are replaced by numbers if the environment may be asked."""
    schedule = arm.schedule.plan
    if not (protocol.attacks and any(has_names(schedule, stage) for stage in schedule.stages)):
        return schedule
    if runs_code:
        try:
            wrapped, _ = build_arm(protocol, arm, None)
        except ValueError as error:
            found.notes.append(f"what the protocol names cannot be made here: {error}")
            return schedule
        wrapped.close()
        return wrapped.resolved
    found.notes.append(
        f"schedule {arm.schedule.name}: only the environment knows where the named slices are, so energies of sensor "
        "shifts were not charged again. Use --replay."
    )
    return schedule


def _check_arm(
    store: Store, protocol: Protocol, arm: Arm, found: _Findings, *, can_count: bool, runs_code: bool
) -> None:
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
    schedule = _schedule(protocol, arm, found, runs_code=runs_code)
    for attack in (None, *protocol.attacks):
        for batch in plan(protocol, arm, attack, trials):
            found.faults += _batch_faults(store, protocol, arm, attack, batch, schedule)
            found.batches.append((arm, attack, batch))
    if not found.faults and can_count:
        is_whole = len(finished) == len(planned)
        try:
            found.faults += _stopping_faults(store, protocol, arm, finished, is_whole=is_whole)
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
    for name in store.files():
        if name not in planned and name not in _SINGLE_FILES:
            yield f"{name}: is not in the protocol's plan."


def _stopping_faults(
    store: Store, protocol: Protocol, arm: Arm, finished: list[Batch], *, is_whole: bool
) -> Iterator[str]:
    """Yield a fault unless the run stopped exactly where its rule says."""
    with recorded_events(store, protocol) as events:
        found = [successes(store, protocol, batch, events) for batch in finished]
    counts = dict.fromkeys((spec.name for spec in protocol.events), 0)
    trials = 0
    for position, batch in enumerate(finished):
        for name, hits in found[position].items():
            counts[name] += hits
        trials += len(batch.trials)
        is_last = position + 1 == len(finished)
        if is_enough(protocol, arm, counts, trials) != is_last and not (is_last and is_whole):
            what = "the run stopped before its rule allowed" if is_last else "the run went on after its rule said stop"
            yield f"{batch.journal}: {what}."
            return


def _check_certificates(store: Store, protocol: Protocol, found: _Findings) -> None:
    try:
        expected = dict(derive(store, protocol))
    except (RuntimeError, ValueError) as error:
        found.faults.append(f"certificates: cannot be rederived: {error}")
        return
    stored = {name for name in store.files() if name.startswith("certificates/")}
    if not stored:
        found.notes.append("the run has not been certified.")
        return
    for name in sorted(stored | set(expected)):
        if name not in expected or name not in stored or expected[name].to_bytes() != store.read(name):
            found.faults.append(f"{name}: is not what the traces give.")


def _spread(trials: list[tuple[Batch, int]], count: int) -> list[tuple[Batch, int]]:
    if not count >= 0:
        raise ValueError(f"`replay` must be at least 0, got {count}.")
    number = min(count, len(trials))
    return [trials[i * len(trials) // number] for i in range(number)]


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
