"""Episodes of `make_repeatable` follow from their reset seeds alone. A new stock environment is the oracle."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from ccfs.envs import make, make_repeatable
from ccfs.envs.safety import compat
from ccfs.envs.safety.selftest import same_bits
from ccfs.protocol.registry import PARTS
from ccfs.runtime.remade import remaker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
]
STEPS = 20
SEEDS = (1, 1004, 1016)


def episode(env, seed):
    """Return the observations and rewards of an episode of random actions."""
    found, actions = [env.reset(seed=seed)[0]], np.random.default_rng(seed)
    for _ in range(STEPS):
        observation, reward, *_ = env.step(actions.uniform(-1.0, 1.0, 2))
        found += [observation, reward]
    return found


@pytest.mark.parametrize("env_id", ["SafetyCarGoal1-v0", "SafetyCarButton1-v0", "SafetyCarPush1-v0"])
def test_each_episode_is_the_first_one_of_a_new_environment(env_id):
    used, stock_like = make_repeatable(env_id), make(env_id)
    again = [episode(used, seed) for seed in SEEDS]
    first = [episode(make(env_id), seed) for seed in SEEDS]
    same_bits(again, first, "episodes")
    # Otherwise this test would say nothing: without new worlds the later episodes are others.
    later = [episode(stock_like, seed) for seed in SEEDS]
    assert any(np.any(one != other) for one, other in zip(later[2], first[2], strict=True))


def test_each_episode_is_the_first_one_of_untouched_stock():
    used, seed = make_repeatable("SafetyCarGoal1-v0"), SEEDS[1]
    episode(used, SEEDS[0])
    stock = compat.stock("utils.registration").make("SafetyCarGoal1-v0")
    same_bits(episode(used, seed), episode(stock, seed), "episode")


def test_stock_steps_repeat_too():
    used = make_repeatable("SafetyCarGoal1-v0", fast=False)
    episode(used, SEEDS[0])
    same_bits(episode(used, SEEDS[1]), episode(make("SafetyCarGoal1-v0", fast=False), SEEDS[1]), "episode")


def test_protocols_and_gymnasium_make_environments_that_repeat():
    assert PARTS["environment"]["safety-gymnasium"].target == "ccfs.envs:make_repeatable"
    env = gymnasium.make("ccfs/SafetyCarGoal1-v0")
    first = episode(env, SEEDS[1])
    episode(env, SEEDS[0])
    same_bits(episode(env, SEEDS[1]), first, "second time")
    same_bits(episode(remaker(env)(), SEEDS[1]), first, "made again")
