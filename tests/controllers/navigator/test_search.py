"""Where a goal out of sight is looked for."""

from __future__ import annotations

import math

from ccfs.controllers.navigator.search import GoalSearch


def test_search_aims_at_the_middle_of_what_is_left():
    search = GoalSearch()
    # The arena lies to the east, so a goal that is not within 3 m is there.
    search.look(0.0, 0.0, 3.0, [1.5, 0.0], [1.5, 0.0])
    assert 2.5 < search.target[0] < 3.3
    assert abs(search.target[1]) < 0.1


def test_search_never_stays_between_two_places():
    """The goal may be in any corner. Their middle is where the robot is, so one corner must be chosen."""
    search = GoalSearch()
    search.look(0.0, 0.0, 2.0, [0.0, 0.0], [0.0, 0.0])
    assert math.hypot(*search.target) > 1.9
    # From near that corner it is seen that the goal is not there, and the way leads elsewhere.
    first = search.target
    search.look(0.5 * first[0], 0.5 * first[1], 2.0, [0.0, 0.0], [0.0, 0.0])
    assert math.dist(search.target, first) > 1.0
    search.begin()
    search.look(0.0, 0.0, 2.0, [0.0, 0.0], [0.0, 0.0])
    assert search.target == first
