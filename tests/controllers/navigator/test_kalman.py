"""The filter under noise: its readings against the lidar, its slopes against differences, its updates against sums."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ccfs.controllers.navigator.kalman import GOAL, GROUPS, ObjectFilter, written
from ccfs.controllers.navigator.lidar import BINS, RANGE
from ccfs.controllers.navigator.robot import MASS_AHEAD


def lidar(objects, x=0.0, y=0.0, heading=0.0):
    """Safety-Gymnasium's aliased pseudo-lidar, written from its documentation as an independent oracle."""
    readings = np.zeros(BINS)
    for east, north in objects:
        closeness = max(0.0, 1.0 - math.hypot(east - x, north - y) / RANGE)
        place = (math.atan2(north - y, east - x) - heading) % math.tau / math.tau * BINS
        index = int(place)
        for at, value in ((index, 1.0), (index + 1, place - index), (index - 1, 1.0 - place + index)):
            readings[at % BINS] = max(readings[at % BINS], value * closeness)
    return readings


def observation(groups, x=0.0, y=0.0, heading=0.0):
    """60 numbers of a robot at rest, with hazards, vases and goal around it."""
    told = np.zeros(60)
    told[9], told[10] = -0.5 * math.sin(heading), -0.5 * math.cos(heading)
    for first, objects in zip(GROUPS, groups, strict=True):
        told[first : first + BINS] = lidar(objects, x, y, heading)
    return told


def test_written_is_what_the_lidar_reads_of_one_object():
    rng = np.random.default_rng(1)
    for _ in range(200):
        point = rng.uniform(-2.0, 2.0, 2)
        place = math.atan2(point[1], point[0]) % math.tau / math.tau * BINS
        value, _, _ = written(np.array([max(0.0, 1.0 - math.hypot(*point) / RANGE)]), np.array([place]))
        np.testing.assert_allclose(value[0], lidar([point]), atol=1e-12)


def test_slopes_of_the_lidar_are_its_differences():
    """Every slope by pose and objects, against a central difference of an independently written lidar."""
    hazards, vases, goal = [(1.0, 0.31), (-0.7, 0.9)], [(0.2, -1.1)], [(1.3, 1.4)]
    follow = ObjectFilter(0.02)
    follow.observe(observation((hazards, vases, goal), heading=0.4))
    assert sorted(follow.kind) == [0, 0, 1, 2]
    told = observation((hazards, vases, goal), heading=0.4)

    def expected(mean):
        x, y = mean[0] - MASS_AHEAD * math.cos(mean[2]), mean[1] - MASS_AHEAD * math.sin(mean[2])
        objects = mean[5:].reshape(-1, 2)
        return np.stack([lidar(objects[follow.kind == group], x, y, mean[2]) for group in range(3)])

    rows, errors, groups = follow._lidar_rows(told)
    base, width = follow.mean.copy(), 1e-6
    change = [
        (expected(base + width * unit) - expected(base - width * unit)) / (2.0 * width) for unit in np.eye(len(base))
    ]
    slopes = np.stack(change, axis=-1)
    visible = expected(base) > 0.0
    assert len(rows) == visible.sum() > 9
    np.testing.assert_array_equal(groups, np.nonzero(visible)[0])
    np.testing.assert_allclose(rows, slopes[visible], atol=1e-6)
    seen = np.stack([told[first : first + BINS] for first in GROUPS])
    np.testing.assert_allclose(errors, (seen - expected(base))[visible], atol=1e-12)


def prior(size, seed=3):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((size, size))
    follow = ObjectFilter(0.3)
    follow.mean, follow.cov = rng.standard_normal(size), root @ root.T + np.eye(size)
    return follow, rng


def test_corrections_one_after_the_other_are_weighted_least_squares():
    """The prior and all readings as one overdetermined system, solved by `lstsq`."""
    follow, rng = prior(9)
    mean, cov = follow.mean.copy(), follow.cov.copy()
    rows, told = rng.standard_normal((20, 9)), rng.standard_normal(20)
    for part in np.array_split(np.arange(20), 4):
        follow._correct(rows[part], told[part] - rows[part] @ follow.mean)
    root = np.linalg.inv(np.linalg.cholesky(cov))
    system = np.concatenate((root, rows / 0.3))
    wanted, *_ = np.linalg.lstsq(system, np.concatenate((root @ mean, told / 0.3)), rcond=None)
    np.testing.assert_allclose(follow.mean, wanted, atol=1e-9)
    np.testing.assert_allclose(follow.cov, np.linalg.inv(system.T @ system), atol=1e-9)


def test_considering_correction_has_the_covariance_of_its_own_gain():
    """The gain without its rows for the pose, put into the general formula that holds for every gain."""
    follow, rng = prior(9)
    mean, cov = follow.mean.copy(), follow.cov.copy()
    rows, errors = rng.standard_normal((6, 9)), rng.standard_normal(6)
    follow._correct(rows, errors, is_consider=True)
    gain = cov @ rows.T @ np.linalg.inv(rows @ cov @ rows.T + 0.09 * np.eye(6))
    gain[:5] = 0.0
    left = np.eye(9) - gain @ rows
    np.testing.assert_allclose(follow.mean, mean + gain @ errors, atol=1e-9)
    np.testing.assert_allclose(follow.cov, left @ cov @ left.T + 0.09 * gain @ gain.T, atol=1e-9)


@pytest.mark.slow
def test_filter_averages_the_noise_of_a_robot_at_rest():
    hazards, vases, goal = [(0.8, 0.31)], [(-0.9, -0.5)], [(1.3, -1.4)]
    told, rng = observation((hazards, vases, goal), heading=0.4), np.random.default_rng(5)
    follow = ObjectFilter(0.02)
    for _ in range(200):
        follow.observe(told + 0.02 * rng.standard_normal(60))
    sure = follow.hits > 100
    assert sorted(follow.kind[sure]) == [0, 1, 2]
    for kind, points in enumerate((hazards, vases, goal)):
        found = follow.objects[sure & (follow.kind == kind)][0]
        # One reading alone is off by 60 mm.
        assert math.dist(found, points[0]) < 0.025
    assert (follow.spread()[sure] < 0.02).all()
    assert abs(follow.pose[2] - 0.4) < 0.03


def test_filter_forgets_a_goal_that_is_gone_and_follows_the_next():
    follow, rng = ObjectFilter(0.02), np.random.default_rng(6)
    for place in ((1.0, 0.5), (-0.6, 1.2)):
        told = observation(((), (), [place]))
        for _ in range(30):
            follow.observe(told + 0.02 * rng.standard_normal(60))
        goal = follow.objects[follow.kind == GOAL]
        assert len(goal) == 1
        assert math.dist(goal[0], place) < 0.06


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_filter_refuses_sigma(sigma):
    with pytest.raises(ValueError, match="`sigma` must be finite and positive"):
        ObjectFilter(sigma)
