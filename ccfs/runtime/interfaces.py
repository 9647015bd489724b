"""The methods that a controller, verifier, fallback, shift rule or attack must have. No base class is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates.schedule import Schedule, Stage
from ccfs.runtime.history import PublicHistory, PublicStep

__all__ = [
    "CausalAttack",
    "Controller",
    "Fallback",
    "Flags",
    "Observer",
    "ShiftRecord",
    "ShiftRule",
    "Vector",
    "Verifier",
]

Vector: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]


@runtime_checkable
class Controller(Protocol):
    """A deterministic function of the public history since `reset`: memory is allowed, randomness is not.

    The observation has the environment's own dtype and shape. Flatten a Dict or Tuple space before wrapping. With a
    sensor stage it is the noisy reading.
    """

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of everything that determines the answers: weights, normaliser, code version."""
        ...

    def reset(self) -> None:
        """Forget the history, because a new trial begins."""
        ...

    def center(self, observation: Vector) -> Vector:
        """Return the center of the next block. Called once per step.

        For a Box space it is the action, float64 of its shape. For a discrete space it is one score per action (logits,
        Q-values), one group after the other for MultiDiscrete. Without a score stage it may be the action's number.
        """
        ...


@runtime_checkable
class Verifier(Protocol):
    """Says which actions may run. If it raises or returns another shape or dtype than bool[n], it has rejected all.

    Assumes: a deterministic function of the public history. It must not read the shift, the clock or a generator,
    because the theorem compares two laws that share one verifier.
    """

    def accepts(self, observation: Vector, actions: Vector) -> Flags:
        """Return bool[n] for `actions` of shape (n, d). May be called twice per step, so keep memory in `observe`.

        Discrete actions are int64 numbers of shape (n,), MultiDiscrete ones of shape (n, k).
        """
        ...


@runtime_checkable
class Fallback(Protocol):
    """Gives a replacement action when no candidate was accepted. It assumes what the verifier assumes."""

    def action(self, observation: Vector, center: Vector) -> Vector:
        """Return one action, float64 of shape (d,). `center` is the controller's (clipped), never the shifted one.

        For a discrete space it is the number of an action (k numbers for MultiDiscrete), or scores as the center has.
        """
        ...


@runtime_checkable
class Observer(Protocol):
    """Optional: a verifier or fallback with memory. An object in several places is told once per step."""

    def reset(self) -> None:
        """Forget the history, because a new trial begins."""
        ...

    def observe(self, observation: Vector) -> None:
        """Take in the observation of a new step. Called exactly once per step, before any other method.

        A component that raises here counts as broken until the next `reset`. A broken verifier rejects everything,
        and a broken fallback is skipped.
        """
        ...


@runtime_checkable
class ShiftRule(Protocol):
    """Chooses the shift of the next block's center before the block is drawn. `history.stage` says which block it is.

    It gets a copy of the public history, the largest shift that its ledger still accepts, and its own random stream.
    It never gets the proposal stream or the transition stream.
    """

    def reset(self) -> None:
        """Forget the history, because a new trial begins."""
        ...

    def shift(self, history: PublicHistory, rng: np.random.Generator, *, allowance: float) -> Vector:
        """Return the shift, float64 of the center's shape.

        A shift of Euclidean norm at most `allowance` is accepted in every direction of the coordinates that have noise.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShiftRecord:
    """The shifts of one step, their energy, and the energy spent so far.

    `shift` is that of the deciding stage and `sensor` that of the sensor stage. One that the attack does not make is
    None.
    """

    t: int
    shift: Vector | None
    energy: float
    spent: float
    sensor: Vector | None = None


class CausalAttack(Protocol):
    """What the wrapper asks of an attack: commit the shift of a stage before the stage's block is drawn."""

    @property
    def schedule(self) -> Schedule:
        """The schedule by which shifts are charged."""
        ...

    @property
    def last(self) -> ShiftRecord | None:
        """The shifts of the last finished step, None before the first."""
        ...

    @property
    def pending(self) -> ShiftRecord | None:
        """The shifts of a step that has not finished, None if there is none."""
        ...

    def resolve(self, schedule: Schedule) -> None:
        """Take the same schedule with numbers in the place of names."""
        ...

    def begin(self, rng: np.random.Generator) -> None:
        """Begin a trial with the attack's own stream and no energy spent."""
        ...

    def commit(
        self,
        t: int,
        horizon: int,
        observation: Vector,
        center: Vector,
        stage: Stage | None = None,
        reading: Vector | None = None,
    ) -> Vector | None:
        """Return the committed shift of a stage of step `t`, or None if the attack does not shift this stage.

        It raises before anything is drawn.
        """
        ...

    def publish(self, step: PublicStep) -> None:
        """Take in a finished step, as everybody saw it."""
        ...
