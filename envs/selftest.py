"""Compare the fast environment with stock's own step on a short run, once per id and process."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ccfs.envs import _compat
from ccfs.envs.fast import FastBuilder, LightBuilder

__all__ = ["DifferenceError", "first_difference", "passes", "same_bits"]

_STEPS = 24
_SEEDS = (2, 3)
_WIDE_GOAL = 1.0


class DifferenceError(AssertionError):
    """Two environments that should agree bit for bit did not."""


@functools.cache
def passes(env_id: str) -> bool:
    """Return True if the fast environment `env_id` reproduces stock here; otherwise warn loudly and return False."""
    difference = first_difference(env_id, FastBuilder)
    if difference is None:
        return True
    warnings.warn(
        f"ccfs: the fast {env_id} differs from stock Safety-Gymnasium on this machine ({difference}); "
        "using stock, which is several times slower. Please report numpy, mujoco and processor.",
        RuntimeWarning,
        stacklevel=3,
    )
    return False


def first_difference(env_id: str, contender: Callable[..., Any]) -> str | None:
    """Return where `contender` first departs from stock's step, or None.

    The reference runs stock code on a world without pictures, which decides nothing but pixels and saves seconds. The
    second episode starts from a large goal, so that goals are met and sampled again.
    """
    spec = _compat.stock("utils.registration").spec(env_id)
    state = np.random.get_state()  # noqa: NPY002  (stock draws its first seed from the global generator)
    reference, ours = (kind(**copy.deepcopy(spec.kwargs)) for kind in (LightBuilder, contender))
    np.random.set_state(state)  # noqa: NPY002
    try:
        for episode, seed in enumerate(_SEEDS):
            for env in (reference, ours):
                if episode == 1 and hasattr(env.task, "goal"):
                    env.task.goal.size = _WIDE_GOAL
            _compare_episode(reference, ours, seed)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _compare_episode(reference: Any, ours: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first = _reset_outcome(reference, seed)
    same_bits(first, _reset_outcome(ours, seed), "reset")
    for step in range(0 if isinstance(first, str) else _STEPS):
        action = rng.uniform(-1.2, 1.2, reference.action_space.shape)
        if step % 3 == 0:
            action = action.astype(np.float32)
        result = reference.step(action)
        same_bits(result, ours.step(action), f"step {step}")
        if result[3] or result[4]:
            break
    for name in ("layout", "reset_layout"):
        same_bits(getattr(reference.task.world_info, name), getattr(ours.task.world_info, name), name)
    states = [env.task.random_generator.random_generator.get_state() for env in (reference, ours)]
    same_bits(states[0], states[1], "random state")


def _reset_outcome(env: Any, seed: int) -> object:
    """Return what a reset returns, or stock's complaint about a layout that starts with a cost."""
    try:
        return env.reset(seed=seed)
    except AssertionError as error:
        return str(error)


def same_bits(expected: object, found: object, where: str) -> None:
    """Raise `DifferenceError` unless both have the same types, keys, order, shapes and bits, all the way down."""
    if type(expected) is not type(found):
        raise DifferenceError(f"{where}: type {type(found).__name__} instead of {type(expected).__name__}")
    if isinstance(expected, dict) and isinstance(found, dict):
        same_bits(list(expected), list(found), f"{where} keys")
        for key in expected:
            same_bits(expected[key], found[key], f"{where}[{key!r}]")
    elif isinstance(expected, (tuple, list)) and isinstance(found, (tuple, list)):
        same_bits(len(expected), len(found), f"{where} length")
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            same_bits(one, other, f"{where}[{index}]")
    elif isinstance(expected, (np.ndarray, np.generic)) and isinstance(found, (np.ndarray, np.generic)):
        if expected.dtype != found.dtype or expected.shape != found.shape or expected.tobytes() != found.tobytes():
            raise DifferenceError(f"{where}: {found!r} instead of {expected!r}")
    elif repr(expected) != repr(found):
        raise DifferenceError(f"{where}: {found!r} instead of {expected!r}")
