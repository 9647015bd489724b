from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from ccfs.attacks.attack import Attack
from ccfs.attacks.ledger import energy_limit
from ccfs.attacks.rules import ConstantShift, OpposedShift, RandomShift, ScriptedShift
from ccfs.certificates.binomial import clopper_pearson_lower, clopper_pearson_upper
from ccfs.certificates.gaussian import event_lower
from ccfs.certificates.schedule import ProposalSchedule, Schedule
from ccfs.certificates.trajectory import certify_event, energy
from ccfs.envs.toys.corridor import Corridor, Steering, WorstShift, average, nominal_probability, simulate, worst_shifts
from ccfs.runs.trial import StopRule, run_trial
from ccfs.runtime.components import AcceptAll
from ccfs.runtime.program import CausalProgram
from ccfs.runtime.streams import Purpose, Streams
from ccfs.runtime.wrapper import ProposalWrapper

HORIZON, GAIN, TRIALS = 12, 0.25, 100_000
SCHEDULES = [
    ProposalSchedule(count=1, sigma=0.2),
    ProposalSchedule(count=4, sigma=0.2, rho=0.0),
    ProposalSchedule(count=4, sigma=0.2, multiplier=1.05),
]


def post(schedule):
    """A post at one and a half standard deviations of the last position, written out by hand."""
    weights = np.array([0.75**k for k in range(HORIZON)])
    return 1.5 * schedule.sigma / math.sqrt(schedule.kappa) * math.sqrt(float((weights**2).sum()))


def exact(schedule, budget):
    """Oracle: the corridor's closed form, and under shift Phi(Phi^-1(p) - mu) with mu = sqrt(kappa) B / sigma."""
    p = nominal_probability(
        horizon=HORIZON, post=post(schedule), start=0.0, gain=GAIN, sigma=schedule.sigma, kappa=schedule.kappa
    )
    assert p == pytest.approx(norm.cdf(1.5), abs=1e-12)
    return float(norm.cdf(norm.ppf(p) - math.sqrt(schedule.charge) * budget))


def block_means(schedule, rng, trials):
    """The noise of the block's mean, drawn as the block is: one shared and N own innovations."""
    shared = rng.standard_normal((trials, HORIZON))
    own = rng.standard_normal((trials, HORIZON, schedule.count)).mean(axis=2)
    return schedule.sigma * (math.sqrt(schedule.rho) * shared + math.sqrt(1.0 - schedule.rho) * own)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("budget", [0.0, 0.05, 0.2])
def test_corridor_worst_adversary_attains_the_certificate(schedule, budget):
    # 9 cases, each a binomial at 5 standard errors: false-alarm rate below 1e-5 in all.
    rng = np.random.default_rng(1)
    shifts = worst_shifts(horizon=HORIZON, gain=GAIN, budget=budget)
    assert float((shifts**2).sum()) == pytest.approx(budget**2, abs=1e-15)
    passed = simulate(block_means(schedule, rng, TRIALS), shifts, gain=GAIN) <= post(schedule)
    truth = exact(schedule, budget)
    assert abs(passed.mean() - truth) <= 5.0 * math.sqrt(truth * (1.0 - truth) / TRIALS)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_corridor_certificate_is_never_violated_and_is_tight(schedule):
    # False-alarm rate 1e-6 for each schedule: the certificate's own delta.
    rng = np.random.default_rng(2)
    still = worst_shifts(horizon=HORIZON, gain=GAIN, budget=0.0)
    hits = int((simulate(block_means(schedule, rng, TRIALS), still, gain=GAIN) <= post(schedule)).sum())
    proof = certify_event(hits, TRIALS, delta=1e-6, family=1, target=0.5, schedule=schedule, bound="clopper-pearson")
    for budget in (0.0, 0.02, 0.1, 0.3):
        assert proof.lower_at(budget) <= exact(schedule, budget)
        assert proof.lower_at(budget) >= exact(schedule, budget) - 0.015
    assert exact(schedule, proof.budget) >= 0.5
    assert exact(schedule, 1.05 * proof.budget) <= 0.5


def test_corridor_other_shifts_of_the_same_budget_do_less_harm():
    budget = 0.2
    rng = np.random.default_rng(3)
    directions = [np.ones((HORIZON, 1)), *(rng.standard_normal((HORIZON, 1)) for _ in range(20))]
    noise = np.zeros((1, HORIZON))
    worst = simulate(noise, worst_shifts(horizon=HORIZON, gain=GAIN, budget=budget), gain=GAIN)[0]
    for direction in directions:
        shifts = budget * direction / np.linalg.norm(direction)
        assert simulate(noise, shifts, gain=GAIN)[0] <= worst + 1e-12


def wrapped(schedule, attack=None):
    env = Corridor(horizon=HORIZON, post=post(schedule))
    program = CausalProgram.for_space(env.action_space, verifier=AcceptAll(), candidate_map=average())
    return ProposalWrapper(env, program=program, schedule=schedule, seed=0, horizon=HORIZON, attack=attack)


def last_position(schedule, attack=None, trial=0):
    env = wrapped(schedule, attack)
    streams = Streams(protocol="test", root=1, arm="a", trial=trial, reset_seed=trial)
    recorder, row = run_trial(env, Steering(gain=GAIN), horizon=HORIZON, stop=StopRule(), streams=streams)
    return -recorder.steps[-1].reward, row, recorder


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_corridor_runtime_and_vectorised_simulation_agree(schedule):
    budget = 0.2
    attack = Attack(rule=WorstShift(gain=GAIN), limit=energy_limit(budget, schedule), schedule=schedule)
    rng = Streams(protocol="test", root=1, arm="a", trial=3, reset_seed=3).generator(Purpose.PROPOSAL)
    noise = np.array([[schedule.sample_block(np.zeros(1), rng).mean() for _ in range(HORIZON)]])
    shifts = worst_shifts(horizon=HORIZON, gain=GAIN, budget=budget)
    distance, row, recorder = last_position(schedule, attack, trial=3)
    assert distance == pytest.approx(abs(simulate(noise, shifts, gain=GAIN)[0]), abs=1e-12)
    np.testing.assert_allclose([shift.shift for shift in recorder.shifts], shifts, rtol=1e-9)
    assert recorder.shifts[-1].spent <= energy_limit(budget, schedule)
    assert (row.first_cost_step is None) == (row.goal_step is not None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        OpposedShift(),
        RandomShift(),
        ConstantShift(direction=(1.0,)),
        WorstShift(gain=GAIN),
        ScriptedShift(shifts=((0.29,),)),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_corridor_runtime_attacks_stay_above_the_theorem(rule):
    # 300 trials each at 5 standard errors: false-alarm rate below 1e-5 in all.
    schedule, trials, budget = SCHEDULES[2], 300, 0.3
    limit = energy_limit(budget, schedule)
    passed = 0
    for trial in range(trials):
        _, row, _ = last_position(schedule, Attack(rule=rule, limit=limit, schedule=schedule), trial)
        passed += row.first_cost_step is None
    floor = event_lower(exact(schedule, 0.0), math.sqrt(limit))
    assert passed / trials >= floor - 5.0 * math.sqrt(floor * (1.0 - floor) / trials)


def test_corridor_refuses_bad_sizes():
    with pytest.raises(ValueError, match="`horizon`"):
        Corridor(horizon=0)
    with pytest.raises(ValueError, match="`post`"):
        Corridor(post=float("nan"))
    with pytest.raises(ValueError, match="`gain`"):
        Steering(gain=float("inf"))


SHORT, SIGMA, SENSOR = 4, 0.2, 0.6
STAGES = Schedule(
    action=ProposalSchedule(count=4, sigma=SIGMA, rho=0.5), sensor=ProposalSchedule(count=1, sigma=[SENSOR, 0.0])
)


def sensed(level=1.3):
    """Return the scale of the block's mean, the corridor's post at `level` standard deviations, and its probability.

    Written out by hand: the last position is the sum of w_t (n_t - g s_t) with w_t = (1 - g)^(H - 1 - t).
    """
    scale = SIGMA / math.sqrt(STAGES.action.kappa)
    weights = np.array([(1.0 - GAIN) ** k for k in range(SHORT)])
    deviation = math.sqrt(float((weights**2).sum()) * (scale**2 + (GAIN * SENSOR) ** 2))
    return scale, level * deviation, float(norm.cdf(level))


def worst_split(mu):
    """The Lagrangian's solution by hand: each block's shift is proportional to its effect times its variance."""
    scale, _, _ = sensed()
    weights = np.array([(1.0 - GAIN) ** (SHORT - 1 - t) for t in range(SHORT)])
    total = math.sqrt(float((weights**2).sum()) * (scale**2 + (GAIN * SENSOR) ** 2))
    return mu * weights * scale**2 / total, -mu * weights * GAIN * SENSOR**2 / total


def test_corridor_probability_with_sensor_noise_is_the_closed_form():
    scale, post, truth = sensed()
    found = nominal_probability(horizon=SHORT, post=post, start=0.0, gain=GAIN, sigma=scale, kappa=1.0, sensor=SENSOR)
    assert found == pytest.approx(truth, abs=1e-14)


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.5])
def test_corridor_adversary_that_splits_its_energy_attains_the_bound_exactly(mu):
    """No sampling: the shifts' energy is mu^2, and they move the last position by mu standard deviations."""
    scale, post, truth = sensed()
    action, sensor = worst_split(mu)
    shifts = {"action": action[:, None], "sensor": np.column_stack([sensor, np.zeros(SHORT)])}
    assert energy(shifts, STAGES) == pytest.approx(mu**2, rel=1e-12)
    moved = simulate(np.zeros((1, SHORT)), action[:, None], gain=GAIN, errors=sensor[None])[0]
    deviation = post / 1.3
    assert moved == pytest.approx(mu * deviation, rel=1e-12)
    attacked = float(norm.cdf((post - moved) / deviation))
    assert attacked == pytest.approx(float(norm.cdf(norm.ppf(truth) - mu)), abs=1e-12)
    assert attacked == pytest.approx(event_lower(truth, mu), abs=1e-12)
    # One stage alone does less harm with the same energy, so the split matters.
    alone = scale / math.hypot(scale, GAIN * SENSOR)
    assert 0.5 < alone < 0.9
    only = simulate(np.zeros((1, SHORT)), action[:, None] / alone, gain=GAIN)[0]
    assert energy({"action": action[:, None] / alone}, STAGES) == pytest.approx(mu**2, rel=1e-12)
    assert only == pytest.approx(alone * moved, rel=1e-12)


def staged_trials(attack, trials, *, root=4):
    _, post, _ = sensed()
    env = Corridor(horizon=SHORT, post=post)
    program = CausalProgram.for_space(env.action_space, verifier=AcceptAll(), candidate_map=average())
    wrapped = ProposalWrapper(env, program=program, schedule=STAGES, seed=0, horizon=SHORT, attack=attack)
    passed, shifts = 0, None
    for trial in range(trials):
        arm = "nominal" if attack is None else "attacked"
        streams = Streams(protocol="test", root=root, arm=arm, trial=trial).drawn()
        recorder, row = run_trial(wrapped, Steering(gain=GAIN), horizon=SHORT, stop=StopRule(), streams=streams)
        passed += row.first_cost_step is None
        shifts = recorder.shifts
    return passed, shifts


def worst_rule():
    return WorstShift(gain=GAIN, action=sensed()[0], sensor=SENSOR)


def test_corridor_rule_on_both_stages_plays_the_worst_split():
    mu = 1.5
    attack = Attack(rule=worst_rule(), limit=mu**2, schedule=STAGES, stage="all")
    _, lines = staged_trials(attack, 1)
    action, sensor = worst_split(mu)
    np.testing.assert_allclose([line.shift[0] for line in lines], action, rtol=1e-9)
    np.testing.assert_allclose([line.sensor[0] for line in lines], sensor, rtol=1e-9)
    assert all(line.sensor[1] == 0.0 for line in lines)
    assert lines[-1].spent == pytest.approx(mu**2, rel=1e-9)
    assert lines[-1].spent <= mu**2


@pytest.mark.slow
def test_corridor_runtime_attack_on_both_stages_attains_the_certificate_so_that_an_overstated_one_would_be_seen():
    """False-alarm rate: 4e-6, one delta for each of four one-sided bounds."""
    trials, mu, delta = 1_500, 2.2, 1e-6
    _, _, truth = sensed()
    nominal, _ = staged_trials(None, trials)
    attacked, _ = staged_trials(Attack(rule=worst_rule(), limit=mu**2, schedule=STAGES, stage="all"), trials)
    for found, exact_rate in ((nominal, truth), (attacked, event_lower(truth, mu))):
        low = clopper_pearson_lower(found, trials, delta=delta)
        assert low <= exact_rate <= clopper_pearson_upper(found, trials, delta=delta)
    proof = certify_event(nominal, trials, delta=delta, family=1, target=0.3, schedule=STAGES, bound="clopper-pearson")
    action, sensor = worst_split(mu)
    budgets = {"action": float(np.linalg.norm(action)), "sensor": [float(np.linalg.norm(sensor)), 0.0]}
    seen = clopper_pearson_upper(attacked, trials, delta=delta)
    assert proof.lower_at(**budgets) <= seen
    # A certificate that forgot one of the two stages would promise more than what was seen.
    assert seen < proof.lower_at(action=budgets["action"])
    assert seen < proof.lower_at(sensor=budgets["sensor"])
    # So would one that charges the sensor by three times its noise.
    wider = Schedule(action=STAGES.action, sensor=ProposalSchedule(count=1, sigma=[3 * SENSOR, 0.0]))
    forged = certify_event(nominal, trials, delta=delta, family=1, target=0.3, schedule=wider, bound="clopper-pearson")
    assert seen < forged.lower_at(**budgets)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "stage"),
    [
        (worst_rule(), "sensor"),
        (worst_rule(), "action"),
        (RandomShift(), "all"),
        (OpposedShift(), "all"),
        (ConstantShift(direction=(-1.0, 0.0)), "sensor"),
    ],
)
def test_corridor_attacks_on_any_stage_stay_above_the_theorem(rule, stage):
    """False-alarm rate 1e-6 each: the upper end of the interval must reach the exact bound."""
    mu, trials = 1.5, 400
    attacked, _ = staged_trials(Attack(rule=rule, limit=mu**2, schedule=STAGES, stage=stage), trials)
    assert event_lower(sensed()[2], mu) <= clopper_pearson_upper(attacked, trials, delta=1e-6)
