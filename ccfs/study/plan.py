"""Forecast what a run will certify: trials that a wanted budget needs, and budgets that numbers of trials give.

Everything here is a forecast from an assumed or piloted success rate. It is no certificate, and no certificate uses it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy import special

from ccfs.certificates import checks
from ccfs.certificates.bounds import Bound, Sampling
from ccfs.certificates.rounding import exact_text, lower_text
from ccfs.certificates.schedule import ProposalSchedule, Schedule, Stage
from ccfs.certificates.shifts import ShiftCertificate, as_plan
from ccfs.certificates.stratified import GRID, stratified_evidence
from ccfs.certificates.trajectory import certify_event
from ccfs.files.documents import Document, Infinite, Table
from ccfs.files.frames import axes, data_frame, html_table
from ccfs.protocol.model import Protocol
from ccfs.runs.store import Store
from ccfs.study.opened import OpenedRun
from ccfs.study.plan_families import FamilyPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

__all__ = [
    "HEADS",
    "MOST_TRIALS",
    "CountDesign",
    "Design",
    "PlanDocument",
    "PlanLine",
    "StrataDesign",
    "TrialPlan",
    "piloted",
    "piloted_rates",
    "plan",
    "planned",
]

MOST_TRIALS = 1_000_000
"""Greatest number of trials of a protocol."""
_FORECAST = "A forecast from an assumed or piloted rate. It certifies nothing."
_NODES = 400  # equally likely rates that stand for what a pilot leaves open
_REPEATS = 20  # simulated runs per number of trials
# How far before the found number of failures a smaller one is looked for, because chances go up and down a little.
_LOOK_BACK = 32
_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0)
HEADS = ("trials", "may fail", "chance", "B, nearly always", "B, median")
Rates = NDArray[np.float64]


def piloted_rates(successes: int, trials: int) -> Rates:
    """Return equally likely rates after a pilot: the middle quantiles of Beta(successes + 1/2, failures + 1/2).

    A pilot without a failure does not show a rate of 1, so its rate alone would promise too much.

    >>> rates = piloted_rates(40, 40)
    >>> f"{rates.mean():.3f} {rates.min():.3f}"
    '0.988 0.879'
    """
    hits, total = checks.tally(successes, trials)
    shares = (np.arange(_NODES) + 0.5) / _NODES
    return np.asarray(special.betaincinv(hits + 0.5, total - hits + 0.5, shares), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a number of trials promises: the budget that is nearly always reached, and the one reached half the time."""

    nearly_always: float | None
    median: float | None


class Design(ABC):
    """A way to draw and count trials, with an assumption about rates. A new kind of certificate adds one of these."""

    @abstractmethod
    def outlook(self, trials: int, chance: float) -> Outlook:
        """Return the budgets that so many trials give with probability `chance` and with probability 1/2."""

    @abstractmethod
    def chance(self, trials: int, budget: float) -> float:
        """Return the probability that so many trials certify at least this budget."""

    @abstractmethod
    def needed(self, budget: float, chance: float) -> int | None:
        """Return the least number of trials that certifies the budget with this probability, None above the most."""

    @abstractmethod
    def may_fail(self, trials: int, budget: float) -> int | None:
        """Return the greatest number of failures that still certifies the budget. None if it depends on more."""

    @abstractmethod
    def limits(self) -> tuple[tuple[float, float | None], ...]:
        """Return pairs of a share and the budget that infinitely many trials give with it. The shares add up to 1."""

    def limit(self, chance: float) -> float | None:
        """Return the budget that even infinitely many trials do not exceed with this probability."""
        return _reached(self.limits(), chance)


@dataclass(frozen=True, kw_only=True)
class CountDesign(Design):
    """Trials that are counted together: one per member of a cohort, or independent draws from a law.

    The number of successes is taken for binomial given the rate. On a cohort its spread is at most that, so that the
    forecast is on the careful side.
    """

    schedule: Schedule
    target: float
    delta: float
    family: int
    bound: Bound
    stage: str
    rates: Rates

    def budget(self, successes: int, trials: int) -> float | None:
        """Return the budget that a count certifies, by the function that issues certificates."""
        return self._certificate(successes, trials).budgets[self.stage]

    def outlook(self, trials: int, chance: float) -> Outlook:
        """Return the budgets of the counts that are reached with these probabilities."""
        often, half = (self._count_reached(trials, level) for level in (chance, 0.5))
        return Outlook(self.budget(often, trials), self.budget(half, trials))

    def expected(self, trials: int) -> float:
        """Return the expected budget, where a target that is not certified counts as 0.

        It is the average over twenty counts that stand for equally likely parts of their law.
        """
        shares = [(i + 0.5) / 20 for i in range(20)]
        budgets = [self.budget(self._count_reached(trials, share), trials) for share in shares]
        return sum(budget or 0.0 for budget in budgets) / len(budgets)

    def chance(self, trials: int, budget: float) -> float:
        """Return the probability of a count that certifies the budget."""
        allowed = self.may_fail(trials, budget)
        return 0.0 if allowed is None else self._at_least(trials - allowed, trials)

    def may_fail(self, trials: int, budget: float) -> int | None:
        """Return the greatest number of failures that still certifies the budget, None if there is none."""
        return _greatest(lambda failures: self._reaches(failures, trials, budget), trials)

    def needed(self, budget: float, chance: float) -> int | None:
        """Return the least number of trials that certifies the budget with this probability.

        For f failures there is a least number of trials n_f that certifies the budget. Between n_f and the next one, f
        failures are allowed, and every further trial lowers the chance. So only the n_f need be looked at.
        """

        def first(failures: int) -> int | None:
            return self._least_trials(failures, budget)

        def is_enough(failures: int) -> bool:
            trials = first(failures)
            return trials is None or self._at_least(trials - failures, trials) >= chance

        few, many = -1, 0
        while not is_enough(many):
            few, many = many, 2 * many + 1
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (few, middle) if is_enough(middle) else (middle, many)
        earlier = range(max(0, many - _LOOK_BACK), many + 1)
        return first(next(failures for failures in earlier if is_enough(failures)))

    def limits(self) -> tuple[tuple[float, float | None], ...]:
        """Return the budgets that known rates would give, each with its share."""
        root = math.sqrt(_charge(self.schedule, self.stage))
        least = special.ndtri(self.target)
        sizes = special.ndtri(self.rates) - least
        return tuple((1.0 / len(sizes), float(size) / root if size >= 0.0 else None) for size in sizes)

    def _certificate(self, successes: int, trials: int) -> ShiftCertificate:
        return certify_event(
            successes,
            trials,
            delta=self.delta,
            family=self.family,
            target=self.target,
            schedule=self.schedule,
            bound=self.bound,
        )

    def _reaches(self, failures: int, trials: int, budget: float) -> bool:
        found = self.budget(trials - failures, trials)
        return found is not None and found >= budget

    def _least_trials(self, failures: int, budget: float) -> int | None:
        """Return the least number of trials that certifies the budget with so many failures."""
        few, many = failures, MOST_TRIALS
        if many <= few or not self._reaches(failures, many, budget):
            return None
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (few, middle) if self._reaches(failures, middle, budget) else (middle, many)
        return many

    def _at_least(self, successes: int, trials: int) -> float:
        if successes <= 0:
            return 1.0
        # The upper tail of a binomial law. scipy.stats takes seconds to import.
        return float(np.mean(special.betainc(successes, trials - successes + 1, self.rates)))

    def _count_reached(self, trials: int, chance: float) -> int:
        """Return the greatest count that is reached with this probability."""
        found = _greatest(lambda count: self._at_least(count, trials) >= chance, trials)
        return 0 if found is None else found


@dataclass(frozen=True, kw_only=True)
class StrataDesign(Design):
    """Several draws at each initial state. Runs are simulated, with the rate of each state drawn from `rates`.

    The numbers of trials are multiples of `draws`. The same seed gives the same forecast.
    """

    schedule: Schedule
    target: float
    delta: float
    family: int
    sampling: Sampling
    stage: str
    rates: Rates
    draws: int
    repeats: int = _REPEATS
    seed: int = 0

    def outlook(self, trials: int, chance: float) -> Outlook:
        """Return quantiles of the simulated budgets."""
        found = tuple((1.0 / self.repeats, budget) for budget in self._budgets(trials))
        return Outlook(_reached(found, chance), _reached(found, 0.5))

    def chance(self, trials: int, budget: float) -> float:
        """Return the share of simulated runs that certify the budget."""
        found = self._budgets(trials)
        return sum(one is not None and one >= budget for one in found) / len(found)

    def needed(self, budget: float, chance: float) -> int | None:
        """Return the least number of trials found by doubling and bisection. It has the noise of the simulation."""
        few, many = 0, 1
        while self.chance(many * self.draws, budget) < chance:
            few, many = many, 2 * many
            if many * self.draws > MOST_TRIALS:
                return None
        while many - few > max(1, few // 32):
            middle = (few + many) // 2
            few, many = (few, middle) if self.chance(middle * self.draws, budget) >= chance else (middle, many)
        return many * self.draws

    def may_fail(self, trials: int, budget: float) -> int | None:
        """Return None: where the failures are decides too."""
        return None

    def limits(self) -> tuple[tuple[float, float | None], ...]:
        """Return the budget that known rates would give: where the average of Phi(Phi^-1(p_i) - mu) is the target."""

        def kept(mu: float) -> float:
            return float(np.mean(special.ndtr(special.ndtri(self.rates) - mu)))

        if kept(0.0) < self.target:
            return ((1.0, None),)
        low, high = 0.0, 40.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if kept(middle) >= self.target else (low, middle)
        return ((1.0, low / math.sqrt(_charge(self.schedule, self.stage))),)

    @cached_property
    def _seen(self) -> dict[int, list[float | None]]:
        return {}

    def _budgets(self, trials: int) -> list[float | None]:
        """Return the budgets of simulated runs with so many trials."""
        strata = trials // self.draws
        if strata * self.draws != trials or strata < 1:
            raise ValueError(f"`trials` must be a multiple of {self.draws} draws, got {trials}.")
        if trials not in self._seen:
            generator = np.random.default_rng([self.seed, strata, self.draws])
            self._seen[trials] = [self._simulated(strata, generator) for _ in range(self.repeats)]
        return self._seen[trials]

    def _simulated(self, strata: int, generator: np.random.Generator) -> float | None:
        """Return the budget of one simulated run: the last size of shift that the evidence rejects, by bisection.

        `certify_strata` tests the sizes in turn instead. Both agree as long as the evidence falls with the size.
        """
        counts = generator.binomial(self.draws, generator.choice(self.rates, size=strata))
        level = math.log(self.family / self.delta)

        def is_rejected(place: int) -> bool:
            evidence = stratified_evidence(
                [0] * strata, 0, counts, self.draws, mu=GRID[place], target=self.target, sampling=self.sampling
            )
            return evidence >= level

        place = _greatest(is_rejected, len(GRID) - 1)
        return None if place is None else GRID[place] / math.sqrt(_charge(self.schedule, self.stage))


class PlanLine(Table):
    """What one number of trials promises."""

    trials: int = Field(description="Number of trials.")
    may_fail: int | None = Field(
        description="Most failures that still certify the wanted budget. Null if it cannot be certified, or if it "
        "depends on where the failures are."
    )
    chance: float = Field(description="Probability that the wanted budget is certified, as forecast.")
    nearly_always: Infinite | None = Field(
        description="Budget that is certified with the wanted probability, as forecast. Null: not even the target is."
    )
    median: Infinite | None = Field(description="Budget that is certified half of the time, as forecast.")


class TrialPlan(Table):
    """How many trials a claim needs. A forecast, no certificate."""

    name: str = Field(description="What is planned, such as an arm and an event.")
    note: str = Field(default=_FORECAST, description="What these numbers are.")
    bound: str = Field(description='How counts become a lower bound. "strata" has several draws per initial state.')
    stage: str = Field(description="The stage that the budgets are about.")
    target: float = Field(description="The probability that the event must keep under shift.")
    delta: float = Field(description="Failure probability of all claims of the family together.")
    family: int = Field(description="Number of claims that share `delta`.")
    rate: float = Field(description="Average of the assumed or piloted success rates.")
    pilot: tuple[int, int] | None = Field(description="Successes and trials of the pilot, null for an assumed rate.")
    draws: int = Field(description="Draws at each initial state.")
    budget: float = Field(description="The wanted budget.")
    chance: float = Field(description="The wanted probability of certifying it.")
    needed: int | None = Field(description="Least number of trials that does, as forecast. Null if none does.")
    limit: Infinite | None = Field(
        description="Budget that infinitely many trials would certify with the wanted probability. Null: none."
    )
    warning: str | None = Field(description="Why no number of trials suffices, or null.")
    lines: tuple[PlanLine, ...] = Field(description="The forecast for some numbers of trials.")

    @property
    def sentence(self) -> str:
        """The answer in words."""
        what = f"B = {exact_text(self.budget)}" if self.budget else f"the target {exact_text(self.target)}"
        if self.needed is None:
            return f"{self.name}: {self.warning}"
        return f"{self.name}: {self.needed} trials certify {what} with probability {self.chance:g}, as forecast."

    def cells(self) -> list[tuple[str, ...]]:
        """Return the lines as texts, in the order of `HEADS`. Budgets are rounded down."""
        return [
            (
                str(line.trials),
                "–" if line.may_fail is None else str(line.may_fail),
                f"{line.chance:.3f}",
                _budget_text(line.nearly_always),
                _budget_text(line.median),
            )
            for line in self.lines
        ]

    def to_frame(self) -> DataFrame:
        """Return the lines as a pandas frame. An infinite budget is a float."""
        return data_frame(
            [
                {
                    **line.model_dump(),
                    "nearly_always": _number(line.nearly_always),
                    "median": _number(line.median),
                }
                for line in self.lines
            ]
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the forecast budget against the number of trials, and return the axes of matplotlib."""
        drawn = axes(ax)
        trials = [line.trials for line in self.lines]
        for name, style, values in (
            (f"with probability {self.chance:g}", "-", [_number(line.nearly_always) for line in self.lines]),
            ("half of the time", "--", [_number(line.median) for line in self.lines]),
        ):
            heights = [math.nan if value is None else value for value in values]
            drawn.plot(trials, heights, style, marker="o", markersize=3, label=name)
        limit = _number(self.limit)
        if limit is not None and limit < math.inf:
            drawn.axhline(limit, color="0.6", linewidth=1, linestyle=":", label="no number of trials gives more")
        if self.budget:
            drawn.axhline(self.budget, color="0.2", linewidth=1, label=f"wanted: {exact_text(self.budget)}")
        if self.needed is not None:
            drawn.axvline(self.needed, color="0.2", linewidth=1, linestyle="-.", label=f"{self.needed} trials")
        drawn.set(xscale="log", xlabel="trials", ylabel=f"certified budget of the {self.stage} stage")
        marks = [number for number in trials if number != self.needed][:: math.ceil(len(trials) / 6)]
        drawn.set_xticks(marks, [f"{number:,}" for number in marks])
        drawn.set_xticks([], minor=True)
        drawn.set_title(f"{self.name}: a forecast, rate {self.rate:.4g}", fontsize="medium")
        drawn.set_ylim(bottom=0.0)
        drawn.legend(fontsize="small")
        return drawn

    def _repr_html_(self) -> str:
        return html_table(HEADS, self.cells(), caption=f"{self.sentence} {self.note}")


class PlanDocument(Document):
    """Forecasts of the trials that claims need. No certificate."""

    format: Literal["ccfs/plan/2"] = Field(default="ccfs/plan/2", description="Kind and version of this document.")
    plans: tuple[TrialPlan, ...] = Field(description="One forecast for each claim.")
    families: tuple[FamilyPlan, ...] = Field(
        description="One forecast for each arm, event and named disturbance. They need a pilot."
    )


def plan(
    *,
    schedule: Schedule | ProposalSchedule | Sequence[ProposalSchedule],
    target: float,
    delta: float,
    bound: Bound | str,
    rate: float | Sequence[float] | None = None,
    pilot: tuple[int, int] | None = None,
    family: int = 1,
    budget: float = 0.0,
    stage: str | None = None,
    chance: float = 0.9,
    draws: int = 1,
    trials: Sequence[int] | None = None,
    name: str = "event",
) -> TrialPlan:
    """Forecast how many trials a claim needs. It is no certificate, and it may be wrong if the rate is another one.

    Args:
        schedule: the blocks of each stage, as in `certify_event`.
        target: the probability that the event must keep, in (0, 1).
        delta: failure probability of all `family` claims together.
        bound: "hoeffding" or "cohort" for listed reset seeds, "clopper-pearson" or "anytime" for draws from a law.
        rate: the assumed success rate. Several numbers are equally likely rates of single initial states.
        pilot: successes and trials of a pilot instead. Their uncertainty is part of the forecast. Trials of a pilot
            must not be counted again: name its run in `used_before`.
        family: number of claims that share `delta`.
        budget: the wanted budget. 0 asks for the target itself.
        stage: "sensor", "action" or "score". Without it, the action or score stage, or the sensor stage alone.
        chance: the wanted probability of certifying the budget, in (0, 1).
        draws: draws at each initial state. With several, runs under `certify_strata` are simulated.
        trials: numbers of trials to show. Without it, some around the needed number.
        name: what is planned, for readers.

    >>> made = plan(
    ...     schedule=ProposalSchedule(count=1, sigma=0.2),
    ...     target=0.9,
    ...     delta=0.001,
    ...     bound="cohort",
    ...     rate=0.99,
    ...     budget=0.1,
    ... )
    >>> made.needed, made.warning
    (599, None)
    """
    layout = as_plan(schedule)
    of_stage = layout.main.value if stage is None else _stage(layout, stage).value
    if (rate is None) == (pilot is None):
        raise ValueError("give `rate` (assumed) or `pilot` (successes and trials), and only one of them.")
    rates = _rates(rate) if pilot is None else piloted_rates(*pilot)
    rule = _rule(bound)
    level, share = checks.open_unit("target", target), checks.delta(delta)
    claims = checks.count("family", family, minimum=1)
    made: CountDesign | StrataDesign
    if checks.count("draws", draws, minimum=1) == 1:
        made = CountDesign(
            schedule=layout,
            target=level,
            delta=share,
            family=claims,
            bound=rule,
            stage=of_stage,
            rates=rates if pilot is not None else np.array([rates.mean()]),
        )
    else:
        made = StrataDesign(
            schedule=layout,
            target=level,
            delta=share,
            family=claims,
            sampling=Sampling.COHORT if rule in (Bound.HOEFFDING, Bound.COHORT) else Sampling.LAW,
            stage=of_stage,
            rates=rates,
            draws=draws,
        )
    return planned(
        made, budget=budget, chance=chance, trials=trials, name=name, bound=rule, rates=rates, pilot=pilot, draws=draws
    )


def planned(
    design: CountDesign | StrataDesign,
    *,
    budget: float,
    chance: float,
    trials: Sequence[int] | None,
    name: str,
    bound: Bound,
    rates: Rates,
    pilot: tuple[int, int] | None,
    draws: int,
) -> TrialPlan:
    """Return the forecast of a design. Args as in `plan`."""
    wanted, level = checks.nonnegative("budget", budget), checks.open_unit("chance", chance)
    limit = design.limit(level)
    is_possible = limit is not None and limit > wanted
    needed = design.needed(wanted, level) if is_possible else None
    shown = _ladder(needed, draws) if trials is None else tuple(trials)
    lines = []
    for number in shown:
        outlook = design.outlook(number, level)
        lines.append(
            PlanLine(
                trials=number,
                may_fail=design.may_fail(number, wanted),
                chance=design.chance(number, wanted),
                nearly_always=_encoded(outlook.nearly_always),
                median=_encoded(outlook.median),
            )
        )
    return TrialPlan(
        name=name,
        bound=bound.value if draws == 1 else "strata",
        stage=design.stage,
        target=design.target,
        delta=design.delta,
        family=design.family,
        rate=float(rates.mean()),
        pilot=pilot,
        draws=draws,
        budget=wanted,
        chance=level,
        needed=needed,
        limit=_encoded(limit),
        warning=None if needed is not None else _warning(design, wanted, level, limit),
        lines=tuple(lines),
    )


def piloted(protocol: Protocol, pilot: Store) -> list[tuple[str, Schedule, tuple[int, int] | None]]:
    """Return for each claim of a protocol its name, its schedule, and what a pilot run with the same names counted."""
    if pilot.protocol().hash == protocol.hash:
        raise ValueError(f"{pilot.root}: must be a pilot, got the run of this protocol itself. Its trials count once.")
    counts = {(one.arm, one.event): (one.successes, one.trials) for one in OpenedRun(pilot).certificates}
    found: list[tuple[str, Schedule, tuple[int, int] | None]] = []
    for arm in protocol.arms:
        for event in protocol.events:
            if (arm.name, event.name) not in counts:
                raise ValueError(f"{pilot.root}: must have a certificate of {arm.name}, {event.name}, but has none.")
            found.append((f"{arm.name}, {event.name}", arm.schedule.plan, counts[arm.name, event.name]))
    return found


def _warning(design: CountDesign | StrataDesign, budget: float, chance: float, limit: float | None) -> str:
    what = f"B = {exact_text(budget)}" if budget else f"the target {exact_text(design.target)}"
    if limit is None:
        return (
            f"no number of trials certifies {what} with probability {chance:g}: the rate is not clearly above the "
            f"target {exact_text(design.target)}. Raise the rate, or choose a lower target."
        )
    if limit <= budget:
        return (
            f"no number of trials certifies {what} with probability {chance:g}: even endless trials give "
            f"B = {lower_text(limit)}. Raise the rate or sigma, or choose a lower target."
        )
    return f"more than {MOST_TRIALS} trials would be needed for {what}. Ask for a smaller budget."


def _rates(rate: float | Sequence[float] | None) -> Rates:
    values = list(rate) if isinstance(rate, (Sequence, np.ndarray)) else [rate]
    if not values:
        raise ValueError("`rate` must hold at least one number, got none.")
    return np.array([checks.probability("rate", value) for value in values])


def _rule(bound: Bound | str) -> Bound:
    try:
        return Bound(bound)
    except ValueError:
        accepted = ", ".join(repr(entry.value) for entry in Bound)
        raise ValueError(f"`bound` must be one of {accepted}, got {bound!r}.") from None


def _stage(schedule: Schedule, name: str) -> Stage:
    found = {stage.value: stage for stage in schedule.stages}
    if name not in found:
        raise ValueError(f"`stage` must be one of {', '.join(sorted(found))}, got {name!r}.")
    return found[name]


def _charge(schedule: Schedule, stage: str) -> float:
    """Return the greatest energy of a shift of length one in a stage, which is what its budget is made of."""
    return float(max(block.charge_exact for block in schedule.blocks(_stage(schedule, stage))))


def _reached(shares: Sequence[tuple[float, float | None]], chance: float) -> float | None:
    """Return the greatest budget that is reached with this probability. None is below every budget."""
    total = 0.0
    for share, budget in sorted(shares, key=lambda pair: -math.inf if pair[1] is None else pair[1], reverse=True):
        total += share
        if total >= chance - 1e-9:
            return budget
    return None


def _greatest(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the greatest number up to `most` for which a falling condition holds, None if it never does."""
    if not holds(0):
        return None
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _ladder(needed: int | None, draws: int) -> tuple[int, ...]:
    """Return round numbers of trials around the needed one, multiples of the draws, and the needed one."""
    least, most = (100, 100_000) if needed is None else (max(needed // 8, 1), min(8 * needed, MOST_TRIALS))
    # Simulated forecasts take their time, so there are fewer of them.
    steps = _STEPS if draws == 1 else (1.0, 2.0, 5.0)
    most = most if draws == 1 else min(most, 4 * (needed or 2500))
    found = {needed} if needed is not None else set()
    power = 10.0 ** math.floor(math.log10(least))
    while power <= most:
        found |= {-(-round(step * power) // draws) * draws for step in steps if least <= step * power <= most}
        power *= 10.0
    return tuple(sorted(number for number in found if number is not None and number >= draws))


def _encoded(budget: float | None) -> Infinite | None:
    return "infinity" if budget == math.inf else budget


def _number(budget: Infinite | None) -> float | None:
    return math.inf if budget == "infinity" else budget


def _budget_text(budget: Infinite | None) -> str:
    number = _number(budget)
    return "–" if number is None else lower_text(number)
