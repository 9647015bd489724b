"""One trial from reset to its end: ask the controller, step the wrapped environment, record, stop by the fixed rule."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np

from ccfs.attacks.attack import AttackError
from ccfs.attacks.ledger import EnergyRefusedError
from ccfs.runs.outcomes import Outcome
from ccfs.runs.record import TrajectoryRow
from ccfs.runs.recording import TrialRecorder, TrialTables
from ccfs.runtime.history import PublicStep
from ccfs.runtime.interfaces import Controller, Vector
from ccfs.runtime.selection import Source
from ccfs.runtime.streams import Streams
from ccfs.runtime.wrapper import ProposalWrapper

__all__ = ["StopRule", "run_trial"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """The part of the stopping rule that the protocol declares, besides the horizon."""

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

    An exception (or exit) of the environment, the controller or a component's reset is the outcome CRASHED, a failure
    of every event that had not happened before. A refused or broken shift is an error of the experiment and raises
    out.

    Args:
        env: the wrapped environment.
        controller: gives the center of each step.
        horizon: most steps.
        stop: when to stop before the horizon.
        streams: the trial's random streams.
        tables: where the steps go; the tables of a batch, or new ones.
    """
    if streams.reset_seed is None:
        raise ValueError("`streams` must have a reset seed, got none. `Streams.drawn` draws one.")
    tables = TrialTables(env.program.dimension) if tables is None else tables
    recorder = TrialRecorder(streams.trial, streams.reset_seed, tables)
    try:
        env.use_streams(streams)
        observation, _ = env.reset(seed=streams.reset_seed)
        recorder.begin(observation)
        controller.reset()
        if not _is_finite(observation):
            return recorder, recorder.finish(Outcome.NONFINITE)
        for t in range(horizon):
            observation = env.step(controller.center(observation))[0]
            step, shift = env.last_step, env.last_shift
            if shift is not None:
                recorder.shift(shift)
            recorder.step(step, observation)
            outcome = _outcome(step, observation, stop, is_last=t + 1 == horizon)
            if outcome is not None:
                return recorder, recorder.finish(outcome)
    except (AttackError, EnergyRefusedError):
        raise
    except (Exception, SystemExit) as error:
        return recorder, recorder.finish(Outcome.CRASHED, type(error).__name__)
    raise AssertionError("the last step of the horizon always has an outcome")


def _outcome(step: PublicStep, observation: Vector, stop: StopRule, *, is_last: bool) -> Outcome | None:
    """Return the outcome of a trial that ends with this step, None if it goes on."""
    if step.source is Source.ABSTAIN:
        return Outcome.ABSTAINED
    if not (_is_finite(observation) and isfinite(step.reward) and isfinite(step.cost or 0.0)):
        return Outcome.NONFINITE
    if stop.cost and step.cost is not None and step.cost > 0.0:
        return Outcome.COST
    if stop.goal and step.goal:
        return Outcome.GOAL
    if step.terminated:  # at the last step too: a fall there is a fall, not a walk over the whole horizon
        return Outcome.TERMINATED
    if is_last:
        return Outcome.HORIZON
    return Outcome.TRUNCATED if step.truncated else None


def _is_finite(observation: Vector) -> bool:
    """Whether an observation is made of finite numbers; None, strings and objects are not."""
    try:
        return b"\0" not in np.isfinite(observation).tobytes()  # a third of the time of `all()` on few numbers
    except TypeError:
        return False
