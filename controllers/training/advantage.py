"""Generalised advantage estimates of a vectorised rollout, as OmniSafe's on-policy buffers compute them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.training.networks import Floats

__all__ = ["advantages_and_targets", "centred", "standardised"]


def advantages_and_targets(
    rewards: Floats,
    values: Floats,
    next_values: Floats,
    is_end: NDArray[np.bool_],
    *,
    discount: float,
    trace_decay: float,
) -> tuple[Floats, Floats]:
    """Return advantages and value targets, shape (steps, environments).

    Args:
        rewards: or costs.
        values: the critic's value of the observation acted on.
        next_values: its value of what followed: at a truncation the true final observation, at a termination zero.
        is_end: True where a path ends (termination, truncation or the end of the epoch).
        discount: gamma, for costs too, as OmniSafe does.
        trace_decay: lambda of the estimator.
    """
    surprises = (rewards + np.float32(discount) * next_values - values).astype(np.float64)
    running = np.zeros(rewards.shape[1])
    advantages = np.empty(rewards.shape)
    for t in range(len(rewards) - 1, -1, -1):
        running = surprises[t] + discount * trace_decay * np.where(is_end[t], 0.0, running)
        advantages[t] = running
    return advantages.astype(np.float32), (advantages + values).astype(np.float32)


def standardised(advantages: Floats) -> Floats:
    """Return advantages with mean 0 and standard deviation 1."""
    centred_values = advantages - advantages.mean(dtype=np.float64)
    spread = np.sqrt((centred_values**2).mean(dtype=np.float64))
    return np.asarray(centred_values / (spread + 1e-8), dtype=np.float32)


def centred(advantages: Floats) -> Floats:
    """Return advantages with mean 0; OmniSafe does not scale the cost's."""
    return np.asarray(advantages - advantages.mean(dtype=np.float64), dtype=np.float32)
