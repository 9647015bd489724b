"""A run directory: one protocol, atomic files, a journal of finished batches, and a lock against a second writer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from ccfs.certificates.documents import refuse_other_format
from ccfs.files.atomic import PARTIAL, write_together
from ccfs.files.digests import canonical_json
from ccfs.files.documents import Document, DocumentError
from ccfs.files.lock import LOCK, LockedError, locked
from ccfs.protocol.model import Protocol, parse_protocol

__all__ = ["RunError", "Store"]

_PROTOCOL = "protocol.json"
Made = TypeVar("Made", bound=Document)
_FIRST = f"{PARTIAL}{_PROTOCOL}"
"""Beginning of a file name. A run that is killed before it has a protocol leaves at most this one file."""


class RunError(RuntimeError):
    """A run directory that cannot be used as asked. Finished batches stay as they are."""


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
        """Write a file atomically and durably. If it fails, the run is as it was."""
        self.write_together({name: content})

    def write_together(self, contents: Mapping[str, bytes]) -> None:
        """Write files durably, each of them atomically. If it fails, some may be there and others not."""
        paths = {self.path(name): content for name, content in contents.items()}
        try:
            write_together(paths)
        except OSError as error:
            raise RunError(
                f"{' and '.join(map(str, paths))}: cannot be written: {error.strerror}. Finished batches are kept. "
                "Free some space or repair the folder, then run the same command again."
            ) from error

    def read_document(self, model: type[Made], name: str) -> Made:
        """Return the document in a file. Refuse another kind or version, and a file that was changed."""
        try:
            return model.from_bytes(self.read(name), where=str(self.path(name)))
        except DocumentError as error:
            raise RunError(str(error)) from None

    def write_json(self, name: str, content: object) -> None:
        """Write a file as canonical JSON."""
        self.write(name, canonical_json(content).encode() + b"\n")

    def files(self) -> Iterator[str]:
        """Yield the names of all files of the run except the lock, sorted."""
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if name != LOCK and not path.is_dir():
                yield name

    def protocol(self) -> Protocol:
        """Return the protocol that this run belongs to."""
        if not self.is_run:
            raise RunError(f"{self.root}: must be a run directory, but has no protocol.json.")
        content, where = self.read_json(_PROTOCOL), str(self.path(_PROTOCOL))
        try:
            refuse_other_format(content.get("format"), Protocol.format_name())
        except DocumentError as error:
            raise RunError(f"{where}: {error}") from None
        return parse_protocol(content, where=where)

    @property
    def is_run(self) -> bool:
        """Whether the directory belongs to a protocol."""
        return self.exists(_PROTOCOL)

    def refuse_foreign(self) -> None:
        """Raise unless the directory is absent, empty or a run. Nothing is written."""
        # The order matters: another process may make this a run just now, so list the files before asking.
        names = list(self.files())
        if not self.is_run and any(not name.startswith(_FIRST) for name in names):
            raise RunError(f"{self.root}: must be empty or a run directory, but holds other files.")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory for one writer. The lock of a killed process is released."""
        with ExitStack() as held:
            try:
                held.enter_context(locked(self.root))
                for left in self.root.rglob(f"{PARTIAL}*") if self.is_run else self.root.glob(f"{_FIRST}*"):
                    left.unlink()
            except LockedError:
                raise RunError(
                    f"{self.root}: another process is writing to this run. Wait for it or stop it."
                ) from None
            except OSError as error:
                raise RunError(f"{self.root}: cannot be used as a run directory: {error.strerror}.") from error
            yield
