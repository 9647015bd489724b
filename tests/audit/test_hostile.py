"""Components and environments that cheat, by accident or on purpose: none becomes an executed action or a success."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from toys import Line

from ccfs.attacks.attack import Attack
from ccfs.attacks.rules import NoShift
from ccfs.certificates.schedule import ProposalSchedule
from ccfs.policy import certify_policy
from ccfs.runs.events import CostAtMost, GoalBeforeCost, NoAbstention, NoCostUntilGoal
from ccfs.runs.outcomes import Outcome
from ccfs.runtime.components import AcceptAll
from ccfs.runtime.history import Source
from ccfs.runtime.program import CausalProgram, FallbackEntry
from ccfs.runtime.selector import Selector
from ccfs.runtime.wrapper import ProposalWrapper

pytestmark = pytest.mark.slow

BLOCK = ProposalSchedule(count=2, sigma=0.1)


class Ending(gymnasium.Env):
    """Five calm steps; the last one returns what a test asks for."""

    def __init__(self, *, observation=None, goal=False, cost=0.0):
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)
        self.observation, self.goal, self.cost, self.render_mode = observation, goal, cost, None

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1), {}

    def step(self, action):
        self.t += 1
        is_last = self.t == 5
        info = {"cost": self.cost if is_last else 0.0, "goal_met": self.goal if is_last else False}
        return (self.observation if is_last else np.zeros(1)), 0.0, False, False, info


def successes(env, event):
    settings = {"schedule": BLOCK, "horizon": 5, "trials": 3, "target": 0.5, "delta": 0.2, "seed": 0}
    return certify_policy(env, lambda observation: [0.0], event=event, **settings).successes


EVENTS = [NoAbstention(horizon=5), NoCostUntilGoal(horizon=5), CostAtMost(horizon=5, limit=0.0)]


@pytest.mark.parametrize("event", EVENTS)
def test_trial_with_a_calm_last_step_is_a_success(event):
    assert successes(Ending(observation=np.zeros(1)), event) == 3


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(
    "observation", [None, np.array([np.nan], dtype=object), np.array(["bad"]), np.array([np.nan]), np.array([np.inf])]
)
def test_trial_with_a_broken_last_observation_is_a_failure(observation, event):
    assert successes(Ending(observation=observation), event) == 0


@pytest.mark.parametrize("event", [*EVENTS, lambda trace: trace.outcome is not Outcome.NONFINITE])
@pytest.mark.parametrize("cost", [np.nan, np.inf, -np.inf, np.float32(np.nan)])
def test_trial_with_a_cost_that_is_not_finite_is_a_failure(cost, event):
    assert successes(Ending(observation=np.zeros(1), cost=cost), event) == 0


@pytest.mark.parametrize("goal", [np.nan, "False", "yes", 2, [1]])
def test_trial_with_a_goal_that_is_no_truth_value_is_a_failure(goal):
    assert successes(Ending(observation=np.zeros(1), goal=goal), GoalBeforeCost(horizon=5)) == 0


@pytest.mark.parametrize("goal", [True, 1, np.bool_(True), 1.0])
def test_trial_with_a_true_goal_is_a_success(goal):
    assert successes(Ending(observation=np.zeros(1), goal=goal), GoalBeforeCost(horizon=5)) == 3


class OwnBuffer(Ending):
    """Returns its own state array, as many environments do."""

    def reset(self, *, seed=None, options=None):
        self.state = np.ones(1)
        return self.state, {}

    def step(self, action):
        cost = float(self.state[0] > 0.0)
        return self.state, 0.0, False, False, {"cost": cost}


def test_policy_that_writes_into_its_observation_does_not_steer_the_environment():
    def normalising(observation):
        observation -= 6.0
        return [0.0]

    settings = {"schedule": BLOCK, "horizon": 5, "trials": 3, "target": 0.5, "delta": 0.2, "seed": 0}
    event = NoCostUntilGoal(horizon=5)
    assert certify_policy(OwnBuffer(), normalising, event=event, **settings).successes == 0


def test_selector_executes_what_was_verified_even_if_the_candidate_map_keeps_its_array():
    class Both:
        def __call__(self, block):
            self.kept = block.copy()
            return self.kept

        def accepts(self, observation, actions):
            self.kept[:] = 99.0
            return np.ones(len(actions), dtype=bool)

    both = Both()
    program = CausalProgram(low=[-1.0], high=[1.0], verifier=both, candidate_map=both)
    chosen = Selector(program).select(np.zeros(1), np.zeros(1), np.array([[0.1], [0.2]]))
    assert chosen.action.tolist() == [0.1]


def test_selector_gives_every_component_its_own_copies():
    class Spoiler:
        def reset(self):
            pass

        def observe(self, observation):
            observation[:] = 7.0

        def accepts(self, observation, actions):
            observation[:] = 8.0
            actions[:] = 9.0
            return np.zeros(len(actions), dtype=bool)

        def action(self, observation, center):
            observation[:] = 7.0
            center[:] = 7.0
            raise RuntimeError("after spoiling")

    class Reader:
        def action(self, observation, center):
            return np.array([observation[0] + center[0]])

    spoiler = Spoiler()
    entries = (
        FallbackEntry(name="spoiler", fallback=spoiler, unverified=True),
        FallbackEntry(name="reader", fallback=Reader(), unverified=True),
    )
    selector = Selector(CausalProgram(low=[-1.0], high=[1.0], verifier=spoiler, fallbacks=entries))
    observation, center = np.array([0.25]), np.array([0.5])
    selector.reset()
    selector.observe(observation)
    chosen = selector.select(observation, center, np.array([[0.1]]))
    assert (chosen.source, chosen.skipped, chosen.action.tolist()) == (Source.FALLBACK, ("spoiler",), [0.75])
    assert (observation.tolist(), center.tolist()) == ([0.25], [0.5])


class Exiting:
    """A verifier that leaves the process."""

    def accepts(self, observation, actions):
        raise SystemExit(0)


def test_verifier_that_exits_has_rejected():
    program = CausalProgram(low=[-1.0], high=[1.0], verifier=Exiting())
    assert Selector(program).select(np.zeros(1), np.zeros(1), np.zeros((2, 1))).source is Source.ABSTAIN


def test_controller_that_exits_is_a_crashed_trial():
    class Leaving:
        digest = "leaving"

        def reset(self):
            self.calls = 0

        def center(self, observation):
            self.calls += 1
            if self.calls > 3:
                raise SystemExit(0)
            return np.zeros(1)

    settings = {"schedule": BLOCK, "horizon": 5, "trials": 3, "target": 0.5, "delta": 0.2, "seed": 0}
    found = certify_policy(Ending(observation=np.zeros(1)), Leaving(), event=NoAbstention(horizon=5), **settings)
    assert found.successes == 0


def test_wrapper_draws_no_second_block_for_a_step_that_was_interrupted():
    class Interrupting:
        def accepts(self, observation, actions):
            raise KeyboardInterrupt

    env = Line()
    program = CausalProgram.for_space(env.action_space, verifier=Interrupting())
    wrapped = ProposalWrapper(env, program=program, schedule=BLOCK, seed=0)
    wrapped.reset(seed=0)
    with pytest.raises(KeyboardInterrupt):
        wrapped.step(np.zeros(2))
    with pytest.raises(RuntimeError, match="`reset` must be called"):
        wrapped.step(np.zeros(2))


def test_wrapper_refuses_a_program_that_leaves_the_action_space():
    env = Line(dtype=np.float32)
    wide = CausalProgram(low=[-5.0, -5.0], high=[5.0, 5.0], verifier=AcceptAll(), dtype="float32")
    with pytest.raises(ValueError, match="`program` must keep to the action box"):
        ProposalWrapper(env, program=wide, schedule=BLOCK, seed=0)
    double = CausalProgram(low=[-1.0, -1.0], high=[1.0, 1.0], verifier=AcceptAll(), dtype="float64")
    with pytest.raises(ValueError, match="`program` must have the action precision"):
        ProposalWrapper(env, program=double, schedule=BLOCK, seed=0)


def test_wrapper_refuses_an_attack_that_charges_by_other_schedules():
    env = Line()
    program = CausalProgram.for_space(env.action_space, verifier=AcceptAll())
    cheap = Attack(rule=NoShift(), limit=1.0, schedule=ProposalSchedule(count=2, sigma=100.0))
    with pytest.raises(ValueError, match="`attack` must charge by the wrapper's own schedule"):
        ProposalWrapper(env, program=program, schedule=BLOCK, seed=0, horizon=5, attack=cheap)
