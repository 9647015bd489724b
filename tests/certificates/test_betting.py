"""Betting bounds of a mean: mpmath at 60 digits, exact coverage over unequal trials, refusals."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations_with_replacement, product

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfs.certificates.betting import mean_lower, mean_upper
from ccfs.certificates.binomial import clopper_pearson_lower, hoeffding_lower

DELTAS = (0.5, 0.1, 0.001 / 6)
UNIT = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40)


def log_mixture(values: Sequence[float], mean: float, delta: float, lowest: float, highest: float) -> mpmath.mpf:
    """The logarithm of the docstring's mixture, from its words: bets are powers of two over the range."""
    trials, reach = len(values), mpmath.mpf(highest) - mpmath.mpf(lowest)
    least = mpmath.sqrt(-8 * mpmath.log(mpmath.mpf(delta)) / trials)
    first = int(mpmath.floor(mpmath.log(least, 2)))
    powers = range(first, max(math.floor(math.log2(trials)), first + 4) + 1)
    weights = [mpmath.mpf(1) / (k + 2) for k in range(len(powers))]
    total = mpmath.mpf(0)
    for power, weight in zip(powers, weights, strict=True):
        bet = mpmath.mpf(2) ** power / reach
        term = weight / sum(weights)
        for value in values:
            term *= (1 + bet * (mpmath.mpf(value) - lowest)) / (1 + bet * (mpmath.mpf(mean) - lowest))
        total += term
    return mpmath.log(total)


@pytest.mark.slow
@given(UNIT, st.sampled_from(DELTAS), st.sampled_from([(0.0, 1.0), (-3.0, 1.5), (0.0, 500.0)]))
def test_mean_lower_is_on_the_safe_side_of_the_root_and_close_to_it(values, delta, limits) -> None:
    lowest, highest = limits
    scaled = [lowest + value * (highest - lowest) for value in values]
    bound = mean_lower(scaled, delta=delta, lowest=lowest, highest=highest)
    mirrored = [-value for value in scaled]
    assert mean_upper(mirrored, delta=delta, lowest=-highest, highest=-lowest) == -bound
    with mpmath.workdps(60):
        threshold = -mpmath.log(mpmath.mpf(delta))
        if bound > lowest:
            assert log_mixture(scaled, bound, delta, lowest, highest) >= threshold
        above = bound + 1e-9 * (highest - lowest)
        assert log_mixture(scaled, above, delta, lowest, highest) < threshold


def outcomes(laws: Sequence[dict[Fraction, Fraction]]) -> dict[tuple[Fraction, ...], Fraction]:
    """The law of the sorted values of independent trials, exactly."""
    joint: dict[tuple[Fraction, ...], Fraction] = {(): Fraction(1)}
    for law in laws:
        grown: dict[tuple[Fraction, ...], Fraction] = {}
        for (values, mass), (value, chance) in product(joint.items(), law.items()):
            if mass * chance:
                key = tuple(sorted((*values, value)))
                grown[key] = grown.get(key, Fraction(0)) + mass * chance
        joint = grown
    return joint


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.5, 0.2, 0.05])
@pytest.mark.parametrize("trials", [1, 3, 5])
def test_bounds_cover_every_cohort_of_three_valued_trials_by_enumeration(trials: int, delta: float) -> None:
    """Every choice of laws on {0, 1/2, 1} from a list, one per trial, with unequal means."""
    half = Fraction(1, 2)
    laws = [
        {Fraction(0): 1 - a - b, half: b, Fraction(1): a}
        for a, b in [(Fraction(i, 10), Fraction(j, 10)) for i in (0, 1, 4, 10) for j in (0, 3) if i + j <= 10]
    ]
    issued: dict[tuple[Fraction, ...], tuple[float, float]] = {}
    for chosen in combinations_with_replacement(laws, trials):
        mean = sum((value * mass for law in chosen for value, mass in law.items()), Fraction(0)) / trials
        too_high = too_low = Fraction(0)
        for values, mass in outcomes(chosen).items():
            if values not in issued:
                numbers = [float(value) for value in values]
                issued[values] = mean_lower(numbers, delta=delta), mean_upper(numbers, delta=delta)
            lower, upper = issued[values]
            too_high += mass * (Fraction(lower) > mean)
            too_low += mass * (Fraction(upper) < mean)
        assert too_high <= Fraction(delta)
        assert too_low <= Fraction(delta)


@pytest.mark.parametrize("delta", [0.5, 0.1, 0.01])
def test_mean_lower_covers_coins_with_one_odd_member(delta: float) -> None:
    """Members that always or never succeed beside one odd value: the cohorts on which Clopper-Pearson fails."""
    for trials in (2, 6, 12):
        issued = [Fraction(mean_lower([1.0] * s + [0.0] * (trials - s), delta=delta)) for s in range(trials + 1)]
        for ones, odd in product(range(trials), [Fraction(i, 20) for i in range(21)]):
            mean = (ones + odd) / trials
            wrong = (1 - odd) * (issued[ones] > mean) + odd * (issued[ones + 1] > mean)
            assert wrong <= Fraction(delta)


def test_mean_lower_is_near_clopper_pearson_for_coins_and_above_hoeffding_away_from_one_half() -> None:
    for successes, trials in [(205, 256), (243, 256), (253, 256), (1946, 2048)]:
        coins = [1.0] * successes + [0.0] * (trials - successes)
        bound = mean_lower(coins, delta=0.001 / 6)
        exact = clopper_pearson_lower(successes, trials, delta=0.001 / 6)
        assert hoeffding_lower(successes, trials, delta=0.001 / 6) < bound < exact
        # What the mixture costs on coins: at most a third of the distance from the observed share.
        assert successes / trials - bound < 1.34 * (successes / trials - exact)


@given(UNIT, st.floats(1e-9, 0.9))
def test_bounds_enclose_the_observed_mean_and_tighten_with_delta(values, delta: float) -> None:
    lower, upper = mean_lower(values, delta=delta), mean_upper(values, delta=delta)
    mean = math.fsum(values) / len(values)
    assert 0.0 <= lower <= mean + 1e-12
    assert mean - 1e-12 <= upper <= 1.0
    raised = [min(value + 0.1, 1.0) for value in values]
    assert mean_lower(raised, delta=delta) >= lower - 1e-12


def test_bounds_do_not_depend_on_the_order_beyond_rounding() -> None:
    values = np.random.default_rng(1).uniform(size=999)
    one, other = mean_lower(values, delta=0.01), mean_lower(values[::-1].copy(), delta=0.01)
    assert abs(one - other) < 1e-12
    assert mean_lower(values.tolist(), delta=0.01) == one


def test_mean_lower_takes_ten_thousand_values_in_a_fraction_of_a_second() -> None:
    values = np.random.default_rng(2).uniform(size=10_000)
    began = time.process_time()
    bound = mean_lower(values, delta=0.001)
    assert time.process_time() - began < 0.5
    assert 0.48 < bound < 0.5


def test_edges() -> None:
    assert mean_lower([0.0] * 5, delta=0.1) == 0.0
    assert mean_upper([1.0] * 5, delta=0.1) == 1.0
    assert mean_lower([0.3], delta=0.001) == 0.0
    assert mean_lower([7.0] * 400, delta=0.001, lowest=-1.0, highest=7.0) < 7.0
    assert mean_upper([1e-300] * 50, delta=0.1) < 0.2


@pytest.mark.parametrize("bound", [mean_lower, mean_upper])
@pytest.mark.parametrize(
    ("values", "options", "error", "message"),
    [
        ([], {}, ValueError, "`values` must hold at least one trial"),
        ([math.nan], {}, ValueError, r"`values\[0\]` must be a number, got nan"),
        (np.array([0.5, math.nan]), {}, ValueError, "`values` must be finite, got nan"),
        ([0.5, math.inf], {}, ValueError, r"`values\[1\]` must be finite, got inf"),
        ([0.5, 1.5], {}, ValueError, r"`values` must be in \[0.0, 1.0\], got 1.5 at 1"),
        ([-1e-9], {}, ValueError, "what a trial can give at all"),
        ([True], {}, TypeError, r"`values\[0\]` must be a real number, got True"),
        ("0.5", {}, TypeError, "`values` must be a sequence of numbers"),
        (np.array([[0.5]]), {}, ValueError, r"`values` must have one dimension, got shape \(1, 1\)"),
        (np.array([True]), {}, TypeError, "`values` must be an array of doubles, got bool"),
        ([0.5], {"delta": 0.0}, ValueError, r"`delta` must be in \(0, 1\), got 0.0"),
        ([0.5], {"delta": math.nan}, ValueError, "`delta` must be a number, got nan"),
        ([0.5], {"lowest": 1.0}, ValueError, "`highest` must exceed `lowest`"),
        ([0.5], {"lowest": 2.0}, ValueError, "`highest` must exceed `lowest`"),
        ([0.5], {"highest": math.inf}, ValueError, "`highest` must be finite, got inf"),
        ([0.5], {"lowest": -1e300, "highest": 1e300}, ValueError, "by 1e-150 to 1e150"),
    ],
)
def test_bounds_refuse(bound, values, options, error, message) -> None:
    with pytest.raises(error, match=message):
        bound(values, **{"delta": 0.1, **options})
