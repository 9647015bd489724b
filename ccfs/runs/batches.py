"""Plan the batches of a run, and turn one batch into the bytes of its files, as a pure function of the protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from ccfs.files.documents import Document
from ccfs.files.imports import add_modules, from_source
from ccfs.files.parquet import parquet_bytes
from ccfs.protocol.model import NOMINAL, Arm, AttackSpec, Protocol, parse_protocol
from ccfs.protocol.registry import IN_MEMORY
from ccfs.protocol.tables import Name
from ccfs.runs.build import build_arm
from ccfs.runs.generators import generators_now, own_generators, refuse_drawn_numbers, refuse_moved
from ccfs.runs.provenance import differences, trial_tables
from ccfs.runs.record import LinesFile, TrajectoryRow, table_of
from ccfs.runs.trial import StopRule, TrialRecorder, TrialTables, run_trial
from ccfs.runtime.interfaces import Controller
from ccfs.runtime.wrapper import ProposalWrapper

__all__ = ["Batch", "Verdicts", "batch_files", "built", "plan", "replay", "run_batch"]


Seen = Callable[[TrialRecorder, TrajectoryRow], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Consecutive trials of one arm, nominal or under one attack.

    Args:
        arm: name of the arm.
        attack: name of the attack, or `nominal`.
        number: number of the batch among those of the arm and attack.
        trials: numbers of its trials.
        is_judged: whether the verdicts of the events are stored: nobody can make the events again, or there are no
            traces.
        keeps_traces: whether the public steps are stored.
        is_repeated: whether these trials have run before. They then run twice, to see whether generators that the parts
            hold move on from trial to trial.
    """

    arm: str
    attack: str
    number: int
    trials: tuple[int, ...]
    is_judged: bool = False
    keeps_traces: bool = True
    is_repeated: bool = False

    @property
    def name(self) -> str:
        """The relative path of the batch's files, without their folder and suffix."""
        return f"{self.arm}/{self.attack}/batch-{self.number:05d}"

    @property
    def is_attacked(self) -> bool:
        """Whether the trials run under an attack. Then the batch has a private log."""
        return self.attack != NOMINAL

    @property
    def traces(self) -> str:
        """The file of the public steps."""
        return f"traces/{self.name}.parquet"

    @property
    def trajectories(self) -> str:
        """The file with one line for each trial."""
        return f"trajectories/{self.name}.parquet"

    @property
    def private(self) -> str:
        """The file of the shifts. Only an attacked batch has one."""
        return f"private/{self.name}.parquet"

    @property
    def verdicts(self) -> str:
        """The file with the verdicts of events that cannot be made again. Only a judged batch has one."""
        return f"verdicts/{self.name}.json"

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the batch: the public ones, then the private log or the verdicts, if there are any."""
        public = (self.traces, self.trajectories) if self.keeps_traces else (self.trajectories,)
        private = (self.private,) if self.is_attacked else ()
        return (*public, *private, *((self.verdicts,) if self.is_judged else ()))

    @property
    def journal(self) -> str:
        """The file that says that the batch is finished, with the hashes of the others."""
        return f"batches/{self.name}.json"


class Verdicts(Document):
    """What events said about the trials of a batch, if they cannot be made again or if the run keeps no traces."""

    omitted: ClassVar[frozenset[str]] = frozenset({"lost"})
    format: Literal["ccfs/verdicts/1"] = Field(
        default="ccfs/verdicts/1", description="Kind and version of this document."
    )
    trials: tuple[int, ...] = Field(description="Numbers of the trials of the batch, in order.")
    events: dict[Name, tuple[bool, ...]] = Field(description="For each event, whether each of these trials is in it.")
    lost: dict[Name, tuple[int, ...]] | None = Field(
        default=None,
        description="For each event, the trials that failed it because of how they ended. Only a run without traces "
        "has this key.",
    )


def plan(protocol: Protocol, arm: Arm, attack: AttackSpec | None, trials: int | None = None) -> Iterator[Batch]:
    """Yield the batches of an arm in order, over its first `trials` trials. Without a number, over all."""
    total = protocol.trials.count if trials is None else trials
    for number, start in enumerate(range(0, total, protocol.batch)):
        yield Batch(
            arm=arm.name,
            attack=NOMINAL if attack is None else attack.name,
            number=number,
            trials=tuple(range(start, min(start + protocol.batch, total))),
            is_judged=not protocol.keeps_traces or any(spec.event == IN_MEMORY for spec in protocol.events),
            keeps_traces=protocol.keeps_traces,
        )


def run_batch(
    canonical: str, batch: Batch, expected: str | None = None, modules: str | None = None
) -> tuple[bytes, ...]:
    """Run a batch and return the bytes of its files, in the order of `batch.files`.

    All parts are made afresh from the protocol's canonical text. The result depends on nothing else, so every worker
    gives the same bytes.

    Args:
        canonical: the protocol's canonical text.
        batch: the batch to run.
        expected: the run's provenance as canonical JSON. A worker with other packages, other code or another
            controller refuses. Without it, nothing is compared.
        modules: a folder in which a worker finds the user's own modules, or None.
    """
    with built(canonical, batch, expected, modules) as (protocol, arm, wrapped, controller):
        return batch_files(protocol, arm, batch, wrapped, controller)


@contextmanager
def built(
    canonical: str, batch: Batch, expected: str | None = None, modules: str | None = None
) -> Iterator[tuple[Protocol, Arm, ProposalWrapper, Controller]]:
    """Make the parts of a batch from the protocol's canonical text. The arguments are those of `run_batch`."""
    if modules is not None:
        add_modules(Path(modules))
    protocol, arm, attack = _parts(canonical, batch)
    try:
        with from_source():
            wrapped, controller = build_arm(protocol, arm, attack)
            try:
                if expected is not None:
                    # Not before the parts are made: only then an import finds what they themselves add to `sys.path`.
                    record = json.loads(expected)
                    _refuse_other_provenance(protocol, record)
                    _refuse_another_controller(arm, controller, record["controllers"])
                yield protocol, arm, wrapped, controller
            finally:
                wrapped.close()
    except SystemExit as error:  # it would end a worker, or end this process with exit code 0
        raise RuntimeError(f"code that the protocol names tried to end the process: {error!r}.") from error


def replay(canonical: str, batch: Batch, trial: int) -> tuple[TrialRecorder, TrajectoryRow]:
    """Run one trial of a batch alone, in a fresh environment."""
    protocol, arm, attack = _parts(canonical, batch)
    with from_source():
        wrapped, controller = build_arm(protocol, arm, attack)
        try:
            return _trial(protocol, arm, wrapped, controller, trial)
        finally:
            wrapped.close()


def _trial(
    protocol: Protocol,
    arm: Arm,
    wrapped: ProposalWrapper,
    controller: Controller,
    trial: int,
    tables: TrialTables | None = None,
) -> tuple[TrialRecorder, TrajectoryRow]:
    return run_trial(
        wrapped,
        controller,
        horizon=protocol.horizon,
        stop=StopRule(goal=protocol.stop.goal, cost=protocol.stop.cost),
        streams=protocol.streams(arm, trial),
        tables=tables,
    )


def batch_files(
    protocol: Protocol,
    arm: Arm,
    batch: Batch,
    wrapped: ProposalWrapper,
    controller: Controller,
    *,
    seen: Seen = lambda recorder, row: None,
) -> tuple[bytes, ...]:
    """Run a batch with parts that are there, and return the bytes of its files without the verdicts.

    Args:
        protocol: what the trials belong to.
        arm: the arm of the batch.
        batch: the batch to run.
        wrapped: the environment.
        controller: the arm's controller.
        seen: called with each trial when it has ended. If no traces are kept, it is also who drops the steps.
    """
    tables, rows = TrialTables(wrapped.widths), []
    traces = LinesFile(tables.steps) if batch.keeps_traces else None
    private = LinesFile(tables.shifts) if batch.is_attacked else None
    before = generators_now()
    for trial in batch.trials:
        recorder, row = _trial(protocol, arm, wrapped, controller, trial, tables)
        rows.append(row)
        seen(recorder, row)
        if traces is not None:
            traces.take()
        if private is not None:
            private.take()
    if generators_now() != before:
        again = [partial(_trial, protocol, arm, wrapped, controller, trial) for trial in reversed(batch.trials)]
        refuse_drawn_numbers(again)
    if batch.is_repeated:
        _refuse_own_generators(protocol, arm, batch, wrapped, controller)
    lines = parquet_bytes(table_of(TrajectoryRow, rows))
    public = (lines,) if traces is None else (traces.finish(), lines)
    return public if private is None else (*public, private.finish())


def _refuse_own_generators(
    protocol: Protocol, arm: Arm, batch: Batch, wrapped: ProposalWrapper, controller: Controller
) -> None:
    """Raise if running the trials of a batch once more leaves a generator in another state than the first time."""
    program = wrapped.program
    parts = {
        "environment": wrapped.env,
        "controller": controller,
        "verifier": program.verifier,
        "fallbacks": program.fallbacks,
    }
    before = own_generators(parts)
    for trial in batch.trials if before else ():
        _trial(protocol, arm, wrapped, controller, trial)
    refuse_moved(before, own_generators(parts), f"the same trial leaves it in two states (trial {batch.trials[-1]})")


def _refuse_another_controller(arm: Arm, controller: Controller, expected: dict[str, str]) -> None:
    name, digest = arm.controller.name, controller.digest
    if digest != expected[name]:
        raise RuntimeError(
            f"controller {name!r} has the digest {digest} here, the run was begun with {expected[name]}. "
            "Restore it to resume, or begin anew."
        )


def _refuse_other_provenance(protocol: Protocol, expected: dict[str, dict[str, str]]) -> None:
    for key, table in trial_tables(protocol).items():
        for name, before, now in differences(expected.get(key), table):
            raise RuntimeError(f"a worker has other `{key}` than the run: {name} is {now}, not {before}.")


def _parts(canonical: str, batch: Batch) -> tuple[Protocol, Arm, AttackSpec | None]:
    protocol = parse_canonical(canonical)
    arm = next(arm for arm in protocol.arms if arm.name == batch.arm)
    attack = None if batch.attack == NOMINAL else next(a for a in protocol.attacks if a.name == batch.attack)
    return protocol, arm, attack


# A worker gets the same text with every batch. The value is frozen, and parts get copies of their arguments
# (`ccfs/runs/build.py`), so a batch cannot tell whether the protocol was read for it or for the batch before.
@lru_cache(maxsize=1)
def parse_canonical(canonical: str) -> Protocol:
    """Return the protocol of a canonical text."""
    return parse_protocol(json.loads(canonical), where="protocol")
