"""Dict observations as one flat vector, for noise and trace, and back again for the policy that wants a dict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation  # type: ignore[attr-defined]  # its home differs by version
from numpy.typing import NDArray

from ccfs.runtime.interfaces import Vector

__all__ = ["checked_environment", "flattened", "unflattened"]

Space: TypeAlias = "spaces.Space[object]"
_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def flattened(env: object) -> gymnasium.Env[Vector, Vector]:
    """Return `env` itself if it has array observations, else `env` with its observations as one flat vector.

    Gymnasium's FlattenObservation concatenates the parts of a Dict or Tuple in the order of the space, and makes a
    Discrete part a one-hot vector. A schedule may name the parts of a Dict (`observation_layout`). Call
    `as_controller(policy, env=env)` with the environment as it was before: the policy then gets its own kind back.
    """
    given = checked_environment(env)
    space: Space = given.observation_space
    if isinstance(space, spaces.Box):
        return given
    odd = [type(leaf).__name__ for leaf in _leaves(space) if not isinstance(leaf, _LEAVES)]
    if odd:
        raise TypeError(
            f"`env` must have observations that can be written as one vector of numbers, got {odd[0]} in {space}. "
            "Wrap it so that it gives a Box."
        )
    return cast("gymnasium.Env[Vector, Vector]", FlattenObservation(given))


def checked_environment(env: object) -> gymnasium.Env[Vector, Vector]:
    """Return `env` if it is one environment of Gymnasium, whatever its observations are. Refuse anything else."""
    if isinstance(env, gymnasium.vector.VectorEnv) or hasattr(env, "env_is_wrapped"):
        raise TypeError(
            f"`env` must be one environment, got the vector environment {type(env).__name__}. "
            "Pass one of those that it holds: trials are run one by one."
        )
    if not isinstance(env, gymnasium.Env):
        advice = f" Make it first: gymnasium.make({env!r})." if isinstance(env, str) else ""
        raise TypeError(f"`env` must be a Gymnasium environment, got {env!r:.200}.{advice}")
    return env


def unflattened(space: Space, vector: NDArray[np.generic]) -> object:
    """Return the observation of `space` that `vector` is the flat form of.

    A Discrete part is the place of the greatest number in its one-hot vector, so that noise on it still names one.
    """
    if vector.shape != (spaces.flatdim(space),):
        raise ValueError(f"`vector` must have shape ({spaces.flatdim(space)},), got {vector.shape}.")
    if isinstance(space, spaces.Dict):
        return dict(zip(space.spaces, _split(list(space.spaces.values()), vector), strict=True))
    if isinstance(space, spaces.Tuple):
        return tuple(_split(list(space.spaces), vector))
    if isinstance(space, spaces.Discrete):
        return np.int64(space.start + np.argmax(vector))
    if isinstance(space, spaces.MultiDiscrete):
        sizes = np.asarray(space.nvec).reshape(-1)
        groups = np.split(vector, np.cumsum(sizes)[:-1])
        chosen = np.array([np.argmax(group) for group in groups], dtype=space.dtype).reshape(space.shape)
        return chosen + np.asarray(getattr(space, "start", 0), dtype=space.dtype)
    return np.asarray(vector, dtype=space.dtype).reshape(space.shape or ())


def _split(parts: list[Space], vector: NDArray[np.generic]) -> list[object]:
    sizes = np.cumsum([spaces.flatdim(part) for part in parts])
    return [unflattened(part, piece) for part, piece in zip(parts, np.split(vector, sizes[:-1]), strict=True)]


def _leaves(space: Space) -> Iterator[Space]:
    if isinstance(space, spaces.Dict):
        parts = list(space.spaces.values())
    elif isinstance(space, spaces.Tuple):
        parts = list(space.spaces)
    else:
        yield space
        return
    for part in parts:
        yield from _leaves(part)
