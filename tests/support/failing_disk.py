"""A disk that fails at a chosen moment, by a kill, by being full, by an error or by a power cut."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

READING = ("read", "list")
"""Operations that change nothing. Only an error can happen to them."""


class Fault(Enum):
    """What happens to the disk or to the process at the chosen moment."""

    KILL = "kill -9"
    FULL = "disk full"
    ERROR = "input/output error"
    POWER = "power cut, everything unsynced lost"
    NAMES = "power cut, unsynced contents lost and names kept"
    SOME = "power cut, some unsynced names lost"

    @property
    def ends_the_process(self) -> bool:
        return self not in (Fault.FULL, Fault.ERROR)

    @property
    def loses_data(self) -> bool:
        return self in (Fault.POWER, Fault.NAMES, Fault.SOME)


class DeadError(BaseException):
    """The process would not exist any more. No handler may catch this, as none can catch SIGKILL."""


@dataclass(slots=True)
class File:
    """A file: what a power cut leaves of its content."""

    durable: bytes = b""


@dataclass(slots=True)
class Folder:
    """A folder: the names in it, and the names that a power cut leaves."""

    now: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)


def scanned(path: Path) -> Folder:
    """Return a folder of the real disk, all of it durable."""
    found: dict[str, File | Folder] = {
        each.name: scanned(each) if each.is_dir() else File(each.read_bytes()) for each in path.iterdir()
    }
    return Folder(dict(found), dict(found))


class Disk:
    """Watches everything that a command does in one folder, counts it, and fails at one moment.

    Audit events come before an operation, so an operation that fails has changed nothing. The exception is a write, of
    which a failing disk keeps the first half. Nothing is really synced. A sync is only noted, which is faster.

    Args:
        top: the folder. What happens elsewhere is not seen.
        fault: what happens. None only counts.
        moment: at which operation of those that the fault can happen to. The first one is 0.
        before: what the same disk was before, with names and contents that are not durable yet. None takes all of the
            folder for durable.
    """

    def __init__(self, top: Path, fault: Fault | None = None, moment: int = -1, *, before: Disk | None = None) -> None:
        self.top, self.fault, self.moment = top, fault, moment
        self.done: list[str] = []
        self.has_failed = False
        self.model = None if before is None else before.model

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch until the end of the block. A death in the block ends it quietly."""
        global _watching
        self.model = self.model or scanned(self.top)
        write, sync = os.write, os.fsync
        os.write, os.fsync = self._writing(write), self._syncing
        _watching = self
        try:
            yield
        except DeadError:
            if not self.is_dead:
                raise
        finally:
            _watching = None
            os.write, os.fsync = write, sync

    @property
    def is_dead(self) -> bool:
        """Whether the process would be gone."""
        return self.has_failed and self.fault is not None and self.fault.ends_the_process

    def cut_power(self, fault: Fault, seed: int = 0) -> None:
        """Replace the folder by what survives a power cut now."""
        for each in self.top.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        assert self.model is not None
        _write_out(_survivors(self.model, fault, random.Random(seed)), self.top)

    def happens(self, operation: str, path: Path | None = None) -> None:
        """Count an operation, and fail if its moment has come."""
        if self.is_dead:
            raise DeadError  # a handler of the dead process tries to tidy up
        if self.fault is None or can_happen(self.fault, operation):
            self.done.append(operation)
            if len(self.done) - 1 == self.moment:
                self.has_failed = True
                if self.is_dead:
                    raise DeadError
            # A full disk stays full. An error happens once.
            if self.has_failed and (self.fault is Fault.FULL or len(self.done) - 1 == self.moment):
                code = errno.ENOSPC if self.fault is Fault.FULL else errno.EIO
                raise OSError(code, os.strerror(code), *(() if path is None else (str(path),)))

    def event(self, name: str, arguments: tuple[object, ...]) -> None:
        """Take an audit event."""
        if name not in _EVENTS or not isinstance(arguments[0], (str, os.PathLike)):
            return
        path = Path(arguments[0])
        parts = self._parts(path)
        if parts is None:
            return
        if name == "open":
            self._open(path, parts, int(str(arguments[2])))
        elif name in ("os.listdir", "os.scandir"):
            self.happens("list", path)
        elif not parts:
            raise AssertionError(f"{name} of the watched folder itself")
        elif name == "os.mkdir":
            if not path.exists():
                self.happens("mkdir", path)
                self._folder(parts).now[parts[-1]] = Folder()
        elif name in ("os.remove", "os.rmdir"):
            if os.path.lexists(path):
                self.happens("remove", path)
                self._folder(parts).now.pop(parts[-1])
        elif name == "os.rename":
            self.happens("name", path)
            target = self._parts(Path(str(arguments[1])))
            assert target is not None
            self._folder(target).now[target[-1]] = self._folder(parts).now.pop(parts[-1])
        else:
            raise AssertionError(f"{name} {path}: the model knows no such operation")

    def _open(self, path: Path, parts: tuple[str, ...], flags: int) -> None:
        if not flags & (os.O_WRONLY | os.O_RDWR):
            if path.is_file():
                self.happens("read", path)
            return
        if path.name != "lock" and not path.name.startswith(".partial-"):
            raise AssertionError(f"{path}: is written in place, not by ccfs/files/atomic.py")
        self.happens("create" if not path.exists() else "open", path)
        if not path.exists():
            self._folder(parts).now[parts[-1]] = File()

    def _writing(self, write):
        def written(descriptor: int, content: bytes) -> int:
            if self._of(descriptor) is None:
                return write(descriptor, content)
            before = self.has_failed
            try:
                self.happens("write")
            except BaseException:
                if not before:
                    write(descriptor, content[: len(content) // 2])
                raise
            return write(descriptor, content)

        return written

    def _syncing(self, descriptor: int) -> None:
        path = self._of(descriptor)
        if path is None:
            return
        self.happens("sync")
        node = self._node(self._parts(path) or ())
        if isinstance(node, Folder):
            node.durable = dict(node.now)
        elif isinstance(node, File):
            node.durable = path.read_bytes() if _watching is None else _unwatched(path)

    def _of(self, descriptor: int) -> Path | None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        return None if self._parts(path) is None else path

    def _parts(self, path: Path) -> tuple[str, ...] | None:
        try:
            return path.relative_to(self.top).parts
        except ValueError:
            return None

    def _folder(self, parts: tuple[str, ...]) -> Folder:
        node = self._node(parts[:-1])
        assert isinstance(node, Folder)
        return node

    def _node(self, parts: tuple[str, ...]) -> File | Folder:
        assert self.model is not None
        node: File | Folder = self.model
        for part in parts:
            assert isinstance(node, Folder)
            node = node.now[part]
        return node


_EVENTS = frozenset(
    [
        "open",
        "os.listdir",
        "os.scandir",
        "os.mkdir",
        "os.remove",
        "os.rmdir",
        "os.rename",
        "os.link",
        "os.symlink",
        "os.truncate",
    ]
)
_watching: Disk | None = None


def _watch(name: str, arguments: tuple[object, ...]) -> None:
    if _watching is not None:
        _watching.event(name, arguments)


sys.addaudithook(_watch)  # for good: a hook cannot be removed


def _unwatched(path: Path) -> bytes:
    global _watching
    held, _watching = _watching, None
    try:
        return path.read_bytes()
    finally:
        _watching = held


def can_happen(fault: Fault, operation: str) -> bool:
    """Return whether a fault can happen to an operation. A kill before reading is one before the next change."""
    if fault is Fault.FULL:
        return operation in ("create", "mkdir", "write", "sync", "name")
    return fault is Fault.ERROR or operation not in READING


Tree = dict[str, "bytes | Tree"]


def _survivors(folder: Folder, fault: Fault, coin: random.Random) -> Tree:
    names = folder.durable if fault is Fault.POWER else folder.now
    if fault is Fault.SOME:
        changed = [name for name in {**folder.durable, **folder.now} if _changed(folder, name)]
        kept = {name for name in changed if coin.random() < 0.5}
        names = {name: node for name, node in folder.now.items() if name not in changed or name in kept}
        names |= {name: node for name, node in folder.durable.items() if name in changed and name not in kept}
    return {
        name: _survivors(node, fault, coin) if isinstance(node, Folder) else node.durable
        for name, node in names.items()
    }


def _changed(folder: Folder, name: str) -> bool:
    return folder.now.get(name) is not folder.durable.get(name)


def _write_out(tree: Tree, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in tree.items():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            _write_out(content, folder / name)
