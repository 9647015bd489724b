"""One epoch's TRPO-Lagrangian update, with the results of OmniSafe 0.5.0: one natural step, then both critics.

The divergence here is a mean over steps and over coordinates of the action, as in OmniSafe's TRPO. Its PPO adds the
coordinates up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.networks import ACTOR, Adam, Floats, Layout, log_density
from ccfs.controllers.training.update import Batch, UpdateReport, combined, divergence, minibatch_step, policy

__all__ = [
    "DAMPING", "DECAY", "SOLVER_STEPS", "Fisher", "fit_critics", "loss_and_gradient", "solved", "surrogate_loss",
    "update_in_trust_region",
]  # fmt: skip

DAMPING: Final = 0.1
"""Added to the diagonal of the Fisher matrix (OmniSafe: `cg_damping`)."""
SOLVER_STEPS: Final = 15
"""Steps of the conjugate gradient method (OmniSafe: `cg_iters`)."""
_SEARCH_STEPS: Final = 15
DECAY: Final = 0.8
"""A step that does not help is shortened by this factor."""
_TINY, _RESIDUAL = 1e-6, 1e-10


def update_in_trust_region(
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
    """Move the actor by one step of divergence `target_kl` at most and fit both critics to `batch`, in place."""
    advantages = combined(batch, multiplier)
    kl = _step_actor(batch, advantages, parameters, layout, config.target_kl)
    fit_critics(
        batch, advantages, parameters, adam, layout=layout, config=config, learning_rates=learning_rates,
        permutation=permutation,
    )  # fmt: skip
    return UpdateReport(iterations=config.update_iterations, kl=kl)


def fit_critics(
    batch: Batch,
    advantages: Floats,
    parameters: Floats,
    adam: Adam,
    *,
    layout: Layout,
    config: TrainingConfig,
    learning_rates: NDArray[np.float64],
    permutation: Callable[[], NDArray[np.intp]],
) -> None:
    """Fit both critics to `batch`, in place, after the step of the actor."""
    columns = (batch.observations, batch.actions, batch.log_densities, batch.reward_targets, batch.cost_targets)
    # The three networks step together, and the actor by zero: it has taken its step.
    rates = np.array([0.0, *learning_rates[1:]])
    for _ in range(config.update_iterations):
        order = permutation()
        shuffled = [column[order] for column in (*columns, advantages)]
        for start in range(0, len(order), config.batch_size):
            part = [column[start : start + config.batch_size] for column in shuffled]
            minibatch_step(part, parameters, adam, layout=layout, config=config, learning_rates=rates)


def _step_actor(batch: Batch, advantages: Floats, parameters: Floats, layout: Layout, target: float) -> float:
    """Take the longest step along the natural gradient that is found to help. Return its divergence, 0 for no step."""
    actor = parameters[ACTOR : ACTOR + 1]
    loss, gradient = loss_and_gradient(batch, advantages, actor, layout)
    fisher = Fisher(batch.observations, actor, layout)
    direction = solved(fisher, -gradient)
    curvature = float(direction @ fisher(direction))
    if not (bool(np.isfinite(direction).all()) and curvature >= 0.0):
        raise ArithmeticError(f"The natural gradient must be finite and its curvature at least 0, got {curvature}.")
    direction *= math.sqrt(2.0 * target / (curvature + 1e-8))
    old, fraction = actor.copy(), 1.0
    old_means, old_log_std = policy(layout, actor, batch.observations)
    for _ in range(_SEARCH_STEPS):
        actor[0] = old[0] + fraction * direction
        kl = divergence(old_means, old_log_std, *policy(layout, actor, batch.observations)) / layout.action_size
        if loss - surrogate_loss(batch, advantages, actor, layout) >= 0.0 and kl <= target:
            return kl
        fraction *= DECAY
    actor[:] = old
    return 0.0


def _ratio(batch: Batch, means: Floats, log_std: Floats) -> Floats:
    return np.asarray(np.exp(log_density(batch.actions, means, log_std) - batch.log_densities))


def surrogate_loss(batch: Batch, advantages: Floats, actor: Floats, layout: Layout) -> float:
    """Return minus the mean advantage weighted by the density ratio."""
    ratio = _ratio(batch, *policy(layout, actor, batch.observations))
    return -float((ratio * advantages).mean(dtype=np.float64))


def loss_and_gradient(batch: Batch, advantages: Floats, actor: Floats, layout: Layout) -> tuple[float, Floats]:
    """Return the loss and its gradient."""
    activations = layout.forward(actor, batch.observations)
    log_std, gradient = layout.views(actor)[2][0], np.zeros_like(actor)
    std = np.exp(log_std)
    scaled = (batch.actions - activations[-1][0]) / std
    slope = (-_ratio(batch, activations[-1][0], log_std) * advantages / len(advantages))[:, None]
    layout.views(gradient)[2][0] = (slope * (scaled * scaled - 1.0)).sum(axis=0)
    layout.backward(actor, batch.observations, activations, (slope * scaled / std)[None], gradient)
    return surrogate_loss(batch, advantages, actor, layout), gradient[0]


class Fisher:
    """Products with the damped Hessian of the mean divergence from the present policy, which is its Fisher matrix."""

    def __init__(self, observations: Floats, actor: Floats, layout: Layout) -> None:
        self._observations, self._actor, self._layout = observations, actor.copy(), layout
        self._activations = layout.forward(self._actor, observations)
        self._variance = np.exp(2.0 * layout.views(self._actor)[2][0])

    def __call__(self, vector: Floats) -> Floats:
        """Return (J' D J + damping) vector, where J is the derivative of means and log standard deviations."""
        size = self._layout.action_size
        slopes = self._slopes(vector[None]) / self._variance / (len(self._observations) * size)
        product = np.zeros_like(self._actor)
        self._layout.backward(self._actor, self._observations, self._activations, slopes.astype(product.dtype), product)
        self._layout.views(product)[2][:] = 2.0 * self._layout.views(vector[None])[2] / size
        return np.asarray(product[0] + DAMPING * vector)

    def _slopes(self, vector: Floats) -> Floats:
        """Return how fast the means move as the weights move along `vector`, shape (1, batch, actions)."""
        weights, _, _ = self._layout.views(self._actor)
        weight_speeds, bias_speeds, _ = self._layout.views(vector)
        below, speed = self._observations[None], None
        for layer, above in enumerate(self._activations):
            moved = np.matmul(below, weight_speeds[layer]) + bias_speeds[layer]
            if speed is not None:
                moved += np.matmul(speed, weights[layer])
            # The derivative of tanh, from its value. The last layer has none.
            speed = moved if layer == len(weights) - 1 else moved * (1.0 - above * above)
            below = above
        return np.asarray(speed)


def solved(product: Callable[[Floats], Floats], wanted: Floats) -> Floats:
    """Return an approximate x with product(x) = wanted, by the conjugate gradient method from 0."""
    solution, residual = np.zeros_like(wanted), wanted.copy()
    direction, size = residual.copy(), float(residual @ residual)
    for _ in range(SOLVER_STEPS):
        image = product(direction)
        length = size / (float(direction @ image) + _TINY)
        solution += length * direction
        residual -= length * image
        new = float(residual @ residual)
        if math.sqrt(new) < _RESIDUAL:
            break
        direction = residual + new / (size + _TINY) * direction
        size = new
    return solution
