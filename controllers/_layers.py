"""Linear layers out of a torch state dictionary, by name and in order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["TORCH_ACTIVATIONS", "linear_layers"]

TORCH_ACTIVATIONS = {
    "Identity": "identity",
    "ReLU": "relu",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "Tanh": "tanh",
}
"""torch.nn class name to our name."""

Arrays = tuple[NDArray[np.float32], ...]


def linear_layers(state: Mapping[str, object], prefix: str) -> tuple[Arrays, Arrays]:
    """Return weights and biases of `prefix0.weight`, `prefix0.bias`, `prefix2.weight`, ... of a torch Sequential.

    A sequential that holds anything but linear layers with parameters is refused.
    """
    found = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    places = sorted({int(name.split(".")[0]) for name in found})
    expected = {f"{place}.{kind}" for place in places for kind in ("weight", "bias")}
    if found.keys() != expected or not places:
        raise ValueError(f"The layers under {prefix!r} must be linear with bias, got {sorted(found)}.")
    weights = tuple(np.asarray(found[f"{place}.weight"], dtype=np.float32) for place in places)
    biases = tuple(np.asarray(found[f"{place}.bias"], dtype=np.float32) for place in places)
    return weights, biases
