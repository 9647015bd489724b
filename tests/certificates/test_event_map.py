"""Sampled event slack over many centers, against the decided criterion and a direct computation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from ccfs.certificates.event_map import axis_event_slack
from ccfs.certificates.occupancy import BoxUnion, EventVerdict

L_SHAPE = BoxUnion([[0.0, 0.0], [0.0, 0.5]], [[1.0, 0.5], [0.5, 1.0]], 0.15)
TAILS = BoxUnion([[-np.inf], [1.0]], [[-1.0], [np.inf]], 1.0)
BANDS = BoxUnion([[-np.inf, -1.0], [-np.inf, 0.9]], [[np.inf, -0.9], [np.inf, 1.0]], 1.0)
ROOM = BoxUnion([[0.0, 0.0], [0.4, 0.0]], [[0.4, 1.0], [1.0, 1.0]], 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("boxes", [L_SHAPE, BANDS, ROOM])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_axis_event_slack_never_contradicts_the_decided_criterion(boxes, axis, sign):
    step = sign * 0.1 * boxes.sigma
    centers = np.random.default_rng(4).uniform(-0.5, 1.5, size=(6, 2))
    slack = axis_event_slack(boxes, centers, axis=axis, step=step)
    for center, found in zip(centers, slack, strict=True):
        stop = center.copy()
        stop[axis] += step
        decided = boxes.event_comparison(center, stop)
        # Sampling sees a subset of the events: never less slack than there is, and a violation only where one is.
        assert found >= decided.margin_lower - 1e-9
        if found < -1e-7:
            assert decided.verdict is EventVerdict.FAILS
        if decided.margin_upper < -1e-3:
            assert found < 0.0


def test_axis_event_slack_equals_the_two_tail_formula():
    """Oracle: F of the confidence filter written out with scipy.stats.norm, at the inner ends of the tails."""
    a, b = -0.1, 0.0

    def left(center):
        return norm.cdf(-1 - center) / (norm.cdf(-1 - center) + norm.sf(1 - center))

    expected = norm.ppf(left(b)) - norm.ppf(left(a)) + (b - a)
    found = float(axis_event_slack(TAILS, [a], axis=0, step=b - a))
    assert found <= expected + 1e-12
    assert found == pytest.approx(expected, abs=5e-3)
    assert found < 0.0


def test_axis_event_slack_of_convex_sets_is_never_negative():
    centers = np.random.default_rng(8).uniform(-1.0, 2.0, size=(50, 2))
    for axis in (0, 1):
        assert np.all(axis_event_slack(ROOM, centers, axis=axis, step=0.05) > -1e-9)


def test_axis_event_slack_of_mirrored_set_is_mirrored():
    mirrored = BoxUnion(-L_SHAPE.highs, -L_SHAPE.lows, L_SHAPE.sigma)
    centers = np.random.default_rng(2).uniform(0.0, 1.0, size=(20, 2))
    there = axis_event_slack(L_SHAPE, centers, axis=0, step=0.02)
    np.testing.assert_allclose(axis_event_slack(mirrored, -centers, axis=0, step=-0.02), there, atol=1e-9)


def test_axis_event_slack_keeps_the_shape_of_its_centers():
    assert axis_event_slack(L_SHAPE, np.zeros((3, 4, 2)), axis=1, step=0.1).shape == (3, 4)
    assert axis_event_slack(L_SHAPE, [0.2, 0.2], axis=1, step=0.1).shape == ()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"axis": 2}, ValueError, "`axis` must be below the dimension 2"),
        ({"axis": -1}, ValueError, "`axis` must be at least 0"),
        ({"axis": 0.0}, TypeError, "`axis` must be an integer"),
        ({"step": 0.0}, ValueError, "`step` must not be 0"),
        ({"step": float("nan")}, ValueError, "`step` must be a number"),
        ({"step": float("inf")}, ValueError, "`step` must be finite"),
        ({"spacing": 0.0}, ValueError, "`spacing` must be positive"),
        ({"centers": [[0.0, float("nan")]]}, ValueError, "`centers` must not contain nan"),
        ({"centers": [[0.0]]}, ValueError, r"`centers` must have shape \[..., 2\]"),
    ],
)
def test_axis_event_slack_refuses(change, error, message):
    arguments = {"centers": [[0.1, 0.1]], "axis": 0, "step": 0.1, **change}
    with pytest.raises(error, match=message):
        axis_event_slack(L_SHAPE, arguments.pop("centers"), **arguments)
