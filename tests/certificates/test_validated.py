"""The rounding and root enclosures that every certificate goes through."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from flint import arb, fmpq
from hypothesis import given
from hypothesis import strategies as st

from ccfs.certificates import validated
from ccfs.certificates.validated import (
    binomial_root,
    binomial_upper_tail,
    exact,
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


def test_precision_never_lowers_the_working_precision() -> None:
    with precision(300), precision(64):
        assert (arb(1) / 3).rel_accuracy_bits() >= 290
