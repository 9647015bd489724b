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
from ccfs.attacks.rules import BurstShift, ConstantShift, GreedyShift, OpposedShift, RandomShift, fit
from ccfs.certificates.binomial import clopper_pearson_lower, clopper_pearson_upper
from ccfs.certificates.gaussian import event_lower
from ccfs.certificates.schedule import ProposalSchedule, Schedule, Stage
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


class Back:
    """A controller that reads the position and pushes, less the farther it is."""

    digest = "back"

    def reset(self):
        pass

    def center(self, observation):
        return np.array([0.8 - 0.6 * float(observation[0]), 0.1])


class Near:
    """A verifier that reads the position: it accepts what keeps the next one below a level."""

    def __init__(self, level):
        self.level = level

    def accepts(self, observation, actions):
        return observation[0] + 0.1 * actions[:, 0] <= self.level


class Walk(Line):
    """The line with three discrete actions: to the left, stay, to the right."""

    def __init__(self):
        super().__init__(noise=0.02)
        self.action_space = gymnasium.spaces.Discrete(3)

    def step(self, action):
        self.x += 0.1 * (int(action) - 1) + self.noise * float(self.np_random.normal())
        self.t += 1
        return self._see(), self.x, False, False, {"cost": float(self.x > 1.0)}


class Lean:
    """Scores that prefer the right, less the farther it is."""

    digest = "lean"

    def reset(self):
        pass

    def center(self, observation):
        x = float(observation[0])
        return np.array([x, 0.1, 0.5 - x])


class Only:
    """A verifier of action numbers that forbids the right beyond a level that it reads."""

    def __init__(self, level):
        self.level = level

    def accepts(self, observation, actions):
        return (actions != 2) | (observation[0] <= self.level)


class Pusher:
    """Adaptive: pushes everything it has left at one stage of one step, where that helps the position upwards."""

    def __init__(self, step, sign):
        self.step, self.sign = step, sign

    def reset(self):
        pass

    def shift(self, history, rng, *, allowance):
        is_time = history.t == self.step or history.observation[0] > 0.3
        direction = np.zeros_like(history.center)
        direction[-1 if history.stage is Stage.SCORE else 0] = (
            -self.sign if history.stage is Stage.SENSOR else self.sign
        )
        return fit(direction, allowance if is_time else 0.0, history.scales)


scales = st.floats(0.1, 0.6)
sensors = st.one_of(
    st.builds(ProposalSchedule, count=st.just(1), sigma=st.floats(0.05, 0.5)),
    st.builds(ProposalSchedule, count=st.just(1), sigma=st.tuples(st.floats(0.05, 0.5), st.just(0.0), scales)),
)
deciding = st.one_of(
    schedules,
    st.builds(ProposalSchedule, count=st.integers(2, 4), sigma=st.tuples(scales, scales), rho=st.floats(0.0, 0.95)),
    st.builds(ProposalSchedule, count=st.just(1), sigma=st.tuples(scales, st.just(0.0))),
)
readers = st.sampled_from(["all", "controller"])
plans = st.one_of(
    st.builds(Schedule, action=deciding, sensor=sensors, readers=readers),
    st.builds(Schedule, sensor=sensors, readers=readers),
    st.builds(Schedule, action=deciding),
)
score_plans = st.one_of(
    st.builds(Schedule, score=schedules),
    st.builds(Schedule, score=schedules, sensor=sensors, readers=readers),
)
stage_rules = st.one_of(
    st.just(OpposedShift()), st.just(RandomShift()), st.builds(Pusher, st.integers(0, 3), st.sampled_from([1.0, -1.0]))
)


def count_stages(env, controller, parts, schedule, horizon, level, attack):
    """Trials that stay below the level at every step without abstaining, by the true position."""
    program = CausalProgram.for_space(env.action_space, **parts)
    wrapped = ProposalWrapper(env, program=program, schedule=schedule, seed=0, horizon=horizon, attack=attack)
    hits = 0
    for trial in range(TRIALS):
        streams = Streams(protocol="test", root=0, arm="nominal" if attack is None else "attacked", trial=trial).drawn()
        recorder, row = run_trial(wrapped, controller, horizon=horizon, stop=StopRule(), streams=streams)
        hits += row.outcome == "horizon" and all(step.reward <= level for step in recorder.steps)
    return hits


def stays_above(env, controller, parts, schedule, rule, stage, horizon, mu, level):
    """Assert that the attacked rate can be what the nominal trials certify at this size."""
    names = [part.value for part in schedule.stages]
    attack = Attack(rule=rule, limit=mu**2, schedule=schedule, stage=stage if stage in names else "all")
    nominal = count_stages(env, controller, parts, schedule, horizon, level, None)
    attacked = count_stages(env, controller, parts, schedule, horizon, level, attack)
    proof = certify_event(
        nominal, TRIALS, delta=DELTA, family=1, target=0.5, schedule=schedule, bound="clopper-pearson"
    )
    seen = clopper_pearson_upper(attacked, TRIALS, delta=DELTA)
    assert event_lower(proof.p_lower, mu) <= seen
    # The budget of one stage alone is the same promise in the stage's own unit.
    for part in schedule.stages:
        size = mu / math.sqrt(max(block.charge for block in schedule.blocks(part)))
        assert proof.lower_at(**{part.value: size}) == pytest.approx(
            event_lower(proof.p_lower, mu), rel=1e-9, abs=1e-300
        )


@settings(max_examples=16)
@given(
    schedule=plans,
    rule=stage_rules,
    stage=st.sampled_from(["sensor", "action", "all"]),
    entries=fallbacks,
    limit=st.floats(0.2, 1.0),
    horizon=st.integers(1, 4),
    mu=st.floats(0.0, 2.0),
    level=st.floats(0.1, 0.6),
)
def test_random_programs_with_stages_never_fall_below_their_certificate(
    schedule, rule, stage, entries, limit, horizon, mu, level
):
    # False-alarm rate: at most 2e-6 an example, 4e-5 in all.
    parts = {"verifier": Near(limit), "fallbacks": entries}
    stays_above(Line(noise=0.02), Back(), parts, schedule, rule, stage, horizon, mu, level)


@settings(max_examples=12)
@given(
    schedule=score_plans,
    rule=stage_rules,
    stage=st.sampled_from(["sensor", "score", "all"]),
    retreat=st.sampled_from([(), (0,), (2,)]),
    limit=st.floats(0.0, 0.4),
    horizon=st.integers(1, 4),
    mu=st.floats(0.0, 2.0),
    level=st.floats(0.05, 0.3),
)
def test_random_programs_of_discrete_actions_never_fall_below_their_certificate(
    schedule, rule, stage, retreat, limit, horizon, mu, level
):
    # False-alarm rate: at most 2e-6 an example, 3e-5 in all.
    entries = tuple(FallbackEntry(name="f", fallback=FixedFallback((number,))) for number in retreat)
    parts = {"verifier": Only(limit), "fallbacks": entries}
    stays_above(Walk(), Lean(), parts, schedule, rule, stage, horizon, mu, level)


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
