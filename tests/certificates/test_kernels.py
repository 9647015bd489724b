"""Repair, fixed-weight and anchored kernels: exact rounding, comparisons, boundaries never inside a radius."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from ccfs.certificates import gaussian
from ccfs.certificates.kernels import (
    AnchoredMixture,
    FixedMixture,
    GaussianComparison,
    anchored_coefficient,
    anchored_radius,
    fixed_repair,
    set_diameter,
)
from ccfs.certificates.occupancy import BoxUnion

INF = math.inf
TAILS = BoxUnion([[-INF], [1.0]], [[-1.0], [INF]], 1.0)
PAIR = BoxUnion([[-2.0], [0.5]], [[-0.5], [1.5]], 0.8)
# Labels cut across the components: left part of each component is label 0.
REGIONS = BoxUnion([[-2.0], [-1.0], [0.5], [0.8]], [[-1.0], [-0.5], [0.8], [1.5]], 0.8)
LABELS = [0, 1, 0, 1]
LSHAPE = BoxUnion([[0.0, 0.0], [0.0, 0.5]], [[1.0, 0.5], [0.5, 1.0]], 0.15)
L_REGIONS = BoxUnion([[0.0, 0.0], [0.633, 0.0], [0.0, 0.5]], [[0.633, 0.5], [1.0, 0.5], [0.5, 1.0]], 0.15)

unit = st.floats(0.0, 1.0)
scales = st.floats(1e-3, 1e3)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(p=unit, q=unit, sigma=scales, diameter=st.floats(0.0, 1e3), tau=unit)
def test_anchored_radius_is_the_greatest_double_below_the_exact_value(p, q, sigma, diameter, tau) -> None:
    radius = anchored_radius(p, q, sigma=sigma, diameter=diameter, tau=tau)
    gap = Fraction(p) - Fraction(q)
    if gap <= 0:
        assert radius == 0.0
        return
    s, d, t = Fraction(sigma), Fraction(diameter), Fraction(tau)
    doubled = 1 / s**2 + t**2 * d**2 / (4 * s**4)
    assert Fraction(radius) ** 2 * doubled <= gap**2
    assert Fraction(math.nextafter(radius, INF)) ** 2 * doubled > gap**2
    coefficient = Fraction(anchored_coefficient(sigma=sigma, diameter=diameter, tau=tau))
    assert doubled / 2 <= coefficient <= doubled / 2 * (1 + Fraction(1, 2**52))


def test_anchored_radius_at_known_values() -> None:
    assert anchored_radius(0.75, 0.25, sigma=1.0, diameter=7.0, tau=0.0) == 0.5
    # 2 C = 1 / sigma^2 + tau^2 D^2 / (4 sigma^4) = 4 + 5 = 9 up to the rounding of D.
    assert anchored_radius(0.75, 0.0, sigma=0.5, diameter=math.sqrt(5.0), tau=0.5) == pytest.approx(0.25, rel=1e-15)


def test_anchored_radius_never_beats_the_gaussian_radius_at_temperature_zero() -> None:
    for top, runner in itertools.product((0.4, 0.6, 0.9, 0.999), (0.05, 0.2, 0.39)):
        pinsker = anchored_radius(top, runner, sigma=0.7, diameter=3.0, tau=0.0)
        assert pinsker <= gaussian.radius(top, runner, 0.7)


@settings(max_examples=60, deadline=None)
@given(p=st.floats(0.5, 1.0), q=st.floats(0.0, 0.5), tau=unit, more=unit)
def test_anchored_radius_falls_with_temperature_and_diameter(p, q, tau, more) -> None:
    base = anchored_radius(p, q, sigma=0.5, diameter=1.0, tau=tau * more)
    assert anchored_radius(p, q, sigma=0.5, diameter=1.0, tau=tau) <= base
    assert anchored_radius(p, q, sigma=0.5, diameter=2.0, tau=tau * more) <= base


def test_set_diameter_is_the_exact_greatest_corner_distance_rounded_up() -> None:
    rng = np.random.default_rng(5)
    for dim, count in ((1, 3), (2, 4), (3, 5)):
        lows = rng.normal(size=(count, dim))
        lows[:, 0] = np.arange(count) * 1.5
        highs = lows + rng.uniform(0.1, 1.4, size=(count, dim))
        corners = [c for lo, hi in zip(lows, highs, strict=True) for c in itertools.product(*zip(lo, hi, strict=True))]
        exact = max(
            sum((Fraction(float(x)) - Fraction(float(y))) ** 2 for x, y in zip(p, q, strict=True))
            for p, q in itertools.combinations(corners, 2)
        )
        diameter = set_diameter(BoxUnion(lows, highs, 1.0))
        assert Fraction(diameter) ** 2 >= exact
        assert Fraction(math.nextafter(diameter, 0.0)) ** 2 < exact
    # The L is wider than any of its boxes: from (1, 0) to (0, 1).
    assert set_diameter(LSHAPE) == pytest.approx(math.sqrt(2.0), rel=1e-15)


def test_fixed_repair_comparison_is_attained_by_clipping() -> None:
    """Clipping to [0, 1] puts Phi(-c / sigma) on 0: a halfspace event, so the comparison is an equality."""
    sigma, a = 0.5, 0.3
    comparison = fixed_repair(sigma=sigma)
    for shift in (0.1, 0.7, 2.0):
        with mp.workdps(40):
            before, after = mp.ncdf(-mp.mpf(a) / sigma), mp.ncdf(-(mp.mpf(a) + mp.mpf(shift)) / sigma)
            lower = comparison.event_lower(math.nextafter(float(before), 0.0), shift=shift)
            assert lower <= after
            assert lower == pytest.approx(float(after), rel=1e-13)
            upper = comparison.event_upper(math.nextafter(float(after), 1.0), shift=shift)
            assert upper >= before
            assert upper == pytest.approx(float(before), rel=1e-13)


def test_fixed_repair_with_random_component_obeys_the_comparison() -> None:
    """Choose [-2, -1] or [1, 2] by a coin that ignores the center, then project on it."""
    comparison = fixed_repair(sigma=1.0)

    def cdf(center: float, t: float) -> float:
        total = 0.0
        for weight, low, high in ((0.3, -2.0, -1.0), (0.7, 1.0, 2.0)):
            total += weight * (0.0 if t < low else 1.0 if t >= high else float(ndtr(t - center)))
        return total

    for a, b, t in itertools.product((-1.0, 0.2, 1.4), (-0.5, 0.3, 2.0), (-1.7, -1.0, 1.2, 1.9)):
        p = cdf(a, t)
        assert cdf(b, t) >= comparison.event_lower(p, shift=abs(b - a)) - 1e-15
        assert cdf(b, t) <= comparison.event_upper(p, shift=abs(b - a)) + 1e-15


def test_gaussian_comparison_rounds_the_shift_against_us() -> None:
    comparison = GaussianComparison(sigma=0.3)
    mu = Fraction(0.1) / Fraction(0.3)
    assert Fraction(comparison.renyi(2.0, shift=0.1)) >= mu**2
    assert comparison.renyi(1.0, shift=0.1) == pytest.approx(1 / 18, rel=1e-15)
    with mp.workdps(40):
        exact = 2 * mp.ncdf(mp.mpf(0.1) / mp.mpf(0.3) / 2) - 1
        assert comparison.total_variation(shift=0.1) >= exact
    assert comparison.radius(0.8, 0.1) == gaussian.radius(0.8, 0.1, 0.3)


def _component_law(center: float, low: float, high: float, start: float, stop: float) -> float:
    """G_c([start, stop] | [low, high]) in one dimension, in 40 digits."""
    with mp.workdps(40):

        def mass(x: float, y: float) -> mp.mpf:
            return mp.ncdf(mp.mpf(y), center, 0.8) - mp.ncdf(mp.mpf(x), center, 0.8) if y > x else mp.mpf(0)

        return float(mass(max(low, start), min(high, stop)) / mass(low, high))


@pytest.mark.parametrize("center", [-1.3, 0.0, 0.9, 6.0])
def test_fixed_mixture_label_probabilities_match_forty_digits(center: float) -> None:
    mixture = FixedMixture(components=PAIR, weights=np.array([0.3, 0.7]))
    left = _component_law(center, -2.0, -0.5, -2.0, -1.0)
    right = _component_law(center, 0.5, 1.5, 0.5, 0.8)
    probabilities = mixture.label_probabilities([center], REGIONS, LABELS)
    assert probabilities[0] == pytest.approx(0.3 * left + 0.7 * right, rel=1e-13)
    assert probabilities.sum() == pytest.approx(1.0, rel=1e-13)


@settings(max_examples=40, deadline=None)
@given(a=st.floats(-4, 4), b=st.floats(-4, 4), cut=st.floats(-1.9, 1.4), weight=unit)
def test_fixed_mixture_obeys_the_gaussian_event_comparison(a, b, cut, weight) -> None:
    mixture = FixedMixture(components=PAIR, weights=np.array([weight, 1.0 - weight]))
    halves = BoxUnion([[-9.0], [cut]], [[cut], [9.0]], 0.8)
    before, after = (mixture.label_probabilities([c], halves, [0, 1])[0] for c in (a, b))
    assert after >= mixture.comparison.event_lower(min(before, 1.0), shift=abs(b - a)) - 1e-12
    assert after <= mixture.comparison.event_upper(min(before, 1.0), shift=abs(b - a)) + 1e-12


def _first_change(label_probabilities, center: np.ndarray, directions: np.ndarray, radius: float) -> bool:
    """Whether the top label changes anywhere on a dense set of points strictly inside the ball."""
    top = int(np.argmax(label_probabilities(center)))
    points = center + np.linspace(0.0, 1.0, 40)[1:, None, None] * radius * (1 - 1e-9) * directions
    return bool(np.any(np.argmax(label_probabilities(points), axis=-1) != top))


CIRCLE = np.stack([np.cos(np.linspace(0, 2 * np.pi, 24)), np.sin(np.linspace(0, 2 * np.pi, 24))], axis=-1)


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.2, 0.5, 0.9])
def test_fixed_mixture_boundaries_are_never_inside_the_radius(weight: float) -> None:
    mixture = FixedMixture(components=LSHAPE, weights=np.array([weight, 1.0 - weight]))
    positive = 0
    for center in itertools.product((0.1, 0.4, 0.65, 0.9), (0.2, 0.49, 0.8)):
        radius = mixture.radius(center, L_REGIONS, [0, 1, 2])
        positive += radius > 0.0

        def probabilities(points: np.ndarray) -> np.ndarray:
            return mixture.label_probabilities(points, L_REGIONS, [0, 1, 2])

        assert math.isfinite(radius)
        assert not _first_change(probabilities, np.array(center), CIRCLE, radius)
    assert positive > 8


def test_fixed_mixture_keeps_what_conditioning_loses() -> None:
    """On the confidence filter the radius from conditional probabilities is wrong, from fixed weights it is right."""
    shares = np.exp(TAILS.log_box_shares([-0.1]))
    assert gaussian.radius(shares[0], shares[1], 1.0) > 0.19
    assert np.argmax(TAILS.label_masses([0.01], [0, 1])) == 1
    mixture = FixedMixture(components=TAILS, weights=shares)
    assert mixture.label_probabilities([5.0], TAILS, [0, 1]) == pytest.approx(shares, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("tau", [0.0, 0.3, 1.0])
def test_anchored_mixture_boundaries_are_never_inside_the_radius(tau: float) -> None:
    positive = 0
    for center in itertools.product((0.1, 0.4, 0.65, 0.9), (0.2, 0.49, 0.8)):
        mixture = AnchoredMixture(components=LSHAPE, anchor=np.array([0.3, 0.3]), tau=tau)
        radius = mixture.radius(center, L_REGIONS, [0, 1, 2])
        positive += radius > 0.0

        def probabilities(points: np.ndarray, mixture: AnchoredMixture = mixture) -> np.ndarray:
            return mixture.label_probabilities(points, L_REGIONS, [0, 1, 2])

        assert not _first_change(probabilities, np.array(center), CIRCLE, radius)
    assert positive > 8


def test_anchored_mixture_has_its_two_ends() -> None:
    anchor, center = np.array([0.3, 0.3]), np.array([0.7, 0.6])
    fixed = AnchoredMixture(components=LSHAPE, anchor=anchor, tau=0.0)
    assert fixed.weights(center) == pytest.approx(np.exp(LSHAPE.log_box_shares(anchor)), rel=1e-14)
    free = AnchoredMixture(components=LSHAPE, anchor=anchor, tau=1.0)
    whole = L_REGIONS.label_masses(center, [0, 1, 2]) / LSHAPE.occupancy(center)
    assert free.label_probabilities(center, L_REGIONS, [0, 1, 2]) == pytest.approx(whole, rel=1e-12)
    at_anchor = AnchoredMixture(components=LSHAPE, anchor=anchor, tau=0.4).weights(anchor)
    assert at_anchor == pytest.approx(np.exp(LSHAPE.log_box_shares(anchor)), rel=1e-13)
    batch = free.weights(np.stack([anchor, center]))
    assert np.array_equal(batch[1], free.weights(center))


@pytest.mark.slow
@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
def test_anchored_mixture_kl_stays_below_its_bound(tau: float) -> None:
    """KL of the mixtures: components are disjoint, so it is the KL of the weights plus the weighted KL inside them."""
    mixture = AnchoredMixture(components=PAIR, anchor=np.array([0.2]), tau=tau)
    boxes = [BoxUnion(PAIR.lows[[j]], PAIR.highs[[j]], 0.8) for j in range(2)]
    bound = anchored_coefficient(sigma=0.8, diameter=mixture.diameter, tau=tau)
    for b, c in itertools.product(np.linspace(-3, 3, 9), np.linspace(-3, 3, 9)):
        weights, others = mixture.weights([b]), mixture.weights([c])
        value = float(np.sum(weights * np.log(weights / others)))
        value += sum(w * box.kl([b], [c]) for w, box in zip(weights, boxes, strict=True))
        assert value <= bound * (b - c) ** 2 * (1 + 1e-12) + 1e-15


def test_mixture_radius_of_an_underflowing_label_stays_finite() -> None:
    far = BoxUnion([[0.0], [90.0]], [[1.0], [91.0]], 1.0)
    mixture = AnchoredMixture(components=far, anchor=np.array([0.5]), tau=1.0)
    assert mixture.label_probabilities([0.5], far, [0, 1])[1] == 0.0
    assert math.isfinite(mixture.radius([0.5], far, [0, 1]))
    fixed = FixedMixture(components=BoxUnion([[0.0]], [[100.0]], 1.0), weights=np.array([1.0]))
    halves = BoxUnion([[0.0], [90.0]], [[90.0], [100.0]], 1.0)
    assert fixed.label_probabilities([0.5], halves, [0, 1])[1] == 0.0
    assert 0.0 < fixed.radius([0.5], halves, [0, 1]) < 45.0
    assert fixed.radius([0.5], BoxUnion([[0.0]], [[100.0]], 1.0), [0]) == INF


@pytest.mark.parametrize("bad", [math.nan, INF, -0.1, 1.1, "0.5", None, True])
def test_anchored_radius_refuses_bad_probabilities_and_temperatures(bad: object) -> None:
    with pytest.raises((TypeError, ValueError), match="`p_top` must"):
        anchored_radius(bad, 0.1, sigma=1.0, diameter=1.0, tau=0.5)
    with pytest.raises((TypeError, ValueError), match="`p_runner` must"):
        anchored_radius(0.9, bad, sigma=1.0, diameter=1.0, tau=0.5)
    with pytest.raises((TypeError, ValueError), match="`tau` must"):
        anchored_radius(0.9, 0.1, sigma=1.0, diameter=1.0, tau=bad)
    with pytest.raises((TypeError, ValueError), match="`tau` must"):
        AnchoredMixture(components=PAIR, anchor=np.array([0.0]), tau=bad)


@pytest.mark.parametrize("bad", [math.nan, INF, -1.0, 0.0, "1", None])
def test_kernels_refuse_bad_scales(bad: object) -> None:
    with pytest.raises((TypeError, ValueError), match="`sigma` must"):
        anchored_radius(0.9, 0.1, sigma=bad, diameter=1.0, tau=0.5)
    with pytest.raises((TypeError, ValueError), match="`sigma` must"):
        fixed_repair(sigma=bad)
    if bad != 0.0:
        with pytest.raises((TypeError, ValueError), match="`diameter` must"):
            anchored_radius(0.9, 0.1, sigma=1.0, diameter=bad, tau=0.5)
        with pytest.raises((TypeError, ValueError), match="`shift` must"):
            fixed_repair(sigma=1.0).event_lower(0.5, shift=bad)


def test_kernels_refuse_bad_mixtures() -> None:
    for weights in ([0.5], [0.5, 0.6], [1.5, -0.5], [math.nan, 0.5], [0.5, 0.5, 0.0]):
        with pytest.raises(ValueError, match="`weights` must"):
            FixedMixture(components=PAIR, weights=np.array(weights))
    with pytest.raises(ValueError, match="must be bounded"):
        AnchoredMixture(components=TAILS, anchor=np.array([0.0]), tau=0.5)
    with pytest.raises(ValueError, match="`anchor` must"):
        AnchoredMixture(components=PAIR, anchor=np.array([0.0, 1.0]), tau=0.5)
    with pytest.raises(ValueError, match="`anchor` must be one center"):
        AnchoredMixture(components=PAIR, anchor=np.array([[0.0]]), tau=0.5)
    mixture = FixedMixture(components=PAIR, weights=np.array([0.5, 0.5]))
    with pytest.raises(ValueError, match="`labels` must hold"):
        mixture.label_probabilities([0.0], REGIONS, [0, 1])
    with pytest.raises(ValueError, match="`regions` must have dimension 1"):
        mixture.label_probabilities([0.0], LSHAPE, [0, 1])
    with pytest.raises(ValueError, match="single center"):
        mixture.radius([[0.0], [1.0]], REGIONS, LABELS)
    with pytest.raises(AttributeError):
        mixture.weights = np.array([1.0, 0.0])
    with pytest.raises(ValueError, match="read-only"):
        mixture.weights[0] = 1.0
