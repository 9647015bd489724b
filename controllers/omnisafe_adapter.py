"""Controllers from OmniSafe runs: reads the saved actor and its normaliser, freezes both, runs nothing of the file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ccfs.controllers._layers import linear_layers
from ccfs.controllers.actor import ACTIVATIONS, FrozenNormalizer, NumpyActor

__all__ = ["from_omnisafe"]


def from_omnisafe(run_dir: str | os.PathLike[str], epoch: int) -> NumpyActor:
    """Return the mean policy that OmniSafe 0.5.0 saved at `epoch` in `run_dir`.

    The normaliser is frozen as saved. (OmniSafe's own evaluator keeps updating it, so the policy it measures changes
    while it is measured.) Files are read with `weights_only=True`; torch is needed, OmniSafe is not.

    Args:
        run_dir: the folder with `config.json` and `torch_save/`.
        epoch: N of `torch_save/epoch-N.pt`.
    """
    import torch

    folder = Path(run_dir)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = config["model_cfgs"]["actor_type"]
    if kind != "gaussian_learning":
        raise ValueError(f"`actor_type` must be 'gaussian_learning', got {kind!r}. Use `from_torch` for other actors.")
    activation = config["model_cfgs"]["actor"]["activation"]
    if activation not in ACTIVATIONS:
        raise ValueError(f"`activation` must be one of {sorted(ACTIVATIONS)}, got {activation!r}.")
    saved = torch.load(folder / "torch_save" / f"epoch-{epoch}.pt", map_location="cpu", weights_only=True)
    is_normalised = bool(config["algo_cfgs"]["obs_normalize"])
    if is_normalised != ("obs_normalizer" in saved):
        raise ValueError(f"`obs_normalize` is {is_normalised} in config.json, but epoch-{epoch}.pt says otherwise.")
    weights, biases = linear_layers(saved["pi"], "mean.")
    return NumpyActor(
        weights=weights,
        biases=biases,
        activation=activation,
        normalizer=_normalizer(saved["obs_normalizer"]) if is_normalised else None,
    )


def _normalizer(state: Mapping[str, object]) -> FrozenNormalizer:
    mean, std, clip = (np.asarray(state[name], dtype=np.float32) for name in ("_mean", "_std", "_clip"))
    return FrozenNormalizer(mean=mean, std=std, clip=clip)
