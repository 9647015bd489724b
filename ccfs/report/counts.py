"""The counts on a report: how trials ended, the table of all arms, and who acted when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ccfs.certificates.rounding import exact_text
from ccfs.protocol.model import Arm, AttackSpec, EventSpec, Protocol
from ccfs.results.table import TableRow, shown_bounds, shown_budget, shown_stage, table_rows
from ccfs.results.trial_lines import trial_lines
from ccfs.runs import trust
from ccfs.runs.outcomes import Outcome
from ccfs.runs.reader import RunReader
from ccfs.runs.store import Store

__all__ = [
    "ArmRows",
    "Bar",
    "Ending",
    "EventTable",
    "Key",
    "Segment",
    "Sources",
    "Trial",
    "bars",
    "ended_trials",
    "event_tables",
    "is_about_goal_and_cost",
    "proposal_bins",
    "shipped_events",
    "shipped_lines",
    "sources",
]

_ROOM_OF_A_DIGIT = 0.04
Key = tuple[str, str, int]
"""Arm, attack (or "nominal") and trial."""


class Ending(Enum):
    """What came first in a trial, or why it ended. Every trial has exactly one ending.

    Goal, timeout and cost are words of protocols with an event about what comes first. See `is_about_goal_and_cost`.
    """

    GOAL = "goal"
    TIMEOUT = "timeout"
    HORIZON = "reached the horizon"
    COST = "cost"
    ABSTAINED = "abstained"
    EARLY = "ended by the environment"
    CRASHED = "crashed"


_GOAL_AND_COST = frozenset({"no-cost-until-goal", "goal-before-cost"})
_ENDINGS = {
    Outcome.HORIZON: Ending.HORIZON,
    Outcome.GOAL: Ending.GOAL,
    Outcome.COST: Ending.COST,
    Outcome.ABSTAINED: Ending.ABSTAINED,
    Outcome.TERMINATED: Ending.EARLY,
    Outcome.TRUNCATED: Ending.EARLY,
    Outcome.CRASHED: Ending.CRASHED,
    Outcome.NONFINITE: Ending.CRASHED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial as the page needs it. `at` is the step, counted from 1, at which it ended this way."""

    arm: str
    attack: str
    trial: int
    reset_seed: int
    steps: int
    ending: Ending
    at: int

    @property
    def key(self) -> Key:
        """Arm, attack and trial."""
        return self.arm, self.attack, self.trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a bar of `trials`."""

    style: str
    name: str
    count: int
    trials: int

    @property
    def has_room(self) -> bool:
        """Whether its number fits into it on a phone. A number that is cut off would be another number."""
        return self.count >= _ROOM_OF_A_DIGIT * len(str(self.count)) * self.trials


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The trials of one arm, nominal or under one attack. Empty segments are left out."""

    arm: str
    attack: str
    trials: int
    segments: tuple[Segment, ...]


def is_about_goal_and_cost(specs: Sequence[EventSpec]) -> bool:
    """Return whether an event asks what comes first, a goal or a cost. Others need no such words."""
    return any(spec.event in _GOAL_AND_COST or is_about_goal_and_cost(spec.events) for spec in specs)


def ended_trials(lines: pa.Table, protocol: Protocol) -> list[Trial]:
    """Return one value for each of the lines of `trial_lines`, in their order.

    If an event asks what comes first, a cost at or before the step of the first goal makes the ending a cost, as in the
    events. Otherwise the ending is why the trial took no further step.
    """
    found, has_words = [], is_about_goal_and_cost(protocol.events)
    for line in lines.to_pylist():
        if has_words:
            ending, at = _first(line["outcome"], line["steps"], line["goal_step"], line["first_cost_step"])
        else:
            ending, at = _ENDINGS[Outcome(line["outcome"])], line["steps"]
        found.append(
            Trial(
                arm=f"{line['controller']}/{line['schedule']}",
                attack=line["attack"],
                trial=line["trial"],
                reset_seed=line["reset_seed"],
                steps=line["steps"],
                ending=ending,
                at=at,
            )
        )
    return found


def _first(outcome: str, steps: int, goal: int | None, cost: int | None) -> tuple[Ending, int]:
    if cost is not None and (goal is None or cost <= goal):
        return Ending.COST, cost + 1
    if goal is not None:
        return Ending.GOAL, goal + 1
    ending = _ENDINGS[Outcome(outcome)]
    return Ending.TIMEOUT if ending is Ending.HORIZON else ending, steps


def bars(trials: Sequence[Trial]) -> list[Bar]:
    """Return a bar for every arm and attack, in the order of the arms, from the stored traces alone."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.arm, trial.attack), []).append(trial)
    arms = list(dict.fromkeys(arm for arm, _ in groups))
    return [_bar(group) for (_, group) in sorted(groups.items(), key=lambda item: arms.index(item[0][0]))]


def _bar(group: Sequence[Trial]) -> Bar:
    counts = Counter(trial.ending for trial in group)
    segments = tuple(
        Segment(style=f"end-{ending.name.lower()}", name=ending.value, count=counts[ending], trials=len(group))
        for ending in Ending
        if counts[ending]
    )
    return Bar(arm=group[0].arm, attack=group[0].attack, trials=len(group), segments=segments)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmRows:
    """One arm in the table. `bounds` has (rule, whether it is the claim's, p_L, B_cert, L) for each bound rule."""

    controller: str
    schedule: str
    trials: int
    counts: tuple[str, ...]
    bounds: tuple[tuple[str, bool, str, str, str], ...]
    shifted: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventTable:
    """The table of one event. `budget` is the shift budget of the column L, as text. `stage` names its stage."""

    event: str
    heads: tuple[str, ...]
    budget: str
    stage: str | None
    arms: tuple[ArmRows, ...]


def shipped_events(protocol: Protocol) -> Protocol:
    """Return the protocol without the events that run code it names. Use it to read lines, never for claims."""
    return protocol.model_copy(update={"events": trust.shipped_events(protocol)})


def shipped_lines(store: Store, protocol: Protocol) -> pa.Table:
    """Return one line per trial, with a column for each event that runs no code of the protocol."""
    return trial_lines(store, shipped_events(protocol))


def event_tables(protocol: Protocol, lines: pa.Table, attack: AttackSpec | None) -> list[EventTable]:
    """Return a table for each event that runs no code of the protocol. Its last column is under `attack`."""
    bounds, stage = shown_bounds(protocol), shown_stage(attack)
    budget = shown_budget(attack, stage)
    made = []
    for spec in shipped_events(protocol).events:
        rows = table_rows(lines, protocol, spec.name, bounds)
        groups = [rows[i : i + len(bounds)] for i in range(0, len(rows), len(bounds))]
        arms = tuple(_arm_rows(group, protocol, budget, attack, stage) for group in groups)
        names = tuple(rows[0].counts)
        made.append(EventTable(event=spec.name, heads=names, budget=exact_text(budget), stage=stage, arms=arms))
    return made


def _arm_rows(
    rows: Sequence[TableRow], protocol: Protocol, budget: float, attack: AttackSpec | None, stage: str | None
) -> ArmRows:
    cells = [row.cells(budget, None if attack is None else attack.name, stage) for row in rows]
    return ArmRows(
        controller=rows[0].controller,
        schedule=rows[0].schedule,
        trials=rows[0].trials,
        counts=tuple(map(str, rows[0].counts.values())),
        bounds=tuple(
            (line[2], row.bound == protocol.claim.bound, line[-4], line[-3], line[-2])
            for row, line in zip(rows, cells, strict=True)
        ),
        shifted=cells[0][-1],
    )


_COLUMNS = 120


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sources:
    """Shares of trials by who acted, array [kind, column]. Columns are spans of time between `edges`.

    In each column the shares add up to 1 together with the trials that have ended.
    """

    names: tuple[str, ...]
    styles: tuple[str, ...]
    shares: NDArray[np.float64]
    totals: tuple[int, ...]
    edges: tuple[float, ...]
    trials: int


def proposal_bins(count: int) -> list[tuple[str, int]]:
    """Return (name, first index past the bin) for the proposals of a block.

    Up to six proposals have a bin each. More of them share bins that double in size.

    >>> proposal_bins(2)
    [('proposal 1', 1), ('proposal 2', 2)]
    >>> proposal_bins(7)
    [('proposal 1', 1), ('proposal 2', 2), ('proposals 3–4', 4), ('proposals 5–7', 7)]
    """
    ends = list(range(1, count + 1)) if count <= 6 else [1, 2]
    while ends[-1] < count:
        ends.append(min(2 * ends[-1], count))
    starts = [0, *ends[:-1]]
    return [
        (f"proposal {end}" if end == start + 1 else f"proposals {start + 1}–{end}", end)
        for start, end in zip(starts, ends, strict=True)
    ]


def sources(store: Store, protocol: Protocol, arm: Arm, attack: AttackSpec | None) -> Sources:
    """Count each step's source over the trials of an arm. A trial that abstained stays counted as abstained."""
    plan = arm.schedule.plan
    counts_of = [1] if plan.deciding is None else [entry.count for entry in plan.blocks(plan.deciding)]
    bins = proposal_bins(max(counts_of))
    fallbacks = [f"fallback {part.name}" for part in protocol.program.fallbacks]
    names = (*(name for name, _ in bins), *fallbacks, "abstained")
    counts = np.zeros((len(names), protocol.horizon), dtype=np.int64)
    ends = np.array([end for _, end in bins])
    trials = 0
    reader = RunReader(store, protocol)
    for batch in reader.batches(arm, attack):
        table = reader.columns(batch, ["t", "source", "index"])
        step, index = table.column("t").to_numpy(), table.column("index").to_numpy()
        source = table.column("source").to_numpy()
        kind = np.full(len(step), len(names) - 1)
        proposed, fell = source == "proposal", source == "fallback"
        # `ends` are exclusive, so an index equal to an end belongs to the next bin.
        kind[proposed] = np.searchsorted(ends, index[proposed], side="right")
        kind[fell] = len(bins) + index[fell]
        np.add.at(counts, (kind, step), 1)
        trials += len(batch.trials)
    totals = tuple(int(row.sum()) for row in counts)
    # A trial that abstained has no later steps. It stays in the picture as abstained until the horizon.
    counts[-1] = np.cumsum(counts[-1])
    columns = np.array_split(np.arange(protocol.horizon), min(protocol.horizon, _COLUMNS))
    shares = np.stack([counts[:, part].mean(axis=1) for part in columns], axis=1) / max(trials, 1)
    return Sources(
        names=names,
        styles=_styles(len(bins), len(fallbacks)),
        shares=shares,
        totals=totals,
        edges=(*(float(part[0]) for part in columns), float(protocol.horizon)),
        trials=trials,
    )


def _styles(bins: int, fallbacks: int) -> tuple[str, ...]:
    return (
        *(f"p{min(i, 5)}" for i in range(bins)),
        *(f"f{min(i, 2)}" for i in range(fallbacks)),
        "abstained",
    )
