"""The certified total cost or return of a run, without and under shift: expectation, distribution, quantile, tail."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from ccfs.certificates import checks
from ccfs.certificates.bounds import Sampling
from ccfs.certificates.means import Total, TotalCertificate, certify_totals
from ccfs.certificates.rounding import exact_text, lower_text, upper_text
from ccfs.certificates.schedule import Stage
from ccfs.certificates.shifts import main_size
from ccfs.files.digests import canonical_json
from ccfs.files.documents import Digest, Document, Table
from ccfs.protocol.model import Arm, Protocol
from ccfs.results.derive import refuse_missing_trials
from ccfs.runs.counting import refuse_changed_events
from ccfs.runs.events import total_cost
from ccfs.runs.manifest import manifest_faults
from ccfs.runs.outcomes import Outcome
from ccfs.runs.reader import RunReader
from ccfs.runs.store import RunError, Store
from ccfs.runs.trace import Trace

__all__ = [
    "GRID",
    "LEVEL",
    "RunTotals",
    "TotalStudy",
    "TotalsDocument",
    "certify_study",
    "default_budgets",
    "default_limits",
    "in_lines",
    "run_totals",
    "total_study",
]

GRID = (0.0, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 500.0)
"""Costs whose probability is shown if nobody says others. All others are certified too."""
LEVEL = 0.9
_PROPER = (Outcome.HORIZON, Outcome.GOAL, Outcome.COST, Outcome.TERMINATED, Outcome.TRUNCATED)

Totals = Mapping[str, Sequence[Sequence[float]]]
"""For each arm the totals of its nominal trials, one list per reset seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalStudy:
    """A certificate of the total of each arm. All of them hold together with failure probability at most `delta`.

    The run's certificates have a failure probability of their own, which is not part of this one.

    Assumes: no trial can total less than `lowest` or more than `highest`. If `is_range_given` is False, it is a cost,
    and `highest` is the horizon, because every recorded step cost 0 or 1.
    """

    protocol: Protocol
    kind: Total
    lowest: float
    highest: float
    is_range_given: bool
    certificates: dict[str, TotalCertificate]

    def size(self, arm: str, budget: float) -> float:
        """Return the mu of a budget of the action or score stage of an arm, or of the sensor stage alone."""
        (found,) = (part for part in self.protocol.arms if part.name == arm)
        return main_size(found.schedule.plan, budget)


def total_study(
    store: Store, kind: Total | str, *, lowest: float | None = None, highest: float | None = None
) -> TotalStudy:
    """Certify the total cost or return of a finished run.

    The failure probability is the protocol's delta. It is split over all arms, and once more if the protocol's family
    counts several studies. A trial whose total is not known counts with the worse end of the range: for a cost if it
    abstained, crashed, ended early or reported none, for a return if it abstained, crashed or met a number that is not
    finite. Pilot trials count too, because nothing here is chosen by them.

    Args:
        store: the run.
        kind: "cost" or "return".
        lowest: least possible total of a trial. A cost has 0.
        highest: greatest possible total of a trial. For a cost the default is the horizon, if every recorded step cost
            0 or 1.
    """
    protocol, sense = store.protocol(), Total(kind)
    faults = manifest_faults(store)
    if faults:
        raise RunError(f"{store.root}: {faults[0]} Audit this run before counting its totals.")
    refuse_missing_trials(store, protocol)
    refuse_changed_events(store, protocol)
    if sense is Total.RETURN:
        if lowest is None or highest is None:
            raise ValueError("`--least` and `--most` must be given: the least and the greatest return of any trial.")
        low, high = checks.finite("--least", lowest), checks.finite("--most", highest)
        if not low < high:
            raise ValueError(f"`--most` must exceed `--least`, got {high:g} and {low:g}.")
        found, seen_low, seen_high = _returns(store, protocol, low)
        if not low <= seen_low <= seen_high <= high:
            raise ValueError(
                f"`--least` and `--most` must enclose the recorded returns, {seen_low:g} to {seen_high:g}, "
                f"got {low:g} and {high:g}."
            )
        return certify_study(protocol, sense, found, lowest=low, highest=high, is_range_given=True)
    found, top = _costs(store, protocol, highest)
    return certify_study(protocol, sense, found, lowest=0.0, highest=top, is_range_given=highest is not None)


def certify_study(
    protocol: Protocol, kind: Total, totals: Totals, *, lowest: float, highest: float, is_range_given: bool
) -> TotalStudy:
    """Certify the totals of every arm of a protocol, which were read from its run or from stored lines of it.

    A run that chose its number of trials by their results is refused, because the bounds need a fixed one.
    """
    if protocol.claim.stop_at_budget is not None:
        raise ValueError(
            "`claim.stop_at_budget` must not be given for certified totals: their bounds need a number of trials that "
            "does not depend on results."
        )
    # A family may count the claims of several runs. Each of them gets an equal part of delta here too.
    family = len(protocol.arms) * -(-protocol.family // protocol.claims)
    return TotalStudy(
        protocol=protocol,
        kind=kind,
        lowest=lowest,
        highest=highest,
        is_range_given=is_range_given,
        certificates={
            arm.name: certify_totals(
                [list(stratum) for stratum in totals[arm.name]],
                kind=kind,
                lowest=lowest,
                highest=highest,
                delta=protocol.claim.delta,
                family=family,
                sampling=protocol.sampling,
            )
            for arm in protocol.arms
        },
    )


def _by_seed(protocol: Protocol, totals: Sequence[float]) -> list[list[float]]:
    draws = protocol.trials.per_seed
    return [list(totals[start : start + draws]) for start in range(0, len(totals), draws)]


def _traces(store: Store, protocol: Protocol, arm: Arm, *, are_attacked: bool) -> Iterator[Trace]:
    reader = RunReader(store, protocol)
    for attack in protocol.attacks if are_attacked else (None,):
        for batch in reader.batches(arm, attack):
            yield from reader.traces(batch)


def _costs(store: Store, protocol: Protocol, most: float | None) -> tuple[Totals, float]:
    """Return the nominal total costs and the greatest possible one."""
    greatest, is_binary, is_any = 0.0, True, False
    totals: dict[str, list[float]] = {arm.name: [] for arm in protocol.arms}
    for arm in protocol.arms:
        # Attacked trials are no part of the totals, but they too show what a step of this environment can cost.
        for are_attacked in (False, True):
            for trace in _traces(store, protocol, arm, are_attacked=are_attacked):
                costs = trace.cost[: protocol.horizon]
                known = costs[np.isfinite(costs)]
                greatest = max(greatest, math.fsum(known))
                is_binary = is_binary and bool(np.isin(known, (0.0, 1.0)).all())
                is_any = is_any or known.size > 0
                if not are_attacked:
                    totals[arm.name].append(total_cost(trace, protocol.horizon))
    if not is_any:
        raise ValueError(f"{store.root}: must have recorded costs, but no step has one. See `environment.cost`.")
    if most is None and not is_binary:
        raise ValueError(
            "`--most` must be given, because some recorded steps cost neither 0 nor 1. "
            "Give the greatest total cost that a trial can have."
        )
    ceiling = float(protocol.horizon) if most is None else checks.positive("--most", most)
    if not greatest <= ceiling:
        raise ValueError(f"`--most` must be at least {greatest:g}, a total cost that was recorded, got {ceiling:g}.")
    least = min(min(values) for values in totals.values())
    if not least >= 0.0:
        raise ValueError(
            f"{store.root}: must have costs of at least 0 to certify their total, got a total of {least:g}."
        )
    found = {
        name: _by_seed(protocol, [ceiling if value == math.inf else value for value in values])
        for name, values in totals.items()
    }
    return found, ceiling


def _returns(store: Store, protocol: Protocol, worst: float) -> tuple[Totals, float, float]:
    """Return the nominal returns, and the least and the greatest that any trial has, attacked ones too."""
    reader = RunReader(store, protocol)
    totals: dict[str, list[list[float]]] = {}
    seen: list[float] = []
    for arm in protocol.arms:
        for attack in (None, *protocol.attacks):
            rows = [row for batch in reader.batches(arm, attack) for row in reader.trajectories(batch)]
            known = [Outcome(row.outcome) in _PROPER and math.isfinite(row.total_reward) for row in rows]
            seen += [row.total_reward for row, is_known in zip(rows, known, strict=True) if is_known]
            if attack is None:
                values = [row.total_reward if is_known else worst for row, is_known in zip(rows, known, strict=True)]
                totals[arm.name] = _by_seed(protocol, values)
    return totals, min(seen, default=worst), max(seen, default=worst)


class TotalRecord(Table):
    """The totals of the nominal trials, and what follows from them. Reading it recomputes every number."""

    kind: Literal["cost", "return"] = Field(description="Whether less or more is better.")
    totals: tuple[tuple[float, ...], ...] = Field(description="For each reset seed, the totals of its trials.")
    lowest: float = Field(description="Least total that a trial can have.")
    highest: float = Field(description="Greatest total that a trial can have.")
    delta: float = Field(gt=0.0, lt=1.0, description="Failure probability of the whole family.")
    family: int = Field(ge=1, description="Number of certificates that share `delta`.")
    sampling: Literal["cohort", "law"] = Field(description="Whether the reset seeds were listed or drawn.")
    mean: float = Field(description="Bound on the nominal expectation: upper for a cost, lower for a return.")
    variance: float = Field(ge=0.0, description="Upper bound on the nominal variance, within seeds if they have draws.")
    band: tuple[tuple[float, Annotated[float, Field(ge=0.0, le=1.0)]], ...] = Field(
        description="Pairs (x, p): a cost is at most x with probability at least p, a return at least x."
    )
    premises: tuple[str, ...] = Field(description="What the bounds take for granted, in words.")


class TotalsDocument(TotalRecord, Document):
    """A certificate of totals on its own, as `TotalCertificate.to_json` writes it."""

    format: Literal["ccfs/totals/1"] = Field(default="ccfs/totals/1", description="Kind and version of this document.")


class ArmTotals(Table):
    """The certified totals of one arm. Lists follow `budgets`, lists inside them `limits`."""

    trials: int = Field(ge=1, description="Nominal trials.")
    observed_mean: float = Field(description="The average of their totals, rounded to nearest. It bounds nothing.")
    expected: tuple[float, ...] = Field(
        description="Bound on the expected total under each budget, rounded against us: upper for a cost, lower for a "
        "return."
    )
    probability: tuple[tuple[float, ...], ...] = Field(
        description="Certified probability that a cost is at most each limit, or a return at least, under each budget, "
        "rounded down."
    )
    quantile: tuple[float, ...] = Field(
        description="What the total keeps with probability `level` under each budget: at most for a cost, at least for "
        "a return."
    )
    cvar: tuple[float, ...] = Field(
        description="Bound on the expected total in the worst 1 - `level` of the trials under each budget."
    )
    certificate: TotalRecord = Field(description="What all of this follows from.")


class RunTotals(Document):
    """The certified total cost or return of every arm of a run."""

    format: Literal["ccfs/run-totals/1"] = Field(
        default="ccfs/run-totals/1", description="Kind and version of this document."
    )
    protocol: Digest = Field(description="Hash of the protocol.")
    quick_look_of: Digest | None = Field(description="Hash of the whole protocol if this is a quick look, else null.")
    kind: Literal["cost", "return"] = Field(description="What is totalled.")
    delta: float = Field(description="Failure probability of everything in this document together.")
    stops_at_goal: bool = Field(description="Whether a trial ends at its first goal.")
    lowest: float = Field(description="The least total that a trial can have.")
    highest: float = Field(description="The greatest total that a trial can have.")
    is_range_given: bool = Field(description="Whether the range was given; else every recorded step cost 0 or 1.")
    limits: tuple[float, ...] = Field(description="Totals whose probability is shown. The certificates hold for all.")
    level: float = Field(description="Probability of the shown quantile. The certificates hold for all.")
    budgets: tuple[float, ...] = Field(
        description="Shift budgets of the action or score stage of each arm, or of the sensor stage if it is the only "
        "one. No other stage is shifted."
    )
    arms: dict[str, ArmTotals] = Field(description="The totals of each arm, by its name.")


def run_totals(
    study: TotalStudy, budgets: Sequence[float], limits: Sequence[float], level: float = LEVEL, *, of: str | None = None
) -> RunTotals:
    """Return the study as a document for machines. `of` is the protocol's hash, if it was stored in another form."""
    protocol = study.protocol
    return RunTotals(
        protocol=of or protocol.hash,
        quick_look_of=protocol.quick_look_of,
        kind=study.kind.value,
        delta=protocol.claim.delta,
        stops_at_goal=protocol.stop.goal,
        lowest=study.lowest,
        highest=study.highest,
        is_range_given=study.is_range_given,
        limits=tuple(limits),
        level=level,
        budgets=tuple(budgets),
        arms={name: _arm(study, name, budgets, limits, level) for name in study.certificates},
    )


def _arm(study: TotalStudy, name: str, budgets: Sequence[float], limits: Sequence[float], level: float) -> ArmTotals:
    proof = study.certificates[name]
    sizes = [study.size(name, budget) for budget in budgets]
    totals = [value for stratum in proof.totals for value in stratum]
    return ArmTotals(
        trials=len(totals),
        observed_mean=math.fsum(totals) / len(totals),
        expected=tuple(proof.expected(mu) for mu in sizes),
        probability=tuple(tuple(proof.probability(limit, mu) for limit in limits) for mu in sizes),
        quantile=tuple(proof.quantile(level, mu) for mu in sizes),
        cvar=tuple(proof.cvar(level, mu) for mu in sizes),
        certificate=TotalRecord.model_validate_json(canonical_json(proof.to_entries())),
    )


def default_budgets(study: TotalStudy) -> tuple[float, ...]:
    """Return 0 and the budgets of the protocol's attacks on the stage that the budgets of a study are about."""
    named = {arm.schedule.plan.main.value for arm in study.protocol.arms}
    ours = [spec for spec in study.protocol.attacks if spec.stage is None or {spec.stage} == named]
    return tuple(sorted({0.0, *(spec.budget for spec in ours if spec.budget is not None)}))


def default_limits(study: TotalStudy) -> tuple[float, ...]:
    """Return the limits to show if nobody says others: those of `GRID` for a cost, fifths of the range for a return."""
    if study.kind is Total.COST:
        return tuple(at for at in GRID if at < study.highest)
    return tuple(study.lowest + i * (study.highest - study.lowest) / 5 for i in range(1, 5))


def in_lines(
    study: TotalStudy, budgets: Sequence[float], limits: Sequence[float], level: float = LEVEL
) -> Iterator[str]:
    """Yield the lines of a table for people, and what it assumes. Every number is rounded against us."""
    protocol, kind = study.protocol, study.kind.value
    is_cost = study.kind is Total.COST
    bound, side, text = ("at most", "<=", upper_text) if is_cost else ("at least", ">=", lower_text)
    look = "" if protocol.quick_look_of is None else "Quick look, "
    span = f"until the first goal or within {protocol.horizon}" if protocol.stop.goal else f"within {protocol.horizon}"
    document, tail = run_totals(study, budgets, limits, level), exact_text(round(1.0 - level, 12))
    for arm in protocol.arms:
        found = document.arms[arm.name]
        strata = len(found.certificate.totals)
        seeds = f" at {strata} reset seeds" if strata < found.trials else ""
        yield f"{look}{arm.name}: total {kind} {span} steps, {found.trials} nominal trials{seeds}"
        stage = arm.schedule.plan.main
        head = "shift budget" if stage is Stage.ACTION else f"shift budget ({stage.value})"
        yield _row(head, [exact_text(budget) for budget in budgets])
        for i, limit in enumerate(limits):
            lowers = [lower_text(row[i]) for row in found.probability]
            yield _row(f"P({kind} {side} {exact_text(limit)}) at least", lowers)
        yield _row(f"expected {kind} {bound}", [text(value) for value in found.expected])
        yield _row(f"{kind} with P {exact_text(level)} {bound}", [text(value) for value in found.quantile])
        yield _row(f"in the worst {tail} {bound}", [text(value) for value in found.cvar])
    yield (
        "All numbers hold together, also for other budgets, limits and levels, except with probability at most "
        f"{exact_text(protocol.claim.delta)}. The run's certificates have their own."
    )
    if protocol.sampling is Sampling.COHORT:
        yield "Probabilities and expectations are averages over the cohort's fixed reset seeds."
    if study.is_range_given:
        yield (
            f"It is assumed that a trial totals at least {exact_text(study.lowest)} and at most "
            f"{exact_text(study.highest)}, as given. One whose total is not known counts with the worse of the two."
        )
    else:
        yield (
            f"It is assumed that every step costs 0 or 1, as every recorded step did, so that a trial costs at most "
            f"{exact_text(study.highest)}. One that ended early counts with that."
        )


def _row(head: str, cells: Sequence[str]) -> str:
    return f"  {head:<32}" + "".join(f"{cell:>12}" for cell in cells)
