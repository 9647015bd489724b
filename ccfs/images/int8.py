"""A static 8-bit form of a shipped network: a classifier of its own, several times faster, certified as what it is."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from ccfs.images.models import folded
from ccfs.images.torch import require_torch

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["quantized"]

_ENGINE = "x86"


def quantized(model: nn.Module, calibration: Tensor) -> nn.Module:
    """Return an 8-bit network from one built by `ccfs.images.networks.build`.

    Weights are rounded per channel and activations per layer, with ranges seen on `calibration`. The result is another
    function than `model`: count and certify it under its own name, never with the other's counts.

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
        """Scale and zero point of unsigned 8-bit activations, from the range that calibration saw."""

        bounds: Tensor

        def __init__(self, seen: Tensor) -> None:
            super().__init__()
            low, high = min(float(seen.min()), 0.0), max(float(seen.max()), 1e-3)
            self.scale = (high - low) / 255.0
            self.zero = max(0, min(255, round(-low / self.scale)))
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
        """Quantise the centered image, run the 8-bit layers, finish pooling and the last layer in float."""

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
        # torch announces that quantised tensors will go one day; the version is pinned.
        warnings.filterwarnings("ignore", message="torch.quantize_per_tensor.*deprecated", category=UserWarning)
        features = layers[0](calibration)
        entry, body = Scale(features), []
        for stage in layers[1:-3]:
            layer, features = converted(stage, features)
            body.append(layer)
        network = Network(layers[0], entry, nn.Sequential(*body), nn.Sequential(*layers[-3:])).eval()
        network(calibration[:1])
    return network
