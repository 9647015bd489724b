"""Every command that writes, on a disk that fails: it says so in a sentence, and the next call gives the same bytes.

These are some moments of each command. `experiments/faults` goes through all of them.
"""

from __future__ import annotations

import os
import random
import shutil

import failing_disk
import pytest
from breakable import COMMANDS, Bench
from failing_disk import Disk, Fault

from ccfs.controllers.training import runner
from ccfs.files import atomic, lock
from ccfs.files.atomic import write_atomically

pytestmark = [pytest.mark.slow, pytest.mark.extras]
BY_NAME = {command.name: command for command in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS, ids=BY_NAME)
def test_command_survives_a_failing_disk(command, tmp_path):
    bench = Bench(command, tmp_path / "bench")
    coin = random.Random(command.name)
    for fault in Fault:
        moment = coin.randrange(bench.moments(fault))
        assert bench.broken(fault, moment) == [], (fault, moment)


def found(name, tmp_path, *moments, fault=Fault.POWER):
    bench = Bench(BY_NAME[name], tmp_path / "bench")
    return [wrong for moment in moments for wrong in bench.broken(fault, moment % bench.moments(fault))]


def test_bench_finds_names_that_are_not_synced(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_sync_folder", lambda folder: None)
    assert any("after a power cut at the end" in wrong for wrong in found("certify", tmp_path, 0))


def test_bench_finds_contents_that_are_not_synced(tmp_path, monkeypatch):
    monkeypatch.setattr(failing_disk, "_unwatched", lambda path: b"")
    assert any("after a power cut at the end" in wrong for wrong in found("train", tmp_path, 0))


def test_bench_finds_what_a_killed_process_left_unsynced(tmp_path, monkeypatch):
    """Killed after a folder was made and before it was synced, then called again, then a power cut."""
    assert found("train", tmp_path, *range(8), fault=Fault.KILL) == []
    for module in (lock, runner):
        monkeypatch.setattr(module, "settle", lambda folder: None)
    shutil.rmtree(tmp_path / "bench")
    wrong = found("train", tmp_path, *range(8), fault=Fault.KILL)
    assert any("after a power cut at the end" in each for each in wrong)


def test_disk_refuses_a_file_that_is_written_in_place(tmp_path):
    with pytest.raises(AssertionError, match="written in place"), Disk(tmp_path).watched():
        (tmp_path / "file").write_bytes(b"x")


def test_disk_keeps_after_a_power_cut_what_was_synced(tmp_path):
    disk = Disk(tmp_path)
    with disk.watched():
        write_atomically(tmp_path / "synced" / "file", b"x")
        os.mkdir(tmp_path / "lost")
    disk.cut_power(Fault.POWER)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "synced"]
    assert (tmp_path / "synced" / "file").read_bytes() == b"x"
