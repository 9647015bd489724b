"""The lidar over many bodies against stock's loop over one body at a time."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccfs.envs.safety import compat
from ccfs.envs.safety.lidar import PseudoLidar

BaseTask = compat.stock("bases.base_task").BaseTask
BINS, REACH = 16, 3


def stock_lidar(positions, agent, mat):
    task = SimpleNamespace(
        lidar_conf=SimpleNamespace(num_bins=BINS, max_dist=REACH, alias=True),
        agent=SimpleNamespace(pos=agent, mat=mat),
    )
    task._ego_xy = lambda pos: BaseTask._ego_xy(task, pos)
    return BaseTask._obs_lidar_pseudo(task, positions)


def our_lidar(groups, positions, agent, mat):
    lidar = PseudoLidar(groups, BINS, REACH)
    out = np.zeros(lidar.size)
    return lidar.write(out, positions, agent, mat), out


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-8, 0.1, 1.0, 4.0]))
def test_lidar_has_the_bits_of_the_stock_loop(seed, scale):
    rng = np.random.default_rng(seed)
    positions = rng.normal(0.0, scale, (24, 3))
    mat = np.ascontiguousarray(np.linalg.qr(rng.normal(size=(3, 3)))[0])
    groups = [[3], list(range(4, 14)), [1, 17, 23]]
    written, out = our_lidar(groups, positions, 2, mat)
    assert written
    expected = [stock_lidar([positions[body] for body in group], positions[2], mat) for group in groups]
    assert out.tobytes() == np.concatenate(expected).tobytes()


def test_lidar_reports_the_angle_at_which_stock_raises():
    # An angle a hair below zero becomes a full turn after the remainder: a bin beyond the last.
    positions = np.array([[0.0, 0.0, 0.0], [1.0, -1e-17, 0.0]])
    with pytest.raises(IndexError):
        stock_lidar([positions[1]], positions[0], np.eye(3))
    written, _ = our_lidar([[1]], positions, 0, np.eye(3))
    assert not written


def test_lidar_sees_a_body_straight_ahead_at_the_right_distance():
    positions = np.array([[0.0, 0.0, 0.1], [1.5, 0.0, 0.4]])
    _, out = our_lidar([[1]], positions, 0, np.eye(3))
    assert out[0] == 0.5
    assert out[BINS - 1] == 0.5
    assert out[1:-1].max() == 0.0
