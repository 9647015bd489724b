"""The random-box study: 6,144 stored cells, their summary, and independent recomputation."""

from __future__ import annotations

import numpy as np
import pytest
import stored_studies as stored

pytestmark = pytest.mark.slow
NAME = "random_boxes"
FACTORS = ("family", "dimension", "count", "volume", "sigma", "direction", "distance")


@pytest.fixture(scope="module")
def study():
    return stored.load(NAME)


@pytest.fixture(scope="module")
def rows(study):
    return study.records.read_table(stored.EXPERIMENTS / NAME / study.ROWS)


def test_random_boxes_files_are_whole(study, tmp_path):
    stored.check_stored_files(NAME, study)
    stored.check_seal_finds_a_changed_byte(NAME, study, tmp_path)


def test_random_boxes_summary_follows_from_rows(study, rows):
    far = study.records.read_table(stored.EXPERIMENTS / NAME / study.FAR)
    assert {**study.summarise(rows), **study.summarise_far(far)} == stored.derived(NAME)


def test_random_boxes_design_is_fully_crossed(rows):
    cells = list(zip(*(rows[name].tolist() for name in FACTORS), strict=True))
    counts = {cell: cells.count(cell) for cell in set(cells[:: len(cells) // 200])}
    assert len(cells) == 6144
    assert len(set(cells)) == 4 * 3 * 2 * 2 * 2 * 2 * 2
    assert set(counts.values()) == {16}
    assert len(np.unique(rows["geometry"])) == 384


def test_random_boxes_fixed_anchor_controls_stay_below_one(rows):
    assert float(rows["fixed_ratio"].max()) < 1.0


def test_random_boxes_ratio_is_near_the_anchor_covariance(rows):
    """KL over its rate tends to the directional variance; at 0.05 scales it is within a few percent."""
    near = rows["distance"] == 0.05
    np.testing.assert_allclose(rows["kl_ratio"][near], rows["anchor_ratio"][near], rtol=0.05)


def test_random_boxes_two_kl_identities_agree(rows):
    assert float(np.abs(rows["kl_direct"] - rows["kl_path"]).max()) < 1e-13
    np.testing.assert_allclose(rows["kl"], rows["kl_path"], rtol=1e-13)


def test_random_boxes_random_rows_recompute(study, rows):
    listed, seed = study.bases(), study.Arguments().seed
    for number in np.random.default_rng(11).choice(384, size=8, replace=False):
        for cell, row in enumerate(study.base_rows(listed[int(number)], int(number), seed)):
            kept = stored.pick(rows, 16 * int(number) + cell)
            # The literal identity cancels: good to 1e-13 absolutely, not relatively.
            assert abs(float(kept.pop("kl_direct")) - float(row.pop("kl_direct"))) < 1e-13
            stored.check_same_row(kept, row, rtol=1e-11)


def test_random_boxes_agree_with_fifty_digits(study, rows):
    assert max(study.sample_errors(rows, study.Arguments().seed, 3).values()) < 1e-13
    told = stored.summary(NAME)
    assert max(told["oracle"]["worst_relative_error"].values()) < 1e-13
    assert max(told["far_tails"]["worst_relative_error"].values()) < 1e-13
    assert told["far_tails"]["least_log_occupancy"] < -4000.0


def test_random_boxes_pairs_share_centers_and_volume(study):
    for base in study.bases()[::37]:
        geometry = base.geometry(3)
        corners = {volume: geometry.bounds(volume) for volume in study.geometries.VOLUMES}
        middles = [0.5 * (low + high) for low, high in corners.values()]
        np.testing.assert_allclose(middles[0], middles[1], atol=1e-15)
        volumes = [(high - low).prod(axis=1) for low, high in corners.values()]
        np.testing.assert_allclose(volumes[0].sum(), volumes[1].sum(), rtol=1e-12)
        np.testing.assert_allclose(volumes[0], volumes[0][0], rtol=1e-12)
        assert volumes[1].max() > 1.2 * volumes[1].min()


def test_random_boxes_streams_repeat_and_differ(study):
    first, second = study.bases()[:2]
    np.testing.assert_array_equal(first.geometry(1).centers, first.geometry(1).centers)
    assert not np.array_equal(first.geometry(1).centers, first.geometry(2).centers)
    assert not np.array_equal(first.geometry(1).centers, second.geometry(1).centers)
    assert not np.array_equal(first.free_direction(1), second.free_direction(1))


def test_random_boxes_unknown_words_are_refused(study):
    with pytest.raises(ValueError, match="`family` must be one of"):
        study.geometries.draw("tidy", 2, 4, np.random.default_rng(0))
    with pytest.raises(ValueError, match="`volume` must be one of"):
        study.bases()[0].geometry(1).bounds("huge")


def test_random_boxes_figure_redraws_from_rows(study, rows, tmp_path):
    study.figure(rows, tmp_path / study.FIGURE)
    for folder in (tmp_path, stored.EXPERIMENTS / NAME):
        stored.check_picture(folder / study.FIGURE)


def test_random_boxes_readme_shows_the_stored_numbers():
    told = stored.summary(NAME)
    above = f"{told['covariance_direction_above_one']} from {told['covariance_direction_geometries_above_one']}"
    maxima = ("covariance_direction_max_ratio", "independent_direction_max_ratio", "fixed_anchor_max_ratio")
    stored.check_readme(NAME, above, *(f"{told[name]:.4f}" for name in maxima))
