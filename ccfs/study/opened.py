"""Look at runs that are there: what is in a folder, what a run claims, and its tables and traces in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from ccfs.certificates.rounding import exact_text
from ccfs.certificates.trajectory import CertificateError
from ccfs.files.documents import Digest, Document
from ccfs.files.frames import axes, data_frame, html_table, markdown_table
from ccfs.images.folder import HEAD as IMAGE_HEAD
from ccfs.images.folder import image_store, read_run
from ccfs.protocol.errors import ProtocolError
from ccfs.protocol.model import Arm, AttackSpec, Protocol
from ccfs.results.certificate import RunCertificate
from ccfs.results.claims import ClaimLine, claim_cells, claim_lines
from ccfs.results.derive import certificate_name
from ccfs.results.table import RunTable, run_table
from ccfs.results.trial_lines import trial_lines
from ccfs.runs.batches import plan
from ccfs.runs.manifest import MANIFEST
from ccfs.runs.reader import RunReader
from ccfs.runs.store import RunError, Store, Trust
from ccfs.runs.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

__all__ = [
    "OpenedRun",
    "RunList",
    "RunSummary",
    "TraceTable",
    "list_runs",
    "load_run",
    "summary",
]

_DEEPEST = 3  # folders below the one that is listed
_PROTOCOL = "protocol.json"


class RunSummary(Document):
    """What a run is, how far it is, and what it claims."""

    format: Literal["ccfs/run-summary/1"] = Field(
        default="ccfs/run-summary/1", description="Kind and version of this document."
    )
    folder: str = Field(description="The folder, as it was given.")
    kind: Literal["trials", "images", "unreadable"] = Field(description="What was counted.")
    name: str = Field(description="Name of the study, or of the network.")
    description: str = Field(description="Its description, or why it cannot be read.")
    protocol: Digest | None = Field(description="Hash of the protocol. Null for images.")
    is_finished: bool = Field(description="Whether all trials are there and the files are listed in a manifest.")
    batches: int = Field(description="Batches that are finished.")
    planned: int = Field(description="Batches that are planned.")
    arms: tuple[str, ...] = Field(description="Names of the arms.")
    events: tuple[str, ...] = Field(description="Names of the events.")
    attacks: tuple[str, ...] = Field(description="Names of the attacks.")
    claims: tuple[ClaimLine, ...] = Field(description="One line for each certificate that is there.")

    @property
    def state(self) -> str:
        """How far it is, in words."""
        if self.kind == "unreadable":
            return "unreadable"
        if not self.is_finished:
            return f"{self.batches} of {self.planned} batches" if self.planned else "unfinished"
        if self.kind == "images":
            return "finished"
        certified = sum(claim.is_certified for claim in self.claims)
        return f"{certified} of {len(self.claims)} certified" if self.claims else "finished, not certified yet"


class RunList(Document):
    """The runs in a folder."""

    format: Literal["ccfs/run-list/1"] = Field(
        default="ccfs/run-list/1", description="Kind and version of this document."
    )
    runs: tuple[RunSummary, ...] = Field(description="One summary for each run, in the order of their folders.")


def list_runs(folder: Path) -> RunList:
    """Return the runs in a folder and in the folders below it. Nothing of them is executed."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: must be a folder, but there is none.")
    return RunList(runs=tuple(summary(found) for found in _folders(folder, _DEEPEST)))


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / _PROTOCOL).is_file() or (folder / IMAGE_HEAD).is_file():
        yield folder
    elif depth:
        for inner in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
            yield from _folders(inner, depth - 1)


def summary(folder: Path) -> RunSummary:
    """Return what a run is. One that cannot be read says why."""
    try:
        return _images(folder) if (folder / IMAGE_HEAD).is_file() else _trials(folder)
    except (RunError, ProtocolError, CertificateError, ValueError, OSError) as error:
        return _summary(folder, kind="unreadable", name=folder.name, description=str(error))


def _trials(folder: Path) -> RunSummary:
    store = Store(folder)
    protocol = store.protocol()
    batches = [
        batch for arm in protocol.arms for attack in (None, *protocol.attacks) for batch in plan(protocol, arm, attack)
    ]
    return _summary(
        folder,
        kind="trials",
        name=protocol.name,
        description=protocol.description,
        protocol=protocol.hash,
        is_finished=store.exists(MANIFEST),
        batches=sum(store.exists(batch.journal) for batch in batches),
        planned=len(batches),
        arms=tuple(arm.name for arm in protocol.arms),
        events=tuple(event.name for event in protocol.events),
        attacks=tuple(attack.name for attack in protocol.attacks),
        claims=claim_lines(_stored(store, protocol)),
    )


def _images(folder: Path) -> RunSummary:
    run = read_run(folder)
    named = "counted by a program" if run.asked is None else f"{run.asked.title}, {run.asked.dataset}"
    return _summary(
        folder,
        kind="images",
        name=named,
        description=f"sigma {exact_text(run.key.sigma)}, filter {run.variant}",
        is_finished=image_store(folder).exists(MANIFEST),
    )


def _summary(folder: Path, *, kind: Literal["trials", "images", "unreadable"], **known: object) -> RunSummary:
    empty = {
        "protocol": None, "is_finished": False, "batches": 0, "planned": 0,
        "arms": (), "events": (), "attacks": (), "claims": (),
    }  # fmt: skip
    return RunSummary.model_validate({"folder": str(folder), "kind": kind, **empty, **known})


def _stored(store: Store, protocol: Protocol) -> list[RunCertificate]:
    names = [certificate_name(arm, event) for arm in protocol.arms for event in protocol.events]
    return [
        RunCertificate.from_bytes(store.read(name), where=str(store.path(name))) for name in names if store.exists(name)
    ]


@dataclass(frozen=True)
class OpenedRun:
    """A finished run in Python: its certificates, tables and traces."""

    store: Store

    @cached_property
    def protocol(self) -> Protocol:
        """The protocol that the run belongs to."""
        return self.store.protocol()

    @property
    def certificates(self) -> tuple[RunCertificate, ...]:
        """The stored certificates. Every number is recomputed from the counts."""
        return tuple(_stored(self.store, self.protocol))

    def table(self, event: str | None = None, *, budget: float | None = None, stage: str | None = None) -> RunTable:
        """Return the table about an event, as `ccfs table` prints it."""
        return run_table(self.store, event=event, budget=budget, stage=stage)

    def trials(self) -> DataFrame:
        """Return one line for each trial as a pandas frame: how it ended, its return, its cost and its events."""
        return data_frame(trial_lines(self.store, self.protocol).to_pylist())

    def trace(self, trial: int = 0, *, arm: str | None = None, attack: str | None = None) -> TraceTable:
        """Return the steps of one trial.

        Args:
            trial: number of the trial, from 0.
            arm: name of the arm. It may be left out if there is only one.
            attack: name of an attack. None is the nominal trial.
        """
        arms = {one.name: one for one in self.protocol.arms}
        name = next(iter(arms)) if arm is None and len(arms) == 1 else arm
        attacks: dict[str | None, AttackSpec | None] = {None: None}
        attacks |= {one.name: one for one in self.protocol.attacks}
        if name not in arms:
            raise ValueError(f"`arm` must be one of {', '.join(arms)}, got {arm!r}.")
        if attack not in attacks:
            raise ValueError(f"`attack` must be one of {', '.join(filter(None, attacks))}, got {attack!r}.")
        return TraceTable(self._found(arms[name], attacks[attack], trial), name)

    def _found(self, arm: Arm, attack: AttackSpec | None, trial: int) -> Trace:
        reader = RunReader(self.store, self.protocol)
        for batch in reader.batches(arm, attack):
            if trial in batch.trials:
                return reader.traces(batch)[batch.trials.index(trial)]
        raise ValueError(f"`trial` must be one of the run's trials, got {trial!r}.")

    def __str__(self) -> str:
        """Return the claims as a table of text."""
        found = summary(self.store.root)
        return f"{found.name}: {found.state}\n\n{markdown_table(*claim_cells(found.claims))}"

    def _repr_html_(self) -> str:
        found = summary(self.store.root)
        return html_table(*claim_cells(found.claims), caption=f"{found.name}: {found.state}")


def load_run(folder: str | Path, *, trust: bool = False) -> OpenedRun:
    """Open a run that `ccfs run` or `certify_policy` left.

    Args:
        folder: the run.
        trust: whether code that the run names may run, in a confined process. An event of your own needs it.
    """
    store = Store(Path(folder), trust=Trust.CONFINED if trust else Trust.NONE)
    store.protocol()
    return OpenedRun(store)


@dataclass(frozen=True)
class TraceTable:
    """The public steps of one trial, as a table and as a picture."""

    trace: Trace
    arm: str

    def to_frame(self) -> DataFrame:
        """Return one line per step: who acted, center, action, reward, cost and goal."""
        return data_frame(self._lines())

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw actions over time, with the steps of fallbacks marked, and return the axes of matplotlib."""
        drawn = axes(ax)
        actions, steps = self.trace.actions, np.arange(1, len(self.trace) + 1)
        for i in range(actions.shape[1]):
            drawn.plot(steps, actions[:, i], label=f"action {i}")
        fell_back = [
            step for step, source in zip(steps.tolist(), self.trace.source, strict=True) if source != "proposal"
        ]
        if fell_back:
            ticks = drawn.get_xaxis_transform()
            drawn.plot(fell_back, [0.02] * len(fell_back), "|", color="0.3", transform=ticks, label="no proposal")
        drawn.set(xlabel="step", ylabel="action")
        drawn.set_title(f"{self.arm}, trial {self.trace.trial}: {self.trace.outcome.value}", fontsize="medium")
        drawn.legend(fontsize="small")
        return drawn

    def _lines(self) -> list[dict[str, object]]:
        trace = self.trace
        columns: dict[str, Sequence[object]] = {"source": trace.source, "index": trace.index.tolist()}
        for name, table in (("center", trace.centers), ("action", trace.actions)):
            columns |= {f"{name}_{i}": table[:, i].tolist() for i in range(table.shape[1])}
        columns |= {"reward": trace.reward.tolist(), "cost": trace.cost.tolist(), "goal": trace.goal.tolist()}
        lines = zip(*columns.values(), strict=True)
        return [dict(zip(("step", *columns), (step, *line), strict=True)) for step, line in enumerate(lines, start=1)]

    def _repr_html_(self) -> str:
        lines = self._lines()
        heads = tuple(lines[0]) if lines else ("step",)
        rows = [
            [f"{value:.4g}" if isinstance(value, float) else str(value) for value in line.values()] for line in lines
        ]
        more = f" The first 50 of {len(rows)} steps." if len(rows) > 50 else ""
        return html_table(heads, rows[:50], caption=f"{self.arm}, {self.trace!r}.{more}")
