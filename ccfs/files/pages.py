"""Read the footer and the page headers of a Parquet file, so that its sizes are known before anybody unpacks it.

Arrow allocates what footer and headers say. Its Python binding cannot pass on all that it throws while it tells them,
and then the process aborts. So they are read here. They are structures of Thrift's compact protocol. Whatever no honest
writer writes is refused, so that nothing has two readings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

__all__ = ["Chunk", "Footer", "LongListError", "Page", "PageError", "footer", "pages"]

_BOOLEAN, _BYTE, _INT16, _INT32, _INT64, _BINARY, _LIST, _STRUCT = 1, 3, 4, 5, 6, 8, 9, 12
_BITS = {_INT16: 16, _INT32: 32, _INT64: 64}
# A file of nothing but headers would take minutes to read. So a page counts some bytes at least, and a column has at
# most so many pages. Writers put thousands of values into one.
_LEAST = 4096
_MOST_PAGES = 20_000
_DEEPEST = 8
_FEW, _MANY = 16, 4096
# From here on, the first byte of a field has a step to its number, and another byte follows a byte of a number. A list
# of this length has its length in a number of its own.
_STEP, _MORE, _LONG = 16, 128, 15
_UNKNOWN = (-1, None)

# A field's kind, and for a list or a structure what is inside. A list also has a greatest length.
_Fields: TypeAlias = "dict[int, tuple[int, _Fields | tuple[int, int, _Fields | None] | None]]"


def _plain(kind: int, *fields: int) -> _Fields:
    return dict.fromkeys(fields, (kind, None))


def _struct(inner: _Fields) -> tuple[int, _Fields]:
    return _STRUCT, inner


def _list(most: int, kind: int, inner: _Fields | None = None) -> tuple[int, tuple[int, int, _Fields | None]]:
    return _LIST, (most, kind, inner)


# The names are those of parquet.thrift. Left out are fields that Arrow does not write unless it is asked to, such as
# keys, indices, Bloom filters and other files.
_STATISTICS: _Fields = _plain(_BINARY, 1, 2, 5, 6) | _plain(_INT64, 3, 4) | _plain(_BOOLEAN, 7, 8)
_DATA: _Fields = _plain(_INT32, 1, 2, 3, 4) | {5: _struct(_STATISTICS)}
_DICTIONARY: _Fields = _plain(_INT32, 1, 2) | _plain(_BOOLEAN, 3)
_DATA_2: _Fields = _plain(_INT32, 1, 2, 3, 4, 5, 6) | _plain(_BOOLEAN, 7) | {8: _struct(_STATISTICS)}
_HEADER: _Fields = _plain(_INT32, 1, 2, 3, 4) | {5: _struct(_DATA), 7: _struct(_DICTIONARY), 8: _struct(_DATA_2)}
# By the kind of page: the field of its structure, and in there the field of the encoding.
_OF_KIND = {0: (5, 2), 2: (7, 2), 3: (8, 4)}
# STRING, LIST and INTEGER are the logical types of our columns.
_LOGICAL: _Fields = {1: _struct({}), 3: _struct({}), 10: _struct(_plain(_BYTE, 1) | _plain(_BOOLEAN, 2))}
_ELEMENT: _Fields = _plain(_INT32, 1, 2, 3, 5, 6, 9) | _plain(_BINARY, 4) | {10: _struct(_LOGICAL)}
_LEVELS: _Fields = _plain(_INT64, 1) | {2: _list(_FEW, _INT64), 3: _list(_FEW, _INT64)}
_COLUMN: _Fields = {
    **_plain(_INT32, 1, 4),
    **_plain(_INT64, 5, 6, 7, 9, 11),
    2: _list(_FEW, _INT32),
    3: _list(_FEW, _BINARY),
    12: _struct(_STATISTICS),
    13: _list(_FEW, _STRUCT, _plain(_INT32, 1, 2, 3)),
    16: _struct(_LEVELS),
}
_CHUNK: _Fields = _plain(_INT64, 2) | {3: _struct(_COLUMN)}
_PAIR: _Fields = _plain(_BINARY, 1, 2)
_ORDER: _Fields = {1: _struct({}), 2: _struct({})}


@lru_cache(maxsize=1)  # asked for every file
def _file(columns: int, groups: int) -> _Fields:
    group = _plain(_INT64, 2, 3, 5, 6) | _plain(_INT16, 7) | {1: _list(columns, _STRUCT, _CHUNK)}
    return {
        **_plain(_INT32, 1),
        **_plain(_INT64, 3),
        **_plain(_BINARY, 6),
        2: _list(columns, _STRUCT, _ELEMENT),
        4: _list(groups, _STRUCT, group),
        5: _list(_MANY, _STRUCT, _PAIR),
        7: _list(columns, _STRUCT, _ORDER),
    }


_MAKER = b"parquet-cpp-arrow version "
_BYTE_ARRAY = 6


class PageError(ValueError):
    """A footer or a page header that no honest writer writes."""


class LongListError(PageError):
    """A footer lists more than it may."""

    def __init__(self, length: int, most: int) -> None:
        super().__init__(f"a header has a list of {length:,} items, more than {most:,}")
        self.length, self.most = length, most


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page: its size after unpacking, its number of values, their encoding, and whether it is a dictionary.

    The size is at least eight bytes for each value. Encodings and levels of lists can state a hundred million values in
    a few bytes, and Arrow keeps about that much for each value while it reads.
    """

    unpacked: int
    values: int
    encoding: int
    is_dictionary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The part of a column that is in one group of rows: where its pages are, and how many values they hold."""

    column: str
    start: int
    length: int
    values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """What a file states about itself: its number of rows, its columns, and their chunks."""

    rows: int
    columns: tuple[str, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """A column of the file itself. A list is one too, below its name."""

    path: list[bytes]
    kind: int
    definitions: int
    repetitions: int


def footer(content: bytes, *, columns: int, groups: int) -> Footer:
    """Return what a footer states.

    Args:
        content: the footer alone.
        columns: the greatest number of columns, with the levels of lists.
        groups: the greatest number of groups of rows.
    """
    head, place = _read(content, 0, _file(columns, groups))
    if place != len(content):
        raise PageError("the footer is longer than what it holds")
    if not _binary(head, 6).startswith(_MAKER):
        raise PageError("it was not written by Arrow")
    elements, parts, rows = _items(head, 2), _items(head, 4), _whole(head, 3)
    leaves = _leaves(elements)
    chunks = [chunk for part in parts for chunk in _chunks(part, leaves)]
    if sum(_whole(part, 3) for part in parts) != rows:
        raise PageError("its groups have another number of rows")
    names = dict.fromkeys(leaf.path[0].decode() for leaf in leaves)
    return Footer(rows=rows, columns=tuple(names), chunks=tuple(chunks))


def pages(content: memoryview, start: int, length: int) -> Iterator[Page]:
    """Yield the pages of a column chunk, which are `length` bytes from `start` on."""
    end = start + length
    if not 0 <= start <= end <= len(content):
        raise PageError("a column lies outside of the file")
    place, count = start, 0
    while place < end:
        count += 1
        if count > _MOST_PAGES:
            raise PageError(f"a column has more than {_MOST_PAGES:,} pages")
        head, place = _read(content, place, _HEADER)
        unpacked, packed, kind = _whole(head, 2), _whole(head, 3), _whole(head, 1)
        own, of_encoding = _OF_KIND.get(kind, (0, 0))
        inner = head.get(own)
        if not isinstance(inner, dict) or sum(field in head for field, _ in _OF_KIND.values()) != 1:
            raise PageError(f"a page is of the kind {kind}")
        encoding, values = _whole(inner, of_encoding), _whole(inner, 1)
        size = max(unpacked, 8 * values, _LEAST)
        yield Page(unpacked=size, values=values, encoding=encoding, is_dictionary=kind == 2)
        place += packed
    if place != end:
        raise PageError("a page is longer than its column")


def _leaves(elements: list[dict[int, object]]) -> list[_Leaf]:
    """Return the columns. An element with children is followed by them."""
    if not elements:
        raise PageError("it has no columns")
    leaves = []
    # For each open element: children still to come, path, and the levels so far.
    path: list[bytes] = []
    above = [[_whole(elements[0], 5), 0, 0]]
    for element in elements[1:]:
        while above and not above[-1][0]:
            above.pop()
            path = path[:-1]
        if not above or len(above) > _DEEPEST:
            raise PageError("its columns are nested in a wrong way")
        above[-1][0] -= 1
        name, repetition = _binary(element, 4), _whole(element, 3)
        # Arrow separates the names of a path by dots.
        if repetition > 2 or not name or b"." in name or not _is_utf8(name):
            raise PageError(f"it has a column {name!r}")
        levels = above[-1][1] + (repetition > 0), above[-1][2] + (repetition == 2)
        if children := _optional(element, 5):
            above.append([children, *levels])
            path = [*path, name]
        else:
            kind = _whole(element, 1)
            leaves.append(_Leaf(path=[*path, name], kind=kind, definitions=levels[0], repetitions=levels[1]))
    if any(left for left, _, _ in above):
        raise PageError("its columns are nested in a wrong way")
    return leaves


def _chunks(group: dict[int, object], leaves: list[_Leaf]) -> Iterator[Chunk]:
    """Yield the chunks of one group of rows."""
    parts, rows = _items(group, 1), _whole(group, 3)
    if len(parts) != len(leaves):
        raise PageError("a group has another number of columns")
    for part, leaf in zip(parts, leaves, strict=True):
        column = part.get(3)
        if not isinstance(column, dict) or column.get(3) != leaf.path or column.get(1) != leaf.kind:
            raise PageError("a group has other columns")
        name = leaf.path[0].decode()
        values, data, dictionary = _whole(column, 5), _whole(column, 9), _optional(column, 11)
        if not leaf.repetitions and values != rows:
            raise PageError(f"its column {name!r} has another number of values")
        # Arrow begins at the dictionary if it is before the data. A column without values has no data.
        if (values and not data) or (data and dictionary >= data):
            raise PageError(f"its column {name!r} begins at a wrong place")
        _check_levels(column.get(16, {}), leaf, name)
        yield Chunk(column=name, start=dictionary or data, length=_whole(column, 7), values=values)


def _check_levels(found: object, leaf: _Leaf, name: str) -> None:
    """Refuse histograms of levels that have another length than there are levels. Arrow throws at them."""
    lengths = {2: leaf.repetitions, 3: leaf.definitions}
    if not isinstance(found, dict) or (1 in found and leaf.kind != _BYTE_ARRAY):
        raise PageError(f"its column {name!r} has wrong statistics of sizes")
    for field, level in lengths.items():
        counts = found.get(field)
        if counts and len(counts) != level + 1:
            raise PageError(f"its column {name!r} has wrong statistics of sizes")


def _whole(fields: dict[int, object], field: int) -> int:
    value = fields.get(field)
    if not isinstance(value, int) or value < 0:
        raise PageError(f"its field {field} is {value!r}")
    return value


def _optional(fields: dict[int, object], field: int) -> int:
    return _whole(fields, field) if field in fields else 0


def _binary(fields: dict[int, object], field: int) -> bytes:
    value = fields.get(field)
    if not isinstance(value, bytes):
        raise PageError(f"its field {field} is {value!r}")
    return value


def _items(fields: dict[int, object], field: int) -> list[dict[int, object]]:
    value = fields.get(field)
    if not isinstance(value, list):
        raise PageError(f"its field {field} is {value!r}")
    return value


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read(content: bytes | memoryview, place: int, fields: _Fields) -> tuple[dict[int, object], int]:
    try:
        return _structure(content, place, fields)
    except IndexError:
        raise PageError("a header is cut short") from None


def _structure(content: bytes | memoryview, place: int, fields: _Fields) -> tuple[dict[int, object], int]:
    """Return the values of a structure by field, and the place behind it.

    The fields must come in rising order, so that none comes twice, and have the kind that they have in parquet.thrift.
    Arrow would pass over one of another kind.
    """
    found: dict[int, object] = {}
    field = 0
    while head := content[place]:
        place += 1
        kind = head & 15
        field += head >> 4
        wanted, inner = fields.get(field, _UNKNOWN)
        # A head without a step has its field in a number of its own, which may be any.
        if head < _STEP or (kind != wanted and (kind, wanted) != (_BOOLEAN + 1, _BOOLEAN)):
            raise PageError(f"a header has a field {field} of the kind {kind}")
        if kind in _BITS:
            number = content[place]
            place += 1
            if number >= _MORE:
                number, place = _varint(content, place - 1, _BITS[kind])
            found[field] = (number >> 1) ^ -(number & 1)
        elif isinstance(inner, dict):
            found[field], place = _structure(content, place, inner)
        elif isinstance(inner, tuple):
            found[field], place = _sequence(content, place, *inner)
        elif kind == _BINARY:
            found[field], place = _text(content, place)
        elif kind == _BYTE:
            found[field] = content[place]
            place += 1
        else:
            found[field] = kind == _BOOLEAN
    return found, place + 1


def _sequence(
    content: bytes | memoryview, place: int, most: int, kind: int, inner: _Fields | None
) -> tuple[list[object], int]:
    """Return the items of a list, and the place behind it."""
    head = content[place]
    place += 1
    length = head >> 4
    if length == _LONG:
        length, place = _varint(content, place, 32)
    if head & 15 != kind:
        raise PageError(f"a header has a list of the kind {head & 15}")
    if length > most:
        raise LongListError(length, most)
    items: list[object] = []
    for _ in range(length):
        item: object
        if inner is not None:
            item, place = _structure(content, place, inner)
        elif kind == _BINARY:
            item, place = _text(content, place)
        else:
            number, place = _varint(content, place, _BITS[kind])
            item = (number >> 1) ^ -(number & 1)
        items.append(item)
    return items, place


def _text(content: bytes | memoryview, place: int) -> tuple[bytes, int]:
    length, place = _varint(content, place, 32)
    return bytes(content[place : place + length]), place + length


def _varint(content: bytes | memoryview, place: int, bits: int) -> tuple[int, int]:
    number = shift = 0
    while (byte := content[place]) >= _MORE:
        number |= (byte & 127) << shift
        shift += 7
        place += 1
        if shift > bits:
            break
    number |= byte << shift
    if number >> bits:
        raise PageError(f"a header has a number of more than {bits} bits")
    return number, place + 1
