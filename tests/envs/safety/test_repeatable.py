"""Episodes of `make_repeatable` follow from their reset seeds alone. A new stock environment is the oracle."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from ccfs.envs import make, make_repeatable
from ccfs.envs.safety import compat
from ccfs.envs.safety.point_maps import scene
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


def differ(one, other):
    return any(np.any(mine != theirs) for mine, theirs in zip(one, other, strict=True))


CAR = ["SafetyCarGoal1-v0", "SafetyCarButton1-v0", "SafetyCarPush1-v0"]


@pytest.mark.parametrize("env_id", [*CAR, "SafetyRacecarGoal2-v0"])
def test_each_episode_is_the_first_one_of_a_new_environment(env_id):
    used, stock_like = make_repeatable(env_id), make(env_id)
    again = [episode(used, seed) for seed in SEEDS]
    first = [episode(make(env_id), seed) for seed in SEEDS]
    same_bits(again, first, "episodes")
    # Otherwise this test would say nothing: without new worlds the later episodes are others.
    later = [episode(stock_like, seed) for seed in SEEDS]
    assert any(map(differ, later, first))


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
    again = remaker(env)()
    episode(again, SEEDS[0])
    same_bits(episode(again, SEEDS[1]), first, "made again")


def test_report_tells_a_trial_again_in_the_world_that_it_had():
    retold = scene({"env_id": "SafetyCarGoal1-v0"}, pictures=False).env
    episode(retold, SEEDS[0])
    same_bits(episode(retold, SEEDS[1]), episode(make("SafetyCarGoal1-v0"), SEEDS[1]), "retold")


def test_first_picture_of_an_episode_is_of_its_own_world():
    """Pictures are taken before `reset` returns, so the viewer must know the new world by then."""
    env = make_repeatable("SafetyCarGoal1-v0")
    env.reset(seed=1)
    task = env.unwrapped.task
    viewer = SimpleNamespace(model=task.model, data=task.data)
    task._viewers["rgb_array"] = viewer
    seen, specific = [], task.specific_reset
    task.specific_reset = lambda: (seen.append((viewer.model, viewer.data)), specific())
    env.reset(seed=2)
    assert [(model is task.model, data is task.data) for model, data in seen] == [(True, True)]


def test_refused_reset_leaves_the_running_episode_as_it_was():
    env = make_repeatable("SafetyPointGoal1-v0")
    env.reset(seed=1)
    env.unwrapped.task.mechanism_conf.randomize_layout = False
    with pytest.raises(AssertionError, match="Cannot set seed"):
        env.reset(seed=2)
    env.step(np.zeros(2))


def test_robots_with_a_speed_limit_have_one_world_and_repeat():
    env = make_repeatable("SafetyHopperVelocity-v1")
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (STEPS, 3))

    def played(seed):
        return [env.reset(seed=seed)[0], *(env.step(action)[:3] for action in actions)]

    first = played(1)
    played(2)
    same_bits(played(1), first, "second time")
