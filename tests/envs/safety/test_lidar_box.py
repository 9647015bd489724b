"""The memoryless verifier: what it accepts, that it fails closed, and that it agrees with a slow rewriting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfs.envs import make
from ccfs.envs.safety.lidar_box import LidarBox
from ccfs.runtime.interfaces import Verifier
from ccfs.runtime.program import CausalProgram
from ccfs.runtime.selector import Selector


def seen(*, speed=0.0, hazards=(), vases=()):
    """An observation with objects given as (bin, distance)."""
    observation = np.zeros(60)
    observation[3] = speed
    for first, objects in ((28, hazards), (44, vases)):
        for place, distance in objects:
            observation[first + place] = 1.0 - distance / 3.0
    return observation


@pytest.mark.parametrize(
    ("observation", "low", "high"),
    [
        (seen(), (-1, -1), (1, 1)),
        (seen(hazards=[(0, 0.31)]), (-1, -1), (1, 0)),  # room to stop from rest, but no turn towards it
        (seen(speed=1.0, hazards=[(0, 0.45)]), (-1, -1), (0, 0)),
        (seen(speed=1.0, vases=[(15, 0.45)]), (-1, 0), (0, 1)),
        (seen(speed=-1.0, hazards=[(8, 0.4)]), (0, -1), (1, 1)),
        (seen(speed=1.0, hazards=[(4, 0.25)]), (-1, -1), (1, 1)),  # at the side: neither coordinate is bounded
        (seen(hazards=[(2, 0.5)], vases=[(13, 0.5)]), (-1, 0), (1, 0)),
    ],
)
def test_lidar_box_bounds_are_the_declared_ones(observation, low, high):
    found = LidarBox().box(observation)
    np.testing.assert_array_equal(found, (low, high))


@given(
    st.lists(st.floats(0.0, 1.0), min_size=32, max_size=32),
    st.floats(-1.6, 1.6),
    st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=4),
)
def test_lidar_box_agrees_with_a_slow_rewriting(readings, speed, actions):
    observation = np.zeros(60)
    observation[28:] = readings
    observation[3] = speed
    nearest = [3.0 * (1.0 - max(readings[i], readings[16 + i])) for i in range(16)]

    def room(bins, towards):
        after = max(0.9623 * towards + 0.0566, 0.0)
        return min(nearest[i] for i in bins) - 0.3 > 0.02 * after + after * after / (2 * 0.0566 / 0.02)

    left, right = min(nearest[0:4]), min(nearest[12:16])
    expected = [
        not (thrust > 0 and not room((14, 15, 0, 1), speed))
        and not (thrust < 0 and not room((6, 7, 8, 9), -speed))
        and not (turn > 0 and left <= 0.6 and left <= right)
        and not (turn < 0 and right <= 0.6 and right <= left)
        for thrust, turn in actions
    ]
    assert LidarBox().accepts(observation, np.array(actions)).tolist() == expected


@pytest.mark.parametrize("observation", [np.full(60, np.nan), np.zeros(59), np.zeros((1, 60))])
def test_lidar_box_fails_closed_on_observations_it_cannot_read(observation):
    with pytest.raises(ValueError, match="60 finite numbers"):
        LidarBox().accepts(observation, np.zeros((1, 2)))
    program = CausalProgram(low=[-1, -1], high=[1, 1], verifier=LidarBox())
    assert isinstance(program.verifier, Verifier)
    assert Selector(program).select(observation, np.zeros(2), np.zeros((4, 2))).action is None


@pytest.mark.parametrize("name", ["keep_away", "reach"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_lidar_box_refuses_distances_that_are_none(name, value):
    with pytest.raises(ValueError, match=name):
        LidarBox(**{name: value})


@pytest.mark.slow
def test_lidar_box_keeps_a_straight_runner_off_what_is_ahead():
    """On real observations: full thrust is refused before each contact with an object ahead at speed."""
    env = make("SafetyPointGoal2-v0")
    refused_first = hits = 0
    for seed in range(3_000_060_000, 3_000_060_012):
        observation, _ = env.reset(seed=seed)
        refused = False
        for _ in range(150):
            refused = refused or not LidarBox().accepts(observation, np.array([[1.0, 0.0]]))[0]
            observation, _, cost, *_ = env.step(np.array([1.0, 0.0]))
            if cost > 0:
                hits += 1
                refused_first += refused
                break
    env.close()
    assert hits >= 5
    assert refused_first == hits
