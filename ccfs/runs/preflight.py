"""Try every part before the first trial, so that one that cannot work is named at once and not in every trial."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, islice
from typing import cast

import numpy as np

from ccfs.certificates.schedule import Schedule
from ccfs.files.imports import loading
from ccfs.files.terminal import error_text
from ccfs.protocol.model import Arm, Protocol, ProtocolError
from ccfs.runs.build import build_arm, build_controller, build_event, event_references
from ccfs.runs.events import AllOf, CostAtMost, Event, GoalBeforeCost, NoCostUntilGoal, holds
from ccfs.runs.provenance import refuse_other_events
from ccfs.runs.trace import traces
from ccfs.runs.trial import StopRule, run_trial
from ccfs.runs.weights import disturbance
from ccfs.runtime.history import Source
from ccfs.runtime.interfaces import Controller, Observer, Vector
from ccfs.runtime.program import CausalProgram
from ccfs.runtime.remade import generators_kept
from ccfs.runtime.streams import Purpose, Streams
from ccfs.runtime.wrapper import ProposalWrapper

__all__ = ["Names", "needs_cost", "needs_goal", "preflight", "try_step"]

# These reset seeds belong to the range of training and tuning. A certified seed must not be looked at, so the seeds of
# the cohort are skipped. There are several, because some environments refuse some seeds, and two of them have 31 bits,
# because some environments take no greater ones.
_FROM, _LARGE, _SMALL = 3_000_999_999, 6, (2**31 - 1, 2**31 - 2)
# Stands in stream keys in the place of the protocol's hash. It is no hash, so no trial has this noise.
_SCOPE = "preflight"
Ask = Callable[[Vector], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of the parts in errors, and the advice for a missing cost."""

    environment: str
    controller: str
    verifier: str
    cost: str
    advice: str


def preflight(protocol: Protocol, *, where: str) -> None:
    """Build the protocol's parts, take one step with each controller, and refuse with one line what cannot work.

    If an event is the user's own, one whole trial runs too, and the events are asked about it.

    The trials do not depend on it. Its parts are its own, its random streams have the key of no protocol, its reset
    seed is not in the cohort, and the global generators are restored. An initial law may draw the same reset seed, with
    probability below 1e-8 per trial. That trial is the same with and without preflight.
    """
    spec = protocol.environment
    seeds = protocol.trials.seeds or ()
    taken = seeds if isinstance(seeds, range) else frozenset(seeds)
    try:
        refuse_other_events(protocol)
        events = {part.name: build_event(protocol, part, f"events.{i}") for i, part in enumerate(protocol.events)}
        wrapped, controller = build_arm(protocol, protocol.arms[0], None)
        try:
            for arm in protocol.arms:
                for family in protocol.families:
                    disturbance(protocol, arm, family, wrapped.widths._replace(sensor=_readings(arm, wrapped)))
            for arm in protocol.arms[:: len(protocol.schedules)]:  # one arm of each controller
                place = protocol.controllers.index(arm.controller)
                if place:
                    controller = build_controller(protocol, arm)
                names = Names(
                    environment=f"`environment` {spec.make}",
                    controller=f"`controllers.{place}` {arm.controller.make}",
                    verifier=f"`program.verifier` {protocol.program.verifier.make}",
                    cost=spec.cost,
                    advice="`environment.cost` names the key of `info` to read.",
                )
                try_step(
                    wrapped,
                    _guarded(controller, names.controller),
                    schedules=[part.plan for part in protocol.schedules],
                    root=protocol.seed,
                    taken=taken,
                    events=events,
                    names=names,
                )
            _try_events(protocol, wrapped, controller, taken=taken, events=events)
        finally:
            wrapped.close()
    except (ProtocolError, TypeError, ValueError) as error:
        raise ProtocolError(f"{where}: {error}") from error


def _readings(arm: Arm, wrapped: ProposalWrapper) -> int:
    """Return how many numbers a reading of an arm has, 0 without a sensor stage."""
    return 0 if arm.schedule.plan.sensor is None else int(np.prod(wrapped.observation_space.shape or ()))


@generators_kept()
def try_step(
    wrapped: ProposalWrapper,
    ask: Ask,
    *,
    schedules: Sequence[Schedule],
    root: int,
    taken: Container[int],
    events: Mapping[str, Event],
    names: Names,
) -> None:
    """Take one nominal step outside of any trial. Raise what would only count as a failure in a trial.

    The environment is reset twice with the same seed, because the verifier is asked twice. Inside a step any wrong
    answer counts as a rejection, so the verifier is first asked outside of a step. A verifier with a memory may see an
    observation only once per reset.

    Args:
        wrapped: the wrapped environment, left in the middle of an episode.
        ask: the function from the first observation to the controller's answer. Its exceptions are not caught.
        schedules: the schedules whose first blocks the verifier is asked about.
        root: root seed of the proposal noise.
        taken: reset seeds that must not be used.
        events: what will be counted, by name.
        names: names of the parts in errors.
    """
    program = wrapped.program
    seed, observation = _reset(wrapped, taken, names.environment)
    streams = Streams(protocol=_SCOPE, root=root, arm="", trial=0, reset_seed=seed)
    reading = observation
    if wrapped.schedule.sensor is not None:  # what the wrapper itself would show to the controller
        wrapped.use_streams(streams)
        reading, _ = wrapped.reset(seed=seed)
    center = _center(wrapped, ask(reading.copy()), names.controller)
    noise = streams.generator(Purpose.PROPOSAL)
    deciding = [(schedule, schedule.deciding) for schedule in schedules]
    blocks = [
        center[None] if stage is None else schedule.at(stage, 0).sample_block(center, noise)
        for schedule, stage in deciding
    ]
    if not all(entry.unverified for entry in program.fallbacks):
        blocks.append(center[None])
    checked = reading if wrapped.schedule.readers == "all" else observation
    _check_verifier(program, checked, blocks, names.verifier)
    try:
        wrapped.use_streams(streams)
        wrapped.reset(seed=seed)
        *_, info = wrapped.step(center)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{names.environment} must take a first step, but it raised {error_text(error)}.") from error
    step = wrapped.last_step
    is_missing = step.source is not Source.ABSTAIN and (step.cost is None or np.isnan(step.cost))
    needing = [name for name, event in events.items() if needs_cost(event)]
    if is_missing and needing:
        keys = [key for key in info if key != "ccfs"]
        raise ValueError(
            f"{names.environment} must report a cost at every step, because the event {needing[0]!r} needs it, but the "
            f"first step had no {names.cost!r} in `info`, got the keys {keys}. {names.advice}"
        )


@generators_kept()
def _try_events(
    protocol: Protocol,
    wrapped: ProposalWrapper,
    controller: Controller,
    *,
    taken: Container[int],
    events: Mapping[str, Event],
) -> None:
    """Run one trial, and ask the events of the user's own about it. Counts are bound to their code.

    So a mistake that shows after the trials cannot be mended for them.
    """
    if not event_references(protocol):
        return
    seed, _ = _reset(wrapped, taken, f"`environment` {protocol.environment.make}")
    recorder, row = run_trial(
        wrapped,
        controller,
        horizon=protocol.horizon,
        stop=StopRule(goal=protocol.stop.goal, cost=protocol.stop.cost),
        streams=Streams(protocol=_SCOPE, root=protocol.seed, arm="", trial=0, reset_seed=seed),
    )
    (trace,) = traces([row], recorder.table)
    with ExitStack() as watched:
        # What an event loads while it answers belongs to it. Unseen here, it would never be bound to the counts.
        for reference in event_references(protocol):
            watched.enter_context(loading(reference))
        for place, (spec, event) in enumerate(zip(protocol.events, events.values(), strict=True)):
            try:
                holds(event, trace)
            except (Exception, SystemExit) as error:
                raise ProtocolError(
                    f"`events.{place}` {spec.event} must answer a trace, but it raised {error_text(error)}."
                ) from error


def needs_cost(event: Event) -> bool:
    """Return whether an event cannot hold for a trial whose first step reported no cost."""
    if isinstance(event, AllOf):
        return any(needs_cost(part) for part in event.events)
    return isinstance(event, (NoCostUntilGoal, GoalBeforeCost, CostAtMost))


def needs_goal(event: Event) -> bool:
    """Return whether an event cannot hold for a trial without a goal."""
    if isinstance(event, AllOf):
        return any(needs_goal(part) for part in event.events)
    return isinstance(event, GoalBeforeCost)


def _guarded(controller: Controller, name: str) -> Ask:
    """Return a function that asks the controller, and that names the controller if it raises."""

    def ask(observation: Vector) -> object:
        try:
            controller.reset()
            return controller.center(observation)
        except (Exception, SystemExit) as error:
            raise ProtocolError(f"{name} must answer an observation, but it raised {error_text(error)}.") from error

    return ask


def _reset(wrapped: ProposalWrapper, taken: Container[int], name: str) -> tuple[int, Vector]:
    """Return the first of our seeds with which the environment resets, and the observation."""
    large = islice((seed for seed in count(_FROM, -1) if seed not in taken), _LARGE)
    got, cause = "", None
    for seed in (*large, *(seed for seed in _SMALL if seed not in taken)):
        try:
            observation = wrapped.seen(wrapped.env.reset(seed=seed)[0])
            if np.isfinite(observation).all():
                return seed, observation
            got, cause = f"got {reprlib.repr(observation)}", None
        except (Exception, SystemExit) as error:
            got, cause = f"but it raised {error_text(error)}", error
    raise ValueError(f"{name} must reset to an observation of finite numbers, {got}.") from cause


def _center(wrapped: ProposalWrapper, answer: object, name: str) -> Vector:
    choices = wrapped.program.choices
    try:
        center = wrapped.center_of(answer)
    except (TypeError, ValueError) as error:
        shape = wrapped.program.low.shape
        what, advice = "numbers", ""
        if choices is not None:
            what, advice = "scores", " A score stage needs the policy's logits or Q-values, not an action."
        raise ValueError(
            f"`center` must be {what} of shape {shape}, got {_described(answer)} from {name}.{advice}"
        ) from error
    # A score of -inf says that an action is not allowed.
    is_usable = np.isfinite(center).all() if choices is None else choices.greatest(center[None])[1][0]
    if not is_usable:
        raise ValueError(f"`center` must be finite, got {_described(answer)} from {name}.")
    return center


def _check_verifier(program: CausalProgram, observation: Vector, blocks: Sequence[Vector], name: str) -> None:
    """Ask the verifier about blocks of proposals. Refuse a wrong answer, which a step would take for a rejection."""
    verifier = program.verifier
    accepted = "must return a NumPy array of dtype bool and shape (n,) for n actions"
    try:
        if isinstance(verifier, Observer):
            verifier.reset()
            verifier.observe(observation.copy())
    except (Exception, SystemExit) as error:
        raise ValueError(f"{name} must take an observation, but it raised {error_text(error)}.") from error
    for block in blocks:
        candidates = _candidates(program, block)
        if program.choices is not None:
            actions, _ = program.choices.greatest(candidates)
            candidates = cast(Vector, actions[:, 0] if program.choices.is_single else actions)
        try:
            flags: object = verifier.accepts(observation.copy(), candidates.copy())
        except (Exception, SystemExit) as error:
            raise ValueError(f"{name} {accepted}, but it raised {error_text(error)}.") from error
        if type(flags) is not np.ndarray or flags.dtype != np.bool_ or flags.shape != (len(block),):
            raise TypeError(f"{name} {accepted}, got {_described(flags)} for {len(block)} actions.")


def _candidates(program: CausalProgram, block: Vector) -> Vector:
    accepted = "`program.candidate_map` must return a float64 array of the block's shape"
    try:
        candidates: object = program.candidates(block.copy())
    except (Exception, SystemExit) as error:
        raise ValueError(f"{accepted} {block.shape}, but it raised {error_text(error)}.") from error
    if type(candidates) is not np.ndarray or candidates.shape != block.shape or candidates.dtype != np.float64:
        raise TypeError(f"{accepted} {block.shape}, got {_described(candidates)}.")
    return candidates


def _described(value: object) -> str:
    if isinstance(value, np.ndarray) and value.size > 4:
        return f"an array of dtype {value.dtype} and shape {value.shape}"
    return " ".join(f"{reprlib.repr(value)} ({type(value).__name__})".split())
