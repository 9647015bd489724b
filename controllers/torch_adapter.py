"""Controllers from torch modules: plain MLPs become numpy actors, anything else runs in torch, frozen."""

from __future__ import annotations

import copy
import hashlib
import inspect
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ccfs.controllers._layers import TORCH_ACTIVATIONS
from ccfs.controllers.actor import GRID, FrozenNormalizer, NumpyActor

if TYPE_CHECKING:
    from torch import nn

__all__ = ["TorchController", "from_torch"]


def from_torch(module: nn.Module, normalizer: FrozenNormalizer | None = None) -> NumpyActor | TorchController:
    """Return `module` (batch of observations in, batch of actions out) as a controller, copied and frozen.

    A `Sequential` of linear layers and one kind of activation becomes a `NumpyActor`, which needs no torch to run.

    Args:
        module: must answer deterministically in evaluation mode.
        normalizer: applied to the observation first.
    """
    from torch import nn

    if not isinstance(module, nn.Module):
        raise TypeError(f"`module` must be a torch.nn.Module, got {type(module).__name__}. See `from_callable`.")
    actor = _as_numpy(module, normalizer)
    return TorchController(module, normalizer) if actor is None else actor


class TorchController:
    """A frozen torch module. It runs in float64 and its answers are multiples of `GRID`, as those of `NumpyActor`."""

    def __init__(self, module: nn.Module, normalizer: FrozenNormalizer | None = None) -> None:
        self._module = copy.deepcopy(module).cpu().double().eval()
        for parameter in self._module.parameters():
            parameter.requires_grad_(False)
        self._normalizer = normalizer
        self._digest = _digest(self._module, normalizer)

    @property
    def digest(self) -> str:
        """SHA-256 of the structure, the source of classes from outside torch, every tensor and the normaliser."""
        return self._digest

    def reset(self) -> None:
        """Do nothing: the module has no memory of the episode."""

    def center(self, observation: ArrayLike) -> NDArray[np.float64]:
        """Return the module's answer to one observation, float64."""
        import torch

        x = np.asarray(observation, dtype=np.float32)
        if not (x.ndim == 1 and bool(np.isfinite(x).all())):
            raise ValueError(f"`observation` must be a finite vector, got shape {x.shape}.")
        if self._normalizer is not None:
            x = self._normalizer(x)
        with torch.no_grad():
            answer = self._module(torch.from_numpy(x.astype(np.float64))[None])[0].numpy()
        return np.asarray(np.rint(answer / GRID) * GRID, dtype=np.float64)


def _as_numpy(module: nn.Module, normalizer: FrozenNormalizer | None) -> NumpyActor | None:
    from torch import nn

    if type(module) is not nn.Sequential:
        return None
    parts = list(module)
    linear = [part for part in parts[0::2] if type(part) is nn.Linear and part.bias is not None]
    between = [type(part).__name__ for part in parts[1::2]]
    if len(linear) != len(parts[0::2]) or any(name not in TORCH_ACTIVATIONS for name in between):
        return None
    last = between.pop() if len(between) == len(linear) else "Identity"
    if len(set(between)) > 1 or any(isinstance(part, nn.Softplus) and not _is_plain(part) for part in parts):
        return None
    return NumpyActor(
        weights=tuple(part.weight.detach().cpu().numpy() for part in linear),
        biases=tuple(part.bias.detach().cpu().numpy() for part in linear),
        activation=TORCH_ACTIVATIONS[between[0]] if between else "identity",
        output_activation=TORCH_ACTIVATIONS[last],
        normalizer=normalizer,
    )


def _is_plain(softplus: nn.Softplus) -> bool:
    return bool(softplus.beta == 1.0 and softplus.threshold >= 20.0)


def _digest(module: nn.Module, normalizer: FrozenNormalizer | None) -> str:
    running = hashlib.sha256(f"ccfs.torch-controller/1 {module!r}".encode())
    for kind in sorted({type(part) for part in module.modules()}, key=lambda kind: kind.__qualname__):
        if not kind.__module__.startswith("torch."):
            running.update(inspect.getsource(kind).encode())
    for name, tensor in sorted(module.state_dict().items()):
        running.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        running.update(tensor.contiguous().numpy().tobytes())
    if normalizer is not None:
        for array in (normalizer.mean, normalizer.std, normalizer.clip):
            running.update(array.astype("<f4").tobytes())
    return running.hexdigest()
