"""The trust region update against OmniSafe's TRPOLag: same weights, batch and order in, same weights out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from updates import LAYOUT, STEPS, random_batch, run_both

from ccfs.controllers.training import trust_region
from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.networks import ACTOR, Adam, log_density
from ccfs.controllers.training.trust_region import update_in_trust_region

pytestmark = pytest.mark.slow


def config_with(**changes: float) -> TrainingConfig:
    sizes = {"total_steps": 4 * STEPS, "steps_per_epoch": STEPS}
    return TrainingConfig.of("trpolag", environment="none", seed=0, **(sizes | changes))


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("changes", [{}, {"target_kl": 4.0}], ids=["defaults", "shortened steps"])
def test_trust_region_equals_omnisafe_in_double_precision(omnisafe_agent, changes: dict[str, float]) -> None:
    # 3 epochs of a natural step and 10 passes of 2 batches. Oracle: OmniSafe 0.5.0.
    ours, theirs = run_both(omnisafe_agent, config_with(**changes), np.float64, epochs=3)
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=1e-9)


@pytest.mark.usefixtures("double_precision")
def test_trust_region_comparison_notices_another_damping(omnisafe_agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust_region, "DAMPING", 0.11)
    with pytest.raises(AssertionError):
        run_both(omnisafe_agent, config_with(), np.float64, epochs=1)  # it compares the divergences


@pytest.mark.usefixtures("_omnisafe")
def test_trust_region_defaults_are_omnisafes(capsys: pytest.CaptureFixture[str]) -> None:
    from omnisafe.utils.config import get_default_kwargs_yaml

    theirs = get_default_kwargs_yaml("TRPOLag", "none", "on-policy")
    ours = TrainingConfig.of("trpolag", environment="x", seed=0)
    algo, model, lagrange = theirs.algo_cfgs, theirs.model_cfgs, theirs.lagrange_cfgs
    assert (ours.steps_per_epoch, ours.update_iterations) == (algo.steps_per_epoch, algo.update_iters)
    assert (ours.batch_size, ours.target_kl) == (algo.batch_size, algo.target_kl)
    assert (algo.cg_damping, algo.cg_iters) == (trust_region.DAMPING, trust_region.SOLVER_STEPS)
    assert algo.fvp_sample_freq == 1
    assert (ours.max_gradient_norm, ours.critic_norm_coefficient) == (algo.max_grad_norm, algo.critic_norm_coef)
    assert (ours.discount, ours.trace_decay, ours.trace_decay) == (algo.gamma, algo.lam, algo.lam_c)
    assert list(ours.hidden_sizes) == model.actor.hidden_sizes == model.critic.hidden_sizes
    assert ours.critic_learning_rate == model.critic.lr
    assert (ours.cost_limit, ours.multiplier_init) == (lagrange.cost_limit, lagrange.lagrangian_multiplier_init)
    assert ours.multiplier_learning_rate == lagrange.lambda_lr


def test_trust_region_takes_no_step_that_does_not_help() -> None:
    rng = np.random.default_rng(8)
    parameters = LAYOUT.initial(rng)
    batch = random_batch(parameters, rng)
    # With equal advantages and the present densities no policy is better, up to rounding, than one that keeps still.
    means = LAYOUT.forward(parameters, batch.observations)[-1][ACTOR]
    flat = replace(
        batch,
        log_densities=log_density(batch.actions, means, LAYOUT.views(parameters)[2][ACTOR]),
        reward_advantages=np.zeros_like(batch.reward_advantages),
        cost_advantages=np.zeros_like(batch.cost_advantages),
    )
    before = parameters.copy()
    report = update_in_trust_region(
        flat, parameters, Adam(np.zeros_like(parameters), np.zeros_like(parameters), 0), layout=LAYOUT,
        config=config_with(), multiplier=0.5, learning_rates=np.full(3, 1e-3),
        permutation=lambda: rng.permutation(STEPS),
    )  # fmt: skip
    assert report.kl == 0.0
    assert np.array_equal(parameters[ACTOR], before[ACTOR])
    assert not np.array_equal(parameters[1:], before[1:])
