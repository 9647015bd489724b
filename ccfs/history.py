"""The public history that a shift rule may read: everything before the current block, and nothing private."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ccfs.selection import Source

__all__ = ["PublicHistory", "PublicStep"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicStep:
    """One finished step as everybody saw it. `center` is the controller's own (clipped), never the shifted one.

    `observation` is the one the decision was made on; `action` is None on abstention; `cost` is None when the
    environment reports none.
    """

    t: int
    observation: NDArray[np.float64]
    center: NDArray[np.float64]
    source: Source
    index: int
    action: NDArray[np.float64] | None
    skipped: tuple[str, ...]
    reward: float
    cost: float | None
    goal: bool
    terminated: bool
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicHistory:
    """What is public when step `t` begins: the finished steps, the current observation and the current center.

    A shift rule gets its own copy of each record: what it does to the copy reaches nobody.
    """

    t: int
    horizon: int
    observation: NDArray[np.float64]
    center: NDArray[np.float64]
    steps: tuple[PublicStep, ...]
