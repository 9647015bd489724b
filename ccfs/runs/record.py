"""Define the lines of a run's tables once. Columns, packed bytes, hash and reader follow from their fields.

A new column is one field here, and its value in `trial.py`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_type_hints

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ccfs.files.parquet import ROW_GROUP, ParquetSink

__all__ = [
    "Layout",
    "Lines",
    "LinesFile",
    "ShiftRow",
    "StepLines",
    "StepRow",
    "TrajectoryRow",
    "chain_start",
    "chain_step",
    "dimension_of",
    "layout_of",
    "lines_of",
    "observation_digest",
    "schema_of",
    "table_of",
]

FORMAT = "ccfs/trace/2"
# The first bytes of every chain. Change them when you change what is hashed.
_CHAIN = b"ccfs-chain-2"
OBSERVATION_BYTES = 16
CHAIN_BYTES = 32


class _Column(NamedTuple):
    """How one field is stored: its Arrow type, and its code for `struct`. A text has no code, since its length varies.

    Args:
        per_action: whether there is one column for each coordinate of an action.
        is_optional: whether a line may leave it empty.
        is_hashed: whether the hash chain covers it. The trial's number and the chain itself are left out.
    """

    arrow: pa.DataType
    code: str
    per_action: bool = False
    is_optional: bool = False
    is_hashed: bool = True

    def names(self, name: str, dimension: int) -> list[str]:
        return [f"{name}_{i}" for i in range(dimension)] if self.per_action else [name]


_INT64, _INT32 = _Column(pa.int64(), "q"), _Column(pa.int32(), "i")
_FLOAT, _FLAG, _TEXT = _Column(pa.float64(), "d"), _Column(pa.bool_(), "?"), _Column(pa.string(), "")
_VECTOR = _FLOAT._replace(per_action=True)
_DIGEST = _Column(pa.binary(OBSERVATION_BYTES), f"{OBSERVATION_BYTES}s")
_HASH = _Column(pa.binary(CHAIN_BYTES), f"{CHAIN_BYTES}s", is_hashed=False)


def _optional(column: _Column) -> _Column:
    return column._replace(is_optional=True)


class StepRow(NamedTuple):
    """One line of the public trace. `observation` is the digest of the observation after the step."""

    trial: Annotated[int, _INT64._replace(is_hashed=False)]
    t: Annotated[int, _INT32]
    center: Annotated[Sequence[float], _VECTOR]
    source: Annotated[str, _TEXT]
    index: Annotated[int, _INT32]  # type: ignore[assignment]  # hides `tuple.index`, which nobody uses here
    action: Annotated[Sequence[float] | None, _optional(_VECTOR)]
    skipped: Annotated[str, _TEXT]
    reward: Annotated[float, _FLOAT]
    cost: Annotated[float | None, _optional(_FLOAT)]
    goal: Annotated[bool, _FLAG]
    terminated: Annotated[bool, _FLAG]
    truncated: Annotated[bool, _FLAG]
    observation: Annotated[bytes, _DIGEST]
    chain: Annotated[bytes, _HASH]


class TrajectoryRow(NamedTuple):
    """One line of the trajectory table. `error` is the class of the exception if the trial crashed."""

    trial: Annotated[int, _INT64]
    reset_seed: Annotated[int, _INT64]
    outcome: Annotated[str, _TEXT]
    steps: Annotated[int, _INT32]
    total_reward: Annotated[float, _FLOAT]
    total_cost: Annotated[float | None, _optional(_FLOAT)]
    goal_step: Annotated[int | None, _optional(_INT32)]
    first_cost_step: Annotated[int | None, _optional(_INT32)]
    error: Annotated[str | None, _optional(_TEXT)]
    first_observation: Annotated[bytes, _DIGEST]
    chain: Annotated[bytes, _HASH]


class ShiftRow(NamedTuple):
    """One line of the private log."""

    trial: Annotated[int, _INT64]
    t: Annotated[int, _INT32]
    shift: Annotated[Sequence[float], _VECTOR]
    energy: Annotated[float, _FLOAT]
    spent: Annotated[float, _FLOAT]


Line = TypeVar("Line", bound="tuple[Any, ...]")


@lru_cache
def _columns(kind: type[Line]) -> dict[str, _Column]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


class Layout(Generic[Line]):
    """How the lines of one table are packed: fields of fixed width, little-endian and without gaps, texts apart.

    The hashed fields come first. Among them, single values stand before vectors and optional fields, each group in the
    order of the record. One byte before an optional field is 1 if the field has a value. If it has none, the byte and
    the field are zeros. After the hashed fields stand the chain value, the number of each text, and the other fields.
    """

    def __init__(self, kind: type[Line], dimension: int) -> None:
        self.kind, self.dimension, self.columns = kind, dimension, _columns(kind)
        fixed = [(name, column) for name, column in self.columns.items() if column.code and name != "chain"]
        fixed.sort(key=lambda item: (not item[1].is_hashed, item[1].per_action or item[1].is_optional))
        hashed = [(name, column) for name, column in fixed if column.is_hashed]
        others = [(name, column) for name, column in fixed if not column.is_hashed]
        self.texts = [name for name, column in self.columns.items() if not column.code]
        self.said = _picking([list(self.columns).index(name) for name in self.texts])
        """Return the texts of a line."""
        self.hashed_fields = self._packing(hashed)
        """Return the hashed fields of fixed width of a line."""
        self.other_fields = self._packing(others)
        """Return the fields that no hash covers, without the chain value."""
        chain = [("chain", self.columns["chain"])] if "chain" in self.columns else []
        arrow = [
            pa.field(part, column.arrow, nullable=column.is_optional)
            for name, column in self.columns.items()
            for part in column.names(name, dimension)
        ]
        self.schema = pa.schema(arrow, metadata={"format": FORMAT})
        first, last = ([part for item in items for part in self._parts(*item)] for items in ((*hashed, *chain), others))
        self.dtype = np.dtype([*first, *((name, "<u2") for name in self.texts), *last])

    def hashed(self, line: Line) -> bytes:
        """Return the bytes of a line that are hashed: the fields of fixed width, then each text after its length."""
        return self.hashed_fields(line) + b"".join([_after_length(text) for text in self.said(line)])

    def _packing(self, fields: list[tuple[str, _Column]]) -> Callable[[Line], bytes]:
        """Return the function that packs these fields of a line."""
        index = list(self.columns).index
        pack = struct.Struct("<" + "".join(self._code(column) for _, column in fields)).pack
        single = _picking([index(name) for name, column in fields if not (column.per_action or column.is_optional)])
        nothing = {False: (0,), True: (0,) * self.dimension}
        others = [
            (index(name), column.per_action, column.is_optional, nothing[column.per_action])
            for name, column in fields
            if column.per_action or column.is_optional
        ]

        def packed(line: Line) -> bytes:
            values: list[Any] = list(single(line))
            for place, per_action, is_optional, zeros in others:
                value = line[place]
                if is_optional:
                    values.append(value is not None)
                if value is None:
                    values.extend(zeros)
                elif per_action:
                    values.extend(value)
                else:
                    values.append(value)
            return pack(*values)

        return packed

    def _code(self, column: _Column) -> str:
        return "?" * column.is_optional + column.code * (self.dimension if column.per_action else 1)

    def _parts(self, name: str, column: _Column) -> list[tuple[Any, ...]]:
        code = f"V{column.code[:-1]}" if column.code.endswith("s") else f"<{column.code}"
        shape = ((self.dimension,),) if column.per_action else ()
        return [(_has(name), "?")] * column.is_optional + [(name, code, *shape)]


def _picking(places: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return the function that picks these fields of a line."""
    # `itemgetter` is quicker, but gives a tuple for two fields or more only.
    return itemgetter(*places) if len(places) > 1 else lambda line: tuple(line[place] for place in places)


def schema_of(kind: type[Line], dimension: int) -> pa.Schema:
    """Return the Arrow columns of a kind of line, for actions of `dimension` coordinates."""
    return layout_of(kind, dimension).schema


@lru_cache
def layout_of(kind: type[Line], dimension: int) -> Layout[Line]:
    """Return the layout of a kind of line, for actions of `dimension` coordinates."""
    return Layout(kind, dimension)


def _has(name: str) -> str:
    return f"has {name}"


def _after_length(text: str | None) -> bytes:
    content = b"" if text is None else text.encode()
    return struct.pack("<I", len(content)) + content


class Lines(Generic[Line]):
    """A table that grows line by line. Each line is packed at once, so memory holds bytes and no Python objects."""

    def __init__(self, kind: type[Line], dimension: int) -> None:
        self.layout: Layout[Line] = layout_of(kind, dimension)
        self._rows = bytearray()
        # Few texts differ, such as who acted and which fallbacks were skipped. So a line keeps the number of a text.
        self._texts: dict[str | None, int] = {}
        self._known: dict[tuple[str | None, ...], tuple[bytes, bytes]] = {}

    def __len__(self) -> int:
        return len(self._rows) // self.layout.dtype.itemsize

    def append(self, line: Line) -> None:
        """Add a line."""
        chain: bytes = getattr(line, "chain", b"")
        _, numbers = self._said(line)
        self._rows += b"".join((self.layout.hashed_fields(line), chain, numbers, self.layout.other_fields(line)))

    def drop(self, count: int) -> None:
        """Forget the first lines."""
        del self._rows[: count * self.layout.dtype.itemsize]

    def table(self, start: int = 0, stop: int | None = None) -> pa.Table:
        """Return the lines from `start` to before `stop` as a table."""
        size = self.layout.dtype.itemsize
        content = self._rows[start * size :] if stop is None else self._rows[start * size : stop * size]
        rows = np.frombuffer(content, dtype=self.layout.dtype)
        arrays = [array for name, column in self.layout.columns.items() for array in self._arrays(rows, name, column)]
        return pa.table(arrays, schema=self.layout.schema)

    def _said(self, line: Line) -> tuple[bytes, bytes]:
        """Return the texts of a line as they are hashed, and their numbers as they are packed."""
        texts = self.layout.said(line)
        known = self._known.get(texts)
        if known is None:
            # Two bytes per text: see `dtype` of the layout.
            numbers = [self._texts.setdefault(text, len(self._texts)) for text in texts]
            if len(self._texts) > 1 << 16:
                raise ValueError(f"a table must have at most {1 << 16} different texts, got more: {texts!r}.")
            hashed = b"".join([_after_length(text) for text in texts])
            known = self._known[texts] = hashed, struct.pack(f"<{len(texts)}H", *numbers)
        return known

    def _arrays(self, rows: NDArray[np.void], name: str, column: _Column) -> list[pa.Array]:
        # From buffers, which is quick for few lines. `pa.array` would first import pandas if it is installed.
        if not column.code:
            return [self._strings(rows[name])]
        is_there = _bits(rows[_has(name)]) if column.is_optional else None
        parts = rows[name].T if column.per_action else [rows[name]]
        contents = [_bits(part) if column.code == "?" else pa.py_buffer(part.tobytes()) for part in parts]
        return [pa.Array.from_buffers(column.arrow, len(rows), [is_there, content]) for content in contents]

    def _strings(self, numbers: NDArray[np.uint16]) -> pa.Array:
        texts = [b"" if text is None else text.encode() for text in self._texts]
        lengths = np.array([len(text) for text in texts], dtype=np.int32)
        offsets = np.concatenate([[0], np.cumsum(lengths[numbers])]).astype(np.int32)
        content = b"".join([texts[number] for number in numbers.tolist()])
        nothing = self._texts.get(None)
        is_there = None if nothing is None else _bits(numbers != nothing)
        return pa.Array.from_buffers(
            pa.string(), len(numbers), [is_there, pa.py_buffer(offsets.tobytes()), pa.py_buffer(content)]
        )


def _bits(flags: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little").tobytes())


class LinesFile(Generic[Line]):
    """The Parquet file of a table that still grows. Full row groups are written at once and leave memory."""

    def __init__(self, lines: Lines[Line]) -> None:
        self._lines = lines
        self._sink = ParquetSink(lines.layout.schema)
        self._is_begun = False

    def take(self) -> None:
        """Write all full row groups."""
        full = len(self._lines) - len(self._lines) % ROW_GROUP
        for start in range(0, full, ROW_GROUP):
            self._sink.write(self._lines.table(start, start + ROW_GROUP))
            self._is_begun = True
        self._lines.drop(full)

    def finish(self) -> bytes:
        """Write the rest and return the file."""
        self.take()
        if len(self._lines) or not self._is_begun:
            self._sink.write(self._lines.table())
        return self._sink.finish()


class StepLines(Lines[StepRow]):
    """The lines of a public trace, with the hash chain that links the steps of a trial."""

    def __init__(self, dimension: int) -> None:
        super().__init__(StepRow, dimension)

    def link(self, line: StepRow, previous: bytes) -> bytes:
        """Add a step, and return its chain value, which follows from the step and from the value before it."""
        fields = self.layout.hashed_fields(line)
        said, numbers = self._said(line)
        chain = hashlib.sha256(b"".join((previous, fields, said))).digest()
        self._rows += b"".join((fields, chain, numbers, self.layout.other_fields(line)))
        return chain


def observation_digest(observation: NDArray[Any]) -> bytes:
    """Return 16 bytes that stand for an observation: dtype, shape and content."""
    array = np.asarray(observation)
    return hashlib.sha256(_head(array.dtype.str, array.shape) + array.tobytes()).digest()[:OBSERVATION_BYTES]


@lru_cache
def _head(dtype: str, shape: tuple[int, ...]) -> bytes:
    return f"{dtype}{shape}".encode()


def chain_start(reset_seed: int, dimension: int, observation: bytes) -> bytes:
    """Return the chain's first value, from the reset seed, the action dimension and the first observation's digest."""
    return hashlib.sha256(_CHAIN + struct.pack("<qI", reset_seed, dimension) + observation).digest()


def chain_step(previous: bytes, line: StepRow) -> bytes:
    """Return the chain's next value, from every public field of a step."""
    return hashlib.sha256(previous + layout_of(StepRow, len(line.center)).hashed(line)).digest()


def table_of(kind: type[Line], lines: Iterable[Line], dimension: int = 0) -> pa.Table:
    """Return lines as a table."""
    made = Lines(kind, dimension)
    for line in lines:
        made.append(line)
    return made.table()


def lines_of(kind: type[Line], table: pa.Table) -> list[Line]:
    """Return the lines of a table as values."""
    dimension = dimension_of(kind, table)
    columns = [_values(table, name, column, dimension) for name, column in _columns(kind).items()]
    return [kind(*values) for values in zip(*columns, strict=True)]


def _values(table: pa.Table, name: str, column: _Column, dimension: int) -> list[Any]:
    parts = [table.column(part).to_pylist() for part in column.names(name, dimension)]
    if not column.per_action:
        return list(parts[0])
    return [None if values[0] is None else values for values in zip(*parts, strict=True)]


def dimension_of(kind: type[Line], table: pa.Table) -> int:
    """Return the number of coordinates of an action, from the columns of a table."""
    vectors = [name for name, column in _columns(kind).items() if column.per_action]
    return sum(name.startswith(f"{vectors[0]}_") for name in table.column_names) if vectors else 0
