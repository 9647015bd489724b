"""An attack: a shift rule with its ledger, its random stream and its own copy of the public history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ccfs.attacks.ledger import EnergyLedger
from ccfs.certificates.schedule import ProposalSchedule, Schedule, Stage
from ccfs.runtime.history import PublicHistory, PublicPast, PublicStep
from ccfs.runtime.interfaces import ShiftRecord, ShiftRule, Vector

__all__ = ["Attack", "AttackError"]


class AttackError(RuntimeError):
    """A shift rule failed, so the attack is not the declared one. Nothing has been drawn."""


class Attack:
    """Asks the rule for a shift and commits it to the ledger, before the block is drawn.

    Causal by construction: the rule gets copies of finished public steps and of the current observation, reading and
    center, the allowance of its ledger, and its own stream. It never gets a block, a noise stream or the environment.
    If the rule raises or its shift is not finite, `commit` raises AttackError. If the shift overspends, it raises
    EnergyRefusedError. In both cases nothing has been drawn.

    Args:
        rule: the shift rule.
        limit: greatest energy of a trial, mu squared, over all stages together.
        schedule: the schedule of the attacked arm.
        stage: the stage to shift: "sensor", "action" or "score", or "all" to shift each one that has noise. Without it,
            the deciding stage, or the sensor stage if it is the only one.
    """

    def __init__(
        self,
        *,
        rule: ShiftRule,
        limit: float,
        schedule: Schedule | ProposalSchedule | Sequence[ProposalSchedule],
        stage: str | None = None,
    ) -> None:
        if not isinstance(rule, ShiftRule):
            raise TypeError(f"`rule` must have `reset()` and `shift(history, rng, *, allowance)`, got {rule!r}.")
        self._rule, self._stage = rule, stage
        self._ledger = EnergyLedger(limit=limit, schedule=schedule, stage=stage)
        self._schedule = self._ledger.schedule
        self._past = PublicPast()
        self._rng: np.random.Generator | None = None
        self._last: ShiftRecord | None = None
        self._pending: ShiftRecord | None = None

    @property
    def limit(self) -> float:
        """The greatest energy of a trial."""
        return self._ledger.limit

    @property
    def schedule(self) -> Schedule:
        """The schedule that its ledger charges by."""
        return self._schedule

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that it shifts."""
        return self._ledger.stages

    @property
    def last(self) -> ShiftRecord | None:
        """The shifts of the last finished step, None before the first."""
        return self._last

    @property
    def pending(self) -> ShiftRecord | None:
        """The shifts of a step that has not finished, None if there is none."""
        return self._pending

    def resolve(self, schedule: Schedule) -> None:
        """Charge by the same schedule with numbers in the place of names. The wrapper knows where the slices are."""
        self._ledger = EnergyLedger(limit=self._ledger.limit, schedule=schedule, stage=self._stage)

    def begin(self, rng: np.random.Generator) -> None:
        """Begin a trial with the rule's own stream and no energy spent."""
        self._ledger.reset()
        self._past = PublicPast()
        self._rng, self._last, self._pending = rng, None, None
        self._rule.reset()

    def commit(
        self,
        t: int,
        horizon: int,
        observation: Vector,
        center: Vector,
        stage: Stage | None = None,
        reading: Vector | None = None,
    ) -> Vector | None:
        """Return the committed shift of a stage of step `t`, or None if this attack does not shift the stage."""
        if self._rng is None:
            raise RuntimeError("`begin` must be called before `commit`.")
        ledger = self._ledger
        asked = self._schedule.main if stage is None else stage
        if asked not in ledger.stages:
            return None
        shift = self._asked(t, horizon, observation, center, asked, reading, self._rng)
        ledger.commit(t, shift, asked)
        before = self._pending
        is_sensor = asked is Stage.SENSOR
        self._pending = ShiftRecord(
            t=t,
            shift=None if is_sensor else shift,
            energy=ledger.spent_in_step,
            spent=ledger.spent,
            sensor=shift if is_sensor else None if before is None else before.sensor,
        )
        return shift

    def publish(self, step: PublicStep) -> None:
        """Give the rule its own copy of a finished step."""
        # One copy per step, made when the step becomes public. The rule may spoil its own copy only.
        self._past.append(_own(step))
        self._last, self._pending = self._pending, None

    def _asked(
        self,
        t: int,
        horizon: int,
        observation: Vector,
        center: Vector,
        stage: Stage,
        reading: Vector | None,
        rng: np.random.Generator,
    ) -> Vector:
        """Return the rule's shift as a finite vector."""
        # A trial with such an observation ends at once, and a rule could do nothing with it.
        if stage is Stage.SENSOR and not np.isfinite(center).all():
            return np.zeros_like(center)
        ledger = self._ledger
        history = PublicHistory(
            t=t,
            horizon=horizon,
            observation=observation.copy(),
            center=center.copy(),
            steps=self._past.so_far(),
            stage=stage,
            reading=None if reading is None else reading.copy(),
            scales=ledger.scales(t, stage, width=center.size),
            stages=ledger.stages,
        )
        try:
            shift = np.array(self._rule.shift(history, rng, allowance=ledger.allowance(t, stage)), dtype=np.float64)
            if not (shift.shape == center.shape and np.isfinite(shift).all()):
                raise ValueError(f"`shift` must be finite with shape {center.shape}, got {shift}.")
        except (Exception, SystemExit) as error:
            raise AttackError(f"the shift rule {self._rule!r} failed at step {t}: {error}") from error
        return shift


def _own(step: PublicStep) -> PublicStep:
    """Return a copy that shares nothing which could be changed."""
    observation = step.observation.copy()
    return replace(
        step,
        observation=observation,
        center=step.center.copy(),
        action=None if step.action is None else step.action.copy(),
        reading=observation if step.reading is step.observation else step.reading.copy(),
    )
