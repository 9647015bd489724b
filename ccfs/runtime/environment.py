"""Step an environment that returns six values (Safety-Gymnasium) or five (Gymnasium) in one way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import gymnasium
import numpy as np
from gymnasium.wrappers import FlattenObservation  # type: ignore[attr-defined]  # not in its `__all__`

from ccfs.runtime.interfaces import Vector

__all__ = ["InnerStep", "Signals", "SixTuple", "flattened_layout", "inner_step", "observation_layout", "time_limit"]

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


def observation_layout(env: gymnasium.Env[Vector, Vector]) -> dict[str, tuple[int, int]] | None:
    """Return where the named slices of a flat observation are, or None if nobody says so.

    An attribute `observation_layout` gives them, or the keys of a Dict space that FlattenObservation flattens. They
    must hold for what `env` returns. So a layer counts only if no layer outside of it has another observation space.
    """
    space: object = env.observation_space
    layer: object = env
    while isinstance(layer, gymnasium.Env) and layer.observation_space is space:
        # Asked of this layer alone, because a wrapper hands on the attributes of what it wraps.
        if "observation_layout" in vars(layer) or hasattr(type(layer), "observation_layout"):
            given: Mapping[str, tuple[int, int]] = getattr(layer, "observation_layout")  # noqa: B009
            return {str(name): (int(start), int(stop)) for name, (start, stop) in given.items()}
        if isinstance(layer, FlattenObservation):
            inner: object = layer.env.observation_space
            return flattened_layout(inner) if isinstance(inner, gymnasium.spaces.Dict) else None
        layer = getattr(layer, "env", None)
    return None


def flattened_layout(space: gymnasium.spaces.Dict) -> dict[str, tuple[int, int]]:
    """Return where each key of a Dict space is after flattening."""
    found, begin = {}, 0
    for name, part in space.spaces.items():
        end = begin + gymnasium.spaces.flatdim(part)
        found[name] = (begin, end)
        begin = end
    return found


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
