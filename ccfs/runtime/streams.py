"""Random streams whose key says what they are for, so it does not matter who draws from them or when."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from ccfs.certificates import checks

__all__ = ["Purpose", "Streams", "stream_key"]

# Part of every key. Whoever changes the derivation must change this, so that no old record passes for a new one.
_DERIVATION = "ccfs-streams-2"


class Purpose(Enum):
    """What a stream is used for. No two purposes share one."""

    PROPOSAL = "proposal"
    SENSOR = "sensor"
    SHIFT = "shift"
    CONTROLLER = "controller"
    TRANSITION = "transition"


def stream_key(*fields: str) -> int:
    """Return the 128-bit Philox key of a tuple of texts, from their SHA-256.

    >>> stream_key("ab", "c") == stream_key("a", "bc")
    False
    """
    # The length before each field makes sure that no two different tuples give the same text.
    text = "".join([f"{len(field.encode())}:{field}" for field in fields])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


class _Key(ISeedSequence):
    """Gives Philox its key.

    `Philox(key=...)` gives the same numbers, but first reads entropy from the system, which takes twice as long as all
    the rest. A generator made there could also `spawn` others from that entropy, which nobody could repeat.
    """

    def __init__(self, key: int) -> None:
        self._words = np.frombuffer(key.to_bytes(16, "little"), dtype="<u8")

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> NDArray[np.uint64]:
        """Return the two words of the key. Philox asks for nothing else."""
        return self._words


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The generators of one trial: Philox keyed by (protocol, root seed, arm, trial, reset seed, purpose).

    The same trial gives the same numbers on any engine. A repeated trial uses the same key, because redrawing a trial
    that failed to finish would bias the bound. No two protocols share noise, because the key has the protocol's hash.
    An arm and its attacked versions share the streams of noise, so that a zero shift reproduces the nominal trace byte
    for byte.

    Args:
        protocol: the protocol's hash. Without a protocol it is a text that says what draws, such as "wrapper", and
            the root seed alone tells two experiments apart.
        root: root seed of the experiment.
        arm: name of the arm.
        trial: number of the trial.
        reset_seed: the environment's seed of this trial, or None if it is not yet drawn.
    """

    protocol: str
    root: int
    arm: str
    trial: int
    reset_seed: int | None = None

    def __post_init__(self) -> None:
        checks.count("root", self.root)
        checks.count("trial", self.trial)
        if self.reset_seed is not None:
            checks.count("reset_seed", self.reset_seed)
        for name in ("protocol", "arm"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"`{name}` must be a string, got {getattr(self, name)!r}.")

    def key(self, purpose: Purpose) -> int:
        """Return the 128-bit key of one purpose."""
        # The reset seed may itself be drawn, from the TRANSITION stream. So that stream's key cannot contain it.
        is_known = self.reset_seed is not None and purpose is not Purpose.TRANSITION
        seed = str(self.reset_seed) if is_known else "none"
        return stream_key(_DERIVATION, self.protocol, str(self.root), self.arm, str(self.trial), seed, purpose.value)

    def generator(self, purpose: Purpose) -> np.random.Generator:
        """Return a fresh generator at the beginning of one purpose's stream."""
        key = _Key(self.key(purpose))
        return np.random.Generator(np.random.Philox(key))  # type: ignore[arg-type]  # numpy's types miss ISeedSequence

    def drawn(self) -> Streams:
        """Return these streams with a reset seed drawn from the initial law, uniform on [0, 2**32).

        Safety-Gymnasium takes no greater seed.
        """
        seed = int(self.generator(Purpose.TRANSITION).integers(2**32, dtype=np.uint64))
        return Streams(protocol=self.protocol, root=self.root, arm=self.arm, trial=self.trial, reset_seed=seed)
