"""What the navigator believes: readings, pose and map against a forward model and against the simulator's truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ccfs.controllers.navigator import LidarMap
from ccfs.controllers.navigator.fields import arrival_time, capped_distance
from ccfs.controllers.navigator.lidar import BINS, RANGE, arcs, exact_sightings, is_excluded
from ccfs.controllers.navigator.lidar_map import CELL, HALF_WIDTH
from ccfs.controllers.navigator.robot import NoisyRobot
from ccfs.envs import make

pytestmark = pytest.mark.slow
TASK = "SafetyPointGoal2-v0"
polar = st.tuples(st.floats(0.3, 3.5), st.floats(0.0, 6.28))


def lidar(objects):
    """Safety-Gymnasium's aliased pseudo-lidar, written from its documentation as an independent oracle."""
    readings = np.zeros(BINS)
    for distance, bearing in objects:
        place = bearing / (2 * math.pi) * BINS
        index, closeness = int(place), max(0.0, 1.0 - distance / RANGE)
        share = place - index
        for at, value in (
            (index, closeness),
            (index + 1, share * closeness),
            (index - 1, (1 - share) * closeness),
        ):
            readings[at % BINS] = max(readings[at % BINS], value)
    return readings


@settings(max_examples=150, deadline=None)
@given(st.lists(polar, min_size=1, max_size=10))
def test_exact_sightings_are_true_objects(objects):
    for distance, bearing in exact_sightings(lidar(objects)):
        assert any(abs(distance - d) < 1e-6 and abs(math.remainder(bearing - b, math.tau)) < 1e-6 for d, b in objects)


@settings(max_examples=150, deadline=None)
@given(st.lists(polar, min_size=1, max_size=10), st.floats(0.0, 0.04), st.floats(0.0, 6.28))
@example([(3.5, 0.0)], 0.03125, 0.0)
def test_is_excluded_never_rules_out_a_true_object(objects, reach, direction):
    """Queried at points up to `reach` away from each object."""
    readings = lidar(objects)[None]
    for distance, bearing in objects:
        point = distance * np.exp(1j * bearing) + reach * np.exp(1j * direction)
        queried = np.array([abs(point)]), np.array([np.angle(point) % math.tau])
        assert not is_excluded(readings, *queried, reach + 1e-9).any()


@settings(max_examples=100, deadline=None)
@given(st.lists(polar, min_size=1, max_size=10))
def test_arcs_each_hold_an_object(objects):
    for distance, first, last in arcs(lidar(objects)):
        middle, half = 0.5 * (first + last), 0.5 * (last - first) + 1e-6
        assert any(abs(d - distance) < 1e-6 and abs(math.remainder(b - middle, math.tau)) <= half for d, b in objects)


def test_is_excluded_clears_an_empty_view():
    distance = np.array([0.5, 1.5, 2.9, 3.2])
    assert is_excluded(np.zeros((1, BINS)), distance, np.full(4, 1.0), 0.02).tolist() == [[True, True, True, False]]


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


def test_noisy_robot_knows_the_flip_probability():
    """Oracle: thrust saturates almost at once, so its mean share is 1 - 2 Phi(-1/sigma), up to the band of 0.05."""
    flip = 0.5 * math.erfc(1.0 / math.sqrt(2.0))
    assert NoisyRobot(sigma=1.0).mean_thrust(1.0) / 0.0566 == pytest.approx(1.0 - 2.0 * flip, abs=2e-3)
    assert NoisyRobot(sigma=0.0).mean_turn(1.0) == pytest.approx(0.06)
    assert NoisyRobot(sigma=2.0).mean_turn(0.0) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("sigma", [math.nan, math.inf, -0.1])
def test_noisy_robot_refuses_sigma(sigma):
    with pytest.raises(ValueError, match="`sigma` must be finite and at least 0"):
        NoisyRobot(sigma=sigma)


@pytest.mark.parametrize("seed", [3_000_000_010, 3_000_000_011])
def test_map_follows_the_pose_and_loses_no_obstacle(seed):
    """Random driving until something is touched; the truth is read from the simulator."""
    env, rng, drawn = make(TASK), np.random.default_rng(seed), LidarMap()
    observation, _ = env.reset(seed=seed)
    task = env.unwrapped.task
    start = task.agent.pos[:2].copy()
    truth = [np.array([p[:2] for p in group.pos]) - start for group in (task.hazards, task.vases)]
    held = np.zeros(2)
    for step in range(150):
        drawn.observe(observation)
        away = task.agent.pos[:2] - start
        assert math.hypot(drawn.pose.x - away[0], drawn.pose.y - away[1]) < 2e-3
        if drawn.goal is not None:
            assert math.dist(drawn.goal, task.goal.pos[:2] - start) < 2e-3
        if step % 10 == 0:
            held = rng.choice([-1.0, 1.0], 2)
            assert_all_accounted_for(drawn, truth)
        observation, _, cost, _, _, _ = env.step(np.clip(held + 0.5 * rng.standard_normal(2), -1, 1))
        if cost > 0:
            break
    assert step > 30
    assert sum(map(len, drawn.known)) >= 4


def assert_all_accounted_for(drawn, truth):
    for kind in range(2):
        for point in truth[kind]:
            cell = tuple(int((value + HALF_WIDTH) / CELL) for value in point)
            is_known = any(math.dist(point, known) < 0.02 for known in drawn.known[kind])
            assert is_known or drawn.possible[(kind, *cell)]
        assert all(min(math.dist(known, point) for point in truth[kind]) < 0.02 for known in drawn.known[kind])


@pytest.mark.parametrize("seed", [3_000_010_013, 3_000_003_092])
def test_map_seeks_a_goal_out_of_sight_where_it_can_be(seed):
    """Layouts with the goal beyond 3 m: its place is never struck out, and the aim is nearer to it than the robot."""
    env = make(TASK)
    observation, _ = env.reset(seed=seed)
    task = env.unwrapped.task
    goal = task.goal.pos[:2] - task.agent.pos[:2]
    drawn = LidarMap()
    for step in range(60):
        drawn.observe(observation)
        if drawn.goal is not None:
            break
        i, j = ((goal + HALF_WIDTH) / 0.1).astype(int)
        assert drawn._hopeful[i, j]
        here = (drawn.pose.x, drawn.pose.y)
        assert math.dist(drawn.search_target, goal) < math.dist(here, goal)
        observation, *_ = env.step(np.array([1.0, math.sin(step / 9.0)]))
    assert step > 0
