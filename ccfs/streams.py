"""Counter-based random streams, keyed by what they are for, never by who draws from them or when."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ccfs.certificates import checks

__all__ = ["Purpose", "Streams"]

# Part of every key: a change of the derivation must change this, so that old records are not taken for new ones.
_DERIVATION = "ccfs-streams-1"


class Purpose(Enum):
    """What a stream is used for. No two purposes share one."""

    PROPOSAL = "proposal"
    SHIFT = "shift"
    CONTROLLER = "controller"
    TRANSITION = "transition"


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The generators of one trial: Philox keyed by SHA-256 of (root seed, arm, trial, purpose).

    The same trial gives the same numbers on any executor, and a retried trial reruns the same key: redrawing a trial
    that failed to finish would bias the bound. An arm and its attacked versions share the proposal stream, so that a
    zero shift reproduces the nominal trace byte for byte.
    """

    root: int
    arm: str
    trial: int

    def __post_init__(self) -> None:
        checks.count("root", self.root)
        checks.count("trial", self.trial)
        if not isinstance(self.arm, str):
            raise TypeError(f"`arm` must be a string, got {self.arm!r}.")

    def key(self, purpose: Purpose) -> int:
        """Return the 128-bit key of one purpose."""
        fields = (_DERIVATION, str(self.root), self.arm, str(self.trial), purpose.value)
        # Length before each field: no two different tuples give the same text.
        text = "".join(f"{len(field.encode())}:{field}" for field in fields)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")

    def generator(self, purpose: Purpose) -> np.random.Generator:
        """Return a fresh generator at the beginning of one purpose's stream."""
        return np.random.Generator(np.random.Philox(key=self.key(purpose)))

    def reset_seed(self) -> int:
        """Return the environment's seed for an initial-law draw, below 2**32 (Safety-Gymnasium takes no greater)."""
        return int(self.generator(Purpose.TRANSITION).integers(2**32, dtype=np.uint64))
