"""Networks ready to certify: shipped weights, a user's checkpoint, and faster forms of the same network."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ccfs.images.networks import Architecture, build
from ccfs.images.torch import extra, require_torch

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ZOO", "folded", "load_checkpoint", "load_shipped", "shipped_names"]

ZOO = Path(__file__).resolve().parent / "zoo"


def shipped_names() -> tuple[str, ...]:
    """Return the names of the networks in the package."""
    return tuple(sorted(path.parent.name for path in ZOO.glob("*/card.json")))


def load_shipped(name: str, *, folder: Path = ZOO) -> nn.Module:
    """Load a shipped network in evaluation mode; refuse weights whose SHA-256 is not the one on the card."""
    require_torch()
    card_path, weights = folder / name / "card.json", folder / name / "weights.safetensors"
    if not card_path.is_file() or not weights.is_file():
        raise ValueError(f"`name` must be one of {', '.join(shipped_names()) or '(none shipped)'}, got {name!r}.")
    card = json.loads(card_path.read_text(encoding="utf-8"))
    content = weights.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != card["sha256"]:
        raise ValueError(f"{weights} has SHA-256 {found}, its card says {card['sha256']}: it is not loaded.")
    model = build(Architecture.of(card["architecture"]))
    model.load_state_dict(extra("safetensors.torch", "safetensors").load(content))
    return model.eval()


def load_checkpoint(path: Path, *, arch: str | None = None) -> nn.Module:
    """Load a public checkpoint `{"arch": ..., "state_dict": ...}` without running anything stored in it.

    Known architectures: `cifar_resnet110` and other depths 6 n + 2 (`cifar_resnet20`, ...), with the public smoothing
    code's normalisation in front. Parameter names may carry a `module.` prefix.

    Args:
        path: the file.
        arch: overrides the name stored in the file.
    """
    require_torch()
    import torch

    from ccfs.images.resnet import cifar_resnet

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


def folded(model: nn.Module) -> nn.Module:
    """Return a copy with batch normalisation folded into convolutions and channels-last weights.

    It computes the same function up to rounding; a certificate is about the copy that was sampled.
    """
    require_torch()
    import torch

    if any(part.training for part in model.modules()):
        raise ValueError("`model` must be in evaluation mode: call model.eval() first.")
    copied = copy.deepcopy(model)
    _fold_children(copied)
    for parameter in copied.parameters():
        parameter.requires_grad_(False)
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return copied.eval()


def _fold_children(parent: nn.Module) -> None:
    """Fold each normalisation that directly follows a convolution: in a Sequential, or named conv1, bn1 and so on."""
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
