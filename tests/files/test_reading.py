"""A reader of a stranger's files never waits, never leaves the folder and never allocates what a header promises."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ccfs.files.digests import file_digest
from ccfs.files.reading import (
    FACTOR,
    Limits,
    RefusedFileError,
    entries,
    limits,
    read_arrays,
    read_bytes,
    read_json,
    read_text,
    refuse_links,
)


@pytest.mark.parametrize("read", [read_bytes, read_text, file_digest])
def test_readers_refuse_pipes_devices_folders_and_links_to_them_at_once(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "linked-pipe").symlink_to(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "linked-pipe", tmp_path / "endless", Path("/dev/zero"), tmp_path):
        with pytest.raises(RefusedFileError, match="must be a plain file"):
            read(path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "absent")


def test_readers_refuse_large_files_before_they_read_them(tmp_path, monkeypatch):
    path = tmp_path / "sparse"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(RefusedFileError, match=r"1,099,511,627,776 bytes, more than 134,217,728\. .*--limits 8192"):
        read_bytes(path)
    with pytest.raises(RefusedFileError, match="more than 16,777,216"):
        read_text(path)
    with pytest.raises(RefusedFileError, match="more than 7"):
        file_digest(path, most=7)
    with path.open("wb") as stream:
        stream.truncate(Limits().document + 1)
    with pytest.raises(RefusedFileError, match="--limits 2"):
        read_text(path)
    monkeypatch.setenv(FACTOR, "2")
    assert len(read_text(path)) == Limits().document + 1


@pytest.mark.parametrize("factor", ["0", "0.5", "nan", "inf", "-1", "many", "1e7", ""])
def test_limits_refuse_a_factor_that_is_none(monkeypatch, factor):
    monkeypatch.setenv(FACTOR, factor)
    with pytest.raises(ValueError, match="`--limits`"):
        limits()


def test_limits_are_those_of_the_documentation():
    text = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    section = text.partition("\n## Limits\n")[2].partition("\n## ")[0]
    told = {
        name: int(value.replace(",", "")) for name, value in re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", section, re.M)
    }
    assert told == dataclasses.asdict(Limits())


def test_limits_are_multiplied_by_the_factor(monkeypatch):
    monkeypatch.delenv(FACTOR, raising=False)
    assert limits() == Limits()
    monkeypatch.setenv(FACTOR, "2.5")
    assert (limits().rows, limits().horizon) == (1_250_000, 2_500_000)


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/etc/passwd", "", "a\0b"])
def test_refuse_links_refuses_names_that_leave_the_folder(tmp_path, name):
    with pytest.raises(RefusedFileError, match="must hold its own files only"):
        refuse_links(tmp_path, name)


def test_refuse_links_finds_a_link_at_every_level_but_the_folder_itself(tmp_path):
    (tmp_path / "real" / "a" / "b").mkdir(parents=True)
    (tmp_path / "run").symlink_to(tmp_path / "real")
    assert refuse_links(tmp_path / "run", "a/b/c.json") == tmp_path / "run" / "a" / "b" / "c.json"
    assert refuse_links(tmp_path / "run", "not/there") == tmp_path / "run" / "not" / "there"
    (tmp_path / "real" / "a" / "b" / "c.json").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "real" / "out").symlink_to(tmp_path)
    for name in ("a/b/c.json", "out", "out/x/y"):
        with pytest.raises(RefusedFileError, match="got a link"):
            refuse_links(tmp_path / "run", name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1, "a": 2}', "repeats a key"),
        (b'{"b": [{"a": 1, "a": 1}]}', "repeats a key"),
        (b'{"a": NaN}', "holds NaN"),
        (b"[-Infinity]", "holds -Infinity"),
        (b"[" * 65 + b"]" * 65, "at most 64 levels"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "at most 64 levels"),
        (b"[" * 100_000, "cannot be read as JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "cannot be read as JSON"),
        (b"1" * 5000, "cannot be read as JSON"),
        ('{"a": 1}'.encode("utf-16"), "cannot be read as JSON"),
        (b"\xff", "cannot be read as JSON"),
        (b"", "cannot be read as JSON"),
    ],
)
def test_read_json_refuses_what_two_readers_could_read_in_two_ways(content, message):
    with pytest.raises(RefusedFileError, match=rf"^file: .*{message}"):
        read_json(content, "file")


def test_read_json_gives_what_is_written(monkeypatch):
    value = {"a": [1, 2.5, None, True, "x"], "b": {"c": {}}}
    assert read_json(json.dumps(value).encode(), "file") == value
    deep = b"[" * 64 + b"]" * 64
    assert json.dumps(read_json(deep, "file")).encode() == deep
    monkeypatch.setattr("ccfs.files.reading.limits", lambda: Limits(document=3))
    with pytest.raises(RefusedFileError, match="has 4 bytes, more than 3"):
        read_json(b"1000", "file")


def npz(**members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return out.getvalue()


def npy(header, content=b""):
    text = (header + " " * (118 - len(header) - 1) + "\n").encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


def test_read_arrays_gives_plain_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3.0), name=np.array("text"), number=np.array(7))
    found = read_arrays(tmp_path / "a.npz", "a.npz")
    assert (found["x"].tolist(), str(found["name"]), int(found["number"])) == ([0.0, 1.0, 2.0], "text", 7)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            npz(x=npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }")),
            "plain array of at most 128",
        ),
        (npz(x=npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }")), "plain array"),
        (npz(x=npy("{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,), }")), "plain array"),
        (npz(x=npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"\x80")), "plain array"),
        (npz(x=npy("{'descr': '<f8', 'fortran_order': False, 'shape': (9**9**9,), }")), "plain array"),
        (npz(x=b"no array"), "plain array"),
        (npz(x=npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", bytes(16)))[:-30], "whole .npz"),
        (b"", "whole .npz"),
        (b"PK\x01\x02" * 10_001, "at most 10000 arrays"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", bytes(16)), "whole .npz"),
    ],
)
def test_read_arrays_refuses_bombs_and_damage_without_allocating(content, message):
    with pytest.raises(RefusedFileError, match=message):
        read_arrays(content, "file")


def test_read_arrays_adds_up_the_sizes_that_the_archive_states(monkeypatch):
    monkeypatch.setattr("ccfs.files.reading.limits", lambda: Limits(table=3000))
    with pytest.raises(RefusedFileError, match=r"has 4,000 bytes of arrays, more than 3,000"):
        read_arrays(npz(x=bytes(2000), y=bytes(2000)), "file")


def test_read_arrays_runs_no_pickle(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    np.savez(tmp_path / "evil.npz", x=np.array([Evil()], dtype=object))
    with pytest.raises(RefusedFileError):
        read_arrays(tmp_path / "evil.npz", "evil")
    assert not (tmp_path / "ran").exists()


def test_entries_name_links_and_do_not_follow_them(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert [name for name, _ in entries(tmp_path)] == ["a", "a/b", "a/loop", "a/b/file"]
    monkeypatch.setattr("ccfs.files.reading.limits", lambda: Limits(files=3))
    with pytest.raises(RefusedFileError, match="has 4 files, more than 3"):
        list(entries(tmp_path))


def test_entries_refuse_a_very_deep_folder(tmp_path):
    (tmp_path / "/".join("a" * 20)).mkdir(parents=True)
    with pytest.raises(RefusedFileError, match="at most 16 levels"):
        list(entries(tmp_path))
