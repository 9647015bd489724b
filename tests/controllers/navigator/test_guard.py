"""What the map-based verifier and its fallbacks do: stop in time, arrive in time, fail closed."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from ccfs.controllers.navigator import (
    BrakeFallback,
    LidarMap,
    MapGuard,
    NavigatorFallback,
    PilotSettings,
    StopFallback,
    would_be_safe,
)
from ccfs.controllers.navigator import pilot as pilot_module
from ccfs.controllers.navigator.clearance import Surroundings
from ccfs.controllers.navigator.controller import VERSION
from ccfs.controllers.navigator.stopping import brake_action
from ccfs.envs import make
from ccfs.runtime.interfaces import Fallback, Observer, Verifier
from ccfs.runtime.program import CausalProgram, FallbackEntry
from ccfs.runtime.schedules import ProposalSchedule
from ccfs.runtime.wrapper import ProposalWrapper

pytestmark = pytest.mark.slow
TASK = "SafetyPointGoal2-v0"
NOTHING = np.zeros(2)
FREE = {"share": 0.0, "reserve": 0}
"""Settings under which the guard only asks whether the robot can stop."""


@pytest.fixture(scope="module")
def env():
    return make(TASK)


@pytest.fixture(scope="module")
def seen(env):
    """Observations of 40 steps of full thrust with a slow turn."""
    observation, _ = env.reset(seed=3_000_000_008)
    found = [observation]
    for step in range(39):
        observation, *_ = env.step(np.array([1.0, 0.6 * math.sin(step / 10.0)]))
        found.append(observation)
    return found


@pytest.fixture(autouse=True)
def no_pilots():
    """Each test begins without pilots of another."""
    pilot_module._pool().clear()


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


def hand_drawn(env, hazards, speed):
    """A map with nothing on it but hazards this far ahead, seen by a robot of this speed ahead."""
    drawn, surroundings = LidarMap(), Surroundings()
    drawn.observe(env.reset(seed=3_000_000_005)[0])
    drawn.possible[:] = False
    surroundings.refresh(drawn)
    ahead = np.array([math.cos(drawn.pose.heading), math.sin(drawn.pose.heading)])
    for kind in drawn.known:
        kind.clear()
    drawn.known[0].extend(tuple(distance * ahead) for distance in hazards)
    drawn.pose.mass_velocity = tuple(speed * ahead)
    return drawn, surroundings


@pytest.mark.parametrize(
    ("hazards", "speed", "thrust", "brake"),
    [
        ([], 1.0, True, True),
        ([0.3], 0.0, True, True),
        ([0.3], 0.5, True, True),
        ([0.3], 1.0, False, True),
        ([0.202], 0.0, False, True),
        ([0.202], 0.3, False, True),
    ],
)
def test_would_be_safe_knows_the_braking_distance(env, hazards, speed, thrust, brake):
    """A hazard's edge is 0.1 m ahead, or 2 mm, too near already: braking takes 0.05 m from 0.5 m/s, 0.16 from 1.

    Where it is too late, only what is no worse than to brake at once may run.
    """
    actions = np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert would_be_safe(*hand_drawn(env, hazards, speed), actions, 0.015).tolist() == [thrust, brake]


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


def answers(parts, seen, *, is_reset=True):
    """What guard and fallback say along given observations, as bytes."""
    guard, fallback = parts
    rng = np.random.default_rng(5)
    said = []
    if is_reset:
        guard.reset()
        fallback.reset()
    for observation in seen:
        for part in parts:
            part.observe(observation)
        said.append(guard.accepts(observation, rng.uniform(-1, 1, (6, 2))).tobytes())
        said.append(fallback.action(observation, NOTHING).tobytes())
    return said


def test_guard_and_fallback_repeat_themselves_after_reset_and_from_scratch(seen):
    parts = MapGuard(), NavigatorFallback()
    first = answers(parts, seen)
    assert answers(parts, seen[::-1]) != first
    assert answers(parts, seen) == first
    pilot_module._pool().clear()
    assert answers((MapGuard(), NavigatorFallback()), seen, is_reset=False) == first


def test_asking_is_no_part_of_the_history(seen):
    """Fallbacks are asked only now and then: that must not change what they say later."""
    asked = answers((MapGuard(), NavigatorFallback()), seen)[-1]
    pilot_module._pool().clear()
    silent = NavigatorFallback()
    for observation in seen:
        silent.observe(observation)
    assert silent.action(seen[-1], NOTHING).tobytes() == asked


def test_shared_pilots_answer_as_lonely_ones_do(seen, monkeypatch):
    """Clients that are told different things, in turns, never see each other's map, even when pilots are evicted."""
    other = [observation + 1e-9 for observation in seen[::-1]]
    alone = answers((MapGuard(), NavigatorFallback()), seen[:12])
    monkeypatch.setattr(pilot_module, "_MOST_PILOTS", 1)
    pilot_module._pool().clear()
    mine, theirs = (MapGuard(), NavigatorFallback()), (MapGuard(), NavigatorFallback())
    rng = np.random.default_rng(5)
    said = []
    for own, foreign in zip(seen[:12], other[:12], strict=True):
        for part in mine:
            part.observe(own)
        for part in theirs:
            part.observe(foreign)
        said.append(mine[0].accepts(own, rng.uniform(-1, 1, (6, 2))).tobytes())
        said.append(mine[1].action(own, NOTHING).tobytes())
    assert said == alone


def test_guard_and_fallback_of_one_program_draw_one_map(seen, monkeypatch):
    made = []
    honest = pilot_module.Pilot
    monkeypatch.setattr(pilot_module, "Pilot", lambda settings: made.append(settings) or honest(settings))
    answers((MapGuard(), NavigatorFallback()), seen[:5])
    assert len(made) == 1
    answers((MapGuard(margin=0.02), NavigatorFallback()), seen[:5])
    assert len(made) == 3


def test_pilots_of_threads_are_apart(seen):
    answers((MapGuard(), NavigatorFallback()), seen[:3])
    sizes = []
    thread = threading.Thread(target=lambda: sizes.append(len(pilot_module._pool())))
    thread.start()
    thread.join()
    assert sizes == [0]
    assert len(pilot_module._pool()) == 1


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


def test_brake_stops_the_robot(env):
    observation, _ = env.reset(seed=3_000_000_009)
    for _ in range(15):
        observation, *_ = env.step(np.array([1.0, 0.0]))
    assert abs(observation[3]) > 0.4
    for _ in range(15):
        observation, *_ = env.step(brake_action(observation))
    assert abs(observation[3]) < 0.02


def test_fallbacks_fit_the_protocols():
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
    wrapped = ProposalWrapper(env, program=program, schedules=ProposalSchedule(count=1, sigma=0.2), seed=1, horizon=500)
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


@pytest.mark.parametrize("name", ["margin", "caution", "share", "reserve", "horizon"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -0.01])
def test_pilot_settings_refuse(name, value):
    for make_it in (PilotSettings, MapGuard, NavigatorFallback):
        with pytest.raises(ValueError, match=f"`{name}` must be finite and at least 0"):
            make_it(**{name: value})


def test_pilot_settings_refuse_fractions_of_steps():
    with pytest.raises(ValueError, match="`reserve` must be a whole number"):
        PilotSettings(reserve=0.5)
