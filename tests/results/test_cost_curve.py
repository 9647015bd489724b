from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from ccfs.certificates.schedule import ProposalSchedule
from ccfs.certificates.trajectory import certify_event
from ccfs.results.cost_curve import cost_curve

SCHEDULE = ProposalSchedule(count=1, sigma=0.2)


def proof(successes, trials=1000, family=4, schedule=SCHEDULE):
    return certify_event(
        successes, trials, delta=0.01, family=family, target=0.5, schedule=schedule, bound="clopper-pearson"
    )


def test_cost_curve_expected_cost_by_hand():
    # Oracle: three cells by hand, [0, 2) with nothing certified, [2, 5) and [5, 10].
    a, b = proof(600), proof(900)
    curve = cost_curve({2.0: a, 5.0: b}, ceiling=10.0)
    by_hand = 2.0 + 3.0 * (1.0 - a.p_lower) + 5.0 * (1.0 - b.p_lower)
    assert curve.expected_upper(budget=0.0) == pytest.approx(by_hand, rel=1e-12)
    assert curve.lower_at(1.9, budget=0.0) == 0.0
    assert curve.lower_at(4.9, budget=0.0) == a.p_lower
    assert curve.lower_at(10.0, budget=5.0) == 1.0


@pytest.mark.slow
@given(
    tail=st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3),
    budget=st.floats(0.0, 0.5),
)
def test_cost_curve_bounds_the_worst_shifted_expectation(tail, budget):
    # Oracle: a cost on {0, 1, 2, 3} whose every event is shifted by the most that the theorem allows.
    total = sum(tail) + 1.0
    probabilities = [1.0 / total, *(value / total for value in tail)]
    trials = 10**6
    at_most = [sum(probabilities[: c + 1]) for c in range(3)]
    curve = cost_curve({float(c): proof(int(p * trials), trials) for c, p in enumerate(at_most)}, ceiling=3.0)
    mu = budget / SCHEDULE.sigma
    worst = sum(1.0 - float(norm.cdf(norm.ppf(p) - mu)) for p in at_most)
    assert curve.expected_upper(budget=budget) >= worst
    assert curve.expected_upper(budget=budget) <= worst + 0.1


def test_cost_curve_grows_with_the_shift():
    curve = cost_curve({0.0: proof(700), 1.0: proof(990)}, ceiling=2.0)
    values = [curve.expected_upper(budget=budget) for budget in (0.0, 0.1, 0.5, 100.0)]
    assert values == sorted(values)
    assert values[-1] <= 2.0


@pytest.mark.parametrize(
    ("certificates", "ceiling", "message"),
    [
        ({}, 1.0, "at least one grid point"),
        ({0.0: proof(1), 1.0: proof(2, trials=999)}, 2.0, "one simultaneous study"),
        ({0.0: proof(1), 1.0: proof(2, schedule=ProposalSchedule(count=1, sigma=0.3))}, 2.0, "one simultaneous study"),
        ({float(c): proof(c) for c in range(5)}, 9.0, "must count all 5 grid points, got 4"),
        ({0.0: proof(2), 1.0: proof(1)}, 2.0, "must not fall"),
        ({0.0: proof(2)}, math.inf, "`ceiling`"),
        ({math.nan: proof(2)}, 1.0, "`grid`"),
    ],
)
def test_cost_curve_refuses(certificates, ceiling, message):
    with pytest.raises(ValueError, match=message):
        cost_curve(certificates, ceiling=ceiling)
