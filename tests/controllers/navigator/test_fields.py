"""Distance and arrival time on grids against brute force and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ccfs.controllers.navigator.fields import arrival_time, capped_distance


def test_capped_distance_equals_brute_force():
    marked = np.random.default_rng(3).random((23, 17)) < 0.02
    points = np.argwhere(marked)
    cells = np.stack(np.meshgrid(range(23), range(17), indexing="ij"), axis=-1)
    truth = np.sqrt(((cells[:, :, None] - points) ** 2).sum(axis=-1)).min(axis=-1)
    np.testing.assert_allclose(capped_distance(marked, 5), np.where(truth <= 5, truth, np.minimum(truth, 6)))


def test_arrival_time_goes_around_a_wall_and_follows_a_change():
    slowness, target = np.ones((30, 30)), np.zeros((30, 30), dtype=bool)
    target[15, 15] = True
    free = arrival_time(slowness, target, 300)
    assert free[15, 25] == pytest.approx(10.0)
    assert free[25, 25] == pytest.approx(math.hypot(10, 10), rel=0.1)
    slowness[5:26, 20] = 1000.0
    walled = arrival_time(slowness, target, 300)
    assert walled[15, 25] > 20.0
    np.testing.assert_allclose(arrival_time(slowness, target, 300, free), walled, atol=0.5)


def test_arrival_time_is_the_distance_on_an_open_field():
    """Oracle: Euclidean distance; a first-order upwind scheme is late by a few cells at the most, never early."""
    target = np.zeros((41, 41), dtype=np.bool_)
    target[20, 20] = True
    time = arrival_time(np.full((41, 41), 2.0), target, 300)
    i, j = np.indices(target.shape) - 20
    exact = 2.0 * np.hypot(i, j)
    assert (time >= exact - 1e-3).all()
    assert (time <= exact + 4.0).all()
    assert time.dtype == np.float64
