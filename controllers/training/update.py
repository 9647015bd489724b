"""One epoch's PPO update and the price of cost, with the results of OmniSafe 0.5.0 and several times faster."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.networks import (
    ACTOR,
    COST_CRITIC,
    REWARD_CRITIC,
    Adam,
    Floats,
    Layout,
    clip_rows,
    log_density,
)

__all__ = ["Batch", "Multiplier", "UpdateReport", "combined", "divergence", "minibatch_step", "policy", "update"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The input of an update, with steps along the first axis. Advantages are standardised already."""

    observations: Floats
    actions: Floats
    log_densities: Floats
    reward_targets: Floats
    cost_targets: Floats
    reward_advantages: Floats
    cost_advantages: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """The iterations until the divergence passed its target, and that divergence."""

    iterations: int
    kl: float


def update(
    batch: Batch,
    parameters: Floats,
    adam: Adam,
    *,
    layout: Layout,
    config: TrainingConfig,
    multiplier: float,
    learning_rates: NDArray[np.float64],
    permutation: Callable[[], NDArray[np.intp]],
) -> UpdateReport:
    """Fit both critics and the actor to `batch`, in place. `permutation` gives the order of each pass.

    The three losses share no parameter, so one step of all three networks equals OmniSafe's three steps.
    """
    advantages = combined(batch, multiplier)
    columns = (batch.observations, batch.actions, batch.log_densities, batch.reward_targets, batch.cost_targets)
    old_means, old_log_std = policy(layout, parameters, batch.observations)
    steps = len(batch.observations)
    iterations, kl = 0, 0.0
    for _ in range(config.update_iterations):
        order = permutation()
        shuffled = [column[order] for column in (*columns, advantages)]
        for start in range(0, steps, config.batch_size):
            part = [column[start : start + config.batch_size] for column in shuffled]
            minibatch_step(part, parameters, adam, layout=layout, config=config, learning_rates=learning_rates)
        iterations += 1
        kl = divergence(old_means, old_log_std, *policy(layout, parameters, batch.observations))
        # Asked after a whole pass, so at least one pass is always made.
        if kl > config.target_kl:
            break
    return UpdateReport(iterations=iterations, kl=kl)


def minibatch_step(
    part: list[Floats],
    parameters: Floats,
    adam: Adam,
    *,
    layout: Layout,
    config: TrainingConfig,
    learning_rates: NDArray[np.float64],
) -> None:
    """Step all three networks once on observations, actions, log densities, two targets and combined advantages."""
    observations, actions, old_log_densities, reward_targets, cost_targets, advantages = part
    size = len(observations)
    activations = layout.forward(parameters, observations)
    outputs = activations[-1]
    gradient = adam.gradient
    log_std = layout.views(parameters)[2][ACTOR]

    # The loss of a critic is the mean square of its error.
    output_gradient = np.zeros_like(outputs)
    output_gradient[REWARD_CRITIC, :, 0] = (outputs[REWARD_CRITIC, :, 0] - reward_targets) * (2.0 / size)
    output_gradient[COST_CRITIC, :, 0] = (outputs[COST_CRITIC, :, 0] - cost_targets) * (2.0 / size)

    std = np.exp(log_std)
    scaled = (actions - outputs[ACTOR]) / std
    ratio = np.exp(log_density(actions, outputs[ACTOR], log_std) - old_log_densities)
    # The clipped surrogate is flat where clipping makes it smaller. There torch's gradient is zero.
    is_flat = np.where(advantages > 0.0, ratio > 1.0 + config.clip, ratio < 1.0 - config.clip)
    slope = np.where(is_flat, 0.0, -ratio * advantages / size).astype(ratio.dtype)[:, None]
    output_gradient[ACTOR] = slope * scaled / std
    layout.views(gradient)[2][ACTOR] = (slope * (scaled * scaled - 1.0)).sum(
        axis=0
    ) - config.entropy_coefficient / layout.action_size

    layout.backward(parameters, observations, activations, output_gradient, gradient)
    # OmniSafe adds the critics' squared weights to their loss and leaves the actor's out.
    gradient[REWARD_CRITIC:] += 2.0 * config.critic_norm_coefficient * parameters[REWARD_CRITIC:]
    clip_rows(gradient, config.max_gradient_norm)
    adam.step(parameters, learning_rates)


def combined(batch: Batch, multiplier: float) -> Floats:
    """Return the advantages of reward minus price times cost."""
    # Divided by 1 + multiplier, as OmniSafe does, so that a high price of cost does not make the steps longer.
    return (batch.reward_advantages - multiplier * batch.cost_advantages) / (1.0 + multiplier)


def policy(layout: Layout, parameters: Floats, observations: Floats) -> tuple[Floats, Floats]:
    """Return the actor's means and its log standard deviations."""
    actor = parameters[ACTOR : ACTOR + 1]
    # The log std is a view of what the update changes in place, hence the copy.
    return layout.forward(actor, observations)[-1][0], layout.views(actor)[2][0].copy()


def divergence(old_means: Floats, old_log_std: Floats, means: Floats, log_std: Floats) -> float:
    """Return the mean KL divergence of the new policy from the old one."""
    variance_ratio = np.exp(2.0 * (old_log_std - log_std))
    squared = ((old_means - means) / np.exp(log_std)) ** 2
    per_step = 0.5 * (variance_ratio + squared - 1.0 - np.log(variance_ratio)).sum(axis=-1)
    return float(per_step.mean(dtype=np.float64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplier:
    """The Lagrange multiplier as in OmniSafe's `Lagrange`, with the two moments of its Adam optimiser."""

    value: float
    first: float = 0.0
    second: float = 0.0
    steps: int = 0

    def updated(self, mean_cost: float, *, cost_limit: float, learning_rate: float) -> Multiplier:
        """Return the multiplier after one Adam step on -value * (mean_cost - cost_limit), kept at least 0."""
        if not math.isfinite(mean_cost):
            raise ValueError(f"`mean_cost` must be finite, got {mean_cost}. No episode has ended yet?")
        # Downhill in the loss is uphill in the price while the cost is above its limit.
        gradient = cost_limit - mean_cost
        # torch's Adam with its default betas and eps, on one number.
        steps = self.steps + 1
        first = 0.9 * self.first + 0.1 * gradient
        second = 0.999 * self.second + 0.001 * gradient * gradient
        denominator = math.sqrt(second / (1.0 - 0.999**steps)) + 1e-8
        value = self.value - learning_rate * first / (1.0 - 0.9**steps) / denominator
        return Multiplier(value=max(value, 0.0), first=first, second=second, steps=steps)
