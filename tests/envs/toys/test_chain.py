from __future__ import annotations

import math

import numpy as np
import pytest

from ccfs.attacks.attack import Attack
from ccfs.certificates.gaussian import event_lower
from ccfs.certificates.schedule import ProposalSchedule, Schedule
from ccfs.certificates.trajectory import certify_event
from ccfs.envs.toys.chain import (
    Chain,
    ChainAdversary,
    ChainController,
    ChainFallback,
    ChainSpec,
    ChainVerifier,
    Switch,
    SwitchAdversary,
    SwitchController,
    SwitchFallback,
    SwitchSpec,
    SwitchVerifier,
    solve,
    solve_switch,
    step_law,
    switch_law,
)
from ccfs.runs.events import NoCostUntilGoal, holds
from ccfs.runs.record import StepRow, table_of
from ccfs.runs.trace import traces
from ccfs.runs.trial import StopRule, run_trial
from ccfs.runtime.program import CausalProgram, FallbackEntry
from ccfs.runtime.streams import Streams
from ccfs.runtime.wrapper import ProposalWrapper, Widths

HORIZON, UNITS, UNIT = 8, 16, 0.0625
SPEC = ChainSpec()
# In state 3 the retreat is rejected: exhausting the proposals there abstains.
HARD = ChainSpec(retreats=(0.0, 0.0, -0.5, -0.95, 0.0), lows=(-1.0, -1.0, -1.0, -0.6, -1.0))
SCHEDULES = [
    ProposalSchedule(count=1, sigma=0.3),
    ProposalSchedule(count=4, sigma=0.3, rho=0.0),
    ProposalSchedule(count=4, sigma=0.3, rho=0.5),
    ProposalSchedule(count=4, sigma=0.3, rho=0.93),
]


def run(spec, schedule, trials, adversary=None, limit=0.0):
    """Successes of the real runtime."""
    env = Chain(spec)
    entry = FallbackEntry(name="retreat", fallback=ChainFallback(spec))
    program = CausalProgram.for_space(env.action_space, verifier=ChainVerifier(spec), fallbacks=(entry,))
    attack = None if adversary is None else Attack(rule=adversary, limit=limit, schedule=schedule)
    wrapped = ProposalWrapper(env, program=program, schedule=schedule, seed=0, horizon=HORIZON, attack=attack)
    rows, steps = [], []
    for trial in range(trials):
        streams = Streams(protocol="test", root=9, arm=repr((spec, schedule)), trial=trial, reset_seed=trial)
        recorder, row = run_trial(wrapped, ChainController(spec), horizon=HORIZON, stop=StopRule(), streams=streams)
        rows.append(row)
        steps += recorder.steps
    event = NoCostUntilGoal(horizon=HORIZON)
    return sum(holds(event, trace) for trace in traces(rows, table_of(StepRow, steps, Widths(1, 1))))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("state", [0, 1, 2, 3])
@pytest.mark.parametrize("shift", [0.0, 0.35])
def test_chain_step_law_is_a_law_and_matches_drawing(schedule, state, shift):
    # Oracle: the definition, by drawing blocks. 32 cases of 5 outcomes at 5 standard errors: below 1e-4 in all.
    law, abstains = step_law(HARD, schedule, state, shift)
    assert law.sum() + abstains == pytest.approx(1.0, abs=1e-9)
    rng, trials = np.random.default_rng(state), 20_000
    noise = math.sqrt(schedule.rho) * rng.standard_normal((trials, 1))
    noise = noise + math.sqrt(1.0 - schedule.rho) * rng.standard_normal((trials, schedule.count))
    actions = np.clip(HARD.centers[state] + shift + schedule.sigma * noise, -1.0, 1.0)
    accepted = (actions >= HARD.lows[state]) & (actions <= HARD.highs[state])
    first = actions[np.arange(trials), accepted.argmax(axis=1)]
    drawn = np.zeros(6)
    for action, is_any in zip(first, accepted.any(axis=1), strict=True):
        if is_any:
            drawn[HARD.after(state, action)] += 1
        elif HARD.lows[state] <= HARD.retreats[state] <= HARD.highs[state]:
            drawn[HARD.after(state, HARD.retreats[state])] += 1
        else:
            drawn[5] += 1
    for truth, found in zip([*law, abstains], drawn / trials, strict=True):
        assert abs(truth - found) <= 5.0 * math.sqrt(max(truth * (1.0 - truth), 1.0 / trials) / trials)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [SPEC, HARD], ids=["retreats", "abstains"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_chain_theorem_lies_below_the_solved_adversary(spec, schedule):
    solution = solve(spec, schedule, horizon=HORIZON, units=UNITS, unit=UNIT)
    nominal = solution.nominal()
    assert 0.3 < nominal < 0.999
    previous = nominal
    for units in range(UNITS + 1):
        worst = solution.attacked(units)
        # mu rounded up only lowers the left side; 1e-9 covers the quadrature.
        assert event_lower(nominal, math.sqrt(units * UNIT)) <= worst + 1e-9
        assert worst <= previous + 1e-12
        previous = worst
    assert previous < nominal - 0.05


@pytest.mark.slow
@pytest.mark.parametrize("spec", [SPEC, HARD], ids=["retreats", "abstains"])
@pytest.mark.parametrize("schedule", [SCHEDULES[0], SCHEDULES[2]], ids=["one", "four"])
def test_chain_runtime_gives_the_solved_probabilities_and_the_certificate_holds(spec, schedule):
    # Two binomials at 5 standard errors in each of 4 cases: false-alarm rate below 1e-5; certificates at delta 1e-6.
    trials = 1000
    solution = solve(spec, schedule, horizon=HORIZON, units=UNITS, unit=UNIT)
    limit = UNITS * UNIT
    hits = run(spec, schedule, trials)
    attacked = run(spec, schedule, trials, ChainAdversary(solution, UNITS), limit)
    for found, truth in ((hits, solution.nominal()), (attacked, solution.attacked(UNITS))):
        assert abs(found / trials - truth) <= 5.0 * math.sqrt(truth * (1.0 - truth) / trials)
    proof = certify_event(hits, trials, delta=1e-6, family=1, target=0.2, schedule=schedule, bound="clopper-pearson")
    for units in (0, 4, UNITS):
        budget = math.sqrt(units * UNIT / schedule.charge)
        assert proof.lower_at(budget) <= solution.attacked(units)


def test_chain_spec_refuses():
    with pytest.raises(ValueError, match="`lows` must have one entry"):
        ChainSpec(lows=(0.0,))
    with pytest.raises(ValueError, match="`start`"):
        ChainSpec(start=4)
    with pytest.raises(ValueError, match="`edge`"):
        ChainSpec(edge=0.0)


SWITCH = SwitchSpec()
# In state 2 up and the retreat are rejected: exhausting the proposals there abstains.
STRICT = SwitchSpec(
    scores=((0.0, 0.8), (0.0, 0.2), (0.6, 0.0), (0.9, 0.0), (0.0, 0.0)),
    allowed=((0, 1), (0, 1), (0,), (0, 1), (0, 1)),
    retreats=(0, 0, 1, 0, 0),
)
SCORES = [
    ProposalSchedule(count=1, sigma=0.5),
    ProposalSchedule(count=3, sigma=0.5, rho=0.0),
    ProposalSchedule(count=3, sigma=0.5, rho=0.8),
]


def run_switch(spec, schedule, trials, adversary=None, limit=0.0):
    """Successes of the real runtime, by the cost that the environment reports."""
    env = Switch(spec)
    entry = FallbackEntry(name="retreat", fallback=SwitchFallback(spec))
    program = CausalProgram.for_space(env.action_space, verifier=SwitchVerifier(spec), fallbacks=(entry,))
    attack = None if adversary is None else Attack(rule=adversary, limit=limit, schedule=Schedule(score=schedule))
    wrapped = ProposalWrapper(env, program=program, schedule=schedule, seed=0, horizon=HORIZON, attack=attack)
    hits = 0
    for trial in range(trials):
        streams = Streams(protocol="test", root=9, arm=repr((spec, schedule)), trial=trial, reset_seed=trial)
        _, row = run_trial(wrapped, SwitchController(spec), horizon=HORIZON, stop=StopRule(), streams=streams)
        hits += row.outcome == "horizon"
    return hits


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCORES)
@pytest.mark.parametrize("state", [0, 1, 2, 3])
@pytest.mark.parametrize("shift", [0.0, 0.35])
def test_switch_law_is_a_law_and_matches_drawing(schedule, state, shift):
    # Oracle: the definition, by drawing blocks. 24 cases of 6 outcomes at 5 standard errors: below 1e-4 in all.
    law, abstains = switch_law(STRICT, schedule, state, shift)
    assert law.sum() + abstains == pytest.approx(1.0, abs=1e-9)
    rng, trials = np.random.default_rng(state), 20_000
    noise = math.sqrt(schedule.rho) * rng.standard_normal((trials, 1, 2))
    noise = noise + math.sqrt(1.0 - schedule.rho) * rng.standard_normal((trials, schedule.count, 2))
    moved = np.array(STRICT.scores[state]) + shift * np.array([-1.0, 1.0]) / math.sqrt(2.0)
    actions = (moved + schedule.sigma * noise).argmax(axis=2)
    accepted = np.isin(actions, STRICT.allowed[state])
    first = actions[np.arange(trials), accepted.argmax(axis=1)]
    drawn = np.zeros(6)
    for action, is_any in zip(first, accepted.any(axis=1), strict=True):
        if is_any:
            drawn[STRICT.after(state, action)] += 1
        elif STRICT.retreats[state] in STRICT.allowed[state]:
            drawn[STRICT.after(state, STRICT.retreats[state])] += 1
        else:
            drawn[5] += 1
    for truth, found in zip([*law, abstains], drawn / trials, strict=True):
        assert abs(truth - found) <= 5.0 * math.sqrt(max(truth * (1.0 - truth), 1.0 / trials) / trials)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [SWITCH, STRICT], ids=["free", "strict"])
@pytest.mark.parametrize("schedule", SCORES)
def test_switch_theorem_lies_below_the_solved_adversary(spec, schedule):
    solution = solve_switch(spec, schedule, horizon=HORIZON, units=UNITS, unit=UNIT)
    nominal = solution.nominal()
    assert 0.2 < nominal < 0.999
    previous = nominal
    for units in range(UNITS + 1):
        worst = solution.attacked(units)
        assert event_lower(nominal, math.sqrt(units * UNIT)) <= worst + 1e-9
        assert worst <= previous + 1e-12
        previous = worst
    assert previous < nominal - 0.05


def test_switch_bound_is_attained_by_one_step_of_one_draw():
    """One step from next to the danger is a half-space of the difference of two scores: the comparison is exact."""
    spec, schedule = SwitchSpec(start=3), SCORES[0]
    solution = solve_switch(spec, schedule, horizon=1, units=UNITS, unit=UNIT)
    for units in range(UNITS + 1):
        bound = event_lower(solution.nominal(), math.sqrt(units * UNIT))
        assert solution.attacked(units) == pytest.approx(bound, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [SWITCH, STRICT], ids=["free", "strict"])
@pytest.mark.parametrize("schedule", [SCORES[0], SCORES[2]], ids=["one", "three"])
def test_switch_runtime_gives_the_solved_probabilities_and_the_certificate_holds(spec, schedule):
    # Two binomials at 5 standard errors in each of 4 cases: false-alarm rate below 1e-5; certificates at delta 1e-6.
    trials = 1000
    solution = solve_switch(spec, schedule, horizon=HORIZON, units=UNITS, unit=UNIT)
    hits = run_switch(spec, schedule, trials)
    attacked = run_switch(spec, schedule, trials, SwitchAdversary(solution, UNITS), UNITS * UNIT)
    for found, truth in ((hits, solution.nominal()), (attacked, solution.attacked(UNITS))):
        assert abs(found / trials - truth) <= 5.0 * math.sqrt(truth * (1.0 - truth) / trials)
    plan = Schedule(score=schedule)
    proof = certify_event(hits, trials, delta=1e-6, family=1, target=0.1, schedule=plan, bound="clopper-pearson")
    for units in (0, 4, UNITS):
        budget = math.sqrt(units * UNIT / schedule.charge)
        assert proof.lower_at(score=budget) <= solution.attacked(units)


def test_switch_spec_refuses():
    with pytest.raises(ValueError, match="`scores` must have one entry"):
        SwitchSpec(retreats=(0,))
    with pytest.raises(ValueError, match="`start`"):
        SwitchSpec(start=4)
