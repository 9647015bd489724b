"""Controllers from live models with `predict`: their memory is carried, and their observations are prepared."""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from ccfs.controllers.actor import FrozenNormalizer
from ccfs.controllers.adapters import torch_content
from ccfs.controllers.adapters.content import framed
from ccfs.controllers.adapters.environments import (
    Environment,
    Space,
    check_action_space,
    check_observation_space,
    decided,
)
from ccfs.controllers.adapters.preparation import Normalized, Observed, Step, kind, normalizing, own_steps, reading
from ccfs.controllers.adapters.saved import LOST, Normalizer, as_normalizer

if TYPE_CHECKING:
    import torch
    from stable_baselines3.common.policies import BasePolicy
    from torch import nn

__all__ = ["PredictController", "Predictor", "from_predict", "is_bare_policy", "refuse_lost"]

_TIE = 1e-6
Given: TypeAlias = "FrozenNormalizer | str | None"


@runtime_checkable
class Predictor(Protocol):
    """A model as Stable-Baselines3 has it. Its `predict` may also take `state` and `episode_start`."""

    def predict(self, observation: NDArray[np.float64], *, deterministic: bool) -> tuple[ArrayLike, object]:
        """Return the action and the state to hand in at the next step, None for a model without memory."""
        ...


def from_predict(
    model: Predictor,
    *,
    env: Environment | None = None,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    normalizer: Normalizer = None,
) -> PredictController:
    """Return the controller that answers as `model.predict(..., deterministic=True)` does in the model's environment.

    A model of Stable-Baselines3 that holds its environment (`model.get_env()`) gets its observations as that
    environment prepares them: `VecNormalize` with its statistics frozen, `VecFrameStack` and `VecTransposeImage`. Any
    other wrapper that may change observations is refused. A flat observation is given back as the dict that a
    `MultiInputPolicy` wants. A state that `predict` returns is handed in again at the next step and forgotten at a
    reset. With Discrete or MultiDiscrete actions the answer is the scores, of which `predict` takes the greatest:
    the logits of PPO, A2C, TRPO and ARS, the Q-values of DQN, the means over the quantiles of QRDQN.

    Assumes: nobody trains the model afterwards. It keeps no memory besides the state that `predict` returns.

    Args:
        model: a model, or the policy of a model of Stable-Baselines3 by itself.
        env: the environment to be certified. The Gymnasium wrappers of the model's own environment must be around it.
        observation_space: of the environment, if `env` is not given.
        action_space: likewise.
        normalizer: for a policy without its environment, which does not show whether it was trained under
            `VecNormalize`: the statistics (`normalizer_from_sb3(vec_env)`), the path of vecnormalize.pkl, or "none".
    """
    if not isinstance(model, Predictor):
        raise TypeError(f"`model` must have `predict`, got {type(model).__name__}. See `from_callable`.")
    if env is not None:
        observation_space = env.observation_space if observation_space is None else observation_space
        action_space = env.action_space if action_space is None else action_space
    steps = _steps(model, env, observation_space, as_normalizer(normalizer))
    return PredictController(model, steps, action_space)


class PredictController:
    """A live model as a controller. Satisfies `Controller`."""

    def __init__(self, model: Predictor, steps: tuple[Step, ...], action_space: Space | None = None) -> None:
        named = _named(model.predict)
        if named and "deterministic" not in named:
            raise TypeError(
                f"`predict` of {type(model).__name__} must take `deterministic`, as a model of Stable-Baselines3 does. "
                "Pass a function of the observation that returns the action."
            )
        self._predict, self._takes, self._steps = model.predict, named & {"state", "episode_start"}, steps
        self._space = action_space
        if _is_sb3(model):
            self._space = cast("Space", getattr(model, "action_space", None))
            check_action_space(self._space, action_space)
        is_choice = isinstance(self._space, (spaces.Discrete, spaces.MultiDiscrete))
        self._scores = _scores(model) if is_choice and _is_sb3(model) else None
        self._digest = _digest(model, self._steps)
        self.reset()

    @property
    def digest(self) -> str:
        """SHA-256 of the policy's tensors, plain attributes and class names, and of how its observations are prepared.

        It is empty for a model without a torch policy, because such a model cannot be read.
        """
        return self._digest

    def reset(self) -> None:
        """Forget the state and the stacked frames, because a new trial begins."""
        self._state: object = None
        self._is_start = True
        for step in self._steps:
            step.reset()

    def center(self, observation: ArrayLike) -> NDArray[np.float64]:
        """Return the deterministic action, or the scores of the actions, as float64. NaN and infinities are refused."""
        seen: Observed = np.array(observation)
        for step in self._steps:
            seen = step.prepared(seen)
        if self._scores is None:
            return decided("predict", self._asked(seen), self._space)
        with _recorded(self._scores) as found:
            action = self._asked(seen)
        return _agreed(found, np.asarray(action), cast("Space", self._space))

    def _asked(self, seen: Observed) -> ArrayLike:
        memory = {"state": self._state, "episode_start": np.array([self._is_start])}
        given = {name: value for name, value in memory.items() if name in self._takes}
        # What `predict` takes was read from its signature, which the protocol cannot say.
        answer, self._state = self._predict(seen, deterministic=True, **given)  # type: ignore[arg-type]
        if self._state is not None and "state" not in self._takes:
            raise TypeError(
                "`predict` must take `state` when it returns one, got a state and no argument to hand it in again. "
                "Pass a Controller that carries the state from step to step."
            )
        self._is_start = False
        return answer


def is_bare_policy(policy: object) -> bool:
    """Say whether this is the policy of a model of Stable-Baselines3 without the model."""
    return any(kind_of == "stable_baselines3.common.policies.BasePolicy" for kind_of in _ancestors(policy))


def _is_sb3(model: object) -> bool:
    return is_bare_policy(model) or "stable_baselines3.common.base_class.BaseAlgorithm" in _ancestors(model)


def _ancestors(thing: object) -> list[str]:
    return [f"{base.__module__}.{base.__qualname__}" for base in type(thing).__mro__]


def _steps(
    model: object, env: Environment | None, observation_space: Space | None, normalizer: Given
) -> tuple[Step, ...]:
    """Return how observations are prepared for the model. Refuse if statistics may be lost."""
    own = own_steps(model, env)
    if own is not None:
        refuse_lost(model, own, normalizer)
    elif not _is_sb3(model):
        # It wants what the environment gives, which comes as a flat vector.
        is_flat = observation_space is None or isinstance(observation_space, spaces.Box)
        own = () if is_flat or observation_space is None else (reading(observation_space),)
    else:
        space = cast("Space", getattr(model, "observation_space", None))
        if is_bare_policy(model) and normalizer is None:
            raise ValueError(f"A policy without its model does not show how its observations were prepared. {LOST}")
        refuse_lost(model, (), normalizer)
        # An image may come with its channels last: `predict` turns it by itself.
        own = (reading(space),) if len(getattr(space, "shape", None) or ()) != 3 else ()
    if own:
        check_observation_space(own[0].space, observation_space)  # type: ignore[attr-defined]
    if not isinstance(normalizer, FrozenNormalizer):
        return own
    # Statistics are for the flat vector, which is a Dict only afterwards.
    is_flat = not own or len(own[0].space.shape or ()) == 1  # type: ignore[attr-defined]
    return (*own, Normalized(normalizer=normalizer)) if is_flat else (Normalized(normalizer=normalizer), *own)


def refuse_lost(model: object, steps: tuple[Step, ...], normalizer: Given) -> None:
    """Refuse a model that was trained under `VecNormalize` and no longer has it, or that is given a second one."""
    if normalizing(steps):
        if normalizer is not None:
            raise ValueError(
                "`normalizer` must be None for a model whose environment has a `VecNormalize`, whose statistics are "
                "used. To use others, call `model.set_env` with an environment without it."
            )
        return
    has_wrapper = getattr(model, "get_vec_normalize_env", lambda: None)() is not None  # of rewards alone
    if normalizer is not None or has_wrapper or getattr(model, "_last_original_obs", None) is None:
        return
    # Off-policy algorithms keep their last observation here in any case. The others do so under `VecNormalize` alone.
    if any(name.endswith(".OffPolicyAlgorithm") for name in _ancestors(model)):
        if getattr(model, "get_env", lambda: None)() is None:
            warnings.warn(
                f"A model without its environment does not show whether it was trained under `VecNormalize`. {LOST}",
                stacklevel=5,
            )
        return
    raise ValueError(f"The model was trained under `VecNormalize`, but its environment has none now. {LOST}")


def _scores(model: object) -> nn.Module:
    """Return the part of the policy whose output `predict` takes the greatest of."""
    policy = getattr(model, "policy", model)
    if any(name.startswith("sb3_contrib.common.maskable.") for name in _ancestors(policy)):
        raise ValueError(
            "`model` must not need action masks, got a MaskablePPO: which actions are allowed is the environment's to "
            "say at each step. Use a verifier that rejects the others, and pass a function that returns scores."
        )
    for name in ("q_net", "quantile_net", "action_net"):
        part = getattr(policy, name, None)
        if hasattr(part, "register_forward_hook"):
            return cast("nn.Module", part)
    raise ValueError(
        f"`model` must choose among actions by scores, as PPO, A2C, TRPO, ARS, DQN and QRDQN do, got "
        f"{type(policy).__name__}. Pass a function that returns one score per action."
    )


@contextmanager
def _recorded(part: nn.Module) -> Iterator[list[NDArray[np.float64]]]:
    """Record what a part of the network puts out while `predict` runs, for one observation."""
    found: list[NDArray[np.float64]] = []

    def keep(_: nn.Module, __: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        scores = output.detach()
        # Quantiles come as (batch, quantiles, actions), and `predict` takes their mean.
        found.append((scores.mean(dim=1) if scores.ndim == 3 else scores).cpu().numpy()[0].astype(np.float64))

    hook = part.register_forward_hook(keep)
    try:
        yield found
    finally:
        hook.remove()


def _agreed(found: list[NDArray[np.float64]], action: NDArray[np.generic], space: Space) -> NDArray[np.float64]:
    """Return the scores if the greatest of them is the action that `predict` gave."""
    sizes = [int(space.n)] if isinstance(space, spaces.Discrete) else np.asarray(space.nvec).reshape(-1).tolist()  # type: ignore[attr-defined]
    if len(found) == 1 and found[0].shape == (sum(sizes),):
        groups = np.split(found[0], np.cumsum(sizes)[:-1])
        chosen = action.reshape(-1).tolist()
        # It may differ where two are equal up to the rounding of the probabilities, of which the library takes the
        # greatest.
        if all(group[int(place)] >= group.max() - _TIE for group, place in zip(groups, chosen, strict=True)):
            return decided("predict", found[0], space)
    raise ValueError(
        "`predict` must choose the action with the greatest score, got another one. If the policy is one of your own, "
        "pass a function that returns its scores."
    )


def _named(function: object) -> set[str]:
    """Return the names of a function's arguments, none if they cannot be read or if it takes any."""
    try:
        parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return set()
    takes_any = any(part.kind is part.VAR_KEYWORD for part in parameters.values())
    return {*parameters, "deterministic"} if takes_any else set(parameters)


def _digest(model: object, steps: tuple[Step, ...]) -> str:
    policy: object = getattr(model, "policy", model)
    if not (hasattr(policy, "set_training_mode") and hasattr(policy, "named_modules")):
        return ""
    trained = cast("BasePolicy", policy)
    trained.set_training_mode(False)  # as `predict` does: the mode is part of the hash
    parts = framed("model", kind(model).encode()) + torch_content.state(trained, is_described=True)
    prepared = b"".join(step.content() for step in steps)
    return hashlib.sha256(b"ccfs.predict-controller/2" + parts + prepared).hexdigest()
