"""Random programs: the shifted probability never falls below what the nominal trials certify."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from toys import Line, Push

from ccfs.attacks.attack import Attack
from ccfs.attacks.ledger import energy_limit
from ccfs.attacks.rules import BurstShift, ConstantShift, GreedyShift, OpposedShift, RandomShift
from ccfs.certificates.binomial import clopper_pearson_lower, clopper_pearson_upper
from ccfs.certificates.schedule import ProposalSchedule
from ccfs.certificates.trajectory import certify_event
from ccfs.runs.trial import StopRule, run_trial
from ccfs.runtime.components import BoxVerifier, CenterFallback, FixedFallback
from ccfs.runtime.program import CausalProgram, FallbackEntry
from ccfs.runtime.streams import Streams
from ccfs.runtime.wrapper import ProposalWrapper

pytestmark = pytest.mark.slow
TRIALS, DELTA = 120, 1e-6


class Spender:
    """Adaptive: spends everything at once, upwards, as soon as the position is above a level."""

    def __init__(self, level):
        self.level = level

    def reset(self):
        pass

    def shift(self, history, rng, *, allowance):
        is_time = history.observation[0] > self.level or history.t + 1 == history.horizon
        return np.array([allowance if is_time else 0.0, 0.0])


def upwards(observation, actions):
    return actions[:, 0]


schedules = st.one_of(
    st.builds(ProposalSchedule, count=st.just(1), sigma=st.floats(0.1, 0.6)),
    st.builds(ProposalSchedule, count=st.integers(2, 5), sigma=st.floats(0.1, 0.6), rho=st.floats(0.0, 0.95)),
)
rules = st.one_of(
    st.just(OpposedShift()),
    st.just(ConstantShift(direction=(1.0, 0.0))),
    st.just(RandomShift()),
    st.just(GreedyShift(critic=upwards)),
    st.builds(BurstShift, step=st.integers(0, 3), direction=st.just((1.0, 0.0))),
    st.builds(Spender, st.floats(-0.1, 0.5)),
)
fallbacks = st.sampled_from(
    [
        (),
        (FallbackEntry(name="stop", fallback=FixedFallback((0.0, 0.0))),),
        (FallbackEntry(name="center", fallback=CenterFallback(), unverified=True),),
    ]
)


def count(program_parts, schedule, horizon, level, attack):
    """Trials that stay below the level at every step without abstaining."""
    env = Line(noise=0.02)
    program = CausalProgram.for_space(env.action_space, **program_parts)
    wrapped = ProposalWrapper(env, program=program, schedule=schedule, seed=0, horizon=horizon, attack=attack)
    hits = 0
    for trial in range(TRIALS):
        # The attacked trials have their own streams: the two counts are independent.
        streams = Streams(protocol="test", root=0, arm="nominal" if attack is None else "attacked", trial=trial).drawn()
        recorder, row = run_trial(wrapped, Push(), horizon=horizon, stop=StopRule(), streams=streams)
        hits += row.outcome == "horizon" and all(step.reward <= level for step in recorder.steps)
    return hits


@settings(max_examples=20)
@given(
    schedule=schedules,
    rule=rules,
    entries=fallbacks,
    width=st.floats(0.3, 1.0),
    horizon=st.integers(1, 5),
    budget=st.floats(0.0, 0.6),
    level=st.floats(0.1, 0.6),
)
def test_random_programs_never_fall_below_their_certificate(schedule, rule, entries, width, horizon, budget, level):
    # False-alarm rate: at most 2e-6 an example (one delta for each count), 4e-5 in all.
    parts = {"verifier": BoxVerifier(low=(-width, -width), high=(width, width)), "fallbacks": entries}
    nominal = count(parts, schedule, horizon, level, None)
    attack = Attack(rule=rule, limit=energy_limit(budget, schedule), schedule=schedule)
    attacked = count(parts, schedule, horizon, level, attack)
    proof = certify_event(
        nominal, TRIALS, delta=DELTA, family=1, target=0.5, schedule=schedule, bound="clopper-pearson"
    )
    assert proof.lower_at(budget) <= clopper_pearson_upper(attacked, TRIALS, delta=DELTA)


class Sum(gymnasium.Env):
    """Adds up the actions: with centers far from the box's edge the sum is Gaussian and nothing blunts an attack."""

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = gymnasium.spaces.Box(-100.0, 100.0, (1,), np.float64)
        self.render_mode = None

    def reset(self, *, seed=None, options=None):
        self.total = 0.0
        return np.array([self.total]), {}

    def step(self, action):
        self.total += float(action[0])
        return np.array([self.total]), self.total, False, False, {}


class Still:
    """A controller that asks for no action."""

    digest = "still"

    def reset(self):
        pass

    def center(self, observation):
        return np.zeros(1)


def test_runtime_attack_attains_the_certificate_so_that_an_overstated_one_would_be_seen():
    """False-alarm rate: 3e-6. The even push is the worst causal rule here: its rate is Phi(Phi^-1(p) - mu)."""
    schedule, horizon, trials, mu, delta = ProposalSchedule(count=1, sigma=0.2), 4, 2_000, 1.5, 1e-6
    level = 1.3 * schedule.sigma * math.sqrt(horizon)

    def below(attack):
        env = Sum()
        program = CausalProgram.for_space(env.action_space, verifier=BoxVerifier(low=(-99.0,), high=(99.0,)))
        wrapped = ProposalWrapper(env, program=program, schedule=schedule, seed=0, horizon=horizon, attack=attack)
        hits = 0
        for trial in range(trials):
            arm = "nominal" if attack is None else "attacked"
            streams = Streams(protocol="test", root=5, arm=arm, trial=trial).drawn()
            recorder, _ = run_trial(wrapped, Still(), horizon=horizon, stop=StopRule(), streams=streams)
            hits += recorder.steps[-1].reward <= level
        return hits

    nominal = below(None)
    attacked = below(Attack(rule=ConstantShift(direction=(1.0,)), limit=mu**2, schedule=schedule))
    proof = certify_event(
        nominal, trials, delta=delta, family=1, target=0.5, schedule=schedule, bound="clopper-pearson"
    )
    seen = clopper_pearson_upper(attacked, trials, delta=delta)
    assert proof.lower_at(mu * schedule.sigma) <= seen
    assert clopper_pearson_lower(attacked, trials, delta=delta) <= norm.cdf(1.3 - mu) <= seen
    # A certificate that promised for the whole budget what holds at half of it would be caught here.
    assert seen < proof.lower_at(mu * schedule.sigma / 2)
