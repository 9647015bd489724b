"""The public history that a shift rule may read: everything before the current block, and nothing private."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ccfs.selection import Source

__all__ = ["PublicHistory", "PublicStep"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicStep:
    """One finished step as everybody saw it. `center` is the controller's own, never the shifted one."""

    observation: NDArray[np.float64]
    center: NDArray[np.float64]
    source: Source
    index: int
    action: NDArray[np.float64]
    reward: float
    cost: float
    goal: bool


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
