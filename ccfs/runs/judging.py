"""Make the events of a run from the code that the run recorded, and judge trials at once where no trace is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from ccfs.files.imports import loading
from ccfs.protocol.model import EventSpec, Protocol
from ccfs.runs.batches import Batch, Verdicts, batch_files, built
from ccfs.runs.build import build_event, event_references
from ccfs.runs.events import AllOf, Event, holds, is_lost_by_ending
from ccfs.runs.generators import generators_now, own_generators
from ccfs.runs.provenance import changed_events
from ccfs.runs.record import NO_VECTORS, StepLines, TrajectoryRow, layout_of
from ccfs.runs.store import PremiseError, RunError
from ccfs.runs.trace import Trace, traces
from ccfs.runs.trial import TrialRecorder

__all__ = ["answers", "leaf", "made_events", "refuse_changed", "run_hashed"]

_TOGETHER = 4096  # steps
_MORE = 3
"""How many times more an event of the user's own is asked about each trace."""


@contextmanager
def made_events(
    protocol: Protocol,
    record: Mapping[str, object] | None,
    where: object,
    make: Callable[[EventSpec], Event] | None = None,
) -> Iterator[dict[str, Event]]:
    """Make the events of a protocol, and refuse them if they are not those of a record of provenance.

    Files are compared before any code of an event runs. What the events have loaded by then, and while they judged, is
    compared at the end. So use a verdict only after this has ended without an exception. Without a record, nothing is
    compared.

    Args:
        protocol: whose events.
        record: the provenance of the run, or None.
        where: names the run in errors.
        make: makes an event, if not as the protocol says.
    """
    build = partial(build_event, protocol) if make is None else make
    if record is not None:
        refuse_changed(where, changed_events(protocol, record))
    with ExitStack() as watched:
        for reference in event_references(protocol):
            watched.enter_context(loading(reference))
        yield {spec.name: build(spec) for spec in protocol.events}
    if record is not None and event_references(protocol):
        refuse_changed(where, changed_events(protocol, record, are_made=True))


def refuse_changed(where: object, changes: Iterable[tuple[str, str]]) -> None:
    """Raise for the first of these changes of an event."""
    for event, what in changes:
        raise RunError(
            f"{where}: the event {event!r} is not the one that the run was made with: {what}. "
            "Restore it, or run a protocol with another `seed`: the same one would give the same trials again. "
            "An event must import its helpers by their names, as one reads them."
        )


def answers(where: object, name: str, event: Event, traces: Sequence[Trace]) -> list[bool]:
    """Return whether an event holds for each of these traces. Refuse one that does not follow from the trace alone.

    An event of the user's own is asked three times more about each trace, backwards and forwards in turn, and must not
    move a random generator. One that answers differently with probability q is missed by n traces with probability
    (q**4 + (1 - q)**4) ** n, and never if it draws from a generator that can be found (`own_generators`).

    Args:
        where: names the run in errors.
        name: name of the event.
        event: the event.
        traces: the traces to judge.
    """
    found = [holds(event, trace) for trace in traces]
    if _is_ours(event):
        return found
    before = generators_now() | own_generators({name: event})
    places = list(range(len(traces)))
    for _ in range(_MORE):
        places.reverse()
        for i in places:
            if holds(event, traces[i]) is not found[i]:
                raise _not_the_trace(where, name, f"gave two answers about trial {traces[i].trial}")
    now = generators_now() | own_generators({name: event})
    for generator, state in before.items():
        if now.get(generator, state) != state:
            raise _not_the_trace(where, name, f"draws random numbers from {generator}")
    return found


def _is_ours(event: Event) -> bool:
    if isinstance(event, AllOf):
        return all(map(_is_ours, event.events))
    return type(event).__module__.startswith("ccfs.runs.")


def _not_the_trace(where: object, event: str, what: str) -> PremiseError:
    return PremiseError(
        f"{where}: the event {event!r} {what}. An event must depend on the trace alone: no memory, no random numbers. "
        "Nothing is certified."
    )


def run_hashed(
    canonical: str, batch: Batch, expected: str | None = None, modules: str | None = None
) -> tuple[bytes, ...]:
    """Run a batch of a protocol that keeps no traces, and return the bytes of its lines and of its verdicts.

    Each trial is judged when it has run, by events that are made afresh. The arguments are those of `run_batch`. With
    `expected`, events whose code is not the recorded one are refused.
    """
    record = None if expected is None else json.loads(expected)
    with built(canonical, batch, expected, modules) as (protocol, arm, wrapped, controller):
        with made_events(protocol, record, batch.name) as events:
            judge = _Judge(events, batch)
            files = batch_files(protocol, arm, batch, wrapped, controller, seen=judge)
            verdicts = judge.verdicts()
        return (*files, verdicts.to_bytes())


class _Judge:
    """Takes each trial when it has ended, and keeps what the events say about it.

    Trials are judged some at a time, because a table of few steps takes as long as one of many.
    """

    def __init__(self, events: Mapping[str, Event], batch: Batch) -> None:
        self._events, self._batch = events, batch
        self._inside: dict[str, list[bool]] = {name: [] for name in events}
        self._lost: dict[str, list[int]] = {name: [] for name in events}
        self._waiting: list[TrajectoryRow] = []
        self._lines: StepLines | None = None

    def __call__(self, recorder: TrialRecorder, row: TrajectoryRow) -> None:
        self._waiting.append(row)
        self._lines = recorder.lines
        if len(self._lines) >= _TOGETHER:
            self._judge_waiting()

    def _judge_waiting(self) -> None:
        if self._lines is None:
            return
        found = traces(self._waiting, self._lines.table())
        for name, event in self._events.items():
            said = answers(self._batch.name, name, event, found)
            self._inside[name] += said
            failed = [trace for trace, is_inside in zip(found, said, strict=True) if not is_inside]
            self._lost[name] += [trace.trial for trace in failed if is_lost_by_ending(event, trace)]
        self._lines.drop(len(self._lines))
        self._waiting.clear()

    def verdicts(self) -> Verdicts:
        """Judge what waits, and return all verdicts."""
        self._judge_waiting()
        inside = {name: tuple(said) for name, said in self._inside.items()}
        lost = {name: tuple(trials) for name, trials in self._lost.items()}
        return Verdicts(trials=self._batch.trials, events=inside, lost=lost)


_LINE = layout_of(TrajectoryRow, NO_VECTORS)


def leaf(row: TrajectoryRow, verdicts: Iterable[tuple[bool, bool]]) -> bytes:
    """Return the bytes of a trial in the Merkle tree of its arm.

    They are the packed line, its chain, and a byte per event in the order of the protocol: 1 if the trial is in the
    event, 2 if it failed the event because of how it ended, else 0.
    """
    said = bytes(1 if is_inside else 2 * is_lost for is_inside, is_lost in verdicts)
    return _LINE.hashed(row) + row.chain + said
