"""3x3 convolutions of wide layers with a quarter of the multiplications: Winograd's F(4x4, 3x3) as matrix products."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["LEAST", "Winograd", "shortcut"]

# With fewer channels the transforms cost as much as the multiplications that they save.
LEAST = 96
_IMAGES = 125  # at a time, so that the scratch memory is a few megabytes for any batch
# Lavin and Gray, 2016, section 4: values at the points 0, 1, -1, 2, -2 and infinity.
_ENTER = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
_KERNEL = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
_LEAVE = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))


class _Scratch(threading.local):
    """Memory of this thread that all layers share. Fresh memory in every call would cost more than it computes."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor with any content. It is valid until the name is taken again."""
        import torch

        size = math.prod(shape)
        if name not in self._kept or len(self._kept[name]) < size:
            # A tensor of inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                self._kept[name] = torch.empty(size)
        return self._kept[name][:size].view(shape)


_scratch = _Scratch()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """Four outputs along one side: what they read, and the matrices that lead to the six points and back."""

    reads: slice
    writes: slice
    enter: Tensor
    leave: Tensor

    @classmethod
    def along(cls, size: int) -> list[_Tile]:
        """Return the tiles of a side. The image is padded with zeros, so columns that meet padding are left out."""
        import torch

        enter, leave, tiles = torch.tensor(_ENTER).float(), torch.tensor(_LEAVE).float(), []
        for first in range(0, size, 4):
            low, high, stop = max(0, first - 1), min(size, first + 5), min(size, first + 4)
            inside = enter[:, low - first + 1 : high - first + 1].contiguous()
            tiles.append(
                _Tile(
                    reads=slice(low, high),
                    writes=slice(first, stop),
                    enter=inside,
                    leave=leave[: stop - first].contiguous(),
                )
            )
        return tiles


class Winograd:
    """A convolution with kernel 3, stride 1 and padding 1 on square images, without its rectifier.

    It computes the same function as the layer up to rounding. The rounding error is about ten times as large.

    Args:
        layer: the convolution, with a bias.
        size: pixels per side.
    """

    def __init__(self, layer: nn.Conv2d, size: int) -> None:
        import torch

        if not self.suits(layer) or layer.bias is None:
            raise ValueError(f"`layer` must have kernel 3, stride 1, padding 1, one group and a bias, got {layer}.")
        kernel = torch.tensor(_KERNEL, dtype=torch.float64)
        weight = torch.einsum("ia,jb,ocab->ijco", kernel, kernel, layer.weight.detach().double())
        self._weight = weight.reshape(36, layer.in_channels, layer.out_channels).float().contiguous()
        self.bias: Tensor = layer.bias
        self._tiles = _Tile.along(size)

    @staticmethod
    def suits(layer: nn.Conv2d) -> bool:
        """Return whether this class can compute the layer."""
        shape = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups, layer.padding_mode)
        return shape == ((3, 3), (1, 1), (1, 1), (1, 1), 1, "zeros") and layer.bias is not None

    def __call__(self, features: Tensor) -> Tensor:
        """Return the sum without bias, from and to (rows, columns, images, channels)."""
        import torch

        size, _, images, inputs = features.shape
        outputs, count = self._weight.shape[2], len(self._tiles)
        points = _scratch.take("points", 6, 6, count, count, images * inputs)
        lines = _scratch.take("lines", count, 6, size, images * inputs)
        for row, down in enumerate(self._tiles):
            torch.mm(down.enter, features[down.reads].flatten(1), out=lines[row].view(6, -1))
            for column, across in enumerate(self._tiles):
                torch.matmul(across.enter, lines[row][:, across.reads], out=points[:, :, row, column])
        products = _scratch.take("products", 6, 6, count, count, images * outputs)
        flat = (36, count * count * images)
        torch.bmm(points.view(*flat, inputs), self._weight, out=products.view(*flat, outputs))
        lines = _scratch.take("lines", count, 6, size, images * outputs)
        found = features.new_empty((size, size, images, outputs))
        for row, down in enumerate(self._tiles):
            for column, across in enumerate(self._tiles):
                torch.matmul(across.leave, products[:, :, row, column], out=lines[row][:, across.writes])
            torch.mm(down.leave, lines[row].view(6, -1), out=found[down.writes].flatten(1))
        return found


def shortcut(first: Winograd, second: Winograd, features: Tensor) -> Tensor:
    """Return relu(x + second(relu(first(x)))) for channels-last images (batch, channels, rows, columns)."""
    import torch

    out = torch.empty_like(features, memory_format=torch.channels_last)
    # Equal parts, because products with few rows are slow.
    parts = max(1, math.ceil(len(features) / _IMAGES))
    for part, target in zip(features.chunk(parts), out.chunk(parts), strict=True):
        entering = part.permute(2, 3, 0, 1).contiguous()
        inner = first(entering).add_(first.bias).relu_()
        inner = second(inner).add_(second.bias).add_(entering).relu_()
        target.copy_(inner.permute(2, 3, 0, 1))
    return out
