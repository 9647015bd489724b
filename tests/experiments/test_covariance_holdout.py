"""The held-out covariance replication: 1,024 stored rows, their summary, and independent recomputation."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import stored_studies as stored
from scipy.stats import binomtest

pytestmark = pytest.mark.slow
NAME = "covariance_holdout"


@pytest.fixture(scope="module")
def study():
    return stored.load(NAME)


@pytest.fixture(scope="module")
def rows(study):
    return study.records.read_table(stored.EXPERIMENTS / NAME / study.ROWS)


def test_covariance_holdout_files_are_whole(study, tmp_path):
    stored.check_stored_files(NAME, study)
    stored.check_seal_finds_a_changed_byte(NAME, study, tmp_path)


def test_covariance_holdout_summary_follows_from_rows(study, rows):
    assert study.summarise(rows) == stored.derived(NAME)


def test_covariance_holdout_has_the_papers_size(rows):
    assert len(rows["kl"]) == 1024
    assert np.bincount(rows["geometry"]).tolist() == [8] * 128
    assert sorted(set(rows["dimension"].tolist())) == [10, 20]


def test_covariance_holdout_identities_agree(rows):
    assert float(np.abs(rows["kl_direct"] - rows["kl_path"]).max()) < 1e-13
    np.testing.assert_allclose(rows["kl"], rows["kl_path"], rtol=1e-13)


@pytest.mark.parametrize(("wins", "losses"), [(14, 0), (25, 0), (3, 4), (0, 0), (10, 2)])
def test_covariance_holdout_sign_test_is_exact(study, wins, losses):
    """Oracle: scipy.stats.binomtest, and 2^-14 = 6.10e-5 for the paper's fourteen to none."""
    value = study.sign_test(wins, losses)
    total = wins + losses
    if total:
        assert float(value) == pytest.approx(binomtest(wins, total, alternative="greater").pvalue, rel=1e-12)
    assert study.sign_test(14, 0) == Fraction(1, 2**14)


def test_covariance_holdout_random_rows_recompute(study, rows):
    for number in np.random.default_rng(13).choice(128, size=5, replace=False):
        for cell, row in enumerate(study.geometry_rows(int(number), study.Arguments().seed)):
            kept = stored.pick(rows, 8 * int(number) + cell)
            # The literal identity cancels: good to 1e-13 absolutely, not relatively.
            assert abs(float(kept.pop("kl_direct")) - float(row.pop("kl_direct"))) < 1e-13
            stored.check_same_row(kept, row, rtol=1e-11)


def test_covariance_holdout_geometries_are_not_the_first_studys(study):
    first = stored.load("random_boxes")
    mine = study.geometry_moves(0, 0.25, study.Arguments().seed).boxes
    for base in first.bases():
        if (base.family, base.dimension, base.count) == ("coherent", 10, 16):
            assert not np.array_equal(base.geometry(first.Arguments().seed).bounds("balanced")[0], mine.lows)
    assert study.Arguments().seed != first.Arguments().seed


def test_covariance_holdout_agrees_with_fifty_digits(study, rows):
    assert max(study.sample_errors(rows, study.Arguments().seed, 2).values()) < 1e-13
    assert max(stored.summary(NAME)["oracle"]["worst_relative_error"].values()) < 1e-13


def test_covariance_holdout_figure_redraws_from_rows(study, rows, tmp_path):
    study.figure(rows, tmp_path / study.FIGURE)
    for folder in (tmp_path, stored.EXPERIMENTS / NAME):
        stored.check_picture(folder / study.FIGURE)


def test_covariance_holdout_readme_shows_the_stored_numbers():
    told = stored.summary(NAME)
    stored.check_readme(
        NAME,
        f"{told['geometries_above_one']['covariance']} and {told['geometries_above_one']['independent']}",
        f"{told['rows_above_one']['covariance']} and {told['rows_above_one']['independent']}",
        f"{told['sign_test']['p_value']:.2e}",
        f"{told['geometries_with_greater_covariance_maximum']} of 128",
        f"{told['median_difference_of_maxima']:.4f}",
        f"{told['least_spearman']:.4f}",
        f"{told['direct_and_path_max_difference']:.2e}",
    )
