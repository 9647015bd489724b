"""The navigator's stored record says what its rows say, and the guarded protocol builds as it is written."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest

from ccfs.controllers.navigator import MapGuard, NavigatorFallback
from ccfs.protocol.model import load_protocol
from ccfs.runs.build import build_arm

HERE = Path(__file__).parents[2] / "experiments" / "navigator"


@pytest.fixture(scope="module")
def record():
    spec = importlib.util.spec_from_file_location("navigator_record", HERE / "record.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_summary_follows_from_the_rows(record):
    summary = json.loads((HERE / "summary.json").read_text(encoding="utf-8"))
    assert hashlib.sha256((HERE / "record.csv").read_bytes()).hexdigest() == summary["record_sha256"]
    with (HERE / "record.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len({(row["sigma"], row["seed"]) for row in rows}) == len(rows) == sum(a["trials"] for a in summary["arms"])
    assert all(int(row["seed"]) in record.DEVELOPMENT for row in rows)
    for arm in summary["arms"]:
        counts = Counter(row["outcome"] for row in rows if float(row["sigma"]) == arm["sigma"])
        assert {name: counts[name] for name in ("goal", "cost", "timeout")} == {
            n: arm[n] for n in ("goal", "cost", "timeout")
        }
        assert arm["budget_if_certified"] == record.budget(counts["goal"], arm["trials"], arm["sigma"])


def test_guarded_protocol_builds_one_guard_and_an_ordered_library(record):
    protocol = load_protocol(HERE / "guarded.toml")
    assert all(seed in record.DEVELOPMENT for seed in protocol.trials.seeds)
    assert [entry.name for entry in protocol.program.fallbacks] == ["navigator", "brake", "stop", "brake-anyway"]
    wrapped, _ = build_arm(protocol, protocol.arms[0], None)
    program = wrapped._selector._program
    assert isinstance(program.verifier, MapGuard)
    assert isinstance(program.fallbacks[0].fallback, NavigatorFallback)
    assert program.unverified_fallbacks == ("brake-anyway",)
    wrapped.close()
