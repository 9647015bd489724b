"""The fused update and the multiplier against OmniSafe: same weights, batch and order in, same weights out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from updates import LAYOUT, STEPS, random_batch, run_both

from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.networks import Adam
from ccfs.controllers.training.update import Multiplier, update

pytestmark = pytest.mark.slow


def config_with(**changes: float) -> TrainingConfig:
    base = {"update_iterations": 4, "batch_size": 64, "total_steps": 4 * STEPS, "steps_per_epoch": STEPS}
    return TrainingConfig(environment="none", seed=0, **(base | changes))


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(
    "changes",
    [{}, {"max_gradient_norm": 0.5}, {"entropy_coefficient": 0.01}, {"target_kl": 0.001}],
    ids=["defaults", "clipped gradients", "entropy bonus", "early stop"],
)
def test_update_equals_omnisafe_in_double_precision(omnisafe_agent, changes: dict[str, float]) -> None:
    # 3 epochs of 4 passes of 4 batches. Oracle: OmniSafe 0.5.0. 1e-11: rounding of 48 Adam steps in float64.
    ours, theirs = run_both(omnisafe_agent, config_with(**changes), np.float64, epochs=3)
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=1e-11)


@pytest.mark.usefixtures("_omnisafe")
def test_update_equals_omnisafe_in_single_precision(omnisafe_agent) -> None:
    # 2e-6: float32 rounding, magnified where Adam divides by a tiny second moment; one Adam step is up to 3e-4.
    ours, theirs = run_both(omnisafe_agent, config_with(), np.float32, epochs=3)
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=2e-6)


@pytest.mark.usefixtures("double_precision")
def test_update_comparison_notices_a_wrong_setting(omnisafe_agent) -> None:
    config = config_with()
    ours, theirs = run_both(omnisafe_agent, config, np.float64, epochs=1, spread=1.0)
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=1e-11)
    other = config_with(critic_norm_coefficient=0.002)
    ours, theirs = run_both(omnisafe_agent, other, np.float64, epochs=1, spread=1.0)
    assert np.abs(ours - theirs).max() > 1e-6


def test_update_keeps_unused_critic_outputs_at_zero() -> None:
    rng = np.random.default_rng(3)
    parameters = LAYOUT.initial(rng)
    adam = Adam(np.zeros_like(parameters), np.zeros_like(parameters), 0)
    update(
        random_batch(parameters, rng), parameters, adam, layout=LAYOUT, config=config_with(), multiplier=0.5,
        learning_rates=np.full(3, 3e-4), permutation=lambda: rng.permutation(STEPS),
    )  # fmt: skip
    weights, biases, log_std = LAYOUT.views(parameters)
    assert not weights[-1][1:, :, 1:].any()
    assert not biases[-1][1:, :, 1:].any()
    assert not log_std[1:].any()


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
