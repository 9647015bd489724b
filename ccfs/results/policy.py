"""A certificate in one call: wrap a policy, run trials in this process, and count an event.

It stores nothing. For a run that others can audit, write a protocol and use `ccfs run`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import gymnasium
import numpy as np
from numpy.typing import ArrayLike

from ccfs.certificates import checks
from ccfs.certificates.schedule import ProposalSchedule, Schedule, as_schedule
from ccfs.certificates.trajectory import Bound, TrajectoryCertificate, certify_event
from ccfs.results.certificate import RunCertificate
from ccfs.results.verify import verify
from ccfs.runs.build import check_horizon
from ccfs.runs.counting import shortfall
from ccfs.runs.events import Event, holds
from ccfs.runs.preflight import Names, try_step
from ccfs.runs.trace import Trace, traces
from ccfs.runs.trial import StopRule, run_trial
from ccfs.runtime.components import AcceptAll
from ccfs.runtime.interfaces import Controller, Vector, Verifier
from ccfs.runtime.program import CausalProgram, FallbackEntry
from ccfs.runtime.streams import Streams
from ccfs.runtime.wrapper import ProposalWrapper

if TYPE_CHECKING:
    from ccfs.controllers.adapters.predict import Predictor

__all__ = ["Policy", "certify_policy", "load_certificate"]


Policy: TypeAlias = "Controller | Predictor | Callable[[Vector], ArrayLike]"


def certify_policy(
    env: gymnasium.Env[Vector, Vector],
    policy: Policy,
    *,
    event: Event | Callable[[Trace], bool],
    schedule: Schedule | ProposalSchedule | Sequence[ProposalSchedule],
    horizon: int,
    trials: int,
    target: float,
    delta: float,
    seed: int,
    verifier: Verifier | None = None,
    fallbacks: Sequence[FallbackEntry] = (),
    family: int = 1,
    resolution: float | None = None,
) -> TrajectoryCertificate:
    """Run `trials` nominal trials of a wrapped policy and certify the probability of an event under shifts.

    Each trial resets `env` with a fresh seed and draws fresh proposal noise. So the trials are independent draws from
    one law, and Clopper and Pearson's bound applies. Theorem 14 (thm:adaptive-trajectory) turns it into a budget.

    Assumes: everything here was fixed before the call, `seed` included. Whoever chooses among several calls by their
    results must let `family` count them all. The policy is deterministic. A function has no memory. A Controller may
    have one, and the state that a model's `predict` returns is carried through the trial. The environment's randomness
    comes from its reset seed. A trial in which anything raises is a failure.

    Args:
        env: environment with five or six return values per step. Its action space is a Box of shape (d,), a Discrete or
            a MultiDiscrete.
        policy: gives an action for an observation. A function, a model with `predict`, or a Controller. A model of
            Stable-Baselines3 gets observations as its own environment prepares them, `VecNormalize` included
            (`ccfs.controllers.from_predict`).
        event: what counts as success, a function of the public trace alone.
        schedule: the blocks of each stage. One block for all steps, or one per step, are those of the action stage, or
            of the score stage if actions are discrete.
        horizon: greatest number of steps.
        trials: number of trials, fixed in advance.
        target: the probability to keep, in (0, 1).
        delta: failure probability over all `family` claims.
        seed: root of all random streams. The key of a trial's noise is this seed, its number and its reset seed.
            Two calls with the same seed share their noise. After tuning, take another one.
        verifier: says which actions may run. None accepts every finite action in the box.
        fallbacks: asked in order if no proposal is accepted. Without an accepted one the trial abstains and fails.
        family: number of claims that share `delta`.
        resolution: a power of two such as 2.0**-20. Observations are rounded to its multiples. None does not round.
    """
    count = checks.count("trials", trials, minimum=1)
    controller, success = _controller(policy), _event(event)
    _refuse_what_is_no_environment(env)
    allowed = AcceptAll() if verifier is None else verifier  # an empty container of rules is a verifier too
    program = CausalProgram.for_space(env.action_space, verifier=allowed, fallbacks=fallbacks)
    plan = as_schedule(schedule, program.deciding)
    wrapped = ProposalWrapper(env, program=program, schedule=plan, seed=seed, horizon=horizon, resolution=resolution)
    check_horizon(env, horizon, name="env")
    # Mistakes must show before hours of trials: first in the numbers of the claim, then in the parts, by one step.
    certify_event(0, count, delta=delta, family=family, target=target, schedule=plan, bound=Bound.CLOPPER_PEARSON)
    missing = shortfall(count, delta=delta, family=family, target=target, bound=Bound.CLOPPER_PEARSON)
    if missing is not None:
        raise ValueError(f"`trials` must be enough to certify `target`, but {missing}.")
    _try_one_step(wrapped, controller, seed, {_name(event): success})
    hits = sum(holds(success, _trace(wrapped, controller, horizon, seed, trial)) for trial in range(count))
    return certify_event(
        hits,
        count,
        delta=delta,
        family=family,
        target=target,
        schedule=plan,
        bound=Bound.CLOPPER_PEARSON,
        event=_name(event),
    )


def load_certificate(path: str | Path) -> RunCertificate:
    """Read a certificate of a run and recompute its numbers. Raise CertificateError if one does not follow."""
    return verify(Path(path), None)


def _refuse_what_is_no_environment(env: object) -> None:
    if not isinstance(env, gymnasium.Env):
        advice = f" Make it first: gymnasium.make({env!r})." if isinstance(env, str) else ""
        raise TypeError(f"`env` must be a Gymnasium environment, got {env!r}.{advice}")


class _Function:
    """A function as a controller. It has no digest, because nothing is stored."""

    digest = ""

    def __init__(self, function: Callable[[Vector], ArrayLike]) -> None:
        self._function = function

    def reset(self) -> None:
        """Do nothing: the function has no memory."""

    def center(self, observation: Vector) -> Vector:
        answer = self._function(observation)
        if isinstance(answer, tuple) and len(answer) == 2 and (np.ndim(answer[0]) or answer[1] is None):
            raise TypeError(
                "`policy` must return an action, got a pair (action, state), as `predict` returns it. "
                "Pass the model itself, or return the action alone."
            )
        return np.asarray(answer, dtype=np.float64)


class _Event:
    def __init__(self, function: Callable[[Trace], bool]) -> None:
        self._function = function

    def holds(self, trace: Trace) -> bool:
        return self._function(trace)


def _controller(policy: Policy) -> Controller:
    from ccfs.controllers.adapters.predict import Predictor, from_predict

    if isinstance(policy, type):
        raise TypeError(f"`policy` must be made first, got the class {policy.__name__}.")
    if isinstance(policy, Controller):
        return policy
    if isinstance(policy, Predictor):
        return from_predict(policy)
    if not callable(policy):
        raise TypeError(f"`policy` must be a function, a model with `predict`, or a Controller, got {policy!r}.")
    return _Function(policy)


def _event(event: Event | Callable[[Trace], bool]) -> Event:
    if isinstance(event, type):
        raise TypeError(
            f"`event` must be made first, got the class {event.__name__}. "
            "Call it with its arguments, as in GoalBeforeCost(horizon=200)."
        )
    if isinstance(event, Event):
        return event
    if not callable(event):
        raise TypeError(f"`event` must be an event or a function of a trace, got {event!r}. See `ccfs.runs.events`.")
    return _Event(event)


def _name(event: Event | Callable[[Trace], bool]) -> str:
    name = str(getattr(event, "__name__", type(event).__name__))
    return name if name.isidentifier() else "event"


def _try_one_step(
    wrapped: ProposalWrapper,
    controller: Controller,
    seed: int,
    events: dict[str, Event],
) -> None:
    """Raise if a part makes a mistake. In a trial the mistake would only count as a failure."""
    verifier = type(wrapped.program.verifier).__name__
    names = Names(
        environment="`env`",
        controller="`policy`",
        verifier=f"`verifier` {verifier}",
        cost="cost",
        advice="Have it reported there, or choose an event that needs none.",
    )

    def ask(observation: Vector) -> Vector:
        controller.reset()
        return controller.center(observation)

    try_step(wrapped, ask, schedules=[wrapped.schedule], root=seed, taken=(), events=events, names=names)


def _trace(wrapped: ProposalWrapper, controller: Controller, horizon: int, seed: int, trial: int) -> Trace:
    streams = Streams(protocol="certify_policy", root=seed, arm="policy", trial=trial).drawn()
    recorder, row = run_trial(wrapped, controller, horizon=horizon, stop=StopRule(), streams=streams)
    (trace,) = traces([row], recorder.table)
    return trace
