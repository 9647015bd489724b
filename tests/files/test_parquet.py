from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ccfs.files.pages import PageError, footer, pages
from ccfs.files.parquet import parquet_bytes, parquet_columns, parquet_head, read_parquet
from ccfs.files.reading import Limits, RefusedFileError

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
        with pytest.raises(RefusedFileError, match=r"^[^\n]*(the table|table\.parquet): must be a whole Parquet file"):
            read_parquet(source(damaged))


def test_read_parquet_refuses_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_parquet(tmp_path / "table.parquet")


def test_read_parquet_keeps_no_python_object(tmp_path):
    """Not even uncompressed columns, which Arrow would read in place."""
    pq.write_table(TABLE, tmp_path / "plain.parquet", compression="none", use_dictionary=False)
    content = (tmp_path / "plain.parquet").read_bytes()
    before = sys.getrefcount(content)
    table = read_parquet(content)
    assert sys.getrefcount(content) == before
    assert table.equals(TABLE)


def test_parquet_bytes_depend_on_the_rows_alone():
    again = pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)])
    assert parquet_bytes(again.combine_chunks()) == parquet_bytes(TABLE)


def written(table, **options):
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def test_parquet_head_tells_columns_and_rows(tmp_path):
    (tmp_path / "table.parquet").write_bytes(parquet_bytes(TABLE))
    assert parquet_head(tmp_path / "table.parquet") == (TABLE.schema, 3)


def test_read_parquet_refuses_more_rows_than_allowed(source):
    content = source(parquet_bytes(TABLE))
    assert read_parquet(content, most=3).num_rows == 3
    with pytest.raises(RefusedFileError, match=r"must have at most 2 rows, got 3\."):
        read_parquet(content, most=2)


LONG = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10_000, np.int32)), ["x" * 100_000])
EMPTY = written(pa.table({"x": np.arange(2200)}), data_page_size=1, write_batch_size=1, write_statistics=False)
MANY = pa.ListArray.from_arrays(pa.array([0, 900_000], pa.int32()), pa.nulls(900_000, pa.bool_()))
BOMBS = {
    "headers": (EMPTY, "9,0.* bytes after unpacking"),
    "list": (written(pa.table({"x": MANY})), "8,10.* bytes after unpacking"),
    "page": (
        written(pa.table({"x": np.zeros(500_000)}), use_dictionary=False, compression="zstd"),
        "8,5.* bytes after unpacking",
    ),
    "rows": (written(pa.table({"x": np.zeros(400_000, np.int32)})), "5,20.* bytes after unpacking"),
    "text": (written(pa.table({"x": LONG}), store_schema=False), "1,000,000,000 bytes in its column 'x'"),
    "delta": (
        written(pa.table({"x": ["x" * 1000] * 9}), use_dictionary=False, column_encoding={"x": "DELTA_BYTE_ARRAY"}),
        "the encoding 7 of its column 'x'",
    ),
    "dictionary": (written(pa.table({"x": LONG})), r"the type dictionary<.* of its column 'x'"),
    "struct": (written(pa.table({"x": [{"a": 1}]})), r"the type struct<.* of its column 'x'"),
    "nested": (written(pa.table({"x": [[[1]]]})), r"the type list<.* of its column 'x'"),
    "twice": (written(pa.table([pa.array([1]), pa.array([2])], names=["x", "x"])), "the names of its columns"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_read_parquet_refuses_bombs_before_it_unpacks_them(monkeypatch, name):
    content, message = BOMBS[name]
    assert len(content) < 100_000
    monkeypatch.setattr("ccfs.files.parquet.limits", lambda: Limits(table=1 << 20))
    before = pa.total_allocated_bytes()
    with pytest.raises(RefusedFileError, match=f"the table: .*{message}"):
        read_parquet(content)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_read_parquet_refuses_a_column_of_very_many_pages():
    table = pa.table({"x": np.zeros(20_001, np.int8)})
    content = written(table, data_page_size=1, write_batch_size=1, use_dictionary=False, write_statistics=False)
    with pytest.raises(RefusedFileError, match="a column has more than 20,000 pages"):
        read_parquet(content)


def test_read_parquet_keeps_texts_that_are_long_or_many_or_absent():
    table = pa.table({"few": ["a", None, "bc"] * 1000, "many": [f"number {i}" for i in range(3000)]})
    for options in ({}, {"use_dictionary": False}, {"data_page_version": "2.0"}):
        assert read_parquet(written(table, **options)).equals(table)
    assert read_parquet(parquet_bytes(table)).equals(table)


def test_read_parquet_reads_lists_of_numbers():
    table = pa.table({"x": pa.array([[1, 2], [], None, [3]], pa.list_(pa.int32()))})
    assert read_parquet(parquet_bytes(table)).equals(table)


def test_pages_are_those_that_the_footer_tells():
    content = parquet_bytes(pa.table({"x": np.arange(200_000.0), "name": ["a", "b"] * 100_000}))
    metadata = pq.ParquetFile(io.BytesIO(content)).metadata
    for number in range(metadata.num_row_groups):
        for index in range(2):
            chunk = metadata.row_group(number).column(index)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            found = list(pages(memoryview(content), start, chunk.total_compressed_size))
            assert sum(page.values for page in found if not page.is_dictionary) == chunk.num_values
            assert sum(page.is_dictionary for page in found) == index
            least = sum(max(8 * page.values, 4096) for page in found)
            assert least <= sum(page.unpacked for page in found) <= max(chunk.total_uncompressed_size, least)


@pytest.mark.parametrize(
    "header",
    [
        b"",  # nothing
        b"\x15\x00\x15",  # cut short
        b"\x15\x00\x15\x02\x15\x02\x05\x02\x00",  # a field twice
        b"\x15\x00\x19\x02\x00",  # a list
        b"\x15\x00\x16\x02\x15\x02\x2c\x15\x02\x15\x00\x00\x00",  # a size of another kind
        b"\x15\x00\x15\x80\x80\x80\x80\x20\x15\x02\x2c\x15\x02\x15\x00\x00\x00",  # a size of 34 bits
        b"\x15\x00\x15\x02\x15\x02\x2c\x15\x02\x15\x00\x00\x50\x00",  # a field without a kind
        b"\x15\x02\x15\x02\x15\x02\x00",  # an index page
        b"\x15\x00\x15\x02\x15\x02\x00",  # a data page without its structure
        b"\x15\x00\x15\x01\x15\x02\x2c\x15\x02\x15\x00\x00\x00",  # a negative size
        b"\x15\x00\x15\x02\x15\x20\x2c\x15\x02\x15\x00\x00\x00",  # a page that is longer than its column
        b"\x15" + b"\xff" * 11,  # a number without end
        b"\x1c" * 20,  # very deep
    ],
)
def test_pages_refuse_headers_that_nobody_honest_writes(header):
    with pytest.raises(PageError):
        list(pages(memoryview(header + bytes(1)), 0, len(header) + 1))
    with pytest.raises(PageError, match="outside of the file"):
        list(pages(memoryview(header), 1, len(header)))


def foot(content):
    """Return the beginning of a file and its footer."""
    length = int.from_bytes(content[-8:-4], "little")
    return content[: -8 - length], content[-8 - length : -8]


def footed(start, content):
    return start + content + len(content).to_bytes(4, "little") + b"PAR1"


def test_footer_says_what_arrow_says():
    table = pa.table({"x": np.arange(200_000.0), "name": ["a", None] * 100_000, "list": [[1, 2], []] * 100_000})
    content = parquet_bytes(table)
    metadata = pq.ParquetFile(io.BytesIO(content)).metadata
    found = footer(foot(content)[1], columns=6, groups=4)
    assert (found.rows, found.columns) == (200_000, ("x", "name", "list"))
    chunks = [metadata.row_group(number).column(index) for number in range(4) for index in range(3)]
    assert [(chunk.start, chunk.length, chunk.values) for chunk in found.chunks] == [
        (chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size, chunk.num_values)
        for chunk in chunks
    ]
    for columns, groups in ((5, 4), (6, 3)):
        with pytest.raises(PageError, match="a list of"):
            footer(foot(content)[1], columns=columns, groups=groups)


# The number 3 as Thrift writes it is 06, a list of one such number 16 06.
NUMBER = pa.table({"number": np.arange(3.0)})
FORGED = {
    "histogram": ("3c 29 06 19 26 00 06 00", "3c 29 16 06 19 16 06 00", "wrong statistics of sizes"),
    "sizes of texts": ("3c 29 06 19 26 00 06 00", "3c 16 06 29 26 00 06 00", "wrong statistics of sizes"),
    "values": ("18 06 6e 75 6d 62 65 72 15 02 16 06", "18 06 6e 75 6d 62 65 72 15 02 16 08", "number of values"),
    "place": ("26 08", "26 00", "begins at a wrong place"),
    "path": ("19 18 06 6e 75", "19 18 06 6d 75", "other columns"),
    "a name with a dot": ("6e 75 6d 62 65 72", "6e 75 6d 62 2e 72", "it has a column b'numb.r'"),
    "rows": ("16 06 19 1c 19 1c", "16 08 19 1c 19 1c", "number of rows"),
    "maker": ("70 61 72 71 75 65 74 2d 63 70 70", "70 61 72 71 75 65 74 2d 6d 72 20", "not written by Arrow"),
    "kind": ("16 06 19 1c 19 1c", "15 06 19 1c 19 1c", "a field 3 of the kind 5"),
    "two roots": (
        "35 00 18 06 73 63 68 65 6d 61 15 02",
        "35 00 18 06 73 63 68 65 6d 61 15 00",
        "nested in a wrong way",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_read_parquet_refuses_forged_footers(name):
    old, new, message = FORGED[name]
    start, told = foot(parquet_bytes(NUMBER))
    assert bytes.fromhex(old) in told
    with pytest.raises(RefusedFileError, match=f"^the table: must be a whole Parquet file: .*{message}"):
        read_parquet(footed(start, told.replace(bytes.fromhex(old), bytes.fromhex(new))))


def test_read_parquet_refuses_fields_that_arrow_does_not_write():
    start, told = foot(parquet_bytes(NUMBER))
    assert read_parquet(footed(start, told)).equals(NUMBER)
    for more in (b"\x1c\x00\x00", b"\x18\x01x\x00", b"\x15\x02\x00\x00"):  # keys, a signature, a second footer
        with pytest.raises(RefusedFileError, match=r"a header has a field 8|the footer is longer"):
            read_parquet(footed(start, told[:-1] + more))
    for place in range(len(told)):
        with pytest.raises(RefusedFileError):
            read_parquet(footed(start, told[:place]))


HISTOGRAM = """
import sys
from ccfs.files.parquet import parquet_columns, parquet_head, read_parquet
from ccfs.files.reading import RefusedFileError
from pathlib import Path
for read in (parquet_columns, parquet_head, read_parquet):
    try:
        read(Path(sys.argv[1]))
    except RefusedFileError as error:
        print(error)
"""


def test_footer_at_which_arrow_aborts_is_refused(tmp_path):
    """Arrow throws where its binding cannot pass it on: `metadata.row_group(0).column(0)` ends with exit code 134."""
    start, told = foot(parquet_bytes(NUMBER))
    old, new, _ = FORGED["histogram"]
    path = tmp_path / "table.parquet"
    path.write_bytes(footed(start, told.replace(bytes.fromhex(old), bytes.fromhex(new))))
    program = [sys.executable, "-c", HISTOGRAM, str(path)]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.count("\n"), ended.stdout.count("statistics of sizes")) == (0, 3, 3)


@pytest.mark.slow
def test_read_parquet_survives_any_changed_byte_of_a_footer(tmp_path):
    """In one child process per quarter, since a fault would end it. A whole table is read or a refusal is raised."""
    (tmp_path / "table.parquet").write_bytes(parquet_bytes(TABLE.append_column("list", [[[1], [], [2, 3]]])))
    for quarter in range(4):
        program = [sys.executable, "-c", BYTES, str(tmp_path / "table.parquet"), str(quarter)]
        ended = subprocess.run(program, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")


BYTES = """
import sys
from pathlib import Path
import numpy as np
from ccfs.files.parquet import read_parquet
from ccfs.files.reading import RefusedFileError
content, quarter = Path(sys.argv[1]).read_bytes(), int(sys.argv[2])
length = int.from_bytes(content[-8:-4], "little")
random = np.random.default_rng(quarter)
for place in range(len(content) - 8 - length + quarter, len(content), 4):
    for value in {0, 255, content[place] ^ 1, content[place] + 1 & 255, content[place] + 16 & 255, *random.bytes(3)}:
        changed = bytearray(content)
        changed[place] = value
        try:
            read_parquet(bytes(changed))
        except RefusedFileError:
            pass
"""

BOMB = """
import resource, sys
from ccfs.files.parquet import read_parquet
from ccfs.files.reading import RefusedFileError
content = open(sys.argv[1], "rb").read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_parquet(content)
except RefusedFileError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_read_parquet_of_a_bomb_takes_little_memory(tmp_path):
    """A page of zeros, a hundred thousand times smaller in the file than in memory."""
    path = tmp_path / "bomb.parquet"
    path.write_bytes(
        written(
            pa.table({"x": np.zeros(50_000_000)}),
            use_dictionary=False,
            compression="zstd",
            data_page_size=1 << 30,
            row_group_size=1 << 26,
        )
    )
    assert path.stat().st_size < 1 << 20
    ended = subprocess.run([sys.executable, "-c", BOMB, str(path)], capture_output=True, text=True, check=True)
    told, grown = ended.stdout.splitlines()
    assert "rows, more than 500,000" in told
    assert int(grown) < 50_000  # kilobytes
