"""The public history that a shift rule may read: everything before the current block, and nothing private."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

__all__ = ["PublicHistory", "PublicPast", "PublicStep", "Source"]


class Source(Enum):
    """Who supplied the action of a step."""

    PROPOSAL = "proposal"
    FALLBACK = "fallback"
    ABSTAIN = "abstain"


# Not frozen, because one is made at every step and a frozen dataclass takes five times as long. It is no tuple either,
# because the field `index` would hide the tuple's own method. Whoever may not change a step gets a copy of it.
@dataclass(slots=True, eq=False)
class PublicStep:
    """One finished step as everybody saw it. `center` is the controller's own (clipped), never the shifted one.

    `observation` is what the decision was based on. `index` is that of the proposal or fallback, -1 on abstention.
    `action` is None on abstention, and `cost` is None if the environment reports none.
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


class PublicPast(Sequence[PublicStep]):
    """The finished steps of a trial up to the moment of the call to `so_far`. It grows without being copied."""

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
        """Return the past as it is now. Later steps do not appear in it."""
        return PublicPast(self._steps)


class PublicHistory(NamedTuple):
    """What is public when step `t` begins: the finished steps, the current observation and the current center.

    A shift rule gets its own copy of everything, so a change that it makes reaches nobody else.
    """

    t: int
    horizon: int
    observation: NDArray[np.float64]
    center: NDArray[np.float64]
    steps: Sequence[PublicStep]
