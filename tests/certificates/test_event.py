"""The ordered-pair event criterion: verdicts against brute force over thresholds, in one and two dimensions."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from ccfs.certificates._boxes import is_one_box
from ccfs.certificates._event import _convolved
from ccfs.certificates.occupancy import BoxUnion, EventVerdict

pytestmark = pytest.mark.slow
INF = math.inf
LSHAPE = BoxUnion([[0.0, 0.0], [0.0, 0.5]], [[1.0, 0.5], [0.5, 1.0]], 0.15)
L_A, L_B = [0.65, 0.49], [0.66, 0.49]
CONFIDENCE = BoxUnion([[-INF], [1.0]], [[-1.0], [INF]], 1.0)
TWO_BAND = BoxUnion([[-INF, -1.0], [-INF, 0.9]], [[INF, -0.9], [INF, 1.0]], 1.0)


def _slack_on_a_line(union: BoxUnion, a: float, b: float, thresholds: np.ndarray) -> np.ndarray:
    """Slack of eq:event-probit-criterion by plain CDF differences, for one dimension and moderate tails only."""
    rho = abs(b - a) / union.sigma

    def below(c: float) -> np.ndarray:
        cut = np.clip(thresholds[:, None], union.lows[:, 0], union.highs[:, 0])
        if b < a:
            inside = ndtr((union.highs[:, 0] - c) / union.sigma) - ndtr((cut - c) / union.sigma)
        else:
            inside = ndtr((cut - c) / union.sigma) - ndtr((union.lows[:, 0] - c) / union.sigma)
        return inside.sum(axis=1) / union.occupancy([c])

    with np.errstate(all="ignore"):
        slack = ndtri(below(b)) - ndtri(below(a)) + rho
    keep = np.isfinite(slack) & (below(a) > 1e-9) & (below(a) < 1 - 1e-9) & (below(b) > 1e-9) & (below(b) < 1 - 1e-9)
    return slack[keep]


def test_event_criterion_fails_on_the_lshape_where_the_paper_says() -> None:
    result = LSHAPE.event_comparison(L_A, L_B)
    assert result.verdict is EventVerdict.FAILS
    assert not LSHAPE.event_holds(L_A, L_B)
    # The paper's event, left of 0.633, has Q_a = 0.527476587... and Q_b = 0.498885133... Some halfspace is as bad.
    paper = ndtri(0.498885133) - ndtri(0.527476588) + 1.0 / 15.0
    assert paper < 0.0
    assert result.margin_lower <= LSHAPE.event_margin(L_A, L_B) <= paper
    assert result.margin_upper - result.margin_lower < 1e-7


def test_event_criterion_fails_for_the_confidence_filter_and_across_the_bands() -> None:
    assert CONFIDENCE.event_margin([-0.1], [0.01]) < -0.09
    assert not CONFIDENCE.event_holds([-0.1], [0.01])
    assert TWO_BAND.event_margin([0.0, -0.1], [0.0, 0.01]) < -0.02
    # Along the bands nothing is lost, and across them although the KL rate holds everywhere.
    assert TWO_BAND.event_holds([0.0, -0.1], [5.0, -0.1])
    assert TWO_BAND.event_comparison([0.0, -0.1], [0.1, 0.01]).verdict is EventVerdict.FAILS
    assert TWO_BAND.kl([0.0, -0.1], [0.0, 0.01]) <= 0.5 * 0.11**2


def test_event_criterion_does_not_depend_on_the_order_of_the_pair() -> None:
    for a, b in ((L_A, L_B), ([0.2, 0.1], [0.9, 0.1]), ([0.65, 0.49], [0.7, 0.6])):
        one, other = LSHAPE.event_comparison(a, b), LSHAPE.event_comparison(b, a)
        assert one.verdict is other.verdict
        assert one.margin_upper == pytest.approx(other.margin_upper, abs=1e-4)


def test_event_criterion_at_equal_centers_holds() -> None:
    assert LSHAPE.event_holds(L_A, L_A)
    assert LSHAPE.event_margin(L_A, L_A) == 0.0


@settings(max_examples=30, deadline=None)
@given(
    low=st.lists(st.floats(-3, 3), min_size=1, max_size=3),
    width=st.floats(1e-3, 5.0),
    move=st.lists(st.floats(-1.5, 1.5), min_size=3, max_size=3),
    distance=st.floats(0.0, 40.0),
    unbounded=st.booleans(),
)
def test_event_criterion_holds_for_every_convex_box(low, width, move, distance, unbounded) -> None:
    lows = np.array([low])
    highs = lows + width
    if unbounded:
        highs[0, 0] = INF
    union = BoxUnion(lows, highs, 0.8)
    a = lows[0] - distance
    b = a + np.array(move[: union.dim])
    assert union.event_holds(a, b)
    assert union.event_margin(a, b) >= 0.0


@settings(max_examples=60, deadline=None)
@given(
    ends=st.lists(st.floats(-4, 4), min_size=4, max_size=6, unique=True),
    a=st.floats(-4, 4),
    move=st.floats(-1.5, 1.5),
    sigma=st.floats(0.3, 2.0),
)
def test_event_criterion_matches_brute_force_on_the_line(ends, a, move, sigma) -> None:
    ends = np.sort(ends)[: len(ends) // 2 * 2]
    assume(np.min(np.diff(ends)) > 0.02)
    assume(abs(move) > 0.02)
    union = BoxUnion(ends[::2, None], ends[1::2, None], sigma)
    result = union.event_comparison([a], [a + move])
    points = np.unique(np.concatenate([np.linspace(ends[0], ends[-1], 4001), ends]))
    brute = _slack_on_a_line(union, a, a + move, points)
    assume(brute.size > 100)
    assert result.margin_lower <= brute.min() + 1e-6
    if result.verdict is EventVerdict.HOLDS:
        assert brute.min() > -1e-6
    if result.verdict is EventVerdict.FAILS:
        assert result.margin_upper < 0.0
    assert result.margin_upper - result.margin_lower < 1e-6


def test_event_criterion_margin_is_attained_on_the_line() -> None:
    union = BoxUnion([[0.0], [2.0]], [[1.0], [2.5]], 0.7)
    for a, b in ((0.5, 0.9), (1.5, 1.4), (-1.0, -0.2), (1.4, 2.0)):
        points = np.concatenate([np.linspace(0, 1, 100_001), np.linspace(2, 2.5, 100_001)])
        brute = _slack_on_a_line(union, a, b, points).min()
        assert union.event_margin([a], [b]) == pytest.approx(brute, abs=1e-7)


def test_event_criterion_far_tail_matches_fifty_digits() -> None:
    lows, highs, a, b = [0.0, 0.06], [0.03, 1.0], -41.0, -40.8
    result = BoxUnion([[x] for x in lows], [[x] for x in highs], 1.0).event_comparison([a], [b])
    with mp.workdps(50):

        def mass(c: float, start: float, stop: float) -> mp.mpf:
            return (mp.erfc((mp.mpf(start) - c) / mp.sqrt(2)) - mp.erfc((mp.mpf(stop) - c) / mp.sqrt(2))) / 2

        def below(c: float, t: float) -> mp.mpf:
            parts = [mass(c, x, min(max(t, x), y)) for x, y in zip(lows, highs, strict=True)]
            return mp.fsum(parts) / mp.fsum(mass(c, x, y) for x, y in zip(lows, highs, strict=True))

        thresholds = [*np.linspace(0.0005, 0.03, 60), *np.linspace(0.0605, 0.95, 120)]
        exact = [float(_normal_quantile(below(b, t)) - _normal_quantile(below(a, t))) + (b - a) for t in thresholds]
    assert result.margin_lower <= min(exact) + 1e-9
    assert result.margin_upper == pytest.approx(min(exact), abs=1e-3)


def _normal_quantile(p: mp.mpf) -> mp.mpf:
    return mp.sqrt(2) * mp.erfinv(2 * p - 1)


@pytest.mark.parametrize(
    ("lows", "highs", "a", "b"),
    [
        ([-INF, 0.0], [-1.0, 1.0], 0.2, 0.5),
        ([-INF, 0.0], [-1.0, 1.0], 0.5, 0.2),
        ([-INF, 0.0], [-1.0, 1.0], -3.0, -2.5),
        ([0.0, 2.0], [1.0, INF], 0.5, 0.8),
        ([0.0, 2.0], [1.0, INF], 3.0, 3.5),
        ([0.0, 2.0], [1.9, INF], -2.0, -1.5),
        ([0.0, 2.0], [1.9, INF], 4.0, 3.0),
    ],
)
def test_event_criterion_unbounded_tails_match_fifty_digits(lows, highs, a, b) -> None:
    """The tail lemma is checked where the slack is of order 1 / |t|, with thresholds out to 200 sigma."""
    union = BoxUnion([[x] for x in lows], [[x] for x in highs], 1.0)
    result = union.event_comparison([a], [b])
    low, high = (a, b) if a < b else (b, a)  # the criterion is symmetric in the pair
    worst = INF
    with mp.workdps(60):
        inner = [x for x in (*lows, *highs) if math.isfinite(x)]
        tail = [min(inner) - 2.0**k for k in range(8)] if min(lows) == -INF else [max(inner) + 2.0**k for k in range(8)]
        for t in [*np.linspace(min(inner), max(inner), 80), *tail]:
            below, above = [], []
            for c in (low, high):
                parts = [_part(c, x, min(max(t, x), y)) for x, y in zip(lows, highs, strict=True)]
                rest = [_part(c, max(t, x), max(t, y)) for x, y in zip(lows, highs, strict=True)]
                total = mp.fsum(parts) + mp.fsum(rest)
                below.append(mp.fsum(parts) / total)
                above.append(mp.fsum(rest) / total)
            if min(*below, *above) > 0:
                quantiles = [_log_quantile(p, q) for p, q in zip(below, above, strict=True)]
                worst = min(worst, float(quantiles[1] - quantiles[0]) + high - low)
    if result.verdict is EventVerdict.HOLDS:
        assert worst > -1e-12
    else:
        assert result.verdict is EventVerdict.FAILS
        assert worst < 0.0
    assert result.margin_upper <= worst + 1e-3


def _part(c: float, start: float, stop: float) -> mp.mpf:
    x, y = ((mp.mpf(v) - c) / mp.sqrt(2) for v in (start, stop))
    return (mp.erfc(x) - mp.erfc(y)) / 2 if x > 0 else (mp.erfc(-y) - mp.erfc(-x)) / 2


def _log_quantile(below: mp.mpf, above: mp.mpf) -> mp.mpf:
    """Normal quantile by Newton steps on log Phi, for probabilities as small as exp(-20000)."""
    small = min(below, above)
    x = -mp.sqrt(-2 * mp.log(small)) if small < mp.mpf("1e-5") else mp.mpf(float(ndtri(float(small))))
    for _ in range(60):
        value = mp.erfc(-x / mp.sqrt(2)) / 2
        step = (mp.log(value) - mp.log(small)) * value / (mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi))
        x -= step
        if abs(step) < mp.mpf("1e-40"):
            break
    return x if below <= above else -x


def _planar_slack(union: BoxUnion, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Slack along a slanted direction in the plane: lines cut boxes in intervals, so the projected density is exact."""
    u = (b - a) / np.linalg.norm(b - a)
    v = np.array([-u[1], u[0]])
    rho = np.linalg.norm(b - a) / union.sigma
    boxes = list(zip(union.lows, union.highs, strict=True))
    corners = [[x, y] for lo, hi in boxes for x in (lo[0], hi[0]) for y in (lo[1], hi[1])]
    kinks = np.unique((np.array(corners) - a) @ u / union.sigma)
    nodes, weights = np.polynomial.legendre.leggauss(12)
    edges = np.unique(np.concatenate([np.linspace(p, q, 100) for p, q in itertools.pairwise(kinks)]))
    half = 0.5 * np.diff(edges)
    x = edges[:-1, None] + half[:, None] * (1 + nodes)
    section = np.zeros_like(x)
    for lo, hi in zip(union.lows, union.highs, strict=True):
        start, stop = np.full(x.shape, -INF), np.full(x.shape, INF)
        for axis in range(2):
            base = a[axis] + union.sigma * x * u[axis]
            ends = np.sort(np.stack([(lo[axis] - base) / v[axis], (hi[axis] - base) / v[axis]]) / union.sigma, axis=0)
            start, stop = np.maximum(start, ends[0]), np.minimum(stop, ends[1])
        mass = np.where(start > 0.0, ndtr(-start) - ndtr(-stop), ndtr(stop) - ndtr(start))
        section += np.where(stop > start, mass, 0.0)
    quantiles = []
    for c in (0.0, rho):
        cells = (section * np.exp(-0.5 * (x - c) ** 2) * weights).sum(axis=1) * half
        below, above = np.cumsum(cells)[:-1] / cells.sum(), np.cumsum(cells[::-1])[::-1][1:] / cells.sum()
        quantiles.append(np.where(below < 0.5, ndtri(below), -ndtri(above)))
    return quantiles[1] - quantiles[0] + rho


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([0.65, 0.49], [0.66, 0.48]),
        ([0.65, 0.49], [0.64, 0.52]),
        ([0.6, 0.6], [0.62, 0.55]),
        ([0.3, 0.3], [0.5, 0.45]),
        ([0.55, 0.75], [0.75, 0.55]),
        ([0.9, 0.9], [1.0, 0.7]),
        ([1.2, 0.1], [1.1, 0.2]),
    ],
)
def test_event_criterion_in_slanted_directions_matches_planar_quadrature(a, b) -> None:
    result = LSHAPE.event_comparison(a, b)
    brute = _planar_slack(LSHAPE, np.array(a), np.array(b)).min()
    assert result.margin_lower <= brute + 1e-9
    assert result.margin_upper >= brute - 1e-4
    if result.verdict is EventVerdict.HOLDS:
        assert brute > 0.0
    if result.verdict is EventVerdict.FAILS:
        assert brute < 0.0
    assert result.verdict is not EventVerdict.UNDECIDED or abs(brute) < 1e-3


def test_event_criterion_slanted_verdicts_are_both_seen() -> None:
    assert LSHAPE.event_comparison([0.65, 0.49], [0.66, 0.48]).verdict is EventVerdict.FAILS
    assert LSHAPE.event_comparison([0.3, 0.3], [0.5, 0.45]).verdict is EventVerdict.HOLDS


def test_event_criterion_turns_continuously_from_axis_to_slanted() -> None:
    """Two independent methods: an exactly axis-parallel move, and one with a tiny second component on the lattice."""
    axis = LSHAPE.event_comparison(L_A, L_B)
    slanted = LSHAPE.event_comparison(L_A, [L_B[0], L_B[1] + 1e-9])
    assert slanted.verdict is axis.verdict
    assert slanted.margin_lower <= axis.margin_upper + 1e-7
    assert slanted.margin_upper == pytest.approx(axis.margin_upper, abs=1e-4)


@pytest.mark.parametrize("dim", [3, 8])
def test_event_criterion_in_many_dimensions_is_exact_on_products(dim: int) -> None:
    """K = L times a box: a move in the plane of the L has the same slack whatever the other axes are."""
    lows = np.hstack([LSHAPE.lows, np.zeros((2, dim - 2))])
    union = BoxUnion(lows, np.hstack([LSHAPE.highs, np.ones((2, dim - 2))]), 0.15)
    a, b = np.full(dim, 0.4), np.full(dim, 0.4)
    a[:2], b[:2] = [0.65, 0.49], [0.66, 0.48]
    flat = LSHAPE.event_comparison(a[:2], b[:2])
    full = union.event_comparison(a, b)
    assert full.verdict is EventVerdict.FAILS
    assert full.margin_upper == pytest.approx(flat.margin_upper, abs=1e-9)
    b[2:] += 0.01
    both = union.event_comparison(a, b)
    assert both.margin_lower <= both.margin_upper
    assert both.verdict is not EventVerdict.HOLDS or both.margin > 0.0


def test_event_criterion_stays_undecided_where_the_tails_are_open() -> None:
    """The plane without a square far away: the slack tends to 0 in the tails of a slanted direction."""
    plane = BoxUnion(
        [[-INF, -INF], [1.0, -INF], [0.0, 1.0], [0.0, -INF]],
        [[0.0, INF], [INF, INF], [1.0, INF], [1.0, 0.0]],
        1.0,
    )
    assert not plane.is_convex
    result = plane.event_comparison([30.0, 30.0], [30.5, 30.3])
    assert result.verdict is EventVerdict.UNDECIDED
    assert not plane.event_holds([30.0, 30.0], [30.5, 30.3])
    assert plane.event_comparison([0.5, 0.5], [0.9, 0.8]).verdict is not EventVerdict.HOLDS


def test_event_criterion_numbers_are_deterministic() -> None:
    pair = ([0.3, 0.3], [0.5, 0.45])
    assert LSHAPE.event_comparison(*pair) == LSHAPE.event_comparison(*pair)


def test_is_one_box_recognises_tilings_exactly() -> None:
    pinwheel = (
        np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 2.0], [0.0, 1.0], [1.0, 1.0]]),
        np.array([[2.0, 1.0], [3.0, 2.0], [3.0, 3.0], [1.0, 3.0], [2.0, 2.0]]),
    )
    assert is_one_box(*pinwheel)
    assert not is_one_box(pinwheel[0][:4], pinwheel[1][:4])
    assert is_one_box(np.array([[-INF], [0.0]]), np.array([[0.0], [INF]]))
    assert not is_one_box(np.array([[-INF], [1e-300]]), np.array([[0.0], [INF]]))
    union = BoxUnion(*pinwheel, 0.5)
    assert union.event_holds([0.0, 0.0], [1.0, 0.7])


def test_lattice_convolution_encloses_the_direct_one_in_the_tails() -> None:
    """np.convolve of positive numbers has full relative accuracy, down to masses of 1e-300."""
    step, x = 0.02, 0.02 * np.arange(1000)
    pieces = []
    for center, stop in ((4.0, 700), (9.0, 1000), (0.0, 300)):
        piece = -0.5 * (x[:stop] - center) ** 2
        pieces.append(piece - np.logaddexp.reduce(piece))
    direct = np.convolve(np.convolve(np.exp(pieces[0]), np.exp(pieces[1])), np.exp(pieces[2]))
    lower, upper = _convolved(pieces, step)
    assert np.all(lower <= np.log(direct) + 1e-12)
    assert np.all(upper >= np.log(direct) - 1e-12)
    bulk = direct > 1e-60
    assert bulk.sum() > 1500
    assert np.max((upper - lower)[bulk]) < 1e-2


@pytest.mark.parametrize("sigma", [0.15, 0.06, 0.03])
def test_event_criterion_decides_wide_sets_in_slanted_directions(sigma: float) -> None:
    union = BoxUnion(LSHAPE.lows, LSHAPE.highs, sigma)
    # Deep inside, the smaller sigma the more the L looks like the plane, whose slack is exactly 0.
    deep = union.event_comparison([0.25, 0.25], [0.25 + 0.2 * sigma, 0.25 + 0.1 * sigma])
    assert deep.verdict is (EventVerdict.HOLDS if sigma == 0.15 else EventVerdict.UNDECIDED)
    assert deep.margin_lower <= deep.margin_upper
    near = union.event_comparison([0.55, 0.55], [0.55 + 0.05 * sigma, 0.55 - 0.05 * sigma])
    assert near.verdict is EventVerdict.FAILS


@pytest.mark.parametrize("seed", range(8))
def test_event_criterion_brackets_planar_quadrature_on_random_sets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ends = np.cumsum(rng.uniform(0.05, 1.0, size=4)) - 1.0
    lows = np.stack([ends[::2], rng.normal(size=2)], axis=1)
    highs = np.stack([ends[1::2], lows[:, 1] + rng.uniform(0.1, 2.0, size=2)], axis=1)
    sigma = float(rng.choice([0.15, 0.4, 1.0]))
    a = rng.normal(size=2)
    b = a + rng.normal(size=2) * sigma * rng.choice([0.05, 0.3, 1.0])
    union = BoxUnion(lows, highs, sigma)
    result = union.event_comparison(a, b)
    with np.errstate(all="ignore"):
        slack = _planar_slack(union, a, b)
    least = slack[np.isfinite(slack)].min()
    assert result.margin_lower <= least + 1e-8
    assert result.margin_upper >= least - 1e-3
    assert result.verdict is not EventVerdict.HOLDS or least > 0.0
    assert result.verdict is not EventVerdict.FAILS or least < 0.0
