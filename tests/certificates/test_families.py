"""Families of disturbances: closed forms by quadrature, random walks that are exact by recursion, refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from flint import arb
from hypothesis import given
from hypothesis import strategies as st

from ccfs.certificates import families
from ccfs.certificates.binomial import cohort_lower
from ccfs.certificates.documents import CertificateError
from ccfs.certificates.families import (
    SLACK,
    FamilyCertificate,
    certify_family,
    drop_lower,
    drop_upper,
    shifted_failure_lower,
    shifted_failure_upper,
)
from ccfs.certificates.gaussian import event_lower, event_upper
from ccfs.certificates.trajectory import PREMISES
from ccfs.certificates.validated import lower_float, precision, upper_float


def phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


@dataclass(frozen=True)
class Walk:
    """A walk on the integers. It moves up when a normal draw around its center is positive, and ends at `wall`.

    The disturbance adds `feature(position)` times theta to the center. The failure probability under theta is exact by
    recursion over positions. A trial that meets the wall ends, so energies differ between trials.
    """

    steps: int
    wall: int
    center: Callable[[int], float]
    feature: Callable[[int], float]

    def failure(self, theta: float) -> float:
        law, failed = {0: 1.0}, 0.0
        for _ in range(self.steps):
            grown: dict[int, float] = {}
            for place, mass in law.items():
                up = phi(self.center(place) + theta * self.feature(place))
                for move, chance in ((1, up), (-1, 1.0 - up)):
                    if place + move == self.wall:
                        failed += mass * chance
                    else:
                        grown[place + move] = grown.get(place + move, 0.0) + mass * chance
            law = grown
        return failed

    def trials(self, number: int, rng: np.random.Generator):
        """Nominal trials: whether the wall was avoided, S and Q."""
        held, scores, energies = np.ones(number, dtype=bool), np.zeros(number), np.zeros(number)
        for i in range(number):
            place = 0
            for noise in rng.standard_normal(self.steps):
                feature = self.feature(place)
                scores[i] += feature * noise
                energies[i] += feature * feature
                place += 1 if self.center(place) + noise > 0.0 else -1
                if place == self.wall:
                    held[i] = False
                    break
        return held, scores, energies


BIAS = Walk(steps=30, wall=8, center=lambda place: 0.0, feature=lambda place: 1.0)
# The controller pulls back to 0. The disturbance is an error of its gain.
GAIN = Walk(
    steps=30,
    wall=5,
    center=lambda place: -0.3 * float(np.sign(place)),
    feature=lambda place: -0.3 * float(np.sign(place)),
)


def certified(walk: Walk, box: float, cells: int, seed: int, number: int = 1500, **options) -> FamilyCertificate:
    held, scores, energies = walk.trials(number, np.random.default_rng(seed))
    greatest = max(walk.feature(place) ** 2 for place in range(-walk.steps, walk.wall))
    arguments = {"delta": 0.001, "family": 1, "sampling": "law", "name": "test", **options}
    return certify_family(
        held,
        scores[:, None],
        energies[:, None, None],
        box=[(-box, box)],
        ceiling=[[walk.steps * greatest]],
        cells=[cells],
        **arguments,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("walk", "box", "gain"), [(BIAS, 0.15, 1.0), (GAIN, 0.6, 1.5)])
def test_family_is_never_above_the_exact_probability_of_a_random_walk(walk: Walk, box: float, gain: float) -> None:
    """Four runs at delta = 0.001: a false alarm has probability below 0.01, and seeds are fixed."""
    truth = 1.0 - max(walk.failure(theta) for theta in np.linspace(-box, box, 41))
    for seed in range(4):
        proof = certified(walk, box, 11, seed)
        assert proof.lower is not None
        assert proof.lower <= truth
        nominal = cohort_lower(sum(proof.held), len(proof.held), delta=0.001)
        alone = event_lower(nominal, box * math.sqrt(proof.ceiling[0][0]))
        # Theorem 14 for the whole box loses more, all the more if the disturbance is not aimed at failing.
        assert truth - proof.lower < (truth - alone) / gain


def test_walks_agree_with_their_own_simulation() -> None:
    """The oracle against trials that were really disturbed: within 5 standard errors, a false alarm below 1e-5."""
    for walk, theta in ((BIAS, 0.15), (GAIN, -0.6)):
        shifted = Walk(walk.steps, walk.wall, lambda p, w=walk, t=theta: w.center(p) + t * w.feature(p), walk.feature)
        held, _, _ = shifted.trials(2000, np.random.default_rng(9))
        truth = walk.failure(theta)
        assert abs((~held).mean() - truth) < 5.0 * math.sqrt(truth / 2000)


@pytest.mark.slow
@pytest.mark.parametrize("theta", [-0.15, 0.05, 0.15])
def test_shifted_failure_bounds_enclose_the_exact_probability(theta: float) -> None:
    truth, mu = BIAS.failure(theta), abs(theta) * math.sqrt(BIAS.steps)
    widths = []
    for seed in range(3):
        held, scores, energies = BIAS.trials(3000, np.random.default_rng(100 + seed))
        arguments = (held, theta * scores - 0.5 * theta**2 * energies, theta**2 * energies)
        low = shifted_failure_lower(*arguments, mu=mu + 1e-9, delta=0.001)
        high = shifted_failure_upper(*arguments, mu=mu + 1e-9, delta=0.001)
        assert low <= truth <= high
        widths.append(high - low)
        least = drop_lower(*arguments, mu=mu + 1e-9, delta=0.001)
        most = drop_upper(*arguments, mu=mu + 1e-9, delta=0.001)
        assert least <= truth - BIAS.failure(0.0) <= most
        assert most - least < 0.15
    assert max(widths) < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("edge", [-0.5, 1.0, 2.5])
@pytest.mark.parametrize("shift", [-1.2, 0.4, 1.2])
@pytest.mark.parametrize("tau", [1.0, 3.0, 20.0])
def test_weights_and_excess_bound_the_shifted_probability_by_quadrature(edge, shift, tau) -> None:
    """One normal draw that fails above `edge`: E[1 W] + excess >= P_shifted >= E[1 W], with and without padding."""
    with mpmath.workdps(20):
        truth = mpmath.ncdf(shift - edge)
        for extra in (0.0, 0.7):
            limit = Fraction(shift) ** 2 + Fraction(extra) ** 2

            def weight(z, extra=extra) -> mpmath.mpf:
                log = shift * z - mpmath.mpf(shift) ** 2 / 2
                if not extra:
                    return min(mpmath.exp(log), mpmath.mpf(tau))
                ahead, room = mpmath.log(tau) - log, mpmath.mpf(extra) ** 2
                low = mpmath.ncdf((ahead - room / 2) / extra)
                return mpmath.exp(log) * low + tau * mpmath.ncdf(-(ahead + room / 2) / extra)

            kink = (mpmath.log(tau) + mpmath.mpf(shift) ** 2 / 2) / shift
            points = sorted({mpmath.mpf(edge), *(p for p in (kink, mpmath.mpf(3)) if edge < p < 12), mpmath.mpf(12)})
            mean = mpmath.quad(lambda z: weight(z) * mpmath.npdf(z), points)
            with precision():
                excess = families._excess(limit, tau)
                assert mean <= truth + mpmath.mpf(10) ** -12
                assert mean + mpmath.mpf(upper_float(excess)) >= truth - mpmath.mpf(10) ** -12


def exact_weight(log: float, room: float, tau: float) -> mpmath.mpf:
    """E min(L', tau) by its closed form at the working digits."""
    ratio = mpmath.exp(mpmath.mpf(log))
    if room == 0.0:
        return min(ratio, mpmath.mpf(tau))
    ahead, spread = mpmath.log(mpmath.mpf(tau)) - mpmath.mpf(log), mpmath.sqrt(mpmath.mpf(room))
    low = mpmath.ncdf((ahead - mpmath.mpf(room) / 2) / spread)
    return ratio * low + mpmath.mpf(tau) * mpmath.ncdf(-(ahead + mpmath.mpf(room) / 2) / spread)


def test_exact_weight_is_the_mean_of_the_truncated_padded_ratio() -> None:
    """Oracle of the oracle: quadrature over the padding."""
    with mpmath.workdps(20):
        for log, room, tau in ((0.3, 0.5, 3.0), (2.0, 1.5, 3.0), (-4.0, 2.0, 10.0)):
            spread = mpmath.sqrt(room)
            kink = (mpmath.log(tau) - log + mpmath.mpf(room) / 2) / spread
            mean = mpmath.quad(
                lambda z, log=log, room=room, tau=tau, spread=spread: (
                    min(mpmath.exp(log + spread * z - mpmath.mpf(room) / 2), mpmath.mpf(tau)) * mpmath.npdf(z)
                ),
                [-15, kink, 15],
            )
            assert abs(mean - exact_weight(log, room, tau)) < 1e-12


@given(st.floats(-30.0, 30.0), st.floats(1e-6, 9.0), st.sampled_from([1.0, 3.0, 10.0, 250.0]))
def test_weights_are_above_the_truth_at_60_digits_and_close(log: float, room: float, tau: float) -> None:
    side = families._Side(np.array([log]), np.array([0.0]))
    with precision():
        (found,) = families._Weights(tau, 9.0).upper(side.ratios(SLACK), np.array([room]))
    with mpmath.workdps(60):
        truth = exact_weight(log, room, tau)
        assert found >= truth
        assert found <= min(mpmath.exp(mpmath.mpf(log) + SLACK) * (1 + mpmath.mpf(10) ** -15), tau)
        # Close means 3%: the room is rounded down to a grid, and tangents touch nearby.
        assert found <= truth * 1.03


@given(st.floats(-30.0, 30.0), st.floats(1e-6, 9.0), st.sampled_from([0.0, 1.0, 3.0, 10.0, 250.0]))
def test_excess_of_a_trial_is_below_the_truth_at_60_digits_and_close(log: float, room: float, tau: float) -> None:
    """V = L - W, the mean of what the padded ratio has above tau."""
    side = families._Side(np.array([log]), np.array([0.0]))
    with precision():
        (found,) = families._Weights(tau, 9.0).excess_lower(side.ratios(-SLACK), np.array([room]))
    with mpmath.workdps(60):
        ratio = mpmath.exp(mpmath.mpf(log))
        truth = ratio - (exact_weight(log, room, tau) if tau else 0)
        assert 0.0 <= found <= truth
        assert found >= truth - (ratio - truth) * 0.03 - ratio * mpmath.mpf(2) ** -28


def test_ratios_beyond_all_doubles_stay_on_the_safe_side() -> None:
    side = families._Side(np.array([-1e4, -599.0, 0.0, 1e4]), np.zeros(4))
    above, below = side.ratios(SLACK), side.ratios(-SLACK)
    assert below[0] == 0.0 < above[0]
    assert 0.0 < below[1] < above[1]
    assert below[2] < 1.0 < above[2]
    assert below[3] > 1e200


def test_weights_without_room_are_the_smaller_one_of_ratio_and_truncation() -> None:
    with precision():
        found = families._Weights(3.0, 1.0).upper(np.array([0.0, 0.5, 3.0, 1e200]), np.zeros(4))
        rest = families._Weights(3.0, 1.0).excess_lower(np.array([0.0, 0.5, 3.0, 8.0]), np.zeros(4))
    assert found.tolist() == [0.0, 0.5, 3.0, 3.0]
    assert rest.tolist() == pytest.approx([0.0, 0.0, 0.0, 5.0], rel=1e-14)
    assert rest[3] <= 5.0


@given(st.floats(1e-3, 5.0), st.sampled_from([1.0, 3.0, 10.0, 250.0]))
def test_excess_encloses_the_truth_at_60_digits(mu: float, tau: float) -> None:
    with precision():
        ball = families._excess(Fraction(mu) ** 2, tau)
        low, high = lower_float(ball), upper_float(ball)
    with mpmath.workdps(60):
        size = mpmath.mpf(mu)
        d = (size**2 / 2 - mpmath.log(mpmath.mpf(tau))) / size
        assert low <= mpmath.ncdf(d) - tau * mpmath.ncdf(d - size) <= high
        assert families._excess(Fraction(0), tau) == arb(0)


@given(st.floats(-5.0, 5.0), st.floats(0.01, 4.0), st.floats(0.0, 3.0))
def test_weights_grow_with_the_ratio_and_fall_with_the_room(log: float, room: float, more: float) -> None:
    """What makes the slack safe: a larger ratio and a smaller room give a larger weight."""
    with mpmath.workdps(40):
        assert exact_weight(log + more, room, 3.0) >= exact_weight(log, room, 3.0)
        assert exact_weight(log, room + more, 3.0) <= exact_weight(log, room, 3.0)


def test_without_disturbance_the_family_is_nearly_the_nominal_bound() -> None:
    held = np.repeat([True, False], [900, 100])
    proof = certify_family(
        held,
        np.zeros((1000, 1)),
        np.zeros((1000, 1, 1)),
        name="none",
        box=[(0.0, 0.0)],
        ceiling=[[1.0]],
        cells=[1],
        delta=0.01,
        family=1,
        sampling="law",
    )
    assert proof.gap == 0.0
    assert proof.worst == (0.0,)
    assert proof.lower == cohort_lower(900, 1000, delta=0.01 / 5)
    assert proof.size == 0.0
    upper = shifted_failure_upper(held, [0.0] * 1000, [0.0] * 1000, mu=0.0, delta=0.01)
    assert 1.0 - upper <= proof.lower


def test_gap_covers_the_corners_of_every_cell() -> None:
    """Exactly: every point of the box lies in a cell whose center it differs from by at most `gap` in energy."""
    box, cells = ((-0.3, 0.7), (0.1, 0.1), (-1.0, 1 / 3)), (3, 1, 7)
    ceiling = np.array([[2.0, -0.5, 0.25], [-0.5, 3.0, 0.0], [0.25, 0.0, 1.0]])
    centers, reach = families._net(box, cells)
    assert len(centers) == 21
    gap = families._gap(ceiling, reach)
    axes = [sorted({center[j] for center in centers}) for j in range(3)]
    rng = np.random.default_rng(0)
    for theta in [*rng.uniform([low for low, _ in box], [high for _, high in box], size=(200, 3)), [0.7, 0.1, 1 / 3]]:
        nearest = [min(axis, key=lambda middle, at=at: abs(middle - at)) for axis, at in zip(axes, theta, strict=True)]
        apart = [Fraction(float(a)) - Fraction(b) for a, b in zip(theta, nearest, strict=True)]
        assert all(abs(d) <= r for d, r in zip(apart, reach, strict=True))
        energy = sum(Fraction(ceiling[i, j]) * apart[i] * apart[j] for i in range(3) for j in range(3))
        assert energy <= Fraction(gap) ** 2


@pytest.mark.slow
def test_family_of_two_coordinates_is_below_the_exact_probability() -> None:
    """Two independent walks, each with a bias of its own. Both must stay below the wall."""
    walk = Walk(steps=12, wall=6, center=lambda place: 0.0, feature=lambda place: 1.0)
    rng = np.random.default_rng(3)
    first, second = walk.trials(1500, rng), walk.trials(1500, rng)
    energies = np.zeros((1500, 2, 2))
    energies[:, 0, 0], energies[:, 1, 1] = first[2], second[2]
    box = 0.1
    proof = certify_family(
        first[0] & second[0],
        np.stack([first[1], second[1]], axis=1),
        energies,
        name="bias",
        box=[(-box, box)] * 2,
        ceiling=12.0 * np.eye(2),
        cells=[5, 5],
        delta=0.001,
        family=1,
        sampling="law",
    )
    assert proof.lower is not None
    truth = (1.0 - walk.failure(box)) ** 2
    assert proof.lower < truth < proof.lower + 0.2
    assert all(value > 0.0 for value in proof.worst)
    assert proof.net == 25


@pytest.mark.slow
def test_certificate_survives_json_and_refuses_what_its_trials_do_not_give() -> None:
    proof = certified(BIAS, 0.1, 3, seed=5, number=300, sampling="cohort")
    assert proof.lower is not None
    again = FamilyCertificate.from_json(proof.to_json())
    assert again == proof
    assert again.to_json() == proof.to_json()
    assert proof.premises[2:] == PREMISES
    assert "cohort" in proof.premises[0]
    assert "cohort" not in replace(proof, sampling=families.Sampling.LAW).premises[0]
    with pytest.raises(CertificateError, match="`lower` is"):
        replace(proof, lower=proof.lower + 1e-12).recheck()
    document = json.loads(proof.to_json())
    for name, value, message in (
        ("lower", 1.0, "`lower` is 1.0 on the certificate"),
        ("gap", 0.0, "`gap` is 0.0 on the certificate"),
        ("worst", [0.0], "`worst` is"),
        ("net", 4, "`net` is 4 on the certificate"),
        ("size", 0.0, "`size` is 0.0 on the certificate"),
        ("unweighted", 3, "`(lower|worst)` is"),
        ("unweighted", -1, "`unweighted` must be at least 0"),
        ("premises", [], "`premises` is"),
        ("held", [True] * 300, "`(lower|worst)` is"),
        ("cells", [0], r"`cells\[0\]` must be at least 1"),
        ("ceiling", [[1.0]], "`ceiling` must bound the energy of every path"),
        ("extra", 1, "unknown entries on the certificate: extra"),
        ("format", "ccfs/family/0", "has the format"),
    ):
        with pytest.raises(CertificateError, match=message):
            FamilyCertificate.from_json(json.dumps({**document, name: value}))
    del document["box"]
    with pytest.raises(CertificateError, match="KeyError: 'box'"):
        FamilyCertificate.from_json(json.dumps(document))


def test_nothing_is_certified_when_everything_failed() -> None:
    proof = certify_family(
        [False] * 50,
        np.zeros((50, 1)),
        np.zeros((50, 1, 1)),
        name="bias",
        box=[(-1.0, 1.0)],
        ceiling=[[1.0]],
        cells=[2],
        delta=0.1,
        family=1,
        sampling="cohort",
    )
    assert proof.lower is None
    assert not proof.is_certified
    assert FamilyCertificate.from_json(proof.to_json()) == proof


@pytest.mark.slow
def test_larger_boxes_and_smaller_delta_certify_less() -> None:
    lowers = [certified(BIAS, box, 5, seed=1, number=400).lower for box in (0.02, 0.08, 0.16)]
    assert lowers == sorted(lowers, reverse=True)
    strict, loose = (certified(BIAS, 0.08, 5, seed=1, number=400, delta=delta).lower for delta in (1e-6, 0.1))
    assert strict < lowers[1] < loose
    assert certified(BIAS, 0.08, 5, seed=1, number=400, family=10).lower < lowers[1]
    assert certified(BIAS, 0.08, 5, seed=1, number=400).lower == lowers[1]


@pytest.mark.slow
def test_trials_without_weights_count_as_failures_of_the_greatest_weight() -> None:
    """A trial that crashed hides its last block. Never better than to know that it failed with any ratio."""
    held, scores, energies = BIAS.trials(400, np.random.default_rng(7))
    few = {"name": "bias", "ceiling": [[30.0]], "delta": 0.01, "family": 1, "sampling": "law", "cells": [3]}
    box = [(-0.05, 0.05)]
    lost = 5
    hidden = certify_family(
        held[lost:], scores[lost:, None], energies[lost:, None, None], unweighted=lost, box=box, **few
    )
    assert hidden.trials == 400
    for ratio in (-20.0, 0.0, 20.0):
        flags, known = held.copy(), scores.copy()
        flags[:lost], known[:lost] = False, ratio
        seen = certify_family(flags, known[:, None], energies[:, None, None], box=box, **few)
        assert hidden.lower is not None
        assert seen.lower is not None
        assert hidden.lower <= seen.lower
    logs, squares = 0.05 * scores - 0.5 * 0.0025 * energies, 0.0025 * energies
    sizes = {"mu": 0.3, "delta": 0.01}
    rest = held[lost:], logs[lost:], squares[lost:]
    whole = held & (np.arange(400) >= lost), logs, squares
    assert shifted_failure_upper(*rest, unweighted=lost, **sizes) >= shifted_failure_upper(*whole, **sizes)
    assert shifted_failure_lower(*rest, unweighted=lost, **sizes) <= shifted_failure_lower(*whole, **sizes)
    assert drop_upper(*rest, unweighted=lost, **sizes) >= drop_upper(*whole, **sizes)
    assert drop_lower(*rest, unweighted=lost, **sizes) <= drop_lower(*whole, **sizes)


@pytest.mark.slow
def test_large_shifts_are_certified_where_trials_end_early() -> None:
    """The ceiling allows mu = 3, but trials end after a tenth of the horizon. Theorem 14 alone gives almost nothing."""
    rng = np.random.default_rng(4)
    noise = rng.standard_normal((4000, 10))
    proof = certify_family(
        noise.sum(axis=1) < 4.0,
        noise.sum(axis=1, keepdims=True),
        np.full((4000, 1, 1), 10.0),
        name="bias",
        box=[(-0.3, 0.3)],
        ceiling=[[100.0]],
        cells=[31],
        delta=0.001,
        family=1,
        sampling="law",
    )
    truth = phi((4.0 - 3.0) / math.sqrt(10.0))  # at theta = 0.3
    assert proof.size == pytest.approx(3.0)
    assert proof.lower is not None
    assert 0.45 < proof.lower < truth
    assert event_lower(0.9, 3.0) < 0.05


def arguments(**change) -> dict:
    return {
        "held": [True, True, False],
        "scores": [[0.1], [0.2], [0.3]],
        "energies": [[[1.0]], [[0.5]], [[0.0]]],
        "name": "bias",
        "box": [(-0.1, 0.1)],
        "ceiling": [[1.0]],
        "cells": [3],
        "delta": 0.1,
        "family": 1,
        "sampling": "law",
        **change,
    }


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"held": []}, TypeError, "`held` must be one bool per trial"),
        ({"held": np.zeros(0, dtype=bool)}, ValueError, "`held` must hold at least one trial"),
        ({"held": [1, 1, 0]}, TypeError, "`held` must be one bool per trial, got int64"),
        ({"scores": [[0.1], [0.2]]}, ValueError, r"`scores` must have shape \(3, 1\), got \(2, 1\)"),
        ({"scores": [[0.1], [math.nan], [0.3]]}, ValueError, "`scores` must be finite, got nan"),
        ({"scores": [["a"], ["b"], ["c"]]}, TypeError, "`scores` must be an array of doubles"),
        ({"scores": [[1e12], [1.0], [1e12]]}, ValueError, "small enough that doubles resolve log ratios"),
        ({"energies": [[[1.0]], [[math.inf]], [[0.0]]]}, ValueError, "`energies` must be finite"),
        ({"energies": [[[2.0]], [[0.5]], [[0.0]]]}, ValueError, "must bound the energy of every path, but trial 0"),
        ({"energies": [[[1.0]], [[-0.5]], [[0.0]]]}, ValueError, "no direction of negative energy, but trial 1"),
        ({"box": []}, TypeError, "`box` must be a sequence of pairs"),
        ({"box": [0.1]}, TypeError, r"`box\[0\]` must be a pair"),
        ({"box": [(0.1, -0.1)]}, ValueError, r"`box\[0\]` must have its least value first"),
        ({"box": [(-0.1, math.nan)]}, ValueError, r"`box\[0\]\[1\]` must be a number, got nan"),
        ({"box": [(-0.1, math.inf)]}, ValueError, r"`box\[0\]\[1\]` must be finite"),
        ({"box": [(-1e5, 1e5)]}, ValueError, "doubles resolve log ratios"),
        ({"cells": [0]}, ValueError, r"`cells\[0\]` must be at least 1, got 0"),
        ({"cells": [3, 3]}, ValueError, "`cells` must have one number for each of 1 coordinates, got 2"),
        ({"cells": [200_000]}, ValueError, "`cells` must make at most 100000 cells, got 200000"),
        ({"truncations": []}, TypeError, "`truncations` must be a sequence of numbers"),
        ({"truncations": [0.5]}, ValueError, r"`truncations\[0\]` must be 0 or in \[1, 1e100\], got 0.5"),
        ({"unweighted": -1}, ValueError, "`unweighted` must be at least 0"),
        ({"truncations": [math.nan]}, ValueError, r"`truncations\[0\]` must be a number, got nan"),
        ({"delta": 0.0}, ValueError, r"`delta` must be in \(0, 1\)"),
        ({"family": 0}, ValueError, "`family` must be at least 1"),
        ({"sampling": "iid"}, ValueError, "`sampling` must be one of"),
        ({"name": 3}, TypeError, "`name` must be a string"),
    ],
)
def test_certify_family_refuses(change, error, message) -> None:
    given_ = arguments(**change)
    with pytest.raises(error, match=message):
        certify_family(given_.pop("held"), given_.pop("scores"), given_.pop("energies"), **given_)


def test_certify_family_refuses_matrices_that_are_not_symmetric() -> None:
    tables = {"scores": np.zeros((3, 2)), "energies": np.zeros((3, 2, 2)), "box": [(0.0, 1.0)] * 2, "cells": [1, 1]}
    given_ = arguments(**tables, ceiling=[[1.0, 0.5], [0.0, 1.0]])
    with pytest.raises(ValueError, match="`ceiling` must be symmetric"):
        certify_family(given_.pop("held"), given_.pop("scores"), given_.pop("energies"), **given_)


@pytest.mark.parametrize("bound", [shifted_failure_lower, shifted_failure_upper, drop_lower, drop_upper])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log_ratios": [0.0]}, "`log_ratios` must have one entry for each of 2 trials, got 1"),
        ({"log_ratios": [0.0, math.nan]}, r"`log_ratios\[1\]` must be a number, got nan"),
        ({"energies": [0.5, 1.5]}, r"`energies` must be in \[0, mu\^2\], got 0.5 to 1.5 with mu\^2 = 1.0"),
        ({"energies": [-0.5, 0.5]}, r"`energies` must be in \[0, mu\^2\]"),
        ({"mu": -1.0}, "`mu` must be at least 0"),
        ({"mu": math.inf}, "`mu` must be finite"),
        ({"mu": 5000.0}, "`mu` must be below 1024"),
        ({"delta": 1.0}, r"`delta` must be in \(0, 1\)"),
    ],
)
def test_shifted_failure_refuses(bound, change, message) -> None:
    given_ = {"log_ratios": [0.0, 0.0], "energies": [0.5, 1.0], "mu": 1.0, "delta": 0.1, **change}
    with pytest.raises(ValueError, match=message):
        bound([True, False], given_.pop("log_ratios"), given_.pop("energies"), **given_)


def test_slack_loosens_bounds_by_no_more_than_itself() -> None:
    """The bounds with the slack differ from those without it by less than 1e-8."""
    held, scores, energies = BIAS.trials(500, np.random.default_rng(2))
    theta = 0.1
    logs, squares = theta * scores - 0.5 * theta**2 * energies, theta**2 * energies
    upper = shifted_failure_upper(held, logs, squares, mu=0.6, delta=0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(families, "SLACK", 0.0)
        bare = shifted_failure_upper(held, logs, squares, mu=0.6, delta=0.01)
    assert SLACK == 2.0**-30
    assert bare <= upper < bare + 1e-8
    assert upper <= event_upper(1.0, 0.6)
