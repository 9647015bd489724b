"""Rollouts: advantages against OmniSafe's buffers, true final observations, and reset seeds that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box
from small_training import Target, config_with, fresh, make

from ccfs.controllers.training.rollout import advantages_and_targets, centred, collect, standardised
from ccfs.controllers.training.state import TrainingState

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("_omnisafe")
def test_advantages_equal_omnisafe_buffers() -> None:
    import torch
    from omnisafe.common.buffer import VectorOnPolicyBuffer

    rng = np.random.default_rng(5)
    steps, copies = 40, 3
    columns = {name: rng.normal(size=(steps, copies)).astype(np.float32) for name in ("reward", "cost")}
    values = {name: rng.normal(size=(steps, copies)).astype(np.float32) for name in ("value_r", "value_c")}
    is_end = rng.random((steps, copies)) < 0.1
    is_end[-1] = True
    is_terminated = is_end & (rng.random((steps, copies)) < 0.3)
    final = rng.normal(size=(2, steps, copies)).astype(np.float32)
    final[:, is_terminated] = 0.0

    theirs = VectorOnPolicyBuffer(
        obs_space=Box(-1, 1, (1,)), act_space=Box(-1, 1, (1,)), size=steps, gamma=0.99, lam=0.95, lam_c=0.95,
        advantage_estimator="gae", penalty_coefficient=0.0, standardized_adv_r=True, standardized_adv_c=True,
        num_envs=copies,
    )  # fmt: skip
    for t in range(steps):
        row = {name: torch.as_tensor(column[t]) for name, column in (columns | values).items()}
        theirs.store(obs=torch.zeros(copies, 1), act=torch.zeros(copies, 1), logp=torch.zeros(copies), **row)
        for i in np.flatnonzero(is_end[t]):
            theirs.finish_path(torch.as_tensor(final[0, t, [i]]), torch.as_tensor(final[1, t, [i]]), int(i))
    expected = theirs.get()

    for k, (paid, value, name) in enumerate((("reward", "value_r", "r"), ("cost", "value_c", "c"))):
        following = np.where(is_end, final[k], np.concatenate([values[value][1:], np.zeros((1, copies), np.float32)]))
        advantages, targets = advantages_and_targets(
            columns[paid], values[value], following, is_end, discount=0.99, trace_decay=0.95
        )
        scale = standardised if name == "r" else centred
        # 1e-6: the buffer keeps float32; only the order of the two roundings in the standardisation differs.
        np.testing.assert_allclose(scale(advantages.T.reshape(-1)), expected[f"adv_{name}"].numpy(), atol=1e-6)
        np.testing.assert_allclose(targets.T.reshape(-1), expected[f"target_value_{name}"].numpy(), atol=1e-6)


class Clock(Target):
    """Pays nothing, so that a one-step value target is the bootstrapped value alone; may terminate instead."""

    def __init__(self, *, terminates: bool = False) -> None:
        super().__init__()
        self.terminates = terminates

    def step(self, action):
        observation, _, _, _, ended, info = super().step(action)
        return observation, 0.0, 0.0, ended and self.terminates, ended and not self.terminates, info


def collect_clock(*, terminates: bool) -> tuple[np.ndarray, TrainingState]:
    """Return reward targets (4 environments, 40 steps: two episodes) where the value is the normalised clock."""
    config = config_with(steps_per_epoch=160, total_steps=160, discount=1.0, trace_decay=0.0, hidden_sizes=())
    state = fresh(config)
    state.parameters[:] = 0.0
    state.layout.views(state.parameters)[0][0][1, 2, 0] = 1.0
    environments = [Clock(terminates=terminates) for _ in range(4)]
    rollout = collect(environments, state.parameters, state.normalizer, layout=state.layout, config=config, epoch=0)
    assert [episode.length for episode in rollout.episodes] == [20] * 8
    return rollout.batch.reward_targets.reshape(4, 40), state


def test_collect_bootstraps_from_the_true_final_observation() -> None:
    targets, state = collect_clock(terminates=False)
    final, first = (state.normalizer.frozen()(np.array([0.0, 0.0, time], np.float32))[2] for time in (20.0, 0.0))
    assert final > 1.0 > -1.0 > first
    np.testing.assert_allclose(targets[:, 39], final, rtol=1e-6)
    assert (targets[:, 19] > 1.0).all()  # within the epoch: the clock's statistics were a little different then
    assert (np.diff(targets[:, :20]) > 0.0).all()


def test_collect_gives_a_terminated_path_no_future() -> None:
    targets, _ = collect_clock(terminates=True)
    assert not targets[:, [19, 39]].any()
    assert targets[:, :19].any()


def test_rollout_draws_another_seed_when_a_world_starts_with_cost() -> None:
    config = config_with()
    environments = [Target(refused_resets=2), *make(config)[1:]]
    fresh(config).run_epoch(environments)
    assert len(set(environments[0].seeds[:3])) == 3


def test_rollout_does_not_hide_other_failures() -> None:
    config = config_with()
    environments = make(config)
    environments[0].step = lambda action: (_ for _ in ()).throw(AssertionError("broken"))
    with pytest.raises(AssertionError, match="broken"):
        fresh(config).run_epoch(environments)
