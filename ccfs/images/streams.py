"""Gaussian noise of one image for one purpose. Its values do not depend on the batch size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.runtime.streams import stream_key

__all__ = ["CHUNK", "ESTIMATION", "SELECTION", "NoiseReader", "NoiseStream"]

SELECTION = "selection"
ESTIMATION = "estimation"
# Part of what every stored count depends on: another chunk size would give other noise.
CHUNK = 32
# Part of every key. Whoever changes the derivation must change this too, or old counts would pass for new ones.
_DERIVATION = "ccfs-image-noise-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseStream:
    """Standard normals for proposals 0, 1, 2, ... of one image and one purpose.

    Proposals come in chunks of 32. Philox draws chunk c from counter c * 2**128 of the stream's key, so chunks never
    overlap and none depends on another. The 128-bit key is derived from base seed, image index and purpose by SHA-256.

    *Assumes* that these pseudo-random single-precision numbers stand for the independent Gaussian proposals of the
    theorems.
    """

    seed: int
    index: int
    purpose: str
    dimension: int

    def __post_init__(self) -> None:
        checks.count("seed", self.seed)
        checks.count("index", self.index)
        checks.count("dimension", self.dimension, minimum=1)
        if not isinstance(self.purpose, str):
            raise TypeError(f"`purpose` must be a string, got {self.purpose!r}.")

    @property
    def key(self) -> int:
        """The 128-bit key of the stream."""
        return stream_key(_DERIVATION, str(self.seed), str(self.index), self.purpose)

    def chunk(self, position: int) -> NDArray[np.float32]:
        """Return the noise of proposals 32 * position to 32 * position + 31, shape (32, dimension)."""
        out = np.empty((CHUNK, self.dimension), dtype=np.float32)
        _draw(self.key, checks.count("position", position), out)
        return out

    def reader(self) -> NoiseReader:
        """Return a reader at proposal 0."""
        return NoiseReader(self)


class NoiseReader:
    """Reads the proposals of a stream in order, in batches of any size."""

    def __init__(self, stream: NoiseStream) -> None:
        self._key, self._next = stream.key, 0
        self._rest = np.empty((0, stream.dimension), dtype=np.float32)

    def fill(self, out: NDArray[np.float32]) -> None:
        """Write the noise of the next len(out) proposals into `out`.

        Args:
            out: contiguous array of shape (proposals, dimension).
        """
        done = min(len(self._rest), len(out))
        out[:done] = self._rest[:done]
        self._rest = self._rest[done:]
        while done < len(out):
            if len(out) - done >= CHUNK:
                _draw(self._key, self._next, out[done : done + CHUNK])
                done += CHUNK
            else:
                # Chunks are drawn whole. What this batch does not need waits for the next one.
                chunk = np.empty((CHUNK, out.shape[1]), dtype=np.float32)
                _draw(self._key, self._next, chunk)
                wanted = len(out) - done
                out[done:], self._rest = chunk[:wanted], chunk[wanted:]
                done = len(out)
            self._next += 1


def _draw(key: int, position: int, out: NDArray[np.float32]) -> None:
    generator = np.random.Generator(np.random.Philox(key=key, counter=position << 128))
    generator.standard_normal(dtype=np.float32, out=out)
