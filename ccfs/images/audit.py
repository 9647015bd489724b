"""Audit an image run: hash every file again, derive every radius again, count images again, and name each fault."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ccfs.audit.run import AuditReport, Draw, kind_faults, lock_faults, signature_notes
from ccfs.certificates.images import DIAGNOSTICS, Rule
from ccfs.files.documents import DocumentError
from ccfs.files.reading import RefusedFileError
from ccfs.images.certificate import FOLDER, ImageCertificate, derived
from ccfs.images.counts import CountRow, CountTable, RecordError, read_counts
from ccfs.images.data import cache_folder
from ccfs.images.endpoints import read_attack
from ccfs.images.folder import COUNTS, HEAD, ImageRun, image_store
from ccfs.images.run import Live, provenance_of, recounted
from ccfs.runs.host import Child, HostError
from ccfs.runs.manifest import UNLISTED, manifest_faults
from ccfs.runs.provenance import PROVENANCE, Provenance, differences
from ccfs.runs.signature import signature_faults
from ccfs.runs.store import RunError, Store

__all__ = ["audit_images"]

_SINGLE = (HEAD, PROVENANCE, COUNTS, *UNLISTED, "report.html")
_FOLDERS = (f"{FOLDER}/", "attack/", "printed-", "exports/")


def audit_images(
    folder: Path,
    *,
    replay: int | None = 1,
    trust: bool = False,
    expected: str | None = None,
    seed: str | None = None,
    live: Live | None = None,
) -> AuditReport:
    """Audit a finished image run.

    Hashes come first. If a file was changed, removed or added, the audit ends there. Then every certificate is derived
    again from the counts. At last images are counted again with the network that the run names.

    Args:
        folder: the run.
        replay: how many images to count again, drawn at random. None counts all.
        trust: whether to load what the run names, such as the factory of its network or a folder of images.
        expected: the hash of the key that the run must have. None accepts any.
        seed: seed of the draw. None takes fresh random numbers of this machine.
        live: network, images and filter to count again with, for a run of a Python program, which names none. Their
            digests must be those of the run.
    """
    if replay is not None and not replay >= 0:
        raise ValueError(f"`replay` must be at least 0, got {replay}.")
    store = image_store(folder)
    faults = list(kind_faults(store))
    if faults:
        return AuditReport(faults=tuple(faults))
    files = sum(1 for _ in store.files())
    faults = [*lock_faults(store), *manifest_faults(store), *signature_faults(store)]
    if faults:
        return AuditReport(faults=tuple(faults), files=files)
    try:
        run = ImageRun.from_bytes(store.read(HEAD), where=HEAD)
        table = read_counts(store.path(COUNTS))
    except (RunError, DocumentError, RecordError) as error:
        return AuditReport(faults=(str(error),), files=files)
    faults += _content_faults(store, run, table)
    if expected is not None and run.hash != expected:
        faults.append(f"{HEAD}: has the hash {run.hash}, expected {expected}.")
    opens = trust or run.asked is None or not run.asked.foreign
    notes = [*_notes(store, run, opens=opens), *signature_notes(store)] if not faults else []
    again = _Again()
    if not faults and replay != 0:
        again = _replay(store, run, table, Draw.of(store, len(run.indices), replay, seed), trust=trust, live=live)
    return AuditReport(
        faults=(*faults, *again.faults),
        unchecked=again.unchecked,
        would_run=again.would_run,
        notes=tuple(notes),
        protocol=run.hash,
        files=files,
        trajectories=len(run.indices),
        replayed=0 if again.faults else again.replayed,
        seed=again.draw.seed if again.draw is not None and not again.faults else None,
        exposure=again.draw.exposure if again.draw is not None and not again.faults else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Again:
    """What counting images again gave."""

    faults: tuple[str, ...] = ()
    replayed: int = 0
    unchecked: tuple[str, ...] = ()
    would_run: tuple[str, ...] = ()
    draw: Draw | None = None


def _content_faults(store: Store, run: ImageRun, table: CountTable) -> list[str]:
    faults = []
    if table.key != run.key:
        faults.append(f"{COUNTS}: holds counts of another run than {HEAD}.")
    elif [(row.index, row.variant) for row in table.rows] != [
        (index, variant) for index in run.indices for variant in run.key.variants
    ]:
        faults.append(f"{COUNTS}: must hold every image of {HEAD} with every variant, in order.")
    try:
        recorded = Provenance.from_bytes(store.read(PROVENANCE), where=PROVENANCE)
        if recorded.protocol != run.hash or recorded.controllers != {"network": run.key.model_sha256}:
            faults.append(f"{PROVENANCE}: belongs to another run.")
    except (RunError, DocumentError) as error:
        faults.append(str(error))
    for name in store.files():
        if name not in _SINGLE and not name.startswith(_FOLDERS):
            faults.append(f"{name}: is not part of an image run.")
        elif name.startswith(f"{FOLDER}/") and not faults:
            faults += _certificate_faults(store, name, table)
    for name in () if faults else sorted(name for name in store.files() if name.endswith("/endpoints.jsonl")):
        try:
            head, _ = read_attack(store.path(name))
            if head.counts != run.key:
                faults.append(f"{name}: belongs to another run.")
        except (RecordError, ValueError, TypeError) as error:
            faults.append(f"{name}: {error}")
    return faults


def _certificate_faults(store: Store, name: str, table: CountTable) -> Iterator[str]:
    rules = {rule.value: rule for rule in Rule if rule not in DIAGNOSTICS}
    try:
        found = ImageCertificate.from_bytes(store.read(name), where=name)
        again = derived(table, found.variant, rules[found.rule], delta=found.delta)
        if again.to_bytes() != store.read(name):
            yield f"{name}: is not what the counts give."
    except (RunError, DocumentError, ValueError, KeyError) as error:
        yield f"{name}: cannot be derived again: {error}"


def _notes(store: Store, run: ImageRun, *, opens: bool) -> Iterator[str]:
    """Yield what differs here. Files that the run names are read only if `opens`."""
    recorded = Provenance.from_bytes(store.read(PROVENANCE), where=PROVENANCE)
    try:
        here = provenance_of(run if opens else run.model_copy(update={"asked": None}))
    except (OSError, RefusedFileError) as error:
        yield f"a file that the run names is not here: {error}"
        return
    for table in ("code", "packages"):
        for name, before, now in differences(getattr(recorded, table), getattr(here, table)):
            if opens or name in getattr(here, table):
                yield f"{table} {name}: {before} when the run was made, {now} here."
    if not any(name.startswith(f"{FOLDER}/") for name in store.files()):
        yield "the run has not been certified."
    if store.exists("report.html"):
        yield "report.html: only its hash was checked. `ccfs image report` writes the page again from the run."


def _replay(store: Store, run: ImageRun, table: CountTable, draw: Draw, *, trust: bool, live: Live | None) -> _Again:
    """Count the drawn images again, and compare."""
    what, asked = "whether images have these counts", run.asked
    chosen = [run.indices[place] for place in draw.chosen]
    again: object
    if live is not None:
        rows = recounted(run, chosen, live=live)
        again = rows if isinstance(rows, str) else _told(row for group in rows.values() for row in group)
    elif asked is None:
        told = "a Python program made the run, so its network cannot be loaded here. Use `audit_images(..., live=...)`."
        return _Again(unchecked=(f"{what}: {told}",))
    elif asked.foreign and not trust:
        told = f"{what}: that would load what the run names and the package does not hold."
        return _Again(unchecked=(told,), would_run=asked.foreign)
    else:
        child = Child(store)
        try:
            # The child has a cache folder of its own, where the installed images are not.
            again = child.call(f"{__name__}:recount", indices=chosen, installed=str(cache_folder().absolute()))
        except HostError as error:
            return _Again(unchecked=(f"{what}: what the run names cannot be loaded here: {error}",))
        finally:
            child.close()
    if isinstance(again, str):
        return _Again(faults=(again,))
    stored = _told(row for row in table.rows if row.index in set(chosen))
    found = again if isinstance(again, dict) else {}
    faults = tuple(
        f"{COUNTS}: image {index}: other counts than those that its noise gives here."
        for index in chosen
        if found.get(str(index)) != stored[str(index)]
    )
    return _Again(faults=faults, replayed=len(chosen), draw=draw)


def recount(store: Store, indices: list[int], installed: str) -> dict[str, list[list[object]]] | str:
    """Count images again, and return their rows as JSON has them. The confined child process calls this."""
    os.environ["CCFS_DATA"] = installed
    run = ImageRun.from_bytes(store.read(HEAD), where=HEAD)
    again = recounted(run, indices)
    return again if isinstance(again, str) else _told(row for rows in again.values() for row in rows)


def _told(rows: Iterable[CountRow]) -> dict[str, list[list[object]]]:
    found: dict[str, list[list[object]]] = {}
    for row in rows:
        counts = [(list(part.retained), part.rejected) for part in (row.selection, row.estimation)]
        told: list[object] = [row.variant, row.label, *(number for pair in counts for number in pair)]
        found.setdefault(str(row.index), []).append(told)
    return found
