"""Controllers from Stable-Baselines3 and sb3-contrib: a saved .zip, read without unpickling, or a live model."""

from __future__ import annotations

import base64
import binascii
import io
import json
import os
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import numpy as np
from gymnasium import spaces

from ccfs.certificates import checks
from ccfs.controllers.actor import FrozenNormalizer, NumpyActor
from ccfs.controllers.adapters.environments import (
    Environment,
    Space,
    check_action_space,
    check_observation_space,
    refuse_action_space,
)
from ccfs.controllers.adapters.predict import PredictController, refuse_lost
from ccfs.controllers.adapters.preparation import kind, own_steps
from ccfs.controllers.adapters.rebuilt import REBUILT, rebuilt
from ccfs.controllers.adapters.saved import LIVE, LOST, Normalizer, as_normalizer, normalizer_from_sb3, space_of
from ccfs.controllers.adapters.torch import TORCH_ACTIVATIONS, Arrays, linear_layers, read_tensors
from ccfs.files.pickled import Named, PickleError, followed

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm

__all__ = ["from_sb3", "normalizer_from_sb3"]

_ON_POLICY: Final = "stable_baselines3.common.policies"
_CLASSES: Final = {
    _ON_POLICY: ("ActorCriticPolicy", "MultiInputActorCriticPolicy"),
    "stable_baselines3.sac.policies": ("SACPolicy", "MultiInputPolicy"),
    "stable_baselines3.td3.policies": ("TD3Policy", "MultiInputPolicy"),
    "stable_baselines3.dqn.policies": ("DQNPolicy", "MultiInputPolicy"),
    "sb3_contrib.tqc.policies": ("TQCPolicy", "MultiInputPolicy"),
    "sb3_contrib.qrdqn.policies": ("QRDQNPolicy", "MultiInputPolicy"),
    "sb3_contrib.ars.policies": ("ARSPolicy", "ARSLinearPolicy"),
}
"""Policies that consist of linear layers and activations, by module. Others are refused."""
# Settings that do not change how the answer is computed from the layers in `policy.pth`, or that are read elsewhere.
_KNOWN: Final = {
    "activation_fn", "net_arch", "log_std_init", "ortho_init", "use_sde", "optimizer_class", "optimizer_kwargs",
    "n_critics", "n_quantiles", "share_features_extractor", "full_std", "use_expln", "sde_net_arch", "normalize_images",
    "squash_output", "clip_mean", "with_bias", "device",
}  # fmt: skip
_FLATTENING: Final = {f"stable_baselines3.common.torch_layers.{name}Extractor" for name in ("Flatten", "Combined")}
_LARGEST: Final = 2**30
Settings: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Policy:
    """What decides a policy's deterministic action."""

    module: str
    name: str
    activation: str
    observation_space: Space
    action_space: Space
    is_squashed: bool
    clip_mean: float
    state: Settings
    settings: Settings


def from_sb3(
    path_or_model: str | os.PathLike[str] | BaseAlgorithm,
    normalizer: Normalizer = None,
    *,
    env: Environment | None = None,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    frames: int = 1,
) -> NumpyActor | PredictController:
    """Return the deterministic action, or the scores of the actions, of a model of Stable-Baselines3 or sb3-contrib.

    Of a file, only `policy.pth` (with `weights_only=True`) and the `data` JSON are used. Spaces in it are pickled. They
    are read off without running the pickle, whether they are those of gym or of Gymnasium. For a Box the result is what
    `model.predict(..., deterministic=True)` gives, before it is clipped, because the program clips the center to the
    action box. For Discrete and MultiDiscrete actions it is the scores of which `predict` takes the greatest: logits or
    Q-values. Observations that are no flat Box are read as `ccfs.controllers.flattened(env)` gives them.

    A policy of linear layers becomes a `NumpyActor`. One with an LSTM, with images or with `frames` is made anew in the
    library's own class, which must be installed, and gets the weights of the file. It answers as the library does. It
    runs in torch, so a replay on another machine can differ in the last bits.

    Args:
        path_or_model: a .zip written by `model.save`, or the model.
        normalizer: for a model trained under `VecNormalize`: its statistics (`normalizer_from_sb3(vec_env)`), the path
            of its vecnormalize.pkl, or "none". A live model brings its own.
        env: the environment to be certified. A live model's Gymnasium wrappers must be around it.
        observation_space: of the environment, if the one in the file cannot be read. Otherwise they are compared.
        action_space: likewise.
        frames: for a file of a model that was trained under `VecFrameStack`: how many frames it put together. The file
            does not say it.
    """
    if env is not None:
        observation_space = env.observation_space if observation_space is None else observation_space
        action_space = env.action_space if action_space is None else action_space
    given, count = as_normalizer(normalizer), checks.count("frames", frames, minimum=1)
    if isinstance(path_or_model, (str, os.PathLike)):
        policy = _from_file(Path(path_or_model), given, observation_space, action_space)
        if count == 1 and observation_space is not None:
            _refuse_frames(policy.observation_space, observation_space)
        if count > 1 or _needs_library(policy):
            check_action_space(policy.action_space, action_space)
            return rebuilt(
                Named(policy.module, policy.name),
                policy.settings,
                policy.state,
                observation_space=policy.observation_space,
                action_space=policy.action_space,
                seen=observation_space,
                frames=count,
                normalizer=given if isinstance(given, FrozenNormalizer) else None,
            )
    else:
        if not (hasattr(path_or_model, "policy") and hasattr(path_or_model, "get_vec_normalize_env")):
            got = type(path_or_model).__name__
            raise TypeError(f"`path_or_model` must be a .zip of `model.save`, or a model of SB3, got {got}.")
        policy = _from_model(path_or_model)
        own = _own_normalizer(path_or_model, env)
        if own is None:
            refuse_lost(path_or_model, (), given)
        given = own if given is None else given
    check_observation_space(policy.observation_space, observation_space)
    check_action_space(policy.action_space, action_space)
    return _actor(policy, given if isinstance(given, FrozenNormalizer) else None)


def _own_normalizer(model: BaseAlgorithm, env: Environment | None) -> FrozenNormalizer | None:
    """Return the statistics of the model's `VecNormalize`, if any. Refuse other changes of observations."""
    steps = own_steps(model, env) or ()
    around = model.get_vec_normalize_env()
    if around is not None and len(steps) == 2:
        return normalizer_from_sb3(around)
    if len(steps) > 1:
        names = ", ".join(type(step).__name__.strip("_") for step in steps[1:])
        raise ValueError(
            f"The model's environment must change observations by one `VecNormalize` at most, got {names}. "
            "Use `from_predict`."
        )
    return None


def _actor(policy: _Policy, normalizer: FrozenNormalizer | None) -> NumpyActor:
    refuse_action_space(policy.action_space)
    if policy.name not in _CLASSES.get(policy.module, ()):
        raise ValueError(f"`policy_class` must be an MLP policy of SB3, got {policy.name} of {policy.module}. {LIVE}")
    if _reads_images(policy.observation_space):
        raise ValueError(
            "The policy must read numbers, got images, which the library turns and rescales before its network sees "
            "them. Use `from_predict`."
        )
    if _has_extractor(policy.state):
        raise ValueError(
            f"The policy must read its observations without a features extractor, got one with weights. {LIVE}"
        )
    if policy.activation not in TORCH_ACTIVATIONS:
        raise ValueError(
            f"`activation_fn` must be one of {sorted(TORCH_ACTIVATIONS)}, got {policy.activation!r}. {LIVE}"
        )
    weights, biases = _layers(policy)
    box = policy.action_space if policy.is_squashed and isinstance(policy.action_space, spaces.Box) else None
    is_plain = box is None or bool((box.low == -1.0).all() and (box.high == 1.0).all())
    actor = NumpyActor(
        weights=weights,
        biases=biases,
        activation=TORCH_ACTIVATIONS[policy.activation],
        output_activation="identity" if box is None else "tanh",
        normalizer=normalizer,
        output_limit=policy.clip_mean if "actor.mu.0.weight" in policy.state and _is_sac(policy) else None,
        low=None if box is None or is_plain else box.low.astype(np.float64),
        high=None if box is None or is_plain else box.high.astype(np.float64),
    )
    sizes = spaces.flatdim(policy.observation_space), _action_size(policy.action_space)
    if (actor.observation_size, actor.action_size) != sizes:
        raise ValueError(
            f"The layers must lead from {sizes[0]} to {sizes[1]} numbers, as the spaces of the model say, got "
            f"{actor.observation_size} and {actor.action_size}."
        )
    return actor


def _needs_library(policy: _Policy) -> bool:
    """Say whether a policy can be made anew in its library's class, and is more than linear layers and activations."""
    if policy.name not in REBUILT.get(policy.module, ()):
        return False
    is_plain = policy.name in _CLASSES.get(policy.module, ()) and policy.settings.keys() <= _KNOWN
    is_plain = is_plain and policy.activation in TORCH_ACTIVATIONS and not _has_extractor(policy.state)
    return not is_plain or _reads_images(policy.observation_space)


def _refuse_frames(own: Space, seen: Space) -> None:
    """Refuse a file whose policy seems to read several observations at once, and say how to load it."""
    many, one = (space.shape and int(np.prod(space.shape)) for space in (own, seen))
    if isinstance(own, spaces.Box) and many and one and many > one and many % one == 0:
        raise ValueError(
            f"`policy` must read the observations of the environment, {seen}, got a policy for {own}. If it was "
            f"trained under VecFrameStack, use ccfs.controllers.from_sb3(path, env=env, frames={many // one})."
        )


def _has_extractor(state: Settings) -> bool:
    return any(name.split(".")[0] == "features_extractor" or ".features_extractor." in name for name in state)


def _is_sac(policy: _Policy) -> bool:
    return policy.module in ("stable_baselines3.sac.policies", "sb3_contrib.tqc.policies")


def _layers(policy: _Policy) -> tuple[Arrays, Arrays]:
    """Return the weights and biases that lead from the observation to the answer."""
    state = policy.state
    if policy.module == _ON_POLICY:
        hidden = ("mlp_extractor.shared_net.", "mlp_extractor.policy_net.")  # the first in files of older versions only
        return _joined(state, hidden, "action_net.")
    if _is_sac(policy):
        # With state-dependent exploration (gSDE) the last layer is clipped, and so it is part of a sequence.
        return _joined(state, ("actor.latent_pi.",), "actor.mu." if "actor.mu.weight" in state else "actor.mu.0.")
    if policy.module == "stable_baselines3.td3.policies":
        return linear_layers(state, "actor.mu.")
    if policy.module == "stable_baselines3.dqn.policies":
        return linear_layers(state, "q_net.q_net.")
    if policy.module == "sb3_contrib.ars.policies":
        return linear_layers(_with_biases(state, "action_net."), "action_net.")
    weights, biases = linear_layers(state, "quantile_net.quantile_net.")
    actions = _action_size(policy.action_space)
    # The outputs are quantile by quantile, and the answer is their mean, which is linear too.
    means = (
        value.reshape(-1, actions, *value.shape[1:]).astype(np.float64).mean(axis=0)
        for value in (weights[-1], biases[-1])
    )
    last_weight, last_bias = (value.astype(np.float32) for value in means)
    return (*weights[:-1], last_weight), (*biases[:-1], last_bias)


def _with_biases(state: Settings, prefix: str) -> Settings:
    """Return the state with zeros where a layer has no bias."""
    full = dict(state)
    for name, value in state.items():
        if name.startswith(prefix) and name.endswith(".weight"):
            full.setdefault(f"{name.removesuffix('weight')}bias", np.zeros(np.asarray(value).shape[0], np.float32))
    return full


def _joined(state: Settings, hidden: tuple[str, ...], last: str) -> tuple[Arrays, Arrays]:
    """Return the layers under each of `hidden` (perhaps none) followed by the layer `last`."""
    final = {f"0.{name.removeprefix(last)}": value for name, value in state.items() if name.startswith(last)}
    found = [linear_layers(state, part) for part in hidden if any(name.startswith(part) for name in state)]
    found.append(linear_layers(final, ""))
    return tuple(w for weights, _ in found for w in weights), tuple(b for _, biases in found for b in biases)


def _action_size(space: Space) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return int(np.sum(space.nvec)) if isinstance(space, spaces.MultiDiscrete) else spaces.flatdim(space)


def _reads_images(space: Space) -> bool:
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
    return any(isinstance(part, spaces.Box) and len(part.shape) == 3 and part.dtype == np.uint8 for part in parts)


def _from_file(
    path: Path, normalizer: FrozenNormalizer | str | None, observation_space: Space | None, action_space: Space | None
) -> _Policy:
    data, weights = _members(path)
    state = read_tensors(io.BytesIO(weights), "policy.pth")
    module, name = _policy_class(data)
    settings = _settings(data, module)
    unknown = settings.keys() - _KNOWN
    if unknown and name not in REBUILT.get(module, ()):
        raise ValueError(f"`policy_kwargs` must not change the network, got {sorted(unknown)}. {LIVE}")
    actions = _space(data, "action_space", action_space)
    if normalizer is None:
        _refuse_lost(data, module)
    default = Named("torch.nn.modules.activation", "Tanh" if module == _ON_POLICY else "ReLU")
    activation = settings.get("activation_fn", default)
    is_torch = isinstance(activation, Named) and activation.module.startswith("torch.nn.modules.")
    return _Policy(
        module=module,
        name=name,
        activation=str(activation).rpartition(".")[2] if is_torch else str(activation),
        observation_space=_space(data, "observation_space", observation_space),
        action_space=actions,
        is_squashed=_is_squashed(module, name, settings.get("squash_output")),
        clip_mean=float(cast("float", settings.get("clip_mean", 2.0))),
        state=state,
        settings=settings,
    )


def _is_squashed(module: str, name: str, setting: object) -> bool:
    """Say whether answers pass through tanh and are stretched to the action box."""
    default = module != _ON_POLICY and name != "ARSLinearPolicy"
    if module not in (_ON_POLICY, "sb3_contrib.ars.policies") or setting is None:
        return default
    return setting is True


def _refuse_lost(data: Settings, module: str) -> None:
    """Refuse a file whose model was trained under `VecNormalize`, because the statistics are not in it."""
    if data.get("_last_original_obs") is None:
        return
    if module in (_ON_POLICY, "sb3_contrib.ars.policies"):  # these set it under `VecNormalize` alone
        raise ValueError(f"The model was trained under `VecNormalize`, whose statistics are not in its file. {LOST}")
    warnings.warn(
        f"The file does not show whether its model was trained under `VecNormalize`. {LOST}",
        stacklevel=4,
    )


def _members(path: Path) -> tuple[Settings, bytes]:
    """Return the settings and the weights of a file that `model.save` wrote. Refuse any other file."""
    path = path if path.exists() or path.suffix else path.with_suffix(".zip")
    expected = f"`path_or_model` must be a .zip written by `model.save`, got {str(path)!r}"
    if not path.is_file():
        raise ValueError(f"{expected}, {'a folder' if path.is_dir() else 'nothing there'}.")
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = [archive.getinfo(name).file_size for name in ("data", "policy.pth")]
            if max(sizes) > _LARGEST:
                raise ValueError(f"{expected}: a part of it has {max(sizes)} bytes, more than {_LARGEST}.")
            data, weights = json.loads(archive.read("data")), archive.read("policy.pth")
    except (zipfile.BadZipFile, KeyError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{expected}: {error}.") from error
    if not isinstance(data, dict):
        raise ValueError("`data` must describe the model as SB3's `model.save` does, got no dictionary.")
    return data, weights


def _policy_class(data: Settings) -> tuple[str, str]:
    """Return module and name of the policy's class. A class that was written into the file itself has no name there."""
    entry = _dictionary(data, "policy_class")
    try:
        found = followed(_pickle(entry))
    except PickleError:
        found = None
    return (
        (found.module, found.name) if isinstance(found, Named) else (str(entry.get("__module__")), "a class of its own")
    )


def _space(data: Settings, name: str, given: Space | None) -> Space:
    """Return a space of the model, or the one that was given if it cannot be read."""
    entry = _dictionary(data, name)
    try:
        return space_of(followed(_pickle(entry)))
    except PickleError as error:
        if given is not None:
            return given
        raise ValueError(
            f"`{name}` of the model must be readable without running its pickle, got {entry.get(':type:')}: {error} "
            f"Pass `{name}=env.{name}`, the one of its environment."
        ) from error


def _settings(data: Settings, module: str) -> Settings:
    """Return the arguments with which the policy was made. Classes among them are names."""
    written: Settings | object = _dictionary(data, "policy_kwargs")
    if ":serialized:" in cast("Settings", written):
        # Beside the pickle stands its text, for people. What the library would load is the pickle.
        try:
            written = followed(_pickle(cast("Settings", written)))
        except PickleError as error:
            raise ValueError(
                f"`policy_kwargs` must be readable without running their pickle: {error} {LIVE}"
            ) from error
    if not isinstance(written, dict):
        raise ValueError(f"`policy_kwargs` must be a dictionary, got {type(written).__name__}. {LIVE}")
    is_on_policy = module in (_ON_POLICY, "sb3_contrib.common.recurrent.policies")
    return {**written, "use_sde": data.get("use_sde") is True} if is_on_policy else written


def _pickle(entry: Settings) -> bytes:
    try:
        return base64.b64decode(str(entry.get(":serialized:", "")), validate=True)
    except binascii.Error as error:
        raise PickleError(f"It must be written in base64, got {error}.") from error


def _dictionary(data: Settings, name: str) -> Settings:
    found = data.get(name)
    if not isinstance(found, dict):
        raise ValueError(f"`data` must describe the model as SB3's `model.save` does, got no `{name}`.")
    return found


def _from_model(model: BaseAlgorithm) -> _Policy:
    policy = model.policy
    extractors = {kind(part) for name, part in policy.named_modules() if name.endswith("features_extractor")}
    other = extractors - _FLATTENING
    if other:
        names = ", ".join(sorted(name.rpartition(".")[2] for name in other))
        raise ValueError(f"The policy must have a features extractor of SB3 that only flattens, got {names}. {LIVE}")
    module, _, name = kind(policy).rpartition(".")
    activation = getattr(policy, "activation_fn", None)
    return _Policy(
        module=module,
        name=name,
        activation=activation.__name__ if isinstance(activation, type) else "unknown",
        observation_space=cast("Space", model.observation_space),
        action_space=cast("Space", model.action_space),
        is_squashed=bool(getattr(policy, "squash_output", False)),
        clip_mean=float(getattr(getattr(policy, "actor", None), "clip_mean", 2.0)),
        state={name: value.detach().cpu() for name, value in policy.state_dict().items()},
        settings={},
    )
