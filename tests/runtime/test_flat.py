"""Flat observations: Gymnasium's own flattening is the oracle, and the way back gives what the environment gave."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ccfs.runtime.environment import observation_layout
from ccfs.runtime.flat import flattened, unflattened

CASES = {
    "dict": spaces.Dict({"goal": spaces.Box(-1, 1, (2,)), "arm": spaces.Box(-5, 5, (3,), dtype=np.float64)}),
    "numbers": spaces.Dict({"gear": spaces.Discrete(4), "keys": spaces.MultiBinary(3), "x": spaces.Box(-1, 1, (2, 2))}),
    "nested": spaces.Dict({"in": spaces.Dict({"a": spaces.Box(0, 1, (1,)), "b": spaces.Discrete(2, start=5)})}),
    "tuple": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([3, 2]))),
    "discrete": spaces.Discrete(6),
}


class Shown(gymnasium.Env):
    """Shows samples of a space."""

    action_space = spaces.Box(-1, 1, (1,))

    def __init__(self, space):
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other) and np.asarray(one).dtype == np.asarray(other).dtype


@pytest.mark.parametrize("name", CASES)
def test_flattened_is_gymnasiums_and_unflattened_is_its_inverse(name):
    space = CASES[name]
    env = flattened(Shown(space))
    assert isinstance(env.observation_space, spaces.Box)
    seen, _ = env.reset(seed=3)
    assert seen.shape == env.observation_space.shape == (spaces.flatdim(space),)
    space.seed(8)
    for _ in range(20):
        whole = space.sample()
        flat = spaces.flatten(space, whole)
        assert same(unflattened(space, flat), dict(whole) if isinstance(space, spaces.Dict) else whole)


def test_flattened_leaves_arrays_alone():
    env = Shown(spaces.Box(-1, 1, (2, 3)))
    assert flattened(env) is env


def test_flattened_names_the_places_of_the_parts():
    env = flattened(Shown(CASES["dict"]))
    whole = CASES["dict"].sample()
    flat = spaces.flatten(CASES["dict"], whole)
    places = observation_layout(env)
    assert set(places) == {"goal", "arm"}
    for key, (start, stop) in places.items():
        np.testing.assert_array_equal(flat[start:stop], whole[key])


def test_unflattened_reads_the_likeliest_number_under_noise():
    assert unflattened(spaces.Discrete(3, start=2), np.array([0.2, 0.9, -0.4])) == 3
    chosen = unflattened(spaces.MultiDiscrete([2, 3]), np.array([0.6, 0.5, 0.1, -1.0, 0.3]))
    assert chosen.tolist() == [0, 2]


def test_flattened_refuses_what_it_cannot_flatten():
    for env, words in (
        ("CartPole-v1", r"got 'CartPole-v1'. Make it first: gymnasium.make\('CartPole-v1'\)"),
        (gymnasium.vector.SyncVectorEnv([lambda: Shown(spaces.Discrete(2))]), "vector environment SyncVectorEnv"),
        (Shown(spaces.Dict({"said": spaces.Text(4)})), "got Text in Dict"),
        (3, "must be a Gymnasium environment, got 3"),
    ):
        with pytest.raises(TypeError, match=words):
            flattened(env)
    with pytest.raises(ValueError, match=r"must have shape \(6,\), got \(5,\)"):
        unflattened(CASES["discrete"], np.zeros(5))
