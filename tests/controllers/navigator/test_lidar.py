"""Lidar readings against a forward model: what is sighted is there, and what is excluded is not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ccfs.controllers.navigator.lidar import BINS, RANGE, arcs, exact_sightings, is_excluded

pytestmark = pytest.mark.slow
polar = st.tuples(st.floats(0.3, 3.5), st.floats(0.0, 6.28))


def lidar(objects):
    """Safety-Gymnasium's aliased pseudo-lidar, written from its documentation as an independent oracle."""
    readings = np.zeros(BINS)
    for distance, bearing in objects:
        place = bearing / (2 * math.pi) * BINS
        index, closeness = int(place), max(0.0, 1.0 - distance / RANGE)
        share = place - index
        for at, value in (
            (index, closeness),
            (index + 1, share * closeness),
            (index - 1, (1 - share) * closeness),
        ):
            readings[at % BINS] = max(readings[at % BINS], value)
    return readings


@settings(max_examples=150, deadline=None)
@given(st.lists(polar, min_size=1, max_size=10))
def test_exact_sightings_are_true_objects(objects):
    for distance, bearing in exact_sightings(lidar(objects)):
        # The sum of three readings may be off by 2e-6, which is that much over the closeness in bins.
        slack = 1e-6 + 2e-6 / (1.0 - distance / RANGE)
        assert any(abs(distance - d) < 1e-6 and abs(math.remainder(bearing - b, math.tau)) < slack for d, b in objects)


@settings(max_examples=150, deadline=None)
@given(st.tuples(st.floats(0.3, 2.9), st.floats(0.0, 6.28)))
def test_exact_sightings_survive_a_grid(single):
    """A single object, such as the goal, is always sighted from readings that were rounded to multiples of 2^-20."""
    rounded = np.rint(lidar([single]) * 2.0**20) / 2.0**20
    found = exact_sightings(rounded)
    assert found
    assert all(abs(distance - single[0]) < 1e-5 for distance, _ in found)
    assert all(abs(math.remainder(bearing - single[1], math.tau)) < 1e-4 for _, bearing in found)


@settings(max_examples=150, deadline=None)
@given(st.lists(polar, min_size=1, max_size=10), st.floats(0.0, 0.04), st.floats(0.0, 6.28))
@example([(3.5, 0.0)], 0.03125, 0.0)
def test_is_excluded_never_rules_out_a_true_object(objects, reach, direction):
    """Queried at points up to `reach` away from each object."""
    readings = lidar(objects)[None]
    for distance, bearing in objects:
        point = distance * np.exp(1j * bearing) + reach * np.exp(1j * direction)
        queried = np.array([abs(point)]), np.array([np.angle(point) % math.tau])
        assert not is_excluded(readings, *queried, reach + 1e-9).any()


@settings(max_examples=100, deadline=None)
@given(st.lists(polar, min_size=1, max_size=10))
def test_arcs_each_hold_an_object(objects):
    for distance, first, last in arcs(lidar(objects)):
        middle, half = 0.5 * (first + last), 0.5 * (last - first) + 1e-6
        assert any(abs(d - distance) < 1e-6 and abs(math.remainder(b - middle, math.tau)) <= half for d, b in objects)


def test_is_excluded_clears_an_empty_view():
    distance = np.array([0.5, 1.5, 2.9, 3.2])
    assert is_excluded(np.zeros((1, BINS)), distance, np.full(4, 1.0), 0.02).tolist() == [[True, True, True, False]]
