"""How the trials of a run ended, counted for every arm and attack, with costs split by what a replay found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from ccfs.outcomes import Outcome

__all__ = ["Bar", "Ending", "Key", "Segment", "Trial", "bars", "ended_trials"]

_ROOM_OF_A_DIGIT = 0.04
Key = tuple[str, str, int]
"""Arm, attack (or "nominal") and trial."""


class Ending(Enum):
    """What came first in a trial: every trial has exactly one."""

    GOAL = "goal"
    TIMEOUT = "timeout"
    COST = "cost"
    ABSTAINED = "abstained"
    EARLY = "ended early"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial as the page needs it; `at` is the step, counted from 1, at which it ended this way."""

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
        """Whether its number fits into it on a phone: a number cut off would be another number."""
        return self.count >= _ROOM_OF_A_DIGIT * len(str(self.count)) * self.trials


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The trials of one arm, nominal or under one attack; segments that are empty are left out."""

    arm: str
    attack: str
    trials: int
    segments: tuple[Segment, ...]


def ended_trials(lines: pa.Table) -> list[Trial]:
    """Return one value for each of the lines of `trial_lines`, in their order.

    A cost up to and including the first goal's step is a cost, as in the events.
    """
    found = []
    for line in lines.to_pylist():
        ending, at = _ending(line["outcome"], line["steps"], line["goal_step"], line["first_cost_step"])
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


def _ending(outcome: str, steps: int, goal: int | None, cost: int | None) -> tuple[Ending, int]:
    if cost is not None and (goal is None or cost <= goal):
        return Ending.COST, cost + 1
    if goal is not None:
        return Ending.GOAL, goal + 1
    kinds = {
        Outcome.HORIZON: Ending.TIMEOUT,
        Outcome.ABSTAINED: Ending.ABSTAINED,
        Outcome.CRASHED: Ending.CRASHED,
        Outcome.NONFINITE: Ending.CRASHED,
    }
    return kinds.get(Outcome(outcome), Ending.EARLY), steps


def bars(trials: Sequence[Trial], causes: Mapping[Key, str]) -> list[Bar]:
    """Return a bar for every arm and attack, in the order of the arms; `causes` says what replayed costs came from."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.arm, trial.attack), []).append(trial)
    arms = list(dict.fromkeys(arm for arm, _ in groups))
    return [_bar(group, causes) for (_, group) in sorted(groups.items(), key=lambda item: arms.index(item[0][0]))]


def _bar(group: Sequence[Trial], causes: Mapping[Key, str]) -> Bar:
    endings = Counter(trial.ending for trial in group)
    hit = Counter(causes.get(trial.key) for trial in group if trial.ending is Ending.COST)
    known = sorted((cause, count) for cause, count in hit.items() if cause)
    unknown = endings[Ending.COST] - sum(count for _, count in known)
    parts = [
        _part(Ending.GOAL, endings),
        _part(Ending.TIMEOUT, endings),
        *((_style(cause), cause, count) for cause, count in known),
        ("end-cost", "cost, not replayed" if causes else "cost", unknown),
        *(_part(ending, endings) for ending in (Ending.ABSTAINED, Ending.EARLY, Ending.CRASHED)),
    ]
    segments = tuple(
        Segment(style=style, name=name, count=count, trials=len(group)) for style, name, count in parts if count
    )
    return Bar(arm=group[0].arm, attack=group[0].attack, trials=len(group), segments=segments)


def _part(ending: Ending, counts: Mapping[Ending, int]) -> tuple[str, str, int]:
    return f"end-{ending.value.split()[-1]}", ending.value, counts[ending]


def _style(cause: str) -> str:
    return f"end-{cause}" if cause in ("hazard", "vase") else "end-mixed"
