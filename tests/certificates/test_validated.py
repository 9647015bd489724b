"""The rounding and root enclosures that every certificate goes through."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from flint import arb, ctx, fmpq
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from ccfs.certificates import validated
from ccfs.certificates.binomial import anytime_lower, clopper_pearson_lower, clopper_pearson_upper
from ccfs.certificates.gaussian import radius
from ccfs.certificates.validated import (
    binomial_root,
    binomial_upper_tail,
    exact,
    log_product,
    log_sum,
    lower_float,
    normal_cdf,
    normal_quantile,
    precision,
    upper_float,
)


@given(st.fractions())
def test_rounding_gives_the_neighbouring_doubles_of_a_fraction(value: Fraction) -> None:
    with precision():
        ball = exact(value)
        low, high = lower_float(ball), upper_float(ball)
    assert Fraction(low) <= value <= Fraction(high)
    assert high <= math.nextafter(math.nextafter(low, math.inf), math.inf)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_keeps_doubles(value: float) -> None:
    assert lower_float(exact(value)) == upper_float(exact(value)) == value


def test_rounding_at_the_ends_of_the_doubles() -> None:
    assert upper_float(arb(2) ** -2000) == 5e-324
    assert lower_float(arb(2) ** -2000) == 0.0
    assert lower_float(arb(2) ** 2000) == math.nextafter(math.inf, 0.0)
    assert upper_float(arb(2) ** 2000) == math.inf


@pytest.mark.parametrize("ball", [arb.nan(), arb.pos_inf(), arb.neg_inf(), arb(0, math.inf)])
def test_rounding_refuses_what_is_not_enclosed(ball: arb) -> None:
    with pytest.raises(ArithmeticError, match="no bound is issued"):
        lower_float(ball)


@given(st.integers(1, 40), st.data())
def test_binomial_upper_tail_encloses_the_exact_tail(trials: int, data) -> None:
    successes = data.draw(st.integers(0, trials + 1))
    p = Fraction(data.draw(st.floats(1e-6, 1 - 1e-6)))
    tail = sum(
        (math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(successes, trials + 1)), Fraction(0)
    )
    with precision():
        ball = binomial_upper_tail(successes, trials, exact(float(p)))
        assert ball.contains(arb(fmpq(tail.numerator, tail.denominator)))
        assert float(ball.rad()) < 1e-17


@given(st.floats(1e-300, 1 - 1e-16))
def test_normal_quantile_inverts_the_cdf(p: float) -> None:
    with precision():
        assert normal_cdf(normal_quantile(exact(p))).contains(exact(p))


@pytest.mark.parametrize("guess", [0.5, 1e-9, 1 - 1e-9, 0.0, 1.0, math.nan, math.inf, -3.0])
@pytest.mark.parametrize(("successes", "trials"), [(2, 10), (500, 1_000), (999, 1_000)])
def test_binomial_root_does_not_depend_on_the_proposal(monkeypatch, guess: float, successes: int, trials: int) -> None:
    """SciPy only proposes: a wrong proposal costs time, or gets a refusal, never another bound."""
    with precision():
        expected = binomial_root(successes, trials, 0.001)
        monkeypatch.setattr(validated.special, "betaincinv", lambda *_: guess)
        try:
            found = binomial_root(successes, trials, 0.001)
        except ArithmeticError:
            return
        assert found.overlaps(expected)
        assert lower_float(found) == lower_float(expected)


def test_precision_is_the_same_whatever_the_ambient_one() -> None:
    expected = clopper_pearson_upper(9, 19, delta=0.001), radius(0.8, 0.1, 0.3)
    for bits in (2, 20, 1_000):
        with ctx.workprec(bits):
            assert (clopper_pearson_upper(9, 19, delta=0.001), radius(0.8, 0.1, 0.3)) == expected
            assert ctx.prec == bits


def test_precision_is_safe_in_threads() -> None:
    cases = [(successes, 97) for successes in range(1, 97, 5)]

    def bounds(_: int) -> list[float]:
        return [anytime_lower(*case, delta=0.01) + clopper_pearson_lower(*case, delta=0.01) for case in cases]

    expected = bounds(0)
    with ThreadPoolExecutor(4) as pool:
        assert all(found == expected for found in pool.map(bounds, range(8)))


def test_binomial_root_does_not_depend_on_a_slightly_wrong_proposal(monkeypatch) -> None:
    """A certificate rechecked with another SciPy must give the same double."""
    propose = special.betaincinv
    cases = [(30_000, 100_000, 0.001), (99_900, 100_000, 1e-8), (17, 40, 0.2), (3, 1_000, 1e-200)]
    expected = [(clopper_pearson_lower(s, n, delta=d), clopper_pearson_upper(s, n, delta=d)) for s, n, d in cases]
    for error in (1e-4, -1e-8, 1e-12):
        monkeypatch.setattr(validated.special, "betaincinv", lambda a, b, d, e=error: propose(a, b, d) * (1 + e))
        found = [(clopper_pearson_lower(s, n, delta=d), clopper_pearson_upper(s, n, delta=d)) for s, n, d in cases]
        assert found == expected


def test_newton_issues_nothing_that_is_not_contained() -> None:
    """From 0.9 the first Newton image of p^50 = 2^-50 is far from 1/2. A function without root gets no enclosure."""
    with precision():
        root = validated._newton(
            lambda p: (50 * p.log()).exp() - arb(2) ** -50, lambda p: 50 * (49 * p.log()).exp(), 0.9
        )
        assert root.contains(exact(0.5))
        with pytest.raises(ArithmeticError, match="no bound is issued"):
            validated._newton(lambda p: p.exp(), lambda p: p.exp(), 0.5)


@given(st.lists(st.floats(1e-200, 1e200), max_size=200), st.integers(0, 5))
def test_log_product_contains_the_exact_logarithm(factors: list[float], roundings: int) -> None:
    """Oracle: mpmath at 60 digits."""
    with precision():
        ball = log_product(np.array(factors), roundings=roundings)
        low, high = lower_float(ball), upper_float(ball)
    with mpmath.workdps(60):
        truth = sum((mpmath.log(mpmath.mpf(factor)) for factor in factors), mpmath.mpf(0))
        assert low <= truth <= high
    # One double of slack for each end, besides the roundings that are counted.
    size = max(abs(low), abs(high), 1e-300)
    assert high - low <= (roundings + 1) * len(factors) * 2.0**-50 + size * 2.0**-50


def test_log_product_counts_the_roundings_of_its_factors() -> None:
    """Thirds are not doubles: the ball must reach the logarithm of the exact product of exact thirds."""
    factors = np.full(1001, 1.0) / 3.0
    with precision():
        assert log_product(factors, roundings=1).contains(1001 * (arb(1) / 3).log())
        assert log_product(factors[:0], roundings=1) == 0
        assert log_sum([arb(1), arb(-400)]).overlaps((arb(1).exp() + arb(-400).exp()).log())


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf, 1e-290, 1e290])
def test_log_product_refuses_factors_that_could_underflow(factor: float) -> None:
    with pytest.raises(ArithmeticError, match="no bound is issued"):
        log_product(np.array([1.0, factor]), roundings=0)
