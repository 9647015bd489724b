"""The Gaussian comparison against mpmath at 60 digits: always on the safe side, and by no more than rounding."""

from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfs.certificates.gaussian import event_lower, event_upper, kl, radius, radius_upper, renyi, total_variation

PROBABILITIES = st.floats(1e-12, 1 - 1e-12)
SHIFTS = st.floats(0.0, 12.0)


def quantile(p: float) -> mpmath.mpf:
    """Standard normal quantile at 60 digits by bisection on the CDF, independent of any inverse error function."""
    low, high, target = mpmath.mpf(-40), mpmath.mpf(40), mpmath.mpf(p)
    for _ in range(220):
        middle = (low + high) / 2
        low, high = (middle, high) if mpmath.ncdf(middle) < target else (low, middle)
    return low


def is_just_below(value: float, truth: mpmath.mpf) -> bool:
    """Whether `value` is at most `truth`, up to the oracle's own error of 1e-45, and at most two doubles below."""
    return value <= truth + abs(truth) * mpmath.mpf("1e-45") and truth <= mpmath.mpf(
        math.nextafter(math.nextafter(value, math.inf), math.inf)
    )


@pytest.mark.slow
@given(PROBABILITIES, SHIFTS)
def test_event_lower_is_just_below_the_truth(p: float, mu: float) -> None:
    with mpmath.workdps(60):
        assert is_just_below(event_lower(p, mu), mpmath.ncdf(quantile(p) - mpmath.mpf(mu)))


@pytest.mark.slow
@given(PROBABILITIES, SHIFTS)
def test_event_upper_is_just_above_the_truth(p: float, mu: float) -> None:
    with mpmath.workdps(60):
        assert is_just_below(-event_upper(p, mu), -mpmath.ncdf(quantile(p) + mpmath.mpf(mu)))


@pytest.mark.slow
@given(PROBABILITIES, PROBABILITIES, st.floats(1e-6, 1e6))
def test_radius_is_just_below_the_truth_and_radius_upper_just_above(a: float, b: float, sigma: float) -> None:
    lower, upper = radius(a, b, sigma), radius_upper(a, b, sigma)
    if a <= b:
        assert lower == upper == 0.0
        return
    with mpmath.workdps(60):
        truth = mpmath.mpf(sigma) / 2 * (quantile(a) - quantile(b))
        assert is_just_below(lower, truth)
        assert is_just_below(-upper, -truth)


@given(st.floats(1e-6, 40.0))
def test_total_variation_is_just_above_the_truth(mu: float) -> None:
    with mpmath.workdps(60):
        truth = mpmath.erf(mpmath.mpf(mu) / mpmath.sqrt(8))
        assert is_just_below(-total_variation(mu), -truth)


@given(st.floats(0.0, 1e3), st.floats(1e-3, 1e3))
def test_divergences_are_just_above_the_truth(mu: float, order: float) -> None:
    with mpmath.workdps(60):
        assert is_just_below(-renyi(mu, order), -mpmath.mpf(order) * mpmath.mpf(mu) ** 2 / 2)
    assert kl(mu) == renyi(mu, 1.0)


@pytest.mark.slow
@given(PROBABILITIES, SHIFTS)
def test_event_round_trip_stays_on_the_safe_side(p: float, mu: float) -> None:
    assert event_upper(event_lower(p, mu), mu) <= p * (1 + 1e-12) + 1e-300 or event_lower(p, mu) == 0.0
    assert event_lower(p, mu) <= p <= event_upper(p, mu)
    assert event_lower(p, mu) <= 1.0 - event_upper(1.0 - p, mu) + 1e-9


@pytest.mark.slow
@given(PROBABILITIES, SHIFTS, SHIFTS)
def test_event_lower_falls_with_the_shift(p: float, mu: float, more: float) -> None:
    assert event_lower(p, mu + more) <= event_lower(p, mu)


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b"), [(1 - 2**-53, 0.5), (0.5, 1e-30), (1 - 2**-53, 5e-324), (0.3, 5e-324)])
def test_radius_is_finite_and_just_below_the_truth_at_the_ends(a: float, b: float) -> None:
    with mpmath.workdps(60):
        assert is_just_below(radius(a, b, 1.0), (quantile(a) - quantile(b)) / 2)
        assert is_just_below(-radius_upper(a, b, 1.0), -(quantile(a) - quantile(b)) / 2)


def test_edges() -> None:
    assert event_lower(0.3, 0.0) == event_upper(0.3, 0.0) == 0.3
    assert event_lower(0.999, 1e6) == 0.0
    assert event_upper(0.001, 1e6) == 1.0
    assert event_lower(0.5, 1e300) == 0.0
    assert event_upper(5e-324, 1.0) >= 5e-324
    assert radius(1.0, 0.3, 1.0) == radius(0.3, 0.0, 1.0) == math.inf
    assert radius(0.5, 0.5, 1.0) == radius(0.2, 0.8, 1.0) == 0.0
    assert total_variation(0.0) == kl(0.0) == 0.0
    assert total_variation(1e6) == 1.0
    assert kl(1e300) == math.inf


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: event_lower(math.nan, 1.0), ValueError, "`p` must be a number, got nan"),
        (lambda: event_lower(1.5, 1.0), ValueError, r"`p` must be a probability in \[0, 1\], got 1.5"),
        (lambda: event_lower(0.5, -0.1), ValueError, "`mu` must be at least 0, got -0.1"),
        (lambda: event_lower(0.5, math.inf), ValueError, "`mu` must be finite, got inf"),
        (lambda: event_upper(0.5, math.nan), ValueError, "`mu` must be a number, got nan"),
        (lambda: radius(0.5, 0.4, 0.0), ValueError, "`sigma` must be positive, got 0.0"),
        (lambda: radius(0.5, math.nan, 1.0), ValueError, "`upper_b` must be a number, got nan"),
        (lambda: radius("0.5", 0.4, 1.0), TypeError, "`lower_a` must be a real number"),
        (lambda: radius_upper(0.5, 0.4, -1.0), ValueError, "`sigma` must be positive"),
        (lambda: renyi(1.0, 0.0), ValueError, "`order` must be positive"),
        (lambda: total_variation(math.nan), ValueError, "`mu` must be a number"),
        (lambda: kl(True), TypeError, "`mu` must be a real number"),
    ],
)
def test_gaussian_refuses(call, error, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
