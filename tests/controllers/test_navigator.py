"""What the navigator and its guard do: reach goals under noise, repeat themselves exactly, refuse actions that hit."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from ccfs.controllers.navigator import BrakeFallback, MapGuard, Navigator, NavigatorFallback, NavigatorSettings
from ccfs.controllers.navigator.controller import VERSION
from ccfs.controllers.navigator.guard import would_be_safe
from ccfs.envs import make
from ccfs.protocols import Controller, Fallback, Observer, Verifier

TASK = "SafetyPointGoal2-v0"
NOTHING = np.zeros(2)


def run(env, navigator, seed, sigma, steps):
    """Return outcome, observations and centers of one episode."""
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    navigator.reset()
    seen, centers = [], []
    for _ in range(steps):
        seen.append(observation)
        centers.append(navigator.center(observation))
        action = np.clip(centers[-1] + sigma * rng.standard_normal(2), -1, 1)
        observation, _, cost, _, _, info = env.step(action)
        if cost > 0:
            return "cost", seen, centers
        if info.get("goal_met"):
            return "goal", seen, centers
    return "timeout", seen, centers


@pytest.fixture(scope="module")
def env():
    return make(TASK)


@pytest.mark.parametrize(("seed", "sigma"), [(3_000_000_001, 0.2), (3_000_000_002, 1.0), (3_000_000_003, 1.0)])
def test_navigator_reaches_the_goal_before_any_cost(env, seed, sigma):
    outcome, _, centers = run(env, Navigator(sigma), seed, sigma, 500)
    assert outcome == "goal"
    assert all(c.shape == (2,) and c.dtype == np.float64 and np.abs(c).max() <= 1.0 for c in centers)
    assert all(abs(c[0]) == 1.0 for c in centers)


def test_navigator_is_a_function_of_the_history_since_reset(env):
    navigator = Navigator(0.5)
    _, seen, centers = run(env, navigator, 3_000_000_004, 0.5, 60)
    for other in (navigator, Navigator(0.5)):
        other.reset()
        assert [other.center(observation).tobytes() for observation in seen] == [c.tobytes() for c in centers]


def test_navigator_digest_covers_sigma_settings_version_and_source(monkeypatch):
    digests = {Navigator(0.5).digest, Navigator(0.6).digest}
    digests.add(Navigator(0.5, NavigatorSettings(risk_weight=1.0)).digest)
    monkeypatch.setattr("ccfs.controllers.navigator.controller.VERSION", VERSION + "x")
    digests.add(Navigator(0.5).digest)
    monkeypatch.setattr("ccfs.controllers.navigator.controller._source_digest", lambda: "other code")
    digests.add(Navigator(0.5).digest)
    assert len(digests) == 5
    assert isinstance(Navigator(0.5), Controller)


@pytest.mark.parametrize("sigma", [math.nan, math.inf, -1.0])
def test_navigator_refuses_sigma(sigma):
    with pytest.raises(ValueError, match="`sigma` must be finite and at least 0"):
        Navigator(sigma)


@pytest.mark.parametrize("values", [{"risk_weight": math.nan}, {"doubt": -1.0}, {"first_steps": 0}])
def test_settings_refuse(values):
    with pytest.raises(ValueError, match=f"`{next(iter(values))}` must be"):
        NavigatorSettings(**values)


def test_navigator_imports_neither_torch_nor_mujoco():
    code = "import sys, ccfs.controllers.navigator; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "ccfs.controllers.navigator" in loaded
    assert {"torch", "mujoco", "safety_gymnasium", "scipy"} & set(loaded) == set()


def drive(env, seed, steps, *, is_guarded):
    """Full thrust ahead with a slow turn, braked by the guard or not; return costs and rejected steps."""
    guard = MapGuard()
    brake = BrakeFallback(guard)
    observation, _ = env.reset(seed=seed)
    guard.reset()
    costs = rejected = 0
    for step in range(steps):
        guard.observe(observation)
        action = np.array([1.0, 0.6 * math.sin(step / 60.0)])
        if is_guarded and not guard.accepts(observation, action[None])[0]:
            action, rejected = brake.action(observation, NOTHING), rejected + 1
        observation, _, cost, _, _, _ = env.step(action)
        costs += cost > 0
    return costs, rejected


def test_guard_turns_collisions_into_stops(env):
    """Seeds where the same actions, unguarded, touch something: so the guard has something to refuse."""
    for seed in (3_000_000_000, 3_000_000_004):
        assert drive(env, seed, 150, is_guarded=False)[0] > 0
        costs, rejected = drive(env, seed, 150, is_guarded=True)
        assert costs == 0
        assert rejected > 0


def test_guard_accepts_rest_and_judges_each_action_alone(env):
    guard = MapGuard()
    observation, _ = env.reset(seed=3_000_000_005)
    guard.observe(observation)
    actions = np.array([[0.0, 0.0], [1.0, 1.0], [-1.0, 0.3]])
    together = guard.accepts(observation, actions)
    assert together.dtype == np.bool_
    assert together[0]
    assert together.tolist() == [bool(guard.accepts(observation, one[None])[0]) for one in actions]


def test_would_be_safe_rejects_the_way_into_a_known_hazard(env):
    """A hazard drawn by hand 0.3 m ahead: fine at rest and at half a metre a second, too late to brake at one."""
    guard = MapGuard()
    observation, _ = env.reset(seed=3_000_000_005)
    guard.observe(observation)
    drawn = guard.map
    drawn.possible[:] = False
    guard.surroundings.refresh(drawn)
    ahead = math.cos(drawn.pose.heading), math.sin(drawn.pose.heading)
    brake, thrust = np.array([[-1.0, 0.0]]), np.array([[1.0, 0.0]])
    for kind in drawn.known:
        kind.clear()
    assert would_be_safe(drawn, guard.surroundings, thrust, 0.01)[0]
    drawn.known[0].append((0.3 * ahead[0], 0.3 * ahead[1]))
    assert would_be_safe(drawn, guard.surroundings, thrust, 0.01)[0]
    drawn.pose.mass_velocity = (1.0 * ahead[0], 1.0 * ahead[1])
    assert not would_be_safe(drawn, guard.surroundings, np.concatenate((thrust, brake)), 0.01).any()
    drawn.pose.mass_velocity = (0.5 * ahead[0], 0.5 * ahead[1])
    assert would_be_safe(drawn, guard.surroundings, np.concatenate((thrust, brake)), 0.01).tolist() == [True, True]


def test_guard_refuses_an_observation_it_was_not_told(env):
    guard = MapGuard()
    observation, _ = env.reset(seed=3_000_000_006)
    with pytest.raises(RuntimeError, match="not the last one observed"):
        guard.accepts(observation, np.zeros((1, 2)))
    guard.observe(observation)
    assert guard.accepts(observation, np.zeros((1, 2))).shape == (1,)
    with pytest.raises(RuntimeError, match="not the last one observed"):
        BrakeFallback(guard).action(observation + 1.0, NOTHING)


def test_fallbacks_fit_the_protocols_and_navigate(env):
    guard = MapGuard()
    library = (NavigatorFallback(guard), BrakeFallback(guard))
    assert isinstance(guard, Verifier)
    assert isinstance(guard, Observer)
    assert all(isinstance(entry, Fallback) for entry in library)
    observation, _ = env.reset(seed=3_000_000_007)
    for _ in range(20):
        guard.observe(observation)
        observation, *_ = env.step(library[0].action(observation, NOTHING))
    assert math.hypot(guard.map.pose.x, guard.map.pose.y) > 0.02
    guard.observe(observation)
    assert np.abs(library[1].action(observation, NOTHING)).max() <= 1.0


@pytest.mark.parametrize("margin", [math.nan, math.inf, -0.01])
def test_guard_refuses_margin(margin):
    with pytest.raises(ValueError, match="`margin` must be finite and at least 0"):
        MapGuard(margin)
