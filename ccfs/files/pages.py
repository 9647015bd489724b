"""Read the page headers of a Parquet file, so that a page's size is known before anybody unpacks it.

The footer of a file states sizes too, but Arrow allocates what the header of each page says. A header is a structure of
Thrift's compact protocol. Whatever no honest writer writes is refused, so that no header has two readings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Page", "PageError", "pages"]

_STOP, _TRUE, _FALSE, _BYTE, _INT16, _INT32, _INT64, _DOUBLE, _BINARY, _LIST, _STRUCT = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12
_DEEPEST = 8
# A file of nothing but headers would take minutes to read. So a page counts some bytes at least, and a column has at
# most so many pages. Writers put thousands of values into one.
_LEAST = 4096
_MOST_PAGES = 20_000
# Fields of a header: kind of page, sizes, and one structure by the kind of page.
_KIND, _UNPACKED, _PACKED, _DATA, _DICTIONARY, _DATA_2 = 1, 2, 3, 5, 7, 8
_OF_KIND = {0: _DATA, 2: _DICTIONARY, 3: _DATA_2}
# Field of the encoding in each of these structures.
_ENCODING = {_DATA: 2, _DICTIONARY: 2, _DATA_2: 4}


class PageError(ValueError):
    """A page header that no honest writer writes."""


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
        reader = _Reader(content, place, end)
        head = reader.struct(0)
        unpacked, packed, kind = (_whole(head, field) for field in (_UNPACKED, _PACKED, _KIND))
        inner = head.get(_OF_KIND.get(kind, -1))
        if not isinstance(inner, dict) or sum(field in head for field in _OF_KIND.values()) != 1:
            raise PageError(f"a page is of the kind {kind}")
        encoding, values = _whole(inner, _ENCODING[_OF_KIND[kind]]), _whole(inner, 1)
        size = max(unpacked, 8 * values, _LEAST)
        yield Page(unpacked=size, values=values, encoding=encoding, is_dictionary=kind == 2)
        place = reader.place + packed
    if place != end:
        raise PageError("a page is longer than its column")


def _whole(fields: dict[int, object], field: int) -> int:
    value = fields.get(field)
    if not isinstance(value, int) or value < 0:
        raise PageError(f"the field {field} of a page header is {value!r}")
    return value


class _Reader:
    """Reads one structure of the compact protocol from bytes."""

    def __init__(self, content: memoryview, place: int, end: int) -> None:
        self._content, self.place, self._end = content, place, end

    def struct(self, depth: int) -> dict[int, object]:
        """Return the integers and structures of a structure, by field. Other values are passed over."""
        if depth > _DEEPEST:
            raise PageError("a page header is nested too deeply")
        found: dict[int, object] = {}
        field = 0
        while (head := self._byte()) != _STOP:
            field = field + (head >> 4) if head >> 4 else self._integer()
            if field in found:
                raise PageError(f"a page header has the field {field} twice")
            found[field] = self._value(head & 15, depth)
        return found

    def _value(self, kind: int, depth: int) -> object:
        if kind in (_TRUE, _FALSE):
            return None
        if kind == _BYTE:
            self._skip(1)
            return None
        if kind in (_INT16, _INT32, _INT64):
            return self._integer()
        if kind == _DOUBLE:
            self._skip(8)
            return None
        if kind == _BINARY:
            self._skip(self._varint())
            return None
        if kind == _STRUCT:
            return self.struct(depth + 1)
        # Lists, sets and maps do not occur in a page header.
        raise PageError(f"a page header has a value of the type {kind}")

    def _integer(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise PageError("a page header has a number of more than ten bytes")

    def _byte(self) -> int:
        self._skip(1)
        return self._content[self.place - 1]

    def _skip(self, count: int) -> None:
        self.place += count
        if self.place > self._end:
            raise PageError("a page header is cut short")
