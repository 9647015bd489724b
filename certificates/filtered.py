"""Certificates for a filtered classifier from joint retained-label counts: the denominator is every proposal drawn.

A filter that discards proposals turns label probabilities into ratios whose denominator, the probability of retention,
moves with the center. The Gaussian comparison holds for the joint event "retained and labelled y", so that is what is
counted here; a rejected proposal counts as drawn and as carrying no label.

Ties: the classifier picks the lowest label index among the most frequent labels. Every certificate says that the
selected label is strictly most likely inside the open ball, so it does not depend on that rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.binomial import bonferroni, clopper_pearson_lower, clopper_pearson_upper
from ccfs.certificates.gaussian import radius, radius_upper
from ccfs.certificates.rounding import fraction_upper
from ccfs.certificates.validated import exact, lower_float, normal_quantile, precision

__all__ = [
    "Abstention",
    "JointMassCertificate",
    "certify_counts",
    "complement_counts",
    "explicit_counts",
    "joint_mass_radius",
    "joint_mass_radius_upper",
    "single_batch_counts",
    "substituted_one_sided",
    "substituted_radius",
    "top_label",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JointMassCertificate:
    """The filtered decision is `label` at every center closer than `radius`, with the stated error.

    `lower` bounds the joint mass of `label` from below, `upper` every competitor's from above, both at the center where
    the proposals were drawn and simultaneously with probability at least 1 - delta.
    """

    label: int
    radius: float
    lower: float
    upper: float
    counts: tuple[int, ...]
    rejected: int
    sigma: float
    delta: float
    rule: str

    @property
    def trials(self) -> int:
        """Proposals drawn, rejected ones included."""
        return sum(self.counts) + self.rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstention:
    """No label is certified; `reason` says why. It has no radius, so none can be read off by mistake."""

    reason: str


def top_label(counts: Sequence[int] | NDArray[np.int64]) -> int:
    """Return the most frequent label, the lowest index among ties: the selection rule of the filtered classifier.

    >>> top_label([3, 7, 7])
    1
    """
    tallies = checks.counts("counts", counts)
    return tallies.index(max(tallies))


def certify_counts(
    counts: Sequence[int] | NDArray[np.int64], rejected: int, *, selected: int, sigma: float, delta: float
) -> JointMassCertificate | Abstention:
    """Certify the selected label from joint counts (Algorithm 1 and Theorem 7, thm:joint-mass).

    Three families of bounds share `delta` equally: the selected mass from below, the mass of "selected or rejected"
    from below (whose complement bounds all competitors together; Sheikholeslami et al., 2022), and each competitor's
    mass from above. The smaller of the two competitor bounds is used.

    Assumes: counts and rejections are of independent Gaussian proposals of scale `sigma` around one center, their
    number fixed in advance (not drawn until enough are retained); filter and classifier are fixed; `selected` was
    chosen without these proposals.

    Args:
        counts: retained proposals per label, at least two labels.
        rejected: proposals that the filter discarded.
        selected: label to certify, chosen on other proposals (see `top_label`).
        sigma: proposal scale, in the units of the radius.
        delta: failure probability.

    >>> certify_counts([900, 20], 80, selected=0, sigma=0.25, delta=0.001).radius > 0.25
    True
    """
    tally = _Tally.of(counts, rejected, selected)
    third = bonferroni(delta, 3)
    each = bonferroni(delta, 3 * (len(tally.counts) - 1))
    lower = clopper_pearson_lower(tally.top, tally.trials, delta=third)
    upper = min(tally.explicit_upper(each), tally.complement_upper(third))
    return _certificate(tally, lower, upper, sigma=sigma, delta=delta, rule="simultaneous")


def explicit_counts(
    counts: Sequence[int] | NDArray[np.int64], rejected: int, *, selected: int, sigma: float, delta: float
) -> JointMassCertificate | Abstention:
    """Certify from the selected mass and one upper bound per competitor, half of `delta` each (Theorem 7).

    Assumes and Args: as `certify_counts`.
    """
    tally = _Tally.of(counts, rejected, selected)
    lower = clopper_pearson_lower(tally.top, tally.trials, delta=bonferroni(delta, 2))
    upper = tally.explicit_upper(bonferroni(delta, 2 * (len(tally.counts) - 1)))
    return _certificate(tally, lower, upper, sigma=sigma, delta=delta, rule="explicit")


def complement_counts(
    counts: Sequence[int] | NDArray[np.int64], rejected: int, *, selected: int, sigma: float, delta: float
) -> JointMassCertificate | Abstention:
    """Certify from the selected mass and the mass of "selected or rejected", half of `delta` each.

    What is neither selected nor rejected bounds every competitor (Sheikholeslami et al., 2022, Theorem 3.1).

    Assumes and Args: as `certify_counts`.
    """
    tally = _Tally.of(counts, rejected, selected)
    half = bonferroni(delta, 2)
    lower = clopper_pearson_lower(tally.top, tally.trials, delta=half)
    return _certificate(tally, lower, tally.complement_upper(half), sigma=sigma, delta=delta, rule="complement")


def single_batch_counts(
    counts: Sequence[int] | NDArray[np.int64], rejected: int, *, sigma: float, delta: float
) -> JointMassCertificate | Abstention:
    """Select the most frequent label and certify it on the same proposals.

    Every label gets all three bounds of `certify_counts` before one is selected, so the selection is covered: each of
    the three families takes a third of `delta`, spread over all labels (paper, finite-sample coverage).

    Assumes: as `certify_counts`, without the requirement on `selected`.
    """
    tally = _Tally.of(counts, rejected, top_label(counts))
    each = bonferroni(delta, 3 * len(tally.counts))
    lower = clopper_pearson_lower(tally.top, tally.trials, delta=each)
    upper = min(tally.explicit_upper(each), tally.complement_upper(each))
    return _certificate(tally, lower, upper, sigma=sigma, delta=delta, rule="single-batch")


def joint_mass_radius(lower: float, upper: float, sigma: float) -> float:
    """Return the joint-mass radius, rounded down (Theorem 7, thm:joint-mass).

    sigma / 2 [Phi^-1(lower) - Phi^-1(upper)], and 0 unless lower > upper.

    Assumes: `lower` bounds the selected label's joint retained mass from below and `upper` every competitor's from
    above.

    >>> f"{joint_mass_radius(0.18406012534675947, 0.13566606094638267, 1.0):.6f}"
    '0.100000'
    """
    return radius(lower, upper, sigma)


def joint_mass_radius_upper(upper_a: float, lower_b: float, sigma: float) -> float:
    """Return an upper bound on the population joint-mass radius, rounded up; for comparing certificates only.

    Assumes: `upper_a` bounds the selected label's joint mass from above, `lower_b` the strongest competitor's from
    below.
    """
    return radius_upper(upper_a, lower_b, sigma)


def substituted_radius(p_a: float, p_b: float, sigma: float) -> float:
    """UNSOUND DIAGNOSTIC: the ordinary radius with conditional probabilities put in. Not a certificate.

    The decision can change inside it (Proposition 5, prop:confidence-filter, and Proposition 6, prop:lshape-witness).
    It is here so that a study can show by how much. It is sound only when the retained set is convex (Corollary 2,
    cor:convex-event).

    >>> f"{substituted_radius(0.575680, 0.424320, 1.0):.4f}"
    '0.1909'
    """
    return radius(p_a, p_b, sigma)


def substituted_one_sided(successes: int, retained: int, *, sigma: float, delta: float) -> float:
    """UNSOUND DIAGNOSTIC: what released confidence-filter code reports. Not a certificate.

    sigma [Phi^-1(p)]_+ with p the Clopper-Pearson bound of the selected count among RETAINED proposals.

    Args:
        successes: retained proposals that carry the selected label.
        retained: retained proposals; 0 gives radius 0.
        sigma: proposal scale.
        delta: failure probability of the bound on the conditional probability.
    """
    scale = checks.positive("sigma", sigma)
    level = checks.delta(delta)
    if checks.count("retained", retained) == 0:
        if checks.count("successes", successes) != 0:
            raise ValueError(f"`successes` must be at most `retained`, got {successes} of 0.")
        return 0.0
    lower = clopper_pearson_lower(successes, retained, delta=level)
    if not lower > 0.5:
        return 0.0
    with precision():
        return max(lower_float(exact(scale) * normal_quantile(exact(lower))), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tally:
    """Checked joint counts with the selected label."""

    counts: tuple[int, ...]
    rejected: int
    selected: int
    trials: int

    @classmethod
    def of(cls, counts: Sequence[int] | NDArray[np.int64], rejected: int, selected: int) -> _Tally:
        tallies = checks.counts("counts", counts)
        discarded = checks.count("rejected", rejected)
        label = checks.count("selected", selected)
        if not label < len(tallies):
            raise ValueError(f"`selected` must be a label index below {len(tallies)}, got {label}.")
        trials = sum(tallies) + discarded
        if not trials >= 1:
            raise ValueError("`counts` and `rejected` must hold at least one proposal, got none.")
        return cls(counts=tallies, rejected=discarded, selected=label, trials=trials)

    @property
    def top(self) -> int:
        return self.counts[self.selected]

    def explicit_upper(self, delta: float) -> float:
        """Bound every competitor by its own count; `delta` is spent on each."""
        strongest = max(count for label, count in enumerate(self.counts) if label != self.selected)
        return clopper_pearson_upper(strongest, self.trials, delta=delta)

    def complement_upper(self, delta: float) -> float:
        """Bound all competitors together by what is neither selected nor rejected."""
        lower = clopper_pearson_lower(self.top + self.rejected, self.trials, delta=delta)
        return fraction_upper(1 - Fraction(lower))


def _certificate(
    tally: _Tally, lower: float, upper: float, *, sigma: float, delta: float, rule: str
) -> JointMassCertificate | Abstention:
    scale = checks.positive("sigma", sigma)
    if not lower > upper:
        return Abstention(
            reason=f"the lower bound {lower:.6g} on label {tally.selected} does not exceed the upper bound {upper:.6g} "
            "on its competitors"
        )
    return JointMassCertificate(
        label=tally.selected,
        radius=joint_mass_radius(lower, upper, scale),
        lower=lower,
        upper=upper,
        counts=tally.counts,
        rejected=tally.rejected,
        sigma=scale,
        delta=checks.delta(delta),
        rule=rule,
    )
