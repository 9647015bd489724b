"""The kernels study: stored radii, their summary, and independent recomputation of probabilities and boundaries."""

from __future__ import annotations

import math

import numpy as np
import pytest
import stored_studies as stored

from ccfs.certificates.occupancy import BoxUnion

pytestmark = pytest.mark.slow
NAME = "kernels"


@pytest.fixture(scope="module")
def study():
    return stored.load(NAME)


@pytest.fixture(scope="module")
def rows(study):
    return study.records.read_table(stored.EXPERIMENTS / NAME / study.ROWS)


def test_kernels_files_are_whole(study, tmp_path):
    stored.check_stored_files(NAME, study)
    stored.check_seal_finds_a_changed_byte(NAME, study, tmp_path)


def test_kernels_summary_follows_from_rows(study, rows):
    assert study.summarise(rows) == stored.derived(NAME)


def test_kernels_sound_radii_cross_no_label_change(rows):
    sound = rows["certificate"] != "substituted, UNSOUND"
    assert np.all(rows["radius"][sound] < rows["boundary"][sound])
    assert np.all(rows["radius"] > 0.0)


def test_kernels_random_rows_recompute(study, rows):
    per_center = len(study.CERTIFICATES)
    for number in np.random.default_rng(17).choice(study.SKYLINES, size=1).tolist():
        for index, row in enumerate(study.center_rows(number, 1, study.Arguments().seed)):
            kept = stored.pick(rows, per_center * (study.CENTERS * number + 1) + index)
            # The search over rays stops at an angle of 1e-3: its distance is the coarser number.
            assert float(kept.pop("boundary")) == pytest.approx(row.pop("boundary"), rel=1e-6)
            stored.check_same_row(kept, row, rtol=1e-9)


def test_kernels_repair_and_mixtures_agree_with_sampling(study):
    """Oracle: 200,000 draws, repaired or conditioned by hand; five standard errors, a false alarm in about 1e-6."""
    seed, rng, draws = study.Arguments().seed, np.random.default_rng(31), 200_000
    skyline, center = study.skylines.draw(2, seed), study.skylines.center(2, seed, 0)
    boxes = skyline.components

    def label(points):
        inside = (skyline.regions.lows[None] <= points[:, None]) & (points[:, None] <= skyline.regions.highs[None])
        return np.asarray(skyline.labels)[np.argmax(inside.all(axis=2), axis=1)]

    noise = center + study.skylines.SIGMA * rng.standard_normal((draws, 2))
    column = rng.choice(boxes.count, size=draws, p=skyline.weights)
    clipped = np.clip(noise, boxes.lows[column], boxes.highs[column])
    share = float((label(clipped) == 1).mean())
    assert float(skyline.repair(center)[1]) == pytest.approx(share, abs=5 * 0.5 / math.sqrt(draws))
    kept = noise[((noise[:, None] >= boxes.lows) & (noise[:, None] <= boxes.highs)).all(axis=2).any(axis=1)]
    share = float((label(kept) == 1).mean())
    assert float(skyline.conditioning(center)[1]) == pytest.approx(share, abs=5 * 0.5 / math.sqrt(len(kept)))


def test_kernels_anchored_at_temperature_one_is_conditioning(study):
    seed = study.Arguments().seed
    skyline, anchor = study.skylines.draw(4, seed), study.skylines.center(4, seed, 0)
    kernels = skyline.kernels(anchor)
    points = anchor + np.random.default_rng(1).normal(scale=0.3, size=(20, 2))
    np.testing.assert_allclose(kernels["anchored 1.0"](points), kernels["conditioning"](points), rtol=1e-10)


def test_kernels_nearest_change_finds_a_known_boundary(study):
    """One box split at level 0.2: whatever the kernel, symmetry in the other axis puts the nearest tie right above."""
    box = BoxUnion([[-50.0, -0.3]], [[50.0, 0.7]], study.skylines.SIGMA)
    regions = BoxUnion([[-50.0, -0.3], [-50.0, 0.2]], [[50.0, 0.2], [50.0, 0.7]], study.skylines.SIGMA)
    skyline = study.skylines.Skyline(components=box, weights=np.ones(1), regions=regions, labels=(0, 1))
    for kernel in (skyline.repair, skyline.fixed, skyline.conditioning):
        assert study.nearest_change(kernel, np.asarray([0.0, 0.05])) == pytest.approx(0.15, abs=1e-6)


def test_kernels_agree_with_fifty_digits(study, rows):
    assert max(study.sample_errors(rows, study.Arguments().seed, 6).values()) < 1e-12
    assert max(stored.summary(NAME)["oracle"]["worst_relative_error"].values()) < 1e-12


def test_kernels_figure_redraws_from_rows(study, rows, tmp_path):
    study.figure(rows, study.Arguments().seed, tmp_path / study.FIGURE)
    for folder in (tmp_path, stored.EXPERIMENTS / NAME):
        stored.check_picture(folder / study.FIGURE)


def test_kernels_readme_shows_the_stored_numbers():
    for name, found in stored.summary(NAME)["certificates"].items():
        shares = (found["median_share_of_boundary"], found["greatest_share_of_boundary"])
        numbers = " | ".join((f"{found['median_radius']:.4f}", *(f"{share:.3f}" for share in shares)))
        stored.check_readme(NAME, f"| {name} | {found['crosses']} of {found['label_change_located']} | {numbers} |")
