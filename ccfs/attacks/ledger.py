"""An odometer with a filter: it counts the energy of committed shifts and refuses the one that would overspend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from ccfs.certificates import checks
from ccfs.certificates.rounding import fraction_lower, fraction_upper
from ccfs.certificates.schedule import NamedSigma, ProposalSchedule, Schedule, Stage, as_schedule
from ccfs.runtime.interfaces import Vector

__all__ = ["ALL", "EnergyLedger", "EnergyRefusedError", "attacked_stages", "energy_limit"]

ALL = "all"
"""Names every stage that has noise."""


class EnergyRefusedError(ValueError):
    """A shift was refused because it would exceed the energy limit; nothing has changed."""


def energy_limit(budget: float, schedule: ProposalSchedule) -> float:
    """Return the energy of the Euclidean budget B under one block: greatest charge times B squared, rounded down."""
    return fraction_lower(Fraction(schedule.charge) * Fraction(checks.nonnegative("budget", budget)) ** 2)


def attacked_stages(schedule: Schedule, stage: str | None) -> tuple[Stage, ...]:
    """Return the stages that an attack shifts: one by its name, every one for "all", the main one for None."""
    if stage is None:
        return (schedule.main,)
    if stage == ALL:
        return schedule.stages
    found = tuple(part for part in schedule.stages if part.value == stage)
    if not found:
        accepted = ", ".join([*(part.value for part in schedule.stages), ALL])
        raise ValueError(f"`stage` must be one with noise in this schedule, {accepted}, got {stage!r}.")
    return found


class EnergyLedger:
    """Counts Σ κ Δ² / σ² over stages, steps and coordinates of one trial and keeps it at most `limit` on every path.

    Paper, theorem on adaptive feasible trajectories: the comparison at mu needs this sum at most mu squared on every
    reachable history. The charge of each coordinate is the block's, rounded up to a double. Everything after that is
    exact, so the sum is never understated and order does not matter.

    Args:
        limit: the greatest energy, mu squared, at least 0.
        schedule: the schedule, or one block for every step, or one per step.
        stage: the stage whose shifts are charged, "all" for every one, None for the main one.
    """

    def __init__(
        self,
        *,
        limit: float,
        schedule: Schedule | ProposalSchedule | Sequence[ProposalSchedule],
        stage: str | None = None,
    ) -> None:
        self._limit = checks.nonnegative("limit", limit)
        self._schedule = as_schedule(schedule)
        self._stages = attacked_stages(self._schedule, stage)
        self._spent = Fraction(0)
        self._of_step = Fraction(0)
        self._next = 0

    @property
    def limit(self) -> float:
        """The greatest energy this ledger accepts."""
        return self._limit

    @property
    def schedule(self) -> Schedule:
        """The blocks of each stage."""
        return self._schedule

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages whose shifts are charged, in the order of a step."""
        return self._stages

    @property
    def spent(self) -> float:
        """The energy committed so far, rounded up."""
        return fraction_upper(self._spent)

    @property
    def spent_in_step(self) -> float:
        """The energy committed so far in the step of the last commitment, rounded up."""
        return fraction_upper(self._of_step)

    @property
    def remaining(self) -> float:
        """The energy that is left, rounded down."""
        return fraction_lower(Fraction(self._limit) - self._spent)

    def reset(self) -> None:
        """Begin a new trial with no energy spent."""
        self._spent = self._of_step = Fraction(0)
        self._next = 0

    def allowance(self, t: int, stage: Stage | None = None) -> float:
        """Return the greatest norm of a shift that would be accepted at step `t`, rounded down.

        A shift of this norm is accepted in every direction of the coordinates that have noise.
        """
        left = (Fraction(self._limit) - self._spent) / _greatest(self._block(t, stage))
        return _sqrt_lower(left)

    def scales(self, t: int, stage: Stage | None = None, *, width: int) -> Vector:
        """Return how far each coordinate may be shifted with energy 1, σ / √κ, rounded down. It is 0 without noise."""
        return np.array(np.broadcast_to(np.array(_reaches(self._block(t, stage))), width), dtype=np.float64)

    def cost(self, t: int, shift: Vector, stage: Stage | None = None) -> float:
        """Return the energy of a shift at step `t`, rounded up, without committing it."""
        return fraction_upper(self._cost(t, shift, stage))

    def commit(self, t: int, shift: Vector, stage: Stage | None = None) -> float:
        """Charge a shift at step `t` and return its energy, rounded up.

        Args:
            t: the step.
            shift: the shift, of the width of the stage's center.
            stage: the stage. It may be left out if shifts of only one are charged.

        Raises:
            EnergyRefusedError: it would exceed the limit, or it shifts a coordinate without noise. The ledger is as it
                was.
            ValueError: not finite, or out of order (each stage of each step is charged once). The ledger is as it was.
        """
        number = t * len(self._stages) + self._stages.index(self._known(stage))
        if number != self._next:
            step, place = divmod(self._next, len(self._stages))
            which = f", the {self._stages[place].value} stage" if len(self._stages) > 1 else ""
            raise ValueError(f"`t` must be {step}{which}, the next uncharged step, got {t}.")
        cost = self._cost(t, shift, stage)
        total = self._spent + cost
        if not total <= Fraction(self._limit):
            raise EnergyRefusedError(
                f"`shift` must keep the energy at most {self._limit}, got {fraction_upper(total)} at step {t}. "
                f"The greatest norm accepted here is {self.allowance(t, stage)}."
            )
        self._of_step = cost if number % len(self._stages) == 0 else self._of_step + cost
        self._spent = total
        self._next = number + 1
        return fraction_upper(cost)

    def _known(self, stage: Stage | None) -> Stage:
        if stage is None and len(self._stages) == 1:
            return self._stages[0]
        if stage not in self._stages:
            accepted = ", ".join(part.value for part in self._stages)
            raise ValueError(f"`stage` must be one of {accepted}, got {None if stage is None else stage.value}.")
        return stage

    def _block(self, t: int, stage: Stage | None) -> ProposalSchedule:
        return self._schedule.at(self._known(stage), t)

    def _cost(self, t: int, shift: Vector, stage: Stage | None) -> Fraction:
        charges = _charges(self._block(t, stage))
        if isinstance(charges, Fraction):
            return charges * squared_norm(shift)
        values = _finite(shift).tolist()
        if len(values) != len(charges):
            raise ValueError(f"`shift` must have shape ({len(charges)},), got ({len(values)},).")
        total = Fraction(0)
        for i, (charge, value) in enumerate(zip(charges, values, strict=True)):
            if value == 0.0:
                continue
            if charge is None:
                raise EnergyRefusedError(
                    f"`shift` must be 0 in coordinate {i}, which has no noise, got {value}: no energy pays for it."
                )
            total += charge * Fraction(value) ** 2
        return total


# Kept, because a schedule with few different blocks would derive the same fractions at every step.
@lru_cache(maxsize=1024)
def _charges(block: ProposalSchedule) -> Fraction | tuple[Fraction | None, ...]:
    """Return the charge of every coordinate, or of each one. None is for a coordinate without noise."""
    if isinstance(block.sigma, NamedSigma):
        raise ValueError(
            f"`schedule` must have numbers as `sigma`, got the names {', '.join(block.sigma)}. "
            "`Schedule.resolved` replaces names by numbers."
        )
    if isinstance(block.sigma, float):
        return Fraction(block.charge)
    return tuple(Fraction(fraction_upper(block.charge_of(sigma))) if sigma else None for sigma in block.sigma)


@lru_cache(maxsize=1024)
def _greatest(block: ProposalSchedule) -> Fraction:
    charges = _charges(block)
    return charges if isinstance(charges, Fraction) else max(charge for charge in charges if charge is not None)


@lru_cache(maxsize=1024)
def _reaches(block: ProposalSchedule) -> float | tuple[float, ...]:
    """Return the length of a shift of energy 1 along every coordinate, or along each one, rounded down."""
    charges = _charges(block)
    if isinstance(charges, Fraction):
        return _sqrt_lower(1 / charges)
    return tuple(0.0 if charge is None else _sqrt_lower(1 / charge) for charge in charges)


def _sqrt_lower(value: Fraction) -> float:
    """Return the greatest double whose square is at most `value`."""
    # With these binary places the integer root has at least 64 bits, so no double is between it and the true root.
    places = max(0, 64 + (value.denominator.bit_length() - value.numerator.bit_length()) // 2 + 1)
    root = math.isqrt((value.numerator << (2 * places)) // value.denominator)
    return fraction_lower(Fraction(root, 1 << places))


def squared_norm(shift: Vector) -> Fraction:
    """Return the exact squared Euclidean norm of a finite vector."""
    return sum((Fraction(value) ** 2 for value in _finite(shift).tolist()), Fraction(0))


def _finite(shift: Vector) -> Vector:
    vector = np.asarray(shift, dtype=np.float64)
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise ValueError(f"`shift` must be a finite vector of shape (d,), got {shift!r}.")
    return vector
