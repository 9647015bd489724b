"""Every certificate of one image as a pure function of its stored counts, so that a recheck needs no network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from ccfs.certificates import checks, conditional, filtered
from ccfs.certificates.binomial import clopper_pearson_lower
from ccfs.certificates.gaussian import radius as gaussian_radius
from ccfs.certificates.rounding import fraction_upper

__all__ = [
    "DIAGNOSTICS",
    "CovarianceProof",
    "LabelCounts",
    "Rule",
    "Verdict",
    "certified_count",
    "covariance_ratio",
    "exceeds",
    "verdict",
]


def covariance_ratio(outers: Sequence[float], sigma: float) -> float:
    """Return Lambda of Proposition 9 (prop:diameter-radii) for projected bands, rounded up.

    The filter keeps a proposal x with inner <= |u'x + b| <= outer, for one or several orthogonal unit vectors u. Along
    each u the retained variance is at most outer^2 (Popoviciu). In all other directions it is sigma^2 (app:two-band).

    Args:
        outers: outer limits of the bands, in the units of sigma.
        sigma: noise scale.
    """
    scale = Fraction(checks.positive("sigma", sigma))
    widest = max(Fraction(outer) for outer in outers)
    return fraction_upper(max(Fraction(1), (widest / scale) ** 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class CovarianceProof:
    """The premise of the conditional certificates, proved for one filter and one noise scale.

    At every center closer than `ball`, the largest eigenvalue of the retained law's covariance is at most
    covariance_ratio * sigma^2. `statement` is the proof in words, for the record.
    """

    covariance_ratio: float
    statement: str
    ball: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCounts:
    """Retained proposals per label, and rejected ones, for one filter variant. Together they are all that was drawn."""

    retained: tuple[int, ...]
    rejected: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "retained", checks.counts("retained", self.retained))
        checks.count("rejected", self.rejected)

    @property
    def trials(self) -> int:
        """All proposals drawn."""
        return sum(self.retained) + self.rejected


class Rule(Enum):
    """A way from counts to a radius. All are sound except SUBSTITUTED, which is a diagnostic and named so."""

    SIMULTANEOUS = "joint simultaneous (Algorithm 1)"
    EXPLICIT = "joint explicit"
    COMPLEMENT = "joint complement"
    SINGLE_BATCH = "joint single batch"
    SPLIT = "joint declared split"
    RENYI = "conditional Renyi"
    REVERSE_KL = "conditional reverse KL"
    FORWARD_KL = "conditional forward KL"
    UNFILTERED = "unfiltered Gaussian"
    SUBSTITUTED = "conditional substitution (UNSOUND diagnostic)"


DIAGNOSTICS = frozenset({Rule.SUBSTITUTED})

_CONDITIONAL = {
    Rule.RENYI: conditional.renyi_counts,
    Rule.REVERSE_KL: conditional.reverse_kl_counts,
    Rule.FORWARD_KL: conditional.forward_kl_counts,
}

_JOINT = {
    Rule.SIMULTANEOUS: filtered.certify_counts,
    Rule.EXPLICIT: filtered.explicit_counts,
    Rule.COMPLEMENT: filtered.complement_counts,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one rule gives for one image: the selected label, and a radius that is 0 when it abstains.

    `selected` is None when no proposal for the selection was retained. A radius of 0 claims nothing.
    """

    rule: Rule
    selected: int | None
    radius: float

    @property
    def is_certified(self) -> bool:
        """Whether a sound rule gave a positive radius."""
        return self.rule not in DIAGNOSTICS and self.radius > 0.0


def verdict(
    rule: Rule,
    selection: LabelCounts,
    estimation: LabelCounts,
    *,
    sigma: float,
    delta: float,
    proof: CovarianceProof | None = None,
) -> Verdict:
    """Return what one rule gives for one image.

    SINGLE_BATCH selects on the estimation proposals and uses them alone. SUBSTITUTED is not a certificate.

    Assumes: selection and estimation proposals are independent of each other. `proof` belongs to the filter and noise
    scale that gave the counts.

    Args:
        rule: the calculation.
        selection: counts of the selection stream.
        estimation: counts of the estimation stream.
        sigma: noise scale, in the units of the radius.
        delta: failure probability of this image and rule.
        proof: covariance premise, which the conditional rules need.

    Returns:
        The verdict, with its radius rounded down.

    Raises:
        ValueError: a conditional rule has no proof, UNFILTERED has counts with a rejection, or `sigma` or `delta` is
            out of range.
    """
    scale, level = checks.positive("sigma", sigma), checks.delta(delta)
    if rule in _CONDITIONAL and proof is None:
        raise ValueError(f"{rule.value} needs a covariance proof, and this filter carries none. Use a joint rule.")
    if rule is Rule.UNFILTERED and (selection.rejected or estimation.rejected):
        raise ValueError(
            f"the unfiltered rule needs counts without rejections, got {selection.rejected + estimation.rejected}. "
            "Count with `NoFilter`. Without a filter those copies are rejected whose logits are not all finite numbers."
        )
    chooser = estimation if rule is Rule.SINGLE_BATCH else selection
    if sum(chooser.retained) == 0:
        return Verdict(rule=rule, selected=None, radius=0.0)
    selected = filtered.top_label(chooser.retained)
    return Verdict(
        rule=rule, selected=selected, radius=_value(rule, selection, estimation, selected, scale, level, proof)
    )


def _value(
    rule: Rule,
    selection: LabelCounts,
    counts: LabelCounts,
    selected: int,
    sigma: float,
    delta: float,
    proof: CovarianceProof | None,
) -> float:
    if rule is Rule.UNFILTERED:
        lower = clopper_pearson_lower(counts.retained[selected], counts.trials, delta=delta)
        # All other labels together have at most the rest.
        return gaussian_radius(lower, fraction_upper(1 - Fraction(lower)), sigma)
    if rule is Rule.SUBSTITUTED:
        return filtered.substituted_one_sided(counts.retained[selected], sum(counts.retained), sigma=sigma, delta=delta)
    if rule is Rule.SPLIT:
        return _split_radius(selection, counts, selected, sigma, delta)
    if rule is Rule.SINGLE_BATCH:
        return _radius(filtered.single_batch_counts(counts.retained, counts.rejected, sigma=sigma, delta=delta))
    if proof is not None and rule in _CONDITIONAL:
        return _radius(
            _CONDITIONAL[rule](
                counts.retained,
                selected=selected,
                sigma=sigma,
                covariance_ratio=proof.covariance_ratio,
                delta=delta,
                ball=proof.ball,
            )
        )
    return _radius(_JOINT[rule](counts.retained, counts.rejected, selected=selected, sigma=sigma, delta=delta))


def _split_radius(selection: LabelCounts, estimation: LabelCounts, selected: int, sigma: float, delta: float) -> float:
    """Choose the split of delta on the selection counts, and use it on the estimation counts."""
    split = filtered.chosen_split(
        selection.retained, selection.rejected, selected=selected, trials=estimation.trials, sigma=sigma, delta=delta
    )
    return _radius(
        filtered.split_counts(
            estimation.retained, estimation.rejected, selected=selected, sigma=sigma, delta=delta, split=split
        )
    )


def exceeds(radius: float, threshold: str | Fraction, *, strict: bool) -> bool:
    """Compare a radius with a reporting threshold as exact fractions: `>` if strict, else `>=`.

    A float is refused as threshold, because the double 0.3 is not 3/10.

    >>> exceeds(0.3, "0.3", strict=True), exceeds(0.30000000000000004, "0.3", strict=True)
    (False, True)
    """
    if not isinstance(threshold, (str, Fraction)):
        raise TypeError(f"`threshold` must be a decimal string or a fraction, got {threshold!r}.")
    level = Fraction(threshold)
    # An infinity is not a fraction.
    if radius == float("inf"):
        return True
    return Fraction(radius) > level if strict else Fraction(radius) >= level


def certified_count(
    verdicts: Iterable[Verdict], labels: Iterable[int], threshold: str | Fraction, *, strict: bool
) -> int:
    """Count images whose selected label is correct and whose radius is positive and passes the threshold."""
    return sum(
        item.selected == label and item.radius > 0.0 and exceeds(item.radius, threshold, strict=strict)
        for item, label in zip(verdicts, labels, strict=True)
    )


def _radius(answer: filtered.JointMassCertificate | conditional.ConditionalCertificate | filtered.Abstention) -> float:
    return 0.0 if isinstance(answer, filtered.Abstention) else answer.radius
