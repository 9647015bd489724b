from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from ccfs.files.lock import LOCK, LockedError, locked

HOLD = """
import sys, time
from pathlib import Path
from ccfs.files.lock import locked

with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the folder."""
    started = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert started.stdout.readline() == "held\n"
    yield started
    started.kill()
    started.communicate()


def test_locked_refuses_a_second_holder_in_the_same_process_and_lets_the_next_in(tmp_path):
    for _ in range(2):
        with locked(tmp_path), pytest.raises(LockedError, match="is held by another process"), locked(tmp_path):
            pass


def test_locked_is_released_when_the_body_raises(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    with locked(tmp_path):
        pass


def test_locked_refuses_while_another_process_lives_and_not_after_its_kill(tmp_path, holder):
    with pytest.raises(LockedError), locked(tmp_path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with locked(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_locked_second_holder_changes_nothing_in_the_folder(tmp_path, holder):
    (tmp_path / LOCK).write_bytes(b"kept")
    with pytest.raises(LockedError), locked(tmp_path):
        pass
    assert (tmp_path / LOCK).read_bytes() == b"kept"


def test_locked_makes_a_folder_that_is_missing_or_says_why_not(tmp_path):
    with locked(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileExistsError), locked(tmp_path / "file" / "folder"):
        pass


def test_locked_refuses_a_link_and_leaves_what_it_points_to(tmp_path):
    victim = tmp_path / "victim.txt"
    victim.write_bytes(b"kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(victim)
    with pytest.raises(OSError, match="its lock is a link"), locked(tmp_path / "run"):
        pass
    assert victim.read_bytes() == b"kept"


def test_locked_refuses_a_pipe_a_folder_and_a_second_name_of_another_file(tmp_path):
    victim = tmp_path / "victim.txt"
    victim.write_bytes(b"kept")
    for name in ("pipe", "folder", "name"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / LOCK)
    (tmp_path / "folder" / LOCK).mkdir()
    os.link(victim, tmp_path / "name" / LOCK)
    for name, message in (("pipe", "no plain file"), ("folder", "no plain file"), ("name", "a second name")):
        with pytest.raises(OSError, match=message), locked(tmp_path / name):
            pass
    assert victim.read_bytes() == b"kept"


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_locked_refuses_a_lock_that_a_killed_process_would_keep(tmp_path, monkeypatch):
    """Without flock the package would take a file's existence for a lock."""

    def missing(descriptor, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", missing)
    with pytest.raises(OSError, match="its file system knows no locks"), locked(tmp_path):
        pass
    monkeypatch.undo()
    with locked(tmp_path):
        pass
