"""Collect one trial: its public steps with their hash chain, its trajectory line, and apart from both its shifts."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from ccfs.runs.outcomes import Outcome
from ccfs.runs.record import (
    CHAIN_BYTES,
    OBSERVATION_BYTES,
    Lines,
    ShiftRow,
    StepLines,
    StepRow,
    TrajectoryRow,
    chain_start,
    lines_of,
    observation_digest,
)
from ccfs.runtime.history import PublicStep
from ccfs.runtime.interfaces import ShiftRecord, Vector

__all__ = ["Totals", "TrialRecorder", "TrialTables", "trajectory_row"]


class Totals:
    """What a trajectory's line says about its steps, summed up as they come."""

    def __init__(self) -> None:
        self._steps, self._reward = 0, 0.0
        self._cost: float | None = None
        self._goal_step: int | None = None
        self._first_cost_step: int | None = None

    def add(self, step: StepRow) -> None:
        """Take a step in."""
        self._steps += step.action is not None
        self._reward += step.reward
        if step.goal and self._goal_step is None:
            self._goal_step = step.t
        if step.cost is not None:
            self._cost = step.cost if self._cost is None else self._cost + step.cost
            if self._first_cost_step is None and not step.cost <= 0.0:
                self._first_cost_step = step.t

    def row(
        self, trial: int, reset_seed: int, outcome: str, error: str | None, first_observation: bytes, chain: bytes
    ) -> TrajectoryRow:
        """Return the trajectory's line."""
        return TrajectoryRow(
            trial=trial,
            reset_seed=reset_seed,
            outcome=outcome,
            steps=self._steps,
            total_reward=self._reward,
            total_cost=self._cost,
            goal_step=self._goal_step,
            first_cost_step=self._first_cost_step,
            error=error,
            first_observation=first_observation,
            chain=chain,
        )


class TrialTables:
    """The public trace and the private log that trials write their lines to, for actions of `dimension` coordinates."""

    def __init__(self, dimension: int) -> None:
        self.steps = StepLines(dimension)
        self.shifts = Lines(ShiftRow, dimension)


class TrialRecorder:
    """Takes the steps of one trial as they happen."""

    def __init__(self, trial: int, reset_seed: int, tables: TrialTables) -> None:
        self._trial, self._reset_seed = trial, reset_seed
        self._steps, self._shifts = tables.steps, tables.shifts
        self._begin = len(tables.steps), len(tables.shifts)
        self._totals = Totals()
        self._first, self._chain = bytes(OBSERVATION_BYTES), bytes(CHAIN_BYTES)

    @property
    def table(self) -> pa.Table:
        """The steps of this trial so far, as a table."""
        return self._steps.table(self._begin[0])

    @property
    def steps(self) -> list[StepRow]:
        """The steps of this trial so far, as values."""
        return lines_of(StepRow, self.table)

    @property
    def shifts(self) -> list[ShiftRow]:
        """The shifts of this trial so far."""
        return lines_of(ShiftRow, self._shifts.table(self._begin[1]))

    def begin(self, observation: Vector) -> None:
        """Take the first observation."""
        self._first = observation_digest(observation)
        self._chain = chain_start(self._reset_seed, self._steps.layout.dimension, self._first)

    def shift(self, record: ShiftRecord) -> None:
        """Take a committed shift into the private log."""
        self._shifts.append(
            ShiftRow(
                trial=self._trial,
                t=record.t,
                shift=record.shift.tolist(),
                energy=record.energy,
                spent=record.spent,
            )
        )

    def step(self, step: PublicStep, observation: Vector) -> None:
        """Take a finished step and the observation after it."""
        t, _, center, source, index, action, skipped, reward, cost, goal, terminated, truncated = step
        # By position, in the order of the record: names would take a quarter of the time of the whole call.
        line = StepRow(
            self._trial,
            t,
            center.tolist(),
            source._value_,  # `value` is a property, three times as slow
            index,
            None if action is None else action.tolist(),
            ",".join(skipped),
            reward,
            cost,
            goal,
            terminated,
            truncated,
            observation_digest(observation),
            b"",  # the chain value follows from the rest
        )
        self._chain = self._steps.link(line, self._chain)
        self._totals.add(line)

    def finish(self, outcome: Outcome, error: str | None = None) -> TrajectoryRow:
        """Return the trajectory's line."""
        return self._totals.row(self._trial, self._reset_seed, outcome.value, error, self._first, self._chain)


def trajectory_row(row: TrajectoryRow, chain: bytes, steps: Iterable[StepRow]) -> TrajectoryRow:
    """Return the line that follows from stored steps, with the seed, end and first observation of a stored line."""
    totals = Totals()
    for step in steps:
        totals.add(step)
    return totals.row(row.trial, row.reset_seed, row.outcome, row.error, row.first_observation, chain)
