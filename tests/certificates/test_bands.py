from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccfs.certificates import bands
from ccfs.certificates.bands import cohort_band, crossing_upper, law_band
from ccfs.certificates.binomial import clopper_pearson_lower


def exact_crossing(levels: list[Fraction]) -> Fraction:
    """P(some U_(i) < u_i) in rational numbers, by the recursion of the counts below each level."""
    number = len(levels)
    below: dict[int, Fraction] = {0: Fraction(1)}
    before = Fraction(0)
    for rank, level in enumerate(levels, start=1):
        share = (level - before) / (1 - before)  # of a point that is not below the level before
        grown: dict[int, Fraction] = {}
        for count, mass in below.items():
            for more in range(number - count + 1):
                if count + more < rank:
                    left = number - count
                    chance = math.comb(left, more) * share**more * (1 - share) ** (left - more)
                    grown[count + more] = grown.get(count + more, Fraction(0)) + mass * chance
        below, before = grown, level
    return 1 - sum(below.values(), Fraction(0))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 63), min_size=1, max_size=9))
def test_crossing_upper_is_just_above_the_exact_probability(steps: list[int]) -> None:
    levels = [Fraction(step, 64) for step in sorted(steps)]
    truth, issued = exact_crossing(levels), crossing_upper([float(level) for level in levels])
    assert truth <= Fraction(issued) <= truth + Fraction(1, 10**12)


def test_crossing_upper_of_one_linear_level_is_daniels() -> None:
    """P(N(t) / n >= t / a for some t) = a for a line through the origin, if only its points at i / n count."""
    number = 32
    levels = [Fraction(i, number) / 8 for i in range(1, number + 1)]
    assert crossing_upper([float(level) for level in levels]) == pytest.approx(1 / 8, abs=1e-10)
    assert Fraction(crossing_upper([float(level) for level in levels])) >= exact_crossing(levels)


@pytest.mark.parametrize("delta", [0.3, 0.05, 1e-3, 1e-9])
@pytest.mark.parametrize("trials", [1, 2, 5, 12])
def test_law_band_fails_with_probability_at_most_delta_and_wastes_little(trials: int, delta: float) -> None:
    levels = law_band(trials, delta=delta)
    assert list(levels) == sorted(levels)
    crossing = exact_crossing([Fraction(level) for level in levels])
    assert crossing <= Fraction(delta)
    assert crossing >= Fraction(delta) / 2


@pytest.mark.parametrize("delta", [0.4, 0.1])
@pytest.mark.parametrize("trials", [2, 4, 6])
def test_cohort_band_holds_for_every_cohort_of_coins_by_enumeration(trials: int, delta: float) -> None:
    """Totals 0 or 1 with different chances: the band fails if it claims more at 0 than the average chance of 0."""
    levels = cohort_band(trials, delta=delta)
    chances = [Fraction(i, 8) for i in range(9)]
    worst = Fraction(0)
    for cohort in combinations_with_replacement(chances, trials):
        zeros = {0: Fraction(1)}
        for chance in cohort:
            grown: dict[int, Fraction] = {}
            for count, mass in zeros.items():
                for more, part in ((0, 1 - chance), (1, chance)):
                    grown[count + more] = grown.get(count + more, Fraction(0)) + mass * part
            zeros = grown
        truth = sum(cohort, Fraction(0)) / trials
        failing = sum(
            (mass for count, mass in zeros.items() if count and Fraction(levels[count - 1]) > truth), Fraction()
        )
        worst = max(worst, failing)
    assert 0 < worst <= Fraction(delta)


def test_a_sharper_band_than_the_issued_one_would_fail() -> None:
    """The exponent is the least on its grid: one step less crosses more often than allowed."""
    trials, delta = 40, 0.01
    levels = law_band(trials, delta=delta)
    (found,) = [at for at in range(60, 300) if bands._even_levels(trials, at)[:-1] == levels[:-1]]
    sharper = (*bands._even_levels(trials, found - 1)[:-1], levels[-1])
    assert crossing_upper(levels) <= delta < crossing_upper(sharper)


@pytest.mark.slow
def test_law_band_costs_no_more_than_150_thresholds_though_it_has_ten_thousand() -> None:
    trials, delta = 10_000, 0.005
    levels = law_band(trials, delta=delta)
    for rank in (1, 10, 100, 1000, 5000, 9000, 9900, 9990, 9999, 10_000):
        assert levels[rank - 1] > clopper_pearson_lower(rank, trials, delta=delta / 150)
    assert levels[-1] == pytest.approx(clopper_pearson_lower(trials, trials, delta=delta / 4), abs=1e-9)


@pytest.mark.parametrize("band", [cohort_band, law_band])
def test_bands_grow_with_delta_and_tell_less_than_the_empirical_distribution(band) -> None:
    few, many = (np.array(band(300, delta=delta)) for delta in (0.001, 0.1))
    assert (few <= many).all()
    assert (many <= np.arange(1, 301) / 300).all()
    assert few[-1] > 0.95


def test_law_band_beyond_its_limit_is_the_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bands, "_MOST_EXACT", 50)
    assert law_band(51, delta=0.01) == cohort_band(51, delta=0.01)
    assert law_band(50, delta=0.01) != cohort_band(50, delta=0.01)


@pytest.mark.parametrize("band", [cohort_band, law_band])
@pytest.mark.parametrize(
    ("trials", "delta", "error", "message"),
    [
        (0, 0.1, ValueError, "`trials`"),
        (2.5, 0.1, TypeError, "`trials`"),
        (5, 0.0, ValueError, "`delta`"),
        (5, math.nan, ValueError, "`delta`"),
    ],
)
def test_bands_refuse(band, trials, delta, error, message) -> None:
    with pytest.raises(error, match=message):
        band(trials, delta=delta)


@pytest.mark.parametrize("levels", [[], [0.5, 0.25], [-0.25, 0.5], [0.5, 1.0], [0.1 + 2.0**-54, 0.3], [0.25, math.nan]])
def test_crossing_upper_refuses_levels_that_it_could_not_bound(levels: list[float]) -> None:
    with pytest.raises(ValueError, match="`levels` must grow"):
        crossing_upper(levels)
