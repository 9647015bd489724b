from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccfs.attacks.ledger import EnergyLedger, EnergyRefusedError, energy_limit
from ccfs.attacks.rules import fit
from ccfs.certificates.schedule import ProposalSchedule, Schedule, Stage

FOUR = ProposalSchedule(count=4, sigma=0.2, multiplier=1.05)
ONE = ProposalSchedule(count=1, sigma=0.5)

shifts = st.lists(st.floats(-10, 10), min_size=1, max_size=3).map(np.array)
schedules = st.builds(
    ProposalSchedule,
    count=st.integers(2, 5),
    sigma=st.floats(0.05, 3.0),
    rho=st.floats(0.0, 0.99),
)


def exact_energy(schedule, shift):
    """Oracle: the paper's formula in exact rationals of the stored doubles."""
    return schedule.charge_exact * sum(Fraction(float(v)) ** 2 for v in shift)


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.tuples(schedules, shifts), min_size=1, max_size=8),
    limit=st.floats(0, 1e4),
)
def test_ledger_never_understates_and_never_exceeds_the_limit_on_varying_schedules(steps, limit):
    ledger = EnergyLedger(limit=limit, schedule=[schedule for schedule, _ in steps])
    truth = Fraction(0)
    for t, (schedule, shift) in enumerate(steps):
        before = ledger.spent
        energy = exact_energy(schedule, shift)
        try:
            charged = ledger.commit(t, shift)
        except EnergyRefusedError:
            assert ledger.spent == before
            # Refused only when the truth is above, up to the upward rounding of the charge.
            assert (truth + energy) * (1 + Fraction(1, 2**50)) > Fraction(limit)
            return
        truth += energy
        assert Fraction(charged) >= energy
        assert truth <= Fraction(ledger.spent)
        assert truth <= Fraction(limit)
        assert Fraction(ledger.remaining) <= Fraction(limit) - truth


@settings(max_examples=200, deadline=None)
@given(schedule=schedules, limit=st.floats(0, 100), direction=shifts)
def test_ledger_allowance_is_accepted_and_the_next_norm_is_not(schedule, limit, direction):
    ledger = EnergyLedger(limit=limit, schedule=schedule)
    allowance = ledger.allowance(0)
    with pytest.raises(EnergyRefusedError):
        ledger.commit(0, np.array([math.nextafter(allowance, math.inf)]))
    assert ledger.spent == 0.0
    ledger.commit(0, fit(direction, allowance))
    assert ledger.spent <= limit


def test_ledger_refusal_changes_nothing_and_a_smaller_shift_still_fits():
    ledger = EnergyLedger(limit=1.0, schedule=ONE)  # charge 4: norm 0.5 spends everything
    ledger.commit(0, np.array([0.3, 0.0]))
    spent = ledger.spent
    with pytest.raises(EnergyRefusedError, match=r"greatest norm accepted here is 0\.[34]"):
        ledger.commit(1, np.array([0.0, 0.41]))
    assert ledger.spent == spent
    ledger.commit(1, np.array([0.0, 0.39]))


@pytest.mark.parametrize("bad", [[np.nan], [np.inf, 0.0], [[1.0]]])
def test_ledger_refuses_nonfinite_and_leaves_state(bad):
    ledger = EnergyLedger(limit=1e300, schedule=ONE)
    with pytest.raises(ValueError, match="finite vector"):
        ledger.commit(0, np.array(bad))
    assert ledger.spent == 0.0
    ledger.commit(0, np.array([0.1]))


def test_ledger_charges_each_step_once_and_in_order():
    ledger = EnergyLedger(limit=10.0, schedule=[ONE, ONE])
    with pytest.raises(ValueError, match="`t` must be 0"):
        ledger.commit(1, np.array([0.1]))
    ledger.commit(0, np.array([0.1]))
    with pytest.raises(ValueError, match="`t` must be 1"):
        ledger.commit(0, np.array([0.1]))
    ledger.commit(1, np.array([0.1]))
    with pytest.raises(ValueError, match=r"`t` must be in \[0, 2\)"):
        ledger.commit(2, np.array([0.0]))


@pytest.mark.parametrize("limit", [float("nan"), float("inf"), -1e-9])
def test_ledger_refuses_bad_limits(limit):
    with pytest.raises(ValueError, match="`limit`"):
        EnergyLedger(limit=limit, schedule=ONE)


def test_ledger_holds_the_papers_shift_for_500_steps():
    # Paper, learned-controller evaluation: norm 0.02/sqrt(500) a step under B = 0.02, charge 26.25.
    limit = energy_limit(0.02, FOUR)
    assert limit == pytest.approx(26.25 * 0.0004, rel=1e-12)
    ledger = EnergyLedger(limit=limit, schedule=FOUR)
    for t in range(500):
        norm = min(0.02 / math.sqrt(500), ledger.allowance(t))
        ledger.commit(t, fit(np.array([-0.7, 0.2]), norm))
    assert ledger.spent <= limit
    assert ledger.spent == pytest.approx(limit, rel=1e-12)


def test_ledger_refuses_an_excess_below_every_rounding_of_the_limit():
    # Charge 4 exactly: 4 * (0.5^2 + 2^-64) = 1 + 2^-62, which no double tells from 1.
    ledger = EnergyLedger(limit=1.0, schedule=ONE)
    with pytest.raises(EnergyRefusedError):
        ledger.commit(0, np.array([0.5, 2.0**-32]))
    assert ledger.spent == 0.0
    assert ledger.commit(0, np.array([0.5, 0.0])) == 1.0
    with pytest.raises(EnergyRefusedError):
        ledger.commit(1, np.array([2.0**-40]))


@settings(deadline=None)
@given(schedule=schedules, budget=st.floats(1e-6, 1e3))
def test_energy_limit_is_the_greatest_double_at_most_the_exact_energy(schedule, budget):
    exact = Fraction(schedule.charge) * Fraction(budget) ** 2
    limit = energy_limit(budget, schedule)
    assert Fraction(limit) <= exact < Fraction(math.nextafter(limit, math.inf))


def test_energy_limit_of_a_budget_whose_energy_is_no_double_is_below_it():
    # 0.1 is not a binary fraction, so that 4 * 0.1^2 lies strictly between two doubles.
    assert Fraction(energy_limit(0.1, ONE)) < 4 * Fraction(0.1) ** 2


def test_ledger_reset_begins_again_at_step_0_with_nothing_spent():
    ledger = EnergyLedger(limit=1.0, schedule=[ONE, ONE])
    for _ in range(3):
        assert (ledger.spent, ledger.remaining) == (0.0, 1.0)
        ledger.commit(0, np.array([0.5]))
        assert ledger.remaining == 0.0
        ledger.commit(1, np.array([0.0]))
        ledger.reset()


SENSOR = ProposalSchedule(count=1, sigma=[0.5, 0.25, 0.0])
BOTH = Schedule(action=ONE, sensor=SENSOR)
widths = st.lists(st.floats(0.05, 3.0), min_size=2, max_size=4)


@settings(max_examples=200, deadline=None)
@given(
    sigmas=widths,
    rho=st.floats(0.0, 0.99),
    sensor=st.floats(0.05, 3.0),
    rows=st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=1, max_size=5),
    limit=st.floats(0, 1e3),
)
def test_ledger_of_two_stages_never_understates_the_sum_of_both(sigmas, rho, sensor, rows, limit):
    """Oracle: kappa x^2 / sigma_i^2 of each coordinate of each stage, in exact rationals of the stored doubles."""
    action = ProposalSchedule(count=3, sigma=sigmas, rho=rho)
    plan = Schedule(action=action, sensor=ProposalSchedule(count=1, sigma=sensor))
    ledger = EnergyLedger(limit=limit, schedule=plan, stage="all")
    kappa = Fraction(3) / (1 + 2 * Fraction(rho))
    truth = Fraction(0)
    for t, (x, y) in enumerate(rows):
        pushed = np.full(len(sigmas), y)
        energies = {
            Stage.SENSOR: (np.array([x]), Fraction(x) ** 2 / Fraction(sensor) ** 2),
            Stage.ACTION: (pushed, sum(kappa * Fraction(y) ** 2 / Fraction(s) ** 2 for s in sigmas)),
        }
        in_step = Fraction(0)
        for stage, (shift, energy) in energies.items():
            before = ledger.spent
            try:
                charged = ledger.commit(t, shift, stage)
            except EnergyRefusedError:
                assert ledger.spent == before
                assert (truth + energy) * (1 + Fraction(1, 2**50)) > Fraction(limit)
                return
            truth, in_step = truth + energy, in_step + energy
            assert energy <= Fraction(charged)
            assert truth <= Fraction(ledger.spent) <= truth * (1 + Fraction(1, 2**49)) + Fraction(5e-324)
            assert truth <= Fraction(limit)
            assert in_step <= Fraction(ledger.spent_in_step)


def test_ledger_goes_through_the_stages_of_each_step_in_order():
    ledger = EnergyLedger(limit=100.0, schedule=BOTH, stage="all")
    with pytest.raises(ValueError, match="`t` must be 0, the sensor stage, the next uncharged step"):
        ledger.commit(0, np.array([0.1]), Stage.ACTION)
    ledger.commit(0, np.array([0.1, 0.0, 0.0]), Stage.SENSOR)
    with pytest.raises(ValueError, match="`t` must be 0, the action stage"):
        ledger.commit(0, np.array([0.1, 0.0, 0.0]), Stage.SENSOR)
    with pytest.raises(ValueError, match="`t` must be 0, the action stage"):
        ledger.commit(1, np.array([0.1, 0.0, 0.0]), Stage.SENSOR)
    ledger.commit(0, np.array([0.2]), Stage.ACTION)
    assert ledger.spent_in_step == ledger.spent == pytest.approx(0.04 + 0.16, rel=1e-12)
    ledger.commit(1, np.array([0.1, 0.0, 0.0]), Stage.SENSOR)
    assert ledger.spent_in_step == pytest.approx(0.04, rel=1e-12)
    assert ledger.spent == pytest.approx(0.24, rel=1e-12)


def test_ledger_of_one_stage_charges_that_stage_only():
    ledger = EnergyLedger(limit=1.0, schedule=BOTH, stage="sensor")
    assert ledger.stages == (Stage.SENSOR,)
    assert EnergyLedger(limit=1.0, schedule=BOTH).stages == (Stage.ACTION,)
    assert ledger.commit(0, np.array([0.0, 0.25, 0.0])) == 1.0
    with pytest.raises(ValueError, match="`stage` must be one of sensor, got action"):
        ledger.commit(1, np.array([0.1]), Stage.ACTION)
    with pytest.raises(ValueError, match="`stage` must be one with noise in this schedule, sensor, action, all"):
        EnergyLedger(limit=1.0, schedule=BOTH, stage="score")


def test_ledger_refuses_a_shift_where_there_is_no_noise_and_changes_nothing():
    ledger = EnergyLedger(limit=1e300, schedule=BOTH, stage="sensor")
    with pytest.raises(EnergyRefusedError, match="must be 0 in coordinate 2, which has no noise"):
        ledger.commit(0, np.array([0.1, 0.0, 1e-300]))
    assert ledger.spent == 0.0
    with pytest.raises(ValueError, match=r"must have shape \(3,\)"):
        ledger.commit(0, np.array([0.1, 0.0]))
    with pytest.raises(ValueError, match="finite vector"):
        ledger.commit(0, np.array([0.1, np.nan, 0.0]))
    ledger.commit(0, np.array([0.1, 0.0, 0.0]))


def test_ledger_scales_are_the_lengths_of_energy_one_rounded_down():
    ledger = EnergyLedger(limit=1.0, schedule=Schedule(action=FOUR, sensor=SENSOR), stage="all")
    assert ledger.scales(0, Stage.SENSOR, width=3).tolist() == [0.5, 0.25, 0.0]
    scale = ledger.scales(0, Stage.ACTION, width=2)
    assert scale[0] == scale[1]
    assert Fraction(FOUR.charge) * Fraction(scale[0]) ** 2 <= 1
    assert Fraction(FOUR.charge) * Fraction(math.nextafter(scale[0], 1.0)) ** 2 > 1
    assert ledger.allowance(0, Stage.SENSOR) == 0.25


def test_ledger_needs_numbers_in_the_place_of_names():
    ledger = EnergyLedger(limit=1.0, schedule=Schedule(sensor=ProposalSchedule(count=1, sigma={"lidar": 0.1})))
    with pytest.raises(ValueError, match=r"must have numbers as `sigma`, got the names lidar"):
        ledger.commit(0, np.zeros(3))
