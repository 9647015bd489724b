from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ccfs.files.atomic import PARTIAL, write_atomically, write_together


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_write_atomically_writes_and_replaces(tmp_path):
    for content in (b"first", b"", b"second and longer"):
        write_atomically(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == content
    assert names(tmp_path) == ["file"]


def test_write_atomically_makes_the_folders_that_are_missing(tmp_path):
    write_atomically(tmp_path / "a" / "b" / "file", b"x")
    assert names(tmp_path) == ["a", "a/b", "a/b/file"]


def test_write_atomically_gives_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_bytes(b"x")
    write_atomically(tmp_path / "file", b"x")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_write_atomically_syncs_the_file_before_its_name_and_the_folders_after(tmp_path, monkeypatch):
    events = []
    sync, replace = os.fsync, os.replace

    def noted_sync(descriptor):
        events.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def noted_replace(source, target):
        events.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write_atomically(tmp_path / "a" / "b" / "file", b"x")
    folders = [str(tmp_path), str(tmp_path / "a")]  # each is synced when it has got a new name
    assert events[:2] == folders
    assert Path(events[2]).name.startswith(f"{PARTIAL}file-")
    assert events[3:] == ["replace", str(tmp_path / "a" / "b")]


def test_write_together_names_no_file_before_all_are_on_the_disk(tmp_path, monkeypatch):
    events = []
    sync, replace = os.fsync, os.replace

    def noted_sync(descriptor):
        events.append(os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")[2].partition("-0x")[0])
        sync(descriptor)

    def noted_replace(source, target):
        events.append(f"name {Path(target).name}")
        replace(source, target)

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("secrets.token_hex", lambda size: "0x")
    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_replace)
    contents = {tmp_path / "one" / "a": b"1", tmp_path / "two" / "b": b"2", tmp_path / "one" / "c": b"3"}
    write_together(contents)
    files = [f"{PARTIAL}{name}" for name in "abc"]
    assert events == [*files, "name a", "name b", "name c", "one", "two"]
    assert {path: path.read_bytes() for path in contents} == contents


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_write_together_failure_leaves_no_partial_file(tmp_path, monkeypatch, step):
    calls = []
    original = getattr(os, step)

    def fail_at_the_second(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "full")
        return original(*arguments)

    monkeypatch.setattr(os, step, fail_at_the_second)
    with pytest.raises(OSError, match="full"):
        write_together({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    monkeypatch.undo()
    assert names(tmp_path) == ([] if step == "fsync" else ["a"])


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_write_atomically_failure_leaves_the_folder_as_it_was(tmp_path, monkeypatch, step, error):
    write_atomically(tmp_path / "file", b"former")

    def fail(*arguments):
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(error)):
        write_atomically(tmp_path / "file", b"new")
    monkeypatch.undo()
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"former"


def test_write_atomically_says_why_it_cannot_write(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="File exists"):
        write_atomically(tmp_path / "file" / "below" / "file", b"x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "folder", b"x")
    assert names(tmp_path) == ["file", "folder"]


def fail_on_folders(monkeypatch, code):
    sync = os.fsync

    def fsync(descriptor):
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_dir():
            raise OSError(code, os.strerror(code))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def test_write_atomically_goes_on_where_a_folder_cannot_be_synced(tmp_path, monkeypatch):
    fail_on_folders(monkeypatch, errno.EINVAL)
    write_atomically(tmp_path / "file", b"x")
    assert (tmp_path / "file").read_bytes() == b"x"


def test_write_atomically_raises_where_syncing_a_folder_fails(tmp_path, monkeypatch):
    fail_on_folders(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        write_atomically(tmp_path / "file", b"x")


def test_write_atomically_partial_file_is_taken_for_no_whole_one(tmp_path):
    """A process killed just before the rename leaves what no pattern for whole files finds."""
    program = (
        "import os, signal, sys; from pathlib import Path; from ccfs.files.atomic import write_atomically\n"
        "os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_atomically(Path(sys.argv[1]), b'x')"
    )
    for _ in range(2):  # the second write does not stumble over what the first one left
        ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "counts.parquet")], check=False)
        assert ended.returncode == -signal.SIGKILL
    assert list(tmp_path.glob("*.parquet")) == []
    left = list(tmp_path.glob(f"{PARTIAL}*"))
    assert len(left) == 2
    assert {path.read_bytes() for path in left} == {b"x"}
