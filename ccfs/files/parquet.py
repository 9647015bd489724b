"""Read and write Parquet: the only module that calls `pyarrow.parquet`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["ROW_GROUP", "ParquetSink", "parquet_bytes", "parquet_columns", "read_parquet"]

ROW_GROUP = 1 << 16
"""Number of rows in one group of a file."""


def read_parquet(source: Path | bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a table, or the given columns of it. A damaged page is refused.

    Args:
        source: a file, or the content of one.
        columns: the names of the columns to read. Without them, all.

    Raises:
        OSError, pa.ArrowException: the source is not there, or is not whole Parquet.
        ValueError: a column is not in the table.
    """
    with _opened(source) as file:
        names = file.schema_arrow.names
        missing = [name for name in columns or () if name not in names]
        if missing:
            where = source if isinstance(source, Path) else "the table"
            raise ValueError(f"{where}: must have the column {missing[0]!r}, got {names}.")
        return file.read(columns=columns, use_threads=False)


def parquet_columns(path: Path) -> list[str]:
    """Return the names of a file's columns. No data is read."""
    with _opened(path) as file:
        return list(file.schema_arrow.names)


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


@contextmanager
def _opened(source: Path | bytes) -> Iterator[pq.ParquetFile]:
    # Everything happens in the caller's thread and in memory that Arrow owns. Arrow's own threads may still hold what
    # they read when the interpreter ends. If that is a Python object, dropping it then aborts the process. So there
    # are no threads, no read-ahead (`pre_buffer` uses threads) and no `pq.read_table` (which always uses them).
    with pa.OSFile(str(source)) if isinstance(source, Path) else pa.BufferReader(_arrow_copy(source)) as stream:
        yield pq.ParquetFile(stream, page_checksum_verification=True, pre_buffer=False)


def _arrow_copy(content: bytes) -> pa.Buffer:
    buffer = pa.allocate_buffer(len(content))
    with pa.FixedSizeBufferWriter(buffer) as writer:
        writer.write(content)
    return buffer
