"""Certificates for a filtered classifier from joint retained-label counts: the denominator is every proposal drawn.

A filter that discards proposals turns label probabilities into ratios. Their denominator, the probability of retention,
moves with the center. The Gaussian comparison holds for the joint event "retained and labelled y", so this module
counts that event. A rejected proposal counts as drawn and has no label.

Among the most frequent labels the classifier picks the lowest index. Every certificate says that the selected label is
strictly most likely inside the open ball, so it does not depend on this rule for ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.binomial import anytime_lower, bonferroni, clopper_pearson_lower, clopper_pearson_upper
from ccfs.certificates.gaussian import radius, radius_upper
from ccfs.certificates.rounding import fraction_lower, fraction_upper
from ccfs.certificates.validated import exact, lower_float, normal_quantile, precision

__all__ = [
    "SPLITS",
    "UNDIVIDED",
    "Abstention",
    "JointMassCertificate",
    "Split",
    "anytime_counts",
    "anytime_radius_upper",
    "certify_counts",
    "chosen_split",
    "complement_counts",
    "explicit_counts",
    "joint_mass_radius",
    "joint_mass_radius_upper",
    "single_batch_counts",
    "split_counts",
    "substituted_one_sided",
    "substituted_radius",
    "top_label",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JointMassCertificate:
    """The filtered decision is `label` at every center closer than `radius`, except with probability delta.

    `lower` bounds the joint mass of `label` from below and `upper` that of every competitor from above. Both hold
    together, with probability at least 1 - delta, at the center where the proposals were drawn.
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
    """No label is certified, and `reason` says why. It has no radius, so nobody can read one off by mistake."""

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
    """Certify the selected label from joint counts, by Algorithm 1 (alg:joint-mass) and Theorem 7 (thm:joint-mass).

    Three families of bounds share `delta` equally. The first bounds the selected mass from below. The second bounds the
    mass of "selected or rejected" from below, and its complement bounds all competitors together. The third bounds the
    mass of each competitor from above. The smaller of the two bounds on competitors enters the radius.

    Assumes: the counts and rejections are those of independent Gaussian proposals of scale `sigma` around one center.
    Their number was fixed in advance, not drawn until enough were retained. Filter and classifier are fixed. `selected`
    was chosen without these proposals.

    Args:
        counts: retained proposals per label, C_y in the paper, at least two labels.
        rejected: proposals that the filter discarded.
        selected: label to certify, A in the paper, chosen on other proposals (see `top_label`).
        sigma: proposal scale, in the units of the radius.
        delta: failure probability.

    Returns:
        The certificate, with its radius rounded down. An abstention if the bounds do not separate the labels.

    Raises:
        TypeError: a count is not an integer.
        ValueError: a count, `selected`, `sigma` or `delta` is out of range, or nothing was drawn.

    >>> certify_counts([900, 20], 80, selected=0, sigma=0.25, delta=0.001).radius > 0.25
    True

    References:
        Sheikholeslami et al. (2022), Theorem 3.1, for the bound from "selected or rejected".
    """
    tally = _Tally.of(counts, rejected, selected)
    third = bonferroni(delta, 3)
    each = bonferroni(delta, 3 * (len(tally.counts) - 1))
    lower = clopper_pearson_lower(tally.top, tally.trials, delta=third)
    upper = min(tally.explicit_upper(each), tally.complement_upper(third))
    return _certificate(tally, lower, upper, sigma=sigma, delta=delta, rule="simultaneous")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Shares of delta for the bounds of Algorithm 1: on the selected mass, on "selected or rejected", on competitors.

    They are declared before the estimation counts are seen. They may depend on the selection counts, which are
    independent of them.
    """

    selected: Fraction
    complement: Fraction
    explicit: Fraction

    def __post_init__(self) -> None:
        shares = (self.selected, self.complement, self.explicit)
        if not all(isinstance(share, Fraction) for share in shares):
            raise TypeError(f"`split` must hold fractions, got {shares}.")
        if not (self.selected > 0 and min(shares) >= 0 and sum(shares) <= 1):
            raise ValueError(
                f"`split` must be nonnegative, positive for the selected label, and at most 1, got {shares}."
            )


def _split(selected: str, complement: str, explicit: str) -> Split:
    return Split(selected=Fraction(selected), complement=Fraction(complement), explicit=Fraction(explicit))


UNDIVIDED = _split("1", "0", "0")
"""All of delta for the selected mass. Without rejections this is ordinary smoothing."""
SPLITS = (
    _split("1/3", "1/3", "1/3"),
    _split("1/2", "9/20", "1/20"),
    _split("1/2", "1/20", "9/20"),
    _split("4/5", "1/10", "1/10"),
    _split("19/20", "1/40", "1/40"),
    _split("98/100", "1/100", "1/100"),
)
"""The splits that `chosen_split` chooses from. The first is Algorithm 1's.

None drops a bound. A small share costs a bound little, because it enters through its logarithm. And the selection
counts may mislead about which bound is best.
"""


def split_counts(
    counts: Sequence[int] | NDArray[np.int64], rejected: int, *, selected: int, sigma: float, delta: float, split: Split
) -> JointMassCertificate | Abstention:
    """Certify as `certify_counts` does, with other shares of delta and one more bound that costs nothing.

    Competitors together have at most what the selected label leaves over. So whenever the bound on the selected mass
    holds, one minus it bounds every competitor, and no delta is spent on that. A filter that retains nearly everything
    makes this bound nearly as good as that from "selected or rejected". Then most of delta can go to the selected
    mass. With all of it there, and no rejections, the radius is that of ordinary smoothing.

    A third for each, as in Algorithm 1, costs most where retention is near one: the radius rests on one bound, which
    then has a third of delta only.

    Proof: each bound fails with probability at most its share of `delta`, and the shares add up to at most one.

    Assumes: as `certify_counts`. `split` was declared without these proposals.

    Args, Returns, Raises: as `certify_counts`.

    >>> thirds = certify_counts([900, 20], 0, selected=0, sigma=0.25, delta=0.001).radius
    >>> split_counts([900, 20], 0, selected=0, sigma=0.25, delta=0.001, split=UNDIVIDED).radius > thirds
    True
    """
    tally = _Tally.of(counts, rejected, selected)
    level = Fraction(checks.delta(delta))
    lower = clopper_pearson_lower(tally.top, tally.trials, delta=_share(level, split.selected))
    uppers = [fraction_upper(1 - Fraction(lower))]
    if split.complement:
        uppers.append(tally.complement_upper(_share(level, split.complement)))
    if split.explicit:
        uppers.append(tally.explicit_upper(_share(level, split.explicit / (len(tally.counts) - 1))))
    return _certificate(tally, lower, min(uppers), sigma=sigma, delta=delta, rule="split")


def anytime_counts(
    counts: Sequence[int] | NDArray[np.int64], rejected: int, *, selected: int, sigma: float, delta: float, split: Split
) -> JointMassCertificate | Abstention:
    """Certify as `split_counts` does, with bounds that hold at every number of proposals at once.

    So whoever draws may look at the counts after every proposal and stop whenever it suits, for instance when a wanted
    radius is certified. Each bound is `anytime_lower`, which holds at all times together with its share of `delta`.

    Assumes: as `split_counts`, but the number of proposals may depend on the counts.

    Args, Returns, Raises: as `split_counts`. The split must have nothing for explicit bounds.
    """
    if split.explicit:
        raise ValueError("`split` must have no share for explicit bounds here, because one upper bound serves all.")
    tally = _Tally.of(counts, rejected, selected)
    level = Fraction(checks.delta(delta))
    lower = anytime_lower(tally.top, tally.trials, delta=_share(level, split.selected))
    uppers = [fraction_upper(1 - Fraction(lower))]
    if split.complement:
        other = anytime_lower(tally.top + tally.rejected, tally.trials, delta=_share(level, split.complement))
        uppers.append(fraction_upper(1 - Fraction(other)))
    return _certificate(tally, lower, min(uppers), sigma=sigma, delta=delta, rule="anytime")


def anytime_radius_upper(
    counts: Sequence[int] | NDArray[np.int64], rejected: int, *, selected: int, sigma: float, delta: float
) -> float:
    """Return an upper bound on the population's joint-mass radius that holds at every number of proposals at once.

    Not a certificate. If it is below a wanted radius, going on is hopeless. Rounded up.
    """
    tally = _Tally.of(counts, rejected, selected)
    half = bonferroni(delta, 2)
    high = fraction_upper(1 - Fraction(anytime_lower(tally.trials - tally.top, tally.trials, delta=half)))
    strongest = max(count for label, count in enumerate(tally.counts) if label != tally.selected)
    share = bonferroni(half, len(tally.counts) - 1)
    low = anytime_lower(strongest, tally.trials, delta=share)
    return joint_mass_radius_upper(high, low, sigma)


def chosen_split(
    counts: Sequence[int] | NDArray[np.int64], rejected: int, *, selected: int, trials: int, sigma: float, delta: float
) -> Split:
    """Return the split of `SPLITS` with the largest radius if the estimation counts were like the selection counts.

    Args:
        counts: retained selection proposals per label.
        rejected: rejected selection proposals.
        selected: the selected label.
        trials: number of estimation proposals.
        sigma: proposal scale.
        delta: failure probability.
    """
    tally = _Tally.of(counts, rejected, selected)
    # Integers only, so that every machine predicts the same counts and chooses the same split. The strongest competitor
    # gets half a proposal more, because a few selection proposals cannot tell that there is none.
    strongest = max((count, -label) for label, count in enumerate(tally.counts) if label != tally.selected)
    halves = [2 * count for count in tally.counts]
    halves[-strongest[1]] += 1
    predicted = [trials * half // (2 * tally.trials + 1) for half in halves]
    rest = trials * 2 * tally.rejected // (2 * tally.trials + 1)
    predicted[selected] += trials - sum(predicted) - rest

    def value(split: Split) -> float:
        answer = split_counts(predicted, rest, selected=selected, sigma=sigma, delta=delta, split=split)
        return 0.0 if isinstance(answer, Abstention) else answer.radius

    return max(SPLITS, key=value)


def _share(delta: Fraction, share: Fraction) -> float:
    """Return a share of delta, rounded down."""
    return fraction_lower(delta * share)


def explicit_counts(
    counts: Sequence[int] | NDArray[np.int64], rejected: int, *, selected: int, sigma: float, delta: float
) -> JointMassCertificate | Abstention:
    """Certify from the selected mass and one upper bound per competitor, half of `delta` for each side (Theorem 7).

    Assumes, Args, Returns, Raises: as `certify_counts`.
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

    Assumes, Args, Returns, Raises: as `certify_counts`.
    """
    tally = _Tally.of(counts, rejected, selected)
    half = bonferroni(delta, 2)
    lower = clopper_pearson_lower(tally.top, tally.trials, delta=half)
    return _certificate(tally, lower, tally.complement_upper(half), sigma=sigma, delta=delta, rule="complement")


def single_batch_counts(
    counts: Sequence[int] | NDArray[np.int64], rejected: int, *, sigma: float, delta: float
) -> JointMassCertificate | Abstention:
    """Select the most frequent label and certify it on the same proposals.

    Every label gets all three bounds of `certify_counts` before one is selected, so the bounds hold whatever is
    selected. Each of the three families takes a third of `delta`, spread over all labels (paper, appendix on joint
    masses, finite-sample coverage).

    Assumes, Args, Returns, Raises: as `certify_counts`, without the requirement on `selected`.
    """
    tally = _Tally.of(counts, rejected, top_label(counts))
    each = bonferroni(delta, 3 * len(tally.counts))
    lower = clopper_pearson_lower(tally.top, tally.trials, delta=each)
    upper = min(tally.explicit_upper(each), tally.complement_upper(each))
    return _certificate(tally, lower, upper, sigma=sigma, delta=delta, rule="single-batch")


def joint_mass_radius(lower: float, upper: float, sigma: float) -> float:
    """Return the joint-mass radius of Theorem 7 (thm:joint-mass), sigma / 2 [Phi^-1(lower) - Phi^-1(upper)].

    No larger radius can be had from these two masses alone (Proposition 8, prop:joint-sharpness).

    Assumes: `lower` bounds the selected label's joint retained mass from below, and `upper` that of every competitor
    from above.

    Args:
        lower: L_A in the paper.
        upper: U_B in the paper.
        sigma: proposal scale, in the units of the radius.

    Returns:
        The radius of an open ball, rounded down. It is 0 unless lower > upper.

    Raises:
        TypeError: an argument is not a real number.
        ValueError: a mass is outside of [0, 1], or `sigma` is not positive.

    >>> f"{joint_mass_radius(0.18406012534675947, 0.13566606094638267, 1.0):.6f}"
    '0.100000'
    """
    return radius(lower, upper, sigma)


def joint_mass_radius_upper(upper_a: float, lower_b: float, sigma: float) -> float:
    """Return an upper bound on the population joint-mass radius, rounded up. Not a certificate.

    It serves to compare certificates with what they could at most be.

    Assumes: `upper_a` bounds the selected label's joint mass from above, and `lower_b` the strongest competitor's from
    below.
    """
    return radius_upper(upper_a, lower_b, sigma)


def substituted_radius(p_a: float, p_b: float, sigma: float) -> float:
    """UNSOUND DIAGNOSTIC: the ordinary radius with conditional probabilities put in. Not a certificate.

    The decision can change inside it (Proposition 5, prop:confidence-filter, and Proposition 6, prop:lshape-witness).
    It is here so that a study can show by how much. It is sound when the retained set is convex (Corollary 2,
    cor:convex-event), and not in general.

    >>> f"{substituted_radius(0.575680, 0.424320, 1.0):.4f}"
    '0.1909'
    """
    return radius(p_a, p_b, sigma)


def substituted_one_sided(successes: int, retained: int, *, sigma: float, delta: float) -> float:
    """UNSOUND DIAGNOSTIC: what released confidence-filter code reports. Not a certificate.

    The number is sigma [Phi^-1(p)]_+, with p the Clopper-Pearson bound of the selected count among RETAINED proposals.

    Args:
        successes: retained proposals with the selected label.
        retained: retained proposals. 0 gives the radius 0.
        sigma: proposal scale, in the units of the radius.
        delta: failure probability of the bound on the conditional probability.

    Raises:
        TypeError: a count is not an integer.
        ValueError: successes exceed `retained`, or `sigma` or `delta` is out of range.
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
        """Bound every competitor by its own count, and spend `delta` on each."""
        # The bound grows with the count, so the largest count gives the largest of all bounds.
        strongest = max(count for label, count in enumerate(self.counts) if label != self.selected)
        return clopper_pearson_upper(strongest, self.trials, delta=delta)

    def complement_upper(self, delta: float) -> float:
        """Bound all competitors together by what is neither selected nor rejected."""
        lower = clopper_pearson_lower(self.top + self.rejected, self.trials, delta=delta)
        # In fractions, because 1 - lower in doubles may round down.
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
