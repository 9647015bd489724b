"""Whether a claim can be certified at all: what the bound gives when every trial succeeds."""

from __future__ import annotations

from ccfs.certificates import checks
from ccfs.certificates.binomial import bonferroni
from ccfs.certificates.bounds import Bound
from ccfs.certificates.rounding import exact_text, lower_text

__all__ = ["shortfall"]

_MOST_TRIALS = 1_000_000  # of a protocol


def shortfall(trials: int, *, delta: float, family: int, target: float, bound: Bound) -> str | None:
    """Say why `trials` trials cannot certify `target`, whatever happens in them; None if they can.

    Every bound rule is greatest when all trials succeed, and does not fall with more of them: the least sufficient
    number is found by bisection.

    >>> shortfall(200, delta=0.001, family=1, target=0.99, bound=Bound.CLOPPER_PEARSON)
    'even 200 of 200 would certify only 0.9660, below the target 0.99; at least 688 trials are needed'
    >>> shortfall(688, delta=0.001, family=1, target=0.99, bound=Bound.CLOPPER_PEARSON)
    """
    total = checks.count("trials", trials, minimum=1)
    level, share = checks.open_unit("target", target), bonferroni(delta, family)

    def best(number: int) -> float:
        return bound.lower(number, number, delta=share)

    if best(total) >= level:
        return None
    few, many = total, _MOST_TRIALS
    is_reachable = best(many) >= level
    while is_reachable and many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if best(middle) >= level else (middle, many)
    least = f"at least {many}" if is_reachable else f"more than {_MOST_TRIALS}"
    return (
        f"even {total} of {total} would certify only {lower_text(best(total))}, below the target {exact_text(level)}; "
        f"{least} trials are needed"
    )
