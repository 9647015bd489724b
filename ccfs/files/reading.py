"""Read what a stranger may have made: plain files only, inside of their folder, and within limits."""

from __future__ import annotations

import io
import json
import math
import os
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "FACTOR",
    "Limits",
    "RefusedFileError",
    "entries",
    "limits",
    "opened",
    "read_array",
    "read_arrays",
    "read_bytes",
    "read_json",
    "read_text",
    "refuse_links",
    "too_much",
]

FACTOR = "CCFS_LIMITS"
"""The environment variable that multiplies the limits. `ccfs --limits` sets it, so that workers see it too."""
_MOST_DEPTH = 64
_DEEPEST_FOLDER = 16
_MOST_ARRAYS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a reader takes. The defaults keep every command on any file below about one gigabyte of memory.

    Args:
        document: bytes of a JSON or TOML file.
        file: bytes of any other file.
        columns: columns of a table.
        rows: rows of a table, and with it trials of a batch times steps of a trial.
        table: bytes of a table, or of the arrays of a file, after decompression.
        files: files and folders of a run.
        batches: planned batches of a protocol.
        horizon: steps of a trial.
    """

    document: int = 16 << 20
    file: int = 128 << 20
    columns: int = 4096
    rows: int = 500_000
    table: int = 256 << 20
    files: int = 1_000_000
    batches: int = 250_000
    horizon: int = 1_000_000

    def times(self, factor: float) -> Limits:
        """Return limits that are larger by a factor."""
        return replace(self, **{part.name: int(getattr(self, part.name) * factor) for part in fields(self)})


class RefusedFileError(ValueError):
    """A file that is not read: it is no plain file, it is larger than the limits, or it is damaged."""


def limits() -> Limits:
    """Return the limits that hold now."""
    return _limits(os.environ.get(FACTOR, "1"))


@lru_cache(maxsize=1)  # asked at every file
def _limits(text: str) -> Limits:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1.0 <= factor <= 1e6:
        raise ValueError(f"`--limits` ({FACTOR}) must be a number in [1, 1000000], got {text!r}.")
    return Limits().times(factor)


def too_much(where: object, what: str, got: int, most: int) -> RefusedFileError:
    """Return the error for a file or a plan that exceeds a limit."""
    times = -(-got // max(most, 1))
    return RefusedFileError(
        f"{where}: has {got:,} {what}, more than {most:,}. If that is right, read it with `ccfs --limits {times} ...`."
    )


def refuse_links(root: Path, name: str) -> Path:
    """Return the path of a name below a folder. Refuse it if a link, or a way out of the folder, is on the way.

    The folder itself is the user's own choice, so it may be reached through links. The last part may be absent.
    """
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts or "\0" in name:
        raise RefusedFileError(f"{root}: must hold its own files only, got the name {name!r}.")
    # As texts: this runs for every file of every batch, and a `Path` takes longer to make than to ask for its status.
    path = os.fspath(root)
    for part in parts:
        path = os.path.join(path, part)
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            break
        if stat.S_ISLNK(mode):
            raise RefusedFileError(f"{path}: must be a plain file or folder, got a link.")
    return root.joinpath(*parts)


def read_bytes(path: Path, *, most: int | None = None) -> bytes:
    """Return the content of a plain file.

    Raises:
        RefusedFileError: the path is no plain file, or it is larger than `most` bytes (default: `Limits.file`).
        OSError: the file cannot be read.
    """
    with opened(path, most=limits().file if most is None else most) as (stream, size):
        return stream.read(size)


def read_text(path: Path) -> str:
    """Return the content of a plain text file in UTF-8, such as a TOML file."""
    try:
        return read_bytes(path, most=limits().document).decode()
    except UnicodeDecodeError as error:
        raise RefusedFileError(f"{path}: must be a text in UTF-8: {error}.") from None


def read_json(content: bytes, where: object) -> object:
    """Return the value of a JSON text. Refuse a repeated key, NaN and infinity, and deep nesting.

    `where` names the file in errors.
    """
    if len(content) > limits().document:
        raise too_much(where, "bytes", len(content), limits().document)
    try:
        value: object = json.loads(
            content.decode(), object_pairs_hook=_without_repeats, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or no UTF-8
        raise RefusedFileError(f"{where}: cannot be read as JSON: {error}.") from None
    pending = [(value, 1)]
    while pending:
        inner, depth = pending.pop()
        if depth > _MOST_DEPTH:
            raise RefusedFileError(f"{where}: must be JSON of at most {_MOST_DEPTH} levels, got more.")
        if isinstance(inner, dict):
            pending.extend((part, depth + 1) for part in inner.values())
        elif isinstance(inner, list):
            pending.extend((part, depth + 1) for part in inner)
    return value


def read_arrays(source: Path | bytes, where: object) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of an .npz file, whose headers are checked before anything is unpacked. Nothing is unpickled.

    `where` names the file in errors.
    """
    import numpy as np

    content = source if isinstance(source, bytes) else read_bytes(source)
    most = limits().table
    # The mark of an entry in the table of contents. `zipfile` makes an object of each one at once.
    if content.count(b"PK\x01\x02") > _MOST_ARRAYS:
        raise RefusedFileError(f"{where}: must hold at most {_MOST_ARRAYS} arrays, got more.")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            total = sum(member.file_size for member in members)
            if total > most:
                raise too_much(where, "bytes of arrays", total, most)
            if len({member.filename for member in members}) != len(members):
                raise RefusedFileError(f"{where}: must name each of its arrays once.")
            for member in members:
                with archive.open(member) as stream:
                    _refuse_large_header(stream, member.file_size, f"{where}: {member.filename!r}")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except RefusedFileError:
        raise
    # A forged archive makes zipfile and numpy raise many kinds of errors.
    except Exception as error:
        raise RefusedFileError(f"{where}: must be a whole .npz file of plain arrays: {error}.") from None


def read_array(content: bytes, where: object) -> NDArray[np.generic]:
    """Return the array of an .npy file, whose header is checked first. Nothing is unpickled."""
    import numpy as np

    stream = io.BytesIO(content)
    _refuse_large_header(stream, len(content), where)
    stream.seek(0)
    try:
        array: NDArray[np.generic] = np.load(stream, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise RefusedFileError(f"{where}: must be a whole .npy file: {error}.") from None
    return array


def entries(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the name and the status of everything below a folder, sorted. Links are named and not followed."""
    most, found = limits().files, 0
    pending = [("", 0)]
    while pending:
        below, depth = pending.pop()
        with os.scandir(root / below) as listing:
            inside = sorted(listing, key=lambda entry: entry.name, reverse=True)
        found += len(inside)
        if found > most:
            raise too_much(root, "files", found, most)
        if depth > _DEEPEST_FOLDER:
            raise RefusedFileError(f"{root}: must have folders of at most {_DEEPEST_FOLDER} levels, got more.")
        names = [(f"{below}/{entry.name}" if below else entry.name, entry) for entry in inside]
        pending += [(name, depth + 1) for name, entry in names if entry.is_dir(follow_symlinks=False)]
        for name, entry in reversed(names):
            yield name, entry.stat(follow_symlinks=False)


@contextmanager
def opened(path: Path, *, most: int | None) -> Iterator[tuple[BinaryIO, int]]:
    """Open a plain file of at most `most` bytes and give its size. A pipe or a device is refused at once."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    # Asked before it is opened too, because opening some devices does something.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise RefusedFileError(f"{path}: must be a plain file.")
    with os.fdopen(os.open(path, flags), "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise RefusedFileError(f"{path}: must be a plain file.")
        if most is not None and status.st_size > most:
            raise too_much(path, "bytes", status.st_size, most)
        yield stream, status.st_size


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it repeats a key, so that readers could see different values")
    return found


def _refuse_constant(text: str) -> object:
    raise ValueError(f"it holds {text}, which is no number of JSON")


def _refuse_large_header(stream: IO[bytes], most: int, where: object) -> None:
    """Refuse an array whose header promises more than `most` bytes. Numpy would allocate what it promises."""
    import numpy as np

    try:
        version = np.lib.format.read_magic(stream)  # type: ignore[no-untyped-call]
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, _, kind = read(stream)  # type: ignore[no-untyped-call]
    except (KeyError, ValueError) as error:
        raise RefusedFileError(f"{where}: must be a plain array: {error}.") from None
    size = math.prod(shape, start=kind.itemsize)
    if kind.hasobject or not kind.itemsize or min(shape, default=0) < 0 or size > most:
        raise RefusedFileError(f"{where}: must be a plain array of at most {most:,} bytes.")
