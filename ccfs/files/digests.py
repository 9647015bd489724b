"""Digests of texts and files, and the one JSON text of a value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from ccfs.files.reading import opened

__all__ = ["canonical_json", "file_digest", "files_below", "folder_digest", "text_digest"]


def text_digest(text: str) -> str:
    """Return the SHA-256 (hex) of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path, *, most: int | None = None) -> str:
    """Return the SHA-256 (hex) of a plain file. Refuse one of more than `most` bytes, if that is given."""
    digest = hashlib.sha256()
    with opened(path, most=most) as (stream, size):
        # Not past the size that was checked, even if the file grows meanwhile.
        while size > 0 and (block := stream.read(min(size, 1 << 20))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


def folder_digest(folder: Path, *, most: int) -> str:
    """Return one SHA-256 (hex) over the names and the bytes of all files below a folder.

    Raises:
        ValueError: there are more than `most` files.
    """
    lines: list[str] = []
    for path in files_below(folder):
        if len(lines) == most:
            raise ValueError(f"{folder}: must hold at most {most} files.")
        lines.append(canonical_json([path.relative_to(folder).as_posix(), file_digest(path)]))
    return text_digest("\n".join(lines))


def files_below(
    folder: Path, enters: Callable[[Path], bool] = lambda folder: True, above: frozenset[Path] = frozenset()
) -> Iterator[Path]:
    """Yield the files below a folder in the order of their names. Links are followed, as whoever opens a file does.

    Args:
        folder: where to start.
        enters: which folders below it to enter. A link to a folder above is never entered.
        above: the folders in which this one stands, links resolved.
    """
    around = above | {folder.resolve()}
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if enters(path) and path.resolve() not in around:
                yield from files_below(path, enters, around)
        elif path.is_file():
            yield path


def canonical_json(value: object) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
