"""The rules that turn successes and trials into a lower bound, and the sampling premises in words."""

from __future__ import annotations

from enum import Enum

from ccfs.certificates.binomial import anytime_lower, clopper_pearson_lower, cohort_lower, hoeffding_lower

__all__ = ["Bound", "Sampling"]


class Sampling(Enum):
    """How the initial states came about when each has several draws, which decides what is independent of what."""

    COHORT = "cohort"
    LAW = "law"

    @classmethod
    def of(cls, name: object) -> Sampling:
        """Return the kind of this name. Refuse others."""
        try:
            return cls(name)
        except ValueError:
            accepted = ", ".join(repr(entry.value) for entry in cls)
            raise ValueError(f"`sampling` must be one of {accepted}, got {name!r}.") from None

    @property
    def premise(self) -> str:
        """How the trials must have been sampled, in words for the certificate."""
        return _STRATA_PREMISES[self]


class Bound(Enum):
    """A rule that turns successes and trials into a lower bound, with the sampling premise that it needs."""

    HOEFFDING = "hoeffding"
    COHORT = "cohort"
    CLOPPER_PEARSON = "clopper-pearson"
    ANYTIME = "anytime"

    @property
    def premise(self) -> str:
        """How the trials must have been sampled, in words for the certificate."""
        return _PREMISES[self]

    def lower(self, successes: int, trials: int, *, delta: float) -> float:
        """Return the lower confidence bound of this rule, rounded down."""
        return _RULES[self](successes, trials, delta=delta)


_RULES = {
    Bound.HOEFFDING: hoeffding_lower,
    Bound.COHORT: cohort_lower,
    Bound.CLOPPER_PEARSON: clopper_pearson_lower,
    Bound.ANYTIME: anytime_lower,
}
# These sentences stand on certificates. A changed sentence needs a new version of the format.
_COHORT_PREMISE = (
    "One independent nominal trajectory for each member of a cohort of initial states fixed before sampling. "
    "The probability is the cohort's average; no claim is made about other initial states."
)
_PREMISES = {
    Bound.HOEFFDING: _COHORT_PREMISE,
    Bound.COHORT: _COHORT_PREMISE,
    Bound.CLOPPER_PEARSON: (
        "Independent nominal trajectories with independent draws from one initial law; their number was fixed before "
        "sampling."
    ),
    Bound.ANYTIME: (
        "Independent nominal trajectories with independent draws from one initial law, counted in the order drawn; "
        "the run may have stopped at any time, also because of its results."
    ),
}
_STRATA_PREMISES = {
    Sampling.COHORT: (
        "At each member of a cohort of initial states fixed before sampling, a number of independent nominal "
        "trajectories that was fixed too. The claim is about the average over the members, each with the same weight, "
        "and about no other initial states."
    ),
    Sampling.LAW: (
        "Initial states drawn independently from one initial law, and at each a number of independent nominal "
        "trajectories that was fixed before sampling."
    ),
}
