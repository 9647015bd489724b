"""The tables of a report: every arm under each bound rule that holds, for events that need no code of the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ccfs.building import event_references
from ccfs.certificates.bounds import Bound
from ccfs.protocol import AttackSpec, Protocol
from ccfs.report_numbers import exact_text
from ccfs.store import Store
from ccfs.table import TableRow, table_rows
from ccfs.trial_lines import trial_lines

__all__ = ["BUDGET", "ArmRows", "EventTable", "event_tables", "shipped_events", "shipped_lines"]

BUDGET = 0.02
"""Budget of the column L where no attack says another."""
_COHORT = (Bound.HOEFFDING, Bound.COHORT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmRows:
    """One arm: what all bound rules share, and (rule, whether it is the claim's, p_L, B_cert, L) for each rule."""

    controller: str
    schedule: str
    trials: int
    counts: tuple[str, ...]
    bounds: tuple[tuple[str, bool, str, str, str], ...]
    shifted: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventTable:
    """The table of one event; `budget` is that of the column L, as a text."""

    event: str
    budget: str
    arms: tuple[ArmRows, ...]


def shipped_events(protocol: Protocol) -> Protocol:
    """Return the protocol with those events only that run no code it names; for reading lines, not for claims."""
    kept = [spec for spec in protocol.events if not event_references(protocol.model_copy(update={"events": (spec,)}))]
    return protocol.model_copy(update={"events": tuple(kept)})


def shipped_lines(store: Store, protocol: Protocol) -> pa.Table:
    """Return one line a trial, with a column for each event that runs no code of the protocol."""
    return trial_lines(store, shipped_events(protocol))


def event_tables(protocol: Protocol, lines: pa.Table, attack: AttackSpec | None) -> list[EventTable]:
    """Return a table for each event that runs no code of the protocol, its last column under `attack`."""
    bounds = _COHORT if protocol.bound in _COHORT else (protocol.bound,)
    budget = BUDGET if attack is None or attack.budget is None else attack.budget
    made = []
    for spec in shipped_events(protocol).events:
        rows = table_rows(lines, protocol, spec.name, bounds)
        groups = [rows[i : i + len(bounds)] for i in range(0, len(rows), len(bounds))]
        arms = tuple(_arm_rows(group, protocol, budget, attack) for group in groups)
        made.append(EventTable(event=spec.name, budget=exact_text(budget), arms=arms))
    return made


def _arm_rows(rows: Sequence[TableRow], protocol: Protocol, budget: float, attack: AttackSpec | None) -> ArmRows:
    cells = [row.cells(budget, None if attack is None else attack.name) for row in rows]
    controller, schedule, _, *counts = cells[0][:7]
    return ArmRows(
        controller=controller,
        schedule=schedule,
        trials=rows[0].trials,
        counts=tuple(counts),
        bounds=tuple(
            (line[2], row.certificate.bound is protocol.bound, line[7], line[8], line[9])
            for row, line in zip(rows, cells, strict=True)
        ),
        shifted=cells[0][10],
    )
