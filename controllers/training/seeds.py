"""Random streams of training, keyed by seed, epoch and purpose, so that an epoch can be rerun from its number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

__all__ = ["EVALUATION_SEED_LIMIT", "TRAINING_SEED_HIGH", "TRAINING_SEED_LOW", "reset_seeds", "stream"]

EVALUATION_SEED_LIMIT: Final = 2**31
"""Training never uses reset seeds below this. Take evaluation cohorts from there."""
TRAINING_SEED_LOW: Final = 2**31
TRAINING_SEED_HIGH: Final = 2**32 - 1

_PURPOSES: Final = {"weights": 0, "noise": 1, "order": 2, "reset": 3}


def stream(seed: int, epoch: int, purpose: str) -> np.random.Generator:
    """Return the counter-based generator of one purpose in one epoch: weights, noise, order or reset."""
    # These are not the keys of `ccfs.runtime.streams`. The shipped agents were trained with them, and a resumed run
    # must continue with the same numbers.
    words = np.random.SeedSequence([seed, epoch, _PURPOSES[purpose]]).generate_state(2, np.uint64)
    return np.random.Generator(np.random.Philox(key=words))


def reset_seeds(seed: int, epoch: int) -> Iterator[int]:
    """Yield the environment reset seeds of one epoch, all in [2**31, 2**32)."""
    rng = stream(seed, epoch, "reset")
    while True:
        yield int(rng.integers(TRAINING_SEED_LOW, TRAINING_SEED_HIGH, endpoint=True))
