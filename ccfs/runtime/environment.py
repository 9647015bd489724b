"""Step an environment that returns six values (Safety-Gymnasium) or five (Gymnasium) in one way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import gymnasium
import numpy as np

from ccfs.runtime.interfaces import Vector

__all__ = ["InnerStep", "Signals", "SixTuple", "inner_step", "time_limit"]

Info: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """The keys of `info` for cost and goal. If `step` returns six values, the third is the cost instead."""

    cost: str = "cost"
    goal: str = "goal_met"


class InnerStep(NamedTuple):
    """What one inner step returned. `cost` is None if the environment reports none."""

    observation: Vector
    reward: float
    cost: float | None
    goal: bool
    terminated: bool
    truncated: bool
    info: Info


def inner_step(env: gymnasium.Env[Vector, Vector], action: Vector, signals: Signals) -> InnerStep:
    """Step an environment of either kind."""
    returned: tuple[object, ...] = env.step(action)
    if len(returned) == 6:
        observation, reward, cost, terminated, truncated, info = returned
    elif len(returned) == 5:
        observation, reward, terminated, truncated, info = returned
        cost = info.get(signals.cost) if isinstance(info, dict) else None
    else:
        raise TypeError(f"`env.step` must return 5 or 6 values, got {len(returned)}.")
    if not isinstance(info, dict):
        raise TypeError(f"`env.step` must return a dict as its last value, got {type(info).__name__}.")
    return InnerStep(
        observation,  # type: ignore[arg-type]  # the environment's own, checked by its space
        reward if type(reward) is float else _number("reward", reward),
        cost if cost is None or type(cost) is float else _number("cost", cost),
        _flag(signals.goal, info.get(signals.goal, False)),
        _flag("terminated", terminated),
        _flag("truncated", truncated),
        info,
    )


def time_limit(env: gymnasium.Env[Vector, Vector]) -> int | None:
    """Return the number of steps after which an environment truncates: its wrappers' least limit, else its spec's."""
    limits: list[object] = []
    layer: object = env
    while isinstance(layer, gymnasium.Wrapper):
        limits.append(vars(layer).get("_max_episode_steps"))
        layer = layer.env
    found = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    if not found:
        registered: object = getattr(env.spec, "max_episode_steps", None)
        found = [registered] if isinstance(registered, int) and registered > 0 else []
    return min(found, default=None)


def _number(name: str, value: object) -> float:
    if isinstance(value, (int, float, np.number, np.ndarray)) and np.ndim(value) == 0:
        return float(value)
    raise TypeError(f"`env.step` must return a number as {name}, got {value!r}.")


def _flag(name: str, value: object) -> bool:
    """Return a flag as a bool. A NaN or a string is refused, although Python would call it true."""
    if value is True or value is False:
        return value
    if (
        isinstance(value, (bool, int, float, np.bool_, np.number, np.ndarray))
        and np.ndim(value) == 0
        and value in (0, 1)
    ):
        return bool(value)
    raise TypeError(f"`env.step` must return True or False as {name}, got {value!r}.")


class SixTuple(gymnasium.Wrapper[Vector, Vector, Vector, Vector]):
    """Return six values from a wrapped environment, for loops that were written for Safety-Gymnasium."""

    def step(self, action: Vector) -> tuple[Vector, float, float, bool, bool, Info]:  # type: ignore[override]
        """Return (observation, reward, cost, terminated, truncated, info). An unknown cost is NaN."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward), float(info.get("cost", np.nan)), terminated, truncated, info
