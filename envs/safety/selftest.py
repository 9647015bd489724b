"""Compare the fast environment with stock's own step on a short run, once per id and process."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ccfs.envs.safety import compat, staging
from ccfs.envs.safety.fast import FastBuilder, LightBuilder
from ccfs.envs.safety.support import is_supported

__all__ = ["DifferenceError", "first_difference", "passes", "same_bits"]

_STEPS = 24
_SEEDS = (2, 3)
_STEPS_PER_SCENE = 3

_verdicts: dict[tuple[str, Callable[..., Any], str], bool] = {}


class DifferenceError(AssertionError):
    """Two environments that should agree bit for bit did not."""


def passes(
    env_id: str, contender: Callable[..., Any] = FastBuilder, settings: Mapping[str, object] | None = None
) -> bool:
    """Return True if `contender` reproduces stock here. Otherwise warn and return False.

    Args:
        env_id: id of Safety-Gymnasium.
        contender: environment class. The result is kept for the life of the process.
        settings: arguments that replace the registered ones.
    """
    given = dict(settings or {})
    key = (env_id, contender, repr(sorted(given.items())))
    if key not in _verdicts:
        difference = first_difference(env_id, contender, given)
        _verdicts[key] = difference is None
        if difference is not None:
            warnings.warn(
                f"ccfs: the fast {env_id} differs from stock Safety-Gymnasium on this machine ({difference}). "
                "It uses stock, which is several times slower. Please report numpy, mujoco and processor.",
                RuntimeWarning,
                stacklevel=3,
            )
    return _verdicts[key]


def first_difference(
    env_id: str, contender: Callable[..., Any], settings: Mapping[str, object] | None = None
) -> str | None:
    """Return where `contender` first differs from stock's step, or None.

    The reference runs stock code on a world without pictures. Pictures affect nothing but pixels and take seconds. In
    two episodes the robot is put into the scenes of `staging`, with steps of random actions between them. So goals are
    met and renewed, and every cost of the task occurs.
    """
    spec = compat.stock("utils.registration").spec(env_id)
    arguments = {**spec.kwargs, **(settings or {})}
    # The user's own draws must not depend on whether this comparison ran.
    state = np.random.get_state()  # noqa: NPY002  (stock draws its first seed from the global generator)
    try:
        reference, ours = (kind(**copy.deepcopy(arguments)) for kind in (LightBuilder, contender))
        for turn, seed in enumerate(_SEEDS):
            _compare_episode(reference, ours, seed, turn)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        np.random.set_state(state)  # noqa: NPY002
    return None


def _compare_episode(reference: Any, ours: Any, seed: int, turn: int) -> None:
    rng = np.random.default_rng(seed)
    first = _reset_outcome(reference, seed)
    same_bits(first, _reset_outcome(ours, seed), "reset")
    scenes = staging.scenes(reference.task, turn) if is_supported(reference.task) else iter(())
    for step in range(0 if isinstance(first, str) else _STEPS):
        action = rng.uniform(-1.2, 1.2, reference.action_space.shape)
        # Both precisions, because stock treats them alike and a shortcut might not.
        if step % _STEPS_PER_SCENE == 0:
            action = action.astype(np.float32)
        scene = next(scenes, None) if step % _STEPS_PER_SCENE == _STEPS_PER_SCENE - 1 else None
        if scene is not None:
            action = np.zeros_like(action)
            for env in (reference, ours):
                staging.arrange(env.task, scene)
        result = reference.step(action)
        same_bits(result, ours.step(action), f"step {step}")
        if result[3] or result[4]:
            break
    same_bits(_hidden(reference), _hidden(ours), "hidden state")


def _hidden(env: Any) -> dict[str, object]:
    """Return what later steps depend on and no result shows."""
    task = env.task
    return {
        "layout": task.world_info.layout,
        "layout at reset": task.world_info.reset_layout,
        "random state": task.random_generator.random_generator.get_state(),
        **{name: np.array(getattr(task.data, name)) for name in ("qpos", "qvel", "qacc_warmstart")},
    }


def _reset_outcome(env: Any, seed: int) -> object:
    """Return what a reset returns, or stock's message about a layout that starts with a cost."""
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
    # The text of a float is exact, and NaN equals itself as a text.
    elif repr(expected) != repr(found):
        raise DifferenceError(f"{where}: {found!r} instead of {expected!r}")
