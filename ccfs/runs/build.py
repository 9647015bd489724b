"""Make the environment, controllers, program, attacks and events that a protocol names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, TypeVar, cast

import gymnasium

from ccfs.attacks.attack import Attack
from ccfs.attacks.ledger import attacked_stages, energy_limit
from ccfs.files.imports import from_source, loading
from ccfs.protocol.errors import ProtocolError, advice_on_arguments, advice_on_import, advice_on_kind
from ccfs.protocol.model import Arm, AttackSpec, EventSpec, Protocol, Reference
from ccfs.protocol.registry import ALL_OF, IN_MEMORY, target
from ccfs.protocol.tables import EnvironmentSpec
from ccfs.runs.events import AllOf, Event
from ccfs.runtime.environment import Signals, time_limit
from ccfs.runtime.flat import flattened
from ccfs.runtime.interfaces import CausalAttack, Controller, Fallback, ShiftRule, Vector, Verifier
from ccfs.runtime.program import CandidateMap, CausalProgram, FallbackEntry
from ccfs.runtime.wrapper import ProposalWrapper

__all__ = [
    "attack_limit",
    "build_arm",
    "build_controller",
    "build_environment",
    "build_event",
    "check",
    "check_horizon",
    "event_references",
    "foreign_targets",
    "part_targets",
    "resolve",
]

if TYPE_CHECKING:
    from ccfs.controllers.intake import Policy

Made = TypeVar("Made")


def build_arm(
    protocol: Protocol, arm: Arm, attack: AttackSpec | CausalAttack | None
) -> tuple[ProposalWrapper, Controller]:
    """Return the wrapped environment and the controller of one arm, freshly made. An attack may be made already."""
    env = build_environment(protocol.environment)
    wrapped = ProposalWrapper(
        env,
        program=build_program(protocol, env),
        schedule=arm.schedule.plan,
        seed=protocol.seed,
        horizon=protocol.horizon,
        attack=build_attack(protocol, attack, arm) if isinstance(attack, AttackSpec) else attack,
        signals=Signals(cost=protocol.environment.cost, goal=protocol.environment.goal),
        resolution=protocol.environment.grid,
    )
    return wrapped, build_controller(protocol, arm)


def build_environment(spec: EnvironmentSpec) -> gymnasium.Env[Vector, Vector]:
    """Return the environment that a protocol names, freshly made, with flat observations."""
    return flattened(_make("environment", spec, "environment", gymnasium.Env))


def build_controller(protocol: Protocol, arm: Arm) -> Controller:
    """Return the arm's controller. Refuse it if the protocol declares another digest."""
    from ccfs.controllers.intake import as_controller

    key = f"controllers.{protocol.controllers.index(arm.controller)}"
    made = _make(key, arm.controller, "controller", object)
    try:
        controller = as_controller(cast("Policy", made))
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"`{key}.make` must give a policy, got {made!r:.200}: {error}") from error
    if not controller.digest:
        raise ProtocolError(
            f"`{key}.make` must give a controller whose digest says what determines it, got {made!r:.200}. Return "
            "ccfs.controllers.from_callable(function, name, content=...), with the bytes of the file that it reads."
        )
    expected = arm.controller.digest
    if expected is not None and controller.digest != expected:
        raise ProtocolError(
            f"`{key}.digest` must be the controller's own, {controller.digest}, got {expected}. "
            "The controller has changed since the protocol was written."
        )
    return controller


def build_program(protocol: Protocol, env: gymnasium.Env[Vector, Vector]) -> CausalProgram:
    """Return the causal program for an environment's action space."""
    spec = protocol.program
    entries = [
        FallbackEntry(
            name=part.name,
            fallback=cast(Fallback, _make(f"program.fallbacks.{i}", part, "fallback", Fallback)),
            unverified=part.unverified,
        )
        for i, part in enumerate(spec.fallbacks)
    ]
    mapping: CandidateMap | None = None
    if spec.candidate_map is not None:
        mapping = cast(CandidateMap, _make("program.candidate_map", spec.candidate_map, "candidate map", Callable))
    return CausalProgram.for_space(
        env.action_space,
        verifier=cast(Verifier, _make("program.verifier", spec.verifier, "verifier", Verifier)),
        fallbacks=entries,
        clip_center=spec.clip_center,
        candidate_map=mapping,
    )


def build_attack(protocol: Protocol, spec: AttackSpec, arm: Arm) -> Attack:
    """Return an attack on an arm, with its limit as an energy under the arm's schedule."""
    key = f"attacks.{protocol.attacks.index(spec)}"
    reference = Reference(make=spec.rule, arguments=spec.arguments)
    rule = cast(ShiftRule, _make(key, reference, "attack", ShiftRule))
    try:
        return Attack(rule=rule, limit=attack_limit(spec, arm), schedule=arm.schedule.plan, stage=spec.stage)
    except ValueError as error:
        raise ProtocolError(f"`{key}` does not fit schedule {arm.schedule.name!r}: {error}") from error


def attack_limit(spec: AttackSpec, arm: Arm) -> float:
    """Return an attack's limit as an energy under the arm's schedule.

    A budget is one of the attacked stage, which has one block for every step then. The protocol refuses other budgets.
    """
    if spec.budget is None:
        return spec.energy or 0.0
    (stage,) = attacked_stages(arm.schedule.plan, spec.stage)
    (block,) = arm.schedule.plan.blocks(stage)
    return energy_limit(spec.budget, block)


def build_event(protocol: Protocol, spec: EventSpec, key: str = "events") -> Event:
    """Return an event. A shipped event has the protocol's horizon unless it names a shorter one."""
    if spec.event == ALL_OF:
        parts = [build_event(protocol, part, f"{key}.events.{i}") for i, part in enumerate(spec.events)]
        if not parts:
            raise ProtocolError(f"`{key}.events` must hold at least one event for {ALL_OF}, got none.")
        return AllOf(events=tuple(parts))
    arguments = dict(spec.arguments)
    # An event of the user's own takes only the arguments that the protocol gives.
    if ":" not in spec.event and spec.event != IN_MEMORY:
        horizon = arguments.setdefault("horizon", protocol.horizon)
        if not (isinstance(horizon, int) and 1 <= horizon <= protocol.horizon):
            within = f"[1, {protocol.horizon}], the protocol's horizon"
            raise ProtocolError(f"`{key}.arguments.horizon` must be in {within}, got {horizon!r}.")
    # Counts are bound to the code of their event, so whatever it loads is noted (`ccfs/runs/provenance.py`).
    with loading(spec.event):
        return cast(Event, _make(key, Reference(make=spec.event, arguments=arguments), "event", Event))


def check(protocol: Protocol, *, where: str) -> dict[str, str]:
    """Make every part once and return each controller's digest, so that a bad protocol fails before its first trial.

    `where` names the protocol's file in errors.
    """
    digests: dict[str, str] = {}
    try:
        for i, spec in enumerate(protocol.events):
            build_event(protocol, spec, f"events.{i}")
        for arm in protocol.arms:
            wrapped, controller = build_arm(protocol, arm, None)
            wrapped.close()
            check_horizon(wrapped.env, protocol.horizon, name="environment")
            digests[arm.controller.name] = controller.digest
            for attack in protocol.attacks:
                build_attack(protocol, attack, arm)
    except (ProtocolError, TypeError, ValueError) as error:
        raise ProtocolError(f"{where}: {error}") from error
    return digests


def check_horizon(env: gymnasium.Env[Vector, Vector], horizon: int, *, name: str) -> None:
    """Refuse a horizon that no trial can reach, because all would be failures. `name` is the environment's."""
    limit = time_limit(env)
    if limit is not None and not horizon <= limit:
        raise ValueError(
            f"`horizon` must be at most {limit}, the environment's own time limit, got {horizon}. "
            f"Lower it, or have `{name}` made with a longer limit (usually the argument max_episode_steps)."
        )


def part_targets(protocol: Protocol) -> dict[str, tuple[str, ...]]:
    """Return the "module:callable" behind each place of the protocol that names code, ours or the user's own.

    An event that is made of other events has several. Objects of the program that made a run have none.
    """
    program = protocol.program
    found: dict[str, tuple[str, ...]] = {"environment": (target("environment", protocol.environment.make),)}
    found |= {f"controllers.{part.name}": (target("controller", part.make),) for part in protocol.controllers}
    found["program.verifier"] = (target("verifier", program.verifier.make),)
    found |= {f"program.fallbacks.{part.name}": (target("fallback", part.make),) for part in program.fallbacks}
    if program.candidate_map is not None:
        found["program.candidate_map"] = (target("candidate map", program.candidate_map.make),)
    found |= {f"attacks.{attack.name}": (target("attack", attack.rule),) for attack in protocol.attacks}
    # Shipped features are part of the code that certifies. A trial depends on none.
    found |= {f"families.{part.name}": (part.features,) for part in protocol.families if part.is_own}
    found = {place: names for place, names in found.items() if names != (IN_MEMORY,)}
    return found | {f"events.{spec.name}": tuple(sorted(_event_targets(spec))) for spec in protocol.events}


def _event_targets(spec: EventSpec) -> set[str]:
    own = {target("event", spec.event)} - {IN_MEMORY}
    return own.union(*(_event_targets(part) for part in spec.events))


def foreign_targets(protocol: Protocol) -> tuple[str, ...]:
    """Return every "module:callable" of the user's own that the protocol names."""
    program = protocol.program
    parts = (protocol.environment, *protocol.controllers, program.verifier, *program.fallbacks, program.candidate_map)
    names = {part.make for part in parts if part is not None} | {attack.rule for attack in protocol.attacks}
    names |= {part.features for part in protocol.families}
    return tuple(sorted({name for name in names if ":" in name}.union(event_references(protocol))))


def event_references(protocol: Protocol) -> tuple[str, ...]:
    """Return every "module:callable" of the user's own among the events. Counting runs this code."""
    found: set[str] = set()
    pending = list(protocol.events)
    while pending:
        event = pending.pop()
        pending.extend(event.events)
        if ":" in event.event:
            found.add(event.event)
    return tuple(sorted(found))


def resolve(key: str, path: str) -> Callable[..., object]:
    """Return what "module:callable" names. `key` is its place in the protocol, for errors."""
    module, _, name = path.partition(":")
    try:
        target: object = importlib.import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
    except (Exception, SystemExit) as error:  # a module of the user's own may do anything when it is imported
        text = f"{error}.{advice_on_import(path, error)}"
        raise ProtocolError(f"`{key}.make` must name something that can be imported, got {path!r}: {text}") from error
    if not callable(target):
        raise ProtocolError(f"`{key}.make` must name a callable, got {path!r}, a {type(target).__name__}.")
    return target


def _make(key: str, reference: Reference, part: str, kind: object) -> object:
    """Make a part from a reference. `kind` is a class or an interface, to which the caller casts the result."""
    if reference.make == IN_MEMORY:
        raise ProtocolError(
            f"`{key}` is an object of the Python program that made this run, so it cannot be made from here. "
            "`ccfs.audit_policy` takes the objects themselves."
        )
    with from_source():
        made = _call(key, resolve(key, target(part, reference.make)), dict(reference.arguments))
    expected = cast(type, kind)
    if not isinstance(made, expected):
        name, advice = expected.__name__, advice_on_kind(expected.__name__)
        raise ProtocolError(f"`{key}.make` must give a {name}, got {made!r} from {reference.make!r}.{advice}")
    return made


def _call(key: str, function: Callable[..., Made], arguments: dict[str, object]) -> Made:
    try:
        return function(**{name: _given(value) for name, value in arguments.items()})
    except ProtocolError:
        raise
    except (Exception, SystemExit) as error:
        text = f"{type(error).__name__}: {error}"
        advice = advice_on_arguments(function, arguments)
        text = f"{text.rstrip('.')}.{advice}" if advice else text
        raise ProtocolError(f"`{key}.arguments` were not accepted, got {arguments!r}: {text}") from error


def _given(value: object) -> object:
    """Return an argument as a part gets it."""
    # JSON has only lists. Parts are frozen values, which hold tuples.
    if isinstance(value, list):
        return tuple(_given(item) for item in value)
    # A copy: a part that changes a table must not change the protocol, from which the next batch is made.
    return deepcopy(value)
