"""An attack: a shift rule with its ledger, its random stream and its own copy of the public history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ccfs.attacks.ledger import EnergyLedger
from ccfs.certificates.schedule import ProposalSchedule
from ccfs.runtime.history import PublicHistory, PublicPast, PublicStep
from ccfs.runtime.interfaces import ShiftRecord, ShiftRule, Vector

__all__ = ["Attack", "AttackError"]


class AttackError(RuntimeError):
    """A shift rule failed, so the attack is not the declared one. Nothing has been drawn."""


class Attack:
    """Asks the rule for a shift and commits it to the ledger, before the block is drawn.

    Causal by construction: the rule gets copies of finished public steps and of the current observation and center,
    the allowance of its ledger, and its own stream. It never gets the block, the proposal stream or the environment.
    If the rule raises or its shift is not finite, `commit` raises AttackError. If the shift overspends, it raises
    EnergyRefusedError. In both cases nothing has been drawn.

    Args:
        rule: the shift rule.
        limit: greatest energy of a trial, mu squared.
        schedule: the schedule of the attacked arm.
    """

    def __init__(
        self, *, rule: ShiftRule, limit: float, schedule: ProposalSchedule | Sequence[ProposalSchedule]
    ) -> None:
        if not isinstance(rule, ShiftRule):
            raise TypeError(f"`rule` must have `reset()` and `shift(history, rng, *, allowance)`, got {rule!r}.")
        self._rule = rule
        self._ledger = EnergyLedger(limit=limit, schedule=schedule)
        self._past = PublicPast()
        self._rng: np.random.Generator | None = None
        self._last: ShiftRecord | None = None

    @property
    def limit(self) -> float:
        """The greatest energy of a trial."""
        return self._ledger.limit

    @property
    def schedule(self) -> ProposalSchedule | tuple[ProposalSchedule, ...]:
        """The schedule that its ledger charges by."""
        return self._ledger.schedule

    @property
    def last(self) -> ShiftRecord | None:
        """The last committed shift, None before the first."""
        return self._last

    def begin(self, rng: np.random.Generator) -> None:
        """Begin a trial with the rule's own stream and no energy spent."""
        self._ledger.reset()
        self._past = PublicPast()
        self._rng, self._last = rng, None
        self._rule.reset()

    def commit(self, t: int, horizon: int, observation: Vector, center: Vector) -> Vector:
        """Return the committed shift of step `t`."""
        if self._rng is None:
            raise RuntimeError("`begin` must be called before `commit`.")
        history = PublicHistory(
            t=t, horizon=horizon, observation=observation.copy(), center=center.copy(), steps=self._past.so_far()
        )
        try:
            shift = np.array(
                self._rule.shift(history, self._rng, allowance=self._ledger.allowance(t)), dtype=np.float64
            )
            if not (shift.shape == center.shape and np.isfinite(shift).all()):
                raise ValueError(f"`shift` must be finite with shape {center.shape}, got {shift}.")
        except (Exception, SystemExit) as error:
            raise AttackError(f"the shift rule {self._rule!r} failed at step {t}: {error}") from error
        energy = self._ledger.commit(t, shift)
        self._last = ShiftRecord(t=t, shift=shift, energy=energy, spent=self._ledger.spent)
        return shift

    def publish(self, step: PublicStep) -> None:
        """Give the rule its own copy of a finished step."""
        # One copy per step, made when the step becomes public. The rule may spoil its own copy only.
        self._past.append(_own(step))


def _own(step: PublicStep) -> PublicStep:
    """Return a copy that shares nothing which could be changed."""
    return replace(
        step,
        observation=step.observation.copy(),
        center=step.center.copy(),
        action=None if step.action is None else step.action.copy(),
    )
