"""Provenance: what a run depends on besides its protocol, as digests of code, parts and files, and as versions."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from pydantic import Field

from ccfs.files.code import file_code_digest
from ccfs.files.digests import file_digest
from ccfs.files.documents import Digest, Document
from ccfs.files.imports import closure, files_behind, is_built_in, is_importable, module_file
from ccfs.protocol.errors import ProtocolError
from ccfs.protocol.model import EventSpec, Protocol
from ccfs.runs.build import part_targets
from ccfs.runs.store import Store

__all__ = [
    "NOT_HERE",
    "PROVENANCE",
    "TABLES",
    "Provenance",
    "changed_events",
    "code_tables",
    "differences",
    "own_digest",
    "packages",
    "provenance",
    "read_provenance",
]

PROVENANCE = "provenance.json"
TABLES = ("controllers", "code", "parts", "files", "packages")
"""The tables of the record. A run is continued only if all of them are as they were."""

# The packages that can change a number of a trace. The digests of controllers and code cover the rest.
_PACKAGES = ("ccfs", "numpy", "scipy", "gymnasium", "pyarrow", "python-flint", "mujoco", "safety-gymnasium", "torch")
# This module runs a batch. Its imports lead to everything that a trial depends on, and to no page or command.
_ROOT = "ccfs.runs.batches"
_OWN = "ccfs"
# Between a stored trace and a count stand these modules. A replay runs none of them, so they belong to every event.
_COUNTING = (
    "ccfs.files.parquet",
    "ccfs.runs.counting",
    "ccfs.runs.events",
    "ccfs.runs.outcomes",
    "ccfs.runs.reader",
    "ccfs.runs.record",
    "ccfs.runs.trace",
)
NOT_HERE = "not here"
"""Stands for the digest of code whose files are not on this machine."""

Targets = tuple[tuple[str, tuple[str, ...]], ...]


class Provenance(Document):
    """What a run depends on besides its protocol. It names no machine and no folder of ours."""

    format: Literal["ccfs/provenance/1"] = Field(
        default="ccfs/provenance/1", description="Kind and version of this document."
    )
    protocol: Digest = Field(description="Hash of the protocol.")
    controllers: dict[str, str] = Field(description="Digest of each controller, by its name in the protocol.")
    code: dict[str, str] = Field(
        description="Digest of each file behind a part and, under `ccfs`, of our modules that a trial depends on."
    )
    parts: dict[str, str] = Field(description="Digest of the code of each part, by its place in the protocol.")
    files: dict[str, str] = Field(description="SHA-256 of each file that an argument of the protocol names.")
    packages: dict[str, str] = Field(description="Version of Python and of each package that can change a number.")


def read_provenance(store: Store) -> dict[str, object]:
    """Return the record of a run. Refuse another kind or version, and a file that was changed."""
    return store.read_document(Provenance, PROVENANCE).model_dump()


def packages() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed."""
    return {"python": platform.python_version(), **dict(_installed())}


@lru_cache(maxsize=1)
def _installed() -> tuple[tuple[str, str], ...]:
    """Return the packages and their versions. They are looked up once per process, because every batch asks."""
    found = []
    for name in _PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return tuple(found)


def provenance(protocol: Protocol, controllers: dict[str, str]) -> dict[str, object]:
    """Return the record of everything a run depends on, given the controllers' digests.

    Code is read once per process, because a process runs what it imported, whatever is written to the files later. A
    file that an argument names counts by its content. If a part reads other files, only a replay shows a change.
    """
    tables = _code_tables_once(tuple(part_targets(protocol).items()))
    for place, digest in tables["parts"].items():
        if digest == NOT_HERE:
            raise ProtocolError(
                f"`{place}` must name code in a file, because otherwise nobody sees whether it changed."
            )
    return {
        "format": Provenance.format_name(),
        "protocol": protocol.hash,
        "controllers": controllers,
        **tables,
        "files": _files(_arguments(protocol)),
        "packages": packages(),
    }


def code_tables(targets: Targets) -> dict[str, dict[str, str]]:
    """Return the tables `code` and `parts` of a record as the files are now. Nothing is imported or run.

    `code` has the digest of each file behind a part. Its entry "ccfs" covers all modules of ccfs that a trial depends
    on. `parts` has one digest for each place in the protocol that names code.

    Args:
        targets: places in the protocol with the "module:callable" of each.
    """
    files = {place: _behind(place, names) for place, names in targets}
    every = {name: path for found in files.values() for name, path in (found or {}).items()}
    modules = {name.partition(":")[0] for _, names in targets for name in names}
    own = own_digest(
        frozenset(module for module in modules if module.partition(".")[0] == _OWN),
        frozenset(path for name, path in every.items() if name.partition("/")[0] != _OWN),
    )
    return {
        "code": {_OWN: own, **_digests(every)},
        "parts": {place: NOT_HERE if found is None else _joined(_digests(found)) for place, found in files.items()},
    }


@lru_cache(maxsize=64)
def own_digest(parts: frozenset[str] = frozenset(), users: frozenset[Path] = frozenset()) -> str:
    """Return one digest over the modules of ccfs that a trial depends on. It is taken once per process.

    Args:
        parts: modules of ccfs that the protocol names.
        users: files of the user's own code, which may import further modules of ccfs.
    """
    return _joined(_digests(closure([_ROOT, *sorted(parts)], _OWN, users=sorted(users))))


_code_tables_once = lru_cache(maxsize=64)(code_tables)


def changed_events(protocol: Protocol, record: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield (event, file) for each event whose code, or a file that it names, is not what was recorded.

    The modules of ours that count belong to the code of every event. Nothing is imported or run. Code that is not on
    this machine is left out, because it cannot count anything here. A shipped event reads no file, so a stranger's
    arguments make nobody read one.
    """
    code, parts, files = (
        table if isinstance(table, dict) else {} for table in map(record.get, ("code", "parts", "files"))
    )
    targets = part_targets(protocol)
    for spec in protocol.events:
        place = f"events.{spec.name}"
        behind = _behind(place, targets[place])
        modules = {name.partition(":")[0] for name in targets[place]}
        if behind is None and all(map(is_importable, modules)):
            # It could count here, from an archive for instance, and nobody would see what.
            yield spec.name, " and ".join(sorted(modules))
        if behind is not None and _joined(_digests(behind)) != parts.get(place):
            digests = _digests(behind)
            other = [str(path) for name, path in behind.items() if digests[name] != code.get(name)]
            yield spec.name, " and ".join(other or map(str, behind.values()))
        if any(name.partition(".")[0] != _OWN for name in targets[place]):
            for name in _texts([spec]):
                # A recorded file that is gone is a change too: the event may have a default.
                now = file_digest(Path(name)) if name in files and _is_file(name) else None
                if now != files.get(name) or (now is None and _is_file(name)):
                    yield spec.name, name


def _behind(place: str, names: tuple[str, ...]) -> dict[str, Path] | None:
    """Return the files behind a part, or None if some of its code is not on this machine."""
    found: dict[str, Path] = {}
    for name in names:
        files = files_behind(name, _OWN)
        if not (files or is_built_in(name.partition(":")[0])):
            return None
        found.update(files)
    if place.startswith("events."):
        users = [path for name, path in found.items() if name.partition("/")[0] != _OWN]
        modules = closure((), _OWN, users=users) | {name: module_file(name) for name in _COUNTING}
        counting = {f"{name.replace('.', '/')}.py": path for name, path in modules.items() if path is not None}
        return counting | found
    return found


def _digests(files: Mapping[str, Path]) -> dict[str, str]:
    return {name: file_code_digest(path) for name, path in files.items()}


def _joined(digests: Mapping[str, str]) -> str:
    """Return the digest of a single file, or one digest over the names and digests of several."""
    if len(digests) <= 1:
        return next(iter(digests.values()), "built in")
    # The length before each name makes the lines unambiguous, whatever characters a name has.
    lines = "".join(f"{len(name.encode())}:{name} {digests[name]}\n" for name in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def _arguments(protocol: Protocol) -> list[object]:
    """Return all arguments of a protocol's parts, and its events."""
    program = protocol.program
    parts = (protocol.environment, *protocol.controllers, program.verifier, *program.fallbacks, program.candidate_map)
    return [*(part.arguments for part in (*parts, *protocol.attacks) if part is not None), *protocol.events]


def _files(arguments: Iterable[object]) -> dict[str, str]:
    """Return the digest of every file that an argument names."""
    return {name: file_digest(Path(name)) for name in _texts(arguments) if _is_file(name)}


def _is_file(name: str) -> bool:
    return 0 < len(name) < 4096 and "\0" not in name and Path(name).is_file()


def _texts(arguments: Iterable[object]) -> Iterator[str]:
    """Yield every text in the arguments, however deep."""
    pending = list(arguments)
    while pending:
        value = pending.pop()
        if isinstance(value, EventSpec):
            pending.extend((value.arguments, *value.events))
        elif isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, str):
            yield value


def differences(before: object, now: object) -> Iterator[tuple[str, str, str]]:
    """Yield (name, then, now) for each entry of a recorded table that differs. A missing entry is "absent"."""
    old, new = (table if isinstance(table, dict) else {} for table in (before, now))
    for name in sorted({str(name) for name in (*old, *new)}):
        if old.get(name) != new.get(name):
            yield name, str(old.get(name, "absent")), str(new.get(name, "absent"))
