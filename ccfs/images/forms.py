"""Faster forms of a network for counting on a CPU: folded, fused and 8-bit.

Rounding differs between the forms, so each is its own classifier. A certificate is about the form that was counted.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccfs.images.torch import require_torch
from ccfs.images.winograd import LEAST, Winograd, shortcut

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["folded", "fused", "quantized"]

_HINT = 250  # oneDNN lays the weights out for this batch size. Other sizes work too.
_ENGINE = "x86"


def folded(model: nn.Module, *, channels_last: bool = True) -> nn.Module:
    """Return a copy with batch normalisation folded into convolutions.

    It computes the same function up to rounding.

    Args:
        model: network in evaluation mode.
        channels_last: whether to store weights and read images channels-last, which is faster on a CPU. A network
            that calls `.view` on its features needs False.
    """
    require_torch()
    import torch

    if any(part.training for part in model.modules()):
        raise ValueError("`model` must be in evaluation mode: call model.eval() first.")
    copied = copy.deepcopy(model)
    _fold_children(copied)
    for parameter in copied.parameters():
        parameter.requires_grad_(False)
        if channels_last and parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    copied.channels_last = channels_last  # type: ignore[assignment]
    return copied.eval()


def _fold_children(parent: nn.Module) -> None:
    """Fold each normalisation that directly follows a convolution, in a Sequential or by names such as conv1, bn1."""
    from torch import nn
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    children = dict(parent.named_children())
    names = list(children)
    pairs = list(itertools.pairwise(names)) if isinstance(parent, nn.Sequential) else []
    pairs += [(name, name.replace("conv", "bn")) for name in names if name.startswith("conv")]
    for first, second in pairs:
        conv, norm = children.get(first), children.get(second)
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            setattr(parent, first, fuse_conv_bn_eval(conv, norm))
            setattr(parent, second, nn.Identity())
    for child in parent.children():
        _fold_children(child)


def fused(model: nn.Module, size: int) -> nn.Module:
    """Return a faster form of a network built by `networks.build`, for images of `size` by `size` pixels.

    Convolution, shortcut and rectifier run as one oneDNN operation on weights in oneDNN's own layout. Wide residual
    blocks use Winograd's algorithm instead. The function returns the folded network where oneDNN is not available, or
    where a probe differs from it by more than rounding. Inputs that need a gradient take the folded path.
    """
    require_torch()
    import torch
    from torch import nn

    plain = folded(model)
    if not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_convolution_pointwise"):
        return plain

    class Fused(nn.Module):
        """The folded network, with each layer run in one pass."""

        channels_last = True

        def __init__(self, network: nn.Module, steps: list[Callable[[Tensor], Tensor]]) -> None:
            super().__init__()
            self.network = network
            self._steps = steps

        def extra_repr(self) -> str:
            """Name the layers that round in another way. This text is part of the network's digest."""
            places = [str(place) for place, step in enumerate(self._steps) if isinstance(step, _Wide)]
            return f"winograd={','.join(places)}" if places else ""

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
        # These operations are private to torch. A release that changes them must cost speed, never correctness.
        channels = next(p for p in plain.parameters() if p.ndim == 4).shape[1]
        probe = torch.randn(7, channels, size, size, generator=torch.Generator().manual_seed(0))
        probe = probe.contiguous(memory_format=torch.channels_last)
        return quick if torch.allclose(quick(probe), plain(probe), rtol=1e-4, atol=1e-4) else plain


def _steps(plain: nn.Module, size: int) -> list[Callable[[Tensor], Tensor]] | None:
    """Return one function per layer, or None for a network that `networks.build` did not make."""
    from torch import nn

    layers = list(plain.children())
    steps: list[Callable[[Tensor], Tensor]] = []
    if len(layers) < 5 or not isinstance(layers[-1], nn.Linear):
        return None
    for layer in layers[1:-3]:
        parts = dict(layer.named_children())
        is_residual = set(parts) == {"first", "second", "rectifier"}
        groups = (parts["first"], parts["second"]) if is_residual else (layer,)
        found = [part for group in groups for part in group.children() if isinstance(part, nn.Conv2d)]
        if len(found) != (2 if is_residual else 1):
            return None
        if is_residual and all(part.in_channels >= LEAST and Winograd.suits(part) for part in found):
            steps.append(_Wide(Winograd(found[0], size), Winograd(found[1], size)))
        elif is_residual:
            steps.append(_residual(_Packed(found[0], size), _Packed(found[1], size)))
        else:
            steps.append(_Packed(found[0], size).rectified)
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


@dataclass(frozen=True, slots=True)
class _Wide:
    """A residual block by Winograd's algorithm."""

    first: Winograd
    second: Winograd

    def __call__(self, features: Tensor) -> Tensor:
        return shortcut(self.first, self.second, features)


def _residual(first: _Packed, second: _Packed) -> Callable[[Tensor], Tensor]:
    return lambda features: second.added(first.rectified(features), features)


def quantized(model: nn.Module, calibration: Tensor) -> nn.Module:
    """Return an 8-bit network from one built by `networks.build`.

    Weights are rounded per channel. Activations are rounded per layer, with the ranges that `calibration` gives. The
    result is another function than `model`. Count and certify it as such, never with the counts of `model`.

    Args:
        model: network in evaluation mode.
        calibration: noisy training images (batch, channels, height, width), never test images.
    """
    require_torch()
    import torch
    from torch import nn

    if _ENGINE not in torch.backends.quantized.supported_engines:
        raise RuntimeError("this build of torch has no 8-bit kernels for this processor.")
    torch.backends.quantized.engine = _ENGINE

    class Scale(nn.Module):
        """Scale and zero point of unsigned 8-bit activations, from their range on the calibration images."""

        bounds: Tensor

        def __init__(self, seen: Tensor) -> None:
            super().__init__()
            low, high = min(float(seen.min()), 0.0), max(float(seen.max()), 1e-3)
            self.scale = (high - low) / 255.0
            self.zero = max(0, min(255, round(-low / self.scale)))
            # Buffers are part of `model_digest`, so other calibration images give another digest.
            self.register_buffer("bounds", torch.tensor([self.scale, self.zero], dtype=torch.float64))

    class Convolution(nn.Module):
        """An 8-bit convolution, with or without rectifier."""

        weight: Tensor
        scales: Tensor
        bias: Tensor

        def __init__(self, layer: nn.Conv2d, out: Scale, rectified: bool) -> None:
            super().__init__()
            dense = layer.weight.detach().contiguous()
            scales = dense.abs().amax((1, 2, 3)).clamp_min(1e-8) / 127.0
            bias = torch.zeros(len(dense)) if layer.bias is None else layer.bias.detach()
            zeros = torch.zeros(len(dense), dtype=torch.int64)
            coded = torch.quantize_per_channel(dense, scales, zeros, 0, torch.qint8)
            self.register_buffer("weight", coded.int_repr())
            self.register_buffer("scales", scales)
            self.register_buffer("bias", bias)
            strides, padding = [int(n) for n in layer.stride], [int(n) for n in layer.padding]
            self.packed = torch.ops.quantized.conv2d_prepack(coded, bias, strides, padding, [1, 1], 1)
            self.out = out
            self.operation = torch.ops.quantized.conv2d_relu if rectified else torch.ops.quantized.conv2d

        def forward(self, features: Tensor) -> Tensor:
            out: Tensor = self.operation(features, self.packed, self.out.scale, self.out.zero)
            return out

    class Shortcut(nn.Module):
        """Two 8-bit convolutions, a shortcut and a rectifier."""

        def __init__(self, first: Convolution, second: Convolution, out: Scale) -> None:
            super().__init__()
            self.first, self.second, self.out = first, second, out

        def forward(self, features: Tensor) -> Tensor:
            inner = self.second(self.first(features))
            out: Tensor = torch.ops.quantized.add_relu(features, inner, self.out.scale, self.out.zero)
            return out

    class Network(nn.Module):
        """Quantise the centered image, run the 8-bit layers, then pooling and the last layer in float."""

        channels_last = True
        reads_float32 = True

        def __init__(self, first: nn.Module, entry: Scale, body: nn.Sequential, tail: nn.Sequential) -> None:
            super().__init__()
            self.first, self.entry, self.body, self.tail = first, entry, body, tail

        def forward(self, images: Tensor) -> Tensor:
            coded = torch.quantize_per_tensor(self.first(images), self.entry.scale, self.entry.zero, torch.quint8)
            out: Tensor = self.tail(self.body(coded).dequantize())
            return out

    def converted(stage: nn.Module, features: Tensor) -> tuple[nn.Module, Tensor]:
        parts = dict(stage.named_children())
        if set(parts) == {"first", "second", "rectifier"}:
            first, middle = converted(parts["first"], features)
            inner = parts["second"](middle)
            after = parts["rectifier"](features + inner)
            second = Convolution(conv_of(parts["second"]), Scale(inner), rectified=False)
            return Shortcut(checked(first), second, Scale(after)), after
        convolution = conv_of(stage)
        after = stage(features)
        return Convolution(convolution, Scale(after), rectified=True), after

    def conv_of(stage: nn.Module) -> nn.Conv2d:
        convolutions = [part for part in stage.children() if isinstance(part, nn.Conv2d)]
        if len(convolutions) != 1 or any(isinstance(part, nn.BatchNorm2d) for part in stage.children()):
            raise TypeError(f"`model` must be built by `networks.build`, got a layer {stage}.")
        return convolutions[0]

    def checked(layer: nn.Module) -> Convolution:
        if not isinstance(layer, Convolution):
            raise TypeError("`model` must be built by `networks.build`.")
        return layer

    layers = list(folded(model).children())
    with torch.inference_mode(), warnings.catch_warnings():
        # torch warns that quantised tensors are deprecated. The user can do nothing about it.
        warnings.filterwarnings("ignore", message="torch.quantize_per_tensor.*deprecated", category=UserWarning)
        features = layers[0](calibration)
        entry, body = Scale(features), []
        for stage in layers[1:-3]:
            layer, features = converted(stage, features)
            body.append(layer)
        network = Network(layers[0], entry, nn.Sequential(*body), nn.Sequential(*layers[-3:])).eval()
        network(calibration[:1])
    return network
