from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pytest

from ccfs.files.parquet import parquet_bytes, parquet_columns, read_parquet

TABLE = pa.table({"name": ["a", "b", "a"], "number": np.arange(3.0), "hash": pa.array([b"12", b"34", b"56"])})


@pytest.fixture(params=["file", "bytes"])
def source(request, tmp_path):
    """Make what `read_parquet` reads from the content of a file."""

    def make(content):
        if request.param == "bytes":
            return content
        path = tmp_path / "table.parquet"
        path.write_bytes(content)
        return path

    return make


def test_read_parquet_gives_back_rows_types_and_metadata(source):
    table = TABLE.replace_schema_metadata({"format": "x"})
    assert read_parquet(source(parquet_bytes(table))).equals(table, check_metadata=True)
    assert read_parquet(source(parquet_bytes(table.slice(0, 0)))).num_rows == 0


def test_read_parquet_reads_the_columns_asked_for_and_no_others(source):
    content = source(parquet_bytes(TABLE))
    assert read_parquet(content, ["number"]).equals(TABLE.select(["number"]))
    with pytest.raises(ValueError, match=r"must have the column 'colour', got \['name', 'number', 'hash'\]"):
        read_parquet(content, ["number", "colour"])


def test_parquet_columns_are_the_names_in_the_file(tmp_path):
    (tmp_path / "table.parquet").write_bytes(parquet_bytes(TABLE))
    assert parquet_columns(tmp_path / "table.parquet") == TABLE.column_names


def test_read_parquet_takes_no_column_from_the_name_of_a_folder(tmp_path):
    """Arrow's own reader takes `sigma=1` in a path for a column of the table."""
    path = tmp_path / "sigma=1" / "table.parquet"
    path.parent.mkdir()
    path.write_bytes(parquet_bytes(TABLE))
    assert read_parquet(path).column_names == TABLE.column_names


def test_read_parquet_refuses_damage(source):
    content = parquet_bytes(pa.table({"number": np.random.default_rng(1).random(1000)}))
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    for damaged in (bytes(flipped), content[:-1], content[:40], b"", b"no parquet"):
        with pytest.raises((OSError, pa.ArrowException)):
            read_parquet(source(damaged))


def test_read_parquet_refuses_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_parquet(tmp_path / "table.parquet")


def test_read_parquet_keeps_no_python_object(tmp_path):
    """Not even uncompressed columns, which Arrow would read in place."""
    import pyarrow.parquet as pq

    pq.write_table(TABLE, tmp_path / "plain.parquet", compression="none", use_dictionary=False)
    content = (tmp_path / "plain.parquet").read_bytes()
    before = sys.getrefcount(content)
    table = read_parquet(content)
    assert sys.getrefcount(content) == before
    assert table.equals(TABLE)


def test_parquet_bytes_depend_on_the_rows_alone():
    again = pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)])
    assert parquet_bytes(again.combine_chunks()) == parquet_bytes(TABLE)
