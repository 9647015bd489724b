"""Occupancy, moments and divergences of box unions against 100-digit arithmetic, quadrature and the paper's numbers."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import dblquad, quad

from ccfs.certificates.occupancy import BoxUnion

pytestmark = pytest.mark.slow
INF = math.inf
LSHAPE = BoxUnion([[0.0, 0.0], [0.0, 0.5]], [[1.0, 0.5], [0.5, 1.0]], 0.15)
L_A, L_B = [0.65, 0.49], [0.66, 0.49]
CONFIDENCE = BoxUnion([[-INF], [1.0]], [[-1.0], [INF]], 1.0)
TWO_BAND = BoxUnion([[-INF, -1.0], [-INF, 0.9]], [[INF, -0.9], [INF, 1.0]], 1.0)

# lows, highs, sigma, a, b: near and far, thin and wide, bounded and not, small moves and large.
HOSTILE = {
    "forty sigma off": ([[0.0]], [[1.0]], 1.0, [40.0], [40.001]),
    "fifty sigma off": ([[0.0]], [[1.0]], 1.0, [-50.0], [-45.0]),
    "two boxes from afar": ([[0.0], [1.001]], [[1.0], [3.0]], 1.0, [-40.0], [-39.0]),
    "two sides from afar": ([[0.0], [80.5]], [[1.0], [81.0]], 1.0, [40.75], [40.8]),
    "three hundred sigma off": ([[0.0], [1.001]], [[1.0], [3.0]], 0.01, [-3.0], [-2.99]),
    "thin and far": ([[0.0]], [[1e-9]], 1.0, [30.0], [31.0]),
    "thin inside": ([[0.0]], [[1e-9]], 1.0, [0.0], [1.0]),
    "thin pair": ([[0.0], [1e-6]], [[1e-8], [1.01e-6]], 1.0, [3.0], [3.1]),
    "thin crossing": ([[0.0]], [[0.001]], 1.0, [60.0], [-60.0]),
    "crossing": ([[0.0]], [[1.0]], 1.0, [60.0], [-60.0]),
    "half line outside": ([[0.0]], [[INF]], 1.0, [-40.0], [-41.0]),
    "half line entered": ([[0.0]], [[INF]], 1.0, [-40.0], [5.0]),
    "half line left": ([[0.0]], [[INF]], 1.0, [5.0], [-40.0]),
    "half line edge": ([[-INF]], [[-1.0]], 1.0, [-3.0], [0.001]),
    "tails": ([[-INF], [1.0]], [[-1.0], [INF]], 1.0, [0.0], [1e-9]),
    "tails crossed": ([[-INF], [1.0]], [[-1.0], [INF]], 1.0, [-20.0], [20.0]),
    "tiny move": ([[0.0]], [[1.0]], 1.0, [0.3], [0.3 + 1e-6]),
    "wide": ([[-30.0]], [[3.0]], 1.0, [0.0], [1.5]),
    "very wide": ([[-1e9]], [[1e9]], 1.0, [0.0], [0.3]),
    "switch of rules": ([[0.0]], [[5.0]], 1.0, [-0.9], [0.01]),
    "far from the origin": ([[1e6], [1e6 + 2.0]], [[1e6 + 1.0], [1e6 + 2.5]], 1.0, [1e6 + 1.2], [1e6 + 1.3]),
    "L": (LSHAPE.lows, LSHAPE.highs, 0.15, L_A, L_B),
    "L from afar": (LSHAPE.lows, LSHAPE.highs, 0.15, [7.0, 7.0], [7.1, 7.0]),
    "L tiny move": (LSHAPE.lows, LSHAPE.highs, 0.15, L_A, [0.65 + 1e-7, 0.49 + 1e-7]),
    "bands": (TWO_BAND.lows, TWO_BAND.highs, 1.0, [0.0, -0.1], [0.3, 0.1]),
}


def _random_case(seed: int) -> tuple[object, ...]:
    rng = np.random.default_rng(seed)
    dim, boxes = rng.integers(1, 4), rng.integers(1, 4)
    lows = rng.normal(size=(boxes, dim))
    highs = lows + 10.0 ** rng.uniform(-6, 1, size=(boxes, dim))
    ends = np.sort(rng.normal(size=2 * boxes) * 10.0 ** rng.uniform(-3, 1))
    lows[:, 0], highs[:, 0] = ends[::2], ends[1::2]
    sigma = float(10.0 ** rng.uniform(-1, 0.5))
    a = rng.normal(size=dim) * sigma * 10.0 ** rng.uniform(-1, 1.3)
    return lows, highs, sigma, a, a + rng.normal(size=dim) * sigma * 10.0 ** rng.uniform(-6, 0.5)


CASES = [pytest.param(*case, id=name) for name, case in HOSTILE.items()] + [
    pytest.param(*_random_case(seed), id=f"random {seed}") for seed in range(12)
]


class Exact:
    """The same quantities by the textbook formulas in 100 digits more than the exponents can cancel."""

    def __init__(self, lows: object, highs: object, sigma: float) -> None:
        self.lows, self.highs = np.atleast_2d(np.asarray(lows)), np.atleast_2d(np.asarray(highs))
        self.sigma = mp.mpf(sigma)

    def box(self, j: int, center: list[mp.mpf]) -> tuple[mp.mpf, list[mp.mpf], list[mp.mpf]]:
        mass, means, variances = mp.mpf(1), [], []
        for low, high, c in zip(self.lows[j], self.highs[j], center, strict=True):
            start, stop = ((mp.mpf(float(x)) - c) / self.sigma for x in (low, high))
            p = _tail(start) - _tail(stop) if start > 0 else _tail(-stop) - _tail(-start)
            mean = (_density(start) - _density(stop)) / p
            second = 1 + (_first(start) - _first(stop)) / p
            mass, means, variances = mass * p, [*means, mean], [*variances, second - mean**2]
        return mass, means, variances

    def at(self, center: list[mp.mpf]) -> tuple[mp.mpf, list[mp.mpf], mp.matrix]:
        dim = len(center)
        parts = [self.box(j, center) for j in range(len(self.lows))]
        total = mp.fsum(mass for mass, _, _ in parts)
        mean = [mp.fsum(mass * m[k] for mass, m, _ in parts) / total for k in range(dim)]
        covariance = mp.matrix(dim, dim)
        for mass, m, v in parts:
            for k in range(dim):
                covariance[k, k] += mass / total * v[k]
                for i in range(dim):
                    covariance[k, i] += mass / total * (m[k] - mean[k]) * (m[i] - mean[i])
        return total, mean, covariance

    def kl(self, a: list[mp.mpf], b: list[mp.mpf]) -> mp.mpf:
        (mass_a, mean, _), (mass_b, _, _) = self.at(a), self.at(b)
        move = [(y - x) / self.sigma for x, y in zip(a, b, strict=True)]
        quadratic = mp.fsum(x * x for x in move) / 2
        return quadratic + mp.log(mass_b) - mp.log(mass_a) - mp.fsum(x * y for x, y in zip(move, mean, strict=True))

    def renyi(self, a: list[mp.mpf], b: list[mp.mpf], order: float) -> mp.mpf:
        alpha = mp.mpf(order)
        c = [alpha * x + (1 - alpha) * y for x, y in zip(a, b, strict=True)]
        log_a, log_b, log_c = (mp.log(self.at(x)[0]) for x in (a, b, c))
        squared = mp.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / self.sigma**2
        return alpha * squared / 2 + (log_c - alpha * log_a - (1 - alpha) * log_b) / (alpha - 1)


def _tail(x: mp.mpf) -> mp.mpf:
    return mp.erfc(x / mp.sqrt(2)) / 2


def _density(x: mp.mpf) -> mp.mpf:
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi) if mp.isfinite(x) else mp.mpf(0)


def _first(x: mp.mpf) -> mp.mpf:
    return x * _density(x) if mp.isfinite(x) else mp.mpf(0)


def _exactly(center: object) -> list[mp.mpf]:
    return [mp.mpf(float(x)) for x in np.asarray(center)]


@pytest.mark.parametrize(("lows", "highs", "sigma", "a", "b"), CASES)
def test_box_union_moments_match_hundred_digits(lows, highs, sigma, a, b) -> None:
    union, exact = BoxUnion(lows, highs, sigma), Exact(lows, highs, sigma)
    with mp.workdps(120):
        for center in (a, b):
            mass, mean, covariance = exact.at(_exactly(center))
            distance = max(1.0, -float(mp.log(mass)))
            assert abs(union.log_occupancy(center) - mp.log(mass)) < 1e-15 * distance + 2e-14 * union.dim
            computed = union.covariance(center) / sigma**2
            for k in range(union.dim):
                expected = mean[k] * mp.mpf(sigma) + mp.mpf(float(center[k]))
                spread = mp.mpf(sigma) * mp.sqrt(covariance[k, k])
                # A mean next to 0.4 has no more than 16 digits of its own, whatever its spread.
                assert abs(union.mean(center)[k] - expected) < 1e-13 * spread + 4e-16 * abs(expected) + 1e-24
                for i in range(union.dim):
                    scale = mp.sqrt(covariance[k, k] * covariance[i, i])
                    assert abs(computed[k, i] - covariance[k, i]) < 1e-12 * scale


@pytest.mark.parametrize(("lows", "highs", "sigma", "a", "b"), CASES)
def test_box_union_kl_matches_hundred_digits(lows, highs, sigma, a, b) -> None:
    with mp.workdps(120):
        expected = Exact(lows, highs, sigma).kl(_exactly(a), _exactly(b))
        assert abs(BoxUnion(lows, highs, sigma).kl(a, b) / expected - 1) < 1e-12


@pytest.mark.parametrize("order", [0.01, 0.5, 0.999, 1.5, 8.0])
@pytest.mark.parametrize(
    "name", ["L", "L tiny move", "two boxes from afar", "thin pair", "tails crossed", "half line entered", "bands"]
)
def test_box_union_renyi_matches_many_digits(name: str, order: float) -> None:
    lows, highs, sigma, a, b = HOSTILE[name]
    with mp.workdps(300):
        expected = Exact(lows, highs, sigma).renyi(_exactly(a), _exactly(b), order)
        assert abs(BoxUnion(lows, highs, sigma).renyi(a, b, order) / expected - 1) < 1e-12


def test_box_union_far_masses_where_cdf_differences_vanish() -> None:
    union = BoxUnion([[0.0], [0.5]], [[0.25], [1.0]], 1.0)
    assert math.erf(1.0 + 60.0) - math.erf(60.0) == 0.0
    assert union.occupancy([-60.0]) == 0.0
    assert -1806.0 < union.log_occupancy([-60.0]) < -1804.0
    masses = union.log_label_masses([-60.0], [1, 0])
    assert np.all(np.isfinite(masses))
    assert masses[1] > masses[0]
    assert 0.0 < union.mean([-60.0])[0] < 0.25
    # Far outside, one over the distance is the scale of the conditioned law.
    assert union.local_ratio([-60.0]) == pytest.approx(1.0 / 3600.0, rel=1e-2)
    assert union.local_ratio([-1e5]) == pytest.approx(1e-10, rel=1e-8)
    assert 0.0 < union.kl([-60.0], [-59.0]) < 0.5


def test_box_union_lshape_numbers_of_the_paper() -> None:
    assert 0.002423524 <= LSHAPE.kl(L_A, L_B) <= 0.002423525
    assert LSHAPE.kl(L_A, L_B) - 1.0 / 450.0 > 0.0002013
    ratio = LSHAPE.covariance(L_A)[0, 0] / 0.15**2
    assert abs(ratio - 1.091538667648430022208362) < 4e-15
    assert LSHAPE.local_ratio(L_A) >= ratio > 1.0
    log_ratio = LSHAPE.log_occupancy(L_B) - LSHAPE.log_occupancy(L_A)
    crossing = 0.655 + 0.15**2 / 0.01 * log_ratio
    assert 0.623175082 <= crossing <= 0.623175083
    assert 0.028641422 <= _left_of(crossing, L_A) - _left_of(crossing, L_B) <= 0.028641423
    assert 0.527476587 <= _left_of(0.633, L_A) <= 0.527476588
    assert 0.498885133 <= _left_of(0.633, L_B) <= 0.498885134


def _left_of(x: float, center: list[float]) -> float:
    """Q_c of the part of the L left of x, by a union cut there."""
    cut = BoxUnion([[0.0, 0.0], [0.0, 0.5]], [[x, 0.5], [0.5, 1.0]], 0.15)
    return math.exp(cut.log_occupancy(center) - LSHAPE.log_occupancy(center))


def test_box_union_two_band_numbers_of_the_paper() -> None:
    masses = TWO_BAND.label_masses([0.0, -0.1], [0, 1])
    assert abs(TWO_BAND.occupancy([0.0, -0.1]) - 0.05078446622171157326) < 2e-17
    assert abs(masses[0] / masses.sum() - 0.54731840865059743984) < 3e-16
    centers = np.stack([np.linspace(-3, 3, 301)] * 2, axis=-1)
    assert np.max(np.abs(TWO_BAND.local_ratio(centers) - 1.0)) < 1e-15
    moves = centers + np.array([0.05, 0.1])
    assert np.all(TWO_BAND.kl(centers, moves) <= 0.5 * (0.05**2 + 0.1**2) * (1 + 1e-12))


def test_box_union_confidence_filter_numbers_of_the_paper() -> None:
    masses = CONFIDENCE.label_masses([-0.1], [0, 1])
    assert math.floor(masses[0] / masses.sum() * 1e6) == 575680
    assert masses[0] > masses[1]
    assert np.diff(CONFIDENCE.label_masses([0.01], [0, 1]))[0] > 0
    assert CONFIDENCE.label_masses([0.0], [0, 1])[0] == CONFIDENCE.label_masses([0.0], [0, 1])[1]
    assert CONFIDENCE.local_ratio([0.0]) > 2.0
    assert CONFIDENCE.kl([0.0], [0.01]) > 0.5 * 0.01**2


@pytest.mark.parametrize("center", [-0.7, 0.2, 2.5])
def test_box_union_moments_match_quadrature_in_one_dimension(center: float) -> None:
    union = BoxUnion([[-1.0], [0.5]], [[0.0], [2.0]], 0.7)

    def integral(power: int) -> float:
        def f(z: float) -> float:
            return z**power * math.exp(-0.5 * ((z - center) / 0.7) ** 2) / (0.7 * math.sqrt(2 * math.pi))

        return quad(f, -1.0, 0.0, epsabs=1e-15)[0] + quad(f, 0.5, 2.0, epsabs=1e-15)[0]

    mass = integral(0)
    assert union.occupancy([center]) == pytest.approx(mass, rel=1e-12)
    assert union.mean([center])[0] == pytest.approx(integral(1) / mass, rel=1e-11)
    variance = integral(2) / mass - (integral(1) / mass) ** 2
    assert union.covariance([center])[0, 0] == pytest.approx(variance, rel=1e-9)


def test_box_union_covariance_matches_quadrature_in_two_dimensions() -> None:
    def integral(p: int, q: int) -> float:
        def f(y: float, x: float) -> float:
            return x**p * y**q * math.exp(-((x - 0.65) ** 2 + (y - 0.49) ** 2) / (2 * 0.15**2))

        return dblquad(f, 0, 1, 0, 0.5, epsabs=1e-13)[0] + dblquad(f, 0, 0.5, 0.5, 1, epsabs=1e-13)[0]

    mass = integral(0, 0)
    mean = [integral(1, 0) / mass, integral(0, 1) / mass]
    assert LSHAPE.occupancy(L_A) == pytest.approx(mass / (2 * math.pi * 0.15**2), rel=1e-10)
    assert LSHAPE.mean(L_A) == pytest.approx(mean, rel=1e-10)
    assert LSHAPE.covariance(L_A)[0, 1] == pytest.approx(integral(1, 1) / mass - mean[0] * mean[1], abs=1e-10)


@pytest.mark.parametrize("center", [L_A, [0.2, 0.9], [1.5, -0.3]])
def test_box_union_gradient_and_hessian_identities(center: list[float]) -> None:
    c, step = np.array(center), 1e-4
    for axis in range(2):
        e = step * np.eye(2)[axis]
        slope = (LSHAPE.log_occupancy(c + e) - LSHAPE.log_occupancy(c - e)) / (2 * step)
        assert slope == pytest.approx((LSHAPE.mean(c) - c)[axis] / 0.15**2, rel=1e-5, abs=1e-5)
        bend = (LSHAPE.mean(c + e) - LSHAPE.mean(c - e)) / (2 * step)
        assert bend == pytest.approx(LSHAPE.covariance(c)[axis] / 0.15**2, rel=1e-5, abs=1e-6)


def test_box_union_three_kl_formulas_agree() -> None:
    rng = np.random.default_rng(7)
    a = rng.uniform(-0.2, 1.2, size=(200, 2))
    b = a + rng.normal(size=(200, 2)) * 0.05
    stable, path, direct = LSHAPE.kl(a, b), LSHAPE.kl_path(a, b, nodes=24), LSHAPE.kl_direct(a, b)
    assert np.max(np.abs(stable / path - 1)) < 1e-13
    assert np.max(np.abs(stable - direct)) < 1e-12
    near = a + 1e-9
    assert np.max(np.abs(LSHAPE.kl(a, near) / LSHAPE.kl_path(a, near) - 1)) < 1e-7  # 1e-9 itself is rounded in a + 1e-9
    assert LSHAPE.kl(a[0], a[0]) == 0.0


def test_box_union_renyi_is_continuous_at_one_and_grows_with_order() -> None:
    kl = LSHAPE.kl(L_A, L_B)
    assert LSHAPE.renyi(L_A, L_B, 1.0) == kl
    for gap in (1e-4, 1e-8, 1e-12):
        for order in (1.0 - gap, 1.0 + gap):
            assert LSHAPE.renyi(L_A, L_B, order) == pytest.approx(kl, rel=2 * gap + 1e-13)
    values = [LSHAPE.renyi(L_A, L_B, order) for order in (1e-3, 0.1, 0.5, 0.9, 1.0, 1.1, 2.0, 8.0, 64.0)]
    assert values == sorted(values)
    # Order 1/2 is symmetric, and small orders vanish linearly.
    assert LSHAPE.renyi(L_A, L_B, 0.5) == pytest.approx(LSHAPE.renyi(L_B, L_A, 0.5), rel=1e-13)


def test_box_union_local_ratio_is_the_limit_of_kl_ratios() -> None:
    top = np.linalg.eigh(LSHAPE.covariance(L_A))[1][:, -1]
    far = np.array(L_A) + 1e-5 * top
    for order in (0.5, 1.0, 3.0):
        rate = LSHAPE.renyi(L_A, far, order) / (order * 1e-10 / (2 * 0.15**2))
        assert rate == pytest.approx(LSHAPE.local_ratio(L_A), rel=1e-3)
    assert LSHAPE.kl(L_A, far) > 0.5 * (1e-5 / 0.15) ** 2


def test_box_union_batches_equal_single_centers() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(3, 2, 2)), rng.normal(size=(3, 2, 2))
    for index in np.ndindex(3, 2):
        assert LSHAPE.occupancy(a)[index] == LSHAPE.occupancy(a[index])
        assert np.array_equal(LSHAPE.mean(a)[index], LSHAPE.mean(a[index]))
        assert LSHAPE.covariance(a)[index] == pytest.approx(LSHAPE.covariance(a[index]), rel=1e-14)
        assert np.array_equal(LSHAPE.label_masses(a, [1, 0])[index], LSHAPE.label_masses(a[index], [1, 0]))
        assert LSHAPE.kl(a, b)[index] == pytest.approx(LSHAPE.kl(a[index], b[index]), rel=1e-14)
        assert LSHAPE.kl(a[0, 0], b)[index] == pytest.approx(LSHAPE.kl(a[0, 0], b[index]), rel=1e-14)
        assert LSHAPE.renyi(a, b, 3.0)[index] == pytest.approx(LSHAPE.renyi(a[index], b[index], 3.0), rel=1e-14)
    assert isinstance(LSHAPE.occupancy(L_A), float)
    assert isinstance(LSHAPE.kl(L_A, L_B), float)


def test_box_union_whole_space_is_the_gaussian() -> None:
    space = BoxUnion([[-INF, -INF]], [[INF, INF]], 2.0)
    assert space.occupancy([3.0, -1.0]) == 1.0
    assert np.array_equal(space.covariance([3.0, -1.0]), 4.0 * np.eye(2))
    assert np.array_equal(space.mean([3.0, -1.0]), [3.0, -1.0])
    assert space.kl([0.0, 0.0], [1.0, 2.0]) == 5.0 / 8.0
    assert space.renyi([0.0, 0.0], [1.0, 2.0], 3.0) == pytest.approx(15.0 / 8.0, rel=1e-15)
    assert space.local_ratio([0.0, 0.0]) == 1.0


def test_box_union_labels_without_boxes_have_no_mass() -> None:
    logs = LSHAPE.log_label_masses(L_A, [3, 1])
    assert logs.shape == (4,)
    assert list(np.isneginf(logs)) == [True, False, True, False]
    assert LSHAPE.label_masses(L_A, [3, 1]).sum() == pytest.approx(LSHAPE.occupancy(L_A), rel=1e-14)


finite = st.floats(-5.0, 5.0)


@settings(max_examples=60, deadline=None)
@given(
    low=st.lists(finite, min_size=2, max_size=2),
    width=st.lists(st.floats(1e-6, 10.0), min_size=2, max_size=2),
    a=st.lists(st.floats(-40.0, 40.0), min_size=2, max_size=2),
    move=st.lists(st.floats(-2.0, 2.0), min_size=2, max_size=2),
    sigma=st.floats(0.2, 3.0),
    order=st.sampled_from([0.3, 1.0, 4.0]),
)
def test_box_union_convex_sets_keep_the_gaussian_rate(low, width, a, move, sigma, order) -> None:
    lows = np.array([low])
    union = BoxUnion(lows, lows + np.array([width]), sigma)
    b = np.array(a) + np.array(move)
    squared = float(((b - np.array(a)) ** 2).sum()) / sigma**2
    assert 0.0 <= union.renyi(a, b, order) <= order * squared / 2 * (1 + 1e-12)
    assert 0.0 < union.local_ratio(a) <= 1.0 + 1e-13


@settings(max_examples=40, deadline=None)
@given(cut=st.floats(0.05, 0.95), a=st.lists(st.floats(-9, 9), min_size=2, max_size=2), sigma=st.floats(0.2, 2.0))
def test_box_union_cutting_a_box_changes_nothing(cut, a, sigma) -> None:
    whole = BoxUnion([[0.0, 0.0]], [[1.0, 2.0]], sigma)
    pieces = BoxUnion([[0.0, 0.0], [cut, 0.0]], [[cut, 2.0], [1.0, 2.0]], sigma)
    b = np.array(a) + 0.37
    assert pieces.is_convex
    assert pieces.log_occupancy(a) == pytest.approx(whole.log_occupancy(a), rel=1e-13, abs=1e-13)
    assert pieces.covariance(a) == pytest.approx(whole.covariance(a), rel=1e-10, abs=1e-16)
    assert pieces.kl(a, b) == pytest.approx(whole.kl(a, b), rel=1e-10)


@settings(max_examples=40, deadline=None)
@given(shift=st.floats(-1e3, 1e3), scale=st.floats(0.1, 10.0), flip=st.booleans())
def test_box_union_follows_shifts_scales_and_reflections(shift, scale, flip) -> None:
    sign = -scale if flip else scale
    ends = np.sort(np.stack([sign * LSHAPE.lows + shift, sign * LSHAPE.highs + shift]), axis=0)
    moved = BoxUnion(ends[0], ends[1], 0.15 * scale)
    a, b = sign * np.array(L_A) + shift, sign * np.array(L_B) + shift
    tolerance = 1e-12 * (1 + abs(shift) / scale)
    assert moved.local_ratio(a) == pytest.approx(LSHAPE.local_ratio(L_A), rel=10 * tolerance)
    assert moved.kl(a, b) == pytest.approx(LSHAPE.kl(L_A, L_B), rel=100 * tolerance)


@pytest.mark.parametrize(
    ("lows", "highs", "sigma", "error", "message"),
    [
        ([[0.0]], [[0.0]], 1.0, ValueError, "`lows` must be below `highs`, got 0.0 and 0.0 for box 0, axis 0"),
        ([[1.0]], [[0.0]], 1.0, ValueError, "`lows` must be below"),
        ([[math.nan]], [[1.0]], 1.0, ValueError, "`lows` must not contain nan"),
        ([[0.0]], [[math.nan]], 1.0, ValueError, "`highs` must not contain nan"),
        ([[INF]], [[INF]], 1.0, ValueError, "`lows` must be below"),
        ([0.0], [1.0], 1.0, ValueError, "one shape"),
        ([[0.0]], [[1.0, 2.0]], 1.0, ValueError, "one shape"),
        ([[]], [[]], 1.0, ValueError, "one shape"),
        ([["0"]], [["1"]], 1.0, TypeError, "`lows` must be an array of real doubles"),
        ([[True]], [[2.0]], 1.0, TypeError, "real doubles"),
        ([[0.0]], [[1.0]], -1.0, ValueError, "`sigma` must be positive"),
        ([[0.0]], [[1.0]], 0.0, ValueError, "`sigma` must be positive"),
        ([[0.0]], [[1.0]], math.nan, ValueError, "`sigma`"),
        ([[0.0]], [[1.0]], INF, ValueError, "`sigma` must be finite"),
        ([[0.0], [5.0], [0.5]], [[1.0], [6.0], [2.0]], 1.0, ValueError, "boxes 0 and 2 overlap"),
        ([[-INF, 0.0], [0.0, -INF]], [[INF, 1.0], [1.0, INF]], 1.0, ValueError, "boxes 0 and 1 overlap"),
    ],
)
def test_box_union_refuses_bad_boxes(lows, highs, sigma, error, message) -> None:
    with pytest.raises(error, match=message):
        BoxUnion(lows, highs, sigma)


@pytest.mark.parametrize(
    ("center", "error", "message"),
    [
        ([math.nan, 0.0], ValueError, "must not contain nan"),
        ([INF, 0.0], ValueError, "must be finite"),
        ([0.0], ValueError, r"must have shape \[..., 2\]"),
        (0.0, ValueError, "must have shape"),
        (["0", "1"], TypeError, "real doubles"),
        ([1j, 0], TypeError, "real doubles"),
        (None, TypeError, "real doubles"),
    ],
)
@pytest.mark.parametrize("method", ["occupancy", "log_occupancy", "mean", "covariance", "local_ratio"])
def test_box_union_refuses_bad_centers(method, center, error, message) -> None:
    with pytest.raises(error, match=message):
        getattr(LSHAPE, method)(center)
    with pytest.raises(error, match=message):
        LSHAPE.kl(L_A, center)
    with pytest.raises(error, match=message):
        LSHAPE.event_holds(center, L_B)


def test_box_union_refuses_bad_labels_orders_and_pairs() -> None:
    for labels, error in (([0], ValueError), ([0, 1, 1], ValueError), ([0, -1], ValueError), ([0.0, 1.0], TypeError)):
        with pytest.raises(error, match="`labels`"):
            LSHAPE.label_masses(L_A, labels)
    for order in (0.0, -1.0, math.nan, INF):
        with pytest.raises(ValueError, match="`order`"):
            LSHAPE.renyi(L_A, L_B, order)
    with pytest.raises(ValueError, match="must broadcast"):
        LSHAPE.kl(np.zeros((3, 2)), np.zeros((2, 2)))
    with pytest.raises(ValueError, match="single centers"):
        LSHAPE.event_margin(np.zeros((3, 2)), L_B)


def test_box_union_is_frozen() -> None:
    lows = np.zeros((1, 1))
    union = BoxUnion(lows, [[1.0]], 1.0)
    lows[0, 0] = 0.5
    assert union.lows[0, 0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        union.lows[0, 0] = 3.0
    with pytest.raises(AttributeError):
        union.sigma = 2.0


def test_box_union_accepts_empty_batches_and_refuses_what_cannot_be_squared() -> None:
    none = np.zeros((0, 2))
    assert LSHAPE.kl(none, none).shape == LSHAPE.local_ratio(none).shape == (0,)
    assert LSHAPE.covariance(none).shape == (0, 2, 2)
    assert LSHAPE.label_masses(none, [0, 1]).shape == (0, 2)
    with pytest.raises(OverflowError, match="farther than doubles can square"):
        LSHAPE.kl([1e200, 0.0], [0.0, 0.0])


def test_box_union_shares_from_a_million_sigma_keep_their_digits() -> None:
    """Two boxes on one side: log shares differ by distance times gap, which squared distances would drown."""
    union = BoxUnion([[0.0], [2e-6]], [[1e-6], [3e-6]], 1.0)
    with mp.workdps(60):
        # Far away the density is exponential: exp(-1e6 z - z^2 / 2) on both boxes.
        masses = [mp.quad(lambda z: mp.exp(-(10**6) * z - z * z / 2), [lo, hi]) for lo, hi in ((0, 1e-6), (2e-6, 3e-6))]
        expected = float(mp.log(masses[1] / mp.fsum(masses)))
    assert union.log_box_shares([-1e6])[1] == pytest.approx(expected, rel=1e-12)
