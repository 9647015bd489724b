"""What the route planner makes of gaps: open or closed by their width, wherever the grid happens to lie."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ccfs.controllers.navigator import LidarMap, NavigatorSettings
from ccfs.controllers.navigator.robot import NoisyRobot
from ccfs.controllers.navigator.route import Route

HAZARD = 0.2
SIGMA = 1.0
THRESHOLD = NavigatorSettings().closed + NavigatorSettings().closed_noise * SIGMA
PLACES = [(0.0, 0.0, 0.0), (0.013, 0.027, 0.0), (0.04, 0.0, 0.4), (-0.021, 0.037, 0.8), (0.03, -0.01, 1.3)]


def wall(clearance, x, y, angle, *, narrow=False):
    """A route past a straight wall of hazards with one gap at (x, y), and the frame of that wall."""
    along, across = np.array([math.cos(angle), math.sin(angle)]), np.array([-math.sin(angle), math.cos(angle)])
    drawn = LidarMap()
    drawn._bound_arena((0.0, 0.0), 2.0)
    drawn.possible[:] = False
    for side in (-1.0, 1.0):
        for index in range(9):
            drawn.known[0].append(tuple(np.array([x, y]) + side * (HAZARD + clearance + 0.38 * index) * along))
    drawn.goal = tuple(np.array([x, y]) + 1.2 * across)
    route = Route(NavigatorSettings(), NoisyRobot(sigma=SIGMA))
    route.plan(drawn, fresh=True, narrow=narrow)

    def at(aside, beyond):
        points = np.array([x, y]) + np.multiply.outer(aside, along) + np.multiply.outer(beyond, across)
        return points[..., 0], points[..., 1]

    return route, at


@pytest.mark.parametrize(("x", "y", "angle"), PLACES)
def test_route_opens_a_gap_by_its_width_and_not_by_the_grid(x, y, angle):
    """2.2 m through a gap that is wide enough take little more than cruising; one too narrow costs far more."""
    cruising = None
    for clearance, is_open in ((THRESHOLD + 0.03, True), (THRESHOLD - 0.01, False)):
        route, at = wall(clearance, x, y, angle)
        cruising = 2.2 / route.pace
        time = float(route.time_at(*at(np.zeros(1), np.full(1, -1.0)))[0])
        assert (time < 1.6 * cruising) == is_open
        assert is_open or time > 3.0 * cruising


@pytest.mark.parametrize(("x", "y", "angle"), PLACES)
def test_route_opens_a_narrower_gap_in_a_hurry_but_not_any(x, y, angle):
    def time(clearance, *, narrow):
        route, at = wall(clearance, x, y, angle, narrow=narrow)
        return float(route.time_at(*at(np.zeros(1), np.full(1, -1.0)))[0]) * route.pace / 2.2

    assert time(THRESHOLD - 0.005, narrow=True) < 0.5 * time(THRESHOLD - 0.005, narrow=False)
    assert time(0.4 * THRESHOLD, narrow=True) > 5.0


@pytest.mark.parametrize(("x", "y", "angle"), PLACES)
def test_times_fall_all_the_way_through_a_gap_even_off_its_middle(x, y, angle):
    route, at = wall(THRESHOLD + 0.03, x, y, angle)
    beyond = np.linspace(-0.5, 0.5, 41)
    for aside in (-0.02, 0.0, 0.02):
        time = route.time_at(*at(np.full(41, aside), beyond))
        assert (time[8:] < time[:-8]).all()
        assert time[0] - time[-1] < 3.0 / route.pace


@pytest.mark.parametrize(("x", "y", "angle"), PLACES)
def test_way_down_leads_through_the_gap_and_the_wall_is_closed(x, y, angle):
    route, at = wall(THRESHOLD + 0.03, x, y, angle)
    down = np.stack(route.down_at(*at(np.zeros(9), np.linspace(-0.6, 0.2, 9))))
    across = np.array([-math.sin(angle), math.cos(angle)])
    assert (across @ down > 0.6).all()
    assert route.is_closed_at(*at(np.array([0.3, -0.3, 0.7]), np.zeros(3))).all()
    assert not route.is_closed_at(*at(np.zeros(3), np.array([-0.6, 0.5, 0.9]))).any()
