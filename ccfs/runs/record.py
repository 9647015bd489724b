"""Define the lines of a run's tables once. Columns, packed bytes, hash and reader follow from their fields.

A new column is one field here, and its value in `trial.py`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, cast, get_type_hints

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ccfs.files.parquet import ROW_GROUP, ParquetSink
from ccfs.runtime.wrapper import Widths

__all__ = [
    "NO_VECTORS",
    "Layout",
    "Lines",
    "LinesFile",
    "ShiftRow",
    "StepLines",
    "StepRow",
    "TrajectoryRow",
    "chain_start",
    "chain_step",
    "has_columns",
    "layout_of",
    "lines_of",
    "observation_digest",
    "schema_of",
    "table_of",
    "widths_of",
]

FORMAT = "ccfs/trace/3"
# The first bytes of every chain. Change them when you change what is hashed.
_CHAIN = b"ccfs-chain-2"
OBSERVATION_BYTES = 16
CHAIN_BYTES = 32


class _Column(NamedTuple):
    """How one field is stored: its Arrow type, and its code for `struct`. A text has no code, since its length varies.

    Args:
        vector: the field of `Widths` that says how many columns it has, one per coordinate. None is for a single value.
        is_optional: whether a line may leave it empty.
        is_hashed: whether the hash chain covers it. The trial's number and the chain itself are left out.
        needs_sensor: whether it is there with a sensor stage only.
    """

    arrow: pa.DataType
    code: str
    vector: Literal["center", "action", "sensor"] | None = None
    is_optional: bool = False
    is_hashed: bool = True
    needs_sensor: bool = False

    def names(self, name: str, widths: Widths) -> list[str]:
        return [name] if self.vector is None else [f"{name}_{i}" for i in range(self.width(widths))]

    def width(self, widths: Widths) -> int:
        return 1 if self.vector is None else int(getattr(widths, self.vector))

    def is_in(self, widths: Widths) -> bool:
        return self.width(widths) > 0 and (widths.sensor > 0 or not self.needs_sensor)


_INT64, _INT32 = _Column(pa.int64(), "q"), _Column(pa.int32(), "i")
_FLOAT, _FLAG, _TEXT = _Column(pa.float64(), "d"), _Column(pa.bool_(), "?"), _Column(pa.string(), "")
_CENTER, _ACTION, _SENSOR = (_FLOAT._replace(vector=name) for name in ("center", "action", "sensor"))
_DIGEST = _Column(pa.binary(OBSERVATION_BYTES), f"{OBSERVATION_BYTES}s")
_HASH = _Column(pa.binary(CHAIN_BYTES), f"{CHAIN_BYTES}s", is_hashed=False)


def _optional(column: _Column) -> _Column:
    return column._replace(is_optional=True)


class StepRow(NamedTuple):
    """One line of the public trace. `observation` is the digest of the true observation after the step.

    `reading` is the digest of what was read before the step. It is there with a sensor stage only.
    """

    trial: Annotated[int, _INT64._replace(is_hashed=False)]
    t: Annotated[int, _INT32]
    center: Annotated[Sequence[float], _CENTER]
    source: Annotated[str, _TEXT]
    index: Annotated[int, _INT32]  # type: ignore[assignment]  # hides `tuple.index`, which nobody uses here
    action: Annotated[Sequence[float] | None, _optional(_ACTION)]
    skipped: Annotated[str, _TEXT]
    reward: Annotated[float, _FLOAT]
    cost: Annotated[float | None, _optional(_FLOAT)]
    goal: Annotated[bool, _FLAG]
    terminated: Annotated[bool, _FLAG]
    truncated: Annotated[bool, _FLAG]
    observation: Annotated[bytes, _DIGEST]
    chain: Annotated[bytes, _HASH]
    reading: Annotated[bytes | None, _DIGEST._replace(needs_sensor=True)] = None


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
    """One line of the private log: the shifts of one step. One that the attack did not make is empty.

    A step that was not recorded, because nobody decided or the environment failed, may have a line too.
    """

    trial: Annotated[int, _INT64]
    t: Annotated[int, _INT32]
    shift: Annotated[Sequence[float] | None, _optional(_CENTER)]
    energy: Annotated[float, _FLOAT]
    spent: Annotated[float, _FLOAT]
    sensor: Annotated[Sequence[float] | None, _optional(_SENSOR)] = None


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

    def __init__(self, kind: type[Line], widths: Widths) -> None:
        self.kind, self.widths, self._fields = kind, widths, list(_columns(kind))
        self.columns = {name: column for name, column in _columns(kind).items() if column.is_in(widths)}
        fixed = [(name, column) for name, column in self.columns.items() if column.code and name != "chain"]
        fixed.sort(key=lambda item: (not item[1].is_hashed, bool(item[1].vector) or item[1].is_optional))
        hashed = [(name, column) for name, column in fixed if column.is_hashed]
        others = [(name, column) for name, column in fixed if not column.is_hashed]
        self.texts = [name for name, column in self.columns.items() if not column.code]
        self.said = _picking([self._fields.index(name) for name in self.texts])
        """Return the texts of a line."""
        self.hashed_fields = self._packing(hashed)
        """Return the hashed fields of fixed width of a line."""
        self.other_fields = self._packing(others)
        """Return the fields that no hash covers, without the chain value."""
        chain = [("chain", self.columns["chain"])] if "chain" in self.columns else []
        arrow = [
            pa.field(part, column.arrow, nullable=column.is_optional)
            for name, column in self.columns.items()
            for part in column.names(name, widths)
        ]
        said = " ".join(str(width) for width in widths)
        self.schema = pa.schema(arrow, metadata={"format": FORMAT, "widths": said})
        first, last = ([part for item in items for part in self._parts(*item)] for items in ((*hashed, *chain), others))
        self.dtype = np.dtype([*first, *((name, "<u2") for name in self.texts), *last])

    def hashed(self, line: Line) -> bytes:
        """Return the bytes of a line that are hashed: the fields of fixed width, then each text after its length."""
        return self.hashed_fields(line) + b"".join([_after_length(text) for text in self.said(line)])

    def _packing(self, fields: list[tuple[str, _Column]]) -> Callable[[Line], bytes]:
        """Return the function that packs these fields of a line."""
        pack = struct.Struct("<" + "".join(self._code(column) for _, column in fields)).pack
        values = ", ".join(self._value(self._fields.index(name), column) for name, column in fields)
        # Made from a text, as a NamedTuple makes its own methods: a loop over the fields takes twice as long, and this
        # runs at every step. The text holds numbers of fields and nothing from outside.
        return cast(Callable[[Line], bytes], eval(f"lambda line: pack({values})", {"pack": pack}))

    def _value(self, place: int, column: _Column) -> str:
        """Return the text of an expression for the values of one field."""
        value = f"line[{place}]"
        if not column.is_optional:
            return value if column.vector is None else f"*{value}"
        nothing = b"" if column.code.endswith("s") else 0
        if column.vector is None:
            return f"{value} is not None, {nothing!r} if {value} is None else {value}"
        return f"{value} is not None, *({(nothing,) * column.width(self.widths)!r} if {value} is None else {value})"

    def _code(self, column: _Column) -> str:
        return "?" * column.is_optional + column.code * column.width(self.widths)

    def _parts(self, name: str, column: _Column) -> list[tuple[Any, ...]]:
        code = f"V{column.code[:-1]}" if column.code.endswith("s") else f"<{column.code}"
        shape = ((column.width(self.widths),),) if column.vector else ()
        return [(_has(name), "?")] * column.is_optional + [(name, code, *shape)]


def _picking(places: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return the function that picks these fields of a line."""
    # `itemgetter` is quicker, but gives a tuple for two fields or more only.
    return itemgetter(*places) if len(places) > 1 else lambda line: tuple(line[place] for place in places)


def schema_of(kind: type[Line], widths: Widths) -> pa.Schema:
    """Return the Arrow columns of a kind of line."""
    return layout_of(kind, widths).schema


@lru_cache
def layout_of(kind: type[Line], widths: Widths) -> Layout[Line]:
    """Return the layout of a kind of line."""
    return Layout(kind, widths)


def _has(name: str) -> str:
    return f"has {name}"


def _after_length(text: str | None) -> bytes:
    content = b"" if text is None else text.encode()
    return struct.pack("<I", len(content)) + content


class Lines(Generic[Line]):
    """A table that grows line by line. Each line is packed at once, so memory holds bytes and no Python objects."""

    def __init__(self, kind: type[Line], widths: Widths) -> None:
        self.layout: Layout[Line] = layout_of(kind, widths)
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
        parts = rows[name].T if column.vector else [rows[name]]
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

    def __init__(self, widths: Widths) -> None:
        super().__init__(StepRow, widths)
        # Looked up once, because `link` runs at every step.
        self._hashed_fields, self._other_fields = self.layout.hashed_fields, self.layout.other_fields
        self._said_of = self.layout.said

    def link(self, line: StepRow, previous: bytes) -> bytes:
        """Add a step, and return its chain value, which follows from the step and from the value before it."""
        fields = self._hashed_fields(line)
        said, numbers = self._known.get(self._said_of(line)) or self._said(line)
        chain = hashlib.sha256(previous + fields + said).digest()
        self._rows += fields + chain + numbers + self._other_fields(line)
        return chain


def observation_digest(observation: NDArray[Any]) -> bytes:
    """Return 16 bytes that stand for an observation: dtype, shape and content."""
    array = observation if type(observation) is np.ndarray else np.asarray(observation)
    return hashlib.sha256(_head(array.dtype, array.shape) + array.tobytes()).digest()[:OBSERVATION_BYTES]


@lru_cache  # asked at every step
def _head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    return f"{dtype.str}{shape}".encode()


def chain_start(reset_seed: int, widths: Widths, observation: bytes) -> bytes:
    """Return the chain's first value, from the reset seed, the widths and the first observation's digest.

    One width is hashed if center and action have the same and there is no sensor stage. Otherwise all three are.
    """
    is_plain = widths.center == widths.action and not widths.sensor
    sizes = (widths.center,) if is_plain else widths
    return hashlib.sha256(_CHAIN + struct.pack(f"<q{len(sizes)}I", reset_seed, *sizes) + observation).digest()


def chain_step(previous: bytes, line: StepRow, widths: Widths) -> bytes:
    """Return the chain's next value, from every public field of a step."""
    return hashlib.sha256(previous + layout_of(StepRow, widths).hashed(line)).digest()


_WIDEST = 1_000_000
NO_VECTORS = Widths(center=0, action=0)


def table_of(kind: type[Line], lines: Iterable[Line], widths: Widths = NO_VECTORS) -> pa.Table:
    """Return lines as a table."""
    made = Lines(kind, widths)
    for line in lines:
        made.append(line)
    return made.table()


def lines_of(kind: type[Line], table: pa.Table) -> list[Line]:
    """Return the lines of a table as values. A field without a column is None."""
    widths = widths_of(table)
    nothing = [None] * len(table)
    columns = [
        _values(table, name, column, widths) if column.is_in(widths) else nothing
        for name, column in _columns(kind).items()
    ]
    return [kind(*values) for values in zip(*columns, strict=True)]


def _values(table: pa.Table, name: str, column: _Column, widths: Widths) -> list[Any]:
    parts = [table.column(part).to_pylist() for part in column.names(name, widths)]
    if column.vector is None:
        return list(parts[0])
    return [None if values[0] is None else values for values in zip(*parts, strict=True)]


def has_columns(kind: type[Line], schema: pa.Schema) -> bool:
    """Return whether columns are those of a kind of line, for the widths that their metadata says."""
    widths = widths_of(schema.empty_table())
    vectors = [column for column in _columns(kind).values() if column.vector is not None]
    # Otherwise a stranger's file could make us list a million columns that it does not have.
    if sum(column.width(widths) for column in vectors) > len(schema) or not (vectors or widths == NO_VECTORS):
        return False
    return bool(schema.equals(schema_of(kind, widths), check_metadata=True))


def widths_of(table: pa.Table) -> Widths:
    """Return the widths of a table's vectors: from its metadata, in which every table says them."""
    said = (table.schema.metadata or {}).get(b"widths", b"")[:64]
    try:
        center, action, sensor = (int(part) for part in said.split())
    except ValueError:
        raise ValueError(f"a table must say its three widths in its metadata, got {said!r}.") from None
    # A stranger's file could name any number, and a list of so many columns would fill the memory.
    if not (0 <= center <= _WIDEST and 0 <= action <= _WIDEST and 0 <= sensor <= _WIDEST):
        raise ValueError(f"a table must have widths of at most {_WIDEST}, got {said!r}.")
    return Widths(center, action, sensor)
