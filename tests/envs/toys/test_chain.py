from __future__ import annotations

import math

import numpy as np
import pytest

from ccfs.attacks.attack import Attack
from ccfs.certificates.gaussian import event_lower
from ccfs.certificates.schedule import ProposalSchedule
from ccfs.certificates.trajectory import certify_event
from ccfs.envs.toys.chain import (
    Chain,
    ChainAdversary,
    ChainController,
    ChainFallback,
    ChainSpec,
    ChainVerifier,
    solve,
    step_law,
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
