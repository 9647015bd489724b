"""What a run depends on besides its protocol: versions, controllers and source, recorded without naming the machine."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ccfs.building import references
from ccfs.hashing import file_digest
from ccfs.protocol import EventSpec, Protocol
from ccfs.sources import own_digest, reference_digest

__all__ = ["differences", "inputs", "own_sources", "packages"]

# Whatever can change a number of a trace. Others are recorded by the controllers' and the sources' digests.
_PACKAGES = ("ccfs", "numpy", "scipy", "gymnasium", "pyarrow", "python-flint", "mujoco", "safety-gymnasium", "torch")


def packages() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def own_sources() -> dict[str, str]:
    """Return the digest of ccfs's own source; this imports nothing that a protocol names."""
    return {"ccfs": own_digest()}


def inputs(protocol: Protocol, controllers: dict[str, str]) -> dict[str, object]:
    """Return the record of everything a run depends on, given the controllers' digests.

    Files count by their content where an argument names them; what a component reads besides, only a replay can tell.
    """
    named = {reference for reference in references(protocol) if reference.partition(":")[0].partition(".")[0] != "ccfs"}
    return {
        "protocol": protocol.hash,
        "controllers": controllers,
        "sources": own_sources() | {reference: reference_digest(reference) for reference in named} | _files(protocol),
        "packages": packages(),
    }


def _files(protocol: Protocol) -> dict[str, str]:
    """Return the digest of every file that an argument of the protocol names."""
    program = protocol.program
    parts = (protocol.environment, *protocol.controllers, program.verifier, *program.fallbacks, program.candidate_map)
    pending: list[object] = [part.arguments for part in (*parts, *protocol.attacks) if part is not None]
    pending.extend(protocol.events)
    found: dict[str, str] = {}
    while pending:
        value = pending.pop()
        if isinstance(value, EventSpec):
            pending.extend((value.arguments, *value.events))
        elif isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, str) and 0 < len(value) < 4096 and "\0" not in value and Path(value).is_file():
            found[f"file {value}"] = file_digest(Path(value))
    return found


def differences(before: object, now: object) -> Iterator[tuple[str, str, str]]:
    """Yield (name, then, now) for each entry of a recorded table that differs; "absent" where there is none."""
    old, new = (table if isinstance(table, dict) else {} for table in (before, now))
    for name in sorted({str(name) for name in (*old, *new)}):
        if old.get(name) != new.get(name):
            yield name, str(old.get(name, "absent")), str(new.get(name, "absent"))
