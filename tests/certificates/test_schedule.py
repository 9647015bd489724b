"""Proposal blocks: exact multipliers and charges, the law of a drawn block, and schedules over time."""

from __future__ import annotations

import math
import pickle
from dataclasses import FrozenInstanceError, asdict, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ccfs.certificates.schedule import (
    ProposalSchedule,
    Schedule,
    Stage,
    as_schedule,
    block_at,
    kappa,
    rho_for_multiplier,
)

ONE = ProposalSchedule(count=1, sigma=0.2 / math.sqrt(1.05))
FOUR = ProposalSchedule(count=4, sigma=0.2, rho=59 / 63)


def test_schedules_of_the_goal2_arms_charge_alike() -> None:
    assert ONE.charge == pytest.approx(26.25, rel=1e-14)
    assert FOUR.charge == pytest.approx(26.25, rel=1e-14)
    assert ProposalSchedule(count=4, sigma=0.2, multiplier=1.05).charge == 26.25


def test_schedule_takes_a_correlation_or_a_multiplier_and_keeps_the_correlation() -> None:
    block = ProposalSchedule(count=4, sigma=0.2, multiplier=1.05)
    assert block == ProposalSchedule(count=4, sigma=0.2, rho=rho_for_multiplier(4, 1.05))
    assert asdict(block) == {"count": 4, "sigma": 0.2, "rho": rho_for_multiplier(4, 1.05)}
    assert replace(block, sigma=0.3) == ProposalSchedule(count=4, sigma=0.3, rho=block.rho)
    assert pickle.loads(pickle.dumps(block)) == block
    assert ProposalSchedule(count=4, sigma=0.2) == ProposalSchedule(count=4, sigma=0.2, rho=0.0)
    assert ProposalSchedule(count=1, sigma=0.2, multiplier=1.0) == ProposalSchedule(count=1, sigma=0.2)
    with pytest.raises(FrozenInstanceError):
        block.rho = 0.0


@given(st.integers(1, 64), st.floats(0.0, 0.999999))
def test_kappa_is_the_whitened_length_rounded_up(count: int, rho: float) -> None:
    """Oracle: 1^T C^-1 1 from the eigenvalue of the all-ones vector, in exact fractions."""
    assume(count > 1 or rho == 0.0)
    truth = count / (1 + (count - 1) * Fraction(rho))
    value = Fraction(kappa(count, rho))
    assert truth <= value <= truth * (1 + Fraction(1, 2**51))


def test_kappa_equals_the_quadratic_form() -> None:
    rho, count = 59 / 63, 4
    correlation = (1 - rho) * np.eye(count) + rho * np.ones((count, count))
    assert kappa(count, rho) == pytest.approx(np.ones(count) @ np.linalg.solve(correlation, np.ones(count)), rel=1e-12)


@given(st.integers(2, 64), st.floats(1.0001, 64.0))
def test_rho_for_multiplier_never_costs_more_than_asked(count: int, multiplier: float) -> None:
    assume(multiplier <= count)
    realised = kappa(count, rho_for_multiplier(count, multiplier))
    assert realised <= multiplier
    assert realised == pytest.approx(multiplier, rel=1e-12)


def test_proposal_schedule_block_has_the_stated_covariance() -> None:
    """Seeded, 40,000 blocks: entries of the sample correlation are within 0.02 (five standard errors)."""
    schedule = ProposalSchedule(count=3, sigma=0.5, rho=0.7)
    rng = np.random.default_rng(7)
    blocks = np.stack([schedule.sample_block(np.array([1.0, -2.0]), rng) for _ in range(40_000)])
    assert blocks.shape == (40_000, 3, 2)
    assert np.allclose(blocks.mean(axis=0), [[1.0, -2.0]] * 3, atol=0.02)
    expected = 0.3 * np.eye(3) + 0.7
    for coordinate in range(2):
        assert np.allclose(np.cov(blocks[:, :, coordinate].T) / 0.25, expected, atol=0.03)
    assert abs(np.cov(blocks[:, 0, 0], blocks[:, 0, 1])[0, 1]) < 0.01


def test_block_at_gives_one_block_for_every_step_or_one_per_step() -> None:
    assert as_schedule(FOUR).at(Stage.ACTION, 10**6) is FOUR
    assert [as_schedule([ONE, FOUR]).at(Stage.ACTION, t) for t in (0, 1)] == [ONE, FOUR]


def test_schedules_refuse_empty_and_foreign() -> None:
    with pytest.raises(TypeError, match=r"a non-empty sequence of them for each stage, got \[\]"):
        as_schedule([])
    with pytest.raises(TypeError, match="a non-empty sequence of them for each stage, got 'four'"):
        as_schedule("four")
    with pytest.raises(ValueError, match="every step of the horizon"):
        block_at((ONE,), 1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ProposalSchedule(count=0, sigma=1.0), ValueError, "`count` must be at least 1, got 0"),
        (lambda: ProposalSchedule(count=2, sigma=0.0), ValueError, "`sigma` must be positive, got 0.0"),
        (lambda: ProposalSchedule(count=2, sigma=math.nan), ValueError, "`sigma` must be a number, got nan"),
        (lambda: ProposalSchedule(count=2, sigma=math.inf), ValueError, "`sigma` must be finite, got inf"),
        (lambda: ProposalSchedule(count=2, sigma=1.0, rho=1.0), ValueError, r"`rho` must be in \[0, 1\), got 1.0"),
        (lambda: ProposalSchedule(count=2, sigma=1.0, rho=-0.1), ValueError, r"`rho` must be in \[0, 1\), got -0.1"),
        (lambda: ProposalSchedule(count=1, sigma=1.0, rho=0.5), ValueError, "`rho` must be 0 for a single proposal"),
        (lambda: ProposalSchedule(count=4, sigma=1.0, multiplier=4.5), ValueError, r"`multiplier` must be in \(1, 4\]"),
        (
            lambda: ProposalSchedule(count=4, sigma=1.0, rho=0.1, multiplier=1.05),
            ValueError,
            "`rho` must not be given beside `multiplier`, got 0.1 and 1.05",
        ),
        (lambda: rho_for_multiplier(4, 1.0), ValueError, r"`multiplier` must be in \(1, 4\]"),
        (lambda: rho_for_multiplier(4, 4.5), ValueError, r"`multiplier` must be in \(1, 4\]"),
        (lambda: rho_for_multiplier(1, 1.05), ValueError, "`multiplier` must be 1 for a single proposal"),
        (lambda: ProposalSchedule(count=1, sigma=1e-200), ValueError, "`sigma` must be between 1e-150 and 1e150"),
        (lambda: ONE.sample_block(np.zeros((2, 2)), np.random.default_rng(0)), ValueError, "`center` must have shape"),
    ],
)
def test_schedule_refuses(call, error, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


SENSOR = ProposalSchedule(count=1, sigma={"lidar": 0.05, "compass": 0.01})
LAYOUT = {"lidar": (0, 3), "compass": (4, 6), "gyro": (3, 4)}


def test_sigma_may_be_a_number_a_list_or_a_table_and_charges_follow_it() -> None:
    """Oracle: kappa / sigma^2 in exact fractions of the doubles, rounded up."""
    listed = ProposalSchedule(count=4, sigma=[0.2, 0.4, 0.0], rho=0.5)
    kappa_exact = Fraction(4, 1) / (1 + 3 * Fraction(1, 2))
    for sigma, charge in zip(listed.sigma, listed.charges, strict=True):
        if sigma == 0.0:
            assert charge == math.inf
        else:
            truth = kappa_exact / Fraction(sigma) ** 2
            assert truth <= Fraction(charge) <= truth * (1 + Fraction(1, 2**51))
    assert listed.charge == listed.charges[0] == max(listed.charges[:2])
    exact = {name: 1 / Fraction(sigma) ** 2 for name, sigma in (("compass", 0.01), ("lidar", 0.05))}
    assert all(
        exact[name] <= Fraction(charge) <= exact[name] * (1 + Fraction(1, 2**51))
        for name, charge in SENSOR.charges.items()
    )
    assert SENSOR.charges.keys() == exact.keys()
    assert SENSOR.charge == max(SENSOR.charges.values())
    assert ProposalSchedule(count=1, sigma=np.array([0.5, 0.25])).charges == (4.0, 16.0)


def test_sigma_with_names_is_a_value_that_cannot_be_changed() -> None:
    again = ProposalSchedule(count=1, sigma={"compass": 0.01, "lidar": 0.05})
    assert again == SENSOR
    assert hash(again) == hash(SENSOR)
    assert pickle.loads(pickle.dumps(SENSOR)) == SENSOR
    assert replace(SENSOR, count=1) == SENSOR
    assert ProposalSchedule(count=1, sigma={"compass": 0.01, "lidar": 0.06}) != SENSOR
    with pytest.raises(TypeError):
        SENSOR.sigma["lidar"] = 1.0


def test_scales_put_names_in_their_place_and_leave_the_rest_without_noise() -> None:
    assert SENSOR.scales(7, LAYOUT).tolist() == [0.05, 0.05, 0.05, 0.0, 0.01, 0.01, 0.0]
    assert SENSOR.resolved(7, LAYOUT).sigma == (0.05, 0.05, 0.05, 0.0, 0.01, 0.01, 0.0)
    assert ProposalSchedule(count=1, sigma=0.3).scales(3).tolist() == [0.3] * 3
    assert FOUR.resolved(9) is FOUR


def test_block_with_a_scale_per_coordinate_is_the_scaled_block_of_the_same_normals() -> None:
    scales, center = np.array([0.2, 0.0, 3.0]), np.array([1.0, 2.0, -1.0])
    listed = ProposalSchedule(count=5, sigma=scales, rho=0.4).sample_block(center, np.random.default_rng(3))
    unit = ProposalSchedule(count=5, sigma=1.0, rho=0.4).sample_block(np.zeros(3), np.random.default_rng(3))
    np.testing.assert_allclose(listed, center + scales * unit, rtol=1e-13)
    assert (listed[:, 1] == 2.0).all()


def test_block_of_equal_scales_has_the_bytes_of_the_block_with_one_number() -> None:
    one = FOUR.sample_block(np.array([0.1, 0.2]), np.random.default_rng(0))
    listed = replace(FOUR, sigma=[FOUR.sigma, FOUR.sigma]).sample_block(np.array([0.1, 0.2]), np.random.default_rng(0))
    assert one.tobytes() == listed.tobytes()


def test_schedule_has_stages_in_the_order_of_a_step() -> None:
    both = Schedule(action=FOUR, sensor=SENSOR)
    assert both.stages == (Stage.SENSOR, Stage.ACTION)
    assert (both.deciding, both.main, both.length) == (Stage.ACTION, Stage.ACTION, None)
    only = Schedule(sensor=SENSOR, readers="controller")
    assert (only.stages, only.deciding, only.main) == ((Stage.SENSOR,), None, Stage.SENSOR)
    assert as_schedule(ONE, Stage.SCORE) == Schedule(score=ONE)
    assert as_schedule(both, Stage.SCORE) is both
    varying = Schedule(action=[ONE, FOUR], sensor=SENSOR)
    assert varying.length == 2
    assert varying.at(Stage.ACTION, 1) is FOUR
    assert varying.at(Stage.SENSOR, 1) is SENSOR
    assert hash(varying) == hash(Schedule(action=(ONE, FOUR), sensor=SENSOR))


def test_schedule_is_resolved_stage_by_stage() -> None:
    both = Schedule(action=ProposalSchedule(count=2, sigma=[0.1, 0.2]), sensor=SENSOR)
    resolved = both.resolved({Stage.ACTION: 2, Stage.SENSOR: 7}, LAYOUT)
    assert resolved.sensor.sigma == (0.05, 0.05, 0.05, 0.0, 0.01, 0.01, 0.0)
    assert resolved.action == both.action
    with pytest.raises(ValueError, match=r"the action stage: `sigma` must be one number, or one for each of the 3"):
        both.resolved({Stage.ACTION: 3, Stage.SENSOR: 7}, LAYOUT)
    with pytest.raises(ValueError, match=r"the sensor stage: .*attribute `observation_layout`"):
        both.resolved({Stage.ACTION: 2, Stage.SENSOR: 7})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Schedule(), "at least one stage"),
        (lambda: Schedule(action=ONE, score=ONE), "not have both `action` and `score`"),
        (lambda: Schedule(sensor=FOUR), "`sensor` must have blocks of `count` 1"),
        (lambda: Schedule(action=SENSOR), "`action` must have a `sigma` of numbers"),
        (lambda: Schedule(score=[SENSOR]), "`score` must have a `sigma` of numbers"),
        (lambda: Schedule(action=ONE, readers="controller"), '`readers` must be "all" without a sensor stage'),
        (lambda: Schedule(sensor=SENSOR, readers="verifier"), '`readers` must be "all" or "controller"'),
        (lambda: Schedule(action=[ONE] * 2, sensor=[SENSOR] * 3), r"as many blocks in each stage, got \[2, 3\]"),
        (lambda: Schedule(action=0.2), "must be a ProposalSchedule or a non-empty sequence of them"),
        (lambda: Schedule(action=ONE).of(Stage.SENSOR), "`stage` must be one of action, which have noise, got sensor"),
        (lambda: as_schedule(ONE, Stage.SENSOR), "`deciding` must be the action or the score stage"),
        (lambda: ProposalSchedule(count=1, sigma=[0.0, 0.0]), "`sigma` must have a coordinate with noise"),
        (lambda: ProposalSchedule(count=1, sigma=[]), "`sigma` must have a coordinate with noise"),
        (lambda: ProposalSchedule(count=1, sigma=[0.1, -0.1]), r"`sigma\[1\]` must be positive"),
        (lambda: ProposalSchedule(count=1, sigma=[0.1, math.nan]), r"`sigma\[1\]` must be a number, got nan"),
        (lambda: ProposalSchedule(count=1, sigma=[0.1, math.inf]), r"`sigma\[1\]` must be finite"),
        (lambda: ProposalSchedule(count=1, sigma=[0.1, False]), r"`sigma\[1\]` must be a real number"),
        (lambda: ProposalSchedule(count=1, sigma={}), "must name at least one slice"),
        (lambda: ProposalSchedule(count=1, sigma={"a": 0.0}), r"`sigma\['a'\]` must be positive"),
        (lambda: ProposalSchedule(count=1, sigma={3: 0.1}), "must name at least one slice"),
        (lambda: ProposalSchedule(count=1, sigma="0.2"), "`sigma` must be a real number"),
        (
            lambda: SENSOR.scales(7, {"lidar": (0, 3)}),
            "`sigma` must name slices of the observation, lidar, got 'compass'",
        ),
        (lambda: SENSOR.scales(5, LAYOUT), r"slices of \[0, 5\) that do not overlap, got 'compass': \(4, 6\)"),
        (lambda: SENSOR.scales(7, LAYOUT | {"compass": (2, 4)}), "do not overlap"),
        (lambda: SENSOR.scales(7, LAYOUT | {"compass": (5, 5)}), "do not overlap"),
        (lambda: SENSOR.sample_block(np.zeros(7), np.random.default_rng(0)), "Use `resolved`"),
        (
            lambda: ProposalSchedule(count=1, sigma=[0.1, 0.2]).sample_block(np.zeros(3), np.random.default_rng(0)),
            "`center` must have one entry for each of 2 scales",
        ),
    ],
)
def test_stages_refuse(call, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()
