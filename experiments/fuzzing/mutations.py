"""Change files as an attacker or a bad disk would: bytes, values of JSON and TOML, cells of tables, arrays."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pyarrow as pa

from ccfs.files.digests import canonical_json
from ccfs.files.parquet import parquet_bytes, read_parquet

__all__ = ["arrays", "bytes_of", "json_of", "table", "toml"]

# Copied where they are used: a list in here that a later change fills would stay full for all later cases.
VALUES: tuple[object, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**13, 10**30, -(10**30),
    0.5, -0.5, -0.0, 1.0, 1e308, 5e-324, 1e-300, 1e17, "", "x", "x" * 10_000, "nan", "infinity", "-infinity", "1e999",
    "\x1b[2Jcertified", "safe\nclean. 0 faults", "\u202edetsurt", "../../../../etc/passwd", "/dev/zero", "a/b", "..",
    "os:system", "subprocess:Popen", "nominal", "0" * 64, "f" * 64, "ccfs/certificate/9", [], {}, [[]], [[[[[[]]]]]],
    [0] * 1000, {"a": {"a": {"a": {}}}}, [None], {"": ""}, "exact", "2^-20", "2^-61",
)  # fmt: skip


def bytes_of(rng: random.Random, content: bytes) -> bytes:
    """Flip, cut, insert, repeat or swap bytes."""
    changed = bytearray(content or b"x")
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        place, other = rng.randrange(len(changed)), rng.randrange(len(changed))
        first, last = min(place, other), max(place, other)
        kind = rng.randrange(8)
        if kind == 0:
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[place] = rng.choice((0, 1, 127, 128, 255))
        elif kind == 2:
            del changed[first : min(last, first + 64) + 1]
        elif kind == 3:
            changed[place:place] = rng.randbytes(rng.choice((1, 4, 64)))
        elif kind == 4:
            changed[place:place] = changed[first : min(last, first + 256)]
        elif kind == 5:
            changed[place], changed[other] = changed[other], changed[place]
        elif kind == 6:
            del changed[place:]
        else:
            changed[place : place + 8] = rng.choice((0, 2**31 - 1, 2**32 - 1, 2**63 - 1)).to_bytes(8, "little")
        changed = changed or bytearray(b"x")
    return bytes(changed)


def json_of(rng: random.Random, content: bytes) -> bytes:
    """Change values, keys or lists of a JSON document, and write it canonically again where that is possible."""
    document = json.loads(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        _change_place(rng, document)
    kind = rng.randrange(12)
    if kind == 0:
        return json.dumps(document, indent=1).encode()
    if kind == 1:
        depth = rng.choice((100, 5_000, 100_000))
        return content[:-2] + b',"deep":' + b"[" * depth + b"]" * depth + b"}\n"
    if kind == 2:
        return content[:-2] + b"," + content[1:]  # every key twice
    try:
        return canonical_json(document).encode() + b"\n"
    except ValueError:
        return json.dumps(document).encode()


def _change_place(rng: random.Random, document: object) -> None:
    places: list[tuple[object, object]] = []
    pending = [document]
    while pending:
        inner = pending.pop()
        keys = list(inner) if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
        for key in keys:
            places.append((inner, key))
            pending.append(inner[key])  # type: ignore[index]
    if not places:
        return
    (inner, key), (other, other_key) = rng.choice(places), rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0:
        del inner[key]  # type: ignore[attr-defined]
    elif kind == 1 and isinstance(inner, dict):
        inner[rng.choice(("more", "", "\x1b", str(key).upper()))] = deepcopy(rng.choice(VALUES))
    elif kind == 2 and isinstance(inner, dict):
        inner[str(rng.choice(VALUES))[:50]] = inner.pop(key)
    elif kind == 3 and inner is not other:
        first, second = json.dumps(inner[key]), json.dumps(other[other_key])  # type: ignore[index]
        inner[key], other[other_key] = json.loads(second), json.loads(first)  # type: ignore[index]
    elif kind == 4 and isinstance(inner[key], (int, float)) and not isinstance(inner[key], bool):  # type: ignore[index]
        number = inner[key]  # type: ignore[index]
        inner[key] = rng.choice((number + 1, number - 1, number * 10, -number, number / 3))  # type: ignore[index]
    elif kind == 5 and isinstance(inner, list):
        inner.extend(inner[: rng.choice((1, 100))])
    else:
        inner[key] = deepcopy(rng.choice(VALUES))  # type: ignore[index]


def toml(rng: random.Random, content: bytes) -> bytes:
    """Change a value, a key or a line of a TOML file."""
    lines = content.decode().split("\n")
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(len(lines))
        kind = rng.randrange(6)
        if kind == 0:
            del lines[place]
        elif kind == 1:
            lines.insert(place, rng.choice(lines))
        elif kind == 2:
            lines[place] = re.sub(r"-?\d+(\.\d+)?", lambda found: _toml_value(rng), lines[place], count=1)
        elif kind == 3:
            lines[place] = re.sub(r'"[^"]*"', lambda found: _toml_value(rng), lines[place], count=1)
        elif kind == 4:
            lines[place] = f"{lines[place].partition('=')[0]} = {_toml_value(rng)}"
        else:
            lines.insert(place, f"{rng.choice(('a', 'a.b.c', 'trials', 'horizon'))} = {_toml_value(rng)}")
        lines = lines or [""]
    if rng.randrange(20) == 0:
        lines.append("x = " + "[" * rng.choice((100, 20_000)))
    return "\n".join(lines).encode(errors="replace")


def _toml_value(rng: random.Random) -> str:
    value = rng.choice(VALUES)
    if isinstance(value, (list, dict)):
        return json.dumps(value).replace(":", "=")
    return "nan" if value is None else json.dumps(value)


def table(rng: random.Random, content: bytes) -> bytes:
    """Change a cell, rows, a column, its type or its name, or the metadata of a Parquet table."""
    read = read_parquet(content)
    kind = rng.randrange(9)
    name = rng.choice(read.column_names)
    place = read.schema.get_field_index(name)
    if kind == 0 and read.num_rows:
        return parquet_bytes(_with_cell(rng, read, name, place))
    if kind == 1:
        return parquet_bytes(read.drop_columns([name]))
    if kind == 2 and read.num_rows:
        rows = list(range(read.num_rows))
        first, second = rng.randrange(len(rows)), rng.randrange(len(rows))
        rows[first], rows[second] = rows[second], rows[first]
        return parquet_bytes(read.take(pa.array(rows)))
    if kind == 3:
        return parquet_bytes(read.slice(0, rng.randrange(read.num_rows + 1)))
    if kind == 4:
        return parquet_bytes(pa.concat_tables([read] * rng.choice((2, 10))).combine_chunks())
    if kind == 5:
        return parquet_bytes(read.rename_columns([f"{one}x" if one == name else one for one in read.column_names]))
    if kind == 6:
        other = pa.array(rng.choice(([1] * read.num_rows, ["a"] * read.num_rows, [None] * read.num_rows)))
        return parquet_bytes(read.set_column(place, name, other))
    if kind == 7:
        return parquet_bytes(read.replace_schema_metadata({"format": rng.choice(("", "ccfs/trace/9"))}))
    # A bomb: the same row very often.
    return parquet_bytes(
        read.take(pa.array(np.zeros(rng.choice((20_000, 600_000)), np.int64))) if read.num_rows else read
    )


def _with_cell(rng: random.Random, read: pa.Table, name: str, place: int) -> pa.Table:
    values = read.column(name).to_pylist()
    row = rng.randrange(len(values))
    old = values[row]
    choices: dict[type, tuple[object, ...]] = {
        int: (0, -1, 1, 2**31 - 1, (old or 0) + 1 if isinstance(old, int) else 0),
        float: (0.0, -1.0, 1e308, float("nan"), float("inf"), (old or 0.0) + 0.5 if isinstance(old, float) else 0.0),
        bool: (True, False),
        str: ("", "goal", "horizon", "abstain", "fallback", "\x1b[2J", "x" * 1000, "won"),
        bytes: (bytes(len(old)), b"\xff" * len(old)) if isinstance(old, bytes) else (b"",),
        list: ([], [1, 2], [-1] * 10),
        type(None): (None, 0, 1),
    }
    values[row] = rng.choice(choices[type(old)])
    try:
        return read.set_column(place, read.schema.field(name), pa.array(values, read.schema.field(name).type))
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return read


def arrays(rng: random.Random, content: bytes) -> bytes:
    """Change an array of an .npz file: its values, shape, type or name."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    name = rng.choice(sorted(found))
    array = found[name]
    makers: tuple[Callable[[], object], ...] = (
        lambda: array.astype(str),
        lambda: np.zeros((0,), np.float32),
        lambda: np.full(array.shape, np.nan, np.float32),
        lambda: array[..., None],
        lambda: np.zeros((3, 10**6), np.float32),
        lambda: np.array("\x1b[2J"),
        lambda: array.astype(np.float64) if array.dtype.kind == "f" else array,
    )
    kind = rng.randrange(len(makers) + 2)
    if kind < len(makers):
        found[name] = np.asarray(makers[kind]())
    elif kind == len(makers):
        del found[name]
    else:
        found["more"] = array
    out = io.BytesIO()
    np.savez(out, **found)
    return out.getvalue()
