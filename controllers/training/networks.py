"""Actor, reward critic and cost critic as the three rows of one matrix: forward pass, gradients, Adam."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ACTOR", "COST_CRITIC", "REWARD_CRITIC", "Adam", "Floats", "Layout", "clip_rows"]

Floats = NDArray[np.float32]
ACTOR, REWARD_CRITIC, COST_CRITIC = 0, 1, 2
_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where each layer sits in a row: weights (inputs, outputs) and bias in turn, then the actor's log std.

    All three networks have the actor's shape. A critic uses output 0 only. Its other outputs stay at zero, because
    their gradient is zero. One matrix needs one call per layer and one Adam for all three networks. On batches of 64
    this is several times faster than three autograd graphs.
    """

    observation_size: int
    action_size: int
    hidden_sizes: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths from observation to action."""
        return (self.observation_size, *self.hidden_sizes, self.action_size)

    @property
    def row(self) -> int:
        """Numbers in one row."""
        pairs = zip(self.sizes[:-1], self.sizes[1:], strict=True)
        return sum(a * b + b for a, b in pairs) + self.action_size

    def views(self, matrix: Floats) -> tuple[list[Floats], list[Floats], Floats]:
        """Return views of `matrix` (rows, row): weights per layer (rows, in, out), biases (rows, 1, out), log std."""
        weights, biases, start = [], [], 0
        for a, b in zip(self.sizes[:-1], self.sizes[1:], strict=True):
            weights.append(matrix[:, start : start + a * b].reshape(-1, a, b))
            biases.append(matrix[:, start + a * b : start + a * b + b].reshape(-1, 1, b))
            start += a * b + b
        return weights, biases, matrix[:, start:]

    def initial(self, rng: np.random.Generator) -> Floats:
        """Draw the default of torch and OmniSafe: weights and biases uniform within 1/sqrt(inputs), log std zero."""
        matrix = np.zeros((3, self.row), dtype=np.float32)
        weights, biases, _ = self.views(matrix)
        for network in range(3):
            for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                last_of_critic = network != ACTOR and layer == len(weights) - 1
                # The outputs that a critic does not use are zero from the start, and stay so.
                outputs = 1 if last_of_critic else weight.shape[2]
                bound = 1.0 / math.sqrt(weight.shape[1])
                weight[network, :, :outputs] = rng.uniform(-bound, bound, (weight.shape[1], outputs))
                bias[network, 0, :outputs] = rng.uniform(-bound, bound, outputs)
        return matrix

    def forward(self, matrix: Floats, observations: Floats) -> list[Floats]:
        """Return the activations of every layer, each (rows, batch, width). The last one is the output."""
        weights, biases, _ = self.views(matrix)
        activations, below = [], observations
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            above = np.matmul(below, weight)
            above += bias
            if layer < len(weights) - 1:
                np.tanh(above, out=above)
            activations.append(above)
            below = above
        return activations

    def backward(
        self, matrix: Floats, observations: Floats, activations: list[Floats], output_gradient: Floats, out: Floats
    ) -> None:
        """Write the gradient of every row into `out`, given the loss's gradient with respect to the outputs."""
        weights, _, _ = self.views(matrix)
        weight_gradients, bias_gradients, _ = self.views(out)
        above = output_gradient
        for layer in range(len(weights) - 1, -1, -1):
            below = activations[layer - 1] if layer else observations
            np.matmul(np.swapaxes(below, -1, -2), above, out=weight_gradients[layer])
            np.sum(above, axis=1, keepdims=True, out=bias_gradients[layer])
            if layer:
                above = np.matmul(above, np.swapaxes(weights[layer], -1, -2))
                # The derivative of tanh, from its value.
                above *= 1.0 - below * below


def log_density(actions: Floats, means: Floats, log_std: Floats) -> Floats:
    """Return the log density of diagonal Gaussian actions, summed over the last axis."""
    scaled = (actions - means) / np.exp(log_std)
    return np.asarray((-0.5 * scaled * scaled - log_std - _HALF_LOG_TAU).sum(axis=-1))


def clip_rows(gradient: Floats, limit: float) -> None:
    """Scale each row down to Euclidean norm `limit` where it is longer: torch's `clip_grad_norm_`, per network."""
    # Per row, because OmniSafe clips the gradients of its three networks one by one.
    norms = np.sqrt(np.einsum("ij,ij->i", gradient, gradient))
    scale = np.minimum(limit / (norms + 1e-6), 1.0)
    if bool((scale < 1.0).any()):
        gradient *= scale[:, None].astype(gradient.dtype)


class Adam:
    """torch.optim.Adam with default betas and eps on a matrix, with one learning rate per row.

    The caller writes each step's gradient into `gradient`. It is one array for all steps, so it stays in the cache.
    """

    def __init__(self, first: Floats, second: Floats, steps: int) -> None:
        self.first, self.second, self.steps = first, second, steps
        self.gradient = np.zeros_like(first)
        self._work, self._denominator = np.empty_like(first), np.empty_like(first)

    def step(self, parameters: Floats, learning_rates: NDArray[np.float64]) -> None:
        """Move `parameters` by one step along `self.gradient`, in place."""
        self.steps += 1
        gradient, work, denominator = self.gradient, self._work, self._denominator
        # torch moves the first moment towards the gradient. The textbook's weighted sum would round differently.
        np.subtract(gradient, self.first, out=work)
        work *= 1.0 - 0.9
        self.first += work
        self.second *= 0.999
        np.multiply(gradient, gradient, out=work)
        work *= 1.0 - 0.999
        self.second += work
        np.sqrt(self.second, out=denominator)
        denominator /= math.sqrt(1.0 - 0.999**self.steps)
        denominator += 1e-8
        np.divide(self.first, denominator, out=work)
        work *= (learning_rates / (1.0 - 0.9**self.steps)).astype(work.dtype)[:, None]
        parameters -= work
