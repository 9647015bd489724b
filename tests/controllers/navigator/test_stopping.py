"""Stopping in time: the braking distance is known, and the brake stops the robot."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ccfs.controllers.navigator import (
    LidarMap,
    would_be_safe,
)
from ccfs.controllers.navigator.clearance import Surroundings
from ccfs.controllers.navigator.stopping import brake_action

pytestmark = pytest.mark.slow


def hand_drawn(env, hazards, speed):
    """A map with nothing on it but hazards this far ahead, seen by a robot of this speed ahead."""
    drawn, surroundings = LidarMap(), Surroundings()
    drawn.observe(env.reset(seed=3_000_000_005)[0])
    drawn.possible[:] = False
    surroundings.refresh(drawn)
    ahead = np.array([math.cos(drawn.pose.heading), math.sin(drawn.pose.heading)])
    for kind in drawn.known:
        kind.clear()
    drawn.known[0].extend(tuple(distance * ahead) for distance in hazards)
    drawn.pose.mass_velocity = tuple(speed * ahead)
    return drawn, surroundings


@pytest.mark.parametrize(
    ("hazards", "speed", "thrust", "brake"),
    [
        ([], 1.0, True, True),
        ([0.3], 0.0, True, True),
        ([0.3], 0.5, True, True),
        ([0.3], 1.0, False, True),
        ([0.202], 0.0, False, True),
        ([0.202], 0.3, False, True),
    ],
)
def test_would_be_safe_knows_the_braking_distance(env, hazards, speed, thrust, brake):
    """A hazard's edge is 0.1 m ahead, or 2 mm, too near already: braking takes 0.05 m from 0.5 m/s, 0.16 from 1.

    Where it is too late, only what is no worse than to brake at once may run.
    """
    actions = np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert would_be_safe(*hand_drawn(env, hazards, speed), actions, 0.015).tolist() == [thrust, brake]


@pytest.mark.parametrize(("room", "accepted"), [(0.0, True), (0.05, True), (0.15, False)])
def test_would_be_safe_asks_for_room(env, room, accepted):
    """A hazard's edge is 0.1 m ahead of a robot at rest. With room, being as clear as a brake is not enough."""
    found = would_be_safe(*hand_drawn(env, [0.3], 0.0), np.zeros((1, 2)), 0.015, room)
    assert found.tolist() == [accepted]


def test_brake_stops_the_robot(env):
    observation, _ = env.reset(seed=3_000_000_009)
    for _ in range(15):
        observation, *_ = env.step(np.array([1.0, 0.0]))
    assert abs(observation[3]) > 0.4
    for _ in range(15):
        observation, *_ = env.step(brake_action(observation))
    assert abs(observation[3]) < 0.02
