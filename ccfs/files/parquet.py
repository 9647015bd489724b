"""Read and write Parquet: the only module that calls `pyarrow.parquet`.

A file of one megabyte can ask for gigabytes. So its rows, columns, types, encodings and page sizes are checked before
anything is unpacked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ccfs.files.pages import LongListError, PageError, footer, pages
from ccfs.files.reading import RefusedFileError, limits, read_bytes, too_much

__all__ = ["ROW_GROUP", "ParquetSink", "parquet_bytes", "parquet_columns", "parquet_head", "read_parquet"]

ROW_GROUP = 1 << 16
"""Number of rows in one group of a file."""

_MOST_FOOTER = 8 << 20
# PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY: what our writer and Arrow's default writer use. Some of the others can
# turn a few bytes into many long texts.
_ENCODINGS = frozenset({0, 2, 3, 8})


def read_parquet(
    source: Path | bytes, columns: Sequence[str] | None = None, *, most: int | None = None, where: object = None
) -> pa.Table:
    """Return a table, or the given columns of it. A damaged page is refused.

    Args:
        source: a file, or the content of one.
        columns: the names of the columns to read. Without them, all.
        most: the greatest number of rows. Without it, `Limits.rows`.
        where: names the table in errors. Without it, the file.

    Raises:
        RefusedFileError: the source is not whole Parquet, or it is larger than the limits.
        OSError: the file cannot be read.
        ValueError: a column is not in the table.
    """
    with _opened(source, where) as opened:
        names = opened.schema.names
        missing = [name for name in columns or () if name not in names]
        if missing:
            raise ValueError(f"{opened.where}: must have the column {missing[0]!r}, got {names}.")
        return opened.read(names if columns is None else columns, limits().rows if most is None else most)


def parquet_columns(path: Path) -> list[str]:
    """Return the names of a file's columns. No data is read."""
    with _opened(path) as opened:
        return list(opened.schema.names)


def parquet_head(path: Path) -> tuple[pa.Schema, int]:
    """Return the columns and the number of rows that a file states. No data is read."""
    with _opened(path) as opened:
        return opened.schema, opened.footer.rows


def parquet_bytes(table: pa.Table) -> bytes:
    """Return a table as Parquet (Snappy). The same rows give the same bytes."""
    sink = ParquetSink(table.schema)
    sink.write(table)
    return sink.finish()


class ParquetSink:
    """A Parquet file in memory that is written piece by piece.

    Pieces of a multiple of `ROW_GROUP` rows, with the rest in the last one, give the bytes of the whole table.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._stream = pa.BufferOutputStream()
        # Most bytes of a trace are hashes and noise, which nothing compresses: zstd saves 3% over Snappy and takes
        # twice as long for the few rows of a usual batch. Nobody here reads column statistics, which take time too.
        # With page checksums any reader finds a flipped bit, even without the manifest.
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            compression="snappy",
            use_dictionary=[field.name for field in schema if pa.types.is_string(field.type)],
            write_statistics=False,
            write_page_checksum=True,
        )

    def write(self, table: pa.Table) -> None:
        """Add rows."""
        self._writer.write_table(table, row_group_size=ROW_GROUP)

    def finish(self) -> bytes:
        """Return the file."""
        self._writer.close()
        return bytes(self._stream.getvalue())


class _Opened:
    """An open file of which nothing but the footer was read."""

    def __init__(self, content: pa.Buffer, where: object) -> None:
        self.where = where
        self._content = memoryview(content).cast("B")
        length = int.from_bytes(self._content[-8:-4], "little")
        ends = bytes(self._content[:4]), bytes(self._content[-4:])
        if len(content) < 12 or ends != (b"PAR1", b"PAR1") or length > len(content) - 12:
            raise RefusedFileError(f"{where}: must be a whole Parquet file.")
        if length > _MOST_FOOTER:
            raise too_much(where, "bytes of Parquet footer", length, _MOST_FOOTER)
        # Before Arrow sees the footer, and never through `metadata.row_group`: what Arrow throws there aborts the
        # process.
        told = bytes(self._content[-8 - length : -8])
        self.footer = footer(told, columns=limits().columns, groups=1 + limits().rows // ROW_GROUP)
        # Everything happens in the caller's thread and in memory that Arrow owns. Arrow's own threads may still hold
        # what they read when the interpreter ends. If that is a Python object, dropping it then aborts the process. So
        # there are no threads, no read-ahead (`pre_buffer` uses threads) and no `pq.read_table` (which always uses
        # them).
        self._stream = pa.BufferReader(content)
        self._file = self._open()
        self.schema = self._file.schema_arrow

    def _open(self, **more: object) -> pq.ParquetFile:
        return pq.ParquetFile(
            self._stream,
            page_checksum_verification=True,
            pre_buffer=False,
            thrift_container_size_limit=limits().columns,
            thrift_string_size_limit=_MOST_FOOTER,
            **more,
        )

    def read(self, names: Sequence[str], most: int) -> pa.Table:
        """Return columns after checking that they are no larger than they may be."""
        rows = self.footer.rows
        if rows > limits().rows:
            raise too_much(self.where, "rows", rows, limits().rows)
        if not 0 <= rows <= most:
            raise RefusedFileError(f"{self.where}: must have at most {most:,} rows, got {rows:,}.")
        schema = self.schema
        if tuple(schema.names) != self.footer.columns:
            raise self._refusal("the names of its columns")
        self._check_pages(names, rows)
        texts = [name for name in names if _is_text(schema.field(name).type)]
        # A text column stays a dictionary until its texts are known to be short. Otherwise one long text that is named
        # by every row would be copied as often.
        file = self._open(metadata=self._file.metadata, read_dictionary=texts) if texts else self._file
        table = file.read(columns=names, use_threads=False)
        if table.num_rows != rows:
            raise self._refusal("its number of rows")
        for name in texts:
            place, column = table.schema.get_field_index(name), table.column(name)
            if pa.types.is_dictionary(column.type):
                kept = schema.field(name)
                table = table.set_column(place, kept, self._plain(name, column, kept.type))
        return table

    def _check_pages(self, names: Sequence[str], rows: int) -> None:
        """Add up what unpacking the columns takes, from the header of every page."""
        schema, limit = self.schema, limits().table
        widths = {name: _width(schema.field(name).type) for name in names}
        odd = [name for name, width in widths.items() if width is None]
        if odd:
            raise self._refusal(f"the type {schema.field(odd[0]).type} of its column {odd[0]!r}")
        total = 0
        for chunk in self.footer.chunks:
            name = chunk.column
            if name not in widths:
                continue
            values = 0
            for page in pages(self._content, chunk.start, chunk.length):
                if page.encoding not in _ENCODINGS:
                    raise self._refusal(f"the encoding {page.encoding} of its column {name!r}")
                values += 0 if page.is_dictionary else page.values
                total += page.unpacked
            if values != chunk.values:
                raise self._refusal(f"the number of values of its column {name!r}")
            total += values * (widths[name] or 0)
            if total > limit:
                raise too_much(self.where, "bytes after unpacking", total, limit)

    def _plain(self, name: str, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
        longest = 0
        for chunk in column.chunks:
            length = pc.max(pc.binary_length(chunk.dictionary)).as_py()
            longest = max(longest, length or 0)
        limit = limits().table
        if len(column) * longest > limit:
            raise too_much(self.where, f"bytes in its column {name!r}", len(column) * longest, limit)
        return column.cast(kind)

    def _refusal(self, what: str) -> RefusedFileError:
        return RefusedFileError(f"{self.where}: must be a Parquet file as CCFS writes it, got another: {what}.")


@contextmanager
def _opened(source: Path | bytes, where: object = None) -> Iterator[_Opened]:
    if where is None:
        where = source if isinstance(source, Path) else "the table"
    content = _arrow_copy(read_bytes(source) if isinstance(source, Path) else source)
    try:
        yield _Opened(content, where)
    except RefusedFileError:
        raise
    except LongListError as error:
        raise too_much(where, "items in a list of its footer", error.length, error.most) from None
    except (OSError, pa.ArrowException, PageError, MemoryError, OverflowError) as error:
        told = " ".join(str(error).split())[:200] or type(error).__name__
        raise RefusedFileError(f"{where}: must be a whole Parquet file: {told}") from None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _width(kind: pa.DataType) -> int | None:
    """Return how many bytes one value takes, None for a type that our tables do not have. Texts count by page."""
    if pa.types.is_list(kind):
        return _width(kind.value_type) if pa.types.is_primitive(kind.value_type) else None
    if _is_text(kind):
        return 8
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    return 1 + int(kind.bit_width) // 8 if pa.types.is_primitive(kind) else None


def _arrow_copy(content: bytes) -> pa.Buffer:
    buffer = pa.allocate_buffer(len(content))
    with pa.FixedSizeBufferWriter(buffer) as writer:
        writer.write(content)
    return buffer
