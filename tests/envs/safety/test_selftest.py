"""The check at start-up: it finds a single changed bit, and then stock is what one gets."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ccfs.envs import TASKS, is_fast, make
from ccfs.envs.registration import builder_of
from ccfs.envs.safety import compat, selftest
from ccfs.envs.safety.costs import Costs
from ccfs.envs.safety.fast import FastBuilder, PictureBuilder
from ccfs.envs.safety.rewards import GoalReward, PushReward
from ccfs.envs.safety.selftest import DifferenceError, first_difference, same_bits

# NumPy's word on how stock reads a joint number, in every robot but Point.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
]


# What stock's tasks of levels 0, 1 and 2 can charge, read from their sources; a goal is in each.
COSTS = {
    "Goal": [set(), {"hazards"}, {"hazards", "vases_contact", "vases_velocity"}],
    "Button": [set(), {"hazards", "gremlins", "buttons"}, {"hazards", "gremlins", "buttons"}],
    "Push": [set(), {"hazards"}, {"hazards", "pillars"}],
}


def costs_of(env_id):
    family = next(family for family in COSTS if family in env_id)
    return {f"cost_{name}" for name in COSTS[family][int(env_id.removesuffix("-v0")[-1])]}


def ids_with(*costs):
    return [env_id for env_id in TASKS if costs_of(env_id) & {f"cost_{name}" for name in costs}]


class OneUlpOff(FastBuilder):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, np.nextafter(reward, 1.0), *rest


class OneDrawMore(FastBuilder):
    def reset(self, **arguments):
        result = super().reset(**arguments)
        self.task.random_generator.random_generator.random_sample()
        return result


class Broken(FastBuilder):
    def step(self, action):
        raise ArithmeticError("no such thing")


class Unbuildable(FastBuilder):
    def __init__(self, **arguments):
        np.random.random()  # noqa: NPY002
        raise ValueError("cannot build here")


class Free(FastBuilder):
    def step(self, action):
        observation, reward, _, terminated, truncated, info = super().step(action)
        info = {key: 0.0 if key.startswith("cost") else value for key, value in info.items()}
        return observation, reward, 0.0, terminated, truncated, info


class OneGoal(FastBuilder):
    def _renew_goal(self):
        pass


class NoEpisode(FastBuilder):
    def reset(self, **arguments):
        raise AssertionError("World has starting cost!")


@pytest.mark.parametrize(
    "env_id",
    ["SafetyPointGoal1-v0", "SafetyPointPush1-v0", "SafetyAntGoal1-v0", "SafetyPointCircle1-v0", "SafetyPointRun0-v0"],
)
def test_selftest_passes_here(env_id):
    assert first_difference(env_id, FastBuilder) is None


@pytest.mark.parametrize(
    ("contender", "where"),
    [
        (OneUlpOff, r"step 0\[1\]"),
        (OneDrawMore, "random state|step"),
        (Broken, "ArithmeticError: no such thing"),
        (NoEpisode, "reset: type"),
        (Unbuildable, "ValueError: cannot build here"),
    ],
)
def test_selftest_finds_a_difference(contender, where):
    difference = first_difference("SafetyPointGoal1-v0", contender)
    assert difference is not None
    assert re.search(where, difference)


@pytest.mark.parametrize("env_id", TASKS)
def test_selftest_holds_every_cost_and_a_goal_and_passes(env_id):
    infos = []

    class Watched(FastBuilder):
        def step(self, action):
            result = super().step(action)
            infos.append(result[5])
            return result

    assert first_difference(env_id, Watched) is None
    seen = {key for info in infos for key, value in info.items() if value}
    assert seen - {"cost_sum"} == costs_of(env_id) | {"goal_met"}
    assert sum("goal_met" in info for info in infos) >= 2
    assert {info["cost_sum"] for info in infos} == ({0.0, 1.0} if costs_of(env_id) else {0.0})


@pytest.mark.parametrize("env_id", [env_id for env_id in TASKS if costs_of(env_id)])
def test_selftest_notices_that_nothing_costs(env_id):
    assert re.search(r"step \d+\[2\]: 0.0 instead of 1.0", str(first_difference(env_id, Free)))


@pytest.mark.parametrize("env_id", TASKS)
def test_selftest_notices_that_a_goal_stays(env_id):
    assert first_difference(env_id, OneGoal) is not None


@pytest.mark.parametrize("factor", [0.98, 1.02])
@pytest.mark.parametrize("env_id", ids_with("hazards"))
def test_selftest_notices_a_wrong_hazard_radius(env_id, factor, monkeypatch):
    plain = Costs._inside_hazard
    monkeypatch.setattr(Costs, "_inside_hazard", lambda self, size: plain(self, factor * size))
    assert re.search(r"step \d+\[(2\]|5\]\['cost_hazards)", str(first_difference(env_id, FastBuilder)))


@pytest.mark.parametrize("factor", [0.98, 1.02])
@pytest.mark.parametrize("env_id", [env_id for env_id in TASKS if "Button" not in env_id])
def test_selftest_notices_a_wrong_goal_radius(env_id, factor, monkeypatch):
    def size(self):
        return factor * self._task.goal.size

    monkeypatch.setattr(GoalReward, "achieved", lambda self, touches: bool(self._distance() <= size(self)))
    monkeypatch.setattr(PushReward, "achieved", lambda self, touches: bool(self._distance3(self._goal) <= size(self)))
    assert first_difference(env_id, FastBuilder) is not None


@pytest.mark.parametrize("env_id", ids_with("vases_velocity"))
def test_selftest_notices_that_no_vase_moves(env_id, monkeypatch):
    monkeypatch.setattr(Costs, "_vase_moves", lambda self, vases: False)
    assert "cost_vases_velocity" in str(first_difference(env_id, FastBuilder))


@pytest.mark.parametrize("env_id", [*ids_with("vases_contact", "gremlins", "pillars"), "SafetyCarButton0-v0"])
def test_selftest_notices_that_nothing_touches(env_id, monkeypatch):
    monkeypatch.setattr(Costs, "touches", lambda self: set())
    assert first_difference(env_id, FastBuilder) is not None


def test_make_with_broken_costs_gives_stock(monkeypatch):
    monkeypatch.setattr(selftest, "_verdicts", {})
    monkeypatch.setattr(Costs, "_inside_hazard", lambda self, size: False)
    with pytest.warns(RuntimeWarning, match=r"PointGoal2-v0 differs from stock .*step 5\[2\]: 0.0 instead of 1.0"):
        assert not is_fast(make("SafetyPointGoal2-v0"))


def test_selftest_runs_with_the_arguments_of_the_user(monkeypatch):
    monkeypatch.setattr(selftest, "_verdicts", {})
    config = {"agent_name": "Point", "sim_conf.frameskip_binom_n": 3}
    substeps = []

    class Watched(FastBuilder):
        def step(self, action):
            substeps.append(self.task.sim_conf.frameskip_binom_n)
            return super().step(action)

    assert first_difference("SafetyPointGoal0-v0", Watched, {"config": config}) is None
    assert set(substeps) == {3}
    asked = []
    monkeypatch.setattr(selftest, "first_difference", lambda *arguments: asked.append(arguments))
    for settings in ({}, {"config": config}, {"config": config, "width": 9}, {"task_id": "SafetyPointGoal1-v0"}):
        assert builder_of("SafetyPointGoal0-v0", settings=settings)[0] is FastBuilder
    assert [arguments[2] for arguments in asked] == [{}, {"config": config}, {"task_id": "SafetyPointGoal1-v0"}]


def test_selftest_judges_the_class_that_renders(monkeypatch):
    monkeypatch.setattr(selftest, "_verdicts", {})
    assert builder_of("SafetyPointGoal0-v0", pictures=True)[0] is PictureBuilder
    monkeypatch.setattr(PictureBuilder, "_renew_goal", OneGoal._renew_goal)
    assert builder_of("SafetyPointGoal0-v0")[0] is FastBuilder
    selftest._verdicts.clear()
    with pytest.warns(RuntimeWarning, match="differs from stock"):
        assert builder_of("SafetyPointGoal0-v0", pictures=True)[0] is compat.stock("builder").Builder


def test_a_failed_selftest_falls_back_to_stock_loudly(monkeypatch):
    monkeypatch.setattr(selftest, "_verdicts", {})
    monkeypatch.setattr(selftest, "first_difference", lambda *arguments: "step 3: 1.0 instead of 2.0")
    with pytest.warns(RuntimeWarning, match=r"differs from stock .*step 3: 1.0 instead of 2.0.*uses stock"):
        env = make("SafetyPointGoal1-v0")
    assert not is_fast(env)


@pytest.mark.parametrize("contender", [FastBuilder, Unbuildable, Broken])
def test_selftest_leaves_the_global_generator_alone(contender):
    before = np.random.get_state()  # noqa: NPY002
    first_difference("SafetyPointGoal1-v0", contender)
    same_bits(before, np.random.get_state(), "global generator")  # noqa: NPY002


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (1.0, 1),
        (1.0, np.float64(1.0)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([1, 2], [1, 2, 3]),
        (np.zeros(2), np.zeros(2, dtype=np.float32)),
        (np.zeros((1, 2)), np.zeros(2)),
        (np.array([1.0]), np.array([np.nextafter(1.0, 2.0)])),
        (True, np.True_),
    ],
)
def test_same_bits_refuses_what_differs(one, other):
    same_bits(one, one, "itself")
    with pytest.raises(DifferenceError, match="here"):
        same_bits(one, other, "here")
