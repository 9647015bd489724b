"""The state of a training run, one epoch of work on it, and its checkpoint file."""

from __future__ import annotations

import io
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from ccfs.controllers.actor import NumpyActor
from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.constrained import update_constrained
from ccfs.controllers.training.networks import ACTOR, Adam, Floats, Layout
from ccfs.controllers.training.normalizer import RunningNormalizer
from ccfs.controllers.training.rollout import CostEnvironment, Episode, collect
from ccfs.controllers.training.seeds import stream
from ccfs.controllers.training.trust_region import update_in_trust_region
from ccfs.controllers.training.update import Multiplier, UpdateReport, update
from ccfs.files.atomic import write_atomically
from ccfs.files.reading import read_arrays, read_json

__all__ = ["CURVE", "FORMAT", "TrainingDivergedError", "TrainingState"]

FORMAT: Final = "ccfs.training-checkpoint/1"
CURVE: Final = (
    "steps", "return", "cost", "length", "epoch_return", "epoch_cost", "multiplier", "kl", "iterations", "action_std",
    "learning_rate", "rollout_seconds", "update_seconds",
)  # fmt: skip
"""Columns of the learning curve. `return`, `cost`, `length` are means over the last 50 episodes, as in OmniSafe."""


class TrainingDivergedError(ArithmeticError):
    """A weight became NaN or infinite. The last checkpoint is intact."""


@dataclass(slots=True, kw_only=True)
class TrainingState:
    """A run between two epochs. Random streams are keyed by epoch, so no generator state is stored.

    `versions` names every package version that took part ("numpy==1.26.4"), over all stretches of the run.
    """

    config: TrainingConfig
    layout: Layout
    parameters: Floats
    adam: Adam
    multiplier: Multiplier
    normalizer: RunningNormalizer
    episodes: deque[Episode]
    curve: list[tuple[float, ...]]
    versions: frozenset[str] = frozenset()

    @classmethod
    def fresh(cls, config: TrainingConfig, *, observation_size: int, action_size: int) -> TrainingState:
        """Return the state before the first epoch."""
        layout = Layout(observation_size=observation_size, action_size=action_size, hidden_sizes=config.hidden_sizes)
        parameters = layout.initial(stream(config.seed, 0, "weights"))
        return cls(
            config=config,
            layout=layout,
            parameters=parameters,
            adam=Adam(np.zeros_like(parameters), np.zeros_like(parameters), 0),
            multiplier=Multiplier(value=config.multiplier_init),
            normalizer=RunningNormalizer.empty(observation_size),
            episodes=deque(maxlen=config.episode_window),
            curve=[],
        )

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return len(self.curve)

    @property
    def steps(self) -> int:
        """Environment steps trained so far."""
        return self.epoch * self.config.steps_per_epoch

    def run_epoch(self, environments: Sequence[CostEnvironment]) -> None:
        """Collect one epoch and learn from it. After an exception the state must be loaded again."""
        config, epoch = self.config, self.epoch
        if not epoch < config.epochs:
            raise ValueError(f"The run must have epochs left, got {self.steps} of {config.total_steps} steps done.")
        if len(environments) != config.environments:
            raise ValueError(f"`environments` must be {config.environments} of them, got {len(environments)}.")
        started = time.perf_counter()
        rollout = collect(
            environments, self.parameters, self.normalizer, layout=self.layout, config=config, epoch=epoch
        )
        collected = time.perf_counter()
        self.episodes.extend(rollout.episodes)
        # Over the last episodes of earlier epochs too. The price of cost follows this mean, not that of one epoch.
        reward, cost, length = _means(self.episodes)
        if config.algorithm in ("ppolag", "trpolag"):
            self.multiplier = self.multiplier.updated(
                cost, cost_limit=config.cost_limit, learning_rate=config.multiplier_learning_rate
            )
        # Falls linearly to zero at the last planned epoch, for the actor only, as in OmniSafe.
        actor_rate = config.actor_learning_rate * (1.0 - epoch / config.epochs)
        # Keyed by the epoch, so that a resumed run shuffles as the uninterrupted one.
        order = stream(config.seed, epoch, "order")
        report = self._learner(cost - config.cost_limit)(
            rollout.batch,
            self.parameters,
            self.adam,
            layout=self.layout,
            config=config,
            learning_rates=np.array([actor_rate, config.critic_learning_rate, config.critic_learning_rate]),
            permutation=lambda: order.permutation(config.steps_per_epoch),
        )
        if not bool(np.isfinite(self.parameters).all()):
            raise TrainingDivergedError(f"Epoch {epoch + 1} of {config.name} left a weight that is not finite.")
        epoch_reward, epoch_cost, _ = _means(rollout.episodes)
        std = float(np.exp(self.layout.views(self.parameters)[2][ACTOR]).mean())
        totals = (float((epoch + 1) * config.steps_per_epoch), reward, cost, length, epoch_reward, epoch_cost)
        learning = (self.multiplier.value, report.kl, float(report.iterations), std, actor_rate)
        self.curve.append((*totals, *learning, collected - started, time.perf_counter() - collected))

    def _learner(self, excess: float) -> Callable[..., UpdateReport]:
        """Return the update of the algorithm. It knows of the cost by its price, or by how far it is over its limit."""
        if self.config.algorithm == "cpo":
            return partial(update_constrained, excess=excess)
        learn = update_in_trust_region if self.config.algorithm == "trpolag" else update
        return partial(learn, multiplier=self.multiplier.value)

    def actor(self) -> NumpyActor:
        """Return the mean policy with its normaliser frozen, as a controller."""
        weights, biases, _ = self.layout.views(self.parameters)
        return NumpyActor(
            weights=tuple(w[ACTOR].T for w in weights),
            biases=tuple(b[ACTOR, 0] for b in biases),
            activation="tanh",
            normalizer=self.normalizer.frozen(),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the checkpoint atomically. After a crash the former one is still there."""
        content = {
            "format": np.array(FORMAT),
            "config": np.array(json.dumps(self.config.as_dict())),
            "parameters": self.parameters,
            "adam_first": self.adam.first,
            "adam_second": self.adam.second,
            "adam_steps": np.array(self.adam.steps),
            "multiplier": np.array([self.multiplier.value, self.multiplier.first, self.multiplier.second]),
            "multiplier_steps": np.array(self.multiplier.steps),
            "normalizer": np.stack([self.normalizer.mean, self.normalizer.squares]),
            "normalizer_count": np.array(self.normalizer.count),
            "episodes": np.array([(e.reward, e.cost, e.length) for e in self.episodes], float).reshape(-1, 3),
            "curve": np.array(self.curve, float).reshape(-1, len(CURVE)),
            "versions": np.array(" ".join(sorted(self.versions))),
            "sizes": np.array([self.layout.observation_size, self.layout.action_size]),
        }
        file = io.BytesIO()
        np.savez_compressed(file, **content)
        write_atomically(Path(path), file.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TrainingState:
        """Read a checkpoint. Pickled objects are refused."""
        try:
            return cls._parse(path)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise ValueError(
                f"{path} must be a whole checkpoint of `ccfs train`, got {type(error).__name__}: {error}. "
                "Move it away. To continue from a milestone-*.npz beside it, rename that file."
            ) from error

    @classmethod
    def _parse(cls, path: str | os.PathLike[str]) -> TrainingState:
        content = read_arrays(Path(path), path)
        found = str(content.get("format", "none"))
        if found != FORMAT:
            raise ValueError(f"the format must be {FORMAT!r}, got {found!r}")
        settings = read_json(str(content["config"]).encode(), "its settings")
        if not isinstance(settings, dict):
            raise ValueError("its settings must be a table")
        config = TrainingConfig.from_dict(settings)
        observation_size, action_size = (int(size) for size in content["sizes"].tolist())
        # A layer of these sizes is made before its weights are read, so it must not be larger than they are.
        widths = (observation_size, *config.hidden_sizes, action_size)
        if not all(0 < left * right <= content["parameters"].size for left, right in pairwise(widths)):
            raise ValueError(f"`sizes` must be those of its {content['parameters'].size} parameters, got {widths}")
        state = cls.fresh(config, observation_size=observation_size, action_size=action_size)
        for name in ("parameters", "adam_first", "adam_second"):
            if content[name].shape != state.parameters.shape or content[name].dtype != np.float32:
                raise ValueError(f"`{name}` must be float32 {state.parameters.shape}, got {content[name].shape}.")
        state.parameters = content["parameters"].astype(np.float32)
        first, second = (content[name].astype(np.float32) for name in ("adam_first", "adam_second"))
        state.adam = Adam(first, second, int(content["adam_steps"]))
        value, first_moment, second_moment = (float(number) for number in content["multiplier"].tolist())
        state.multiplier = Multiplier(
            value=value, first=first_moment, second=second_moment, steps=int(content["multiplier_steps"])
        )
        mean, squares = content["normalizer"].astype(np.float64)
        state.normalizer = RunningNormalizer(mean, squares, int(content["normalizer_count"]))
        for reward, cost, length in content["episodes"].tolist():
            state.episodes.append(Episode(reward=reward, cost=cost, length=int(length)))
        state.curve = [tuple(row) for row in content["curve"].tolist()]
        state.versions = frozenset(str(content["versions"]).split())
        return state


def _means(episodes: Sequence[Episode] | deque[Episode]) -> tuple[float, float, float]:
    if not episodes:
        return math.nan, math.nan, math.nan
    table = np.array([(e.reward, e.cost, e.length) for e in episodes], float)
    reward, cost, length = table.mean(axis=0).tolist()
    return reward, cost, length
