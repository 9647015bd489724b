"""Joint-mass certificates: exact coverage by enumeration, brute-force decision boundaries, the paper's examples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from ccfs.certificates.binomial import bonferroni, clopper_pearson_lower, clopper_pearson_upper
from ccfs.certificates.filtered import (
    SPLITS,
    UNDIVIDED,
    Abstention,
    JointMassCertificate,
    Split,
    anytime_counts,
    anytime_radius_upper,
    certify_counts,
    chosen_split,
    complement_counts,
    explicit_counts,
    joint_mass_radius,
    joint_mass_radius_upper,
    single_batch_counts,
    split_counts,
    substituted_one_sided,
    substituted_radius,
    top_label,
)
from ccfs.certificates.rounding import fraction_upper

RULES = (certify_counts, explicit_counts, complement_counts)


def outcomes(trials: int, cells: int) -> Iterator[tuple[int, ...]]:
    """All ways to spread `trials` draws over `cells` cells."""
    if cells == 1:
        yield (trials,)
        return
    for first in range(trials + 1):
        for rest in outcomes(trials - first, cells - 1):
            yield (first, *rest)


def multinomial(counts: tuple[int, ...], masses: list[Fraction]) -> Fraction:
    weight = Fraction(math.factorial(sum(counts)))
    for count, mass in zip(counts, masses, strict=True):
        weight *= mass**count / Fraction(math.factorial(count))
    return weight


def failure_probability(
    masses: list[Fraction], trials: int, certify: Callable[[tuple[int, ...], int], JointMassCertificate | Abstention]
) -> Fraction:
    """Exact probability that a certificate rests on a bound that is on the wrong side of the true joint masses."""
    failing = Fraction(0)
    rejected_mass = 1 - sum(masses)
    for *counts, rejected in outcomes(trials, len(masses) + 1):
        result = certify(tuple(counts), rejected)
        if isinstance(result, JointMassCertificate):
            others = [mass for label, mass in enumerate(masses) if label != result.label]
            if Fraction(result.lower) > masses[result.label] or Fraction(result.upper) < max(others):
                failing += multinomial((*counts, rejected), [*masses, rejected_mass])
    return failing


MASSES = [
    [Fraction(1, 2), Fraction(1, 4)],
    [Fraction(1, 10), Fraction(1, 10)],
    [Fraction(3, 5), Fraction(2, 5)],
    [Fraction(1, 3), Fraction(1, 4), Fraction(1, 6)],
    [Fraction(1, 20), Fraction(1, 2), Fraction(9, 20)],
]


@pytest.mark.slow
@pytest.mark.parametrize("masses", MASSES)
@pytest.mark.parametrize("rule", RULES)
def test_counts_certificates_cover_by_enumeration(rule, masses: list[Fraction]) -> None:
    delta = 0.6
    for selected in range(len(masses)):
        failing = failure_probability(
            masses, 7, lambda c, r, label=selected: rule(c, r, selected=label, sigma=1.0, delta=delta)
        )
        assert failing <= Fraction(delta)


@pytest.mark.parametrize("masses", MASSES)
def test_single_batch_counts_cover_by_enumeration(masses: list[Fraction]) -> None:
    delta = 0.6
    failing = failure_probability(masses, 7, lambda c, r: single_batch_counts(c, r, sigma=1.0, delta=delta))
    assert failing <= Fraction(delta)


def test_selecting_on_the_estimation_batch_is_what_single_batch_counts_corrects() -> None:
    """Feeding the two-batch algorithm a label selected on the same batch errs more often than the single-batch rule."""
    masses, delta = [Fraction(1, 6)] * 6, 0.9

    def reused(counts: tuple[int, ...], rejected: int) -> JointMassCertificate | Abstention:
        return certify_counts(counts, rejected, selected=top_label(counts), sigma=1.0, delta=delta)

    honest = failure_probability(masses, 4, lambda c, r: single_batch_counts(c, r, sigma=1.0, delta=delta))
    assert honest <= Fraction(delta)
    assert failure_probability(masses, 4, reused) > honest


def test_certify_counts_splits_delta_as_the_algorithm_says() -> None:
    counts, rejected, delta = [800, 60, 20], 120, 0.001
    certificate = certify_counts(counts, rejected, selected=0, sigma=0.25, delta=delta)
    explicit = clopper_pearson_upper(60, 1000, delta=bonferroni(delta, 6))
    complement = 1 - clopper_pearson_lower(920, 1000, delta=bonferroni(delta, 3))
    assert certificate.lower == clopper_pearson_lower(800, 1000, delta=bonferroni(delta, 3))
    assert certificate.upper == pytest.approx(min(explicit, complement), rel=1e-15)
    assert certificate.radius == joint_mass_radius(certificate.lower, certificate.upper, 0.25)
    assert (certificate.label, certificate.trials, certificate.rule) == (0, 1000, "simultaneous")
    assert (certificate.counts, certificate.rejected, certificate.sigma) == ((800, 60, 20), 120, 0.25)


def test_certify_counts_uses_the_complement_at_a_third_of_delta_where_that_is_smaller() -> None:
    certificate = certify_counts([700, 100], 200, selected=0, sigma=1.0, delta=0.001)
    crowded = certify_counts([700, 60, 40], 200, selected=0, sigma=1.0, delta=0.001)
    explicit = clopper_pearson_upper(60, 1000, delta=bonferroni(0.001, 6))
    assert crowded.upper == min(explicit, complement_upper(900, 1000, bonferroni(0.001, 3)))
    binary = complement_upper(900, 1000, bonferroni(0.001, 3))
    assert certificate.upper == min(clopper_pearson_upper(100, 1000, delta=bonferroni(0.001, 3)), binary)


def complement_upper(kept: int, trials: int, delta: float) -> float:
    """One minus the lower bound, rounded up."""
    truth = 1 - Fraction(clopper_pearson_lower(kept, trials, delta=delta))
    nearest = float(truth)
    return nearest if Fraction(nearest) >= truth else math.nextafter(nearest, 1.0)


def test_complement_counts_upper_is_the_complement_rounded_up() -> None:
    for rejected in (0, 3, 200, 500):
        result = complement_counts([700, 100, 1], rejected, selected=0, sigma=1.0, delta=0.001)
        assert result.upper == complement_upper(700 + rejected, 801 + rejected, bonferroni(0.001, 2))


def test_explicit_and_complement_split_delta_in_halves() -> None:
    counts, rejected, delta = [800, 60, 20], 120, 0.001
    explicit = explicit_counts(counts, rejected, selected=0, sigma=1.0, delta=delta)
    complement = complement_counts(counts, rejected, selected=0, sigma=1.0, delta=delta)
    assert explicit.lower == complement.lower == clopper_pearson_lower(800, 1000, delta=bonferroni(delta, 2))
    assert explicit.upper == clopper_pearson_upper(60, 1000, delta=bonferroni(delta, 4))
    assert complement.upper >= 1 - clopper_pearson_lower(920, 1000, delta=bonferroni(delta, 2))


def test_neither_explicit_nor_complement_dominates() -> None:
    many = ([700, 20, 20, 20, 20, 20], 200)
    few = ([700, 100], 200)
    radii = [
        [rule(*data, selected=0, sigma=1.0, delta=0.001).radius for rule in (explicit_counts, complement_counts)]
        for data in (many, few)
    ]
    assert radii[0][0] > radii[0][1]
    assert radii[1][0] <= radii[1][1]


def test_rejections_stay_in_the_denominator() -> None:
    kept = certify_counts([90, 10], 0, selected=0, sigma=1.0, delta=0.05)
    filtered = certify_counts([90, 10], 900, selected=0, sigma=1.0, delta=0.05)
    assert kept.trials == 100
    assert filtered.trials == 1000
    assert kept.radius > filtered.radius


def test_abstention_has_no_radius_and_says_why() -> None:
    for result in (
        certify_counts([5, 5], 0, selected=0, sigma=1.0, delta=0.001),
        certify_counts([0, 0], 10_000, selected=0, sigma=1.0, delta=0.001),
        single_batch_counts([0, 0, 0], 10_000, sigma=1.0, delta=0.001),
        certify_counts([2, 500], 0, selected=0, sigma=1.0, delta=0.001),
    ):
        assert isinstance(result, Abstention)
        assert "does not exceed" in result.reason
        assert not hasattr(result, "radius")


def test_top_label_takes_the_lowest_index_among_ties() -> None:
    assert top_label([4, 9, 9, 1]) == 1
    assert top_label(np.array([0, 0, 0])) == 0


def confidence_filter(center: float) -> tuple[float, float]:
    """Joint masses of the two retained tails of the paper's confidence-filter example."""
    return norm.cdf(-1.0 - center), norm.sf(1.0 - center)


def test_confidence_filter_substituted_radius_holds_a_label_change_and_joint_radius_ends_at_it() -> None:
    left, right = confidence_filter(-0.1)
    conditional = left / (left + right)
    substituted = substituted_radius(float(conditional), float(1 - conditional), 1.0)
    assert f"{conditional:.7f}".startswith("0.575680")
    assert f"{substituted:.7f}".startswith("0.190855")
    joint = joint_mass_radius(float(left), float(right), 1.0)
    assert joint == pytest.approx(0.1, abs=1e-14)
    moved_left, moved_right = confidence_filter(0.01)
    assert moved_right > moved_left
    assert joint <= 0.1 + 1e-15 < 0.11 < substituted


@given(st.floats(0.01, 0.9), st.floats(0.001, 0.9), st.floats(0.05, 3.0))
def test_joint_mass_radius_is_sharp_on_two_half_lines(a: float, b: float, sigma: float) -> None:
    """Proposition prop:joint-sharpness: the boundary, found by a root finder, is at the radius and never inside it."""
    if not (b < a and a + b <= 1.0):
        return
    quantile_a, quantile_b = norm.ppf(a), norm.ppf(b)
    radius = joint_mass_radius(a, b, sigma)

    def lead(t: float) -> float:
        return norm.logcdf(quantile_a - t / sigma) - norm.logcdf(quantile_b + t / sigma)

    boundary = brentq(lead, 0.0, 20.0 * sigma, xtol=1e-15)
    assert radius <= boundary + 1e-12 * sigma
    assert radius == pytest.approx(boundary, abs=1e-9 * sigma)


@pytest.mark.parametrize("p", [0.55, 0.75, 0.95])
def test_conditional_probability_alone_gives_no_radius(p: float) -> None:
    """Same conditional probability, boundary as close as we like, while the substituted radius does not move."""
    substituted = substituted_radius(p, 1 - p, 1.0)
    distances = []
    for tail in (1.0, 5.0, 20.0):

        def log_odds(d: float, tail: float = tail) -> float:
            return norm.logcdf(d - tail) - norm.logcdf(-d - tail) - math.log(p / (1 - p))

        distances.append(brentq(log_odds, 0.0, 10.0))
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 0.1 * substituted
    assert distances[2] * 20.0 == pytest.approx(0.5 * math.log(p / (1 - p)), rel=0.01)


def box_masses(lows: np.ndarray, highs: np.ndarray, center: np.ndarray, sigma: float) -> np.ndarray:
    sides = norm.cdf((highs - center) / sigma) - norm.cdf((lows - center) / sigma)
    return np.asarray(sides.prod(axis=1))


@pytest.mark.parametrize("seed", range(12))
def test_no_label_change_inside_the_joint_radius_of_random_planar_filters(seed: int) -> None:
    """Brute force: four labelled boxes in the plane, the decision on a dense polar grid strictly inside the radius."""
    rng = np.random.default_rng(seed)
    corners = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], dtype=float)
    lows = corners + rng.uniform(0.0, 0.4, (4, 2))
    highs = lows + rng.uniform(0.1, 0.5, (4, 2))
    center, sigma = rng.uniform(-0.5, 1.5, 2), rng.uniform(0.2, 0.8)
    masses = box_masses(lows, highs, center, sigma)
    top = int(masses.argmax())
    runner = float(np.delete(masses, top).max())
    radius = joint_mass_radius(float(masses[top]), runner, sigma)
    assert radius > 0.0
    for angle in np.linspace(0, 2 * np.pi, 48, endpoint=False):
        for share in (0.25, 0.5, 0.75, 0.9, 0.99, 0.9999):
            moved = center + share * radius * np.array([np.cos(angle), np.sin(angle)])
            assert box_masses(lows, highs, moved, sigma).argmax() == top


@pytest.mark.slow
def test_certify_counts_end_to_end_on_the_confidence_filter() -> None:
    """Seeded, 2,000 runs: a certified radius beyond the true boundary at delta = 0.2 in more than 20% would be unsound.

    The expected number of failures is at most 400. More than 460 has probability below 0.001.
    """
    rng = np.random.default_rng(99)
    left, right = confidence_filter(-0.6)
    failures = certified = 0
    for counts in rng.multinomial(60, [left, right, 1 - left - right], size=2_000):
        result = certify_counts(counts[:2], int(counts[2]), selected=0, sigma=1.0, delta=0.2)
        if isinstance(result, JointMassCertificate):
            certified += 1
            failures += result.radius > 0.6
    assert certified > 500
    assert failures <= 460


def test_substituted_one_sided_reports_what_released_code_reports() -> None:
    assert substituted_one_sided(0, 0, sigma=0.25, delta=0.001) == 0.0
    assert substituted_one_sided(5, 10, sigma=0.25, delta=0.001) == 0.0
    lower = clopper_pearson_lower(990, 1000, delta=0.001)
    expected = 0.25 * norm.ppf(lower)
    assert substituted_one_sided(990, 1000, sigma=0.25, delta=0.001) == pytest.approx(expected, rel=1e-12)


def test_unsound_diagnostics_say_so_first() -> None:
    for diagnostic in (substituted_radius, substituted_one_sided):
        assert diagnostic.__doc__.startswith("UNSOUND DIAGNOSTIC")


def test_joint_mass_radius_upper_bounds_the_radius_from_the_other_side() -> None:
    assert joint_mass_radius_upper(0.4, 0.2, 1.0) == math.nextafter(joint_mass_radius(0.4, 0.2, 1.0), 1.0)
    assert joint_mass_radius_upper(0.2, 0.4, 1.0) == 0.0


@pytest.mark.slow
@given(st.lists(st.integers(0, 300), min_size=2, max_size=5), st.integers(0, 300), st.floats(1e-6, 0.5))
def test_more_confidence_never_gives_a_larger_radius(counts: list[int], rejected: int, delta: float) -> None:
    if sum(counts) + rejected == 0:
        return
    for rule in RULES:
        loose = rule(counts, rejected, selected=0, sigma=1.0, delta=delta)
        strict = rule(counts, rejected, selected=0, sigma=1.0, delta=delta / 10)
        if isinstance(strict, JointMassCertificate):
            assert isinstance(loose, JointMassCertificate)
            assert strict.radius <= loose.radius


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1], 0, 0, 1.0, 0.1), ValueError, "`counts` must hold at least 2 labels, got 1"),
        (([1, -1], 0, 0, 1.0, 0.1), ValueError, r"`counts\[1\]` must be at least 0, got -1"),
        (([1, 2.5], 0, 0, 1.0, 0.1), TypeError, r"`counts\[1\]` must be an integer, got 2.5"),
        (([1, math.nan], 0, 0, 1.0, 0.1), TypeError, r"`counts\[1\]` must be an integer, got nan"),
        (("12", 0, 0, 1.0, 0.1), TypeError, "`counts` must be a sequence of integers"),
        ((Counter({207: 12, 3: 900}), 0, 0, 1.0, 0.1), TypeError, "`counts` must be a sequence of integers"),
        (({0: 12, 1: 3}, 0, 0, 1.0, 0.1), TypeError, "`counts` must be a sequence of integers"),
        ((np.zeros((2, 2), dtype=int), 0, 0, 1.0, 0.1), ValueError, "`counts` must have one dimension"),
        (([1, 2], -1, 0, 1.0, 0.1), ValueError, "`rejected` must be at least 0, got -1"),
        (([1, 2], 0, 2, 1.0, 0.1), ValueError, "`selected` must be a label index below 2, got 2"),
        (([1, 2], 0, -1, 1.0, 0.1), ValueError, "`selected` must be at least 0, got -1"),
        (([0, 0], 0, 0, 1.0, 0.1), ValueError, "must hold at least one proposal, got none"),
        (([9, 2], 0, 0, 0.0, 0.1), ValueError, "`sigma` must be positive, got 0.0"),
        (([9, 2], 0, 0, math.inf, 0.1), ValueError, "`sigma` must be finite, got inf"),
        (([9, 2], 0, 0, 1.0, math.nan), ValueError, "`delta` must be a number, got nan"),
    ],
)
@pytest.mark.parametrize("rule", RULES)
def test_counts_certificates_refuse(rule, arguments, error, message: str) -> None:
    counts, rejected, selected, sigma, delta = arguments
    with pytest.raises(error, match=message):
        rule(counts, rejected, selected=selected, sigma=sigma, delta=delta)


HALVES = Split(selected=Fraction(1, 2), complement=Fraction(1, 2), explicit=Fraction(0))


def test_split_of_thirds_is_algorithm_1():
    """Oracle: `certify_counts`. Its bound from "selected or rejected" is never above one minus the selected bound."""
    for counts, rejected in (([900, 20, 5], 75), ([50, 3, 2], 45), ([1000, 0, 0], 0), ([10, 9, 8], 3)):
        arguments = {"selected": 0, "sigma": 0.5, "delta": 0.01}
        plain = certify_counts(counts, rejected, **arguments)
        found = split_counts(counts, rejected, split=SPLITS[0], **arguments)
        assert isinstance(found, Abstention) == isinstance(plain, Abstention)
        if isinstance(found, JointMassCertificate):
            assert found.radius == plain.radius


def test_split_with_all_on_the_selected_label_is_ordinary_smoothing_without_rejections():
    found = split_counts([990, 10], 0, selected=0, sigma=0.25, delta=0.001, split=UNDIVIDED)
    lower = clopper_pearson_lower(990, 1000, delta=0.001)
    assert found.radius == joint_mass_radius(lower, fraction_upper(1 - Fraction(lower)), 0.25)
    assert found.radius > certify_counts([990, 10], 0, selected=0, sigma=0.25, delta=0.001).radius


@pytest.mark.parametrize("split", [*SPLITS, UNDIVIDED])
def test_split_fails_with_probability_at_most_delta(split):
    """Exact enumeration: three outcomes (selected, competitor, rejected) of 12 proposals, at masses that just tie."""
    trials, delta = 12, 0.2
    for p in (Fraction(1, 3), Fraction(2, 5), Fraction(1, 2)):
        q = p if p < Fraction(1, 2) else 1 - p
        rest = 1 - p - q
        wrong = Fraction(0)
        for top in range(trials + 1):
            for other in range(trials + 1 - top):
                rejected = trials - top - other
                chance = math.comb(trials, top) * math.comb(trials - top, other) * p**top * q**other * rest**rejected
                answer = split_counts([top, other], rejected, selected=0, sigma=1.0, delta=delta, split=split)
                wrong += chance if isinstance(answer, JointMassCertificate) else 0
        # The masses are equal, so every certificate is wrong.
        assert wrong <= Fraction(delta)


def test_anytime_certificate_holds_at_every_time_together():
    """Exact: all paths of 12 proposals with equal masses. Those that are certified at any time have mass <= delta."""
    trials, delta = 12, 0.3
    p = q = Fraction(2, 5)
    alive = {(0, 0): Fraction(1)}
    wrong = Fraction(0)
    for drawn in range(1, trials + 1):
        following: dict[tuple[int, int], Fraction] = {}
        for (top, other), chance in alive.items():
            for place, step in (((top + 1, other), p), ((top, other + 1), q), ((top, other), 1 - p - q)):
                following[place] = following.get(place, Fraction(0)) + chance * step
        alive = {}
        for (top, other), chance in following.items():
            answer = anytime_counts([top, other], drawn - top - other, selected=0, sigma=1.0, delta=delta, split=HALVES)
            if isinstance(answer, JointMassCertificate):
                wrong += chance
            else:
                alive[top, other] = chance
    assert 0 <= wrong <= Fraction(delta)


def test_chosen_split_helps_where_retention_is_near_one():
    selection = {"counts": [99, 1, 0], "rejected": 0}
    chosen = chosen_split(**selection, selected=0, trials=1000, sigma=0.25, delta=0.001)
    arguments = {"selected": 0, "sigma": 0.25, "delta": 0.001}
    found = split_counts([990, 10, 0], 0, split=chosen, **arguments)
    assert found.radius > 1.001 * certify_counts([990, 10, 0], 0, **arguments).radius


def test_anytime_upper_bound_is_above_every_certificate():
    for counts, rejected in (([900, 50], 50), ([600, 300], 100)):
        answer = anytime_counts(counts, rejected, selected=0, sigma=0.5, delta=0.01, split=HALVES)
        upper = anytime_radius_upper(counts, rejected, selected=0, sigma=0.5, delta=0.01)
        assert isinstance(answer, JointMassCertificate)
        assert upper > answer.radius


@pytest.mark.parametrize(
    ("shares", "error"),
    [
        ((Fraction(0), Fraction(1), Fraction(0)), ValueError),
        ((Fraction(1), Fraction(1, 100), Fraction(0)), ValueError),
        ((Fraction(1), Fraction(-1, 100), Fraction(0)), ValueError),
        ((0.5, 0.25, 0.25), TypeError),
        ((float("nan"), Fraction(0), Fraction(0)), TypeError),
    ],
)
def test_split_refuses(shares, error):
    with pytest.raises(error, match="`split`"):
        Split(selected=shares[0], complement=shares[1], explicit=shares[2])


def test_anytime_refuses_explicit_shares_and_bad_delta():
    with pytest.raises(ValueError, match="no share for explicit"):
        anytime_counts([9, 1], 0, selected=0, sigma=1.0, delta=0.1, split=SPLITS[0])
    for delta in (0.0, 1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="delta"):
            split_counts([9, 1], 0, selected=0, sigma=1.0, delta=delta, split=HALVES)
