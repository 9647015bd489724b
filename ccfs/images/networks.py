"""Networks for noisy images: our architectures, the public CIFAR ResNet, shipped weights and checkpoints."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ccfs.certificates import checks
from ccfs.images.torch import extra, require_torch

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "ARCHITECTURES",
    "ZOO",
    "Architecture",
    "build",
    "cifar_resnet",
    "load_checkpoint",
    "load_shipped",
    "multiply_adds",
    "shipped_names",
]


ZOO = Path(__file__).resolve().parent / "zoo"
# Channel means and deviations of CIFAR-10 as in the public smoothing code. A checkpoint works with these only.
_MEAN = (0.4914, 0.4822, 0.4465)
_DEVIATION = (0.2023, 0.1994, 0.2010)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A small residual network: a stem that halves the image, then one stage of residual blocks per width.

    Noise of scale 0.25 hides fine detail, so most work is done at half resolution and below.
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
        """Return the description as values for a card."""
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
    """Return the network with fresh weights.

    It maps pixels in [0, 1] plus noise, not clipped, to logits.
    """
    require_torch()
    from torch import Tensor, nn

    class Center(nn.Module):
        """Maps pixels from [0, 1] to [-1, 1], so that padding with zeros is padding with grey."""

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
    """Return the multiply-adds of convolutions and linear layers per image."""
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


def cifar_resnet(depth: int, num_classes: int = 10) -> nn.Module:
    """Return the public CIFAR ResNet behind its normalisation, so that released checkpoints load here.

    Args:
        depth: 6 n + 2, such as 20 or 110. The network's parameters are under `body`, named as in public checkpoints.
        num_classes: number of labels.
    """
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
        """Subtracts the channel means, divides by the channel deviations, then calls the network."""

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


def shipped_names() -> tuple[str, ...]:
    """Return the names of the networks in the package."""
    return tuple(sorted(path.parent.name for path in ZOO.glob("*/card.json")))


def load_shipped(name: str, *, folder: Path = ZOO) -> nn.Module:
    """Load a shipped network in evaluation mode. Weights whose SHA-256 differs from the card are refused."""
    require_torch()
    card_path, weights = folder / name / "card.json", folder / name / "weights.safetensors"
    if not card_path.is_file() or not weights.is_file():
        raise ValueError(f"`name` must be one of {', '.join(shipped_names()) or '(none shipped)'}, got {name!r}.")
    card = json.loads(card_path.read_text(encoding="utf-8"))
    content = weights.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != card["sha256"]:
        raise ValueError(f"{weights} has SHA-256 {found}, its card says {card['sha256']}. It is not loaded.")
    model = build(Architecture.of(card["architecture"]))
    model.load_state_dict(extra("safetensors.torch", "safetensors").load(content))
    return model.eval()


def load_checkpoint(path: Path, *, arch: str | None = None) -> nn.Module:
    """Load a public checkpoint `{"arch": ..., "state_dict": ...}` without running anything stored in it.

    The known architectures are `cifar_resnet110` and other depths 6 n + 2, behind the normalisation of the public
    smoothing code. Parameter names may have the prefix `module.`.

    Args:
        path: the file.
        arch: name of the architecture, instead of the one in the file.
    """
    require_torch()
    import torch

    if not path.is_file():
        raise ValueError(f"`path` must be a checkpoint file, {path} does not exist.")
    saved = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(saved, dict) or "state_dict" not in saved:
        raise ValueError(f"{path} must hold a dictionary with `arch` and `state_dict`.")
    name = arch if arch is not None else saved.get("arch")
    depth = str(name).removeprefix("cifar_resnet")
    if not depth.isdigit():
        raise ValueError(f"`arch` must be cifar_resnet20, ..., cifar_resnet110, got {name!r}.")
    state = {key.replace("module.", ""): value for key, value in saved["state_dict"].items()}
    # The public code saves Sequential(NormalizeLayer, network), so the network's names start with "1.".
    state = {key.removeprefix("1."): value for key, value in state.items() if not key.startswith("0.")}
    model = cifar_resnet(int(depth))
    model.get_submodule("body").load_state_dict(state)
    return model.eval()
