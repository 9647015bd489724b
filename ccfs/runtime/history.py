"""The public history that a shift rule may read: everything before the current block, and nothing private."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates.schedule import Stage

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

    `observation` is the true observation at the beginning of the step. `reading` is what was read of it, which is the
    same array without a sensor stage. `index` is that of the proposal or fallback, -1 on abstention. `action` has one
    entry per coordinate, or the number of a discrete action. It is None on abstention. `cost` is None if the
    environment reports none.
    """

    t: int
    observation: NDArray[np.float64]
    center: NDArray[np.float64]
    source: Source
    index: int
    action: NDArray[np.float64] | NDArray[np.int64] | None
    skipped: tuple[str, ...]
    reward: float
    cost: float | None
    goal: bool
    terminated: bool
    truncated: bool
    reading: NDArray[np.float64]


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
    """What is public when a stage of step `t` begins: the finished steps, the observation and the stage's center.

    A shift rule gets its own copy of everything, so a change that it makes reaches nobody else.

    Args:
        t: the step, from 0.
        horizon: greatest number of steps.
        observation: the true observation at the beginning of the step.
        center: the center of the block whose shift is asked for. At the sensor stage it is the true observation as one
            vector, at the others the controller's answer.
        steps: the finished steps.
        stage: the stage whose shift is asked for.
        reading: what was read of the observation. None at the sensor stage, where nothing is drawn yet.
        scales: how far each coordinate of the center may be shifted with energy 1, σ / √κ. It is 0 where there is no
            noise, and a shift there is refused. None says that all coordinates are alike.
        stages: the stages at which this rule is asked.
    """

    t: int
    horizon: int
    observation: NDArray[np.float64]
    center: NDArray[np.float64]
    steps: Sequence[PublicStep]
    stage: Stage = Stage.ACTION
    reading: NDArray[np.float64] | None = None
    scales: NDArray[np.float64] | None = None
    stages: tuple[Stage, ...] = (Stage.ACTION,)

    @property
    def blocks_left(self) -> int:
        """How many blocks the rule may still shift, this one included, if the trial goes on to the horizon."""
        return max((self.horizon - self.t) * len(self.stages) - self.stages.index(self.stage), 1)
