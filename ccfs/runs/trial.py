"""Run one trial from its reset to its outcome, and pack its steps, its hash chain and its shifts as they come."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa

from ccfs.attacks.attack import AttackError
from ccfs.attacks.ledger import EnergyRefusedError
from ccfs.files.terminal import error_text, printable
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
from ccfs.runtime.history import PublicStep, Source
from ccfs.runtime.interfaces import Controller, ShiftRecord, Vector
from ccfs.runtime.streams import Streams
from ccfs.runtime.wrapper import ProposalWrapper, Widths

__all__ = ["StopRule", "Totals", "TrialRecorder", "TrialTables", "run_trial", "trajectory_row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """What ends a trial before the horizon, as the protocol declares it."""

    goal: bool = False
    cost: bool = False


def run_trial(
    env: ProposalWrapper,
    controller: Controller,
    *,
    horizon: int,
    stop: StopRule,
    streams: Streams,
    tables: TrialTables | None = None,
) -> tuple[TrialRecorder, TrajectoryRow]:
    """Run one trial and return its steps and its trajectory line.

    If the environment, the controller or the reset of a part raises or exits, the outcome is CRASHED. Such a trial is
    a failure of every event that was not decided before. Its line keeps the class of the exception, and the message
    is logged. A refused or broken shift is an error of the experiment. It is raised and counts as no trial.

    Args:
        env: the wrapped environment.
        controller: gives the center of each step.
        horizon: greatest number of steps.
        stop: when to stop before the horizon.
        streams: the trial's random streams.
        tables: the tables that take the steps, such as those of a batch. Without them, new ones.
    """
    if streams.reset_seed is None:
        raise ValueError("`streams` must have a reset seed, got none. `Streams.drawn` draws one.")
    tables = TrialTables(env.widths) if tables is None else tables
    has_sensor = env.widths.sensor > 0
    recorder = TrialRecorder(streams.trial, streams.reset_seed, tables)
    try:
        env.use_streams(streams)
        reading, _ = env.reset(seed=streams.reset_seed)
        observation = env.observation if has_sensor else reading
        recorder.begin(observation)
        controller.reset()
        if not (_is_finite(observation) and (not has_sensor or _is_finite(reading))):
            return recorder, recorder.finish(Outcome.NONFINITE, pending=env.pending_shift)
        for t in range(horizon):
            reading = env.step(controller.center(reading))[0]
            # What is recorded and what ends a trial is the environment's own observation.
            observation = env.observation if has_sensor else reading
            step, shift = env.last_step, env.last_shift
            if shift is not None:
                recorder.shift(shift)
            recorder.step(step, observation)
            outcome = _outcome(step, observation, stop, is_last=t + 1 == horizon)
            if outcome is None and has_sensor and not _is_finite(reading):
                outcome = Outcome.NONFINITE
            if outcome is not None:
                return recorder, recorder.finish(outcome, pending=env.pending_shift)
    except (AttackError, EnergyRefusedError):
        raise
    except (Exception, SystemExit) as error:
        _log_once(error, streams.trial)
        return recorder, recorder.finish(Outcome.CRASHED, type(error).__name__, pending=env.pending_shift)
    raise AssertionError("the last step of the horizon always has an outcome")


_log = logging.getLogger(__name__)
_logged: set[tuple[str, int]] = set()


def _log_once(error: BaseException, trial: int) -> None:
    """Log what a trial raised. A process logs each line of code that raises only once: a million trials may crash."""
    (*_, (frame, number)) = traceback.walk_tb(error.__traceback__)
    path = frame.f_code.co_filename
    if (path, number) in _logged:
        return
    _logged.add((path, number))
    place = printable(f"{Path(path).name}, line {number}")
    _log.warning("Trial %d crashed, which counts as a failure: %s (%s).", trial, error_text(error), place)


def _outcome(step: PublicStep, observation: Vector, stop: StopRule, *, is_last: bool) -> Outcome | None:
    """Return the outcome of a trial that ends with this step, or None if the trial goes on."""
    if step.source is Source.ABSTAIN:
        return Outcome.ABSTAINED
    if not (_is_finite(observation) and isfinite(step.reward) and isfinite(step.cost or 0.0)):
        return Outcome.NONFINITE
    if stop.cost and step.cost is not None and step.cost > 0.0:
        return Outcome.COST
    if stop.goal and step.goal:
        return Outcome.GOAL
    # Asked before `is_last`: a robot that falls at the last step has fallen, and did not reach the horizon.
    if step.terminated:
        return Outcome.TERMINATED
    if is_last:
        return Outcome.HORIZON
    return Outcome.TRUNCATED if step.truncated else None


def _is_finite(observation: Vector) -> bool:
    """Return whether an observation has only finite numbers. None, texts and other objects are not numbers."""
    try:
        return 0 not in np.isfinite(observation).tobytes()  # a third of the time of `all()` on few numbers
    except TypeError:
        return False


class Totals:
    """The sums over steps that stand in a trajectory's line."""

    def __init__(self) -> None:
        self._steps, self._reward = 0, 0.0
        self._cost: float | None = None
        self._goal_step: int | None = None
        self._first_cost_step: int | None = None

    def add(self, step: StepRow | PublicStep) -> None:
        """Add a step to the sums."""
        self._steps += step.action is not None
        self._reward += step.reward
        if step.goal and self._goal_step is None:
            self._goal_step = step.t
        cost = step.cost
        if cost is not None:
            self._cost = cost if self._cost is None else self._cost + cost
            # Negated, so that NaN counts as a cost.
            if self._first_cost_step is None and not cost <= 0.0:
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
    """The public trace and the private log of some trials."""

    def __init__(self, widths: Widths) -> None:
        self.steps = StepLines(widths)
        self.shifts = Lines(ShiftRow, widths)


class TrialRecorder:
    """Takes the steps of one trial as they happen."""

    def __init__(self, trial: int, reset_seed: int, tables: TrialTables) -> None:
        self._trial, self._reset_seed = trial, reset_seed
        self._steps, self._shifts = tables.steps, tables.shifts
        self._has_sensor = tables.steps.layout.widths.sensor > 0
        self._begin = len(tables.steps), len(tables.shifts)
        self._totals = Totals()
        self._first, self._chain = bytes(OBSERVATION_BYTES), bytes(CHAIN_BYTES)

    @property
    def table(self) -> pa.Table:
        """The steps of this trial so far, as a table."""
        return self._steps.table(self._begin[0])

    @property
    def lines(self) -> StepLines:
        """The lines of this trial, after those of earlier trials that nobody has dropped."""
        return self._steps

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
        self._chain = chain_start(self._reset_seed, self._steps.layout.widths, self._first)

    def shift(self, record: ShiftRecord) -> None:
        """Take the committed shifts of a step into the private log."""
        self._shifts.append(
            ShiftRow(
                trial=self._trial,
                t=record.t,
                shift=None if record.shift is None else record.shift.tolist(),
                energy=record.energy,
                spent=record.spent,
                sensor=None if record.sensor is None else record.sensor.tolist(),
            )
        )

    def step(self, step: PublicStep, observation: Vector) -> None:
        """Take a finished step and the observation after it."""
        # A plain tuple in the order of the record, because a named one takes twice as long to make.
        line = (
            self._trial,
            step.t,
            step.center.tolist(),
            step.source._value_,  # `value` is a property, three times as slow
            step.index,
            None if step.action is None else step.action.tolist(),
            ",".join(step.skipped) if step.skipped else "",
            step.reward,
            step.cost,
            step.goal,
            step.terminated,
            step.truncated,
            observation_digest(observation),
            b"",  # the chain value follows from the rest
            observation_digest(step.reading) if self._has_sensor else None,
        )
        self._chain = self._steps.link(cast(StepRow, line), self._chain)
        self._totals.add(step)

    def finish(
        self, outcome: Outcome, error: str | None = None, *, pending: ShiftRecord | None = None
    ) -> TrajectoryRow:
        """Return the trajectory's line. The shifts of a step that did not finish are still logged."""
        if pending is not None:
            self.shift(pending)
        return self._totals.row(self._trial, self._reset_seed, outcome.value, error, self._first, self._chain)


def trajectory_row(row: TrajectoryRow, chain: bytes, steps: Iterable[StepRow]) -> TrajectoryRow:
    """Return the trajectory's line with its sums taken from stored steps, and everything else from a stored line."""
    totals = Totals()
    for step in steps:
        totals.add(step)
    return totals.row(row.trial, row.reset_seed, row.outcome, row.error, row.first_observation, chain)
