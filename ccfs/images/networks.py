"""Small residual networks for noisy images, described by a frozen value and built on demand."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ccfs.certificates import checks
from ccfs.images.torch import require_torch

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ARCHITECTURES", "Architecture", "build", "multiply_adds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A stem that halves the image, then one stage per width: residual blocks, then a strided step to the next width.

    Noise of scale 0.25 hides fine detail anyway, so most work is done at half resolution and below.
    """

    channels: int
    size: int
    widths: tuple[int, ...]
    blocks: tuple[int, ...]
    full_resolution: int = 0
    num_classes: int = 10

    def __post_init__(self) -> None:
        for name in ("channels", "size", "num_classes"):
            checks.count(name, getattr(self, name), minimum=1)
        if not (len(self.widths) == len(self.blocks) >= 1):
            raise ValueError(f"`blocks` must hold one number for each width, got {self.blocks} for {self.widths}.")

    def document(self) -> dict[str, object]:
        """Return the description as plain values for a card."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def of(cls, document: dict[str, object]) -> Architecture:
        """Read a description back from a card."""
        fields = {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}
        return cls(**fields)  # type: ignore[arg-type]


ARCHITECTURES = {
    "mnist-small": Architecture(channels=1, size=28, widths=(24, 48), blocks=(0, 1)),
    "cifar-48": Architecture(channels=3, size=32, widths=(48, 96, 192), blocks=(1, 1, 1)),
    "cifar-32x2": Architecture(channels=3, size=32, widths=(32, 64, 128), blocks=(2, 2, 2)),
    "cifar-48-full": Architecture(channels=3, size=32, widths=(48, 96, 192), blocks=(1, 1, 1), full_resolution=16),
    "cifar-40-deep": Architecture(channels=3, size=32, widths=(40, 96, 192), blocks=(1, 2, 1)),
}


def build(architecture: Architecture) -> nn.Module:
    """Return the network with fresh weights; it takes pixels in [0, 1] plus noise, unclipped, and returns logits."""
    require_torch()
    from torch import Tensor, nn

    class Center(nn.Module):
        """Maps pixels from [0, 1] to [-1, 1], so that padding with zeros means grey."""

        def forward(self, pixels: Tensor) -> Tensor:
            return pixels * 2.0 - 1.0

    class Residual(nn.Module):
        """x + f(x), then a rectifier."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.first = unit(width, width, 3, 1)
            self.second = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
            self.rectifier = nn.ReLU()

        def forward(self, features: Tensor) -> Tensor:
            out: Tensor = self.rectifier(features + self.second(self.first(features)))
            return out

    def unit(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
        conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())

    layers: list[nn.Module] = [Center()]
    inputs = architecture.channels
    if architecture.full_resolution:
        layers.append(unit(inputs, architecture.full_resolution, 3, 1))
        inputs = architecture.full_resolution
    for stage, (width, blocks) in enumerate(zip(architecture.widths, architecture.blocks, strict=True)):
        layers.append(unit(inputs, width, 4 if stage == 0 else 3, 2))
        layers.extend(Residual(width) for _ in range(blocks))
        inputs = width
    layers.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, architecture.num_classes)])
    return nn.Sequential(*layers)


def multiply_adds(model: nn.Module, architecture: Architecture) -> int:
    """Count the multiply-adds of convolutions and linear layers for one image."""
    require_torch()
    import torch
    from torch import Tensor, nn

    total = 0

    def record(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        weight = next(layer.parameters())
        total += weight.numel() * output[0].numel() // weight.shape[0]

    hooks = [
        layer.register_forward_hook(record) for layer in model.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))
    ]
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        model(torch.zeros(1, architecture.channels, architecture.size, architecture.size))
    for hook in hooks:
        hook.remove()
    model.train(was_training)
    return total
