"""The Gaussian comparison against mpmath at 60 digits: always on the safe side, and by no more than rounding."""

from __future__ import annotations

import math
from itertools import pairwise

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfs.certificates.gaussian import (
    chi_square,
    divergences,
    event_lower,
    event_upper,
    kl,
    radius,
    radius_upper,
    renyi,
    total_variation,
)

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


@given(st.floats(1e-6, 26.0))
def test_chi_square_is_just_above_the_truth(mu: float) -> None:
    with mpmath.workdps(60):
        assert is_just_below(-chi_square(mu), -mpmath.expm1(mpmath.mpf(mu) ** 2))


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
def test_divergences_are_those_of_two_normal_laws(mu: float) -> None:
    """Oracle: the integrals of their definitions, by mpmath's quadrature at 20 digits."""
    found = divergences(mu)
    with mpmath.workdps(20):
        shift = mpmath.mpf(mu)

        def ratio(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.exp(shift * x - shift**2 / 2)

        def mean(function) -> mpmath.mpf:
            return mpmath.quad(lambda x: function(x) * mpmath.npdf(x), [-20, -3, 0, shift / 2, 3, 20])

        assert found.total_variation == pytest.approx(float(mean(lambda x: abs(ratio(x) - 1) / 2)), rel=1e-12)
        assert found.kl == pytest.approx(float(mean(lambda x: ratio(x) * mpmath.log(ratio(x)))), rel=1e-12)
        assert found.chi_square == pytest.approx(float(mean(lambda x: (ratio(x) - 1) ** 2)), rel=1e-12)
        for order in (0.5, 2.0, 3.0):
            exact = mpmath.log(mean(lambda x, order=order: ratio(x) ** order)) / (order - 1)
            assert found.renyi(order) == pytest.approx(float(exact), rel=1e-12)


@given(st.floats(0.1, 3.0), st.floats(0.0, 1.0), st.lists(st.floats(-2.0, 2.0), min_size=3, max_size=3))
def test_divergences_bound_an_adaptive_shift_exactly(mu: float, share: float, edges: list[float]) -> None:
    """Two steps whose signs are public. The second shift follows the first sign, and the energy is mu^2 on each path.

    The four traces have closed probabilities, so every divergence of the two laws is exact up to doubles.
    """
    first = mu * math.sqrt(share)
    second = mu * math.sqrt(1.0 - share)
    nominal, shifted = [], []
    for sign in (-1, 1):
        for after in (-1, 1):
            edge = edges[0] if sign < 0 else edges[1]
            # After a negative sign the second shift goes up, after a positive one down.
            move = second if sign < 0 else -second
            nominal.append(_side(edges[2], sign) * _side(edge, after))
            shifted.append(_side(edges[2] - first, sign) * _side(edge - move, after))
    found = divergences(mu)
    for p, q in ((nominal, shifted), (shifted, nominal)):
        pairs = list(zip(p, q, strict=True))
        assert sum(abs(a - b) for a, b in pairs) / 2 <= found.total_variation + 1e-12
        assert sum(a * math.log(a / b) for a, b in pairs) <= found.kl + 1e-12
        assert sum(a * a / b for a, b in pairs) - 1 <= found.chi_square * (1 + 1e-12) + 1e-12
        for order in (0.5, 2.0, 4.0):
            exact = math.log(sum(a**order * b ** (1 - order) for a, b in pairs)) / (order - 1)
            assert exact <= found.renyi(order) + 1e-11


def _side(edge: float, sign: int) -> float:
    """P(Z > edge) for a positive sign, P(Z <= edge) for a negative one."""
    return 0.5 * math.erfc(sign * edge / math.sqrt(2.0))


def test_divergences_are_nearly_reached_by_a_fine_discretisation() -> None:
    """A shift by mu in one step, seen through 400 bins, loses almost nothing. So the bounds are not loose."""
    edges = [-8.0 + 0.04 * i for i in range(401)]

    def bins(mean: float) -> list[float]:
        below = [0.5 * math.erfc((mean - edge) / math.sqrt(2.0)) for edge in edges]
        return [b - a for a, b in pairwise(below)]

    pairs = list(zip(bins(1.0), bins(0.0), strict=True))
    found = divergences(1.0)
    assert 0.999 < sum(abs(a - b) for a, b in pairs) / 2 / found.total_variation <= 1.0
    assert 0.999 < sum(a * math.log(a / b) for a, b in pairs) / found.kl <= 1.0
    assert 0.998 < (sum(a * a / b for a, b in pairs) - 1) / found.chi_square <= 1.0


def test_divergences_of_no_shift_and_of_any_shift() -> None:
    none, every = divergences(0.0), divergences(math.inf)
    assert (none.total_variation, none.kl, none.chi_square, none.renyi(2.0)) == (0.0, 0.0, 0.0, 0.0)
    assert (every.total_variation, every.kl, every.chi_square, every.renyi(2.0)) == (1.0, *[math.inf] * 3)
    assert chi_square(1e9) == math.inf
    for value, message in ((math.nan, "got nan"), (-1.0, "at least 0"), (-math.inf, "must be finite")):
        with pytest.raises(ValueError, match=message):
            divergences(value)


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
