"""What the map-based verifier and its fallbacks do: stop in time, arrive in time, fail closed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ccfs.certificates.schedule import ProposalSchedule
from ccfs.controllers.navigator import (
    BrakeFallback,
    MapGuard,
    NavigatorFallback,
    StopFallback,
)
from ccfs.controllers.navigator.controller import VERSION
from ccfs.runtime.interfaces import Fallback, Observer, Verifier
from ccfs.runtime.program import CausalProgram, FallbackEntry
from ccfs.runtime.wrapper import ProposalWrapper

pytestmark = pytest.mark.slow
NOTHING = np.zeros(2)
FREE = {"share": 0.0, "reserve": 0}
"""Settings under which the guard only asks whether the robot can stop."""


def drive(env, seed, steps, *, is_guarded):
    """Full thrust ahead with a slow turn, braked by the guard or not; return costs and rejected steps."""
    guard, brake = MapGuard(**FREE), BrakeFallback()
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
    guard = MapGuard(**FREE)
    observation, _ = env.reset(seed=3_000_000_005)
    guard.observe(observation)
    actions = np.array([[0.0, 0.0], [1.0, 1.0], [-1.0, 0.3]])
    together = guard.accepts(observation, actions)
    assert together.dtype == np.bool_
    assert together[0]
    assert together.tolist() == [bool(guard.accepts(observation, one[None])[0]) for one in actions]


def test_guard_refuses_an_observation_it_was_not_told(env):
    observation, _ = env.reset(seed=3_000_000_006)
    guard, fallback = MapGuard(), NavigatorFallback()
    for ask in (lambda o: guard.accepts(o, np.zeros((1, 2))), lambda o: fallback.action(o, NOTHING)):
        with pytest.raises(RuntimeError, match="not the last one observed"):
            ask(observation)
    for part in (guard, fallback):
        part.observe(observation)
    assert guard.accepts(observation, np.zeros((1, 2))).shape == (1,)
    assert fallback.action(observation, NOTHING).shape == (2,)
    for part in (guard, fallback):
        part.observe(observation + 0.01)
    with pytest.raises(RuntimeError, match="not the last one observed"):
        guard.accepts(observation, np.zeros((1, 2)))
    with pytest.raises(RuntimeError, match="not the last one observed"):
        fallback.action(observation, NOTHING)
    guard.reset()
    with pytest.raises(RuntimeError, match="not the last one observed"):
        guard.accepts(observation + 0.01, np.zeros((1, 2)))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_guard_takes_no_broken_observation_into_its_map(seen, value):
    guard = MapGuard()
    guard.observe(seen[0])
    broken = seen[1].copy()
    broken[30] = value
    for observation in (broken, seen[1][:59]):
        with pytest.raises(ValueError, match="`observation` must be 60 finite numbers"):
            guard.observe(observation)
    with pytest.raises(RuntimeError, match="not the last one observed"):
        guard.accepts(broken, np.zeros((1, 2)))


def test_a_late_guard_accepts_the_navigator_the_brake_and_nothing_else(seen):
    late = {"reserve": 500}
    guard, fallback = MapGuard(**late), NavigatorFallback(**late)
    for observation in seen:
        for part in (guard, fallback):
            part.observe(observation)
    observation = seen[-1]
    chosen, brake = fallback.action(observation, NOTHING), BrakeFallback().action(observation, NOTHING)
    others = np.random.default_rng(1).uniform(-1, 1, (50, 2))
    free = MapGuard(**FREE)
    for one in seen:
        free.observe(one)
    assert free.accepts(observation, others).any()
    assert not guard.accepts(observation, others).any()
    allowed = np.stack((chosen, brake.astype(np.float32).astype(np.float64), NOTHING))
    assert guard.accepts(observation, allowed).tolist() == free.accepts(observation, allowed).tolist()
    assert guard.accepts(observation, allowed)[0]


def test_a_guard_that_wants_room_refuses_more_but_never_its_own_actions(seen):
    """With more room than any place has, what is left is the navigator, the brake and no action."""
    others = np.random.default_rng(2).uniform(-1, 1, (50, 2))
    accepted = {}
    for room in (0.0, 0.1, 5.0):
        settings = {**FREE, "room": room}
        guard, fallback = MapGuard(**settings), NavigatorFallback(**settings)
        accepted[room] = []
        for observation in seen:
            for part in (guard, fallback):
                part.observe(observation)
            accepted[room].append(guard.accepts(observation, others))
            own = np.stack((fallback.action(observation, NOTHING), BrakeFallback().action(observation, NOTHING)))
            assert guard.accepts(observation, own).all()
    free, some, all_room = (np.stack(found) for found in accepted.values())
    assert (some <= free).all()
    assert all_room.sum() == 0 < some.sum() < free.sum()


def test_the_guard_becomes_late_when_time_runs_out(env):
    """A robot that never moves: first anything safe goes, at the end only the navigator, in time for its way."""
    guard = MapGuard(horizon=300)
    observation, _ = env.reset(seed=3_000_000_007)
    free = []
    for _ in range(300):
        guard.observe(observation)
        free.append(bool(guard.accepts(observation, np.array([[0.3, 0.1]]))[0]))
        observation, *_ = env.step(NOTHING)
    change = free.index(False)
    assert 20 < change < 240
    assert all(free[:change])
    assert not any(free[change:])


def test_guard_and_fallbacks_fit_their_interfaces():
    library = (NavigatorFallback(), BrakeFallback(), StopFallback())
    assert isinstance(MapGuard(), Verifier)
    assert isinstance(MapGuard(), Observer)
    assert isinstance(library[0], Observer)
    assert all(isinstance(entry, Fallback) for entry in library)


class Reckless:
    """A controller that thrusts ahead whatever it sees."""

    def center(self, observation):
        return np.array([1.0, 0.2])


@pytest.mark.parametrize("seed", [3_000_000_000])
def test_a_guarded_reckless_controller_reaches_the_goal_before_any_cost(env, seed):
    program = CausalProgram.for_space(
        env.action_space,
        verifier=MapGuard(),
        fallbacks=[
            FallbackEntry(name="navigator", fallback=NavigatorFallback()),
            FallbackEntry(name="brake", fallback=BrakeFallback(), unverified=True),
        ],
    )
    wrapped = ProposalWrapper(env, program=program, schedule=ProposalSchedule(count=1, sigma=0.2), seed=1, horizon=500)
    observation, _ = wrapped.reset(seed=seed)
    sources = set()
    for _ in range(500):
        observation, _, _, _, info = wrapped.step(Reckless().center(observation))
        sources.add(info["ccfs"]["source"])
        assert not wrapped.last_step.cost
        if wrapped.last_step.goal:
            break
    assert wrapped.last_step.goal
    assert sources == {"proposal", "fallback"}


def test_guard_digest_covers_settings_version_and_source(monkeypatch):
    digests = {MapGuard().digest, MapGuard(margin=0.02).digest, MapGuard(reserve=61).digest}
    monkeypatch.setattr("ccfs.controllers.navigator.guard.VERSION", VERSION + "x")
    digests.add(MapGuard().digest)
    monkeypatch.setattr("ccfs.controllers.navigator.guard.package_digest", lambda: "other code")
    digests.add(MapGuard().digest)
    assert len(digests) == 5
