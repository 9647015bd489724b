"""Write files, each whole or not at all, and so that they survive a power cut."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

__all__ = ["PARTIAL", "write_atomically", "write_together"]

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
        _make_folder(folder)
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
                streams[-1].write(content)
                streams[-1].flush()
            for stream in streams:
                os.fsync(stream.fileno())
            opened.close()  # Windows renames no open file
            for path in contents:
                os.replace(partials[path], path)
        except BaseException:
            opened.close()
            for partial in partials.values():
                partial.unlink(missing_ok=True)
            raise
    for folder in folders:
        _sync_folder(folder)


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, durably."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


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
