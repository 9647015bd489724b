"""Write files, each whole or not at all, and so that they survive a power cut."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

__all__ = ["PARTIAL", "make_folder", "remove_together", "remove_tree", "settle", "write_atomically", "write_together"]

PARTIAL = ".partial-"
"""The name of an unfinished file begins with this. Only a killed process leaves one behind."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file. A reader sees the old content or the new one. On failure the folder is as it was.

    The content, the file's name and new folders are on the disk when this returns.

    Raises:
        OSError: the file cannot be written.
    """
    write_together({path: content})


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write several files, each as `write_atomically` does. No file gets its name before all contents are on the disk.

    This takes less time than one after the other, because a folder is synced once and the disk may order its work. On
    failure, some of the files may be there and others not.
    """
    folders = list(dict.fromkeys(path.parent for path in contents))
    for folder in folders:
        make_folder(folder)
    partials: dict[Path, Path] = {}
    with ExitStack() as opened:
        try:
            streams = []
            for path, content in contents.items():
                # Two writers never share a partial file. The random part comes last, so that no pattern for whole files
                # (`*.parquet`) finds a partial one.
                partial = path.with_name(f"{PARTIAL}{path.name}-{secrets.token_hex(4)}")
                streams.append(opened.enter_context(partial.open("xb")))
                partials[path] = partial
                _write(streams[-1].fileno(), content)
            for stream in streams:
                os.fsync(stream.fileno())
            opened.close()  # Windows renames no open file
            for path in contents:
                os.replace(partials[path], path)
        except BaseException as error:
            opened.close()
            for partial in partials.values():
                partial.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.filename is None:  # a full disk does not say which file it refused
                error.filename = str(next(iter(contents)))
            raise
    for folder in folders:
        _sync_folder(folder)


def remove_together(paths: Iterable[Path]) -> None:
    """Remove files and empty folders in the given order, so that they stay removed after a power cut.

    Those that are missing are left out, because another process may have removed them.
    """
    folders: dict[Path, None] = {}
    for path in paths:
        try:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
                folders.pop(path, None)
            else:
                path.unlink()
        except FileNotFoundError:
            continue
        folders[path.parent] = None
    for folder in folders:
        _sync_folder(folder)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, durably."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def settle(folder: Path) -> None:
    """Put on the disk every name in a folder, and its own.

    A process that was killed may have made a name and not put it on the disk. Whoever goes on from there would rely on
    a name that a power cut can still take away.
    """
    for place in folder.parents:
        if not os.access(place, os.W_OK):  # then no process of this user has made a name in it
            break
        _sync_folder(place)
    for place_below, _, _ in os.walk(folder, onerror=_raise):
        _sync_folder(Path(place_below))


def _raise(error: OSError) -> None:
    """Raise what `os.walk` would pass over, unless there is no such folder."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _write(descriptor: int, content: bytes) -> None:
    """Write all of a content. The system may take it in several pieces."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def _sync_folder(folder: Path) -> None:
    """Put a folder's list of names on the disk."""
    if os.name == "nt":  # Windows cannot open a folder. It keeps names in its own journal.
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder and answer EINVAL. There is nothing better to do.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Remove a folder of a process that has ended, however deep it is and whoever may look into it."""
    with suppress(OSError):
        while folders := [entry.path for entry in _inside(folder) if entry.is_dir(follow_symlinks=False)]:
            for below in folders:
                os.chmod(below, 0o700)
                for entry in _inside(below):
                    if entry.is_dir(follow_symlinks=False):
                        # It comes up one level, so that no path gets long.
                        os.chmod(entry.path, 0o700)
                        os.rename(entry.path, folder / secrets.token_hex(16))
                    else:
                        os.unlink(entry.path)
                os.rmdir(below)
    shutil.rmtree(folder, ignore_errors=True)


def _inside(folder: str | Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as listing:
        return list(listing)
