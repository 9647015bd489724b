"""The reach-avoid study: its stored states, their summary, and independent recomputation."""

from __future__ import annotations

import numpy as np
import pytest
import stored_studies as stored
from scipy.stats import norm

pytestmark = pytest.mark.slow
NAME = "reach_avoid"


@pytest.fixture(scope="module")
def study():
    return stored.load(NAME)


@pytest.fixture(scope="module")
def rows(study):
    return study.records.read_table(stored.EXPERIMENTS / NAME / study.ROWS)


def test_reach_avoid_files_are_whole(study, tmp_path):
    stored.check_stored_files(NAME, study)
    stored.check_seal_finds_a_changed_byte(NAME, study, tmp_path)


def test_reach_avoid_summary_follows_from_rows(study, rows):
    assert study.summarise(rows) == stored.derived(NAME)


def test_reach_avoid_population_is_the_papers_size(rows):
    assert len(rows["layout"]) == 448
    assert [int(n) for n in np.bincount(rows["layout"])] == [7] * 64


def test_reach_avoid_joint_radius_crosses_nowhere(rows):
    assert np.all(rows["joint_radius"] > 0.0)
    assert np.all(rows["joint_radius"] < rows["boundary_distance"])
    assert rows["label_changes_on_joint_circle"].sum() == 0


def test_reach_avoid_random_rows_recompute(study, rows):
    seed = study.Arguments().seed
    for number in np.random.default_rng(5).choice(64, size=6, replace=False):
        for state, row in enumerate(study.layout_rows(int(number), seed)):
            stored.check_same_row(stored.pick(rows, 7 * int(number) + state), row, rtol=1e-11)


def test_reach_avoid_boxes_recompute_and_avoid_the_obstacles(study):
    kept = study.records.read_table(stored.EXPERIMENTS / NAME / study.BOXES)
    fresh = study.drawn_boxes(study.Arguments().seed)
    for name, column in fresh.items():
        np.testing.assert_allclose(kept[name], column, rtol=1e-15)
    rng = np.random.default_rng(9)
    for number in rng.choice(64, size=8, replace=False):
        layout = study.layouts.draw(int(number), study.Arguments().seed)
        boxes, labels = layout.feasible()
        for forward, lateral in rng.uniform([0.0, -1.2], [1.2, 1.2], size=(200, 2)):
            # Decided from the obstacles alone, without the rectangles.
            free = abs(lateral) <= 1.0 and layout.free_distance(lateral) >= forward >= study.layouts.HEADWAY
            inside = np.all((boxes.lows <= [forward, lateral]) & (boxes.highs >= [forward, lateral]), axis=1)
            assert bool(inside.any()) == free
            if free:
                assert labels[int(np.argmax(inside))] == int(lateral > layout.middle)


def test_reach_avoid_label_flips_at_the_boundary(study, rows):
    for index in np.random.default_rng(6).choice(448, size=12, replace=False):
        layout = study.layouts.draw(int(rows["layout"][index]), study.Arguments().seed)
        boxes, labels = layout.feasible()
        root = float(rows["boundary"][index])
        winners = [
            int(np.argmax(boxes.label_masses([study.layouts.NOMINAL_FORWARD, root + step], labels)))
            for step in (-1e-11, 1e-11)
        ]
        assert winners == [0, 1]


def test_reach_avoid_masses_agree_with_scipy(study, rows):
    """Oracle: scipy.stats.norm.cdf differences, good to 1e-12 where nothing is in a far tail."""
    for index in np.random.default_rng(7).choice(448, size=12, replace=False):
        boxes, labels = study.layouts.draw(int(rows["layout"][index]), study.Arguments().seed).feasible()
        at = np.asarray([study.layouts.NOMINAL_FORWARD, rows["lateral_center"][index]])
        sides = [norm.cdf((end - at) / study.layouts.SIGMA) for end in (boxes.lows, boxes.highs)]
        masses = np.bincount(labels, weights=(sides[1] - sides[0]).prod(axis=1))
        np.testing.assert_allclose(masses.max(), rows["top_mass"][index], rtol=1e-11)
        np.testing.assert_allclose(masses.min(), rows["runner_mass"][index], rtol=1e-11)


def test_reach_avoid_agrees_with_fifty_digits(study, rows):
    worst = study.sample_errors(rows, study.Arguments().seed, 4)
    assert max(worst.values()) < 1e-11
    assert max(stored.summary(NAME)["oracle"]["worst_relative_error"].values()) < 1e-11


def test_reach_avoid_figure_redraws_from_rows(study, rows, tmp_path):
    boxes = study.records.read_table(stored.EXPERIMENTS / NAME / study.BOXES)
    study.figure(rows, boxes, tmp_path / study.FIGURE)
    for folder in (tmp_path, stored.EXPERIMENTS / NAME):
        stored.check_picture(folder / study.FIGURE)


def test_reach_avoid_readme_shows_the_stored_numbers():
    found = stored.summary(NAME)
    joint, substituted = found["joint_radius"], found["substituted_radius"]
    stored.check_readme(
        NAME,
        f"{found['substituted_crosses']} of 448",
        f"{found['joint_crosses']} of 448",
        *(f"{value:.4f}" for value in (*joint.values(), *substituted.values())),
        f"{found['joint_over_boundary']['median']:.4f}",
        f"{found['joint_over_boundary']['max']:.4f}",
        f"{found['joint_over_substituted_median']:.4f}",
        f"{found['least_substituted_excess']:.2e}",
        f"{found['least_joint_slack']:.2e}",
    )
