"""Binomial bounds against exact rational arithmetic, exact enumeration of coverage, and the paper's counts."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ccfs.certificates.binomial import (
    anytime_lower,
    bonferroni,
    clopper_pearson_lower,
    clopper_pearson_upper,
    cohort_lower,
    hoeffding_lower,
    winner_pvalue,
)

BOUNDS = (clopper_pearson_lower, hoeffding_lower, cohort_lower, anytime_lower)
DELTAS = (0.9, 0.5, 0.05, 0.001, 0.001 / 6, 1e-12)


def upper_tail(successes: int, trials: int, p: Fraction) -> Fraction:
    """P(Binomial(trials, p) >= successes) in exact rationals."""
    return sum(
        (math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(successes, trials + 1)), Fraction(0)
    )


def poisson_binomial(probabilities: list[Fraction]) -> list[Fraction]:
    """Law of the number of successes of independent trials with the given probabilities, exactly."""
    law = [Fraction(1)]
    for p in probabilities:
        grown = [Fraction(0)] * (len(law) + 1)
        for k, mass in enumerate(law):
            grown[k] += mass * (1 - p)
            grown[k + 1] += mass * p
        law = grown
    return law


@pytest.mark.slow
@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("trials", [1, 2, 3, 7, 20, 60])
def test_clopper_pearson_lower_tail_is_at_most_delta_and_next_double_exceeds_it(trials: int, delta: float) -> None:
    for successes in range(1, trials + 1):
        bound = clopper_pearson_lower(successes, trials, delta=delta)
        following = math.nextafter(math.nextafter(bound, 1.0), 1.0)
        assert upper_tail(successes, trials, Fraction(bound)) <= Fraction(delta)
        assert upper_tail(successes, trials, Fraction(following)) > Fraction(delta)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("trials", [1, 2, 5, 19])
def test_clopper_pearson_upper_tail_is_at_most_delta_and_next_double_exceeds_it(trials: int, delta: float) -> None:
    for successes in range(trials):
        bound = clopper_pearson_upper(successes, trials, delta=delta)
        following = math.nextafter(math.nextafter(bound, 0.0), 0.0)
        assert upper_tail(trials - successes, trials, 1 - Fraction(bound)) <= Fraction(delta)
        assert upper_tail(trials - successes, trials, 1 - Fraction(following)) > Fraction(delta)


@pytest.mark.parametrize(
    ("successes", "trials", "delta"),
    [(99_000, 100_000, 1.5625e-8), (43_000, 100_000, 0.001 / 3), (500_000, 1_000_000, 1e-12), (3, 1_000_000, 1e-12)],
)
def test_clopper_pearson_lower_is_the_safe_neighbour_at_large_counts(successes: int, trials: int, delta: float) -> None:
    """Oracle: Arb's incomplete beta function, a hypergeometric series that the bound does not use, at 256 bits."""
    bound = clopper_pearson_lower(successes, trials, delta=delta)
    with ctx.workprec(256):

        def tail(p: float) -> arb:
            return arb(p).beta_lower(successes, trials - successes + 1, 1)

        assert tail(bound) <= arb(delta)
        assert tail(math.nextafter(math.nextafter(bound, 1.0), 1.0)) > arb(delta)


@pytest.mark.slow
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("delta", [0.9, 0.37, 0.05, 0.001])
def test_lower_bounds_cover_iid_trials_by_enumeration(bound, delta: float) -> None:
    for trials in (1, 2, 3, 8, 15):
        issued = [bound(s, trials, delta=delta) for s in range(trials + 1)]
        for p in [Fraction(i, 40) for i in range(41)] + [Fraction(value) for value in issued]:
            law = poisson_binomial([p] * trials)
            assert sum(mass for s, mass in enumerate(law) if Fraction(issued[s]) > p) <= Fraction(delta)


@pytest.mark.slow
@pytest.mark.parametrize("bound", [hoeffding_lower, cohort_lower])
@given(
    probabilities=st.lists(st.fractions(0, 1, max_denominator=60), min_size=1, max_size=7),
    delta=st.sampled_from([0.9, 0.6, 0.3, 0.1, 0.01]),
)
def test_cohort_bounds_cover_random_cohorts_by_enumeration(bound, probabilities: list[Fraction], delta: float) -> None:
    trials = len(probabilities)
    mean = sum(probabilities) / trials
    law = poisson_binomial(probabilities)
    failing = sum(mass for s, mass in enumerate(law) if Fraction(bound(s, trials, delta=delta)) > mean)
    assert failing <= Fraction(delta)


@pytest.mark.parametrize("delta", [0.9, 0.5, 0.2, 0.05])
def test_cohort_lower_covers_every_cohort_of_extreme_members(delta: float) -> None:
    """Members that always or never succeed, mixed with one odd value, are where sums are least binomial."""
    for trials in range(1, 7):
        issued = [Fraction(cohort_lower(s, trials, delta=delta)) for s in range(trials + 1)]
        for ones, odd in product(range(trials), [Fraction(i, 30) for i in range(31)]):
            cohort = [Fraction(1)] * ones + [odd] + [Fraction(0)] * (trials - ones - 1)
            mean = sum(cohort) / trials
            failing = sum(mass for s, mass in enumerate(poisson_binomial(cohort)) if issued[s] > mean)
            assert failing <= Fraction(delta)


def test_clopper_pearson_fails_on_a_cohort_where_cohort_lower_does_not() -> None:
    cohort, delta = [Fraction(1026, 10_000), Fraction(0)], 0.1
    mean, law = sum(cohort) / 2, poisson_binomial(cohort)

    def failing(bound) -> Fraction:
        return sum(mass for s, mass in enumerate(law) if Fraction(bound(s, 2, delta=delta)) > mean)

    assert failing(clopper_pearson_lower) > Fraction(delta)
    assert failing(cohort_lower) == 0


@given(st.integers(1, 400), st.data(), st.floats(1e-12, 0.5))
def test_cohort_lower_lies_between_hoeffding_and_clopper_pearson(trials: int, data, delta: float) -> None:
    successes = data.draw(st.integers(0, trials))
    cohort = cohort_lower(successes, trials, delta=delta)
    assert cohort <= clopper_pearson_lower(successes, trials, delta=delta)
    if delta <= math.exp(-2 / trials) * (1 - 1e-12):
        assert cohort >= hoeffding_lower(successes, trials, delta=delta)


@pytest.mark.slow
@pytest.mark.parametrize("p", [Fraction(1, 2), Fraction(9, 10), Fraction(1, 20)])
@pytest.mark.parametrize("delta", [0.5, 0.05])
def test_anytime_lower_holds_at_all_times_by_exact_recursion(p: Fraction, delta: float) -> None:
    """The probability that the bound EVER exceeds p within the horizon, and shows that fixed-n bounds would not do."""
    horizon = 120

    def ever(bound) -> Fraction:
        alive, failed = {0: Fraction(1)}, Fraction(0)
        for trials in range(1, horizon + 1):
            grown: dict[int, Fraction] = {}
            for s, mass in alive.items():
                grown[s] = grown.get(s, Fraction(0)) + mass * (1 - p)
                grown[s + 1] = grown.get(s + 1, Fraction(0)) + mass * p
            alive = {}
            for s, mass in grown.items():
                if Fraction(bound(s, trials, delta=delta)) > p:
                    failed += mass
                else:
                    alive[s] = mass
        return failed

    assert ever(anytime_lower) <= Fraction(delta)
    if p == Fraction(1, 2):
        assert ever(clopper_pearson_lower) > Fraction(delta)


@pytest.mark.parametrize("prior", [(0.5, 0.5), (1.0, 1.0), (3.0, 0.25)])
@pytest.mark.parametrize(("successes", "trials"), [(1, 1), (5, 9), (200, 256), (256, 256), (1, 100_000)])
def test_anytime_lower_is_the_safe_neighbour_of_mpmath(successes: int, trials: int, prior) -> None:
    """Oracle: the mixture likelihood ratio at 40 digits is at least 1/delta at the bound and below just above it."""
    delta = 0.001
    bound = anytime_lower(successes, trials, delta=delta, prior=prior)
    with mpmath.workdps(40):
        a, b, s, f = (mpmath.mpf(v) for v in (*prior, successes, trials - successes))

        def ratio(p: float) -> mpmath.mpf:
            return mpmath.beta(a + s, b + f) / mpmath.beta(a, b) / (mpmath.mpf(p) ** s * (1 - mpmath.mpf(p)) ** f)

        assert ratio(bound) >= 1 / mpmath.mpf(delta)
        assert ratio(math.nextafter(math.nextafter(bound, 1.0), 1.0)) < 1 / mpmath.mpf(delta)


@pytest.mark.slow
@pytest.mark.parametrize("bound", BOUNDS)
@given(st.integers(1, 200), st.data(), st.floats(1e-12, 0.9))
def test_lower_bounds_grow_with_successes_and_with_delta(bound, trials: int, data, delta: float) -> None:
    successes = data.draw(st.integers(0, trials - 1))
    here = bound(successes, trials, delta=delta)
    assert 0.0 <= here <= bound(successes + 1, trials, delta=delta) <= 1.0
    assert here <= bound(successes, trials, delta=min(2 * delta, 0.99))
    assert here <= successes / trials or (bound is clopper_pearson_lower and delta > 0.3)


@pytest.mark.parametrize("bound", BOUNDS)
def test_lower_bounds_edges(bound) -> None:
    assert bound(0, 10, delta=0.05) == 0.0
    assert bound(0, 1, delta=1e-12) == 0.0
    assert 0.0 < bound(1_000_000, 1_000_000, delta=1e-12) < 1.0


def test_clopper_pearson_closed_forms() -> None:
    assert clopper_pearson_lower(1, 1, delta=0.25) == pytest.approx(0.25, rel=1e-15)
    assert clopper_pearson_lower(256, 256, delta=0.001) == pytest.approx(0.001 ** (1 / 256), rel=1e-14)
    assert clopper_pearson_upper(0, 10, delta=0.05) == pytest.approx(1 - 0.05**0.1, rel=1e-14)
    assert clopper_pearson_upper(7, 7, delta=0.05) == 1.0


@pytest.mark.parametrize(("size", "printed"), [(2_432, 4.112e-7), (114, 8.772e-6), (64_000, 1.5625e-8)])
def test_bonferroni_reproduces_the_errors_of_the_paper(size: int, printed: float) -> None:
    """Families: attack cohort 128 (2 * 9 + 1), boundary confirmation 6 * 2 * 9 + 6, external confirmation."""
    share = bonferroni(0.001, size)
    assert share == pytest.approx(printed, rel=1e-4)
    assert Fraction(share) <= Fraction(0.001) / size < Fraction(math.nextafter(share, 1.0))


@given(st.integers(0, 300), st.integers(1, 300), st.floats(1e-12, 0.9))
def test_hoeffding_lower_is_just_below_mpmath(successes: int, trials: int, delta: float) -> None:
    if successes > trials:
        return
    value = hoeffding_lower(successes, trials, delta=delta)
    with mpmath.workdps(50):
        truth = mpmath.mpf(successes) / trials - mpmath.sqrt(-mpmath.log(mpmath.mpf(delta)) / (2 * trials))
        assert value <= max(truth, 0)
        assert value == 0.0 or truth <= math.nextafter(math.nextafter(value, 1.0), 1.0)


@given(st.integers(2, 400), st.data())
def test_cohort_lower_never_exceeds_one_success_less(trials: int, data) -> None:
    """At delta = 0.99 the Clopper-Pearson part is out of the way and (s - 1) / n, rounded down, is what is left."""
    successes = data.draw(st.integers(1, trials))
    value = Fraction(cohort_lower(successes, trials, delta=0.99))
    assert value <= Fraction(successes - 1, trials)
    assert (
        clopper_pearson_lower(successes, trials, delta=0.99)
        > value
        >= Fraction(successes - 1, trials) - Fraction(1, 2**53)
    )


@pytest.mark.parametrize(
    ("winner", "competitor", "printed"),
    [(12_135, 11_556, 8.65e-5), (7_099, 5_741, 2.09e-33)],
)
def test_winner_pvalue_reproduces_the_paper(winner: int, competitor: int, printed: float) -> None:
    assert winner_pvalue(winner, competitor) == pytest.approx(printed, rel=5e-3)


@pytest.mark.slow
@given(st.integers(0, 60), st.integers(0, 60))
def test_winner_pvalue_is_just_above_the_exact_tail(winner: int, competitor: int) -> None:
    tail = upper_tail(winner, winner + competitor, Fraction(1, 2))
    value = Fraction(winner_pvalue(winner, competitor))
    assert tail <= value <= tail * (1 + Fraction(1, 2**50))


@pytest.mark.parametrize(("winner", "competitor"), [(5, 1), (60, 40), (1000, 0), (3, 7), (0, 4)])
def test_winner_pvalue_is_scipys_from_above(winner: int, competitor: int) -> None:
    oracle = stats.binom.sf(winner - 1, winner + competitor, 0.5)
    assert oracle * (1 - 1e-12) <= winner_pvalue(winner, competitor) <= oracle * (1 + 1e-9)


def test_winner_pvalue_never_rounds_to_zero() -> None:
    assert winner_pvalue(200_000, 10) == 5e-324


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(
    ("successes", "trials", "delta", "error", "message"),
    [
        (1, 2, math.nan, ValueError, "`delta` must be a number, got nan"),
        (1, 2, 0.0, ValueError, r"`delta` must be in \(0, 1\), got 0.0"),
        (1, 2, 1.0, ValueError, r"`delta` must be in \(0, 1\), got 1.0"),
        (1, 2, math.inf, ValueError, r"`delta` must be in \(0, 1\), got inf"),
        (1, 2, "0.1", TypeError, "`delta` must be a real number, got '0.1'"),
        (1, 2, None, TypeError, "`delta` must be a real number"),
        (3, 2, 0.1, ValueError, "`successes` must be at most `trials`, got 3 of 2"),
        (-1, 2, 0.1, ValueError, "`successes` must be at least 0, got -1"),
        (0, 0, 0.1, ValueError, "`trials` must be at least 1, got 0"),
        (1.0, 2, 0.1, TypeError, "`successes` must be an integer, got 1.0"),
        (True, 2, 0.1, TypeError, "`successes` must be an integer, got True"),
        (np.array([1]), 2, 0.1, TypeError, "`successes` must be an integer, got array"),
        (1, 2, 10**400, ValueError, "`delta` must be within the range of a double"),
        (1, 2, Fraction(1, 10), ValueError, "`delta` must be exactly representable as a double"),
        (1, 2, np.longdouble("0.1"), ValueError, "`delta` must be exactly representable as a double"),
        (1, math.nan, 0.1, TypeError, "`trials` must be an integer, got nan"),
    ],
)
def test_lower_bounds_refuse(bound, successes, trials, delta, error, message: str) -> None:
    with pytest.raises(error, match=message):
        bound(successes, trials, delta=delta)


def test_lower_bounds_need_delta_by_name() -> None:
    with pytest.raises(TypeError):
        clopper_pearson_lower(1, 2, 0.1)  # type: ignore[misc]


@pytest.mark.parametrize("prior", [(0.0, 1.0), (math.nan, 1.0), (1.0, math.inf), (1.0,), [1.0, 1.0], None])
def test_anytime_lower_refuses_bad_priors(prior) -> None:
    with pytest.raises((TypeError, ValueError), match="prior"):
        anytime_lower(1, 2, delta=0.1, prior=prior)


def test_bonferroni_refuses() -> None:
    with pytest.raises(ValueError, match="`count` must be at least 1"):
        bonferroni(0.1, 0)
    with pytest.raises(ValueError, match="positive share"):
        bonferroni(5e-324, 2)


def test_numpy_integers_are_counts() -> None:
    assert clopper_pearson_lower(np.int64(3), np.int32(5), delta=0.1) == clopper_pearson_lower(3, 5, delta=0.1)


def test_clopper_pearson_coverage_simulation() -> None:
    """Seeded: 4,000 batches at p = 0.8. With 5% true error more than 250 failures have probability below 0.0005."""
    rng = np.random.default_rng(20261116)
    draws = rng.binomial(64, 0.8, size=4_000)
    issued = {int(s): clopper_pearson_lower(int(s), 64, delta=0.05) for s in np.unique(draws)}
    assert sum(issued[int(s)] > 0.8 for s in draws) <= 250
