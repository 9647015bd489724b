"""A run directory: one protocol, atomic files, a journal of finished batches, and a lock against a second writer."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ccfs.hashing import canonical_json
from ccfs.protocol import Protocol, parse_protocol

__all__ = ["RunError", "Store"]

_LOCK = "lock"
_PARTIAL = ".partial-"


class RunError(RuntimeError):
    """A run directory that cannot be used as asked; what is finished in it stays as it is."""


class Store:
    """Files of one run directory, all written atomically: a file is there complete or not at all."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        """Return the path of a file of the run."""
        return self.root / name

    def exists(self, name: str) -> bool:
        """Return whether a file of the run is there."""
        return self.path(name).is_file()

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""
        try:
            return self.path(name).read_bytes()
        except OSError as error:
            raise RunError(f"{self.path(name)}: cannot be read: {error.strerror}.") from error

    def read_json(self, name: str) -> dict[str, object]:
        """Return the object in a JSON file."""
        try:
            content = json.loads(self.read(name))
        except ValueError as error:
            raise RunError(f"{self.path(name)}: must be a JSON file: {error}") from error
        if not isinstance(content, dict):
            raise RunError(f"{self.path(name)}: must hold a JSON object.")
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically and durably; on failure the run is as it was."""
        path = self.path(name)
        partial = path.with_name(_PARTIAL + path.name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with partial.open("wb") as stream:
                    stream.write(content)
                    stream.flush()
                    os.fsync(stream.fileno())
                partial.replace(path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
            _sync_folder(path.parent)
        except OSError as error:
            raise RunError(
                f"{path}: cannot be written: {error.strerror}. Finished batches are kept: "
                "free the space or mend the folder, then run the same command again."
            ) from error

    def write_json(self, name: str, content: object) -> None:
        """Write a JSON file in the one canonical form."""
        self.write(name, canonical_json(content).encode() + b"\n")

    def files(self) -> Iterator[str]:
        """Yield the names of all files of the run but the lock, sorted."""
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if name != _LOCK and not path.is_dir():
                yield name

    def protocol(self) -> Protocol:
        """Return the protocol that this run belongs to."""
        if not self.is_run:
            raise RunError(f"{self.root}: must be a run directory, but has no protocol.json.")
        return parse_protocol(self.read_json("protocol.json"), where=str(self.path("protocol.json")))

    @property
    def is_run(self) -> bool:
        """Whether the directory belongs to a protocol."""
        return self.exists("protocol.json")

    def refuse_foreign(self) -> None:
        """Raise unless the directory is absent, empty or a run; nothing is written."""
        # A run that was killed in its first moment has left no more than its lock and a half-written protocol.
        first = {_LOCK, f"{_PARTIAL}protocol.json"}
        if not self.is_run and any(name not in first for name in self.files()):
            raise RunError(f"{self.root}: must be empty or a run directory, but holds other files.")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory for one writer; a killed process releases it."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            stream = self.path(_LOCK).open("ab")
        except OSError as error:
            raise RunError(f"{self.root}: cannot be used as a run directory: {error.strerror}.") from error
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(
                    f"{self.root}: another process is writing to this run. Wait for it or stop it."
                ) from None
            if self.is_run:
                for left in self.root.rglob(_PARTIAL + "*"):
                    left.unlink()
            yield


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
