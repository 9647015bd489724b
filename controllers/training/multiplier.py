"""The Lagrange multiplier: gradient ascent on how far the mean episode cost exceeds its limit."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Multiplier"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplier:
    """OmniSafe's `Lagrange` with Adam: the value and the optimiser's two moments."""

    value: float
    first: float = 0.0
    second: float = 0.0
    steps: int = 0

    def updated(self, mean_cost: float, *, cost_limit: float, learning_rate: float) -> Multiplier:
        """Return the multiplier after one Adam step on -value * (mean_cost - cost_limit), kept at least 0."""
        if not math.isfinite(mean_cost):
            raise ValueError(f"`mean_cost` must be finite, got {mean_cost}. No episode has ended yet?")
        gradient = cost_limit - mean_cost
        steps = self.steps + 1
        first = 0.9 * self.first + 0.1 * gradient
        second = 0.999 * self.second + 0.001 * gradient * gradient
        denominator = math.sqrt(second / (1.0 - 0.999**steps)) + 1e-8
        value = self.value - learning_rate * first / (1.0 - 0.9**steps) / denominator
        return Multiplier(value=max(value, 0.0), first=first, second=second, steps=steps)
