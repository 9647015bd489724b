"""Networks for noisy images: our architectures, the public CIFAR ResNet, shipped weights and checkpoints."""

from __future__ import annotations

import hashlib
import importlib
import json
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ccfs.certificates import checks
from ccfs.images.torch import extra, first_sentence, require_torch

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = [
    "ARCHITECTURES",
    "ZOO",
    "Architecture",
    "build",
    "cifar_resnet",
    "importable_here",
    "load_checkpoint",
    "load_model",
    "load_shipped",
    "load_weights",
    "multiply_adds",
    "shipped_names",
    "state_of",
]


ZOO = Path(__file__).resolve().parent / "zoo"
# Channel means and deviations of CIFAR-10 as in the public smoothing code. A checkpoint works with these only.
_MEAN = (0.4914, 0.4822, 0.4465)
_DEVIATION = (0.2023, 0.1994, 0.2010)
_SCRIPTS = frozenset({".pt", ".pth", ".ts", ".torchscript"})


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
    from torch import nn

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
    from torch import nn

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
    from torch import nn

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
    model.load_state_dict(extra("safetensors.torch", "torch").load(content))
    return model.eval()


def load_checkpoint(path: Path, *, arch: str | None = None) -> nn.Module:
    """Load a public checkpoint of a CIFAR ResNet without running anything stored in it.

    Known are `cifar_resnet110` and other depths 6 n + 2, behind the normalisation of the public smoothing code. For
    another network use `load_weights` with your own module.

    Args:
        path: the file, in a layout that `state_of` reads.
        arch: name of the architecture, instead of the one in the file.
    """
    state, stored = state_of(path)
    name = arch if arch is not None else stored
    depth = str(name).removeprefix("cifar_resnet")
    if not depth.isdigit():
        raise ValueError(
            f"`arch` must be cifar_resnet20, ..., cifar_resnet110, got {name!r}. For another network give the function "
            "that builds it: --model package.module:factory --checkpoint FILE."
        )
    # The public code saves Sequential(NormalizeLayer, network), so the network's names start with "1.".
    body = {key.removeprefix("1."): value for key, value in state.items() if not key.startswith("0.")}
    model = cifar_resnet(int(depth))
    _load_state(model.get_submodule("body"), body, path)
    return model.eval()


def state_of(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """Return the parameters in a checkpoint, and the architecture that it names. Nothing stored in it is run.

    Known layouts: the parameters alone, or a dictionary with them under `state_dict`, `model_state_dict`, `model`,
    `net`, `network` or `weights`, in a file of torch or of safetensors. The prefix `module.` of parallel training is
    removed.
    """
    require_torch()
    import torch

    if not path.is_file():
        raise ValueError(f"`path` must be a checkpoint file, {path} does not exist.")
    if path.suffix == ".safetensors":
        saved: object = extra("safetensors.torch", "torch").load(path.read_bytes())
    else:
        try:
            saved = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
            raise ValueError(
                f"{path} cannot be read as plain weights: {first_sentence(error)} A file that holds a whole pickled "
                "model is not loaded, because that would run code from it. Save `model.state_dict()`, or export "
                "TorchScript or ONNX."
            ) from None
    arch = None
    for key in ("state_dict", "model_state_dict", "model", "net", "network", "weights"):
        if isinstance(saved, dict) and isinstance(saved.get(key), dict):
            arch = saved.get("arch")
            saved = saved[key]
            break
    if not isinstance(saved, dict) or not saved or not all(isinstance(value, torch.Tensor) for value in saved.values()):
        raise ValueError(f"{path} must hold a dictionary of parameters, or one under `state_dict`.")
    # Only the prefix: a layer may itself be called `module`.
    whole = all(name.startswith("module.") for name in saved)
    state = {name.removeprefix("module.") if whole else name: value for name, value in saved.items()}
    # The normalisation of the public smoothing code has no prefix of its own inside a parallel network.
    state = {name.replace("1.module.", "1.", 1): value for name, value in state.items()}
    return state, arch if isinstance(arch, str) else None


def load_weights(model: nn.Module, path: Path) -> nn.Module:
    """Put the parameters of a checkpoint into a network of yours, and return it in evaluation mode."""
    state, _ = state_of(path)
    _load_state(model, state, path)
    return model.eval()


def _load_state(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise ValueError(f"{path} does not fit the network: {' '.join(line.strip() for line in lines[1:4])}") from None


def load_model(reference: str, *, weights: Path | None = None) -> nn.Module | Callable[[Tensor], object]:
    """Load the network that a text names. This runs code: that of the user's module, or of the TorchScript file.

    Args:
        reference: "package.module:factory", which is called without arguments (or names a module class or a live
            network), a TorchScript file (.pt, .pth, .ts, .torchscript) or an ONNX file (.onnx).
        weights: checkpoint for the network of a factory.
    """
    require_torch()
    import torch

    path = Path(reference)
    if path.suffix == ".onnx" or (path.suffix in _SCRIPTS and ":" not in reference):
        if weights is not None:
            raise ValueError(f"{reference} has its weights inside, so no checkpoint goes with it.")
        return _onnx(path) if path.suffix == ".onnx" else _script(path)
    if ":" not in reference:
        raise ValueError(
            "`model` must be package.module:factory, a TorchScript file (.pt) or an ONNX file (.onnx), got "
            f"{reference!r}."
        )
    target = _imported(reference)
    try:
        made = target if isinstance(target, torch.nn.Module) else target()
    except Exception as error:  # code of the user's own
        raise ValueError(
            f"`model` must name what can be called without arguments and gives a network. {reference!r} raised "
            f"{type(error).__name__}: {first_sentence(error)}"
        ) from error
    if not callable(made):
        raise TypeError(f"{reference} must give a network, got {type(made).__name__}.")
    if isinstance(made, torch.nn.Module):
        return load_weights(made, weights) if weights is not None else made.eval()
    if weights is not None:
        raise TypeError(f"{reference} must give a torch module to put a checkpoint into, got {type(made).__name__}.")
    return made


@contextmanager
def importable_here() -> Iterator[None]:
    """Let modules in the current folder be imported, as Python does for a script."""
    folder = str(Path.cwd())
    added = folder not in sys.path
    if added:
        sys.path.insert(0, folder)
    try:
        yield
    finally:
        if added:
            sys.path.remove(folder)


def _imported(reference: str) -> Callable[[], object]:
    module, _, name = reference.partition(":")
    try:
        with importable_here():
            target: object = importlib.import_module(module)
            for part in name.split("."):
                target = getattr(target, part)
    except (Exception, SystemExit) as error:  # a module of the user's own may do anything when it is imported
        raise ValueError(
            f"`model` must name something that can be imported, got {reference!r}: {error}. Start in the folder of "
            "your module, or install it."
        ) from error
    if not callable(target):
        raise TypeError(f"`model` must name a function, a class or a network, got {reference!r}.")
    return target


def _script(path: Path) -> nn.Module:
    import torch

    if not path.is_file():
        raise ValueError(f"{path} does not exist.")
    try:
        with warnings.catch_warnings():
            # torch announces the end of TorchScript. Whoever has such a file can do nothing about it here.
            warnings.simplefilter("ignore", DeprecationWarning)
            made: nn.Module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise ValueError(
            f"{path} is no TorchScript file: {first_sentence(error)} If it holds weights, use --checkpoint, with "
            "--model package.module:factory for the network that they belong to."
        ) from None
    return made.eval()


def _onnx(path: Path) -> nn.Module:
    """Return an ONNX network as a torch module. Its buffer is the file, so that its digest covers all of it."""
    import torch
    from torch import nn

    if not path.is_file():
        raise ValueError(f"{path} does not exist.")
    runtime = extra("onnxruntime", "onnx")
    content = path.read_bytes()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = torch.get_num_threads()
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime has exceptions of its own for every kind of damage
        raise ValueError(f"{path} is no ONNX network that can be run here: {first_sentence(error)}") from None
    if len(session.get_inputs()) != 1:
        raise ValueError(f"{path} must have one input, got {[item.name for item in session.get_inputs()]}.")
    entry = session.get_inputs()[0]
    if isinstance(entry.shape[0], int):
        raise ValueError(
            f"{path} must take batches of any size, got the input shape {entry.shape}. Export it with a dynamic first "
            "dimension."
        )

    class Onnx(nn.Module):
        """Runs the network with onnxruntime on the CPU."""

        reads_float32 = True
        file: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("file", torch.frombuffer(bytearray(content), dtype=torch.uint8))

        def forward(self, images: Tensor) -> Tensor:
            answer = session.run(None, {entry.name: images.detach().cpu().numpy()})[0]
            return torch.from_numpy(answer)

    return Onnx().eval()
