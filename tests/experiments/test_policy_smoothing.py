"""The comparison with Policy Smoothing: stored files are whole, and rows, summary and page follow from the totals."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import stored_studies as stored
from scipy.stats import beta, norm

from ccfs.controllers.actor import NumpyActor

pytestmark = pytest.mark.slow
NAME = "policy_smoothing"
FOLDER = stored.EXPERIMENTS / NAME


@pytest.fixture(scope="module")
def study():
    return stored.load(NAME)


@pytest.fixture(scope="module")
def totals(study):
    return study.records.read_table(FOLDER / study.TOTALS)


@pytest.fixture(scope="module")
def rows(study):
    return study.records.read_table(FOLDER / study.ROWS)


def test_policy_smoothing_files_are_whole(study, tmp_path):
    stored.check_stored_files(NAME, study)
    stored.check_seal_finds_a_changed_byte(NAME, study, tmp_path)
    stored.check_picture(FOLDER / study.FIGURE)


def test_policy_smoothing_rows_and_summary_follow_from_the_totals(study, totals, rows):
    again = study.compute(totals)
    np.testing.assert_array_equal(again["ours"], rows["ours"])
    np.testing.assert_allclose(again["theirs"], rows["theirs"], rtol=1e-12)
    assert study.summarise(rows, totals) == stored.derived(NAME)


def test_policy_smoothing_formula_is_theirs(study, totals):
    """Oracle: scipy's beta quantile for the bound of each threshold, and a sum over thresholds."""
    returns = totals["total"][totals["task"] == "cartpole"]
    count = len(returns)
    hits = [int((returns >= k).sum()) for k in range(1, 201)]
    lower = [beta.ppf(0.01 / 200, s, count - s + 1) if s else 0.0 for s in hits]
    expected = float(sum(norm.cdf(norm.ppf(p) - 0.3 / 0.2) for p in lower))
    assert study.theirs("cartpole", returns, (0.3,))[0] == pytest.approx(expected, rel=1e-9)


def test_policy_smoothing_page_shows_the_stored_rows(rows):
    names = {"cartpole": "CartPole-v1", "pendulum": "Pendulum-v1"}
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    shown = [line.split("|")[1:5] for line in text.splitlines() if line.startswith(("| CartPole", "| Pendulum"))]
    assert len(shown) == 8
    for task, budget, ours, theirs in shown:
        name = next(key for key, value in names.items() if value == task.strip())
        (at,) = np.flatnonzero((rows["task"] == name) & (rows["budget"] == float(budget)))
        # Rounded down, as everything certified is.
        assert float(ours) == np.floor(100 * rows["ours"][at]) / 100
        assert float(theirs) == np.floor(100 * rows["theirs"][at]) / 100


@pytest.mark.parametrize("name", ["cartpole", "pendulum"])
def test_policy_smoothing_agents_are_those_of_their_cards(name):
    card = json.loads((FOLDER / "agents" / f"{name}.json").read_text(encoding="utf-8"))
    content = (FOLDER / "agents" / f"{name}.npz").read_bytes()
    assert hashlib.sha256(content).hexdigest() == card["sha256"]
    assert NumpyActor.load(FOLDER / "agents" / f"{name}.npz").digest == card["digest"]
