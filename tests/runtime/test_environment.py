"""Five or six return values become one form, and what is no number or flag is refused."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from toys import Line

from ccfs.runtime.environment import Signals, inner_step, observation_layout, time_limit

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


class Parts(gymnasium.Env):
    """An environment with a Dict of observations."""

    def __init__(self):
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict(
            {"lidar": box(0.0, 1.0, (2, 2)), "compass": box(-1.0, 1.0, (3,)), "room": gymnasium.spaces.Discrete(2)}
        )
        self.action_space = box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        return {"lidar": np.full((2, 2), 0.5), "compass": np.arange(3.0) / 9, "room": 1}, {}


def test_observation_layout_of_a_flattened_dict_has_the_places_of_its_keys():
    env = gymnasium.wrappers.FlattenObservation(Parts())
    layout = observation_layout(env)
    flat, _ = env.reset()
    assert flat[slice(*layout["lidar"])].tolist() == [0.5] * 4
    np.testing.assert_allclose(flat[slice(*layout["compass"])], np.arange(3.0) / 9)
    assert flat[slice(*layout["room"])].tolist() == [0.0, 1.0]
    assert observation_layout(gymnasium.wrappers.TimeLimit(env, 5)) == layout


class Named(Line):
    observation_layout = {"place": (0, 1), "rest": (1, 3)}  # noqa: RUF012


class Asked(Line):
    @property
    def observation_layout(self):
        return {"place": np.array([0, 1]), "rest": [1, 3]}


class Doubled(gymnasium.ObservationWrapper):
    """Changes the observation, and says so by another space."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (6,), np.float64)

    def observation(self, observation):
        return np.tile(observation, 2)


@pytest.mark.parametrize("make", [Named, Asked])
def test_observation_layout_is_taken_from_the_attribute_through_wrappers_that_keep_the_observation(make):
    expected = {"place": (0, 1), "rest": (1, 3)}
    assert observation_layout(make()) == expected
    assert observation_layout(gymnasium.wrappers.TimeLimit(make(), 5)) == expected
    assert observation_layout(Doubled(make())) is None  # the places of the inner one are not those of the outer one
    assert observation_layout(Line()) is None
