"""Store a study: rows as CSV or Parquet, a summary with the command that made it, and checksums over both."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ccfs.files.atomic import write_atomically
from ccfs.files.parquet import parquet_bytes, read_parquet

Table = dict[str, NDArray]
CHECKSUMS = "checksums.txt"
SUMMARY = "summary.json"


def write_table(path: Path, table: Mapping[str, NDArray]) -> None:
    """Write columns of one length; floats keep every digit."""
    columns = {name: np.asarray(column) for name, column in table.items()}
    if len({len(column) for column in columns.values()}) != 1:
        lengths = {name: len(column) for name, column in columns.items()}
        raise ValueError(f"columns of {path.name} must have one length, got {lengths}.")
    if path.suffix == ".parquet":
        write_atomically(path, parquet_bytes(pa.table(columns)))
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    write_atomically(path, text.getvalue().encode())


def read_table(path: Path) -> Table:
    """Read columns back, as integers, floats or strings."""
    if path.suffix == ".parquet":
        stored = read_parquet(path)
        return {name: np.asarray(stored.column(name).to_pylist()) for name in stored.column_names}
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = list(csv.reader(file))
    return {name: _typed([row[index] for row in rows]) for index, name in enumerate(header)}


def write_summary(folder: Path, summary: Mapping[str, object], *, command: str) -> None:
    """Write the summary, preceded by the command and the package versions that computed it."""
    packages = {name: version(name) for name in ("numpy", "scipy", "mpmath")}
    content = {"command": command, "packages": packages, **summary}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / SUMMARY, text.encode())


def read_summary(folder: Path) -> dict[str, object]:
    """Read the summary of a stored study."""
    content = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise TypeError(f"{SUMMARY} must hold an object, got {type(content).__name__}.")
    return content


def seal(folder: Path, names: tuple[str, ...]) -> None:
    """Write SHA-256 sums in the format of `sha256sum -c`."""
    lines = [f"{_digest(folder / name)}  {name}\n" for name in sorted(names)]
    write_atomically(folder / CHECKSUMS, "".join(lines).encode())


def broken_seals(folder: Path) -> list[str]:
    """Return the files whose bytes differ from their checksum; empty when all is well."""
    lines = (folder / CHECKSUMS).read_text(encoding="utf-8").splitlines()
    return [name for digest, name in (line.split("  ", 1) for line in lines) if digest != _digest(folder / name)]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _typed(values: list[str]) -> NDArray:
    for kind in (int, float):
        try:
            return np.asarray([kind(value) for value in values])
        except ValueError:
            continue
    return np.asarray(values)
