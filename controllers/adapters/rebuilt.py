"""Policies with a memory, images or stacked frames from a saved file: the library's own class, filled with its weights.

The class is named in the file and looked up here in a fixed list. Its settings are read off the pickle without running
it. So nothing that the file holds is executed, and `predict` is the library's own.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

import numpy as np
from gymnasium import spaces

from ccfs.controllers.actor import FrozenNormalizer
from ccfs.controllers.adapters.environments import Space, check_observation_space
from ccfs.controllers.adapters.predict import PredictController, from_predict
from ccfs.controllers.adapters.preparation import Array, Normalized, Observed, reading, stacking
from ccfs.controllers.adapters.saved import LIVE, RAW
from ccfs.files.pickled import Named

if TYPE_CHECKING:
    from stable_baselines3.common.policies import BasePolicy
    from torch import nn

__all__ = ["REBUILT", "rebuilt"]

_ON_POLICY: Final = ("ActorCriticPolicy", "ActorCriticCnnPolicy", "MultiInputActorCriticPolicy")
REBUILT: Final = {
    "stable_baselines3.common.policies": _ON_POLICY,
    "sb3_contrib.common.recurrent.policies": tuple(f"Recurrent{name}" for name in _ON_POLICY),
    "stable_baselines3.sac.policies": ("SACPolicy", "CnnPolicy", "MultiInputPolicy"),
    "stable_baselines3.td3.policies": ("TD3Policy", "CnnPolicy", "MultiInputPolicy"),
    "stable_baselines3.dqn.policies": ("DQNPolicy", "CnnPolicy", "MultiInputPolicy"),
    "sb3_contrib.tqc.policies": ("TQCPolicy", "CnnPolicy", "MultiInputPolicy"),
    "sb3_contrib.qrdqn.policies": ("QRDQNPolicy", "CnnPolicy", "MultiInputPolicy"),
}
"""Policies that can be made anew, by module."""
_LAYERS: Final = "stable_baselines3.common.torch_layers"
_EXTRACTORS: Final = ("FlattenExtractor", "NatureCNN", "CombinedExtractor")
_UNUSED: Final = {"optimizer_class", "optimizer_kwargs"}  # training alone needs them
_SLACK: Final = 2**20


def rebuilt(
    name: Named,
    settings: Mapping[str, object],
    state: Mapping[str, object],
    *,
    observation_space: Space,
    action_space: Space,
    seen: Space | None,
    frames: int,
    normalizer: FrozenNormalizer | None,
) -> PredictController:
    """Return the policy of a file, made anew in its library's own class, as a controller.

    Args:
        name: the policy's class, one of `REBUILT`.
        settings: the arguments with which the policy was made, classes as `Named`.
        state: the tensors of the policy.
        observation_space: what the policy reads.
        action_space: what it answers.
        seen: the observation space of the environment to be certified, None if it is not known.
        frames: how many observations `VecFrameStack` puts together, 1 without it.
        normalizer: statistics of the observations, None without any.
    """
    policy = _made(name, settings, state, observation_space, action_space)
    if frames == 1 and len(observation_space.shape or ()) != 3:
        check_observation_space(observation_space, seen)
        return from_predict(policy, action_space=action_space, normalizer=normalizer or RAW)
    base = _base(observation_space, frames) if seen is None else seen
    steps = [reading(base), *stacking(base, frames)]
    if normalizer is not None:
        if len(observation_space.shape or ()) != 1:
            raise ValueError(f"Statistics must be those of one vector, got a policy for {observation_space}. {LIVE}")
        # Their size tells whether they are those of one observation or of several put together.
        is_first = normalizer.mean.size == spaces.flatdim(base)
        steps.insert(1 if is_first else 2, Normalized(normalizer=normalizer))
    shown: Observed = np.zeros(base.shape or (), dtype=base.dtype)
    for step in steps:
        shown = step.prepared(shown)
        step.reset()
    shape = np.shape(cast("Array", shown))
    # `predict` turns an image whose channels are last.
    if observation_space.shape not in (shape, shape[2:] + shape[:2]):
        raise ValueError(
            f"`policy` must read the observations of the environment, {frames} of {base} at once, got a policy for "
            f"{observation_space}. Use the environment that it was trained in, with the same wrappers."
        )
    return PredictController(policy, tuple(steps), action_space)


def _base(own: Space, frames: int) -> Space:
    """Return the space of one observation, of which the policy reads so many at once."""
    if frames == 1:
        return own
    if isinstance(own, spaces.Box) and len(own.shape) == 1 and own.shape[0] % frames == 0:
        width = own.shape[0] // frames
        low, high = own.low[:width], own.high[:width]
        return cast("Space", spaces.Box(low, high, dtype=low.dtype.type))
    raise ValueError(f"`env` must be given for `frames` of a policy that reads {own}: what is one observation of it?")


def _made(
    name: Named, settings: Mapping[str, object], state: Mapping[str, object], observations: Space, actions: Space
) -> BasePolicy:
    """Return the policy with its weights, in evaluation mode."""
    import torch

    arguments = {key: _argument(key, value) for key, value in settings.items() if key not in _UNUSED}
    try:
        made = getattr(importlib.import_module(name.module), name.name)
    except ImportError as error:
        library = name.module.partition(".")[0].replace("_", "-")
        raise ImportError(f"A saved {name.name} needs its library. Install it: pip install {library}") from error
    size = sum(value.numel() for value in state.values() if isinstance(value, torch.Tensor))
    try:
        # The first weights are random. Nobody else shall notice that they were drawn.
        with torch.random.fork_rng(devices=[]), _at_most(size):
            policy = cast("BasePolicy", made(observations, actions, lambda _: 0.0, **arguments))
        policy.load_state_dict(cast("dict[str, torch.Tensor]", state), strict=True)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:  # whatever a constructor says of settings
        raise ValueError(f"policy.pth must hold the weights of a {name.name} with its settings: {error}") from error
    policy.set_training_mode(False)
    return policy


@contextmanager
def _at_most(size: int) -> Iterator[None]:
    """Refuse modules with far more numbers than the file has, before memory for them is used."""
    from torch.nn.modules.module import register_module_parameter_registration_hook as watched

    made = 0

    def count(_: nn.Module, __: str, parameter: nn.Parameter) -> None:
        nonlocal made
        made += parameter.numel()
        if made > 4 * size + _SLACK:
            raise ValueError(f"the settings ask for more than the {size} numbers of the file.")

    hook = watched(count)
    try:
        yield
    finally:
        hook.remove()


def _argument(key: str, value: object) -> object:
    """Return an argument of the policy. Classes are looked up here, and only those of a fixed list."""
    if not isinstance(value, Named):
        if not _is_plain(value):
            raise ValueError(f"`policy_kwargs` must hold plain values and classes of the library, got `{key}`. {LIVE}")
        return value
    from torch import nn

    home = {
        "activation_fn": ("torch.nn.modules.activation", nn, nn.modules.activation.__all__),
        "features_extractor_class": (_LAYERS, None, _EXTRACTORS),
    }.get(key)
    if home is None or value.module != home[0] or value.name not in home[2]:
        raise ValueError(f"`{key}` must be a class of torch or of Stable-Baselines3, got {value}. {LIVE}")
    return getattr(home[1] or importlib.import_module(home[0]), value.name)


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(part) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
