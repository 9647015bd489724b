"""The vectorised environment against separate ones, its final observations, its state, and its OmniSafe face."""

from __future__ import annotations

import numpy as np
import pytest

from ccfs.envs import make
from ccfs.envs.safety.selftest import same_bits
from ccfs.envs.safety.vector import Episode, SafetyVectorEnv

TASK, LIMIT = "SafetyPointGoal1-v0", 6


def actions(count, copies=3, seed=0):
    return np.random.default_rng(seed).uniform(-1.2, 1.2, (count, copies, 2))


def fields(step):
    return {name: getattr(step, name) for name in step.__slots__}


def test_vector_equals_separate_environments_with_one_reset_an_episode():
    vector = SafetyVectorEnv(TASK, 3, max_episode_steps=LIMIT)
    single = [make(TASK, max_episode_steps=LIMIT) for _ in range(3)]
    first = vector.reset(seed=11)
    same_bits(np.stack([env.reset(seed=11 + i)[0] for i, env in enumerate(single)]), first, "reset")
    totals = np.zeros((2, 3))
    for number, action in enumerate(actions(3 * LIMIT + 2), start=1):
        step = vector.step(action)
        ends = number % LIMIT == 0
        assert step.truncated.tolist() == [ends] * 3
        assert not step.terminated.any()
        for i, env in enumerate(single):
            observation, reward, cost, _, _, info = env.step(action[i])
            same_bits(observation, step.final_observation[i].copy(), "observation the step led to")
            assert (reward, cost, "goal_met" in info) == (step.reward[i], step.cost[i], step.goal_met[i])
            totals[:, i] += reward, cost
            next_observation = env.reset()[0] if ends else observation
            same_bits(next_observation, step.observation[i].copy(), "observation to act on")
        if ends:
            assert step.episodes == tuple(
                Episode(index=i, total_reward=totals[0, i], total_cost=totals[1, i], length=LIMIT) for i in range(3)
            )
            totals[:] = 0.0
        else:
            assert step.episodes == ()


@pytest.mark.slow
@pytest.mark.parametrize("pause", [1, LIMIT, LIMIT + 4])
def test_state_continues_bit_for_bit_anywhere(pause, tmp_path):
    script = actions(3 * LIMIT)
    vector = SafetyVectorEnv(TASK, 3, max_episode_steps=LIMIT)
    observation = vector.reset(seed=5)
    for action in script[:pause]:
        observation = vector.step(action).observation
    np.savez(tmp_path / "state.npz", **vector.state_dict())
    later = SafetyVectorEnv(TASK, 3, max_episode_steps=LIMIT)
    with np.load(tmp_path / "state.npz", allow_pickle=False) as saved:
        same_bits(observation, later.load_state_dict(saved), "observation")
    assert vector.is_at_start == later.is_at_start == (pause % LIMIT == 0)
    for action in script[pause:]:
        same_bits(fields(vector.step(action)), fields(later.step(action)), "step")


def test_seeds_decide_everything():
    runs = []
    for seed in (7, 7, [7, 8], [8, 7]):
        vector = SafetyVectorEnv(TASK, 2, max_episode_steps=4)
        first = vector.reset(seed=seed)
        runs.append((first, [vector.step(action).reward for action in actions(9, copies=2)]))
    same_bits(runs[0], runs[1], "same seed")
    same_bits(runs[0], runs[2], "seed and sequence")
    assert runs[0][0].tobytes() != runs[3][0].tobytes()


def test_a_layout_that_starts_with_a_cost_is_drawn_again(monkeypatch):
    vector = SafetyVectorEnv(TASK, 1, max_episode_steps=3)
    env, plain, refused = vector._envs[0], vector._envs[0].reset, []

    def reset(**arguments):
        result = plain(**arguments)
        if len(refused) < 2:
            refused.append(1)
            raise AssertionError("World has starting cost! {}")
        return result

    monkeypatch.setattr(env, "reset", reset)
    observation = vector.reset(seed=3)
    single = make(TASK)
    single.reset(seed=3)
    single.reset()
    same_bits(single.reset()[0], observation[0].copy(), "third layout")
    again = SafetyVectorEnv(TASK, 1, max_episode_steps=3)
    same_bits(observation, again.load_state_dict(vector.state_dict()), "restored")
    monkeypatch.setattr(env, "reset", lambda: (_ for _ in ()).throw(AssertionError("something else")))
    with pytest.raises(AssertionError, match="something else"):
        vector.reset(seed=3)


def test_vector_refuses_bad_arguments():
    with pytest.raises(ValueError, match="`num_envs` must be at least 1, got 0"):
        SafetyVectorEnv(TASK, 0)
    with pytest.raises(ValueError, match="`max_episode_steps` must be at least 1, got 0"):
        SafetyVectorEnv(TASK, 1, max_episode_steps=0)
    with pytest.raises(ValueError, match=r"`max_episode_steps` must be at most 1000, .*, got 1500"):
        SafetyVectorEnv(TASK, 1, max_episode_steps=1500)
    assert SafetyVectorEnv("SafetyPointCircle1-v0", 1).max_episode_steps == 500
    vector = SafetyVectorEnv(TASK, 2)
    assert vector.max_episode_steps == 1000
    with pytest.raises(RuntimeError, match="must be called before the first step"):
        vector.step(np.zeros((2, 2)))
    with pytest.raises(RuntimeError, match="before there is a state"):
        vector.state_dict()
    with pytest.raises(ValueError, match="`seed` must be given at the first reset"):
        vector.reset()
    for seed in (-1, 2**32 - 1, [1], [1, 2, 3]):
        with pytest.raises(ValueError, match=r"`seed` must give 2 integers in \[0, 2\*\*32\)"):
            vector.reset(seed=seed)
    with pytest.raises(TypeError):
        vector.reset(seed=[0.5, 1.5])
    vector.reset(seed=0)
    with pytest.raises(ValueError, match=r"`actions` must have shape \(2, 2\), got \(2,\)"):
        vector.step(np.zeros(2))
    state = vector.state_dict()
    with pytest.raises(ValueError, match="`state` must be of"):
        SafetyVectorEnv(TASK, 1).load_state_dict(state)
    vector.close()
