"""An odometer with a filter: it counts the energy of committed shifts and refuses the one that would overspend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from ccfs.certificates import checks
from ccfs.certificates.rounding import fraction_lower, fraction_upper
from ccfs.certificates.schedule import ProposalSchedule, as_schedule, schedule_at
from ccfs.runtime.interfaces import Vector

__all__ = ["EnergyLedger", "EnergyRefusedError", "energy_limit"]


class EnergyRefusedError(ValueError):
    """A shift was refused because it would exceed the energy limit; nothing has changed."""


def energy_limit(budget: float, schedule: ProposalSchedule) -> float:
    """Return the energy of the Euclidean budget B under one schedule, charge times B squared, rounded down."""
    return fraction_lower(Fraction(schedule.charge) * Fraction(checks.nonnegative("budget", budget)) ** 2)


class EnergyLedger:
    """Counts Σ κ_t ‖Δ_t‖² / σ_t² along one trajectory and keeps it at most `limit` on every path.

    Paper, theorem on adaptive feasible trajectories: the comparison at mu needs this sum at most mu squared on every
    reachable history. The charge of each step is the schedule's, rounded up to a double. Everything after that is
    exact, so the sum is never understated and order does not matter.

    Args:
        limit: the greatest energy, mu squared, at least 0.
        schedule: one block for every step, or one per step.
    """

    def __init__(self, *, limit: float, schedule: ProposalSchedule | Sequence[ProposalSchedule]) -> None:
        self._limit = checks.nonnegative("limit", limit)
        self._schedule = as_schedule(schedule)
        # Kept, because a schedule with few different blocks would derive the same fraction at every step.
        self._charges: dict[ProposalSchedule, Fraction] = {}
        self._spent = Fraction(0)
        self._next = 0

    @property
    def limit(self) -> float:
        """The greatest energy this ledger accepts."""
        return self._limit

    @property
    def schedule(self) -> ProposalSchedule | tuple[ProposalSchedule, ...]:
        """One block for every step, or one per step."""
        return self._schedule

    @property
    def spent(self) -> float:
        """The energy committed so far, rounded up."""
        return fraction_upper(self._spent)

    @property
    def remaining(self) -> float:
        """The energy that is left, rounded down."""
        return fraction_lower(Fraction(self._limit) - self._spent)

    def reset(self) -> None:
        """Begin a new trial with no energy spent."""
        self._spent = Fraction(0)
        self._next = 0

    def allowance(self, t: int) -> float:
        """Return the greatest norm of a shift that would be accepted at step `t`, rounded down."""
        left = (Fraction(self._limit) - self._spent) / self._charge(t)
        return _sqrt_lower(left)

    def cost(self, t: int, shift: Vector) -> float:
        """Return the energy of a shift at step `t`, rounded up, without committing it."""
        return fraction_upper(self._cost(t, shift))

    def commit(self, t: int, shift: Vector) -> float:
        """Charge a shift at step `t` and return its energy, rounded up.

        Raises:
            EnergyRefusedError: it would exceed the limit. The ledger is as it was.
            ValueError: not finite, or a step out of order (each step is charged once). The ledger is as it was.
        """
        if t != self._next:
            raise ValueError(f"`t` must be {self._next}, the next uncharged step, got {t}.")
        cost = self._cost(t, shift)
        total = self._spent + cost
        if not total <= Fraction(self._limit):
            raise EnergyRefusedError(
                f"`shift` must keep the energy at most {self._limit}, got {fraction_upper(total)} at step {t}. "
                f"The greatest norm accepted here is {self.allowance(t)}."
            )
        self._spent = total
        self._next = t + 1
        return fraction_upper(cost)

    def _cost(self, t: int, shift: Vector) -> Fraction:
        return self._charge(t) * squared_norm(shift)

    def _charge(self, t: int) -> Fraction:
        schedule = schedule_at(self._schedule, t)
        if schedule not in self._charges:
            self._charges[schedule] = Fraction(schedule.charge)
        return self._charges[schedule]


def _sqrt_lower(value: Fraction) -> float:
    """Return the greatest double whose square is at most `value`."""
    # With these binary places the integer root has at least 64 bits, so no double is between it and the true root.
    places = max(0, 64 + (value.denominator.bit_length() - value.numerator.bit_length()) // 2 + 1)
    root = math.isqrt((value.numerator << (2 * places)) // value.denominator)
    return fraction_lower(Fraction(root, 1 << places))


def squared_norm(shift: Vector) -> Fraction:
    """Return the exact squared Euclidean norm of a finite vector."""
    vector = np.asarray(shift, dtype=np.float64)
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise ValueError(f"`shift` must be a finite vector of shape (d,), got {shift!r}.")
    return sum((Fraction(value) ** 2 for value in vector.tolist()), Fraction(0))
