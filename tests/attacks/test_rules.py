from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccfs.attacks.ledger import EnergyLedger, EnergyRefusedError, squared_norm
from ccfs.attacks.rules import (
    BurstShift,
    ConstantShift,
    GreedyShift,
    NoShift,
    OpposedShift,
    RandomShift,
    ScriptedShift,
    fit,
)
from ccfs.certificates.schedule import ProposalSchedule
from ccfs.runtime.history import PublicHistory
from ccfs.runtime.interfaces import ShiftRule

SCHEDULE = ProposalSchedule(count=2, sigma=0.3, rho=0.25)


def history(t=0, center=(0.3, -0.4), horizon=10):
    return PublicHistory(t=t, horizon=horizon, observation=np.zeros(3), center=np.array(center), steps=())


def worst_right(observation, actions):
    return actions[:, 0]


RULES = [
    NoShift(),
    OpposedShift(),
    OpposedShift(norm=0.05),
    ConstantShift(direction=(1.0, 2.0)),
    RandomShift(norm=10.0),
    GreedyShift(critic=worst_right),
    BurstShift(step=4),
    BurstShift(step=0, direction=(0.0, 1.0)),
    ScriptedShift(shifts=((0.01, 0.0), (0.0, 0.01))),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_shift_rule_stays_within_its_ledger_over_a_whole_horizon(rule):
    assert isinstance(rule, ShiftRule)
    ledger = EnergyLedger(limit=0.7, schedule=SCHEDULE)
    rng = np.random.default_rng(0)
    rule.reset()
    for t in range(10):
        shift = rule.shift(history(t), rng, allowance=ledger.allowance(t))
        assert shift.shape == (2,)
        ledger.commit(t, shift)
    assert ledger.spent <= 0.7
    if not isinstance(rule, NoShift | ScriptedShift) and getattr(rule, "norm", None) is None:
        assert ledger.spent == pytest.approx(0.7, rel=1e-9)


def test_opposed_shift_points_against_the_center_with_the_given_norm():
    shift = OpposedShift(norm=0.05).shift(history(), np.random.default_rng(0), allowance=1.0)
    np.testing.assert_allclose(shift, [-0.03, 0.04], rtol=1e-12)


def test_opposed_shift_of_a_zero_center_is_zero():
    shift = OpposedShift().shift(history(center=(0.0, 0.0)), np.random.default_rng(0), allowance=1.0)
    np.testing.assert_array_equal(shift, [0.0, 0.0])


def test_greedy_shift_moves_towards_the_worse_score():
    shift = GreedyShift(critic=worst_right, probes=64).shift(history(), np.random.default_rng(1), allowance=1.0)
    assert shift[0] > 0.9 * np.linalg.norm(shift)


def test_greedy_shift_refuses_a_critic_that_answers_nan():
    rule = GreedyShift(critic=lambda o, a: np.full(len(a), np.nan))
    with pytest.raises(ValueError, match="`critic` must return 16 finite scores"):
        rule.shift(history(), np.random.default_rng(0), allowance=1.0)


def test_scripted_shift_that_overspends_is_refused_by_the_ledger():
    ledger = EnergyLedger(limit=0.1, schedule=SCHEDULE)
    shift = ScriptedShift(shifts=((5.0, 0.0),)).shift(history(), np.random.default_rng(0), allowance=0.1)
    with pytest.raises(EnergyRefusedError):
        ledger.commit(0, shift)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OpposedShift(norm=-1.0), "`norm`"),
        (lambda: RandomShift(norm=float("nan")), "`norm`"),
        (lambda: ConstantShift(direction=(0.0, 0.0)), "`direction`"),
        (lambda: ConstantShift(direction=(float("inf"),)), "`direction"),
        (lambda: BurstShift(step=-1), "`step`"),
        (lambda: GreedyShift(critic=3), "`critic`"),
        (lambda: ScriptedShift(shifts=((float("nan"),),)), "`shifts"),
    ],
)
def test_shift_rules_refuse(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@settings(max_examples=200, deadline=None)
@given(direction=st.lists(st.floats(-10, 10), min_size=1, max_size=3).map(np.array), norm=st.floats(1e-9, 1e3))
def test_fit_is_exactly_within_the_norm_and_close_to_it(direction, norm):
    vector = fit(direction, norm)
    assert squared_norm(vector) <= Fraction(norm) ** 2
    if np.abs(direction).max() > 0:
        assert float(np.linalg.norm(vector)) == pytest.approx(norm, rel=1e-12)


@pytest.mark.parametrize("direction", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_fit_without_a_direction_is_zero(direction):
    np.testing.assert_array_equal(fit(np.array(direction), 1.0), [0.0, 0.0])
