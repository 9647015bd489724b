"""The stored outcome of the long comparison with stock: intact, eventful, and without a difference."""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path

import pytest

from ccfs.envs.safety import fast
from ccfs.files.code import file_code_digest

RESULTS = Path(__file__).parents[2] / "experiments" / "exactness" / "results"
FILES = sorted(RESULTS.glob("*.json"))


def test_the_main_task_is_stored():
    assert "SafetyPointGoal2-v0.json" in [path.name for path in FILES]


def test_checksums_cover_every_result():
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in FILES]
    assert (RESULTS / "checksums.txt").read_text().splitlines() == lines


@pytest.fixture(scope="module")
def digest_of_source():
    """One digest over the code behind a fast step: `fast.py` and what it imports from its folder, read here anew."""
    folder = Path(fast.__file__).parent
    pending, found = ["fast"], set()
    while pending:
        name = pending.pop()
        found.add(name)
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "ccfs.envs.safety":
                pending += [alias.name for alias in node.names if alias.name not in found]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ccfs.envs.safety."):
                pending += [part for part in [node.module.rsplit(".", 1)[1]] if part not in found]
    told = "".join(f"{name} {file_code_digest(folder / f'{name}.py')}\n" for name in sorted(found))
    return hashlib.sha256(told.encode()).hexdigest()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_result_is_of_the_source_of_today(path, digest_of_source):
    assert json.loads(path.read_text())["sha256_of_source"] == digest_of_source


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_result_compares_fifty_eventful_episodes(path):
    result = json.loads(path.read_text())
    events = result["events"]
    assert result["task"] == path.stem
    assert result["differences"] == 0
    assert events["episodes"] + events.get("refused_resets", 0) == 50
    assert events["steps"] == 1000 * events["episodes"]
    assert events["episodes"] >= 45
    assert min(events["goal_met"], events["cost_sum"], events["out_of_range_actions"], events["float32_actions"]) > 0
    assert all(count > 0 for name, count in events.items() if name.startswith("cost_"))
    assert f"--tasks {path.stem} --seeds 50 --steps 1000" in result["command"]
    assert result["versions"]["safety-gymnasium"] == "1.0.0"
    assert result["versions"]["mujoco"] == "2.3.3"
