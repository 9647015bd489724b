"""The public CIFAR ResNet (depth 6 n + 2), so that released checkpoints load here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccfs.images.torch import require_torch

if TYPE_CHECKING:
    from torch import nn

__all__ = ["cifar_resnet"]

# Channel means and deviations of CIFAR-10 that the public smoothing code normalises with.
_MEAN = (0.4914, 0.4822, 0.4465)
_DEVIATION = (0.2023, 0.1994, 0.2010)


def cifar_resnet(depth: int, num_classes: int = 10) -> nn.Module:
    """Return normalisation followed by the network; its parameters are under `body`, named as in public checkpoints."""
    require_torch()
    import torch
    from torch import Tensor, nn

    if (depth - 2) % 6 != 0 or not depth >= 8:
        raise ValueError(f"`depth` must be 6 n + 2 with n at least 1, got {depth}.")

    class Block(nn.Module):
        """Two 3x3 convolutions with a shortcut."""

        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(outputs)
            self.relu = nn.ReLU()
            self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(outputs)
            self.downsample: nn.Module | None = None
            if stride != 1 or inputs != outputs:
                shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
                self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

        def forward(self, features: Tensor) -> Tensor:
            shortcut = features if self.downsample is None else self.downsample(features)
            hidden = self.relu(self.bn1(self.conv1(features)))
            out: Tensor = self.relu(self.bn2(self.conv2(hidden)) + shortcut)
            return out

    def stage(inputs: int, width: int, stride: int, blocks: int) -> nn.Sequential:
        return nn.Sequential(Block(inputs, width, stride), *(Block(width, width, 1) for _ in range(blocks - 1)))

    class Body(nn.Module):
        """Stem, three stages, pooling, linear layer."""

        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(16)
            self.relu = nn.ReLU()
            blocks = (depth - 2) // 6
            self.layer1 = stage(16, 16, 1, blocks)
            self.layer2 = stage(16, 32, 2, blocks)
            self.layer3 = stage(32, 64, 2, blocks)
            self.avgpool = nn.AvgPool2d(8)
            self.fc = nn.Linear(64, num_classes)

        def forward(self, images: Tensor) -> Tensor:
            hidden = self.relu(self.bn1(self.conv1(images)))
            hidden = self.layer3(self.layer2(self.layer1(hidden)))
            out: Tensor = self.fc(self.avgpool(hidden).flatten(1))
            return out

    class Normalized(nn.Module):
        """Subtracts the channel means and divides by the channel deviations, then asks the network."""

        mean: Tensor
        deviation: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.tensor(_MEAN).view(1, 3, 1, 1))
            self.register_buffer("deviation", torch.tensor(_DEVIATION).view(1, 3, 1, 1))
            self.body = Body()

        def forward(self, images: Tensor) -> Tensor:
            out: Tensor = self.body((images - self.mean) / self.deviation)
            return out

    return Normalized()
