"""Controllers from OmniSafe runs: the saved actor and its normaliser, read without running code, and frozen."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ccfs.controllers.actor import ACTIVATIONS, FrozenNormalizer, NumpyActor
from ccfs.controllers.adapters.torch import linear_layers, read_tensors

__all__ = ["from_omnisafe"]


def from_omnisafe(run_dir: str | os.PathLike[str], epoch: int | None = None) -> NumpyActor:
    """Return the mean policy that OmniSafe 0.5.0 saved at `epoch` in `run_dir`.

    The normaliser is frozen as saved. OmniSafe's own evaluator keeps updating it, so it measures a policy that changes.
    Files are read with `weights_only=True`. This needs torch, but not OmniSafe.

    Args:
        run_dir: the folder with `config.json` and `torch_save/`.
        epoch: N of `torch_save/epoch-N.pt`. None is the last one that was saved.
    """
    folder = Path(run_dir)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"`run_dir` must be a run folder of OmniSafe, with config.json in it, got {str(run_dir)!r}."
        )
    epoch = _epoch(folder / "torch_save", epoch)
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


def _epoch(folder: Path, epoch: int | None) -> int:
    """Return the epoch that was asked for, or the last one. Refuse one that was not saved, and list those that were."""
    found = (re.fullmatch(r"epoch-(\d+)\.pt", file.name) for file in folder.glob("epoch-*.pt"))
    saved = sorted(int(name[1]) for name in found if name is not None)
    if not saved:
        raise FileNotFoundError(f"`run_dir` must hold torch_save/epoch-N.pt, got none in {str(folder)!r}.")
    if epoch is not None and epoch not in saved:
        shown = ", ".join(map(str, saved)) if len(saved) <= 20 else f"{saved[0]}, {saved[1]}, ..., {saved[-1]}"
        raise FileNotFoundError(f"`epoch` must be one that was saved ({shown}), got {epoch}.")
    return saved[-1] if epoch is None else epoch


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
