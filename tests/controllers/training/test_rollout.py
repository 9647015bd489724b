"""Advantages, normaliser and multiplier against OmniSafe's buffers, `Normalizer` and `Lagrange`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ccfs.controllers.training.normalizer import RunningNormalizer
from ccfs.controllers.training.rollout import advantages_and_targets, centred, standardised
from ccfs.controllers.training.update import Multiplier


@pytest.mark.slow
@pytest.mark.usefixtures("_omnisafe")
def test_advantages_equal_omnisafe_buffers() -> None:
    import torch
    from gymnasium.spaces import Box
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


@pytest.mark.usefixtures("_omnisafe")
def test_normalizer_equals_omnisafe() -> None:
    import torch
    from omnisafe.common.normalizer import Normalizer

    rng = np.random.default_rng(6)
    theirs, ours = Normalizer((5,), clip=5), RunningNormalizer.empty(5)
    spread = np.array([1.0, 100.0, 1e-5, 0.0, 3.0])  # 1e-5 and 0: below the floor of the standard deviation
    for _ in range(60):
        batch = (3.0 + spread * rng.standard_t(2, size=(10, 5))).astype(np.float32)
        # 2e-3: OmniSafe sums in float32; with the floor of 0.01 a mean off by 1e-6 shows as 1e-4.
        np.testing.assert_allclose(ours.normalize(batch), theirs.normalize(torch.as_tensor(batch)).numpy(), atol=2e-3)
    frozen = ours.frozen()
    np.testing.assert_allclose(frozen.mean, theirs.mean.numpy(), rtol=1e-4)
    np.testing.assert_allclose(frozen.std, theirs.std.numpy(), rtol=1e-4)


def test_normalizer_equals_the_plain_formula() -> None:
    rng = np.random.default_rng(7)
    batches = [rng.normal(2.0, 3.0, size=(size, 4)).astype(np.float32) for size in (1, 10, 3)]
    running = RunningNormalizer.empty(4)
    for batch in batches:
        running.push(batch)
    everything = np.concatenate(batches).astype(np.float64)
    np.testing.assert_allclose(running.mean, everything.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(running.std, everything.std(axis=0, ddof=1), rtol=1e-12)


def test_normalizer_without_two_observations_has_no_spread() -> None:
    with pytest.raises(ValueError, match="needs two observations, got 0"):
        _ = RunningNormalizer.empty(2).std


@pytest.mark.usefixtures("_omnisafe")
def test_multiplier_equals_omnisafe() -> None:
    from omnisafe.common.lagrange import Lagrange

    theirs = Lagrange(cost_limit=25.0, lagrangian_multiplier_init=0.001, lambda_lr=0.035, lambda_optimizer="Adam")
    ours = Multiplier(value=0.001)
    for cost in (138.8, 97.6, 40.0, 25.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 60.0):
        theirs.update_lagrange_multiplier(cost)
        ours = ours.updated(cost, cost_limit=25.0, learning_rate=0.035)
        assert ours.value == pytest.approx(theirs.lagrangian_multiplier.item(), abs=1e-6)


def test_multiplier_is_never_negative() -> None:
    assert Multiplier(value=0.001).updated(0.0, cost_limit=25.0, learning_rate=0.035).value == 0.0


@pytest.mark.parametrize("cost", [math.nan, math.inf])
def test_multiplier_refuses_a_cost_that_is_no_number(cost: float) -> None:
    with pytest.raises(ValueError, match="`mean_cost` must be finite"):
        Multiplier(value=0.001).updated(cost, cost_limit=25.0, learning_rate=0.035)
