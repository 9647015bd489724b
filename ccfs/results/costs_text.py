"""A cost study as a table for people and as one JSON document; every number is rounded against us."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field

from ccfs.certificates.bounds import Bound
from ccfs.certificates.rounding import exact_text, lower_text, upper_text
from ccfs.files.documents import Digest, Document, Table
from ccfs.results.costs import CostStudy

__all__ = ["CostsDocument", "default_budgets", "document", "in_lines"]


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
    budgets: tuple[float, ...] = Field(description="Shift budgets.")
    arms: dict[str, ArmCosts] = Field(description="The costs of each arm, by its name.")


def default_budgets(study: CostStudy) -> tuple[float, ...]:
    """Return 0 and the budgets of the protocol's attacks."""
    return tuple(sorted({0.0, *(spec.budget for spec in study.protocol.attacks if spec.budget is not None)}))


def in_lines(study: CostStudy, budgets: Sequence[float]) -> Iterator[str]:
    """Yield the lines of the table and what it assumes."""
    protocol = study.protocol
    look = "" if protocol.quick_look_of is None else "Quick look, "
    span = f"until the first goal or within {protocol.horizon}" if protocol.stop.goal else f"within {protocol.horizon}"
    for arm, curve in study.curves.items():
        yield f"{look}{arm}: total cost {span} steps, {curve.certificates[0].trials} nominal trials"
        yield _row("shift budget", [exact_text(budget) for budget in budgets])
        for at in study.grid:
            lowers = [lower_text(curve.lower_at(at, budget=budget)) for budget in budgets]
            yield _row(f"P(cost <= {exact_text(at)}) at least", lowers)
        yield _row("expected cost at most", [upper_text(curve.expected_upper(budget=budget)) for budget in budgets])
    yield (
        f"All {len(study.curves) * len(study.grid)} points hold together, with failure probability at most "
        f"{exact_text(study.delta)} beside the run's certificates, if they were chosen before the run."
    )
    if protocol.bound in (Bound.HOEFFDING, Bound.COHORT):
        yield "Probabilities and expectations are averages over the cohort's fixed reset seeds."
    known = "as given" if study.is_most_given else "for every recorded step cost 0 or 1, and it is assumed that all do"
    yield f"A trajectory costs at most {exact_text(study.most)} ({known}); one that ended early counts with that."


def document(study: CostStudy, budgets: Sequence[float]) -> str:
    """Return the study as canonical JSON; lists follow `grid` and `budgets`."""
    protocol = study.protocol
    made = CostsDocument(
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
    return made.to_bytes().decode().rstrip()


def _row(head: str, cells: Sequence[str]) -> str:
    return f"  {head:<28}" + "".join(f"{cell:>12}" for cell in cells)
