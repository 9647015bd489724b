"""Compare the environment that a model was trained in with the one to be certified, and say what differs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol, TypeAlias, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from ccfs.controllers.actor import answered

__all__ = [
    "Environment",
    "Space",
    "check_action_space",
    "check_observation_space",
    "decided",
    "refuse_action_space",
    "refuse_missing_wrappers",
]

Space: TypeAlias = "spaces.Space[object]"


class Environment(Protocol):
    """An environment of Gymnasium, whatever its observations and actions are."""

    @property
    def observation_space(self) -> Space:
        """What its observations are."""
        ...

    @property
    def action_space(self) -> Space:
        """What it takes as actions."""
        ...


_HARMLESS = {
    "Monitor", "OrderEnforcing", "PassiveEnvChecker", "TimeLimit", "RecordEpisodeStatistics", "RecordVideo",
    "HumanRendering", "RenderCollection", "TransformReward", "NormalizeReward", "ClipReward",
    "ProposalWrapper", "SixTuple", "PricedCost", "MadeAnew",
}  # fmt: skip
"""Wrappers that keep observations and actions, and our own, which a certificate puts around anyway."""
_HOMES = {"gymnasium", "stable_baselines3", "ccfs"}
_TOLD = re.compile(r"((?:<\w+)*)(?:<\w+ instance>|<\w+<[^<>]+>>)>*")
"""How Gymnasium shows an environment: its wrappers, then its class with "instance" or with its id."""
_PLAIN = (bool, int, float, str, tuple, type(None), np.ndarray, np.generic)


def refuse_missing_wrappers(bottom: object, env: Environment | None) -> None:
    """Refuse if a Gymnasium wrapper inside of the model's vector environment is missing around `env`.

    Such a wrapper may change observations or actions, so the model would be asked wrongly. More wrappers around `env`
    are the user's choice of what to certify. Wrappers are compared by class, order and plain arguments.
    """
    there = _inside(bottom)
    if not there:
        return
    names = ", ".join(name for name, _ in there)
    if env is None:
        raise ValueError(
            f"The model's environment has wrappers that may change observations or actions: {names}. Pass `env=`, the "
            "environment to be certified, with the same wrappers around it."
        )
    here = list(_around(env))
    for name, arguments in there:
        while here and here[0][0] != name:
            here.pop(0)
        if not here:
            raise ValueError(
                f"`env` must have the wrappers of the environment in which the model was trained, {names}, but "
                f"{name} is missing or in another order. Wrap `env` in the same way. If {name} changes neither "
                "observations nor actions, call `model.set_env` with an environment without it."
            )
        _, given = here.pop(0)
        for key in arguments.keys() & given.keys():
            if not _is_same(arguments[key], given[key]):
                raise ValueError(
                    f"`env` must have {name} with the same arguments as in training, got `{key}` {given[key]!r:.100} "
                    f"and in training {arguments[key]!r:.100}."
                )


def _inside(bottom: object) -> list[tuple[str, dict[str, object]]]:
    """Return the wrappers in a vector environment that are not known to be harmless, outermost first."""
    held = getattr(bottom, "envs", None)
    if isinstance(held, list) and held:
        layers = list(_layers(held[0]))
        return [(type(layer).__name__, _arguments(layer)) for layer in layers if not _is_harmless(layer)]
    try:
        # The environments are in other processes. A wrapper's text is its name, followed by what it wraps.
        (text,) = bottom.env_method("__str__", indices=[0])  # type: ignore[attr-defined]
    except Exception as error:  # whatever a closed pipe or an environment's own `__str__` raises
        raise ValueError(
            f"The model's environment must tell its wrappers, got {type(error).__name__}: {error}. If it is closed, "
            "call `model.set_env` with an open one."
        ) from error
    told = _TOLD.fullmatch(str(text))
    if told is None:
        raise ValueError(
            f"The model's environment must tell its wrappers as Gymnasium does, got {str(text)!r:.200}. Call "
            "`model.set_env` with a DummyVecEnv."
        )
    return [(name, {}) for name in told[1].split("<")[1:] if name not in _HARMLESS]


def _around(env: Environment) -> Iterator[tuple[str, dict[str, object]]]:
    for layer in _layers(env):
        yield type(layer).__name__, _arguments(layer)


def _layers(env: object) -> Iterator[gymnasium.Wrapper[object, object, object, object]]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def _is_harmless(layer: object) -> bool:
    kind: type[object] = type(layer)
    if kind.__module__.split(".")[0] in _HOMES and kind.__name__ in _HARMLESS:
        return True
    if not isinstance(layer, gymnasium.RewardWrapper):
        return False
    # A wrapper of rewards that overrides nothing else.
    return type(layer).step is gymnasium.RewardWrapper.step and type(layer).reset is gymnasium.Wrapper.reset


def _arguments(layer: object) -> dict[str, object]:
    """Return the plain arguments with which a wrapper of Gymnasium was made, as it records them itself."""
    saved = getattr(layer, "_saved_kwargs", None)
    known = saved if isinstance(saved, dict) else {}
    return {key: value for key, value in known.items() if isinstance(value, _PLAIN)}


def _is_same(one: object, other: object) -> bool:
    return type(one) is type(other) and bool(np.array_equal(cast("ArrayLike", one), cast("ArrayLike", other)))


def decided(name: str, answer: ArrayLike, space: Space | None) -> NDArray[np.float64]:
    """Return a policy's answer as a center for an action space, None for an unknown one. Other sizes are refused.

    For Discrete and MultiDiscrete actions the answer is one score per action. The numbers of actions themselves are
    handed on as int64: whether they will do is for the program to say.
    """
    is_score = isinstance(space, (spaces.Discrete, spaces.MultiDiscrete))
    given = np.asarray(answer)
    if is_score and given.dtype.kind in "iu" and given.shape == (space.shape if space is not None else None):
        return given.astype(np.int64)
    vector = answered(name, answer, is_score=is_score)
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and vector.shape != space.shape:
        raise ValueError(f"`{name}` must return an action of shape {space.shape}, got {vector.shape}.")
    if isinstance(space, spaces.Discrete) and vector.size != space.n:
        raise ValueError(f"`{name}` must return {space.n} scores, one per action, got {vector.size}.")
    if isinstance(space, spaces.MultiDiscrete) and vector.size != np.sum(space.nvec):
        total = np.sum(space.nvec)
        raise ValueError(f"`{name}` must return {total} scores, those of each choice in turn, got {vector.size}.")
    return vector


def refuse_action_space(space: Space) -> None:
    """Refuse an action space for which nothing is certified, and say what to do."""
    if isinstance(space, spaces.Box):
        if len(space.shape) != 1:
            raise TypeError(
                f"`env` must have actions of shape (d,), got shape {space.shape}. Wrap it with an ActionWrapper that "
                "takes a flat vector and reshapes it."
            )
        return
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return
    together = "Put all parts into one Box or one MultiDiscrete, in a gymnasium.ActionWrapper that takes them apart."
    advice = {
        "Tuple": together,
        "Dict": together,
        "MultiBinary": "Make it MultiDiscrete([2, 2, ...]) in a gymnasium.ActionWrapper.",
    }.get(type(space).__name__, "Give it one of these in a gymnasium.ActionWrapper.")
    raise TypeError(f"`env` must have Box, Discrete or MultiDiscrete actions, got {space}. {advice}")


def check_action_space(own: Space, space: Space | None) -> None:
    """Refuse if the action space of the policy is not the one of the environment, `space`."""
    if space is None:
        return
    is_same = type(own).__name__ == type(space).__name__
    if is_same and isinstance(own, spaces.Box) and isinstance(space, spaces.Box):
        # A space of doubles and one of singles with the same bounds differ in their last bits.
        is_same = own.shape == space.shape and all(
            np.allclose(mine, yours, rtol=1e-6, atol=0.0)
            for mine, yours in ((own.low, space.low), (own.high, space.high))
        )
    elif is_same:
        is_same = own == space
    if not is_same:
        raise ValueError(
            f"`policy` must have the action space of the environment, {space}, got {own}. Use the environment that it "
            "was trained in, with the same wrappers."
        )


def check_observation_space(own: Space, space: Space | None) -> None:
    """Refuse if observations of `space`, flat or not, cannot be those that the policy reads."""
    if space is None or _is_alike(own, space):
        return
    size = spaces.flatdim(own)
    if isinstance(space, spaces.Box) and space.shape == (size,):
        return
    raise ValueError(
        f"`policy` must read the observations of the environment, {space}, got a policy for {own}. Use the environment "
        "that it was trained in, with the same wrappers."
    )


def _is_alike(one: Space, other: Space) -> bool:
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        same_keys = list(one.spaces) == list(other.spaces)
        return same_keys and all(_is_alike(one.spaces[key], other.spaces[key]) for key in one.spaces)
    if isinstance(one, spaces.Box) or isinstance(other, spaces.Box):
        return type(one).__name__ == type(other).__name__ and one.shape == other.shape
    return bool(one == other)
