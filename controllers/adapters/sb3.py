"""Controllers from Stable-Baselines3, from a saved .zip without unpickling or from a live model."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.actor import FrozenNormalizer, NumpyActor
from ccfs.controllers.adapters.predict import observation_layers
from ccfs.controllers.adapters.torch import TORCH_ACTIVATIONS, Arrays, linear_layers, read_tensors

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.vec_env import VecNormalize

__all__ = ["from_sb3", "normalizer_from_sb3"]

_SPACES = ("observation_space", "action_space")
_ON_POLICY = "stable_baselines3.common.policies"
_SQUASHED = {"stable_baselines3.sac.policies", "stable_baselines3.td3.policies"}
_DEFAULT_ACTIVATION = {_ON_POLICY: "Tanh", **dict.fromkeys(_SQUASHED, "ReLU")}
# Settings that do not change how the mean action is computed from the layers in `policy.pth`.
_HARMLESS = {
    "activation_fn", "net_arch", "log_std_init", "ortho_init", "use_sde", "optimizer_class", "optimizer_kwargs",
    "n_critics", "share_features_extractor", ":type:", ":serialized:",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Policy:
    """What decides a policy's mean action."""

    module: str
    activation: str
    observation_shape: tuple[int, ...]
    low: float
    high: float
    has_state_dependent_noise: bool
    state: Mapping[str, object]


def from_sb3(
    path_or_model: str | os.PathLike[str] | BaseAlgorithm, normalizer: FrozenNormalizer | None = None
) -> NumpyActor:
    """Return the deterministic action of a PPO, A2C, SAC, TD3 or DDPG model with an MLP policy.

    Of a file, only `policy.pth` (with `weights_only=True`) and the readable part of the `data` JSON are used. The
    pickled objects beside them are never loaded. The mean of PPO and A2C is not clipped here, because the program clips
    the center to the action box. The result is what `model.predict(..., deterministic=True)` gives.

    Args:
        path_or_model: a .zip written by `model.save`, or the model.
        normalizer: for a model trained under `VecNormalize`. A live model brings its own. A file does not show that
            it needs one, so keep the statistics with `normalizer_from_sb3(vec_env)`.
    """
    if isinstance(path_or_model, (str, os.PathLike)):
        policy = _from_file(Path(path_or_model))
    else:
        if not (hasattr(path_or_model, "policy") and hasattr(path_or_model, "get_vec_normalize_env")):
            got = type(path_or_model).__name__
            raise TypeError(f"`path_or_model` must be a .zip of `model.save`, or a model of SB3, got {got}.")
        policy = _from_model(path_or_model)
        own = _own_normalizer(path_or_model)
        normalizer = own if normalizer is None else normalizer
    return _actor(policy, normalizer)


def _own_normalizer(model: BaseAlgorithm) -> FrozenNormalizer | None:
    """Return the statistics of the model's `VecNormalize`, if any. Refuse other changes of observations."""
    around, layers = model.get_vec_normalize_env(), observation_layers(model)
    if around is not None and layers == [around]:
        return normalizer_from_sb3(around)
    if layers:
        names = ", ".join(type(layer).__name__ for layer in layers)
        raise ValueError(
            f"The model's environment must change observations by one `VecNormalize` at most, got {names}. "
            "Use `from_predict`."
        )
    return None


def normalizer_from_sb3(environment: VecNormalize) -> FrozenNormalizer:
    """Return the observation statistics of a `VecNormalize`, frozen."""
    from stable_baselines3.common.running_mean_std import RunningMeanStd

    statistics: object = environment.obs_rms
    if not isinstance(statistics, RunningMeanStd):
        raise TypeError("`environment` must have a box of observations, got a dictionary.")
    mean = statistics.mean.astype(np.float32)
    std = np.sqrt(statistics.var + environment.epsilon).astype(np.float32)
    return FrozenNormalizer(mean=mean, std=std, clip=np.full(mean.shape, environment.clip_obs, np.float32))


def _actor(policy: _Policy, normalizer: FrozenNormalizer | None) -> NumpyActor:
    if policy.module not in _DEFAULT_ACTIVATION:
        raise ValueError(
            f"`policy_class` must be an MLP policy of SB3, got one of {policy.module}. "
            "Use `from_predict`, or `from_torch` for a policy without memory."
        )
    if any("features_extractor" in name for name in policy.state) or len(policy.observation_shape) != 1:
        raise ValueError("The policy must read a flat observation without a features extractor. Use `from_torch`.")
    if policy.has_state_dependent_noise:
        raise ValueError("`use_sde` must be off, got a policy with state-dependent exploration. Use `from_torch`.")
    if policy.activation not in TORCH_ACTIVATIONS:
        raise ValueError(f"`activation_fn` must be one of {sorted(TORCH_ACTIVATIONS)}, got {policy.activation!r}.")
    if policy.module == _ON_POLICY:
        weights, biases = _joined(policy.state, "mlp_extractor.policy_net.", "action_net")
        output = "identity"
    else:
        if (policy.low, policy.high) != (-1.0, 1.0):
            raise ValueError(
                f"`action_space` must be the box [-1, 1], got [{policy.low}, {policy.high}]. Wrap the environment "
                "with gymnasium's RescaleAction, or use `from_torch`."
            )
        if "actor.mu.weight" in policy.state:
            weights, biases = _joined(policy.state, "actor.latent_pi.", "actor.mu")
        else:
            weights, biases = linear_layers(policy.state, "actor.mu.")
        output = "tanh"
    activation = TORCH_ACTIVATIONS[policy.activation]
    return NumpyActor(
        weights=weights, biases=biases, activation=activation, output_activation=output, normalizer=normalizer
    )


def _joined(state: Mapping[str, object], hidden: str, last: str) -> tuple[Arrays, Arrays]:
    """Return the layers under `hidden` (perhaps none) followed by the layer `last`."""
    final = {
        f"0.{name.removeprefix(f'{last}.')}": value for name, value in state.items() if name.startswith(f"{last}.")
    }
    weights, biases = linear_layers(final, "")
    if any(name.startswith(hidden) for name in state):
        below_weights, below_biases = linear_layers(state, hidden)
        weights, biases = below_weights + weights, below_biases + biases
    return weights, biases


def _from_file(path: Path) -> _Policy:
    written, weights = _members(path)
    data = json.loads(written)
    state = read_tensors(io.BytesIO(weights), "policy.pth")
    parts = {name: _dictionary(data, name) for name in ("policy_class", "policy_kwargs", *_SPACES)}
    for name in _SPACES:
        if not {"_shape", "low", "high"} <= parts[name].keys():
            raise TypeError(f"`{name}` must be a box, got {parts[name].get(':type:', 'something else')}.")
    settings = parts["policy_kwargs"]
    unknown = settings.keys() - _HARMLESS
    if unknown:
        raise ValueError(f"`policy_kwargs` must not change the network, got {sorted(unknown)}. Use `from_torch`.")
    module = str(parts["policy_class"].get("__module__"))
    activation = settings.get("activation_fn", _DEFAULT_ACTIVATION.get(module, "unknown"))
    return _Policy(
        module=module,
        activation=str(activation).removesuffix("'>").rsplit(".", 1)[-1],
        observation_shape=tuple(int(size) for size in _numbers(parts["observation_space"]["_shape"])),
        low=_uniform(parts["action_space"]["low"]),
        high=_uniform(parts["action_space"]["high"]),
        has_state_dependent_noise=bool(data.get("use_sde", False)),
        state=state,
    )


def _members(path: Path) -> tuple[bytes, bytes]:
    """Return the settings and the weights of a file that `model.save` wrote. Refuse any other file."""
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing there"
        raise ValueError(f"`path_or_model` must be a .zip written by `model.save`, got {str(path)!r}, {found}.")
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read("data"), archive.read("policy.pth")
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(
            f"`path_or_model` must be a .zip written by `model.save`, got {str(path)!r}: {error}."
        ) from error


def _dictionary(data: object, name: str) -> Mapping[str, object]:
    found = data.get(name) if isinstance(data, dict) else None
    if not isinstance(found, dict):
        raise ValueError(f"`data` must describe the model as SB3's `model.save` does, got no `{name}`.")
    return found


def _from_model(model: BaseAlgorithm) -> _Policy:
    from gymnasium.spaces import Box

    policy = model.policy
    module = type(policy).__module__
    if not isinstance(model.action_space, Box) or model.observation_space.shape is None:
        raise TypeError(f"`action_space` must be a box, got {model.action_space}.")
    kind = getattr(policy, "activation_fn", None)
    return _Policy(
        module=module,
        activation=kind.__name__ if isinstance(kind, type) else "unknown",
        observation_shape=model.observation_space.shape,
        low=_same(model.action_space.low),
        high=_same(model.action_space.high),
        has_state_dependent_noise=bool(getattr(model, "use_sde", False)),
        state={name: value.detach().cpu() for name, value in policy.state_dict().items()},
    )


def _numbers(text: object) -> list[float]:
    """Return the numbers of an array as SB3 prints it in its JSON ("[-1. -1.]"), or of a JSON list."""
    words = text if isinstance(text, list) else str(text).strip("[]()").replace(",", " ").split()
    return [float(word) for word in words]


def _uniform(text: object) -> float:
    return _same(np.array(_numbers(text)))


def _same(values: NDArray[np.generic]) -> float:
    """Return the common value of a bound, NaN if the components differ."""
    first = float(values.reshape(-1).tolist()[0])
    return first if bool((values == first).all()) else float("nan")
