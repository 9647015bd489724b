"""Let one process at a time write to a folder."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from ccfs.files.atomic import make_folder, settle

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
    make_folder(folder)
    _refuse_other_files(folder / LOCK)
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
        settle(folder)
        yield
    finally:
        lock.release()


def _refuse_other_files(path: Path) -> None:
    """Refuse a lock that is no empty file of its own, because taking it could empty what it leads to."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "its lock is a link")
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "its lock is no plain file")
    if status.st_nlink > 1:
        raise OSError(errno.EMLINK, "its lock is a second name of another file")
