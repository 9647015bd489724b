"""The environment that OmniSafe trains on: right final observations and one reset per episode."""

from __future__ import annotations

import numpy as np
import pytest

from ccfs.envs.safety.vector import SafetyVectorEnv

TASK, LIMIT = "SafetyPointGoal1-v0", 6


def actions(count, copies=3, seed=0):
    return np.random.default_rng(seed).uniform(-1.2, 1.2, (count, copies, 2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_omnisafe_sees_right_final_observations_and_no_second_reset():
    import torch

    from ccfs.envs.safety.omnisafe import FastSafetyEnv, core

    env = core.make("FastSafetyPointGoal1-v0", num_envs=2, max_episode_steps=4)
    assert isinstance(env, FastSafetyEnv)
    assert (env.num_envs, env.max_episode_steps, env.need_auto_reset_wrapper) == (2, 4, False)
    env.set_seed(9)
    vector = SafetyVectorEnv(TASK, 2, max_episode_steps=4)
    expected = vector.reset(seed=9)
    observation, _ = env.reset()
    assert torch.equal(observation, torch.as_tensor(expected, dtype=torch.float32))
    for number, action in enumerate(actions(8, copies=2), start=1):
        wanted = vector.step(action)
        observation, reward, cost, _, truncated, info = env.step(torch.as_tensor(action))
        assert observation.dtype == reward.dtype == cost.dtype == torch.float32
        assert torch.equal(observation, torch.as_tensor(wanted.observation, dtype=torch.float32))
        assert ("final_observation" in info) == (number % 4 == 0) == bool(truncated.all())
        if number % 4 == 0:
            final = torch.as_tensor(wanted.final_observation, dtype=torch.float32)
            assert torch.equal(info["final_observation"], final)
            assert info["_final_observation"].all()
            assert torch.equal(env.reset()[0], observation)
    with pytest.raises(NotImplementedError, match="do not render"):
        env.render()
    env.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_omnisafe_gets_unbatched_tensors_from_a_single_copy():
    import torch

    from ccfs.envs.safety.omnisafe import FastSafetyEnv

    env = FastSafetyEnv("FastSafetyPointGoal1-v0", max_episode_steps=2)
    observation, _ = env.reset(seed=1)
    assert observation.shape == (60,)
    results = [env.step(torch.zeros(2)) for _ in range(2)]
    assert results[0][1].shape == ()
    assert results[1][5]["final_observation"].shape == (60,)
