"""Let one process at a time write to a folder."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

__all__ = ["LOCK", "LockedError", "locked"]

LOCK = "lock"
"""The name of the lock file in a folder. The file stays. The system drops the lock when its process ends."""


class LockedError(Exception):
    """Another process holds the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, or refuse at once. A missing folder is made. A killed process releases its lock.

    Raises:
        LockedError: another process holds the folder.
        OSError: the folder cannot be made or written, or its file system has no locks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / LOCK).is_symlink():  # opening it could empty the file that it points to
        raise OSError(errno.ELOOP, "its lock is a link")
    lock: filelock.BaseFileLock = filelock.FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        raise LockedError(f"{folder}: is held by another process.") from None
    try:
        # Without that system call, filelock uses the existence of a file as the lock. A killed process would then leave
        # the folder locked for ever.
        if isinstance(lock, filelock.SoftFileLock):
            raise OSError(errno.ENOSYS, "its file system knows no locks")
        yield
    finally:
        lock.release()
