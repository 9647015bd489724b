"""The table of a run: counts, lower bounds and budgets of every arm, computed from its trial lines alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pydantic import Field

from ccfs.attacks.ledger import ALL
from ccfs.certificates.bounds import Bound, Sampling
from ccfs.certificates.rounding import lower_text
from ccfs.files.documents import Digest, Document, Infinite, Table
from ccfs.protocol.model import NOMINAL, Arm, AttackSpec, Protocol
from ccfs.protocol.tables import Name
from ccfs.results.trial_lines import event_column, fallback_column
from ccfs.runs.counting import Certificate, certificate

__all__ = [
    "BUDGET",
    "HEADS",
    "TableDocument",
    "TableRow",
    "markdown",
    "shown_bounds",
    "shown_budget",
    "shown_stage",
    "table_document",
    "table_rows",
    "worst_attack",
]

HEADS = ("Ctrl", "Proposals", "Bound", "Safe", "Goal", "Timeout", "Cost", "p_L", "B_cert", "L", "Shift safe")
BUDGET = 0.02
"""Shift budget of the column L where no attack says another one."""
_COHORT = (Bound.HOEFFDING, Bound.COHORT)
STRATIFIED = "stratified"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One arm under one bound rule.

    Args:
        safe: nominal trials in the event; `goal` of them reached the goal and `timeout` did not.
        cost: nominal trials with a positive cost up to the first goal.
        bound: name of the rule.
        certificate: what the trials certify under this rule.
        shifted: trials in the event under each attack.
        acted: nominal steps by "proposals", by each fallback, and "abstained".
    """

    controller: str
    schedule: str
    bound: str
    trials: int
    safe: int
    goal: int
    timeout: int
    cost: int
    certificate: Certificate
    shifted: Mapping[str, int]
    acted: Mapping[str, int]

    def cells(self, budget: float, attack: str | None, stage: str | None = None) -> tuple[str, ...]:
        """Return the row as texts in the order of `HEADS`. Lower bounds are rounded down.

        Budgets are those of a stage. Without one, they are those of the action or score stage, or of the sensor stage
        if it is the only one. A schedule without noise at the stage has no budget.
        """
        proof, certified = self.certificate, self.budget_of(stage)
        lower = self.lower_at(budget, stage)
        return (
            self.controller,
            self.schedule,
            self.bound,
            *map(str, (self.safe, self.goal, self.timeout, self.cost)),
            lower_text(proof.p_lower, 3),
            "–" if certified is None else lower_text(certified),
            "–" if lower is None else lower_text(lower, 3),
            "–" if attack is None else str(self.shifted[attack]),
        )

    def budget_of(self, stage: str | None) -> float | None:
        """Return the certified budget of a stage, None if there is none."""
        proof = self.certificate
        return proof.budgets.get(proof.schedule.main.value if stage is None else stage)

    def lower_at(self, budget: float, stage: str | None) -> float | None:
        """Return the certified probability under shifts of one stage, None if the stage has no noise."""
        name = self.certificate.schedule.main.value if stage is None else stage
        return self.certificate.lower_at(**{name: budget}) if name in self.certificate.budgets else None


class TableLine(Table):
    """One arm under one bound rule."""

    controller: Name = Field(description="Name of the controller.")
    schedule: Name = Field(description="Name of the schedule.")
    bound: str = Field(description="How the counts became the lower bound.")
    is_claim: bool = Field(description="Whether this is the bound of the protocol, and so the claim.")
    trials: int = Field(description="Nominal trials.")
    safe: int = Field(description="Nominal trials in the event.")
    goal: int = Field(description="Those of them that reached the goal.")
    timeout: int = Field(description="Those of them that did not.")
    cost: int = Field(description="Nominal trials with a positive cost up to the first goal.")
    p_lower: float = Field(description="Lower bound on the nominal probability, rounded down.")
    budget: Infinite | None = Field(
        description="Certified shift budget of the shown stage, rounded down; null without a certificate."
    )
    budgets: dict[str, Infinite | None] = Field(
        description="Certified shift budget of each stage if no other one is shifted, rounded down."
    )
    lower: float | None = Field(
        description="Certified probability under the shown shift budget, rounded down; null if the stage has no noise."
    )
    shifted: dict[Name, int] = Field(description="Trials in the event under each attack.")
    acted: dict[Name, int] = Field(description="Nominal steps by proposals, by each fallback, and abstained.")


class TableDocument(Document):
    """The table of a run."""

    format: Literal["ccfs/table/2"] = Field(default="ccfs/table/2", description="Kind and version of this document.")
    protocol: Digest = Field(description="Hash of the protocol.")
    quick_look_of: Digest | None = Field(description="Hash of the whole protocol if this is a quick look, else null.")
    event: Name = Field(description="Name of the event.")
    stage: str | None = Field(
        description="The stage of the keys `budget` and `lower`. Null is the action or score stage of each schedule, "
        "or the sensor stage if it is the only one."
    )
    shift_budget: float = Field(description="The shift budget of the key `lower`.")
    lines: tuple[TableLine, ...] = Field(description="One line for each arm and bound rule.")


def table_document(
    rows: Sequence[TableRow], protocol: Protocol, event: str, budget: float, stage: str | None = None
) -> TableDocument:
    """Return the table as a document for machines."""
    lines = tuple(
        TableLine(
            controller=row.controller,
            schedule=row.schedule,
            bound=row.bound,
            is_claim=row.bound == protocol.claim.bound,
            trials=row.trials,
            safe=row.safe,
            goal=row.goal,
            timeout=row.timeout,
            cost=row.cost,
            p_lower=row.certificate.p_lower,
            budget=_encoded(row.budget_of(stage)),
            budgets={name: _encoded(value) for name, value in row.certificate.budgets.items()},
            lower=row.lower_at(budget, stage),
            shifted=dict(row.shifted),
            acted=dict(row.acted),
        )
        for row in rows
    )
    return TableDocument(
        protocol=protocol.hash,
        quick_look_of=protocol.quick_look_of,
        event=event,
        stage=stage,
        shift_budget=budget,
        lines=lines,
    )


def _encoded(budget: float | None) -> Infinite | None:
    return "infinity" if budget == math.inf else budget


def table_rows(lines: pa.Table, protocol: Protocol, event: str, bounds: Sequence[Bound | None]) -> list[TableRow]:
    """Return one row for each arm and bound rule, from the lines of `trial_lines` alone.

    Assumes: the lines are all trials of a finished run of the protocol, and the bound rules fit how they were drawn. If
    several rules are shown, only the protocol's own is the claim, because it was chosen before the first trial.
    (Hoeffding's bound on a cohort is never above the cohort bound, so it adds no claim.) A bound None is the stratified
    one of the protocol.
    """
    known = {spec.name for spec in protocol.events}
    if event not in known:
        raise ValueError(f"`event` must be one of {sorted(known)}, got {event!r}.")
    every = lines.to_pylist()
    rows = []
    for arm in protocol.arms:
        mine = [line for line in every if (line["controller"], line["schedule"]) == _key(arm)]
        nominal = [line for line in mine if line["attack"] == NOMINAL]
        found = [line[event_column(event)] for line in nominal]
        inside = [line for line, is_inside in zip(nominal, found, strict=True) if is_inside]
        reached = sum(line["goal_step"] is not None for line in inside)
        for bound in bounds:
            rows.append(
                TableRow(
                    controller=arm.controller.name,
                    schedule=arm.schedule.name,
                    bound=STRATIFIED if bound is None else bound.value,
                    trials=len(nominal),
                    safe=len(inside),
                    goal=reached,
                    timeout=len(inside) - reached,
                    cost=sum(_has_cost_first(line) for line in nominal),
                    certificate=certificate(protocol, arm, event, found, bound),
                    shifted={
                        spec.name: sum(line["attack"] == spec.name and line[event_column(event)] for line in mine)
                        for spec in protocol.attacks
                    },
                    acted=_acted(protocol, nominal),
                )
            )
    return rows


def shown_bounds(protocol: Protocol) -> tuple[Bound | None, ...]:
    """Return the bound rules to show: the protocol's own, and for comparison others that hold for the same trials.

    On a cohort both rules for counts are shown. Beside the stratified bound stands the rule for a count of the trials
    that are independent of each other.
    """
    if protocol.bound is None:
        return (None, Bound.COHORT if protocol.sampling is Sampling.COHORT else Bound.CLOPPER_PEARSON)
    return _COHORT if protocol.bound in _COHORT else (protocol.bound,)


def shown_budget(attack: AttackSpec | None, stage: str | None = None) -> float:
    """Return the shift budget of the column L: that of the shown attack, or `BUDGET` if it has none of this stage."""
    return BUDGET if attack is None or attack.budget is None or attack.stage != stage else attack.budget


def shown_stage(attack: AttackSpec | None) -> str | None:
    """Return the stage of the shown budgets: the one that the shown attack names, else None."""
    return None if attack is None or attack.stage == ALL else attack.stage


def markdown(rows: Sequence[TableRow], budget: float, attack: AttackSpec | None, stage: str | None = None) -> str:
    """Return the table as Markdown. Its last column is under `attack`."""
    name = None if attack is None else attack.name
    lines = [HEADS, ("---",) * len(HEADS), *(row.cells(budget, name, stage) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def worst_attack(rows: Sequence[TableRow], protocol: Protocol) -> AttackSpec | None:
    """Return the attack that left fewest trials in the event over all arms, None if the protocol has none."""
    return min(protocol.attacks, key=lambda spec: sum(row.shifted[spec.name] for row in rows), default=None)


def _has_cost_first(line: Mapping[str, int | None]) -> bool:
    cost, goal = line["first_cost_step"], line["goal_step"]
    return cost is not None and (goal is None or cost <= goal)


def _key(arm: Arm) -> tuple[str, str]:
    return arm.controller.name, arm.schedule.name


def _acted(protocol: Protocol, lines: Sequence[Mapping[str, int]]) -> dict[str, int]:
    columns = {part.name: fallback_column(part.name) for part in protocol.program.fallbacks}
    columns = {"proposals": "proposals", **columns, "abstained": "abstained"}
    return {name: sum(line[column] for line in lines) for name, column in columns.items()}
