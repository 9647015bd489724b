"""The same network with each convolution, shortcut and rectifier done in one pass, for counting on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ccfs.images.models import folded
from ccfs.images.torch import require_torch

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["fused"]

_HINT = 250  # batch size that weights are laid out for; other sizes work too


def fused(model: nn.Module, size: int) -> nn.Module:
    """Return a faster form of a network built by `networks.build`, for images of `size` by `size` pixels.

    Convolution, shortcut and rectifier run as one oneDNN operation on weights in oneDNN's own layout. Where that is not
    available, or differs from the folded network by more than rounding on a probe, the folded network itself is
    returned. Inputs that need a gradient take the folded path.
    """
    require_torch()
    import torch
    from torch import nn

    plain = folded(model)
    if not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_convolution_pointwise"):
        return plain

    class Fused(nn.Module):
        """Holds the folded network and runs its layers in one pass each."""

        def __init__(self, network: nn.Module, steps: list[Callable[[Tensor], Tensor]]) -> None:
            super().__init__()
            self.network = network
            self._steps = steps

        def forward(self, images: Tensor) -> Tensor:
            if images.requires_grad:
                out: Tensor = self.network(images)
                return out
            for step in self._steps:
                images = step(images)
            return images

    with torch.inference_mode():
        steps = _steps(plain, size)
        if steps is None:
            return plain
        quick = Fused(plain, steps).eval()
        channels = next(p for p in plain.parameters() if p.ndim == 4).shape[1]
        probe = torch.randn(7, channels, size, size, generator=torch.Generator().manual_seed(0))
        probe = probe.contiguous(memory_format=torch.channels_last)
        return quick if torch.allclose(quick(probe), plain(probe), rtol=1e-4, atol=1e-4) else plain


def _steps(plain: nn.Module, size: int) -> list[Callable[[Tensor], Tensor]] | None:
    """Return one function per layer, or None if a layer is not of the kind that `networks.build` makes."""
    from torch import nn

    layers, steps = list(plain.children()), []
    if len(layers) < 5 or not isinstance(layers[-1], nn.Linear):
        return None
    for layer in layers[1:-3]:
        parts = dict(layer.named_children())
        shortcut = set(parts) == {"first", "second", "rectifier"}
        groups = (parts["first"], parts["second"]) if shortcut else (layer,)
        found = [part for group in groups for part in group.children() if isinstance(part, nn.Conv2d)]
        if len(found) != (2 if shortcut else 1):
            return None
        packed = [_Packed(part, size) for part in found]
        if shortcut:
            steps.append(_shortcut(packed[0], packed[1]))
        else:
            steps.append(packed[0].rectified)
            size = (size + 2 * int(found[0].padding[0]) - found[0].kernel_size[0]) // found[0].stride[0] + 1
    return [layers[0], *steps, *layers[-3:]]


class _Packed:
    """A convolution with its weight in oneDNN's layout."""

    def __init__(self, layer: nn.Conv2d, size: int) -> None:
        import torch

        self._shape = ([int(n) for n in layer.padding], list(layer.stride), list(layer.dilation), layer.groups)
        weight = layer.weight.detach().to_mkldnn()
        hint = [_HINT, layer.in_channels, size, size]
        reorder: Callable[..., Tensor] = torch._C._nn.mkldnn_reorder_conv2d_weight
        self._weight = reorder(weight, *self._shape, hint)
        self._bias = layer.bias
        self._run = torch.ops.mkldnn._convolution_pointwise

    def rectified(self, features: Tensor) -> Tensor:
        out: Tensor = self._run(features, self._weight, self._bias, *self._shape, "relu", [], "")
        return out

    def added(self, features: Tensor, shortcut: Tensor) -> Tensor:
        tensors = (features, shortcut, self._weight, self._bias)
        out: Tensor = self._run.binary(*tensors, *self._shape, "add", 1.0, "relu", [], "")
        return out


def _shortcut(first: _Packed, second: _Packed) -> Callable[[Tensor], Tensor]:
    return lambda features: second.added(first.rectified(features), features)
