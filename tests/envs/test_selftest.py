"""The check at start-up: it finds a single changed bit, and then stock is what one gets."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ccfs.envs import is_fast, make, selftest
from ccfs.envs.fast import FastBuilder
from ccfs.envs.selftest import DifferenceError, first_difference, same_bits

# NumPy's word on how stock reads a joint number, in every robot but Point.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")


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
    ],
)
def test_selftest_finds_a_difference(contender, where):
    difference = first_difference("SafetyPointGoal1-v0", contender)
    assert difference is not None
    assert re.search(where, difference)


def test_a_failed_selftest_falls_back_to_stock_loudly(monkeypatch):
    selftest.passes.cache_clear()
    monkeypatch.setattr(selftest, "first_difference", lambda env_id, contender: "step 3: 1.0 instead of 2.0")
    with pytest.warns(RuntimeWarning, match=r"differs from stock .*step 3: 1.0 instead of 2.0.*using stock"):
        env = make("SafetyPointGoal1-v0")
    assert not is_fast(env)
    selftest.passes.cache_clear()


def test_selftest_leaves_the_global_generator_alone():
    before = np.random.get_state()  # noqa: NPY002
    first_difference("SafetyPointGoal1-v0", FastBuilder)
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
