from __future__ import annotations

import math
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
    length,
)
from ccfs.certificates.schedule import ProposalSchedule, Schedule, Stage
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


DIAGONAL = ProposalSchedule(count=3, sigma=[0.2, 0.0, 1.7], rho=0.4)


@settings(max_examples=200, deadline=None)
@given(
    direction=st.lists(st.floats(-10, 10), min_size=3, max_size=3).map(np.array),
    sigmas=st.lists(st.sampled_from([0.0, 1e-6, 0.1, 0.3, 5.0]), min_size=3, max_size=3).filter(any),
    limit=st.floats(1e-9, 1e3),
)
def test_fit_with_scales_spends_everything_in_any_direction_and_nothing_where_there_is_no_noise(
    direction, sigmas, limit
):
    ledger = EnergyLedger(limit=limit, schedule=ProposalSchedule(count=2, sigma=sigmas, rho=0.3))
    shift = fit(direction, ledger.allowance(0), ledger.scales(0, width=3))
    energy = ledger.commit(0, shift)  # raises if it is too much
    noisy = np.array(sigmas) > 0.0
    assert (shift[~noisy] == 0.0).all()
    if np.abs(direction[noisy]).max() > 1e-200:
        assert energy == pytest.approx(limit, rel=1e-9)
        cosine = shift[noisy] @ direction[noisy]
        lengths = np.linalg.norm(shift[noisy]) * np.linalg.norm(direction[noisy])
        assert cosine == pytest.approx(lengths, rel=1e-9)


@pytest.mark.parametrize(
    "rule",
    [
        OpposedShift(),
        OpposedShift(norm=0.05),
        ConstantShift(direction=(1.0, 2.0, 3.0)),
        ConstantShift(direction=(0.0, 0.0, 1.0), norm=0.3),
        RandomShift(norm=10.0),
        RandomShift(),
        GreedyShift(critic=worst_right),
        BurstShift(step=4),
        BurstShift(step=4, direction=(0.0, 1.0, 1.0)),
    ],
    ids=lambda rule: type(rule).__name__,
)
@pytest.mark.parametrize("stages", [(Stage.SENSOR,), (Stage.SENSOR, Stage.ACTION)])
def test_shift_rule_acts_on_any_stage_and_stays_within_its_ledger(rule, stages):
    plan = Schedule(action=DIAGONAL, sensor=ProposalSchedule(count=1, sigma=[0.3, 0.1, 0.0]))
    ledger = EnergyLedger(limit=0.7, schedule=plan, stage="all" if len(stages) > 1 else "sensor")
    rng = np.random.default_rng(0)
    rule.reset()
    for t in range(10):
        for stage in stages:
            seen = PublicHistory(
                t=t,
                horizon=10,
                observation=np.zeros(3),
                center=np.array([0.3, -0.4, 0.2]),
                steps=(),
                stage=stage,
                scales=ledger.scales(t, stage, width=3),
                stages=stages,
            )
            shift = rule.shift(seen, rng, allowance=ledger.allowance(t, stage))
            if getattr(rule, "norm", None) is not None:
                assert np.linalg.norm(shift) <= rule.norm * (1 + 1e-12)
            ledger.commit(t, shift, stage)
    assert ledger.spent <= 0.7
    if getattr(rule, "norm", None) is None:
        assert ledger.spent == pytest.approx(0.7, rel=1e-9)


def test_fit_gives_the_same_bits_whatever_the_linear_algebra_library_does():
    """Correct rounding of the exact squares' sum is the oracle. BLAS may fuse a multiplication with an addition."""
    draws = np.random.default_rng(5).standard_normal((2000, 2))
    for vector in draws:
        squares = [float(Fraction(x) ** 2) for x in vector]
        assert length(vector) == math.sqrt(float(sum(map(Fraction, squares))))
    # The two ways of a BLAS, with and without a fused multiplication, differ here, so the choice matters.
    fused = [math.sqrt(float(Fraction(x) ** 2 + Fraction(float(Fraction(y) ** 2)))) for x, y in draws.tolist()]
    assert sum(mine != length(vector) for mine, vector in zip(fused, draws, strict=True)) > 0
