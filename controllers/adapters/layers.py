"""Linear layers out of a torch state dictionary, by name and in order; and the reading of such a dictionary."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

__all__ = ["TORCH_ACTIVATIONS", "linear_layers", "read_tensors"]

TORCH_ACTIVATIONS = {
    "Identity": "identity",
    "ReLU": "relu",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "Tanh": "tanh",
}
"""torch.nn class name to our name."""

Arrays = tuple[NDArray[np.float32], ...]


def read_tensors(file: str | os.PathLike[str] | BinaryIO, name: str) -> Mapping[str, object]:
    """Return the dictionary of tensors in a torch file. Nothing of it is executed: other objects are refused.

    torch's own refusal advises to unpickle the file, which runs what is in it; ours does not repeat that.
    """
    import torch

    try:
        saved = torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a foreign file makes the reader raise almost anything
        raise pickle.UnpicklingError(
            f"{name} must hold tensors and plain containers only, as `torch.save(module.state_dict(), ...)` writes "
            f"them, got {type(error).__name__} on reading. Loading other objects could run code: they are refused."
        ) from None
    if not isinstance(saved, dict):
        raise ValueError(f"{name} must hold a dictionary of tensors, got {type(saved).__name__}.")
    return saved


def linear_layers(state: Mapping[str, object], prefix: str) -> tuple[Arrays, Arrays]:
    """Return weights and biases of `prefix0.weight`, `prefix0.bias`, `prefix2.weight`, ... of a torch Sequential.

    A sequential that holds anything but linear layers with parameters is refused.
    """
    found = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    places = sorted({int(first) for first in (name.split(".")[0] for name in found) if first.isdecimal()})
    expected = {f"{place}.{kind}" for place in places for kind in ("weight", "bias")}
    if found.keys() != expected or not places:
        raise ValueError(f"The layers under {prefix!r} must be linear with bias, got {sorted(found)}.")
    weights = tuple(np.asarray(found[f"{place}.weight"], dtype=np.float32) for place in places)
    biases = tuple(np.asarray(found[f"{place}.bias"], dtype=np.float32) for place in places)
    return weights, biases
