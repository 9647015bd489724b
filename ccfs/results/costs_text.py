"""A cost study as a table for people and as one JSON document; every number is rounded against us."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ccfs.certificates.bounds import Bound
from ccfs.certificates.rounding import exact_text, lower_text, upper_text
from ccfs.files.digests import canonical_json
from ccfs.results.costs import CostStudy

__all__ = ["default_budgets", "document", "in_lines"]

FORMAT = "ccfs-costs-1"


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
    return canonical_json(
        {
            "format": FORMAT,
            "protocol": study.protocol.hash,
            "quick_look_of": study.protocol.quick_look_of,
            "bound": study.protocol.bound.value,
            "delta": study.delta,
            "family": study.family,
            "stops_at_goal": study.protocol.stop.goal,
            "most": study.most,
            "is_most_given": study.is_most_given,
            "grid": list(study.grid),
            "budgets": list(budgets),
            "arms": {
                arm: {
                    "trials": curve.certificates[0].trials,
                    "successes": [proof.successes for proof in curve.certificates],
                    "lower": [[curve.lower_at(at, budget=budget) for at in study.grid] for budget in budgets],
                    "expected_upper": [curve.expected_upper(budget=budget) for budget in budgets],
                }
                for arm, curve in study.curves.items()
            },
        }
    )


def _row(head: str, cells: Sequence[str]) -> str:
    return f"  {head:<28}" + "".join(f"{cell:>12}" for cell in cells)
