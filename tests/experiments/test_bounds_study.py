"""The study of bounds of a mean: stored rows recompute, the README shows them, and betting has the value it claims."""

from __future__ import annotations

import numpy as np
import pytest
import stored_studies as stored

NAME = "bounds"


@pytest.fixture(scope="module")
def study():
    return stored.load(NAME)


@pytest.fixture(scope="module")
def rows(study):
    return study.records.read_table(stored.EXPERIMENTS / NAME / study.ROWS)


def test_bounds_study_files_are_whole(study, tmp_path):
    stored.check_stored_files(NAME, study)
    stored.check_seal_finds_a_changed_byte(NAME, study, tmp_path)


def test_bounds_study_summary_follows_from_rows(study, rows):
    assert study.summarise(rows) == stored.derived(NAME)


def test_bounds_study_readme_shows_the_rows(study, rows):
    stored.check_readme(NAME, *study.markdown(rows))


def test_bounds_study_rows_recompute(study, rows):
    again = study.compute(study.Arguments().seed, study.Arguments().delta)
    assert list(again["data"]) == list(rows["data"])
    for index in range(len(rows["data"])):
        kept = {key: value for key, value in stored.pick(rows, index).items() if key != "data"}
        made = {key: value.item() for key, value in stored.pick(again, index).items() if key != "data"}
        stored.check_same_row(kept, made, rtol=1e-12)


def test_bounds_study_shows_what_the_readme_concludes(rows):
    """Betting beats Hoeffding except on balanced coins, and Clopper-Pearson beats both on coins."""
    balanced = rows["data"] == "128 of 256 coins"
    assert ((rows["betting_lower"] > rows["hoeffding_lower"]) | balanced).all()
    assert (rows["betting_lower"] > rows["bernstein_lower"]).all()
    coins = ~np.isnan(rows["clopper_pearson_lower"])
    assert (rows["clopper_pearson_lower"][coins] > rows["betting_lower"][coins]).all()
    assert coins.sum() == 7
