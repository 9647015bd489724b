"""Conditional divergence certificates against mpmath, brute-force minimisation, and exact decision boundaries."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from ccfs.certificates.binomial import bonferroni, clopper_pearson_lower, clopper_pearson_upper
from ccfs.certificates.conditional import (
    PAPER_ORDERS,
    ConditionalCertificate,
    cost,
    diameter_kl_counts,
    diameter_kl_radius,
    forward_kl_cost,
    forward_kl_counts,
    forward_kl_radius,
    odds_counts,
    odds_radius,
    renyi_counts,
    renyi_radius,
    reverse_kl_counts,
    reverse_kl_radius,
)
from ccfs.certificates.filtered import Abstention, joint_mass_radius, substituted_radius

ORDERS = st.sampled_from([1.0, 1.05, 2.0, 5.0, 64.0])


def pairs() -> st.SearchStrategy[tuple[float, float]]:
    return st.tuples(st.floats(1e-6, 1.0), st.floats(0.0, 0.5)).filter(lambda v: v[0] > v[1] and v[0] + v[1] <= 1.0)


def truth(order: float, p: float, q: float) -> mpmath.mpf:
    p, q, t = mpmath.mpf(p), mpmath.mpf(q), 1 - mpmath.mpf(order)
    if q == 0:
        mean = mpmath.mpf(0)
    elif t == 0:
        mean = mpmath.sqrt(p * q)
    else:
        mean = ((p**t + q**t) / 2) ** (1 / t)
    return -mpmath.log(1 - p - q + 2 * mean)


@pytest.mark.slow
@given(ORDERS, pairs())
def test_cost_is_just_below_mpmath(order: float, pair: tuple[float, float]) -> None:
    assume(pair[0] < 1.0)
    value = cost(order, *pair)
    with mpmath.workdps(120):
        exact = truth(order, *pair)
        assert value <= exact
        assert exact - value <= 4e-16 * abs(exact) + 1e-45


@pytest.mark.slow
@given(pairs())
def test_forward_kl_cost_is_just_below_mpmath(pair: tuple[float, float]) -> None:
    value = forward_kl_cost(*pair)
    with mpmath.workdps(80):
        p, q = (mpmath.mpf(v) for v in pair)
        exact = p * mpmath.log(2 * p / (p + q)) + (q * mpmath.log(2 * q / (p + q)) if q else 0)
        assert value <= exact
        assert exact - value <= 4e-16 * abs(exact) + 1e-45


@pytest.mark.parametrize("order", [1.0, 1.5, 2.0, 8.0])
@pytest.mark.parametrize(("p", "q"), [(0.6, 0.3), (0.5, 0.1), (0.9, 0.05), (0.7, 0.3)])
def test_cost_is_the_least_reverse_divergence_of_laws_in_which_the_runner_up_wins(order, p, q) -> None:
    """Oracle: a dense grid over three-cell laws x with x_2 >= x_1, divergence D_order(x || nominal)."""
    nominal = np.array([p, q, max(1 - p - q, 0.0)])
    grid = np.linspace(0.0, 1.0, 801)
    first, second = np.meshgrid(grid, grid, indexing="ij")
    third = 1 - first - second
    keep = (second >= first) & (third >= -1e-12)
    laws = np.stack([first[keep], second[keep], np.clip(third[keep], 0, None)], axis=1)
    if nominal[2] == 0.0:
        laws = laws[laws[:, 2] < 1e-9]
        laws, nominal = laws[:, :2] / laws[:, :2].sum(axis=1, keepdims=True), nominal[:2]
    with np.errstate(divide="ignore", invalid="ignore"):
        if order == 1.0:
            divergence = np.where(laws > 0, laws * np.log(laws / nominal), 0.0).sum(axis=1)
        else:
            divergence = np.log((laws**order * nominal ** (1 - order)).sum(axis=1)) / (order - 1)
    assert divergence.min() >= cost(order, p, q) - 1e-12
    assert divergence.min() == pytest.approx(cost(order, p, q), abs=2e-4)


@pytest.mark.parametrize(("p", "q"), [(0.6, 0.3), (0.5, 0.1), (0.9, 0.05)])
def test_forward_kl_cost_is_the_least_forward_divergence(p: float, q: float) -> None:
    grid = np.linspace(1e-6, 1.0, 1501)
    first, second = np.meshgrid(grid, grid, indexing="ij")
    third = 1 - first - second
    keep = (second >= first) & (third > 0)
    laws = np.stack([first[keep], second[keep], third[keep]], axis=1)
    nominal = np.array([p, q, 1 - p - q])
    divergence = (nominal * np.log(nominal / laws)).sum(axis=1)
    assert divergence.min() >= forward_kl_cost(p, q) - 1e-12
    assert divergence.min() == pytest.approx(forward_kl_cost(p, q), abs=1e-4)


@given(ORDERS, pairs(), st.floats(0.0, 0.3))
def test_cost_grows_with_p_and_falls_with_q(order: float, pair: tuple[float, float], step: float) -> None:
    p, q = pair
    assert cost(order, min(p + step, 1.0), q) >= cost(order, p, q) - 1e-300
    assert cost(order, p, min(q + step, 1.0)) <= cost(order, p, q)


@pytest.mark.slow
@given(pairs(), st.floats(0.01, 5.0), st.floats(0.1, 4.0), st.floats(0.01, 10.0) | st.just(math.inf))
def test_renyi_is_at_least_reverse_and_reverse_at_least_forward(pair, sigma, ratio, ball) -> None:
    premise = {"sigma": sigma, "covariance_ratio": ratio, "ball": ball}
    forward = forward_kl_radius(*pair, **premise)
    reverse = reverse_kl_radius(*pair, **premise)
    renyi = renyi_radius(*pair, **premise)
    assert 0.0 <= forward <= reverse * (1 + 1e-15) + 1e-300
    assert reverse <= renyi <= ball


def test_paper_orders_are_the_printed_set() -> None:
    assert len(PAPER_ORDERS) == 87
    assert PAPER_ORDERS[0] == 1.0
    assert PAPER_ORDERS[1:81] == tuple(1 + k / 20 for k in range(1, 81))
    assert PAPER_ORDERS[81:] == (6.0, 8.0, 12.0, 16.0, 32.0, 64.0)


def test_forward_kl_ceiling_of_the_paper() -> None:
    ceiling = forward_kl_radius(1.0, 0.0, sigma=0.25, covariance_ratio=1.0)
    assert f"{ceiling:.7f}".startswith("0.29435")
    assert ceiling <= 0.25 * math.sqrt(2 * math.log(2))
    assert reverse_kl_radius(0.999, 0.0005, sigma=0.25, covariance_ratio=1.0) > ceiling


def two_band(delta: float) -> tuple[float, float]:
    """Joint masses of the paper's two bands at a center `delta` below the boundary."""
    lower = norm.cdf(1 - delta) - norm.cdf(0.9 - delta)
    upper = norm.sf(0.9 + delta) - norm.sf(1 + delta)
    return float(lower), float(upper)


def test_two_band_radii_of_the_paper() -> None:
    lower, upper = two_band(0.1)
    p = lower / (lower + upper)
    assert joint_mass_radius(lower, upper, 1.0) == pytest.approx(0.04067994841241465, rel=1e-11)
    assert forward_kl_radius(p, 1 - p, sigma=1.0, covariance_ratio=1.0) == pytest.approx(0.0947076766427303, rel=1e-11)
    assert substituted_radius(p, 1 - p, 1.0) == pytest.approx(0.1188891438646233, rel=1e-11)


@pytest.mark.parametrize("delta", [0.01, 0.05, 0.1, 0.3, 0.7, 1.5, 4.0])
def test_two_band_divergence_radii_never_pass_the_boundary_and_the_substituted_one_does_nearby(delta: float) -> None:
    lower, upper = two_band(delta)
    p, q = lower / (lower + upper), upper / (lower + upper)
    for radius in (forward_kl_radius, reverse_kl_radius, renyi_radius):
        assert radius(p, q, sigma=1.0, covariance_ratio=1.0) <= delta * (1 + 1e-9)
    assert (substituted_radius(p, q, 1.0) > delta) == (delta <= 1.5)


@pytest.mark.parametrize("inner", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("center", [0.03, 0.2, 0.8])
@pytest.mark.parametrize("sigma", [0.3, 1.0])
def test_diameter_radii_never_pass_the_boundary_of_two_intervals(inner: float, center: float, sigma: float) -> None:
    """Labels are on [-1, -inner] and [inner, 1]. By symmetry the boundary is the origin, `center` away."""
    left = norm.cdf((-inner + center) / sigma) - norm.cdf((-1 + center) / sigma)
    right = norm.sf((inner + center) / sigma) - norm.sf((1 + center) / sigma)
    p = left / (left + right)
    assert 0.0 < diameter_kl_radius(p, 1 - p, sigma=sigma, diameter=2.0) <= center * (1 + 1e-9)
    assert 0.0 < odds_radius(p, 1 - p, sigma=sigma, diameter=2.0) <= center * (1 + 1e-9)


def test_diameter_radii_on_the_l_shape_stay_inside_the_boundary() -> None:
    """Brute force on the paper's L-shape: the label of E changes on the way from a to b, within 0.01."""
    sigma = 0.15

    def conditional(x: float, cut: float = 0.633, y: float = 0.49) -> float:
        def box(x0: float, x1: float, y0: float, y1: float) -> float:
            across = norm.cdf((x1 - x) / sigma) - norm.cdf((x0 - x) / sigma)
            return across * (norm.cdf((y1 - y) / sigma) - norm.cdf((y0 - y) / sigma))

        total = box(0, 1, 0, 0.5) + box(0, 0.5, 0.5, 1)
        return (box(0, cut, 0, 0.5) + box(0, 0.5, 0.5, 1)) / total

    p = conditional(0.65)
    boundary = brentq(lambda x: conditional(x) - 0.5, 0.65, 0.66) - 0.65
    assert boundary < 0.01 < substituted_radius(p, 1 - p, sigma)
    assert diameter_kl_radius(p, 1 - p, sigma=sigma, diameter=math.sqrt(2)) < boundary
    assert odds_radius(p, 1 - p, sigma=sigma, diameter=math.sqrt(2)) < boundary


def test_local_covariance_bound_is_paid_by_the_order() -> None:
    premise = {"sigma": 1.0, "covariance_ratio": 1.0}
    assert renyi_radius(0.99, 0.001, ball=0.6, orders=(4.0,), **premise) <= 0.6 / 4
    assert renyi_radius(0.99, 0.001, ball=0.6, orders=(1.0, 4.0), **premise) == 0.6


def test_edges_of_the_probabilities() -> None:
    premise = {"sigma": 1.0, "covariance_ratio": 1.0}
    assert cost(1.0, 1.0, 0.0) == math.inf
    assert renyi_radius(1.0, 0.0, **premise) == math.inf
    assert renyi_radius(1.0, 0.0, ball=2.0, **premise) == 2.0
    assert odds_radius(0.9, 0.0, sigma=1.0, diameter=2.0) == math.inf
    assert odds_radius(0.5, 0.5, sigma=1.0, diameter=2.0) == 0.0
    for order in (1.0, 2.0, 64.0):
        assert cost(order, 0.3, 0.3) == cost(order, 0.2, 0.6) == 0.0
        assert cost(order, 0.9, 1e-300) <= cost(order, 0.9, 0.0) == pytest.approx(-math.log(0.1), rel=1e-14)
        assert cost(order, 0.9, 5e-324) > 0.99 * cost(order, 0.9, 0.0)
        assert 0.0 < cost(order, 1 - 2**-53, 2**-54) < math.inf


def test_runner_up_bound_is_capped_by_the_complement() -> None:
    assert cost(2.0, 0.8, 0.7) == cost(2.0, 0.8, float(1 - Fraction(0.8)))
    assert forward_kl_cost(0.8, 0.7) == forward_kl_cost(0.8, float(1 - Fraction(0.8)))


@pytest.mark.parametrize(
    "certify",
    [
        lambda c: renyi_counts(c, selected=0, sigma=1.0, covariance_ratio=1.0, delta=0.5),
        lambda c: reverse_kl_counts(c, selected=0, sigma=1.0, covariance_ratio=1.0, delta=0.5),
        lambda c: forward_kl_counts(c, selected=0, sigma=1.0, covariance_ratio=1.0, delta=0.5),
        lambda c: diameter_kl_counts(c, selected=0, sigma=1.0, diameter=2.0, delta=0.5),
        lambda c: odds_counts(c, selected=0, sigma=1.0, diameter=2.0, delta=0.5),
    ],
)
@pytest.mark.parametrize("p", [Fraction(1, 2), Fraction(3, 5), Fraction(9, 10)])
def test_conditional_counts_cover_by_enumeration_and_abstain_on_nothing(certify, p: Fraction) -> None:
    retained, failing = 12, Fraction(0)
    for successes in range(retained + 1):
        result = certify([successes, retained - successes])
        if isinstance(result, ConditionalCertificate):
            assert result.retained == retained
            if Fraction(result.lower) > p or Fraction(result.upper) < 1 - p:
                failing += math.comb(retained, successes) * p**successes * (1 - p) ** (retained - successes)
    assert failing <= Fraction(1, 2)
    nothing = certify([0, 0])
    assert isinstance(nothing, Abstention)
    assert "no proposal was retained" in nothing.reason


def test_conditional_counts_spend_half_of_delta_on_each_side_and_keep_their_premise() -> None:
    counts, delta, sigma = [700, 200, 50], 0.001, 0.7
    lower = clopper_pearson_lower(700, 950, delta=bonferroni(delta, 2))
    upper = clopper_pearson_upper(200, 950, delta=bonferroni(delta, 4))
    geometry = {"sigma": sigma, "covariance_ratio": 1.7, "ball": 0.45}
    expected = {
        renyi_counts: renyi_radius(lower, upper, **geometry),
        reverse_kl_counts: reverse_kl_radius(lower, upper, **geometry),
        forward_kl_counts: forward_kl_radius(lower, upper, **geometry),
    }
    for certify, radius in expected.items():
        result = certify(counts, selected=0, delta=delta, **geometry)
        assert (result.lower, result.upper, result.radius) == (lower, upper, radius)
        assert (result.counts, result.sigma, result.delta) == ((700, 200, 50), sigma, delta)
        assert (result.premise.covariance_ratio, result.premise.ball) == (1.7, 0.45)
    assert 0.0 < expected[forward_kl_counts] < expected[reverse_kl_counts] <= expected[renyi_counts] <= 0.45
    for certify, radius in {diameter_kl_counts: diameter_kl_radius, odds_counts: odds_radius}.items():
        result = certify(counts, selected=0, delta=delta, sigma=sigma, diameter=1.3)
        assert (result.lower, result.upper) == (lower, upper)
        assert result.radius == radius(lower, upper, sigma=sigma, diameter=1.3)
        assert result.premise.diameter == 1.3


@given(pairs(), st.floats(0.05, 3.0), st.floats(0.2, 5.0), st.floats(0.1, 9.0))
def test_radii_are_just_below_their_formulas_in_mpmath(pair, sigma: float, ratio: float, diameter: float) -> None:
    """Oracle: the printed formulas at 80 digits, for orders 1 and 3."""
    assume(pair[0] < 1.0 and pair[1] > 0.0)
    with mpmath.workdps(80):
        p, q, s, v, d = (mpmath.mpf(x) for x in (*pair, sigma, ratio, diameter))
        forward = p * mpmath.log(2 * p / (p + q)) + q * mpmath.log(2 * q / (p + q))
        cases = {
            renyi_radius(*pair, sigma=sigma, covariance_ratio=ratio, orders=(3.0,)): s
            * mpmath.sqrt(2 * truth(3.0, *pair) / (3 * v)),
            reverse_kl_radius(*pair, sigma=sigma, covariance_ratio=ratio): s * mpmath.sqrt(2 * truth(1.0, *pair) / v),
            forward_kl_radius(*pair, sigma=sigma, covariance_ratio=ratio): s * mpmath.sqrt(2 * forward / v),
            diameter_kl_radius(*pair, sigma=sigma, diameter=diameter): 2 * s**2 / d * mpmath.sqrt(2 * forward),
            odds_radius(*pair, sigma=sigma, diameter=diameter): s**2 / d * mpmath.log(p / q),
        }
        for value, exact in cases.items():
            assert value <= exact
            assert exact - value <= 4e-16 * exact + 1e-25


def test_conditional_counts_abstain_without_a_lead() -> None:
    result = renyi_counts([10, 12, 3], selected=0, sigma=1.0, covariance_ratio=1.0, delta=0.01)
    assert isinstance(result, Abstention)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: cost(0.5, 0.6, 0.3), ValueError, r"`order` must be at least 1, got 0\.5"),
        (lambda: cost(math.inf, 0.6, 0.3), ValueError, "`order` must be finite, got inf"),
        (lambda: cost(1.0, math.nan, 0.3), ValueError, "`p` must be a number, got nan"),
        (lambda: cost(1.0, 0.5, -0.3), ValueError, r"`q` must be a probability in \[0, 1\], got -0\.3"),
        (lambda: cost(1.0, "0.5", 0.3), TypeError, "`p` must be a real number"),
        (lambda: renyi_radius(0.9, 0.1, sigma=0.0, covariance_ratio=1.0), ValueError, "`sigma` must be positive"),
        (lambda: renyi_radius(0.9, 0.1, sigma=1.0, covariance_ratio=0.0), ValueError, "`covariance_ratio` must be pos"),
        (
            lambda: renyi_radius(0.9, 0.1, sigma=1.0, covariance_ratio=math.nan),
            ValueError,
            "`covariance_ratio` must be",
        ),
        (lambda: renyi_radius(0.9, 0.1, sigma=1.0, covariance_ratio=1.0, ball=0.0), ValueError, "`ball` must be pos"),
        (
            lambda: renyi_radius(0.9, 0.1, sigma=1.0, covariance_ratio=1.0, ball=math.nan),
            ValueError,
            "`ball` must be a",
        ),
        (lambda: renyi_radius(0.9, 0.1, sigma=1.0, covariance_ratio=1.0, orders=()), ValueError, "`orders` must hold"),
        (lambda: odds_radius(0.9, 0.1, sigma=1.0, diameter=math.inf), ValueError, "`diameter` must be finite, got inf"),
        (lambda: diameter_kl_radius(0.9, 0.1, sigma=1.0, diameter=-1.0), ValueError, "`diameter` must be positive"),
        (
            lambda: renyi_counts([0, 0], selected=0, sigma=1.0, covariance_ratio=-1.0, delta=0.1),
            ValueError,
            "`covariance_ratio` must be positive",
        ),
        (
            lambda: odds_counts([1, 2], selected=5, sigma=1.0, diameter=1.0, delta=0.1),
            ValueError,
            "`selected` must be a label index below 2, got 5",
        ),
    ],
)
def test_conditional_refuses(call, error, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
