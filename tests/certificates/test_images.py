"""Verdicts on images are the certificates of their counts, and thresholds are compared exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest
from scipy.stats import norm

from ccfs.certificates import conditional, filtered
from ccfs.certificates.binomial import clopper_pearson_lower
from ccfs.certificates.images import CovarianceProof, LabelCounts, Rule, Verdict, certified_count, exceeds, verdict

SELECTION = LabelCounts(retained=(40, 3, 2), rejected=5)
ESTIMATION = LabelCounts(retained=(900, 20, 10), rejected=70)
PROOF = CovarianceProof(covariance_ratio=1.0, statement="for the test")


@pytest.mark.parametrize(
    ("rule", "oracle"),
    [
        (Rule.SIMULTANEOUS, lambda c, r, **k: filtered.certify_counts(c, r, **k)),
        (Rule.EXPLICIT, lambda c, r, **k: filtered.explicit_counts(c, r, **k)),
        (Rule.COMPLEMENT, lambda c, r, **k: filtered.complement_counts(c, r, **k)),
        (Rule.RENYI, lambda c, r, **k: conditional.renyi_counts(c, covariance_ratio=1.0, **k)),
        (Rule.REVERSE_KL, lambda c, r, **k: conditional.reverse_kl_counts(c, covariance_ratio=1.0, **k)),
        (Rule.FORWARD_KL, lambda c, r, **k: conditional.forward_kl_counts(c, covariance_ratio=1.0, **k)),
    ],
)
def test_verdict_is_the_certificate_of_the_counts(rule, oracle) -> None:
    found = verdict(rule, SELECTION, ESTIMATION, sigma=0.25, delta=0.001, proof=PROOF)
    certificate = oracle(ESTIMATION.retained, ESTIMATION.rejected, selected=0, sigma=0.25, delta=0.001)
    assert found == Verdict(rule=rule, selected=0, radius=certificate.radius)
    assert found.is_certified


def test_verdict_unfiltered_is_sigma_times_the_quantile_rounded_down() -> None:
    full = LabelCounts(retained=(950, 30, 20), rejected=0)
    found = verdict(Rule.UNFILTERED, full, full, sigma=0.25, delta=0.001)
    oracle = 0.25 * norm.ppf(clopper_pearson_lower(950, 1000, delta=0.001))
    assert oracle - 1e-12 < found.radius < oracle + 1e-12


def test_verdict_single_batch_ignores_the_selection() -> None:
    other = LabelCounts(retained=(0, 50, 0), rejected=0)
    found = verdict(Rule.SINGLE_BATCH, other, ESTIMATION, sigma=0.25, delta=0.001)
    assert found.selected == 0
    assert 0 < found.radius < verdict(Rule.SIMULTANEOUS, SELECTION, ESTIMATION, sigma=0.25, delta=0.001).radius


@pytest.mark.parametrize("rule", list(Rule))
def test_verdict_claims_nothing_when_everything_is_rejected(rule) -> None:
    nothing = LabelCounts(retained=(0, 0, 0), rejected=0 if rule is Rule.UNFILTERED else 100)
    found = verdict(rule, nothing, nothing, sigma=0.25, delta=0.001, proof=PROOF)
    assert found == Verdict(rule=rule, selected=None, radius=0.0)
    assert not found.is_certified


def test_substituted_radius_is_never_certified() -> None:
    found = verdict(Rule.SUBSTITUTED, SELECTION, ESTIMATION, sigma=0.25, delta=0.001)
    assert found.radius > verdict(Rule.SIMULTANEOUS, SELECTION, ESTIMATION, sigma=0.25, delta=0.001).radius
    assert not found.is_certified


def test_conditional_rules_need_a_proof() -> None:
    with pytest.raises(ValueError, match="covariance proof"):
        verdict(Rule.RENYI, SELECTION, ESTIMATION, sigma=0.25, delta=0.001)


def test_unfiltered_rule_refuses_rejections() -> None:
    with pytest.raises(ValueError, match=r"without rejections, got .* logits are not all finite"):
        verdict(Rule.UNFILTERED, SELECTION, ESTIMATION, sigma=0.25, delta=0.001)


def test_thresholds_are_compared_as_exact_rationals() -> None:
    below = 0.3  # this double is 0.299999999999999988897769753748...
    assert not exceeds(below, "0.3", strict=False)
    assert exceeds(0.25, "0.25", strict=False)
    assert not exceeds(0.25, Fraction(1, 4), strict=True)
    assert exceeds(float("inf"), "9", strict=True)
    with pytest.raises(TypeError, match="threshold"):
        exceeds(0.3, 0.3, strict=True)


def test_certified_count_needs_the_right_label_and_a_positive_radius() -> None:
    verdicts = [
        Verdict(rule=Rule.EXPLICIT, selected=s, radius=r) for s, r in ((1, 0.5), (2, 0.5), (1, 0.0), (None, 0.0))
    ]
    assert certified_count(verdicts, [1, 1, 1, 1], "0", strict=False) == 1
    assert certified_count(verdicts, [1, 2, 1, 0], "0.5", strict=False) == 2
    assert certified_count(verdicts, [1, 2, 1, 0], "0.5", strict=True) == 0
