"""The navigator's map and pose against the simulator's truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ccfs.controllers.navigator import LidarMap
from ccfs.controllers.navigator.lidar_map import CELL, HALF_WIDTH
from ccfs.envs import make

pytestmark = pytest.mark.slow
TASK = "SafetyPointGoal2-v0"


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
        assert drawn._search._hopeful[i, j]
        here = (drawn.pose.x, drawn.pose.y)
        assert math.dist(drawn.search_target, goal) < math.dist(here, goal)
        observation, *_ = env.step(np.array([1.0, math.sin(step / 9.0)]))
    assert step > 0
