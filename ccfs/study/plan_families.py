"""Forecast how many trials a named disturbance needs, by drawing runs from the weighed trials of a pilot.

Everything here is a forecast. It is no certificate, and no certificate uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ccfs.certificates import checks
from ccfs.certificates.bounds import Bound
from ccfs.certificates.families import certify_family
from ccfs.certificates.gaussian import event_lower
from ccfs.certificates.rounding import exact_text, lower_text
from ccfs.files.documents import Table
from ccfs.protocol.model import Protocol
from ccfs.results.families import FamilyDocument, alone, stored_families
from ccfs.runs.store import Store

__all__ = ["FAMILY_HEADS", "FamilyDesign", "FamilyPlan", "plan_families"]

FAMILY_HEADS = ("trials", "chance", "keeps, nearly always", "keeps, median")
_REPEATS = 20  # simulated runs per number of trials
_FEWEST, _MOST = 32, 65_536
_NOTE = "A forecast from the weighed trials of a pilot. It certifies nothing."


class FamilyPlanLine(Table):
    """What one number of trials promises."""

    trials: int = Field(description="Number of trials.")
    chance: float = Field(description="Probability that the target is certified in the whole box, as forecast.")
    nearly_always: float | None = Field(
        description="Probability that the event is certified to keep, with the wanted chance. Null: none."
    )
    median: float | None = Field(description="The same, half of the time.")


class FamilyPlan(Table):
    """How many trials the claim about a named disturbance needs. A forecast, no certificate."""

    name: str = Field(description="Arm, event and disturbance.")
    note: str = Field(default=_NOTE, description="What these numbers are.")
    target: float = Field(description="The probability that the event is to keep in the whole box.")
    delta: float = Field(description="Failure probability of all claims of the family together.")
    family: int = Field(description="Number of claims that share `delta`.")
    pilot: int = Field(description="Trials of the pilot.")
    chance: float = Field(description="The wanted probability of certifying the target.")
    needed: int | None = Field(description="Number of trials that does, as forecast. Null if none of the tried does.")
    lines: tuple[FamilyPlanLine, ...] = Field(description="The forecast for some numbers of trials.")

    @property
    def sentence(self) -> str:
        """The answer in words."""
        if self.needed is None:
            best = self.lines[-1]
            kept = "nothing" if best.median is None else lower_text(best.median)
            return (
                f"{self.name}: {best.trials} trials do not certify the target {exact_text(self.target)} with "
                f"probability {self.chance:g}. Half of the time they give {kept}. Choose a smaller box or target."
            )
        return (
            f"{self.name}: {self.needed} trials certify the target {exact_text(self.target)} in the whole box with "
            f"probability {self.chance:g}, as forecast."
        )

    def cells(self) -> list[tuple[str, ...]]:
        """Return the lines as texts, in the order of `FAMILY_HEADS`. Probabilities are rounded down."""
        return [
            (str(line.trials), f"{line.chance:.2f}", _text(line.nearly_always), _text(line.median))
            for line in self.lines
        ]


class FamilyDesign:
    """Runs of a claim about a named disturbance, simulated by drawing trials of a pilot with replacement.

    Only the cell of the box that was worst in the pilot is weighed, with its share of delta. The other cells of a real
    run could be a little worse, so the forecast is a little hopeful. The same seed gives the same forecast.
    """

    def __init__(self, pilot: FamilyDocument, *, delta: float, family: int, seed: int = 0) -> None:
        self._pilot, self._claim, self._seed = pilot, pilot.claim, seed
        self._delta, self._family = checks.delta(delta), checks.count("family", family, minimum=1)
        self._held = np.array(self._claim.held)
        self._scores, self._energies = np.array(self._claim.scores), np.array(self._claim.energies)

    def kept(self, rows: Sequence[int] | NDArray[np.int64]) -> float | None:
        """Return what trials of the pilot would certify in the worst cell. Rows beyond the weighed ones are unweighed.

        None certifies nothing.
        """
        claim, chosen = self._claim, np.asarray(rows)
        weighed = chosen[chosen < len(self._held)]
        count = alone(
            Bound(self._pilot.bound), int(self._held[weighed].sum()), len(chosen), self._delta, self._family, claim.size
        )
        found = None
        if len(weighed):
            found = certify_family(
                self._held[weighed].tolist(),
                self._scores[weighed],
                self._energies[weighed],
                name=claim.name,
                box=[(value, value) for value in claim.worst],
                ceiling=np.array(claim.ceiling),
                cells=[1] * len(claim.worst),
                delta=self._delta,
                family=self._family * claim.net,
                sampling=claim.sampling,
                unweighted=len(chosen) - len(weighed),
            ).lower
        best = max(count, 0.0 if found is None else event_lower(found, claim.gap))
        return best if best > 0.0 else None

    def simulated(self, trials: int) -> list[float]:
        """Return what simulated runs certify, in falling order. 0 stands for nothing."""
        if trials not in self._seen:
            generator = np.random.default_rng([self._seed, trials])
            drawn = (generator.integers(self._claim.trials, size=trials) for _ in range(_REPEATS))
            self._seen[trials] = sorted((self.kept(rows) or 0.0 for rows in drawn), reverse=True)
        return self._seen[trials]

    @cached_property
    def _seen(self) -> dict[int, list[float]]:
        return {}

    def chance(self, trials: int, target: float) -> float:
        """Return the share of simulated runs that certify the target."""
        found = self.simulated(trials)
        return sum(value >= target for value in found) / len(found)

    def needed(self, target: float, chance: float) -> int | None:
        """Return a number of trials that certifies the target with this probability, by doubling and bisection."""
        few, many = 0, _FEWEST
        while self.chance(many, target) < chance:
            few, many = many, 2 * many
            if many > _MOST:
                return None
        while many - few > max(1, few // 8):
            middle = (few + many) // 2
            few, many = (few, middle) if self.chance(middle, target) >= chance else (middle, many)
        return many


def plan_families(protocol: Protocol, pilot: Store, *, chance: float) -> tuple[FamilyPlan, ...]:
    """Forecast the trials that each named disturbance of a protocol needs, from a pilot run with the same ones.

    Args:
        protocol: the protocol that is planned.
        pilot: a finished and certified run of other trials, with the same arms, events and disturbances.
        chance: the wanted probability of certifying the target in the whole box.
    """
    level = checks.open_unit("chance", chance)
    if not protocol.families:
        return ()
    stored = {(one.arm, one.event, one.disturbance.name): one for one in stored_families(pilot, pilot.protocol())}
    found = []
    for arm in protocol.arms:
        for event in protocol.events:
            for spec in protocol.families:
                known = stored.get((arm.name, event.name, spec.name))
                if known is None or known.disturbance != spec or known.horizon != protocol.horizon:
                    raise ValueError(
                        f"{pilot.root}: must have the disturbance {spec.name} of {arm.name}, {event.name} as this "
                        "protocol has it, but has none or another one."
                    )
                design = FamilyDesign(known, delta=protocol.claim.delta, family=protocol.family)
                found.append(_plan(design, known, protocol, level))
    return tuple(found)


def _plan(design: FamilyDesign, known: FamilyDocument, protocol: Protocol, chance: float) -> FamilyPlan:
    target = protocol.claim.target
    needed = design.needed(target, chance)
    most = _MOST if needed is None else needed
    shown = sorted({max(most // 4, 1), max(most // 2, 1), most, *([2 * most] if needed is not None else [])})
    lines = []
    for trials in shown:
        values = design.simulated(trials)
        often, half = values[min(round(chance * _REPEATS), _REPEATS) - 1], values[_REPEATS // 2 - 1]
        lines.append(
            FamilyPlanLine(
                trials=trials, chance=design.chance(trials, target), nearly_always=often or None, median=half or None
            )
        )
    return FamilyPlan(
        name=f"{known.arm}, {known.event}, {known.disturbance.name}",
        target=target,
        delta=protocol.claim.delta,
        family=protocol.family,
        pilot=known.claim.trials,
        chance=chance,
        needed=needed,
        lines=tuple(lines),
    )


def _text(value: float | None) -> str:
    return "–" if value is None else lower_text(value)
