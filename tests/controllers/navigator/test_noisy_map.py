"""The map under noise on every reading, against the simulator's truth, and the navigator and the guard that use it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ccfs.controllers.navigator import LidarMap, MapGuard, Navigator, NavigatorFallback, NoisyMap
from ccfs.controllers.navigator.lidar_map import CELL, HALF_WIDTH
from ccfs.controllers.navigator.noisy_map import map_for

pytestmark = pytest.mark.slow


def drive(env, seed, sigma, decide, steps=500, action_noise=1.0):
    """Return how an episode ends if every reading and every action is noisy."""
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    for _ in range(steps):
        center = decide(observation + sigma * rng.standard_normal(60))
        observation, _, cost, _, _, info = env.step(np.clip(center + action_noise * rng.standard_normal(2), -1, 1))
        if cost > 0:
            return "cost"
        if info.get("goal_met"):
            return "goal"
    return "horizon"


@pytest.mark.parametrize(("seed", "sigma"), [(3_000_000_001, 0.02), (3_000_000_002, 0.05)])
def test_navigator_reaches_the_goal_with_noisy_readings(env, seed, sigma):
    navigator = Navigator(1.0, sensor=sigma)
    assert drive(env, seed, sigma, navigator.center) == "goal"


def test_navigator_without_the_filter_does_not(env):
    """So that the test above is about the filter. Exact readings are needed for the other map."""
    assert drive(env, 3_000_000_001, 0.02, Navigator(1.0).center, steps=300) != "goal"


def test_map_loses_no_obstacle_near_by_under_noise(env):
    """Random driving: each obstacle within a metre is known or its cell still possible, and known ones are there."""
    sigma, rng, drawn = 0.02, np.random.default_rng(7), NoisyMap(0.02)
    observation, _ = env.reset(seed=3_000_000_010)
    task = env.unwrapped.task
    start = task.agent.pos[:2].copy()
    truth = [np.array([p[:2] for p in group.pos]) - start for group in (task.hazards, task.vases)]
    held, near = np.zeros(2), 0
    for step in range(120):
        drawn.observe(observation + sigma * rng.standard_normal(60))
        here = task.agent.pos[:2] - start
        assert math.dist((drawn.pose.x, drawn.pose.y), here) < 0.05
        if step % 10 == 9:
            held = rng.choice([-1.0, 1.0], 2)
            for kind in range(2):
                for point in truth[kind][np.hypot(*(truth[kind] - here).T) < 1.0]:
                    near += 1
                    assert is_accounted_for(drawn, kind, point)
        observation, _, cost, _, _, _ = env.step(np.clip(held + 0.5 * rng.standard_normal(2), -1, 1))
        if cost > 0:
            break
    assert near > 10


def is_accounted_for(drawn, kind, point):
    places = zip(drawn.known[kind], drawn.spread[kind], strict=True)
    if any(math.dist(point, known) < 0.05 + 2.0 * spread for known, spread in places):
        return True
    i, j = (int((value + HALF_WIDTH) / CELL) for value in point)
    return bool(drawn.possible[kind, i - 1 : i + 2, j - 1 : j + 2].any())


def test_guard_keeps_a_rash_driver_safe_with_noisy_readings(env):
    """Full thrust and random turns. What the guard refuses is replaced by the navigator behind the same map."""
    guard, fallback = MapGuard(sensor=0.02), NavigatorFallback(sensor=0.02)
    rng = np.random.default_rng(8)

    def decide(observation):
        guard.observe(observation)
        fallback.observe(observation)
        wish = np.array([1.0, rng.uniform(-1.0, 1.0)])
        if guard.accepts(observation, wish[None])[0]:
            return wish
        return fallback.action(observation, wish)

    assert drive(env, 3_000_000_003, 0.02, decide, action_noise=0.0) == "goal"


def test_maps_are_chosen_by_the_noise():
    assert isinstance(map_for(0.0), LidarMap)
    assert isinstance(map_for(0.01), NoisyMap)
    for sigma in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="`sensor` must be finite and at least 0"):
            map_for(sigma)


def test_map_repeats_itself_after_reset(seen):
    rng = np.random.default_rng(9)
    told = [observation + 0.02 * rng.standard_normal(60) for observation in seen]
    drawn = NoisyMap(0.02)
    found = []
    for _ in range(2):
        drawn.reset()
        for observation in told:
            drawn.observe(observation)
        found.append((drawn.known, drawn.possible.tobytes(), drawn.pose, drawn.goal))
    assert repr(found[0]) == repr(found[1])
