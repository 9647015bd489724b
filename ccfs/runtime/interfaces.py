"""What a component must offer to take part, by shape alone: controller, verifier, fallback, memory, rule, attack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates.schedule import Schedule
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

    The observation is the environment's own, unchanged (its dtype too); flatten a Dict or Tuple space before wrapping.
    """

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of everything that determines the answers: weights, normaliser, code version."""
        ...

    def reset(self) -> None:
        """Forget the history: a new episode begins."""
        ...

    def center(self, observation: Vector) -> Vector:
        """Return the center of the next proposal block, float64 of the action's shape; called once a step."""
        ...


@runtime_checkable
class Verifier(Protocol):
    """Says which actions may run. Raising, a wrong shape, a dtype other than bool: everything is rejected.

    Assumes: a deterministic function of the public history. It must not read the shift, the clock or a generator:
    the theorem compares two laws that share one verifier.
    """

    def accepts(self, observation: Vector, actions: Vector) -> Flags:
        """Return bool[n] for `actions` of shape (n, d). May be called twice a step: keep memory in `observe`."""
        ...


@runtime_checkable
class Fallback(Protocol):
    """One entry of the fallback library, asked when no proposal was accepted. Same assumption as the verifier."""

    def action(self, observation: Vector, center: Vector) -> Vector:
        """Return one action, float64 of shape (d,). `center` is the controller's (clipped), never the shifted one."""
        ...


@runtime_checkable
class Observer(Protocol):
    """Optional: a verifier or fallback with memory. One object in several places is told once a step."""

    def reset(self) -> None:
        """Forget the history: a new episode begins."""
        ...

    def observe(self, observation: Vector) -> None:
        """Take in the observation of a new step; called exactly once a step, before anything else is asked.

        After raising, the component is treated as broken until the next `reset`: a verifier rejects everything, a
        fallback is skipped.
        """
        ...


@runtime_checkable
class ShiftRule(Protocol):
    """An adversary: chooses the shift of the next block's center before the block is drawn.

    It sees a copy of the public pre-block history, how large a shift its own ledger still accepts, and its own random
    stream; never the proposal or transition stream.
    """

    def reset(self) -> None:
        """Forget the history: a new episode begins."""
        ...

    def shift(self, history: PublicHistory, rng: np.random.Generator, *, allowance: float) -> Vector:
        """Return the shift, float64 of the center's shape, of Euclidean norm at most `allowance`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShiftRecord:
    """One line of the private log: what was added to the center, what it cost, and the energy spent so far."""

    t: int
    shift: Vector
    energy: float
    spent: float


class CausalAttack(Protocol):
    """What the wrapper asks of an attack: commit the shift of a step before the step's block is drawn."""

    @property
    def schedule(self) -> Schedule:
        """The schedule by which shifts are charged."""
        ...

    @property
    def last(self) -> ShiftRecord | None:
        """The last committed shift, None before the first."""
        ...

    def begin(self, rng: np.random.Generator) -> None:
        """Begin a trajectory with the attack's own stream and nothing spent."""
        ...

    def commit(self, t: int, horizon: int, observation: Vector, center: Vector) -> Vector:
        """Return the committed shift of step `t`. Raises, before anything is drawn, if there is none."""
        ...

    def publish(self, step: PublicStep) -> None:
        """Take in a finished step, as everybody saw it."""
        ...
