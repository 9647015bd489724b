"""Write a file whole or not at all, and so that it survives a power cut."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

__all__ = ["PARTIAL", "write_atomically"]

PARTIAL = ".partial-"
"""The name of an unfinished file begins with this. Only a killed process leaves one behind."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file. A reader sees the old content or the new one. On failure the folder is as it was.

    The content, the file's name and new folders are on the disk when this returns.

    Raises:
        OSError: the file cannot be written.
    """
    _make_folder(path.parent)
    # Two writers never share a partial file. The random part comes last, so that no pattern for whole files
    # (`*.parquet`) finds a partial one.
    partial = path.with_name(f"{PARTIAL}{path.name}-{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


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
