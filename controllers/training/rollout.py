"""One epoch of experience from environments stepped side by side, with true final observations at truncations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.training.advantage import advantages_and_targets, centred, standardised
from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.networks import ACTOR, COST_CRITIC, REWARD_CRITIC, Floats, Layout, log_density
from ccfs.controllers.training.normalizer import RunningNormalizer
from ccfs.controllers.training.seeds import reset_seeds, stream
from ccfs.controllers.training.update import Batch

__all__ = ["CostEnvironment", "Episode", "Rollout", "Space", "collect", "reset"]

_RESET_ATTEMPTS = 100


class Space(Protocol):
    """What is asked of an observation or action space."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of an element."""
        ...


class CostEnvironment(Protocol):
    """Safety-Gymnasium's interface: `step` answers with reward and cost."""

    @property
    def observation_space(self) -> Space:
        """The box of observations."""
        ...

    @property
    def action_space(self) -> Space:
        """The box of actions."""
        ...

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[np.float64], Mapping[str, object]]:
        """Begin an episode."""
        ...

    def step(
        self, action: Floats, /
    ) -> tuple[NDArray[np.float64], float, float, bool, bool, Mapping[str, object]]:
        """Return observation, reward, cost, terminated, truncated, info."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Totals of one finished episode, as the environment pays them."""

    reward: float
    cost: float
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """An epoch's batch, steps of one environment after another's, and the episodes that ended in it."""

    batch: Batch
    episodes: tuple[Episode, ...]


def collect(
    environments: Sequence[CostEnvironment],
    parameters: Floats,
    normalizer: RunningNormalizer,
    *,
    layout: Layout,
    config: TrainingConfig,
    epoch: int,
) -> Rollout:
    """Run every environment for an equal share of the epoch's steps, starting from a reset; updates `normalizer`."""
    count, steps = len(environments), config.steps_per_epoch // config.environments
    seeds = reset_seeds(config.seed, epoch)
    noise = stream(config.seed, epoch, "noise").standard_normal((steps, count, layout.action_size), dtype=np.float32)
    log_std = layout.views(parameters)[2][ACTOR]
    std = np.exp(log_std)

    observations = np.empty((steps, count, layout.observation_size), np.float32)
    actions = np.empty((steps, count, layout.action_size), np.float32)
    log_densities = np.empty((steps, count), np.float32)
    paid = np.empty((2, steps, count), np.float32)
    values = np.empty((2, steps, count), np.float32)
    next_values = np.zeros((2, steps, count), np.float32)
    is_end = np.zeros((steps, count), np.bool_)
    episodes: list[Episode] = []
    totals, lengths = np.zeros((2, count)), np.zeros(count, np.int64)

    raw = np.empty((count, layout.observation_size), np.float32)
    for i, environment in enumerate(environments):
        raw[i] = reset(environment, seeds)
    current = normalizer.normalize(raw)
    for t in range(steps):
        outputs = layout.forward(parameters, current)[-1]
        means = outputs[ACTOR]
        chosen = means + std * noise[t]
        observations[t], actions[t] = current, chosen
        log_densities[t] = log_density(chosen, means, log_std)
        values[:, t] = outputs[[REWARD_CRITIC, COST_CRITIC], :, 0]
        terminated = np.zeros(count, np.bool_)
        for i, environment in enumerate(environments):
            observation, reward, cost, is_terminated, is_truncated, _ = environment.step(chosen[i])
            raw[i] = observation
            paid[0, t, i], paid[1, t, i] = reward, cost
            totals[0, i] += reward
            totals[1, i] += cost
            terminated[i] = is_terminated
            is_end[t, i] = is_terminated or is_truncated
        lengths += 1
        is_last = t == steps - 1
        ended = np.flatnonzero(is_end[t])
        for i in ended:
            episodes.append(Episode(reward=float(totals[0, i]), cost=float(totals[1, i]), length=int(lengths[i])))
        totals[:, ended], lengths[ended] = 0.0, 0
        if is_last:
            is_end[t] = True
        closing = np.flatnonzero(is_end[t])
        if closing.size:
            final = layout.forward(parameters, normalizer.normalize(raw[closing]))[-1]
            bootstrap = final[[REWARD_CRITIC, COST_CRITIC], :, 0]
            next_values[:, t, closing] = np.where(terminated[closing], np.float32(0.0), bootstrap)
        if not is_last:
            for i in closing:
                raw[i] = reset(environments[i], seeds)
            current = normalizer.normalize(raw)
    next_values[:, :-1] = np.where(is_end[:-1], next_values[:, :-1], values[:, 1:])

    factors = {"discount": config.discount, "trace_decay": config.trace_decay}
    reward_advantages, reward_targets = advantages_and_targets(paid[0], values[0], next_values[0], is_end, **factors)
    cost_advantages, cost_targets = advantages_and_targets(paid[1], values[1], next_values[1], is_end, **factors)
    batch = Batch(
        observations=_by_environment(observations),
        actions=_by_environment(actions),
        log_densities=_by_environment(log_densities),
        reward_targets=_by_environment(reward_targets),
        cost_targets=_by_environment(cost_targets),
        reward_advantages=standardised(_by_environment(reward_advantages)),
        cost_advantages=centred(_by_environment(cost_advantages)),
    )
    return Rollout(batch=batch, episodes=tuple(episodes))


def _by_environment(array: Floats) -> Floats:
    return np.ascontiguousarray(np.swapaxes(array, 0, 1)).reshape(-1, *array.shape[2:])


def reset(environment: CostEnvironment, seeds: Iterator[int]) -> NDArray[np.float64]:
    """Reset with the next seed whose layout is admissible: Safety-Gymnasium refuses a world that starts with cost."""
    for _ in range(_RESET_ATTEMPTS):
        try:
            return environment.reset(seed=next(seeds))[0]
        except AssertionError as refusal:
            if "starting cost" not in str(refusal):
                raise
    raise RuntimeError(f"The environment refused {_RESET_ATTEMPTS} reset seeds in a row: its layouts start with cost.")
