"""The update of CPO against OmniSafe's: same weights, batch and order in, same weights out, in each of its cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from updates import LAYOUT, STEPS, random_batch, run_both

from ccfs.controllers.training import constrained
from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.constrained import Model, best_step, update_constrained
from ccfs.controllers.training.networks import ACTOR, Adam

COSTS = {
    "no step comes back under the limit": (60.0, 0),
    "a step comes back under it": (25.03, 1),
    "a step would cross it": (24.97, 2),
    "no step reaches it": (10.0, 3),
}


def config_with(**changes: float) -> TrainingConfig:
    sizes = {"total_steps": 4 * STEPS, "steps_per_epoch": STEPS}
    return TrainingConfig.of("cpo", environment="none", seed=0, **(sizes | changes))


@pytest.fixture
def agent(omnisafe_agent, monkeypatch: pytest.MonkeyPatch):
    """An agent of OmniSafe with the paper's formulas.

    OmniSafe 0.5.0 differs from them where the limit cuts the trust region: its r has the other sign, and its projection
    onto an empty interval gives a negative multiplier, which then wins.
    """
    import torch
    from omnisafe.algorithms.on_policy import CPO

    theirs, clamp = CPO._step_direction, torch.clamp

    def projected(data, *bounds, **named):
        if len(bounds) != 2:
            return clamp(data, *bounds, **named)
        low, high = (torch.as_tensor(bound, dtype=data.dtype) for bound in bounds)
        return torch.maximum(low, torch.minimum(high, data))

    monkeypatch.setattr(CPO, "_step_direction", lambda self, **words: theirs(self, **(words | {"r": -words["r"]})))
    monkeypatch.setattr(torch, "clamp", projected)
    return omnisafe_agent(config_with(), LAYOUT)


@pytest.mark.slow
@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(("cost", "case"), COSTS.values(), ids=COSTS.keys())
def test_constrained_update_equals_omnisafe_in_double_precision(agent, cost: float, case: int) -> None:
    # A natural step and 10 passes of 2 batches. Oracle: OmniSafe 0.5.0.
    ours, theirs = run_both(lambda *_: agent, config_with(), np.float64, epochs=1, costs=[cost])
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=1e-9)
    assert agent.agent._logger.stored["Misc/OptimCase"] == case


@pytest.mark.slow
@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("cost", [25.03, 24.97])
def test_constrained_comparison_notices_another_multiplier(agent, monkeypatch, cost: float) -> None:
    true = constrained._multiplier
    monkeypatch.setattr(constrained, "_multiplier", lambda *words: 1.01 * true(*words))
    with pytest.raises(AssertionError):
        run_both(lambda *_: agent, config_with(), np.float64, epochs=1, costs=[cost])  # it compares the divergences


@pytest.mark.slow
@pytest.mark.usefixtures("_omnisafe")
def test_constrained_defaults_are_omnisafes(capsys: pytest.CaptureFixture[str]) -> None:
    from omnisafe.utils.config import get_default_kwargs_yaml

    theirs = get_default_kwargs_yaml("CPO", "none", "on-policy")
    ours, algo = TrainingConfig.of("cpo", environment="x", seed=0), theirs.algo_cfgs
    assert (ours.steps_per_epoch, ours.update_iterations) == (algo.steps_per_epoch, algo.update_iters)
    assert (ours.batch_size, ours.target_kl, ours.cost_limit) == (algo.batch_size, algo.target_kl, algo.cost_limit)
    assert (ours.max_gradient_norm, ours.critic_norm_coefficient) == (algo.max_grad_norm, algo.critic_norm_coef)
    assert (ours.discount, ours.trace_decay, ours.trace_decay) == (algo.gamma, algo.lam, algo.lam_c)
    assert ours.critic_learning_rate == theirs.model_cfgs.critic.lr


@pytest.mark.parametrize("excess", [-0.3, -0.05, 0.0, 0.05, 0.3])
@pytest.mark.parametrize("cost", [(0.4, -1.2), (0.4, 1.2), (-0.9, 0.1), (1.0, 0.7)])
def test_constrained_step_is_the_best_of_all_that_keep_to_the_limits(excess: float, cost: tuple[float, ...]) -> None:
    # Oracle: every step of the plane that two natural gradients span, on a fine grid. The Fisher matrix is 1 here.
    gain, rise, target = np.array([1.0, 0.5]), np.array(cost), 0.02
    products = {"gain_gain": gain @ gain, "gain_cost": gain @ rise, "cost_cost": rise @ rise}
    step = best_step(Model(gain=gain, cost=rise, excess=excess, is_cost_flat=False, target=target, **products))
    turns, lengths = np.meshgrid(np.linspace(0.0, 2.0 * np.pi, 2001), np.linspace(0.0, np.sqrt(2.0 * target), 401))
    grid = np.stack([lengths * np.cos(turns), lengths * np.sin(turns)], axis=-1).reshape(-1, 2)
    allowed = grid[grid @ rise + excess <= 1e-9]
    assert step @ step / 2.0 <= target * (1.0 + 1e-6)
    if len(allowed):
        assert step @ rise + excess <= 1e-6
        assert step @ gain == pytest.approx((allowed @ gain).max(), abs=2e-3)
    else:
        assert step @ rise == pytest.approx((grid @ rise).min(), abs=2e-3)


def test_constrained_update_needs_an_episode_that_ended() -> None:
    rng = np.random.default_rng(8)
    parameters = LAYOUT.initial(rng)
    adam = Adam(np.zeros_like(parameters), np.zeros_like(parameters), 0)
    common = {"layout": LAYOUT, "config": config_with(), "learning_rates": np.full(3, 1e-3)}
    with pytest.raises(ValueError, match="`excess` must be finite"):
        update_constrained(
            random_batch(parameters, rng), parameters, adam, excess=float("nan"),
            permutation=lambda: rng.permutation(STEPS), **common,
        )  # fmt: skip


def test_constrained_update_takes_no_step_that_raises_the_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    parameters = LAYOUT.initial(rng)
    batch = random_batch(parameters, rng)
    batch = replace(batch, reward_advantages=batch.cost_advantages)  # what pays also costs
    before = parameters.copy()
    monkeypatch.setattr(constrained, "best_step", lambda model: 0.01 * model.gain)
    report = update_constrained(
        batch, parameters, Adam(np.zeros_like(parameters), np.zeros_like(parameters), 0), excess=5.0, layout=LAYOUT,
        config=config_with(), learning_rates=np.full(3, 1e-3), permutation=lambda: rng.permutation(STEPS),
    )  # fmt: skip
    assert report.kl == 0.0
    assert np.array_equal(parameters[ACTOR], before[ACTOR])
