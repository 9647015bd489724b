"""Gaussian noise of one image for one purpose. No value depends on the batch size, the division of work or the device.

Philox gives 64-bit words at any place of a stream. On a CPU numpy's compiled Philox draws them. On any other device
the same integers come from torch operations, so nothing is copied there. Box-Muller turns them into normals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.images.torch import require_torch
from ccfs.runtime.streams import stream_key

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DERIVATION", "ESTIMATION", "SELECTION", "NoiseReader", "NoiseStream", "philox_words"]

SELECTION = "selection"
ESTIMATION = "estimation"
# Part of every key and of every stored count. Whoever changes the derivation must change this too, or old counts would
# pass for new ones.
DERIVATION = "ccfs-image-noise-2"

# Philox4x64-10 (Salmon and others, 2011): multipliers and key increments as signed 64-bit numbers.
_MULTIPLIERS = (0xD2E7470EE14C6C93 - 2**64, 0xCA5A826395121157 - 2**64)
_INCREMENTS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_WORDS = 4  # 64-bit words per counter
_NORMALS = 8  # two halves of a word give two normals
_LOW = 0xFFFFFFFF
# Floats per group on a CPU. A group stays in the cache, and it is large enough that calling torch costs little.
_GROUP = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseStream:
    """Standard normals for proposals 0, 1, 2, ... of one image and one purpose.

    Proposal p takes the Philox counters from p * ceil(dimension / 8) on, so any proposal can be drawn alone. The
    128-bit key is derived from run, base seed, image index and purpose by SHA-256. The first half of a proposal's
    32-bit numbers gives radii (31 bits), the second half gives angles (32 bits). No normal is larger than 6.67.

    *Assumes* that these pseudo-random single-precision numbers stand for the independent Gaussian proposals of the
    theorems. The integers are equal on every device. Logarithm, sine and cosine may differ between devices in the last
    bits.

    Args:
        run: digest of what is counted, so that no two runs share noise. Without a run, a text that says who draws.
        seed: base seed.
        index: index of the image.
        purpose: what the noise is for, such as "selection".
        dimension: numbers per proposal.
    """

    run: str
    seed: int
    index: int
    purpose: str
    dimension: int

    def __post_init__(self) -> None:
        checks.count("seed", self.seed)
        checks.count("index", self.index)
        checks.count("dimension", self.dimension, minimum=1)
        for name in ("run", "purpose"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"`{name}` must be a string, got {getattr(self, name)!r}.")

    @property
    def key(self) -> int:
        """The 128-bit key of the stream."""
        return stream_key(DERIVATION, self.run, str(self.seed), str(self.index), self.purpose)

    @property
    def blocks(self) -> int:
        """Philox counters per proposal."""
        return -(-self.dimension // _NORMALS)

    def words(self, start: int, rows: int) -> NDArray[np.uint64]:
        """Return the random words of proposals from `start` on, drawn by numpy, shape (rows, 4 * blocks)."""
        return _words(self.generator(start), rows, self.blocks)

    def generator(self, start: int) -> np.random.Philox:
        """Return numpy's Philox at the first word of proposal `start`."""
        return np.random.Philox(key=self.key, counter=checks.count("start", start) * self.blocks)

    def words_on(self, start: int, rows: int, device: str) -> Tensor:
        """Return the same words as a signed int64 tensor, computed on the device."""
        first = checks.count("start", start) * self.blocks
        return philox_words(self.key, first, rows * self.blocks, device).view(rows, self.blocks * _WORDS)

    def reader(self, start: int = 0, *, device: str = "cpu") -> NoiseReader:
        """Return a reader at proposal `start`, for tensors on `device`."""
        return NoiseReader(self, start, device)


class NoiseReader:
    """Reads the proposals of a stream in order, in batches of any size."""

    def __init__(self, stream: NoiseStream, start: int, device: str) -> None:
        require_torch()
        import torch

        self._stream, self._device = stream, device
        self._width = stream.blocks * _NORMALS
        # On a CPU a vector function may treat the rest of an array in another way than its bulk. Groups begin at
        # multiples of their size and are always drawn whole, so a proposal is computed in the same way in any batch.
        self._group = max(1, _GROUP // self._width) if device == "cpu" else 1
        first = checks.count("start", start)
        self._next = first - first % self._group
        self._rest = torch.empty((0, stream.dimension))
        self._skip = first - self._next
        self._generator = stream.generator(self._next)
        self._scratch = (self._rest, self._rest, self._rest)

    def fill(self, out: Tensor) -> None:
        """Write the noise of the next len(out) proposals into `out`.

        Args:
            out: single-precision tensor of shape (proposals, dimension) on the reader's device.
        """
        if self._device != "cpu":
            self._draw(out)
            return
        import torch

        done = 0
        while done < len(out):
            if not len(self._rest):
                whole = self._skip == 0 and len(out) - done >= self._group
                target = out[done : done + self._group] if whole else torch.empty((self._group, out.shape[1]))
                self._draw(target)
                if whole:
                    done += self._group
                    continue
                self._rest, self._skip = target[self._skip :], 0
            taken = min(len(self._rest), len(out) - done)
            out[done : done + taken] = self._rest[:taken]
            self._rest = self._rest[taken:]
            done += taken

    def _draw(self, out: Tensor) -> None:
        import torch

        rows = len(out)
        if self._device == "cpu":
            # Counters of consecutive proposals are consecutive, so one generator draws them all.
            words = torch.from_numpy(_words(self._generator, rows, self._stream.blocks).view(np.int64))
        else:
            words = self._stream.words_on(self._next, rows, self._device)
            self._next += rows
        normals = out if out.shape[1] == self._width else out.new_empty((rows, self._width))
        if len(self._scratch[0]) != rows:
            half = (rows, self._width // 2)
            self._scratch = (out.new_empty(half), out.new_empty(half), out.new_empty(half))
        _box_muller(words.view(torch.int32), normals, self._scratch)
        if normals is not out:
            out.copy_(normals[:, : out.shape[1]])


def _words(generator: np.random.Philox, rows: int, blocks: int) -> NDArray[np.uint64]:
    drawn: NDArray[np.uint64] = generator.random_raw(rows * blocks * _WORDS)
    return drawn.reshape(rows, blocks * _WORDS)


def _box_muller(integers: Tensor, out: Tensor, scratch: tuple[Tensor, Tensor, Tensor]) -> None:
    """Turn int32[rows, width] into normals. Radii come from the first half of a row, angles from the second."""
    import torch

    half = out.shape[1] // 2
    radius, angle, cosine = scratch
    # u = (k + 1/2) / 2^31 is in (0, 1]. Small u keep all their bits, so the tail is not cut before 6.67.
    radius.copy_(integers[:, :half].bitwise_and_(0x7FFFFFFF))
    radius.add_(0.5).mul_(2.0**-31).log_().mul_(-2.0).sqrt_()
    angle.copy_(integers[:, half:]).mul_(math.pi * 2.0**-31)
    torch.mul(torch.cos(angle, out=cosine), radius, out=out[:, :half])
    torch.mul(angle.sin_(), radius, out=out[:, half:])


def philox_words(key: int, counter: int, blocks: int, device: str) -> Tensor:
    """Return int64[blocks, 4] on a device: the bits that `numpy.random.Philox(key, counter)` gives.

    Args:
        key: 128 bits.
        counter: below 2^62. As in numpy, the first block belongs to the counter after it.
        blocks: how many consecutive counters.
        device: a torch device, such as "cuda".
    """
    require_torch()
    import torch

    if not 0 <= counter < 2**62 or not 0 <= key < 2**128:
        raise ValueError(f"`counter` must be in [0, 2^62) and `key` in [0, 2^128), got {counter} and {key}.")
    x = torch.arange(counter + 1, counter + 1 + blocks, dtype=torch.int64, device=device)
    state = (x, *(torch.zeros_like(x) for _ in range(3)))
    keys = [key % 2**64, key >> 64]
    for _ in range(_ROUNDS):
        high0, low0 = _product(state[0], _MULTIPLIERS[0])
        high1, low1 = _product(state[2], _MULTIPLIERS[1])
        state = (high1 ^ state[1] ^ _signed(keys[0]), low1, high0 ^ state[3] ^ _signed(keys[1]), low0)
        keys = [(value + step) % 2**64 for value, step in zip(keys, _INCREMENTS, strict=True)]
    return torch.stack(state, dim=1)


def _product(values: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """Return the high and the low 64 bits of unsigned 64-bit products. Signed tensors carry the bits."""
    # torch has no unsigned 128-bit product, so the high half is added up from four products of 32-bit halves.
    a0, a1 = values & _LOW, _upper(values)
    m0, m1 = multiplier & _LOW, (multiplier >> 32) & _LOW
    middle = a1 * m0 + _upper(a0 * m0)
    other = a0 * m1 + (middle & _LOW)
    return a1 * m1 + _upper(middle) + _upper(other), values * multiplier


def _upper(values: Tensor) -> Tensor:
    """Return the upper 32 bits. The shift of a signed number copies its sign, so the copies are cut off."""
    return (values >> 32) & _LOW


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
