"""The claims of a run in a table: one line for each certificate."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from ccfs.certificates.rounding import exact_text, lower_text
from ccfs.files.documents import Infinite, Table
from ccfs.results.certificate import AttackedCount, RunCertificate

__all__ = ["ClaimLine", "claim_cells", "claim_lines", "size_text"]


class ClaimLine(Table):
    """One certificate of a run."""

    arm: str = Field(description="Name of the arm: controller/schedule.")
    event: str = Field(description="Name of the event.")
    successes: int = Field(description="Nominal trials in the event.")
    trials: int = Field(description="Nominal trials.")
    p_lower: float = Field(description="Lower bound on the nominal probability, rounded down.")
    target: float = Field(description="The probability that the event keeps under shift.")
    is_certified: bool = Field(description="Whether the target is certified.")
    budgets: dict[str, Infinite | None] = Field(
        description="Certified shift budget of each stage if no other one is shifted, rounded down. Null: none."
    )
    attack: str | None = Field(description="The attack that left fewest trials in the event, or null.")
    attacked: int | None = Field(description="Trials in the event under it.")
    attacked_trials: int | None = Field(description="Trials under it.")
    certified_there: float | None = Field(description="Certified probability at its limit, rounded down.")


def claim_lines(documents: Sequence[RunCertificate]) -> tuple[ClaimLine, ...]:
    """Return one line for each certificate, with the attack that did most harm."""
    return tuple(_line(document) for document in documents)


def _line(document: RunCertificate) -> ClaimLine:
    def rate(count: AttackedCount) -> float:
        return count.successes / count.trials

    worst = min((count for count in document.attacks if count.trials), key=rate, default=None)
    return ClaimLine(
        arm=document.arm,
        event=document.event,
        successes=document.successes,
        trials=document.trials,
        p_lower=document.p_lower,
        target=document.target,
        is_certified=document.is_certified,
        budgets={name: "infinity" if budget == math.inf else budget for name, budget in document.budgets.items()},
        attack=None if worst is None else worst.attack,
        attacked=None if worst is None else worst.successes,
        attacked_trials=None if worst is None else worst.trials,
        certified_there=None if worst is None else worst.certified(document.trajectory),
    )


def claim_cells(claims: Sequence[ClaimLine]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return heads and rows of a table of claims. Lower bounds and budgets are rounded down."""
    stages = tuple(dict.fromkeys(stage for claim in claims for stage in claim.budgets))
    has_attacks = any(claim.attack is not None for claim in claims)
    budgets = [f"B {stage}" if len(stages) > 1 else "B" for stage in stages]
    heads = ("arm", "event", "counted", "p_L", "target", *budgets)
    rows = []
    for claim in claims:
        under: tuple[str, ...] = ()
        if has_attacks:
            under = ("–", "–", "–")
            if claim.attack is not None and claim.certified_there is not None:
                seen = f"{claim.attacked} of {claim.attacked_trials}"
                under = (claim.attack, seen, lower_text(claim.certified_there))
        rows.append(
            (
                claim.arm,
                claim.event,
                f"{claim.successes} of {claim.trials}",
                lower_text(claim.p_lower),
                exact_text(claim.target),
                *(size_text(claim, stage) for stage in stages),
                *under,
            )
        )
    return (*heads, *(("worst attack", "observed", "certified there") if has_attacks else ())), rows


def size_text(claim: ClaimLine, stage: str) -> str:
    """Return the budget of a stage as a text, rounded down."""
    if stage not in claim.budgets:
        return "–"
    size = claim.budgets[stage]
    return "not certified" if size is None else lower_text(math.inf if size == "infinity" else size)
