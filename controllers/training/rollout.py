"""One epoch of experience from environments side by side, and its advantages as in OmniSafe's buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.networks import ACTOR, COST_CRITIC, REWARD_CRITIC, Floats, Layout, log_density
from ccfs.controllers.training.normalizer import RunningNormalizer
from ccfs.controllers.training.seeds import reset_seeds, stream
from ccfs.controllers.training.update import Batch

__all__ = [
    "CostEnvironment",
    "Episode",
    "Rollout",
    "Space",
    "advantages_and_targets",
    "centred",
    "collect",
    "first_admissible",
    "reset",
    "standardised",
]

_RESET_ATTEMPTS = 100
_CRITICS = [REWARD_CRITIC, COST_CRITIC]
Result = TypeVar("Result")


class Space(Protocol):
    """What is asked of an observation or action space."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of an element."""
        ...


class CostEnvironment(Protocol):
    """Safety-Gymnasium's interface, in which `step` returns reward and cost."""

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

    def step(self, action: Floats, /) -> tuple[NDArray[np.float64], float, float, bool, bool, Mapping[str, object]]:
        """Return observation, reward, cost, terminated, truncated, info."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Totals of one finished episode, as the environment reports them."""

    reward: float
    cost: float
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """An epoch's batch, with the environments one after another, and the episodes that ended in it."""

    batch: Batch
    episodes: tuple[Episode, ...]


class _Record:
    """What happened in an epoch, as arrays (steps, environments). Where there are two, 0 is reward and 1 is cost."""

    def __init__(self, layout: Layout, steps: int, count: int) -> None:
        self.observations = np.empty((steps, count, layout.observation_size), np.float32)
        self.actions = np.empty((steps, count, layout.action_size), np.float32)
        self.log_densities = np.empty((steps, count), np.float32)
        self.paid = np.empty((2, steps, count), np.float32)
        self.values = np.empty((2, steps, count), np.float32)
        self.next_values = np.zeros((2, steps, count), np.float32)
        self.is_end = np.zeros((steps, count), np.bool_)
        self.episodes: list[Episode] = []
        self._totals, self._lengths = np.zeros((2, count)), np.zeros(count, np.int64)

    def pay(self, t: int, rewards: NDArray[np.float64], ended: NDArray[np.bool_]) -> None:
        """Book rewards and costs (2, environments) and close the episodes that ended."""
        self.paid[:, t] = rewards
        self._totals += rewards
        self._lengths += 1
        for i in np.flatnonzero(ended):
            reward, cost = self._totals[:, i].tolist()
            self.episodes.append(Episode(reward=reward, cost=cost, length=int(self._lengths[i])))
        self._totals[:, ended], self._lengths[ended] = 0.0, 0

    def batch(self, config: TrainingConfig) -> Batch:
        """Return the epoch as the update needs it, with the environments one after another."""
        # The value after a step is that of the next observation. Where a path ended, the next row belongs to another
        # episode.
        following = np.where(self.is_end[:-1], self.next_values[:, :-1], self.values[:, 1:])
        next_values = np.concatenate([following, self.next_values[:, -1:]], axis=1)
        factors = {"discount": config.discount, "trace_decay": config.trace_decay}
        (reward_advantages, reward_targets), (cost_advantages, cost_targets) = (
            advantages_and_targets(self.paid[k], self.values[k], next_values[k], self.is_end, **factors) for k in (0, 1)
        )
        return Batch(
            observations=_by_environment(self.observations),
            actions=_by_environment(self.actions),
            log_densities=_by_environment(self.log_densities),
            reward_targets=_by_environment(reward_targets),
            cost_targets=_by_environment(cost_targets),
            reward_advantages=standardised(_by_environment(reward_advantages)),
            cost_advantages=centred(_by_environment(cost_advantages)),
        )


def collect(
    environments: Sequence[CostEnvironment],
    parameters: Floats,
    normalizer: RunningNormalizer,
    *,
    layout: Layout,
    config: TrainingConfig,
    epoch: int,
) -> Rollout:
    """Run every environment from a reset for an equal share of the epoch's steps. This updates `normalizer`."""
    count, steps = len(environments), config.steps_per_epoch // config.environments
    seeds = reset_seeds(config.seed, epoch)
    # Drawn at once for the epoch, so that it does not depend on when episodes end.
    noise = stream(config.seed, epoch, "noise").standard_normal((steps, count, layout.action_size), dtype=np.float32)
    log_std = layout.views(parameters)[2][ACTOR]
    std = np.exp(log_std)
    record = _Record(layout, steps, count)
    raw = np.stack([reset(environment, seeds) for environment in environments]).astype(np.float32)
    for t in range(steps):
        current = normalizer.normalize(raw)
        outputs = layout.forward(parameters, current)[-1]
        chosen = outputs[ACTOR] + std * noise[t]
        record.observations[t], record.actions[t] = current, chosen
        record.log_densities[t] = log_density(chosen, outputs[ACTOR], log_std)
        record.values[:, t] = outputs[_CRITICS, :, 0]
        paid, terminated, ended = _step_all(environments, chosen, raw)
        record.pay(t, paid, ended)
        is_last = t == steps - 1
        # The end of the epoch cuts every path, as in OmniSafe: the next epoch begins with resets.
        record.is_end[t] = ended | is_last
        closing = np.flatnonzero(record.is_end[t])
        if closing.size:
            # `raw` still holds what the step led to. A truncated path is worth what its true end is worth.
            final = layout.forward(parameters, normalizer.normalize(raw[closing]))[-1][_CRITICS, :, 0]
            record.next_values[:, t, closing] = np.where(terminated[closing], np.float32(0.0), final)
            for i in closing if not is_last else ():
                raw[i] = reset(environments[i], seeds)
    return Rollout(batch=record.batch(config), episodes=tuple(record.episodes))


def _step_all(
    environments: Sequence[CostEnvironment], actions: Floats, raw: Floats
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Step every environment and write observations into `raw`. Return (reward, cost), terminated, ended."""
    paid = np.empty((2, len(environments)))
    terminated, ended = np.zeros(len(environments), np.bool_), np.zeros(len(environments), np.bool_)
    for i, environment in enumerate(environments):
        raw[i], paid[0, i], paid[1, i], terminated[i], is_truncated, _ = environment.step(actions[i])
        ended[i] = terminated[i] or is_truncated
    return paid, terminated, ended


def _by_environment(array: Floats) -> Floats:
    return np.ascontiguousarray(np.swapaxes(array, 0, 1)).reshape(-1, *array.shape[2:])


def reset(environment: CostEnvironment, seeds: Iterator[int]) -> NDArray[np.float64]:
    """Reset with the next seed whose layout is admissible, and return the observation."""
    return first_admissible(lambda seed: environment.reset(seed=seed), seeds)[0]


def first_admissible(reset_with: Callable[[int], Result], seeds: Iterator[int]) -> Result:
    """Reset with the next admissible seed. Safety-Gymnasium refuses a world that starts with a cost."""
    for _ in range(_RESET_ATTEMPTS):
        try:
            return reset_with(next(seeds))
        except AssertionError as refusal:
            if "starting cost" not in str(refusal):
                raise
    raise RuntimeError(f"The environment refused {_RESET_ATTEMPTS} reset seeds in a row: its layouts start with cost.")


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
        rewards: rewards or costs.
        values: the critic's value of the observation before the step.
        next_values: its value of what followed. At a truncation that is the true final observation, at a termination 0.
        is_end: True where a path ends (termination, truncation or the end of the epoch).
        discount: gamma, for costs too, as in OmniSafe.
        trace_decay: lambda of the estimator.
    """
    # In doubles from here on, because the sum below runs over a thousand steps.
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
    """Return advantages with mean 0. OmniSafe does not scale those of the cost."""
    return np.asarray(advantages - advantages.mean(dtype=np.float64), dtype=np.float32)
