"""The running observation normaliser of training, and its frozen form."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.actor import FrozenNormalizer
from ccfs.controllers.training.networks import Floats

__all__ = ["RunningNormalizer"]

_CLIP = 5.0
_STD_FLOOR = 0.01


class RunningNormalizer:
    """OmniSafe's `Normalizer` with clip 5. It adds a batch, then normalises it by everything seen so far.

    Sums are kept in float64. OmniSafe's are float32, whose rounding errors grow over ten million observations.
    """

    def __init__(self, mean: NDArray[np.float64], squares: NDArray[np.float64], count: int) -> None:
        self.mean, self.squares, self.count = mean, squares, count

    @classmethod
    def empty(cls, size: int) -> RunningNormalizer:
        """Return a normaliser that has seen nothing."""
        return cls(np.zeros(size), np.zeros(size), 0)

    @property
    def std(self) -> NDArray[np.float64]:
        """Standard deviation, at least 0.01."""
        if not self.count > 1:
            raise ValueError(f"A standard deviation needs two observations, got {self.count}.")
        return np.asarray(np.maximum(np.sqrt(self.squares / (self.count - 1)), _STD_FLOOR), dtype=np.float64)

    def push(self, observations: Floats) -> None:
        """Add a batch, by the pairwise update of Chan, Golub and LeVeque."""
        added = len(observations)
        mean = observations.mean(axis=0, dtype=np.float64)
        squares = ((observations - mean) ** 2).sum(axis=0)
        # Adding squares of differences keeps digits that the difference of two large sums would lose.
        total, step = self.count + added, mean - self.mean
        self.mean = self.mean + step * (added / total)
        self.squares = self.squares + squares + step * step * (self.count * added / total)
        self.count = total

    def normalize(self, observations: Floats) -> Floats:
        """Add a batch and return it normalised, in float32."""
        self.push(observations)
        if self.count <= 1:
            return observations
        scaled = (observations - self.mean.astype(np.float32)) / self.std.astype(np.float32)
        return np.clip(scaled, np.float32(-_CLIP), np.float32(_CLIP))

    def frozen(self) -> FrozenNormalizer:
        """Return the map that a controller keeps."""
        std, size = self.std.astype(np.float32), self.mean.size
        return FrozenNormalizer(mean=self.mean.astype(np.float32), std=std, clip=np.full(size, _CLIP, np.float32))
