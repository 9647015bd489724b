"""Find the parts of a protocol that need trust: code of others, and parts of ours that open what the protocol names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ccfs.files.digests import canonical_json
from ccfs.protocol.model import EventSpec, Protocol
from ccfs.protocol.registry import ALL_OF, IN_MEMORY, is_safe, target
from ccfs.runs.batches import Batch
from ccfs.runs.provenance import NOT_HERE, code_tables
from ccfs.runs.store import RunError

__all__ = [
    "ForeignPart",
    "UntrustedError",
    "foreign_parts",
    "is_own",
    "object_places",
    "places_of",
    "shipped_events",
    "untrusted",
]

_LONGEST = 200


class UntrustedError(RunError):
    """A run names code that was not run, because nobody said that it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignPart:
    """A part of a protocol that needs trust.

    Args:
        place: where the protocol names it, such as "environment" or "events.safe".
        make: the name in the protocol, "module:callable" or the short name of a part that opens a file.
        arguments: what it would be called with.
        digest: digest of its code as it is on this machine.
    """

    place: str
    make: str
    arguments: Mapping[str, object]
    digest: str

    def __str__(self) -> str:
        given = ", ".join(f"{name}={canonical_json(value)}" for name, value in self.arguments.items())
        shown = given if len(given) <= _LONGEST else f"{given[:_LONGEST]}..."
        code = (
            "which is not found here: give its folder with --modules"
            if self.digest == NOT_HERE
            else f"digest {self.digest[:16]}"
        )
        return f"{self.place}: {self.make}({shown}), {code}"


def foreign_parts(protocol: Protocol, places: Iterable[str] | None = None) -> tuple[ForeignPart, ...]:
    """Return the parts that need trust, or those at some places. Nothing is imported or run."""
    wanted = None if places is None else set(places)
    found = [
        (place, kind, make, arguments)
        for place, kind, make, arguments in _parts(protocol)
        if (wanted is None or place in wanted) and make != IN_MEMORY and not is_safe(kind, make, arguments)
    ]
    if not found:
        return ()
    targets = tuple((f"{number}", (target(kind, make),)) for number, (_, kind, make, _) in enumerate(found))
    digests = code_tables(targets)["parts"]
    return tuple(
        ForeignPart(place=place, make=make, arguments=arguments, digest=digests[f"{number}"])
        for number, (place, _, make, arguments) in enumerate(found)
    )


def object_places(protocol: Protocol) -> tuple[str, ...]:
    """Return the places of parts of a trial that are objects in memory, so that nobody can make them again."""
    found = [place for place, _, make, _ in _parts(protocol) if make == IN_MEMORY and not place.startswith("events.")]
    return tuple(found)


def places_of(protocol: Protocol, batch: Batch) -> tuple[str, ...]:
    """Return the places of the parts that run in the trials of a batch."""
    program = [place for place, *_ in _parts(protocol) if place.startswith("program.")]
    attack = [f"attacks.{batch.attack}"] if batch.is_attacked else []
    # Without traces, the events are asked when a trial has run.
    events = [] if batch.keeps_traces else [f"events.{spec.name}" for spec in protocol.events]
    return ("environment", f"controllers.{batch.arm.partition('/')[0]}", *program, *attack, *events)


def is_own(event: EventSpec) -> bool:
    """Return whether counting an event runs code that is not ours."""
    return any(":" in leaf.event for leaf in _leaves(event))


def shipped_events(protocol: Protocol) -> tuple[EventSpec, ...]:
    """Return the events that are counted by our own code."""
    return tuple(spec for spec in protocol.events if not is_own(spec))


def untrusted(where: object, what: str, parts: Iterable[ForeignPart]) -> UntrustedError:
    """Return the error for something that would run code that a run names, in one line."""
    told = "; ".join(map(str, parts))
    return UntrustedError(f"{where}: {what} runs code that the run names: {told}. Read it, then use --trust.")


def _parts(protocol: Protocol) -> Iterator[tuple[str, str, str, Mapping[str, object]]]:
    """Yield place, kind, name and arguments of every part. An event of several events has several parts."""
    program = protocol.program
    yield "environment", "environment", protocol.environment.make, protocol.environment.arguments
    for controller in protocol.controllers:
        yield f"controllers.{controller.name}", "controller", controller.make, controller.arguments
    yield "program.verifier", "verifier", program.verifier.make, program.verifier.arguments
    for fallback in program.fallbacks:
        yield f"program.fallbacks.{fallback.name}", "fallback", fallback.make, fallback.arguments
    if program.candidate_map is not None:
        yield "program.candidate_map", "candidate map", program.candidate_map.make, program.candidate_map.arguments
    for attack in protocol.attacks:
        yield f"attacks.{attack.name}", "attack", attack.rule, attack.arguments
    for part in protocol.families:
        yield f"families.{part.name}", "features", part.features, part.arguments
    for spec in protocol.events:
        for leaf in _leaves(spec):
            yield f"events.{spec.name}", "event", leaf.event, leaf.arguments


def _leaves(event: EventSpec) -> Iterator[EventSpec]:
    pending = [event]
    while pending:
        spec = pending.pop()
        if spec.event == ALL_OF:
            pending.extend(reversed(spec.events))
        else:
            yield spec
