"""A confined process cannot do what it should not. Each attempt is made in a child process, and its answer is read."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ccfs.files.atomic import remove_tree
from ccfs.files.confine import Confinement, excess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines the network and writes"),
]
TRY = """
import ctypes, os, sys
from pathlib import Path
from ccfs.files.confine import Confinement, confine

def called(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)

scratch, outside = Path(sys.argv[1]), Path(sys.argv[2])
print(confine(scratch, Confinement(memory=1 << 30, seconds=20, file_size=1 << 20, open_files=64)))
(scratch / "inside").write_text("may be written")
Path(os.devnull).write_text("may be written")
try:
    exec(sys.argv[3])
    print("done")
except (OSError, MemoryError) as error:
    print("refused", type(error).__name__)
"""
REFUSED = {
    "write": 'outside.write_text("x")',
    "append": 'outside.open("a")',
    "truncate": "os.truncate(outside, 0)",
    "remove": "outside.unlink()",
    "move": 'outside.rename(scratch / "stolen")',
    "link": 'os.link(outside, scratch / "second")',
    "through a link": '(scratch / "out").symlink_to(outside.parent); (scratch / "out" / "new").write_text("x")',
    "folder": '(outside.parent / "new").mkdir()',
    "mode": "outside.chmod(0o777)",
    "time of day": "__import__('time').clock_settime(0, 0)",
    "shared memory": 'Path("/dev/shm/ccfs-test").write_text("x")',
    "terminal": 'open("/dev/tty", "w")',
    "internet": 'import socket; socket.socket().connect(("127.0.0.1", 9))',
    "unix socket": "import socket; socket.socket(socket.AF_UNIX)",
    "signal": "os.kill(os.getppid(), 0)",
    "limits of others": "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0))",
    "priority of others": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "processors of others": "os.sched_setaffinity(os.getppid(), {0})",
    "session of its own": "os.setsid()",
    "group of its own": "os.setpgid(0, 0)",
    "file in memory": 'os.memfd_create("x")',
    "shared memory that stays": "called('shmget', 0, 1 << 20, 0o1600)",
    "message queue that stays": "called('mq_open', b'/ccfs-test', os.O_CREAT | os.O_RDWR, 0o600, None)",
    "memory of others": 'open(f"/proc/{os.getppid()}/mem", "r+b")',
    "memory": "bytearray(2 << 30)",
    "large file": '(scratch / "large").write_bytes(bytes(2 << 20))',
    "many files": "kept = [open(os.devnull) for _ in range(100)]",
}


@pytest.mark.parametrize("name", REFUSED)
def test_confined_process_is_refused(tmp_path, name):
    scratch, outside = tmp_path / "scratch", tmp_path / "outside.txt"
    scratch.mkdir()
    outside.write_text("kept")
    mode = outside.stat().st_mode
    command = [
        sys.executable,
        "-c",
        TRY,
        str(scratch),
        str(outside),
        f"import signal; signal.signal(25, 1); {REFUSED[name]}",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    free, answer = ended.stdout.splitlines()
    assert free == "()", ended.stdout
    assert answer.startswith("refused"), (answer, ended.stderr)
    assert (outside.read_text(), outside.stat().st_mode) == ("kept", mode)
    assert {path.name for path in tmp_path.iterdir()} == {"scratch", "outside.txt"}


def test_confined_process_can_compute_and_start_programs_that_are_confined_too(tmp_path):
    scratch, outside = tmp_path / "scratch", tmp_path / "outside.txt"
    scratch.mkdir()
    body = (
        "import numpy, resource, subprocess; resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32)); "
        "os.sched_setaffinity(0, os.sched_getaffinity(0)); numpy.ones((300, 300)) @ numpy.ones((300, 300)); "
        "assert subprocess.run(['touch', str(outside)], capture_output=True).returncode == 1; "
        "assert subprocess.run(['touch', str(scratch / 'own')]).returncode == 0"
    )
    command = [sys.executable, "-c", TRY, str(scratch), str(outside), body]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout.splitlines() == ["()", "done"], ended.stderr
    assert (scratch / "own").exists()
    assert not outside.exists()


def test_excess_counts_files_and_levels_and_refuses_what_it_cannot_read(tmp_path):
    for number in range(5):
        (tmp_path / str(number)).write_bytes(bytes(1 << 16))
    group = os.getpgrp()
    settings = {"processes": 1 << 20, "resident": 1 << 50}
    assert excess(group, tmp_path, Confinement(**settings, files=5)) is None
    assert excess(group, tmp_path, Confinement(**settings, files=4)) == "more than 4 files"
    assert excess(group, tmp_path, Confinement(**settings, written=1 << 18)) == "more than 0 MiB of files"
    assert excess(group, tmp_path, Confinement(processes=0)) == "more than 0 processes"
    (tmp_path / "/".join("x" * 33)).mkdir(parents=True)
    assert excess(group, tmp_path, Confinement(**settings)) == "more than 32 levels of folders"


def test_remove_tree_removes_deep_and_closed_folders_and_follows_no_link(tmp_path):
    folder, kept, before = tmp_path / "scratch", tmp_path / "kept", os.getcwd()
    kept.mkdir()
    (kept / "file").write_text("kept")
    folder.mkdir()
    (folder / "link").symlink_to(kept)
    (folder / "closed" / "inside").mkdir(parents=True)
    (folder / "closed" / "inside" / "link").symlink_to(kept)
    (folder / "closed").chmod(0)
    os.chdir(folder)
    try:
        for _ in range(2000):
            os.mkdir("deep")
            os.chdir("deep")
    finally:
        os.chdir(before)
    remove_tree(folder)
    assert not folder.exists()
    assert (kept / "file").read_text() == "kept"
