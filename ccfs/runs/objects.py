"""A run of objects in memory: what its protocol says about them, its batches, and trials that are run again."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any, TypeAlias, cast

import gymnasium
import numpy as np

from ccfs.certificates.schedule import ProposalSchedule, Schedule, Stage
from ccfs.files.digests import text_digest
from ccfs.protocol.model import Protocol, parse_protocol
from ccfs.protocol.registry import ALL_OF, IN_MEMORY, shipped_as
from ccfs.protocol.tables import EXACT
from ccfs.runs.batches import Batch, Verdicts, batch_files
from ccfs.runs.events import AllOf, Event, holds
from ccfs.runs.generators import own_generators, refuse_moved
from ccfs.runs.judging import answers
from ccfs.runs.provenance import code_tables, provenance
from ccfs.runs.reader import RunReader
from ccfs.runs.record import TrajectoryRow
from ccfs.runs.repeats import MUST, difference, repeated, repeats
from ccfs.runs.store import PremiseError, Store
from ccfs.runs.trace import traces
from ccfs.runs.trial import TrialRecorder
from ccfs.runtime.environment import observation_layout
from ccfs.runtime.interfaces import Controller, Verifier
from ccfs.runtime.program import CausalProgram, FallbackEntry
from ccfs.runtime.remade import arguments_of, generators_kept, layers
from ccfs.runtime.wrapper import ProposalWrapper

__all__ = ["Claimed", "Objects"]

AnyEnv: TypeAlias = gymnasium.Env[Any, Any]
Entry: TypeAlias = dict[str, object]
CONTROLLER, SCHEDULE = "policy", "schedule"
"""Names of the controller and of the schedule, and so of the only arm, policy/schedule."""
UNKNOWN = "unknown"
"""Stands for the digest of a policy if nobody can tell what determines it."""
_FEWEST, _MOST_FILES = 16, 64
_MAKE_IT = "Pass `env` as a function that makes it, such as `lambda: MyEnv(3)`, to have that one compared."
_EVENT = "the trace is the same, but the event answered differently."


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The numbers of a claim about objects, all fixed before the first trial."""

    schedule: Schedule
    horizon: int
    trials: int
    target: float
    delta: float
    family: int
    seed: int
    resolution: float | None
    draws: tuple[int, int] | None = None

    @classmethod
    def of(cls, protocol: Protocol) -> Claimed:
        """Return the claim of a protocol that `Objects.protocol` made."""
        return cls(
            schedule=protocol.arms[0].schedule.plan,
            horizon=protocol.horizon,
            trials=protocol.trials.count,
            target=protocol.claim.target,
            delta=protocol.claim.delta,
            family=protocol.family,
            seed=protocol.seed,
            resolution=protocol.environment.grid,
            draws=None if protocol.trials.draws is None else (protocol.trials.draws.pilot, protocol.trials.draws.main),
        )

    @property
    def trials_entry(self) -> Entry:
        """What the protocol says about the trials."""
        if self.draws is None:
            return {"initial_law": self.trials}
        pilot, main = self.draws
        return {"initial_law": self.trials // (pilot + main), "draws": {"pilot": pilot, "main": main}}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Objects:
    """An environment, a policy, a verifier, fallbacks and an event as they are in memory.

    Args:
        env: the environment.
        make: makes environments like it.
        controller: the policy as a controller.
        remake: makes the policy anew, or None if it was not given as a function that makes it.
        source: the object that the user gave for a policy.
        verifier: the verifier.
        fallbacks: the fallbacks in their order.
        event: what counts as success.
        judge: the object that the user gave for an event.
        name: the event's name.
    """

    env: AnyEnv
    make: Callable[[], AnyEnv]
    controller: Controller
    remake: Callable[[], Controller] | None
    source: object
    verifier: Verifier
    fallbacks: tuple[FallbackEntry, ...]
    event: Event
    judge: object
    name: str

    def wrapped(self, claim: Claimed, env: AnyEnv | None = None) -> ProposalWrapper:
        """Return the wrapped environment, or another one of its kind wrapped in the same way."""
        inner = self.env if env is None else env
        program = CausalProgram.for_space(inner.action_space, verifier=self.verifier, fallbacks=self.fallbacks)
        return ProposalWrapper(
            inner,
            program=program,
            schedule=claim.schedule,
            seed=claim.seed,
            horizon=claim.horizon,
            resolution=claim.resolution,
            # Names may have been put on the object from outside, and then another one does not have them.
            layout=observation_layout(self.env),
        )

    def protocol(self, claim: Claimed) -> Protocol:
        """Return the protocol that names these objects as far as they can be named.

        Parts that ship with ccfs have their short names. Any other part is an object: its class, a digest of what it
        does if that can be read, and nothing from which it could be made again.
        """
        content: Entry = {
            "name": "certify-policy",
            "description": "Objects of a Python program, certified by one call of certify_policy.",
            "seed": int(claim.seed),
            "horizon": int(claim.horizon),
            "batch": max(_FEWEST, -(-claim.trials // _MOST_FILES)),
            "trials": claim.trials_entry,
            "claim": {
                "delta": float(claim.delta),
                "target": float(claim.target),
                "bound": "clopper-pearson" if claim.draws is None else "stratified",
                "family": int(claim.family),
            },
            "environment": {**self._environment(), "resolution": _grid(claim.resolution)},
            "controllers": [
                {
                    "name": CONTROLLER,
                    "make": IN_MEMORY,
                    "arguments": {"object": path_of(self.source)},
                    "digest": None if self._digest == UNKNOWN else self._digest,
                }
            ],
            "schedules": [{"name": SCHEDULE, **_stages(claim.schedule)}],
            "program": {
                "verifier": _part("verifier", self.verifier),
                "fallbacks": [
                    {"name": entry.name, "unverified": entry.unverified, **_part("fallback", entry.fallback)}
                    for entry in self.fallbacks
                ],
            },
            "events": [{"name": self.name, **_event(self.event, self.judge)}],
        }
        made = parse_protocol(content, where="certify_policy")
        if made.arms[0].schedule.plan != claim.schedule:  # what is certified must be what runs
            raise ValueError(f"`schedule` must be one that a protocol can hold, got {claim.schedule}.")
        return made

    def record(self, protocol: Protocol) -> dict[str, object]:
        """Return the provenance of a run of these objects: the digests of the code of their classes, and versions."""
        found = provenance(protocol, {CONTROLLER: self._digest})
        objects = code_tables(tuple(self._targets(protocol)))
        ours, parts = (cast(dict[str, str], found[key]) for key in ("code", "parts"))
        return {**found, "code": objects["code"] | ours, "parts": objects["parts"] | parts}

    def files(
        self, protocol: Protocol, batch: Batch, wrapped: ProposalWrapper, advance: Callable[[int], object]
    ) -> tuple[bytes, ...]:
        """Run a batch and return the bytes of its files."""
        inside: list[bool] = []

        def judged(recorder: TrialRecorder, row: TrajectoryRow) -> None:
            (trace,) = traces([row], recorder.table)
            inside.append(holds(self.event, trace))
            advance(1)

        found = batch_files(protocol, protocol.arms[0], batch, wrapped, self.controller, seen=judged)
        if not batch.is_judged:
            return found
        return (*found, Verdicts(trials=batch.trials, events={self.name: tuple(inside)}).to_bytes())

    def repeats(self, trials: int) -> int:
        """Return how many trials `refuse_other_repeats` runs, out of so many."""
        return len(_again(trials)) + repeats(trials)

    def generators(self) -> dict[str, object]:
        """Return the state of each random generator that these objects hold."""
        named = {entry.name: entry.fallback for entry in self.fallbacks}
        parts = {"env": self.env, "policy": self.source, "controller": self.controller, "verifier": self.verifier}
        return own_generators({**parts, **named, "event": self.judge})

    def refuse_other_repeats(
        self,
        store: Store,
        protocol: Protocol,
        claim: Claimed,
        wrapped: ProposalWrapper,
        generators: dict[str, object],
        advance: Callable[[int], object] = lambda trials: None,
    ) -> None:
        """Run some trials again, with the objects that were used and with new ones. Refuse one that differs.

        The verifier, the fallbacks and the event are always the same objects. So a memory of theirs shows, and so does
        one of the environment or of the policy. Random numbers drawn when one of these two is made show in a new one.

        The first trial must also leave every generator as it did at first. So a number shows that any trial of the run
        drew from a generator that no reset sets, even if it changed nothing.

        Args:
            store: the run, with all of its trials.
            protocol: its protocol.
            claim: the numbers of the claim.
            wrapped: the environment that was used.
            generators: what `generators` returned after the first trial.
            advance: called with a number of trials when they are finished.
        """
        reader = RunReader(store, protocol)
        homes = {trial: batch for batch in reader.batches(protocol.arms[0], None) for trial in batch.trials}
        last = homes[len(homes) - 1]
        with generators_kept():
            for trial in _again(len(homes)):
                found = self.difference(reader, protocol, homes[trial], trial, wrapped, advance)
                _refuse(trial, found, "gives another trace when it is run again after the last one", MUST)
                if trial == 0:
                    refuse_moved(generators, self.generators(), "trial 0 leaves it in another state after the last one")
            for batch in dict.fromkeys(homes.values()):
                self._refuse_other_answers(reader, batch)
            for trial in repeated(len(homes), reader.trajectories(last)[-1].chain):
                anew, fresh = self._anew(trial), self.wrapped(claim, self.make())
                try:
                    found = anew.difference(reader, protocol, homes[trial], trial, fresh, advance)
                finally:
                    fresh.close()
                _refuse(trial, found, *self._made_differently)

    def _refuse_other_answers(self, reader: RunReader, batch: Batch) -> None:
        """Ask an event that nobody can make again about all traces of a batch once more."""
        if not batch.is_judged:
            return
        now = answers("certify_policy", self.name, self.event, reader.traces(batch))
        for trial, before, said in zip(batch.trials, reader.verdicts(batch)[self.name], now, strict=True):
            if said is not before:
                _refuse(trial, _EVENT, "", "")

    def _anew(self, trial: int) -> Objects:
        """Return these objects with a policy that is made anew, if it can be. Refuse another policy."""
        if self.remake is None:
            return self
        controller = self.remake()
        if controller.digest != self.controller.digest:
            raise PremiseError(
                f"The policy that was made anew for trial {trial} has another digest than the first one. A function "
                "that makes a policy must make the same one each time: nothing random, and no memory of earlier "
                "calls. Nothing is certified."
            )
        return replace(self, controller=controller)

    @property
    def _made_differently(self) -> tuple[str, str]:
        """What happened if a trial differs with new objects, and what to do."""
        if self.remake is None:
            return "gives another trace in an environment that was made anew", (
                "Either the environment draws random numbers when it is made, or it was changed or made in another "
                f"way than its attributes say. {_MAKE_IT} Nothing is certified."
            )
        return "gives another trace with environment and policy made anew", (
            "Whatever is made anew must be the same each time: it must not draw random numbers when it is made, and "
            "must not remember earlier ones. Nothing is certified."
        )

    def difference(
        self,
        reader: RunReader,
        protocol: Protocol,
        batch: Batch,
        trial: int,
        wrapped: ProposalWrapper,
        advance: Callable[[int], object] = lambda trials: None,
    ) -> str | None:
        """Run a stored trial again, and return in words where it differs, None if nowhere."""
        alone = replace(batch, trials=(trial,))
        again = self.files(protocol, alone, wrapped, advance)
        found = difference(reader, batch, trial, again)
        if found is None and batch.is_judged:
            said = reader.verdicts(batch)[self.name][batch.trials.index(trial)]
            now = Verdicts.from_bytes(again[-1], where="repetition").events[self.name][0]
            if said is not now:
                return _EVENT
        return found

    @property
    def _digest(self) -> str:
        """The controller's digest as it is stored."""
        said = self.controller.digest
        return said if re.fullmatch(r"[A-Za-z0-9._:+/=@-]{1,200}", said) else text_digest(said) if said else UNKNOWN

    def _environment(self) -> Entry:
        spec = self.env.unwrapped.spec
        arguments: Entry = {
            "id": None if spec is None else spec.id,
            "object": [path_of(layer) for layer in layers(self.env)],
            "settings": [_settings(layer) for layer in layers(self.env)],
        }
        return {"make": IN_MEMORY, "arguments": arguments}

    def _targets(self, protocol: Protocol) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the classes behind each object that the protocol cannot name."""
        yield "environment", tuple(dict.fromkeys(_target(layer) for layer in layers(self.env)))
        yield f"controllers.{CONTROLLER}", (_target(self.source),)
        if protocol.program.verifier.make == IN_MEMORY:
            yield "program.verifier", (_target(self.verifier),)
        for entry, part in zip(self.fallbacks, protocol.program.fallbacks, strict=True):
            if part.make == IN_MEMORY:
                yield f"program.fallbacks.{part.name}", (_target(entry.fallback),)


def _refuse(trial: int, found: str | None, happened: str, advice: str) -> None:
    """Raise if a trial came out differently. An event is blamed itself: the trace was the same."""
    if found == _EVENT:
        raise PremiseError(
            f"Trial {trial} has the same trace when the event is asked again, but it answered differently. An event "
            "must follow from the trace alone: no memory, no random numbers. Nothing is certified."
        )
    if found is not None:
        raise PremiseError(f"Trial {trial} {happened}: {found} {advice}")


def _again(trials: int) -> list[int]:
    """Return the trials that run again in the environment that was used: the last one, the first and a middle one."""
    # The last one first. Then 1, n + 1 and about n / 2 episodes lie between the two runs of a trial, and a memory that
    # repeats itself shows whatever its period is.
    return list(dict.fromkeys((trials - 1, 0, trials // 2)))


def path_of(made: object) -> str:
    """Return "module:name" of a function, or of the class of any other object."""
    kind = made if isinstance(made, FunctionType) else type(made)
    return f"{kind.__module__}:{kind.__qualname__}"


def _target(made: object) -> str:
    """Return the "module:callable" at whose module the code of an object is looked for."""
    return path_of(made).partition(".<locals>")[0].partition("<")[0]


def object_digest(made: object) -> str | None:
    """Return a digest of what an object does: the source of its functions, and its plain values. None if unknown."""
    from ccfs.controllers.adapters.content import framed, function_text, function_values, value_content

    try:
        if isinstance(made, FunctionType):
            functions, values = {"": made}, []
        else:
            functions = {
                f"{kind.__qualname__}.{name}": found
                for kind in type(made).__mro__[:-1]
                for name, found in sorted(vars(kind).items())
                if isinstance(found, FunctionType)
            }
            values = sorted(vars(made).items())
        content = [framed(place, function_text(found.__code__)) for place, found in functions.items()]
        content += [
            framed(f"{place} {name}", value_content(name, value))
            for place, found in functions.items()
            for name, value in function_values(found)
        ]
        content += [framed(name, value_content(name, value)) for name, value in values]
    except (ValueError, TypeError):  # what cannot be read has no digest
        return None
    return hashlib.sha256(b"ccfs.object/1" + b"".join(content)).hexdigest()


def _part(kind: str, made: object) -> Entry:
    """Return a part as a protocol names it: by its short name if it ships, otherwise as an object."""
    name, arguments = shipped_as(kind, made), _values(made)
    if name is not None and arguments is not None:
        return {"make": name, "arguments": arguments}
    return {"make": IN_MEMORY, "arguments": {"object": path_of(made), "digest": object_digest(made)}}


def _event(event: Event, given: object) -> Entry:
    if isinstance(event, AllOf) and type(event) is AllOf:
        parts = [_event(part, part) for part in event.events]
        if all(part["event"] != IN_MEMORY for part in parts):
            return {"event": ALL_OF, "events": [{"name": f"part-{i}", **part} for i, part in enumerate(parts)]}
    name, arguments = shipped_as("event", event), _values(event)
    if name is not None and name != ALL_OF and arguments is not None:
        return {"event": name, "arguments": arguments}
    return {"event": IN_MEMORY, "arguments": {"object": path_of(given)}, "digest": object_digest(given)}


def _values(made: object) -> Entry | None:
    """Return the fields of a dataclass as JSON has them, None if one of them cannot be written so."""
    if not is_dataclass(made):
        return None
    found = {field.name: _plain(getattr(made, field.name)) for field in fields(made)}
    try:
        json.dumps(found, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return found


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _settings(layer: AnyEnv) -> Entry:
    """Return the arguments of a layer that JSON can hold, as far as they can be found."""
    spec = layer.spec if layer is layer.unwrapped else None
    try:
        found = arguments_of(layer) if spec is None else spec.kwargs
    except (TypeError, ValueError):  # nobody can tell what a class takes, or copy what it took
        found = {}
    return {name: plain for name, value in found.items() if (plain := _json(value)) is not None}


def _json(value: object) -> object:
    """Return a value as JSON holds it, None if it cannot."""
    try:
        return cast(object, json.loads(json.dumps(_plain(value), allow_nan=False)))
    except (TypeError, ValueError):
        return None


def _grid(resolution: float | None) -> str:
    return EXACT if resolution is None else f"2^{int(np.log2(resolution))}"


def _stages(schedule: Schedule) -> Entry:
    """Return a schedule as a protocol's table."""
    found: Entry = {}
    for stage in schedule.stages:
        table = partial(_sensor, schedule.readers) if stage is Stage.SENSOR else _block
        blocks = schedule.of(stage)
        found[stage.value] = [table(block) for block in blocks] if isinstance(blocks, tuple) else table(blocks)
    return found


def _sensor(readers: str, block: ProposalSchedule) -> Entry:
    return {"sigma": _sigma(block), "readers": readers}


def _block(block: ProposalSchedule) -> Entry:
    return {"count": block.count, "sigma": _sigma(block), "rho": block.rho}


def _sigma(block: ProposalSchedule) -> object:
    sigma = block.sigma
    if isinstance(sigma, float):
        return sigma
    return list(sigma) if isinstance(sigma, tuple) else dict(sigma)
