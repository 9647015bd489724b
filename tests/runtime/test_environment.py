"""Five or six return values become one form, and what is no number or flag is refused."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from toys import Line

from ccfs.runtime.environment import Signals, inner_step, time_limit

OBSERVATION = np.zeros(2)


class Returning(gymnasium.Env):
    """An environment whose `step` returns what it was given."""

    def __init__(self, *returned):
        self.returned = returned

    def step(self, action):
        return self.returned


def stepped(*returned, signals=None):
    return inner_step(Returning(*returned), np.zeros(1), signals or Signals())


def test_inner_step_takes_the_cost_from_info_or_from_the_sixth_value():
    assert stepped(OBSERVATION, 1.0, False, False, {}).cost is None
    assert stepped(OBSERVATION, 1.0, False, False, {"cost": 2}).cost == 2.0
    assert stepped(OBSERVATION, 1.0, False, False, {"c": 2.0}, signals=Signals(cost="c")).cost == 2.0
    assert stepped(OBSERVATION, 1.0, 3.0, False, False, {"cost": 2.0}).cost == 3.0


@pytest.mark.parametrize("flag", [True, np.True_, 1, 1.0, np.array(True)])
def test_inner_step_gives_plain_flags_and_numbers(flag):
    step = stepped(OBSERVATION, np.float32(0.5), flag, flag, {"goal_met": flag})
    assert (step.terminated, step.truncated, step.goal) == (True, True, True)
    assert {type(step.terminated), type(step.truncated), type(step.goal)} == {bool}
    assert (type(step.reward), step.reward) == (float, 0.5)


@pytest.mark.parametrize("flag", [np.nan, "False", None, 2, [True], np.array([True])])
def test_inner_step_refuses_a_flag_that_is_none(flag):
    with pytest.raises(TypeError, match="must return True or False as terminated"):
        stepped(OBSERVATION, 1.0, flag, False, {})
    with pytest.raises(TypeError, match="must return True or False as goal_met"):
        stepped(OBSERVATION, 1.0, False, False, {"goal_met": flag})


@pytest.mark.parametrize("number", ["1", None, [1.0], np.ones(1)])
def test_inner_step_refuses_a_reward_that_is_no_number(number):
    with pytest.raises(TypeError, match="must return a number as reward"):
        stepped(OBSERVATION, number, False, False, {})


def test_inner_step_refuses_another_number_of_values_and_an_info_that_is_no_dict():
    with pytest.raises(TypeError, match="must return 5 or 6 values, got 4"):
        stepped(OBSERVATION, 1.0, False, {})
    with pytest.raises(TypeError, match="must return a dict as its last value, got list"):
        stepped(OBSERVATION, 1.0, False, False, [])


def test_time_limit_is_the_least_of_the_wrappers_and_none_without_any():
    limited = gymnasium.wrappers.TimeLimit(Line(), max_episode_steps=30)
    assert time_limit(Line()) is None
    assert time_limit(limited) == 30
    assert time_limit(gymnasium.wrappers.TimeLimit(limited, max_episode_steps=50)) == 30
