"""Hashes of observations, public steps, files and source: one place that fixes which bytes stand for what."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["canonical_json", "chain_start", "chain_step", "file_digest", "observation_digest", "text_digest"]

# Part of every chain: a change of what is hashed must change this.
_CHAIN = b"ccfs-chain-1"
OBSERVATION_BYTES = 16


def text_digest(text: str) -> str:
    """Return the SHA-256 (hex) of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def canonical_json(value: object) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def observation_digest(observation: NDArray[np.float64]) -> bytes:
    """Return 16 bytes that stand for an observation: dtype, shape and content."""
    array = np.ascontiguousarray(observation)
    head = f"{array.dtype.str}{array.shape}".encode()
    return hashlib.sha256(head + array.tobytes()).digest()[:OBSERVATION_BYTES]


def chain_start(reset_seed: int, observation: bytes) -> bytes:
    """Return the chain's first value, from the reset seed and the first observation's digest."""
    return hashlib.sha256(_CHAIN + struct.pack("<q", reset_seed) + observation).digest()


def chain_step(
    previous: bytes,
    *,
    t: int,
    center: bytes,
    source: str,
    index: int,
    action: bytes | None,
    skipped: str,
    reward: float,
    cost: float | None,
    goal: bool,
    terminated: bool,
    truncated: bool,
    observation: bytes,
) -> bytes:
    """Return the chain's next value, from every public field of a step; vectors as little-endian doubles."""
    fields = (
        struct.pack("<q", t),
        center,
        source.encode(),
        struct.pack("<q", index),
        b"none" if action is None else action,
        skipped.encode(),
        struct.pack("<d", reward),
        b"none" if cost is None else struct.pack("<d", cost),
        struct.pack("<???", goal, terminated, truncated),
        observation,
    )
    # Length before each field: no two different steps give the same bytes.
    return hashlib.sha256(previous + b"".join(struct.pack("<q", len(field)) + field for field in fields)).digest()
