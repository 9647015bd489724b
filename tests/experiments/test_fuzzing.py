"""Changed files are refused in one line or accepted rightly: a short run of the study, and its stored summary."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ccfs.files.digests import file_digest

FOLDER = Path(__file__).parents[2] / "experiments" / "fuzzing"
GOOD = ("tracebacks", "hangs", "wrong_accepts", "beyond_one_gigabyte")


def fuzzed(*words):
    command = [sys.executable, str(FOLDER / "run.py"), *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


@pytest.mark.slow
def test_changed_files_give_no_traceback_no_hang_and_no_wrong_verdict():
    code, summary = fuzzed("--seed", "7", "--cases", "100", "--minutes", "2")
    assert [summary[name] for name in GOOD] == [0, 0, 0, 0], summary["bad"]
    assert (code, summary["cases"]) == (0, 100)
    assert set(summary["by_kind"]) >= {"protocols", "certificates", "runs", "signed_runs", "zoo_entries"}


@pytest.mark.slow
def test_a_broken_check_is_found():
    code, summary = fuzzed("--seed", "7", "--cases", "60", "--minutes", "2", "--sabotage")
    assert code == 1
    assert summary["wrong_accepts"] > 0


def test_stored_summary_is_clean():
    pieces = json.loads((FOLDER / "summary.json").read_text(encoding="utf-8"))
    assert len({piece["seed"] for piece in pieces}) == len(pieces)
    for piece in pieces:
        assert [piece[name] for name in GOOD] == [0, 0, 0, 0]
        assert (piece["cases"], piece["bad"]) == (sum(piece["by_kind"].values()), [])
        assert all(piece["refused"][kind] <= count for kind, count in piece["by_kind"].items())
        assert piece["slowest_seconds"] < 10.0
        assert piece["peak_megabytes"] < 1024


def test_stored_summary_has_its_checksum_and_names_no_folder_of_a_machine():
    path = FOLDER / "summary.json"
    assert (FOLDER / "checksums.txt").read_text() == f"{file_digest(path)}  summary.json\n"
    assert not any(place in path.read_text() for place in ("/tmp/", "/home/"))


def test_page_says_how_many_cases_are_stored():
    pieces = json.loads((FOLDER / "summary.json").read_text(encoding="utf-8"))
    cases, minutes = sum(piece["cases"] for piece in pieces), sum(piece["processor_minutes"] for piece in pieces)
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"**{cases:,} cases** from {len(pieces)} seeds in {minutes:.1f} minutes of processor time" in text
