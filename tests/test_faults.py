"""Every command that writes, on a disk that fails: it says so in a sentence, and the next call gives the same bytes.

These are some moments of each command. `experiments/faults` goes through all of them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import failing_disk
import pytest
from breakable import COMMANDS, Bench
from failing_disk import Disk, Fault

from ccfs.controllers.training import runner
from ccfs.files import atomic, lock
from ccfs.files.atomic import write_atomically
from ccfs.files.digests import file_digest

pytestmark = [pytest.mark.slow, pytest.mark.extras]
STORED = Path(__file__).parents[1] / "experiments" / "faults"
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


def stored(name):
    return json.loads((STORED / f"{name}.json").read_text(encoding="utf-8"))


def test_stored_study_tried_every_command_and_fault_and_found_nothing():
    found = stored("summary")
    assert set(found["commands"]) == set(BY_NAME)
    assert found["wrong"] == []
    for by_fault in found["commands"].values():
        assert set(by_fault) == {fault.value for fault in Fault}
        for counts in by_fault.values():
            assert counts["tried"] == counts["moments"] > 0


@pytest.mark.parametrize("name", ["sign", "image report"])
def test_stored_study_knows_every_moment_of_today(name, tmp_path):
    """A command that does more on the disk than when the study was made has moments that nobody tried."""
    bench = Bench(BY_NAME[name], tmp_path / "bench")
    found = stored("summary")["commands"][name]
    assert {fault.value: bench.moments(fault) for fault in Fault} == {
        fault: counts["moments"] for fault, counts in found.items()
    }


def test_page_of_the_study_says_how_much_was_tried():
    by_fault = [counts for each in stored("summary")["commands"].values() for counts in each.values()]
    tried, moments = (sum(counts[key] for counts in by_fault) for key in ("tried", "moments"))
    assert f"**{tried:,} of {moments:,} cases**" in (STORED / "README.md").read_text(encoding="utf-8")


def test_stored_files_have_their_checksums_and_name_no_folder_of_a_machine():
    lines = (STORED / "checksums.txt").read_text(encoding="utf-8").splitlines()
    sealed = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    assert sealed == {path.name: file_digest(path) for path in STORED.glob("*.json")}
    assert not any("/tmp/" in path.read_text() or "/home/" in path.read_text() for path in STORED.glob("*.json"))


def test_page_says_what_came_of_the_signals():
    """Either the page says that there is no summary, or it tells the counts of one in which nothing was wrong."""
    text = (STORED / "README.md").read_text(encoding="utf-8")
    if not (STORED / "signals.json").exists():
        assert "No summary of it is stored here yet." in text
        return
    found = stored("signals")
    assert found["wrong"] == []
    counts = [each for by_kind in found["commands"].values() for each in by_kind.items()]
    assert {kind for kind, _ in counts} <= {"one sentence", "had finished", "before our code, or after it"}
    total, told = sum(count for _, count in counts), sum(count for kind, count in counts if kind == "one sentence")
    assert f"**{total} signals** to {len(found['commands'])} commands, {told} of them while our code ran" in text


def test_stored_exits_are_all_clean_and_the_page_says_how_many_there_are():
    found = stored("exits")
    assert len(found["exit_codes"]) == 15
    for name, codes in found["exit_codes"].items():
        assert codes == {"0": found["rounds"]}, name
    text = (STORED / "README.md").read_text(encoding="utf-8")
    total = found["rounds"] * len(found["exit_codes"])
    assert f"**{total} processes**, {found['rounds']} of each of {len(found['exit_codes'])} commands" in text


def test_stored_cluster_came_to_the_same_bytes_after_every_break():
    cases = stored("cluster")["cases"]
    assert len(cases) == 5
    for name, case in cases.items():
        assert case["same_bytes"], name
        assert case["batches_before"] >= 8
        if "scheduler" in name:
            assert (case["exit_code"], case["exit_code_of_the_next_call"], len(case["said"])) == (2, 0, 1)
        else:
            assert (case["exit_code"], case["said"]) == (0, [])
