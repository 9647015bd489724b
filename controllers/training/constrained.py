"""One epoch's CPO update, with the results of OmniSafe 0.5.0: one step within a limit of cost, then both critics.

Constrained Policy Optimization (Achiam, Held, Tamar, Abbeel 2017) has no price of cost. It takes the best step of
divergence `target_kl` at most that, to first order, brings or keeps the cost under its limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.networks import ACTOR, Adam, Floats, Layout
from ccfs.controllers.training.trust_region import (
    DECAY,
    Fisher,
    fit_critics,
    loss_and_gradient,
    solved,
    surrogate_loss,
)
from ccfs.controllers.training.update import Batch, UpdateReport, divergence, policy

__all__ = ["Model", "best_step", "update_constrained"]

_SEARCH_STEPS: Final = 20
_TINY: Final = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The problem of a step to first order: divergence at most `target`, and the cost may rise by -`excess`.

    Args:
        gain: the natural gradient of the reward.
        cost: the natural gradient of the cost.
        gain_gain: gain @ fisher @ gain, and so on.
        excess: mean cost of an episode minus its limit.
        is_cost_flat: whether the gradient of the cost is zero, up to rounding.
    """

    gain: Floats
    cost: Floats
    gain_gain: float
    gain_cost: float
    cost_cost: float
    excess: float
    is_cost_flat: bool
    target: float


def update_constrained(
    batch: Batch,
    parameters: Floats,
    adam: Adam,
    *,
    layout: Layout,
    config: TrainingConfig,
    excess: float,
    learning_rates: NDArray[np.float64],
    permutation: Callable[[], NDArray[np.intp]],
) -> UpdateReport:
    """Move the actor by one step and fit both critics to `batch`, in place. `excess` is mean cost minus limit."""
    if not math.isfinite(excess):
        raise ValueError(f"`excess` must be finite, got {excess}. No episode has ended yet?")
    kl = _step_actor(batch, parameters, layout, excess, config.target_kl)
    fit_critics(
        batch, batch.reward_advantages, parameters, adam, layout=layout, config=config, learning_rates=learning_rates,
        permutation=permutation,
    )  # fmt: skip
    return UpdateReport(iterations=config.update_iterations, kl=kl)


def _step_actor(batch: Batch, parameters: Floats, layout: Layout, excess: float, target: float) -> float:
    """Take the longest step along the best one that keeps what it promises. Return its divergence, 0 for no step."""
    actor = parameters[ACTOR : ACTOR + 1]
    loss, cost, model = _modelled(batch, actor, layout, excess, target)
    step = best_step(model)
    old, fraction = actor.copy(), 1.0
    old_means, old_log_std = policy(layout, actor, batch.observations)
    for _ in range(_SEARCH_STEPS):
        actor[0] = old[0] + fraction * step
        kl = divergence(old_means, old_log_std, *policy(layout, actor, batch.observations)) / layout.action_size
        gained = loss - surrogate_loss(batch, batch.reward_advantages, actor, layout)
        risen = surrogate_loss(batch, -batch.cost_advantages, actor, layout) - cost
        # Above the limit a step may lose reward. It must not raise the cost.
        if (excess >= 0.0 or gained >= 0.0) and risen <= max(-excess, 0.0) and kl <= target:
            return kl
        fraction *= DECAY
    actor[:] = old
    return 0.0


def _modelled(batch: Batch, actor: Floats, layout: Layout, excess: float, target: float) -> tuple[float, float, Model]:
    """Return the losses of reward and of cost here, and the problem of the step."""
    loss, downhill = loss_and_gradient(batch, batch.reward_advantages, actor, layout)
    # The loss is minus the mean of what it is given, so this is the mean of the cost.
    cost, uphill = loss_and_gradient(batch, -batch.cost_advantages, actor, layout)
    fisher = Fisher(batch.observations, actor, layout)
    gain, rise = solved(fisher, -downhill), solved(fisher, uphill)
    model = Model(
        gain=gain, cost=rise, gain_gain=float(gain @ fisher(gain)), gain_cost=float(-downhill @ rise),
        cost_cost=float(uphill @ rise), excess=excess, is_cost_flat=float(uphill @ uphill) <= 1e-6, target=target,
    )  # fmt: skip
    products = (model.gain_gain, model.gain_cost, model.cost_cost)
    if not (bool(np.isfinite(products).all()) and min(model.gain_gain, model.cost_cost) >= 0.0):
        raise ArithmeticError(f"The natural gradients must be finite, with squares of at least 0, got {products}.")
    return loss, cost, model


def best_step(model: Model) -> Floats:
    """Return the step that gains most, by the formulas of the paper's appendix."""
    excess, twice = model.excess, 2.0 * model.target
    room = twice - excess**2 / (model.cost_cost + _TINY)
    if excess < 0.0 and (model.is_cost_flat or room < 0.0):
        # No step of this length reaches the limit.
        return np.asarray(math.sqrt(twice / (model.gain_gain + _TINY)) * model.gain)
    if room < 0.0:
        # None comes back under it. Then the cost falls as fast as it can.
        return np.asarray(-math.sqrt(twice / (model.cost_cost + _TINY)) * model.cost)
    length = _multiplier(model, room)
    price = max(length * excess + model.gain_cost, 0.0) / (model.cost_cost + _TINY)
    return np.asarray((model.gain - price * model.cost) / (length + _TINY))


def _multiplier(model: Model, room: float) -> float:
    """Return the multiplier of the divergence at the minimum of the dual, where the limit cuts the trust region."""
    q, r, s, excess = model.gain_gain, model.gain_cost, model.cost_cost + _TINY, model.excess
    # The price of cost is positive on one side of the border, and zero on the other.
    rest, border = max(q - r**2 / s, 0.0), -r / (excess + _TINY)
    paid, free = ((0.0, border), (border, math.inf)) if excess < 0.0 else ((border, math.inf), (0.0, border))
    with_price = _within(math.sqrt(rest / room) if room > 0.0 else math.inf, *paid)
    without = _within(math.sqrt(q / (2.0 * model.target)), *free)
    dual_with_price = 0.5 * (rest / (with_price + _TINY) + room * with_price) - r * excess / s
    dual_without = 0.5 * (q / (without + _TINY) + 2.0 * model.target * without)
    return with_price if dual_with_price <= dual_without else without


def _within(value: float, low: float, high: float) -> float:
    # In this order: where the interval is empty, 0 loses the comparison of the duals. A negative number would win it.
    return max(low, min(high, value))
