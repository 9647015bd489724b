"""The study of runs without traces: its command on few trials, and its stored results recomputed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr

from ccfs.certificates.bounds import Bound
from ccfs.certificates.trajectory import certify_event
from ccfs.files.digests import file_digest
from ccfs.files.merkle import MerkleTree, least_exposed
from ccfs.files.parquet import read_parquet
from ccfs.protocol.model import load_protocol
from ccfs.runs.judging import leaf
from ccfs.runs.record import TrajectoryRow, lines_of

FOLDER = Path(__file__).parents[2] / "experiments" / "million"
PROTOCOLS = {"million": "protocol.toml", "navigator": "navigator.toml"}
STORED = sorted(path.stem for path in FOLDER.glob("*.json"))


def stored(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def test_study_has_a_million_trials():
    assert set(STORED) == set(PROTOCOLS)
    assert stored("million")["trials"] == 1_000_000


def test_page_tells_what_is_stored():
    found, text = stored("million"), (FOLDER / "README.md").read_text(encoding="utf-8")
    words = {"run": "run --workers 1", "certify": "certify", "verify": "verify --run", "audit": "audit --replay 3000"}
    for name, part in found["commands"].items():
        seconds, megabytes = part["processor_seconds"], part["peak_megabytes"]
        assert f"| `ccfs {words[name]}` | {seconds:.0f} s | {megabytes:.0f} MB |" in text
    assert f"{found['bytes'] / 1e6:.1f} MB on the disk in {found['files']:,} files" in text
    assert f"{found['successes']:,} of {found['trials']:,} trials pass the post" in text
    names = ("million.json", "navigator.json", "navigator.parquet")
    assert (FOLDER / "checksums.txt").read_text() == "".join(f"{file_digest(FOLDER / n)}  {n}\n" for n in names)


@pytest.mark.parametrize("name", STORED)
def test_stored_certificate_follows_from_its_counts(name):
    found = stored(name)
    made = load_protocol(FOLDER / PROTOCOLS[name])
    assert (found["protocol"], found["trials"]) == (made.hash, made.trials.count)
    proof = certify_event(
        found["successes"],
        found["trials"],
        delta=made.claim.delta,
        family=made.family,
        target=made.claim.target,
        schedule=made.arms[0].schedule.plan,
        bound=Bound.CLOPPER_PEARSON,
        event=made.events[0].name,
    )
    assert (found["p_lower"], found["budget"]) == (proof.p_lower, proof.budget)
    assert found["certificate"]["successes"] == found["successes"]


@pytest.mark.parametrize("name", STORED)
def test_stored_audit_is_clean_and_says_what_its_draw_exposes(name):
    found = stored(name)
    told = found["audit"]
    assert (told["faults"], told["unchecked"], told["trajectories"]) == ([], [], found["trials"])
    for part in told["exposure"]:
        least = least_exposed(found["trials"], told["replayed"], per_cent=round(100 * part["probability"]))
        assert part["forged"] == least
    if name == "million":
        assert found["bytes"] <= 100 * found["trials"]


def passing_probability(points=1201, reach=3.0):
    """The probability of passing the post, by following the law of the position on a grid.

    The position moves to 0.8 x + 0.2 z if the action 0.2 z - 0.2 x is accepted, and to 0.8 x otherwise.
    """
    x = np.linspace(-reach, reach, points)
    step = x[1] - x[0]
    edges = np.concatenate([x - step / 2, [x[-1] + step / 2]])
    low, high = x[:, None] - 0.45, x[:, None] + 0.45  # where accepted actions lead
    cut = np.clip(edges[None, :], low, high)
    moves = np.diff(ndtr((cut - 0.8 * x[:, None]) / 0.2), axis=1)
    left = 1.0 - moves.sum(axis=1)
    place = (0.8 * x + reach) / step
    floor = np.floor(place).astype(int).clip(0, points - 2)
    share = place - floor
    np.add.at(moves, (np.arange(points), floor), left * (1.0 - share))
    np.add.at(moves, (np.arange(points), floor + 1), left * share)
    law = np.zeros(points)
    law[points // 2] = 1.0
    for _ in range(20):
        law = law @ moves
    # The post is in the middle of a cell.
    return float(law[x < 0.8 - step / 2].sum() + law[np.isclose(x, 0.8)].sum() / 2)


def test_navigator_is_counted_again_from_its_lines_and_they_give_the_root_of_the_certificate():
    found, protocol = stored("navigator"), load_protocol(FOLDER / "navigator.toml")
    rows = lines_of(TrajectoryRow, read_parquet((FOLDER / "navigator.parquet").read_bytes()))
    arm, tree = protocol.arms[0], MerkleTree()
    assert [row.trial for row in rows] == list(range(found["trials"]))
    inside = [
        row.goal_step is not None and (row.first_cost_step is None or row.first_cost_step > row.goal_step)
        for row in rows
    ]
    assert sum(inside) == found["successes"]
    for row, verdict in zip(rows, inside, strict=True):
        assert row.reset_seed == protocol.streams(arm, row.trial).reset_seed
        tree.add(leaf(row, ((verdict, False),)))  # no trial was lost by how it ended
    assert tree.root == found["root"]


@pytest.mark.slow
def test_observed_rate_is_the_one_that_the_law_of_the_corridor_gives():
    """The grid is off by less than 1e-5: half as many points move the result by 8e-6. Chance adds five deviations."""
    found = stored("million")
    truth = passing_probability()
    chance = 5.0 * math.sqrt(truth * (1.0 - truth) / found["trials"])
    assert abs(found["successes"] / found["trials"] - truth) < 1e-5 + chance
    assert found["p_lower"] < truth + 1e-5


@pytest.mark.slow
def test_command_measures_a_run(tmp_path):
    words = ["--trials", "400", "--replay", "20", "--run", str(tmp_path / "run"), "--out", str(tmp_path / "out.json")]
    done = subprocess.run([sys.executable, str(FOLDER / "run.py"), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["trials"], found["audit"]["replayed"], found["audit"]["faults"]) == (400, 20, [])
    assert set(found["commands"]) == {"run", "certify", "verify", "audit"}
    assert all(part["peak_megabytes"] > 10.0 for part in found["commands"].values())
