"""The table of a run: counts, lower bounds and budgets of every arm, computed from its trial lines alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pydantic import Field

from ccfs.attacks.ledger import ALL
from ccfs.certificates.bounds import Bound, Sampling
from ccfs.certificates.rounding import lower_text
from ccfs.files.documents import Digest, Document, Infinite, Table
from ccfs.files.frames import axes, data_frame, html_table, markdown_table
from ccfs.protocol.model import NOMINAL, Arm, AttackSpec, Protocol
from ccfs.protocol.tables import Name
from ccfs.results.derive import refuse_missing_trials
from ccfs.results.trial_lines import event_column, fallback_column, trial_lines
from ccfs.runs.counting import Certificate, certificate
from ccfs.runs.outcomes import Outcome
from ccfs.runs.store import Store

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

__all__ = [
    "BUDGET",
    "LEFT",
    "RunTable",
    "TableDocument",
    "TableRow",
    "heads",
    "markdown",
    "run_table",
    "shown_bounds",
    "shown_budget",
    "shown_stage",
    "table_document",
    "table_rows",
    "worst_attack",
]

BUDGET = 0.02
"""Shift budget of the column L where no attack says another one."""
_COHORT = (Bound.HOEFFDING, Bound.COHORT)
LEFT = 3
"""Columns of texts, which are set to the left. The others are numbers."""
_FULL = (Outcome.HORIZON.value, Outcome.GOAL.value)
Line = Mapping[str, Any]
STRATIFIED = "stratified"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One arm under one bound rule.

    Args:
        bound: name of the rule.
        counts: nominal trials by the columns of the event. The first is those in the event.
        certificate: what the trials certify under this rule.
        shifted: trials in the event under each attack.
        acted: nominal steps by "proposals", by each fallback, and "abstained".
    """

    controller: str
    schedule: str
    bound: str
    trials: int
    counts: Mapping[str, int]
    certificate: Certificate
    shifted: Mapping[str, int]
    acted: Mapping[str, int]

    @property
    def successes(self) -> int:
        """Nominal trials in the event."""
        return self.certificate.successes

    def cells(self, budget: float, attack: str | None, stage: str | None = None) -> tuple[str, ...]:
        """Return the row as texts in the order of `heads`. Lower bounds are rounded down.

        Budgets are those of a stage. Without one, they are those of the action or score stage, or of the sensor stage
        if it is the only one. A schedule without noise at the stage has no budget.
        """
        proof, certified = self.certificate, self.budget_of(stage)
        lower = self.lower_at(budget, stage)
        return (
            self.controller,
            self.schedule,
            self.bound,
            *map(str, self.counts.values()),
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
    successes: int = Field(description="Nominal trials in the event.")
    counts: dict[str, int] = Field(
        description="Nominal trials by the columns of the event: those in it, and how the others failed. For "
        "`no-cost-until-goal` two columns divide those in it by the goal."
    )
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

    format: Literal["ccfs/table/3"] = Field(default="ccfs/table/3", description="Kind and version of this document.")
    protocol: Digest = Field(description="Hash of the protocol.")
    quick_look_of: Digest | None = Field(description="Hash of the whole protocol if this is a quick look, else null.")
    event: Name = Field(description="Name of the event.")
    stage: str | None = Field(
        description="The stage of the keys `budget` and `lower`. Null is the action or score stage of each schedule, "
        "or the sensor stage if it is the only one."
    )
    shift_budget: float = Field(description="The shift budget of the key `lower`.")
    lines: tuple[TableLine, ...] = Field(description="One line for each arm and bound rule.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """The table of a run about one event, for people: in a notebook, in a paper or as a document for machines."""

    rows: tuple[TableRow, ...]
    protocol: Protocol
    event: str
    budget: float
    stage: str | None
    attack: AttackSpec | None

    @property
    def title(self) -> str:
        """What the table is about, in one line."""
        look = "" if self.protocol.quick_look_of is None else ", QUICK LOOK: no claim about the whole protocol"
        shifted = "" if self.attack is None else f", shifted by {self.attack.name}"
        of_stage = "" if self.stage is None else f" of the {self.stage} stage"
        trials = f"{self.rows[0].trials} trials per arm"
        return f"{self.protocol.name}, {self.event}, {trials}, L at B = {self.budget:g}{of_stage}{shifted}{look}"

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads of the columns. The first three are texts."""
        return heads(self.rows)

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """The rows as texts. Lower bounds are rounded down."""
        name = None if self.attack is None else self.attack.name
        return [row.cells(self.budget, name, self.stage) for row in self.rows]

    @property
    def document(self) -> TableDocument:
        """The table as a document for machines."""
        return table_document(self.rows, self.protocol, self.event, self.budget, self.stage)

    def to_frame(self) -> DataFrame:
        """Return the table as a pandas frame, with numbers and not with texts. A budget may be infinite."""
        made = []
        for line in self.document.lines:
            entries = line.model_dump(exclude={"counts", "budgets", "shifted", "acted"})
            budgets = {f"budget_{name}": _decoded(value) for name, value in line.budgets.items()}
            shifted = {f"under_{name}": hits for name, hits in line.shifted.items()}
            made.append({**entries, **line.counts, **budgets, **shifted, "budget": _decoded(line.budget)})
        return data_frame(made)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the certified budget of each arm under the protocol's own bound, and return the axes of matplotlib."""
        drawn = axes(ax)
        claims = [row for row in self.rows if row.bound == self.protocol.claim.bound]
        names = [f"{row.controller}/{row.schedule}" for row in claims]
        drawn.barh(names, [row.budget_of(self.stage) or 0.0 for row in claims], height=0.6)
        for place, row in enumerate(claims):
            if row.budget_of(self.stage) is None:
                drawn.text(0.0, place, " not certified", va="center")
        drawn.invert_yaxis()
        drawn.set(xlabel=f"certified budget, {self.event}, target {self.protocol.claim.target:g}")
        return drawn

    def __str__(self) -> str:
        """Return the table as text, with its title."""
        return f"{self.title}\n\n{markdown_table(self.heads, self.cells)}"

    def _repr_html_(self) -> str:
        return html_table(self.heads, self.cells, caption=self.title)


def run_table(
    store: Store, *, event: str | None = None, budget: float | None = None, stage: str | None = None
) -> RunTable:
    """Return the table of a finished run.

    A run on a cohort is shown under both bounds that hold there. The claim is the one under the protocol's own bound.

    Args:
        store: the run.
        event: name of the event. None is the protocol's first.
        budget: shift budget of the column L. None is that of the shown attack, or `BUDGET`.
        stage: stage of the budgets. None is that of the shown attack.
    """
    if not (budget is None or 0.0 <= budget < math.inf):
        raise ValueError(f"`budget` must be finite and at least 0, got {budget}.")
    protocol = store.protocol()
    refuse_missing_trials(store, protocol)
    known = {found.value for arm in protocol.arms for found in arm.schedule.plan.stages}
    if stage is not None and stage not in known:
        raise ValueError(f"`stage` must be one of {', '.join(sorted(known))}, got {stage!r}.")
    name = event or protocol.events[0].name
    # Lines of this event alone, so that no other event runs its code.
    shown_event = protocol.model_copy(update={"events": tuple(part for part in protocol.events if part.name == name)})
    rows = table_rows(trial_lines(store, shown_event), protocol, name, shown_bounds(protocol))
    attack = worst_attack(rows, protocol)
    of_stage = shown_stage(attack) if stage is None else stage
    shown = shown_budget(attack, of_stage) if budget is None else budget
    return RunTable(rows=tuple(rows), protocol=protocol, event=name, budget=shown, stage=of_stage, attack=attack)


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
            successes=row.successes,
            counts=dict(row.counts),
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


def _decoded(budget: Infinite | None) -> float | None:
    return math.inf if budget == "infinity" else budget


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
    (spec,) = (part for part in protocol.events if part.name == event)
    nominal = [line for line in every if line["attack"] == NOMINAL]
    names = _columns(spec.event, [line for line in nominal if not line[event_column(event)]])
    rows = []
    for arm in protocol.arms:
        mine = [line for line in every if (line["controller"], line["schedule"]) == _key(arm)]
        counted = [line for line in mine if line["attack"] == NOMINAL]
        counts = Counter(
            name for line in counted for name in _places(spec.event, line, is_inside=line[event_column(event)])
        )
        found = [line[event_column(event)] for line in counted]
        for bound in bounds:
            rows.append(
                TableRow(
                    controller=arm.controller.name,
                    schedule=arm.schedule.name,
                    bound=STRATIFIED if bound is None else bound.value,
                    trials=len(counted),
                    counts={name: counts[name] for name in names},
                    certificate=certificate(protocol, arm, event, found, bound),
                    shifted={
                        attack.name: sum(line["attack"] == attack.name and line[event_column(event)] for line in mine)
                        for attack in protocol.attacks
                    },
                    acted=_acted(protocol, counted),
                )
            )
    return rows


# For events that look at goal, cost or return: the column of successes, then the other columns.
_KNOWN = {
    "no-cost-until-goal": ("Safe", "Goal", "Timeout", "Cost"),
    "goal-before-cost": ("Success", "Cost", "No goal"),
    "cost-at-most": ("Within", "Above", "Ended"),
    "return-at-least": ("Reached", "Below", "Ended"),
}


def _columns(event: str, failed: Sequence[Line]) -> tuple[str, ...]:
    """Return the names of an event's columns. An event that we do not know has one for each way of ending."""
    outcomes = [_outcome(kind.value) for kind in Outcome if any(line["outcome"] == kind.value for line in failed)]
    return _KNOWN.get(event, ("Success", *outcomes))


def _places(event: str, line: Line, *, is_inside: bool) -> tuple[str, ...]:
    """Return the columns in which a nominal trial is counted."""
    has_goal, has_cost = line["goal_step"] is not None, _has_cost_first(line)
    if event == "no-cost-until-goal":
        inside = ("Safe", "Goal" if has_goal else "Timeout") if is_inside else ()
        return (*inside, *(("Cost",) if has_cost else ()))
    if is_inside:
        return _KNOWN.get(event, ("Success",))[:1]
    if event == "goal-before-cost":
        return ("Cost" if has_cost else "No goal",)
    if event in _KNOWN:
        return _KNOWN[event][1:2] if line["outcome"] in _FULL else ("Ended",)
    return (_outcome(line["outcome"]),)


def _outcome(word: str) -> str:
    return f"Failed: {word}"


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


def heads(rows: Sequence[TableRow]) -> tuple[str, ...]:
    """Return the heads of the columns, which follow the event."""
    first, *others = rows[0].counts
    return ("Ctrl", "Proposals", "Bound", first, *others, "p_L", "B_cert", "L", f"Shift {first.lower()}")


def markdown(rows: Sequence[TableRow], budget: float, attack: AttackSpec | None, stage: str | None = None) -> str:
    """Return the table as Markdown. Its last column is under `attack`."""
    name = None if attack is None else attack.name
    return markdown_table(heads(rows), [row.cells(budget, name, stage) for row in rows])


def worst_attack(rows: Sequence[TableRow], protocol: Protocol) -> AttackSpec | None:
    """Return the attack that left fewest trials in the event over all arms, None if the protocol has none."""
    return min(protocol.attacks, key=lambda spec: sum(row.shifted[spec.name] for row in rows), default=None)


def _has_cost_first(line: Line) -> bool:
    cost, goal = line["first_cost_step"], line["goal_step"]
    return cost is not None and bool(goal is None or cost <= goal)


def _key(arm: Arm) -> tuple[str, str]:
    return arm.controller.name, arm.schedule.name


def _acted(protocol: Protocol, lines: Sequence[Mapping[str, int]]) -> dict[str, int]:
    columns = {part.name: fallback_column(part.name) for part in protocol.program.fallbacks}
    columns = {"proposals": "proposals", **columns, "abstained": "abstained"}
    return {name: sum(line[column] for line in lines) for name, column in columns.items()}
