"""Provenance: what a run depends on besides its protocol, as digests of code, parts and files, and as versions."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from ccfs.files.code import definitions_digest, file_code_digest
from ccfs.files.digests import file_digest, folder_digest
from ccfs.files.documents import Digest, Document
from ccfs.files.imports import (
    closure,
    files_behind,
    is_built_in,
    is_importable,
    loaded_files,
    module_file,
    module_of,
    packages_behind,
)
from ccfs.protocol.errors import ProtocolError
from ccfs.protocol.model import EventSpec, Protocol
from ccfs.protocol.tables import NAME, Name
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
    "event_digest",
    "modules_digest",
    "own_digest",
    "own_event_digests",
    "packages",
    "provenance",
    "read_provenance",
    "refuse_other_events",
    "trial_tables",
    "trial_targets",
]

PROVENANCE = "provenance.json"
TABLES = ("controllers", "code", "parts", "files", "packages")
"""The tables of the record that the trials depend on. A run is continued only if all of them are as they were."""

# The packages that can change a number of a trace. The digests of controllers and code cover the rest.
_PACKAGES = ("numpy", "scipy", "gymnasium", "pyarrow", "python-flint", "mujoco", "safety-gymnasium", "torch")
# This module runs a batch. Its imports lead to everything that a trial depends on, and to no page or command.
_ROOT = "ccfs.runs.batches"
_OWN = "ccfs"
# Between a stored trace and a count stand these modules. A replay runs none of them, so they belong to every event.
_COUNTING = (
    "ccfs.files.parquet",
    "ccfs.runs.counting",
    "ccfs.runs.host",
    "ccfs.runs.judging",
    "ccfs.runs.outcomes",
    "ccfs.runs.reader",
    "ccfs.runs.record",
    "ccfs.runs.trace",
)
# Of this one, only what the event reaches and what counts for every event. So events can be added to it.
_EVENTS, _EVERY_EVENT = "ccfs.runs.events", ("holds", "total_cost")
# An argument of an event that names a folder with more files is refused: every count would read all of them.
_MOST_FILES = 10_000
NOT_HERE = "not here"
"""Stands for the digest of code whose files are not on this machine."""
_TOO_LARGE = "too large"

# Before the names of what is no file of code, in the record of an event.
_PACKAGE, _FILE = "package ", "file "
ControllerDigest = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:+/=@-]{0,200}$")]
"""What a controller says that it is. A shipped one gives a SHA-256, one of the user's own may give another word."""
_Version = Annotated[str, Field(pattern=r"^[A-Za-z0-9._+!-]{1,100}$")]
_Place = Annotated[str, Field(pattern=f"^{NAME}$", max_length=120)]
Targets = tuple[tuple[str, tuple[str, ...]], ...]


class Provenance(Document):
    """What a run depends on besides its protocol. It names no machine and no folder of ours."""

    format: Literal["ccfs/provenance/2"] = Field(
        default="ccfs/provenance/2", description="Kind and version of this document."
    )
    protocol: Digest = Field(description="Hash of the protocol.")
    controllers: dict[Name, ControllerDigest] = Field(
        description="Digest of each controller, by its name in the protocol."
    )
    code: dict[str, Digest] = Field(
        description="Digest of each file behind a part and, under `ccfs`, of our modules that a trial depends on."
    )
    parts: dict[_Place, Digest | Literal["built in", "not here"]] = Field(
        description="Digest of the code of each part, by its place in the protocol."
    )
    files: dict[str, Digest] = Field(description="SHA-256 of each file that an argument of a part names.")
    packages: dict[Name, _Version] = Field(
        description="Version of Python and of each package that can change a number."
    )
    events: dict[Name, dict[str, _Version]] = Field(
        description="For each event, what its counts depend on: the digest of each file of code, the version of each "
        "further `package` that this code imports, and the SHA-256 of each `file` or folder that an argument names."
    )


def read_provenance(store: Store) -> dict[str, object]:
    """Return the record of a run. Refuse another kind or version, and a file that was changed."""
    return store.read_document(Provenance, PROVENANCE).model_dump()


def packages() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed."""
    return {"python": platform.python_version(), **dict(_installed())}


@lru_cache(maxsize=1)
def _installed() -> tuple[tuple[str, str], ...]:
    """Return the packages and their versions. They are looked up once per process, because every batch asks."""
    found = [(_OWN, version("ccfs-rl"))]
    for name in _PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return tuple(found)


def provenance(protocol: Protocol, controllers: dict[str, str]) -> dict[str, object]:
    """Return the record of everything a run depends on, given the controllers' digests.

    Call it when the events have been made, so that it sees what they have loaded.
    """
    refuse_other_events(protocol)
    behind = {spec.name: _event_behind(protocol, spec, are_made=True) for spec in protocol.events}
    for name, found in behind.items():
        if found is None:
            _refuse_unseen(f"events.{name}")
        elif NOT_HERE in found.digests.values():
            raise ProtocolError(f"`events.{name}` must load its code from files, got {found.first(NOT_HERE)}.")
        elif _TOO_LARGE in found.digests.values():
            raise ProtocolError(
                f"`events.{name}` must name folders of at most {_MOST_FILES} files, got {found.first(_TOO_LARGE)}. "
                "Name the files that it reads."
            )
    return {
        "format": Provenance.format_name(),
        "protocol": protocol.hash,
        "controllers": controllers,
        **trial_tables(protocol),
        "events": {name: found.digests for name, found in behind.items() if found is not None},
    }


def trial_tables(protocol: Protocol) -> dict[str, dict[str, str]]:
    """Return what the trials of a run depend on. A worker compares these tables with those of the run.

    Code is read once per process, because a process runs what it imported, whatever is written to the files later. A
    file that an argument names counts by its content. If a part reads other files, only a replay shows a change.
    """
    tables = _code_tables_once(trial_targets(protocol))
    for place, digest in tables["parts"].items():
        if digest == NOT_HERE:
            _refuse_unseen(place)
    return {**tables, "files": _files(_arguments(protocol)), "packages": packages()}


def _refuse_unseen(place: str) -> None:
    raise ProtocolError(f"`{place}` must name code in a file, because otherwise nobody sees whether it changed.")


def trial_targets(protocol: Protocol) -> Targets:
    """Return the code behind each place of the protocol that a trial depends on, which are all but the events."""
    return tuple(item for item in part_targets(protocol).items() if not item[0].startswith("events."))


def code_tables(targets: Targets) -> dict[str, dict[str, str]]:
    """Return the tables `code` and `parts` of a record as the files are now. Nothing is imported or run.

    `code` has the digest of each file behind a part. Its entry "ccfs" covers all modules of ccfs that a trial depends
    on. `parts` has one digest for each place in the protocol that names code.

    Args:
        targets: places in the protocol with the "module:callable" of each.
    """
    files = {place: _behind(names) for place, names in targets}
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


@lru_cache(maxsize=8)
def modules_digest(root: str) -> str:
    """Return one digest over a module of ccfs and all modules of ccfs that it imports. It is taken once per process."""
    return _joined(_digests(closure([root], _OWN)))


_code_tables_once = lru_cache(maxsize=64)(code_tables)


def own_event_digests(protocol: Protocol) -> Iterator[tuple[str, EventSpec, str | None]]:
    """Yield each event that is code of the user's own: its place in the protocol, its table, and its code's digest.

    The digest covers the files behind the event, as they are now. Our own modules do not count, so it stays the same
    with another version of ccfs. It is None if the code is in no file here.
    """
    pending = [(f"events.{i}", spec) for i, spec in enumerate(protocol.events)]
    while pending:
        place, spec = pending.pop(0)
        pending += [(f"{place}.events.{i}", part) for i, part in enumerate(spec.events)]
        if ":" in spec.event:
            files = files_behind(spec.event, _OWN)
            yield place, spec, _joined(_digests(files)) if files else None


def refuse_other_events(protocol: Protocol) -> None:
    """Refuse a protocol if the code of an event is not the one whose digest the protocol declares. Nothing is run."""
    for place, spec, digest in own_event_digests(protocol):
        if spec.digest not in (None, digest):
            raise ProtocolError(
                f"`{place}.digest` must be that of the code of {spec.event}, {digest or 'which is not here'}, "
                f"got {spec.digest}. Restore the code. For other code take its digest and another `seed`."
            )


class _Behind(NamedTuple):
    """What an event's counts depend on: digests or versions, and where each of them was found."""

    digests: dict[str, str]
    places: dict[str, str]

    def first(self, digest: str) -> str:
        return next(self.places[name] for name, value in self.digests.items() if value == digest)


def event_digest(record: Mapping[str, str]) -> str:
    """Return one digest over what an event's counts depend on, as a certificate carries it."""
    return _joined(record)


def changed_events(
    protocol: Protocol, record: Mapping[str, object], *, are_made: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield (event, what) for each event whose counts depend on something else than was recorded, and on what.

    Nothing is imported or run. Code that is not on this machine is left out, because it cannot count anything here. A
    shipped event reads no file, so a stranger's arguments make nobody read one.

    Args:
        protocol: the protocol of the run.
        record: the provenance of the run.
        are_made: whether the events have been made in this process. Then all that they load is known, and folders that
            their arguments name are read. Before, files may be missing that an event finds because it extends
            `sys.path` itself, and those are not called gone.
    """
    events = record.get("events")
    for spec in protocol.events:
        recorded = events.get(spec.name) if isinstance(events, dict) else None
        known = {str(name): str(value) for name, value in recorded.items()} if isinstance(recorded, dict) else {}
        behind = _event_behind(protocol, spec, are_made=are_made)
        if behind is None:
            modules = {name.partition(":")[0] for name in part_targets(protocol)[f"events.{spec.name}"]}
            if all(map(is_importable, modules)):
                # It could count here, from an archive for instance, and nobody would see what.
                yield spec.name, f"{' and '.join(sorted(modules))} is not in a file any more"
            continue
        for name, digest in behind.digests.items():
            if name not in known:
                yield spec.name, f"{behind.places[name]} was not seen to belong to it then"
            elif known[name] != digest:
                yield spec.name, f"{behind.places[name]} was changed since"
        for name in sorted(known.keys() - behind.digests.keys()):
            if not (_may_be_missing(name, spec, are_made=are_made) or _module_digest(name) == known[name]):
                yield spec.name, f"{name.removeprefix(_FILE)} is gone"


def _may_be_missing(name: str, spec: EventSpec, *, are_made: bool) -> bool:
    """Return whether something recorded may be missing because its event is not made yet."""
    if are_made or not _own_parts(spec) or name.startswith(_PACKAGE):
        return False
    return not name.startswith(_FILE) or Path(name.removeprefix(_FILE)).is_dir()


def _module_digest(name: str) -> str | None:
    """Return the digest of a module's file that its event has not loaded here. Something else may have, before."""
    path = None if name.startswith((_PACKAGE, _FILE)) else module_file(module_of(name))
    return None if path is None else file_code_digest(path)


def _own_parts(spec: EventSpec) -> list[EventSpec]:
    """Return the events that are code of the user's own among an event and those that it is made of."""
    return [spec] * (":" in spec.event) + [own for part in spec.events for own in _own_parts(part)]


def _event_behind(protocol: Protocol, spec: EventSpec, *, are_made: bool) -> _Behind | None:
    """Return what an event's counts depend on, or None if some of its code is not on this machine."""
    names = part_targets(protocol)[f"events.{spec.name}"]
    shipped = [name.partition(":")[2] for name in names if name.partition(":")[0] == _EVENTS]
    files: dict[str, Path] = {}
    for name in names:
        module = name.partition(":")[0]
        found = {} if module == _EVENTS else files_behind(name, _OWN)
        if not (found or module == _EVENTS or is_built_in(module)):
            return None
        files |= loaded_files(name, _OWN) | found
    users = {name: path for name, path in files.items() if name.partition("/")[0] != _OWN}
    ours = closure((), _OWN, users=users.values()) | {name: module_file(name) for name in _COUNTING}
    files |= {f"{name.replace('.', '/')}.py": path for name, path in ours.items() if path is not None}
    digests = {name: file_code_digest(path) if path.exists() else NOT_HERE for name, path in files.items()}
    places = {name: str(path) for name, path in files.items()}
    own, events = f"{_EVENTS.replace('.', '/')}.py", module_file(_EVENTS)
    if own not in digests and events is not None:
        digests[own] = definitions_digest(events.read_bytes(), (*_EVERY_EVENT, *shipped))
        places[own] = str(events)
    for name, found_version in packages_behind(users).items():
        if name not in _PACKAGES:  # those stand in the table of packages
            digests[_PACKAGE + name], places[_PACKAGE + name] = found_version, f"the package {name}"
    for text in {text for part in _own_parts(spec) for text in _texts([part.arguments])}:
        digest = _named_digest(text, reads_folders=are_made)
        if digest is not None:
            digests[_FILE + text], places[_FILE + text] = digest, text
    return _Behind(digests, places)


def _named_digest(name: str, *, reads_folders: bool) -> str | None:
    """Return the digest of the file or folder that an argument of an event names, None if there is none."""
    if _is_file(name):
        return file_digest(Path(name))
    # Whoever only looks at a stranger's run does not have a stranger choose the folder that is read.
    if not (reads_folders and _is_path(name) and Path(name).is_dir()):
        return None
    try:
        return folder_digest(Path(name), most=_MOST_FILES)
    except ValueError:
        return _TOO_LARGE


def _behind(names: tuple[str, ...]) -> dict[str, Path] | None:
    """Return the files behind a part, or None if some of its code is not on this machine."""
    found: dict[str, Path] = {}
    for name in names:
        files = files_behind(name, _OWN)
        if not (files or is_built_in(name.partition(":")[0])):
            return None
        found.update(files)
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
    """Return all arguments of a protocol's parts, its events left out."""
    program = protocol.program
    parts = (protocol.environment, *protocol.controllers, program.verifier, *program.fallbacks, program.candidate_map)
    return [part.arguments for part in (*parts, *protocol.attacks, *protocol.families) if part is not None]


def _files(arguments: Iterable[object]) -> dict[str, str]:
    """Return the digest of every file that an argument names."""
    return {name: file_digest(Path(name)) for name in _texts(arguments) if _is_file(name)}


def _is_file(name: str) -> bool:
    return _is_path(name) and Path(name).is_file()


def _is_path(name: str) -> bool:
    return 0 < len(name) < 4096 and "\0" not in name


def _texts(arguments: Iterable[object]) -> Iterator[str]:
    """Yield every text in the arguments, however deep."""
    pending = list(arguments)
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
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
