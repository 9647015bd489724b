"""A run directory: one protocol, atomic files, a journal of finished batches, and a lock against a second writer."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import TypeVar

from ccfs.certificates.documents import refuse_other_format
from ccfs.files.atomic import PARTIAL, remove_together, write_together
from ccfs.files.digests import canonical_json, file_digest
from ccfs.files.documents import Document, DocumentError
from ccfs.files.lock import LOCK, LockedError, locked
from ccfs.files.reading import RefusedFileError, entries, limits, read_bytes, read_json, refuse_links
from ccfs.protocol.model import Protocol, parse_protocol, refuse_large

__all__ = ["PremiseError", "RunError", "Store", "Trust"]

_PROTOCOL = "protocol.json"
Made = TypeVar("Made", bound=Document)


class Trust(Enum):
    """Whether code that the protocol of a run names may run, and where."""

    NONE = "none"
    """It does not run. This is for a folder that somebody else may have made."""
    CONFINED = "confined"
    """It runs in a child process that is confined. A user who has read the code says so with `--trust`."""
    HERE = "here"
    """It runs in this process. This is for a run that this process itself has just made."""


class RunError(RuntimeError):
    """A run directory that cannot be used as asked. Finished batches stay as they are."""


class PremiseError(RunError):
    """Trials that do not repeat. No bound holds for their count, so nothing is certified."""


@contextmanager
def _writing(paths: Iterable[Path]) -> Iterator[None]:
    """Say which files could not be written or removed, and that nothing else is lost."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{' and '.join(map(str, paths))}: cannot be written: {error.strerror}. Finished batches are kept. "
            "Free some space or repair the folder, then run the same command again."
        ) from error


class Store:
    """Files of one run directory, all written atomically: a file is there complete or not at all.

    Nothing is read or written behind a link, and only plain files are read.

    Args:
        root: the directory.
        trust: whether code that the protocol names may run, when events are counted or trials replayed.
        head: the file that says what the run is, and that is written first. Image runs have `run.json`.
    """

    def __init__(self, root: Path, *, trust: Trust = Trust.NONE, head: str = _PROTOCOL) -> None:
        self.root, self.trust, self.head = root, trust, head
        # Beginning of a file name. A run that is killed before it has a head leaves at most this one file.
        self._first = f"{PARTIAL}{head}"

    def path(self, name: str) -> Path:
        """Return the path of a file of the run. Refuse a name behind a link."""
        try:
            return refuse_links(self.root, name)
        except RefusedFileError as error:
            raise RunError(str(error)) from None

    def exists(self, name: str) -> bool:
        """Return whether a file of the run is there."""
        try:
            return stat.S_ISREG(os.lstat(self.path(name)).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""
        path = self.path(name)
        try:
            return read_bytes(path, most=limits().document if name.endswith(".json") else None)
        except RefusedFileError as error:
            raise RunError(str(error)) from None
        except OSError as error:
            raise RunError(f"{path}: cannot be read: {error.strerror}.") from error

    def digest(self, name: str) -> str:
        """Return the SHA-256 (hex) of a file."""
        path = self.path(name)
        try:
            return file_digest(path, most=limits().file)
        except RefusedFileError as error:
            raise RunError(str(error)) from None
        except OSError as error:
            raise RunError(f"{path}: cannot be read: {error.strerror}.") from error

    def read_json(self, name: str) -> dict[str, object]:
        """Return the object in a JSON file."""
        try:
            content = read_json(self.read(name), self.path(name))
        except RefusedFileError as error:
            raise RunError(str(error)) from None
        if not isinstance(content, dict):
            raise RunError(f"{self.path(name)}: must hold a JSON object.")
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically and durably. If it fails, the run is as it was."""
        self.write_together({name: content})

    def write_together(self, contents: Mapping[str, bytes]) -> None:
        """Write files durably, each of them atomically. If it fails, some may be there and others not."""
        paths = {self.path(name): content for name, content in contents.items()}
        with _writing(paths):
            write_together(paths)

    def remove(self, *names: str) -> None:
        """Remove files and empty folders durably, in this order. Those that are missing are left out."""
        paths = [self.path(name) for name in names]
        with _writing(paths):
            remove_together(paths)

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
        """Yield the names of all files of the run except the lock, sorted. Refuse what is no plain file or folder."""
        if not self.root.is_dir():
            return
        try:
            found = [(name, status.st_mode) for name, status in entries(self.root)]
        except RefusedFileError as error:
            raise RunError(str(error)) from None
        for name, mode in sorted(found):
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                raise RunError(f"{self.root / name}: must be a plain file or folder.")
            if name != LOCK and not stat.S_ISDIR(mode):
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
        made = parse_protocol(content, where=where)
        refuse_large(made, where=where)
        return made

    @property
    def is_run(self) -> bool:
        """Whether the directory belongs to a run of this kind."""
        return self.exists(self.head)

    def refuse_foreign(self) -> None:
        """Raise unless the directory is absent, empty or a run. Nothing is written."""
        # The order matters: another process may make this a run just now, so list the files before asking.
        names = list(self.files())
        if not self.is_run and any(not name.startswith(self._first) for name in names):
            raise RunError(f"{self.root}: must be empty or a run directory, but holds other files.")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory for one writer. The lock of a killed process is released."""
        with ExitStack() as held:
            try:
                held.enter_context(locked(self.root))
                pattern = f"**/{PARTIAL}*" if self.is_run else f"{self._first}*"
                remove_together(list(self.root.glob(pattern)))
            except LockedError:
                raise RunError(
                    f"{self.root}: another process is writing to this run. Wait for it or stop it."
                ) from None
            except OSError as error:
                raise RunError(f"{self.root}: cannot be used as a run directory: {error.strerror}.") from error
            yield
