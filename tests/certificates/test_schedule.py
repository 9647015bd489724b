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

from ccfs.certificates.schedule import ProposalSchedule, Stage, as_schedule, block_at, kappa, rho_for_multiplier

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
