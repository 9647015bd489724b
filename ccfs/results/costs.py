"""The certified distribution of a run's total cost, and its expectation, without and under shift."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal

import numpy as np
from pydantic import Field

from ccfs.certificates import checks
from ccfs.certificates.bounds import Bound
from ccfs.certificates.rounding import exact_text, fraction_upper, lower_text, upper_text
from ccfs.certificates.schedule import Stage
from ccfs.certificates.trajectory import TrajectoryCertificate, certify_event
from ccfs.files.documents import Digest, Document, Table
from ccfs.protocol.model import Arm, Protocol
from ccfs.results.certify import refuse_missing_trials
from ccfs.runs.counting import refuse_changed_events
from ccfs.runs.events import total_cost
from ccfs.runs.manifest import manifest_faults
from ccfs.runs.reader import RunReader
from ccfs.runs.store import RunError, Store

__all__ = [
    "GRID",
    "CostCurve",
    "CostStudy",
    "CostsDocument",
    "cost_curve",
    "cost_study",
    "costs_document",
    "default_budgets",
    "in_lines",
]

# Written down here, so that nobody who has seen the costs chooses the points.
GRID = (0.0, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 500.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCurve:
    """Certificates of the events "total cost at most c" over a grid of c. All of them hold together.

    Assumes: every certificate's family counts all of them. The total cost of a trial is in [0, `ceiling`]. A trial that
    abstained, ended early or crashed was counted with the cost `ceiling`.
    """

    grid: tuple[float, ...]
    certificates: tuple[TrajectoryCertificate, ...]
    ceiling: float

    def lower_at(self, cost: float, *, budget: float) -> float:
        """Return the certified P(total cost <= `cost`) under shifts of Euclidean budget `budget`, rounded down.

        The probability grows with the cost, so the best certificate at or below `cost` counts. Without one it is 0.
        """
        level = checks.finite("cost", cost)
        if level >= self.ceiling:
            return 1.0
        pairs = zip(self.grid, self.certificates, strict=True)
        return max((proof.lower_at(budget) for at, proof in pairs if at <= level), default=0.0)

    def expected_upper(self, *, budget: float) -> float:
        """Return a certified upper bound on the expected total cost under shifts of Euclidean budget `budget`.

        E[C] is the integral of P(C > c) for c from 0 to the ceiling. On each cell of the grid, P(C > c) is at most one
        minus the certified probability at the left end of the cell. The sum is exact and is rounded up once.
        """
        edges = [0.0, *(at for at in self.grid if 0.0 < at < self.ceiling), self.ceiling]
        total = Fraction(0)
        for left, right in pairwise(edges):
            exceeds = 1 - Fraction(self.lower_at(left, budget=budget))
            total += (Fraction(right) - Fraction(left)) * exceeds
        return fraction_upper(total)


def cost_curve(certificates: Mapping[float, TrajectoryCertificate], *, ceiling: float) -> CostCurve:
    """Build the curve from one certificate per grid point. Refuse certificates that are not of one study.

    Args:
        certificates: certificate of "total cost at most c" by c.
        ceiling: greatest possible total cost. If a step costs at most 1, that is the horizon.
    """
    top = checks.positive("ceiling", ceiling)
    grid = tuple(sorted(checks.finite("grid", at) for at in certificates))
    if not grid:
        raise ValueError("`certificates` must hold at least one grid point, got none.")
    proofs = tuple(certificates[at] for at in grid)
    studies = {(proof.trials, proof.delta, proof.family, proof.bound, proof.schedule) for proof in proofs}
    if len(studies) != 1:
        raise ValueError("`certificates` must share trials, delta, family, bound and schedule: one simultaneous study.")
    if not proofs[0].family >= len(proofs):
        raise ValueError(f"`family` must count all {len(proofs)} grid points, got {proofs[0].family}.")
    counts = [proof.successes for proof in proofs]
    if counts != sorted(counts):
        raise ValueError(f"`successes` must not fall when the cost grows, got {counts}.")
    return CostCurve(grid=grid, certificates=proofs, ceiling=top)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostStudy:
    """A cost curve for each arm. All of them hold together with failure probability at most `delta`.

    The run's certificates have a failure probability of their own, which is not part of this one.

    Assumes: the grid was fixed before anybody saw the costs, and no trial can cost more than `most`. If `is_most_given`
    is False, `most` is the horizon, because every recorded step cost 0 or 1.
    """

    protocol: Protocol
    delta: float
    family: int
    most: float
    is_most_given: bool
    grid: tuple[float, ...]
    curves: dict[str, CostCurve]


def cost_study(store: Store, *, grid: Sequence[float] | None = None, most: float | None = None) -> CostStudy:
    """Count and certify the total cost of a finished run.

    The failure probability is the protocol's delta. It is split over all arms and grid points, and once more if the
    protocol's family counts several studies. A trial that abstained, crashed, ended early or did not report a cost
    counts as one that costs `most`.

    Args:
        store: the run.
        grid: costs c at which P(total cost <= c) is certified, at least 0 and below `most`. The default is `GRID`.
        most: greatest possible total cost of a trial. The default is the horizon, if every recorded step cost 0 or 1.
    """
    protocol = store.protocol()
    faults = manifest_faults(store)
    if faults:
        raise RunError(f"{store.root}: {faults[0]} Audit this run before counting its costs.")
    refuse_missing_trials(store, protocol)
    refuse_changed_events(store, protocol)
    totals, greatest, is_binary = _read(store, protocol)
    if most is None and not is_binary:
        raise ValueError(
            "`--most` must be given, because some recorded steps cost neither 0 nor 1. "
            "Give the greatest total cost that a trial can have."
        )
    ceiling = float(protocol.horizon) if most is None else checks.positive("--most", most)
    if not greatest <= ceiling:
        raise ValueError(f"`--most` must be at least {greatest:g}, a total cost that was recorded, got {ceiling:g}.")
    points = _grid(grid, ceiling)
    # A family may count the claims of several runs. Each of them gets an equal part of delta here too.
    studies = -(-protocol.family // protocol.claims)
    family = len(protocol.arms) * len(points) * studies
    curves = {arm.name: _curve(protocol, arm, totals[arm.name], points, family, ceiling) for arm in protocol.arms}
    return CostStudy(
        protocol=protocol,
        delta=protocol.claim.delta,
        family=family,
        most=ceiling,
        is_most_given=most is not None,
        grid=points,
        curves=curves,
    )


def _curve(
    protocol: Protocol, arm: Arm, totals: list[float], grid: tuple[float, ...], family: int, ceiling: float
) -> CostCurve:
    proofs = {
        at: certify_event(
            sum(total <= at for total in totals),
            len(totals),
            delta=protocol.claim.delta,
            family=family,
            target=protocol.claim.target,
            schedule=arm.schedule.plan,
            bound=protocol.bound,
            event=f"total cost at most {at:g}",
        )
        for at in grid
    }
    return cost_curve(proofs, ceiling=ceiling)


def _grid(given: Sequence[float] | None, ceiling: float) -> tuple[float, ...]:
    if given is None:
        return tuple(at for at in GRID if at < ceiling)
    points = tuple(sorted({checks.nonnegative("--grid", at) for at in given}))
    if not (points and points[-1] < ceiling):
        raise ValueError(f"`--grid` must hold costs below {ceiling:g}, the greatest possible one, got {list(given)}.")
    return points


def _read(store: Store, protocol: Protocol) -> tuple[dict[str, list[float]], float, bool]:
    """Return each arm's nominal totals (infinity: not known), the greatest total, and whether all steps cost 0 or 1."""
    totals: dict[str, list[float]] = {}
    reader = RunReader(store, protocol)
    greatest, is_binary, is_any = 0.0, True, False
    for arm in protocol.arms:
        totals[arm.name] = []
        # Attacked trials are no part of the counts, but they too show what a step of this environment can cost.
        for attack in (None, *protocol.attacks):
            for trace in (trace for batch in reader.batches(arm, attack) for trace in reader.traces(batch)):
                costs = trace.cost[: protocol.horizon]
                known = costs[np.isfinite(costs)]
                greatest = max(greatest, math.fsum(known))
                is_binary = is_binary and bool(np.isin(known, (0.0, 1.0)).all())
                is_any = is_any or known.size > 0
                if attack is None:
                    totals[arm.name].append(total_cost(trace, protocol.horizon))
    if not is_any:
        raise ValueError(f"{store.root}: must have recorded costs, but no step has one. See `environment.cost`.")
    return totals, greatest, is_binary


class ArmCosts(Table):
    """The certified costs of one arm. Lists follow `budgets`, lists inside them `grid`."""

    trials: int = Field(ge=1, description="Nominal trials.")
    successes: tuple[int, ...] = Field(description="Trials with a total cost of at most each cost of the grid.")
    lower: tuple[tuple[float, ...], ...] = Field(
        description="Certified probability of a total cost of at most each cost, under each budget, rounded down."
    )
    expected_upper: tuple[float, ...] = Field(
        description="Upper bound on the expected total cost under each budget, rounded up."
    )


class CostsDocument(Document):
    """The certified distribution of the total cost, and its expectation, without and under shift."""

    format: Literal["ccfs/costs/1"] = Field(default="ccfs/costs/1", description="Kind and version of this document.")
    protocol: Digest = Field(description="Hash of the protocol.")
    quick_look_of: Digest | None = Field(description="Hash of the whole protocol if this is a quick look, else null.")
    bound: str = Field(description="How counts became lower bounds.")
    delta: float = Field(description="Failure probability of all bounds of this document together.")
    family: int = Field(description="Number of bounds that share `delta`.")
    stops_at_goal: bool = Field(description="Whether a trial ends at its first goal.")
    most: float = Field(description="The greatest total cost that a trial can have.")
    is_most_given: bool = Field(description="Whether `most` was given; else every recorded step cost 0 or 1.")
    grid: tuple[float, ...] = Field(description="Total costs, in order.")
    budgets: tuple[float, ...] = Field(
        description="Shift budgets of the action or score stage of each arm, or of the sensor stage if it is the only "
        "one. No other stage is shifted."
    )
    arms: dict[str, ArmCosts] = Field(description="The costs of each arm, by its name.")


def costs_document(study: CostStudy, budgets: Sequence[float]) -> CostsDocument:
    """Return the study as a document for machines."""
    protocol = study.protocol
    return CostsDocument(
        protocol=protocol.hash,
        quick_look_of=protocol.quick_look_of,
        bound=protocol.bound.value,
        delta=study.delta,
        family=study.family,
        stops_at_goal=protocol.stop.goal,
        most=study.most,
        is_most_given=study.is_most_given,
        grid=study.grid,
        budgets=tuple(budgets),
        arms={
            arm: ArmCosts(
                trials=curve.certificates[0].trials,
                successes=tuple(proof.successes for proof in curve.certificates),
                lower=tuple(tuple(curve.lower_at(at, budget=budget) for at in study.grid) for budget in budgets),
                expected_upper=tuple(curve.expected_upper(budget=budget) for budget in budgets),
            )
            for arm, curve in study.curves.items()
        },
    )


def default_budgets(study: CostStudy) -> tuple[float, ...]:
    """Return 0 and the budgets of the protocol's attacks on the stage that the budgets of a study are about."""
    named = {arm.schedule.plan.main.value for arm in study.protocol.arms}
    ours = [spec for spec in study.protocol.attacks if spec.stage is None or {spec.stage} == named]
    return tuple(sorted({0.0, *(spec.budget for spec in ours if spec.budget is not None)}))


def in_lines(study: CostStudy, budgets: Sequence[float]) -> Iterator[str]:
    """Yield the lines of a table for people, and what it assumes. Every number is rounded against us."""
    protocol = study.protocol
    look = "" if protocol.quick_look_of is None else "Quick look, "
    span = f"until the first goal or within {protocol.horizon}" if protocol.stop.goal else f"within {protocol.horizon}"
    for arm, curve in study.curves.items():
        yield f"{look}{arm}: total cost {span} steps, {curve.certificates[0].trials} nominal trials"
        stage = curve.certificates[0].schedule.main
        head = "shift budget" if stage is Stage.ACTION else f"shift budget ({stage.value})"
        yield _row(head, [exact_text(budget) for budget in budgets])
        for at in study.grid:
            lowers = [lower_text(curve.lower_at(at, budget=budget)) for budget in budgets]
            yield _row(f"P(cost <= {exact_text(at)}) at least", lowers)
        yield _row("expected cost at most", [upper_text(curve.expected_upper(budget=budget)) for budget in budgets])
    yield (
        f"All {len(study.curves) * len(study.grid)} points hold together, except with probability at most "
        f"{exact_text(study.delta)}, if they were chosen before the run. The run's certificates have their own."
    )
    if protocol.bound in (Bound.HOEFFDING, Bound.COHORT):
        yield "Probabilities and expectations are averages over the cohort's fixed reset seeds."
    most = exact_text(study.most)
    if study.is_most_given:
        yield f"It is assumed that a trial costs at most {most}, as given. One that ended early counts with that."
    else:
        yield (
            f"It is assumed that every step costs 0 or 1, as every recorded step did, so that a trial costs at most "
            f"{most}. One that ended early counts with that."
        )


def _row(head: str, cells: Sequence[str]) -> str:
    return f"  {head:<28}" + "".join(f"{cell:>12}" for cell in cells)
