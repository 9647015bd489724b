"""Controllers from torch modules, and linear layers from torch files. Reading a file runs no code of it."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ccfs.controllers.actor import GRID, FrozenNormalizer, NumpyActor, on_grid, prepared
from ccfs.controllers.adapters import torch_content
from ccfs.controllers.adapters.content import checked_content, framed
from ccfs.controllers.adapters.saved import Normalizer, as_normalizer

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["TORCH_ACTIVATIONS", "TorchController", "from_torch", "linear_layers", "read_tensors"]

_PROBES = 12
TORCH_ACTIVATIONS = {
    "Identity": "identity",
    "ReLU": "relu",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "Tanh": "tanh",
}
"""From the name of a torch.nn class to our name."""
Arrays = tuple[NDArray[np.float32], ...]


def from_torch(
    module: nn.Module, normalizer: Normalizer = None, *, content: bytes | None = None
) -> NumpyActor | TorchController:
    """Return `module` (batch of observations in, batch of actions out) as a controller, copied and frozen.

    A `Sequential` of linear layers and one kind of activation becomes a `NumpyActor`, which needs no torch to run. It
    must have no hooks and weights in single precision, and both must give the same answers to random observations.
    Any other module stays in torch.

    Args:
        module: must answer deterministically in evaluation mode and keep nothing between calls.
        normalizer: applied to the observation first.
        content: bytes that determine what the tensors and plain attributes do not (code, hooks, other objects), such
            as the file of the class. It is needed if those cannot be read. The module then stays in torch.
    """
    from torch import nn

    if not isinstance(module, nn.Module):
        raise TypeError(f"`module` must be a torch.nn.Module, got {type(module).__name__}. See `from_callable`.")
    checked_content(content)
    given = as_normalizer(normalizer)
    fixed = given if isinstance(given, FrozenNormalizer) else None
    actor = _as_numpy(module, fixed) if content is None else None
    return TorchController(module, fixed, content=content) if actor is None else actor


class TorchController:
    """A frozen torch module. It runs in float64 and its answers are multiples of `GRID`, as those of `NumpyActor`."""

    def __init__(
        self, module: nn.Module, normalizer: FrozenNormalizer | None = None, *, content: bytes | None = None
    ) -> None:
        if content is None and torch_content.has_hooks(module):
            raise ValueError(
                "`content` must be given: the module has hooks, whose code is not hashed. Remove them "
                "(`torch.nn.utils.remove_weight_norm`), or use `torch.nn.utils.parametrizations`."
            )
        self._module = _own_copy(module)
        self._normalizer, self._content = normalizer, content
        self._state = self._described()
        self._marks = torch_content.marks(self._module)
        self._is_tried = False
        code = torch_content.code_text(self._module) if content is None else framed("content", content)
        self._digest = hashlib.sha256(b"ccfs.torch-controller/3" + code + self._state).hexdigest()

    @property
    def digest(self) -> str:
        """SHA-256 of every tensor and plain attribute, the code of classes from outside torch and the normaliser."""
        return self._digest

    def reset(self) -> None:
        """Refuse to go on if anything that was hashed has changed. The module has no memory of the trial."""
        self._check_still()
        self._is_tried = False

    def center(self, observation: ArrayLike) -> NDArray[np.float64]:
        """Return the module's answer to one observation, float64.

        The first observation of a trial is answered twice, to find and refuse a module that draws or learns.
        """
        x = prepared(observation, self._normalizer)
        answer = self._answer(x)
        if not self._is_tried:
            if self._answer(x).tobytes() != answer.tobytes():
                raise ValueError("`module` must be deterministic, got two answers to one observation.")
            self._check_still()
            self._is_tried = True
        return answer

    def _answer(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        import torch

        with torch.no_grad():
            batch = self._module(torch.from_numpy(x.astype(np.float64))[None])
        if not (isinstance(batch, torch.Tensor) and batch.ndim == 2 and batch.shape[0] == 1):
            got = f"shape {tuple(batch.shape)}" if isinstance(batch, torch.Tensor) else type(batch).__name__
            raise ValueError(f"`module` must return a batch of actions, a tensor of shape (1, d), got {got}.")
        if torch_content.marks(self._module) != self._marks:
            self._refuse_moved()
        return on_grid("module", batch[0].numpy())

    def _described(self) -> bytes:
        is_described = self._content is not None
        found = torch_content.state(self._module, is_described=is_described)
        if not is_described:
            found += torch_content.code_values(self._module)
        if self._normalizer is not None:
            arrays = (self._normalizer.mean, self._normalizer.std, self._normalizer.clip)
            little = (array.astype(array.dtype.newbyteorder("<")) for array in arrays)
            found += b"".join(framed("normalizer", array.tobytes()) for array in little)
        return hashlib.sha256(found).digest()

    def _check_still(self) -> None:
        if self._described() != self._state:
            self._refuse_moved()

    def _refuse_moved(self) -> None:
        raise ValueError(
            "`module` must keep its tensors and attributes, but they have changed since it was hashed. Freeze a "
            "normaliser that learns, and pass it as `normalizer`."
        )


def _own_copy(module: nn.Module) -> nn.Module:
    try:
        own = copy.deepcopy(module).cpu().double().eval()
    except Exception as error:  # whatever an attribute's own way of copying raises
        raise ValueError(
            f"`module` must be copyable, got {type(error).__name__}: {error} Remove attributes computed with gradients."
        ) from error
    for parameter in own.parameters():
        parameter.requires_grad_(False)
    return own


def _as_numpy(module: nn.Module, normalizer: FrozenNormalizer | None) -> NumpyActor | None:
    """Return a plain MLP as a numpy actor, None for anything else."""
    from torch import nn

    if type(module) is not nn.Sequential or torch_content.has_hooks(module):
        return None
    parts = list(module)
    linear = [part for part in parts[0::2] if type(part) is nn.Linear and part.bias is not None]
    plain = {getattr(nn, name): name for name in TORCH_ACTIVATIONS}
    between = [plain[type(part)] for part in parts[1::2] if type(part) in plain]
    if len(linear) + len(between) != len(parts) or not all(_is_single(tensor) for tensor in module.parameters()):
        return None
    last = between.pop() if between and len(between) == len(linear) else "Identity"
    if len(set(between)) > 1 or any(isinstance(part, nn.Softplus) and not _is_plain(part) for part in parts):
        return None
    made = NumpyActor(
        weights=tuple(part.weight.detach().cpu().float().numpy() for part in linear),
        biases=tuple(part.bias.detach().cpu().float().numpy() for part in linear),
        activation=TORCH_ACTIVATIONS[between[0]] if between else "identity",
        output_activation=TORCH_ACTIVATIONS[last],
    )
    return replace(made, normalizer=normalizer) if _agrees(made, module) else None


def _is_plain(softplus: nn.Softplus) -> bool:
    return bool(softplus.beta == 1.0 and softplus.threshold >= 20.0)


def _is_single(tensor: torch.Tensor) -> bool:
    values = tensor.detach().cpu().double().numpy()
    return bool(np.array_equal(values, values.astype(np.float32), equal_nan=True))


def _agrees(actor: NumpyActor, module: nn.Module) -> bool:
    """Say whether the actor answers random observations, small and large, as the module does."""
    import torch

    observations = np.random.default_rng(0).normal(size=(_PROBES, actor.observation_size))
    observations = (observations * np.geomspace(0.1, 10.0, _PROBES)[:, None]).astype(np.float32)
    with torch.no_grad():
        expected = _own_copy(module)(torch.from_numpy(observations.astype(np.float64))).numpy()
    found = np.array([actor.center(observation) for observation in observations])
    # Both run in float64: they differ by the grid, by the order of sums, and by 2e-9 where torch's softplus is linear.
    return found.shape == expected.shape and bool(np.allclose(found, expected, rtol=1e-9, atol=GRID))


def read_tensors(file: str | os.PathLike[str] | BinaryIO, name: str) -> Mapping[str, object]:
    """Return the dictionary of tensors in a torch file. No code of the file runs, and other objects are refused.

    torch's own message advises to unpickle the file, which would run its code. Ours does not repeat that advice.
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
        ) from None  # torch's advice would be in the context
    if not isinstance(saved, dict):
        raise ValueError(f"{name} must hold a dictionary of tensors, got {type(saved).__name__}.")
    return saved


def linear_layers(state: Mapping[str, object], prefix: str) -> tuple[Arrays, Arrays]:
    """Return weights and biases of `prefix0.weight`, `prefix0.bias`, `prefix2.weight`, ... of a torch Sequential.

    A sequential with parameters outside of linear layers is refused.
    """
    found = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    places = sorted({int(first) for first in (name.split(".")[0] for name in found) if first.isdecimal()})
    expected = {f"{place}.{kind}" for place in places for kind in ("weight", "bias")}
    if found.keys() != expected or not places:
        raise ValueError(f"The layers under {prefix!r} must be linear with bias, got {sorted(found)}.")
    weights = tuple(np.asarray(found[f"{place}.weight"], dtype=np.float32) for place in places)
    biases = tuple(np.asarray(found[f"{place}.bias"], dtype=np.float32) for place in places)
    return weights, biases
