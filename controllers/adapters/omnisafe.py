"""Controllers from OmniSafe runs: the saved actor and its normaliser, read without running code, and frozen."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ccfs.controllers.actor import ACTIVATIONS, FrozenNormalizer, NumpyActor
from ccfs.controllers.adapters.torch import linear_layers, read_tensors

__all__ = ["from_omnisafe"]


def from_omnisafe(run_dir: str | os.PathLike[str], epoch: int) -> NumpyActor:
    """Return the mean policy that OmniSafe 0.5.0 saved at `epoch` in `run_dir`.

    The normaliser is frozen as saved. OmniSafe's own evaluator keeps updating it, so it measures a policy that changes.
    Files are read with `weights_only=True`. This needs torch, but not OmniSafe.

    Args:
        run_dir: the folder with `config.json` and `torch_save/`.
        epoch: N of `torch_save/epoch-N.pt`.
    """
    folder = Path(run_dir)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"config.json must be the JSON that OmniSafe writes, got {error}.") from error
    kind = _setting(config, "model_cfgs", "actor_type")
    if kind != "gaussian_learning":
        raise ValueError(f"`actor_type` must be 'gaussian_learning', got {kind!r}. Use `from_torch` for other actors.")
    activation = _setting(config, "model_cfgs", "actor", "activation")
    if not (isinstance(activation, str) and activation in ACTIVATIONS):
        raise ValueError(f"`activation` must be one of {sorted(ACTIVATIONS)}, got {activation!r}.")
    saved = read_tensors(folder / "torch_save" / f"epoch-{epoch}.pt", f"epoch-{epoch}.pt")
    is_normalised = bool(_setting(config, "algo_cfgs", "obs_normalize"))
    if is_normalised != ("obs_normalizer" in saved):
        raise ValueError(f"`obs_normalize` is {is_normalised} in config.json, but epoch-{epoch}.pt says otherwise.")
    weights, biases = linear_layers(_part(saved, "pi"), "mean.")
    return NumpyActor(
        weights=weights,
        biases=biases,
        activation=activation,
        normalizer=_normalizer(_part(saved, "obs_normalizer")) if is_normalised else None,
    )


def _setting(config: object, *path: str) -> object:
    for name in path:
        if not (isinstance(config, dict) and name in config):
            raise ValueError(f"config.json must be OmniSafe's own, got one without {'.'.join(path)!r}.")
        config = config[name]
    return config


def _part(saved: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = saved.get(name)
    if not isinstance(part, dict):
        raise ValueError(
            f"The file must hold the dictionary {name!r} that OmniSafe saves, got {sorted(map(str, saved))}."
        )
    return part


def _normalizer(state: Mapping[str, object]) -> FrozenNormalizer:
    missing = {"_mean", "_std", "_clip"} - state.keys()
    if missing:
        raise ValueError(f"`obs_normalizer` must be OmniSafe's, got one without {sorted(missing)}.")
    mean, std, clip = (np.asarray(state[name], dtype=np.float32) for name in ("_mean", "_std", "_clip"))
    return FrozenNormalizer(mean=mean, std=std, clip=clip)
