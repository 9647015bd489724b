"""The public history that a shift rule may read: everything before the current block, and nothing private."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ccfs.runtime.selection import Source

__all__ = ["PublicHistory", "PublicPast", "PublicStep"]


class PublicStep(NamedTuple):  # tuples: they are made at every step, and frozen dataclasses take three times as long
    """One finished step as everybody saw it. `center` is the controller's own (clipped), never the shifted one.

    `observation` is the one the decision was made on; `action` is None on abstention; `cost` is None when the
    environment reports none.
    """

    t: int
    observation: NDArray[np.float64]
    center: NDArray[np.float64]
    source: Source
    index: int  # type: ignore[assignment]  # the word of the record; a tuple's own is not used
    action: NDArray[np.float64] | None
    skipped: tuple[str, ...]
    reward: float
    cost: float | None
    goal: bool
    terminated: bool
    truncated: bool


class PublicPast(Sequence[PublicStep]):
    """The finished steps of a trajectory, up to the moment when it was asked for. It grows without being copied."""

    def __init__(self, steps: list[PublicStep] | None = None) -> None:
        self._steps = [] if steps is None else steps
        self._length = len(self._steps)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> PublicStep: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[PublicStep, ...]: ...
    def __getitem__(self, index: int | slice) -> PublicStep | tuple[PublicStep, ...]:
        places = range(self._length)[index]
        return self._steps[places] if isinstance(places, int) else tuple(self._steps[place] for place in places)

    def append(self, step: PublicStep) -> None:
        """Add the step that has just finished."""
        self._steps.append(step)
        self._length = len(self._steps)

    def so_far(self) -> PublicPast:
        """Return the past as it is now; later steps do not appear in it."""
        return PublicPast(self._steps)


class PublicHistory(NamedTuple):
    """What is public when step `t` begins: the finished steps, the current observation and the current center.

    A shift rule gets its own copy of each record: what it does to the copy reaches nobody.
    """

    t: int
    horizon: int
    observation: NDArray[np.float64]
    center: NDArray[np.float64]
    steps: Sequence[PublicStep]
