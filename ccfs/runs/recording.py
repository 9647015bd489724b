"""Collect one trial: its public steps with their hash chain, its trajectory line, and apart from both its shifts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ccfs.files.digests import chain_start, chain_step, observation_digest
from ccfs.runs.outcomes import Outcome
from ccfs.runtime.history import PublicStep
from ccfs.runtime.interfaces import ShiftRecord, Vector

__all__ = ["ShiftRow", "StepRow", "TrajectoryRow", "TrialRecorder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One line of the public trace. `observation` is the digest of what was observed after the step."""

    trial: int
    t: int
    center: tuple[float, ...]
    source: str
    index: int
    action: tuple[float, ...] | None
    skipped: str
    reward: float
    cost: float | None
    goal: bool
    terminated: bool
    truncated: bool
    observation: bytes
    chain: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRow:
    """One line of the trajectory table. `error` is the kind of exception of a crash."""

    trial: int
    reset_seed: int
    outcome: str
    steps: int
    total_reward: float
    total_cost: float | None
    goal_step: int | None
    first_cost_step: int | None
    error: str | None
    first_observation: bytes
    chain: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftRow:
    """One line of the private log."""

    trial: int
    t: int
    shift: tuple[float, ...]
    energy: float
    spent: float


@dataclass(slots=True)
class TrialRecorder:
    """Takes the steps of one trial as they happen."""

    trial: int
    reset_seed: int
    steps: list[StepRow] = field(default_factory=list)
    shifts: list[ShiftRow] = field(default_factory=list)
    _first: bytes = b"\0" * 16
    _chain: bytes = b""

    def begin(self, observation: Vector) -> None:
        """Take the first observation."""
        self._first = observation_digest(observation)
        self._chain = chain_start(self.reset_seed, self._first)

    def shift(self, record: ShiftRecord) -> None:
        """Take a committed shift into the private log."""
        values = tuple(record.shift.tolist())
        row = ShiftRow(trial=self.trial, t=record.t, shift=values, energy=record.energy, spent=record.spent)
        self.shifts.append(row)

    def step(self, step: PublicStep, observation: Vector) -> None:
        """Take a finished step and the observation after it."""
        digest, skipped = observation_digest(observation), ",".join(step.skipped)
        self._chain = chain_step(
            self._chain,
            t=step.t,
            center=_bytes(step.center),
            source=step.source.value,
            index=step.index,
            action=None if step.action is None else _bytes(step.action),
            skipped=skipped,
            reward=step.reward,
            cost=step.cost,
            goal=step.goal,
            terminated=step.terminated,
            truncated=step.truncated,
            observation=digest,
        )
        self.steps.append(
            StepRow(
                trial=self.trial,
                t=step.t,
                center=tuple(step.center.tolist()),
                source=step.source.value,
                index=step.index,
                action=None if step.action is None else tuple(step.action.tolist()),
                skipped=skipped,
                reward=step.reward,
                cost=step.cost,
                goal=step.goal,
                terminated=step.terminated,
                truncated=step.truncated,
                observation=digest,
                chain=self._chain,
            )
        )

    def finish(self, outcome: Outcome, error: str | None = None) -> TrajectoryRow:
        """Return the trajectory's line."""
        return trajectory_row(
            self.trial, self.reset_seed, outcome.value, error, self._first, self._chain or b"\0" * 32, self.steps
        )


def trajectory_row(
    trial: int,
    reset_seed: int,
    outcome: str,
    error: str | None,
    first_observation: bytes,
    chain: bytes,
    steps: list[StepRow],
) -> TrajectoryRow:
    """Return the line that follows from the steps; the audit derives it again from the stored ones."""
    costs = [step.cost for step in steps if step.cost is not None]
    return TrajectoryRow(
        trial=trial,
        reset_seed=reset_seed,
        outcome=outcome,
        steps=sum(step.action is not None for step in steps),
        total_reward=float(sum(step.reward for step in steps)),
        total_cost=float(sum(costs)) if costs else None,
        goal_step=next((step.t for step in steps if step.goal), None),
        first_cost_step=next((step.t for step in steps if step.cost is not None and not step.cost <= 0.0), None),
        error=error,
        first_observation=first_observation,
        chain=chain,
    )


def _bytes(vector: Vector) -> bytes:
    return np.ascontiguousarray(vector, dtype="<f8").tobytes()
