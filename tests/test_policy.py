"""One call gives the certificate that the counts give, from trials that repeat, refuses early, and leaves a run."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import random
import shutil
from contextlib import suppress
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import ccfs
from ccfs.audit.run import audit
from ccfs.certificates.binomial import clopper_pearson_lower
from ccfs.certificates.trajectory import certify_event
from ccfs.cli.main import app
from ccfs.envs.toys.corridor import make, make_steering, nominal_probability
from ccfs.files.digests import canonical_json
from ccfs.protocol.errors import ProtocolError
from ccfs.results.certificate import RunCertificate
from ccfs.runs.build import check
from ccfs.runs.generators import generators_now
from ccfs.runs.manifest import write_manifest
from ccfs.runs.store import RunError, Store

pytestmark = pytest.mark.slow
SCHEDULE = ccfs.ProposalSchedule(count=1, sigma=0.2)
CLAIM = {"schedule": SCHEDULE, "horizon": 5, "target": 0.5, "delta": 0.01, "seed": 3}


def steer(observation):
    return [-0.2 * observation[0]]


class Model:
    """As Stable-Baselines3 has it."""

    def predict(self, observation, *, deterministic):
        assert deterministic
        return np.array(steer(observation), dtype=np.float32), None


class Gain:
    """A policy that cannot be made without its number."""

    def __init__(self, gain):
        self.gain = gain

    def __call__(self, observation):
        return self.gain * observation[:1]


class Nones:
    """A verifier that forgot its answer."""

    def accepts(self, observation, actions):
        return None


def passes(trace):
    return bool(trace.goal.any())


def test_certify_policy_counts_what_happens():
    """Oracle: the corridor's exact probability, 0.867; 300 trials miss it by 0.1 with probability under 1e-5."""
    made = ccfs.certify_policy(make(horizon=5, post=0.35), steer, event=passes, trials=300, **CLAIM)
    truth = nominal_probability(horizon=5, post=0.35, start=0.0, gain=0.2, sigma=0.2, kappa=1.0)
    assert made.successes / 300 == pytest.approx(truth, abs=0.1)
    assert made.p_lower == clopper_pearson_lower(made.successes, 300, delta=0.01)
    assert (made.event, made.trials, made.family) == ("passes", 300, 1)


def test_certify_policy_with_draws_certifies_strata_and_the_run_is_audited(tmp_path):
    """The corridor starts from one place, so all strata are alike: the rates agree and a count would certify more."""
    env, event = make(horizon=5, post=0.35), ccfs.GoalBeforeCost(horizon=5)
    made = ccfs.certify_policy(
        env, steer, event=event, trials=320, draws=(1, 7), run=tmp_path / "run", **{**CLAIM, "delta": 0.05}
    )
    proof = made.trajectory
    assert (proof.strata, set(proof.pilot_draws), set(proof.main_draws)) == (40, {1}, {7})
    assert (made.trials, made.is_certified, made.p_lower) == (320, True, 0.5)
    assert "280 counted nominal trials at 40 reset seeds, after a pilot of 40" in made.sentence
    report = ccfs.audit_policy(tmp_path / "run", env, steer, event=event, replay=3)
    assert (report.faults, report.replayed) == ((), 3)


@pytest.mark.parametrize(
    ("draws", "error", "message"),
    [
        ((1, 6), ValueError, r"`trials` must be a multiple of the 7 draws at each initial state, got 40"),
        ((0, 0), ValueError, r"`draws\[1\]`"),
        ((-1, 5), ValueError, r"`draws\[0\]`"),
        ((4,), TypeError, r"`draws` must be a pair \(pilot, main\)"),
        (8, TypeError, r"`draws` must be a pair \(pilot, main\)"),
        ((2.0, 2), TypeError, r"`draws\[0\]`"),
    ],
)
def test_certify_policy_refuses_draws(draws, error, message):
    with pytest.raises(error, match=message):
        ccfs.certify_policy(make(horizon=5, post=0.35), steer, event=passes, trials=40, draws=draws, **CLAIM)


def test_certify_policy_with_too_few_strata_is_refused_before_the_first_trial():
    with pytest.raises(ValueError, match=r"`trials` must be enough to certify `target`, but even 8 of 8 successes"):
        ccfs.certify_policy(make(horizon=5, post=0.35), steer, event=passes, trials=8, draws=(0, 4), **CLAIM)


@pytest.mark.parametrize("policy", [steer, Model(), make_steering(gain=0.2)])
def test_certify_policy_takes_functions_models_and_controllers(policy):
    """Each has a noise of its own, because its protocol names another policy. So their counts differ."""
    event = ccfs.GoalBeforeCost(horizon=5)
    made = ccfs.certify_policy(make(horizon=5, post=0.35), policy, event=event, trials=40, **CLAIM)
    assert 25 < made.successes < 40  # with p = 0.867, outside of this with probability under 0.005
    assert made == ccfs.certify_policy(make(horizon=5, post=0.35), policy, event=event, trials=40, **CLAIM)


def test_certify_policy_names_a_torch_module_that_reads_other_observations():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="`policy` must answer an observation, but it raised RuntimeError: mat1"):
        ccfs.certify_policy(make(horizon=5), torch.nn.Linear(9, 1), event=passes, trials=7, **CLAIM)


def test_certificate_of_objects_says_the_numbers_of_its_event():
    """Without them, "the probability of ReturnAtLeast" is a claim about nobody knows which return."""
    event = ccfs.AllOf(events=(ccfs.ReturnAtLeast(horizon=5, value=-4.0), ccfs.NoAbstention(horizon=5)))
    made = ccfs.certify_policy(make(horizon=5), steer, event=event, trials=7, **CLAIM)
    said = "The probability of AllOf(ReturnAtLeast(horizon=5, value=-4.0), NoAbstention(horizon=5)) is "
    assert made.sentence.startswith(said)
    assert RunCertificate.model_validate_json(made.to_json()).sentence == made.sentence


def test_certify_policy_draws_fresh_starts_and_noise():
    seen = []

    def record(trace):
        seen.append((trace.centers[0, 0], trace.actions[0, 0]))
        return True

    env = gymnasium.make("Pendulum-v1")
    ccfs.certify_policy(env, lambda o: [o[2] / 8.0], event=record, trials=7, **{**CLAIM, "horizon": 2})
    assert len({center for center, _ in seen}) == 7
    assert len({a - c for a, c in seen}) == 7


def test_certify_policy_counts_abstention_as_it_is_seen():
    never = ccfs.BoxVerifier(low=[5.0], high=[6.0])
    made = ccfs.certify_policy(make(horizon=5), steer, event=ccfs.NoAbstention(horizon=5), trials=7, verifier=never, **CLAIM)  # fmt: skip  # noqa: E501
    assert (made.successes, made.mu) == (0, None)
    assert ccfs.in_words(made) == (
        "The probability of NoAbstention(horizon=5) is not certified to be at least 0.5: its lower bound is 0.0000 "
        f"(0 of 7 nominal trials, failure probability {made.delta:g}). "
        "7 of 7 nominal trials failed because no action was accepted."
    )


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"trials": 0}, ValueError, "`trials`"),
        ({"delta": float("nan")}, ValueError, "`delta`"),
        ({"target": 1.0}, ValueError, "`target`"),
        ({"trials": 6}, ValueError, "even 6 of 6 would certify only 0.4641, below the target 0.5; at least 7 trials"),
        ({"family": 2}, ValueError, "`trials` must be enough to certify `target`, but even 7 of 7"),
        ({"env": "Pendulum-v1"}, TypeError, r"`env` must be .*, got 'Pendulum-v1'. Make it first: gymnasium.make"),
        ({"env": 3}, TypeError, "`env` must be a Gymnasium environment, or a function that makes one, got 3"),
        ({"env": lambda: 3}, TypeError, "`env` must be an environment or a function that makes one, got 3 from it"),
        ({"env": gymnasium.make("Pendulum-v1"), "horizon": 201}, ValueError, "`horizon` must be at most 200, .* `env`"),
        ({"policy": 3}, TypeError, "`policy`"),
        ({"policy": Gain}, TypeError, "`policy` must be made first, got the class Gain"),
        ({"policy": lambda: 3}, TypeError, "`policy` must be .*, got 3"),
        ({"policy": lambda o: Model().predict(o, deterministic=True)}, TypeError, r"got a pair \(action, state\)"),
        ({"policy": lambda o: (np.array([0.1]), np.zeros(3))}, TypeError, r"got a pair \(action, state\)"),
        ({"policy": lambda o: [np.nan]}, ValueError, "`policy` must return finite numbers"),
        ({"event": 3}, TypeError, "`event`"),
        ({"event": ccfs.GoalBeforeCost}, TypeError, "`event` must be made first, got the class GoalBeforeCost"),
        ({"verifier": Nones()}, TypeError, r"`verifier` Nones must return a NumPy array .*, got None"),
        ({"verifier": ccfs.BoxVerifier(low=[0, 0], high=[1, 1])}, ValueError, "`verifier` must have .* dimension, 1,"),
        (
            {"env": gymnasium.make("Pendulum-v1"), "event": ccfs.GoalBeforeCost(horizon=5)},
            ValueError,
            "`env` must report a cost at every step, because the event 'GoalBeforeCost' needs it",
        ),
        ({"policy": lambda o: [1.0, 2.0]}, ValueError, r"`policy` must return an action of shape \(1,\), got \(2,\)"),
        ({"policy": lambda o: 1 / 0}, ValueError, "`policy` must answer .*, but it raised ZeroDivisionError: division"),
        (
            {"event": lambda trace: None},
            TypeError,
            r"`event` must return True or False, got None \(NoneType\) from <lam",
        ),
        ({"event": lambda trace: trace.reward >= 0.0}, TypeError, r"`event` must .* got array.* `.all\(\)`"),
        ({"fallbacks": ccfs.FixedFallback((0.0,))}, TypeError, "`fallbacks` must .* got FixedFallback.* Give a list"),
        ({"fallbacks": [ccfs.FixedFallback((0.0,))]}, TypeError, "`fallbacks` must .* got FixedFallback.* Give a list"),
    ],
)
def test_certify_policy_refuses_before_counting(changed, error, words):
    arguments = {"env": make(horizon=5), "policy": steer, "event": passes, "trials": 7, **CLAIM, **changed}
    with pytest.raises(error, match=words):
        ccfs.certify_policy(**arguments)


def test_certify_policy_asks_a_verifier_that_is_false():
    class Empty(list):
        def accepts(self, observation, actions):
            return np.zeros(len(actions), dtype=bool)

    made = ccfs.certify_policy(make(horizon=5), steer, event=passes, trials=7, verifier=Empty(), **CLAIM)
    assert made.successes == 0


def test_in_words_names_the_cohort_and_the_family():
    made = certify_event(
        60, 60, delta=0.01, family=3, target=0.5, schedule=ccfs.ProposalSchedule(count=1, sigma=0.2), bound="cohort"
    )
    words = ccfs.in_words(made)
    assert "The probability of the event, on average over the cohort's fixed reset seeds, is at least" in words
    assert "failure probability 0.01 for all 3 claims together)" in words


def test_in_words_rounds_down():
    proof = ccfs.certify_event(100, 100, delta=0.01, family=1, target=0.9, schedule=SCHEDULE, bound="clopper-pearson")
    words = ccfs.in_words(proof)
    assert "at least 0.9549 without shift" in words
    assert 0.95499 < proof.p_lower < 0.955
    assert f"size of {int(proof.budget * 1e4) / 1e4:.4f} " in words


def test_api_is_small_lazy_and_complete():
    for name in ccfs.__all__:
        assert getattr(ccfs, name) is not None
        assert name in dir(ccfs)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        ccfs.absent  # noqa: B018


def lean(observation):
    """Scores of CartPole's two actions: push to where the pole leans."""
    tilt = observation[2] + 0.4 * observation[3]
    return [-20.0 * tilt, 20.0 * tilt]


def stands(trace):
    return trace.executed == 40


CARTPOLE = {"event": stands, "horizon": 40, "trials": 40, "target": 0.5, "delta": 0.01, "seed": 3}


def test_certify_policy_takes_scores_on_a_discrete_environment():
    env, block = gymnasium.make("CartPole-v1"), ccfs.ProposalSchedule(count=2, sigma=0.5, multiplier=1.1)
    made = ccfs.certify_policy(env, lean, schedule=block, **CARTPOLE)
    assert made.successes == 40
    assert list(made.budgets) == ["score"]
    assert "under every causal shift of the scores up to a total Euclidean size of" in ccfs.in_words(made)
    both = ccfs.Schedule(score=block, sensor=ccfs.ProposalSchedule(count=1, sigma=0.2))
    sensed = ccfs.certify_policy(env, lean, schedule=both, **CARTPOLE)
    assert list(sensed.budgets) == ["sensor", "score"]
    assert sensed.lower_at(sensor=0.1, score=0.1) < min(sensed.lower_at(sensor=0.1), sensed.lower_at(score=0.1))


def test_certify_policy_with_sensor_noise_alone_takes_action_numbers():
    env = gymnasium.make("CartPole-v1")
    sensor = ccfs.Schedule(sensor=ccfs.ProposalSchedule(count=1, sigma=0.02))
    by_number = ccfs.certify_policy(env, lambda o: int(lean(o)[1] > 0.0), schedule=sensor, **CARTPOLE)
    by_score = ccfs.certify_policy(env, lean, schedule=sensor, **CARTPOLE)
    assert by_number.successes == by_score.successes == 40
    words = ccfs.in_words(by_number)
    assert "under every causal error of the readings up to a total Euclidean size of" in words


@pytest.mark.parametrize(
    ("policy", "schedule", "words"),
    [
        (lambda o: 1, ccfs.ProposalSchedule(count=2, sigma=0.5), r"`center` must be scores of shape \(2,\), .* logits"),
        (lambda o: [0.1], ccfs.ProposalSchedule(count=2, sigma=0.5), r"`policy` must return 2 scores, one per action"),
        (lambda o: [np.nan, 0.0], ccfs.ProposalSchedule(count=2, sigma=0.5), "`policy` must return finite numbers"),
        (lean, ccfs.Schedule(action=SCHEDULE), "`schedule` must have the stage `score`"),
        (lean, ccfs.Schedule(sensor=ccfs.ProposalSchedule(count=1, sigma={"angle": 0.1})), "`observation_layout`"),
    ],
)
def test_certify_policy_refuses_what_does_not_fit_a_discrete_environment(policy, schedule, words):
    with pytest.raises((TypeError, ValueError), match=words):
        ccfs.certify_policy(gymnasium.make("CartPole-v1"), policy, schedule=schedule, **CARTPOLE)


def words_of(schedule, successes=100):
    made = ccfs.certify_event(
        successes, 100, delta=0.01, family=1, target=0.5, schedule=schedule, bound="clopper-pearson"
    )
    return ccfs.in_words(made), made


def test_in_words_says_what_is_covered_per_stage_and_jointly():
    sensor = ccfs.ProposalSchedule(count=1, sigma={"lidar": 0.05, "compass": 0.01})
    words, made = words_of(ccfs.Schedule(action=SCHEDULE, sensor=sensor))
    compass, lidar = (int(made.axes["sensor"][name] * 1e4) / 1e4 for name in ("compass", "lidar"))
    assert (
        f"under every causal error of the readings of compass up to a total Euclidean size of {compass:.4f}, or error "
        f"of the readings of lidar up to {lidar:.4f}, or shift of the proposal centers up to "
        f"{int(made.budget * 1e4) / 1e4:.4f}, or a mixture of them in which the squared shares of these sizes add up "
        "to at most 1 (100 of 100"
    ) in words
    # What the sentence promises, in exact numbers: half of the energy each, with the printed sizes.
    shares = {"sensor": {"compass": compass / 2, "lidar": lidar / 2}, "action": made.budget / 2**0.5}
    assert made.lower_at(**shares) >= made.target


def test_in_words_names_few_coordinates_and_says_that_others_have_no_noise():
    assert (
        "shift of the proposal centers in coordinate 1 up to"
        in words_of(ccfs.ProposalSchedule(count=1, sigma=[0.2, 0.4]))[0]
    )
    partly = words_of(ccfs.ProposalSchedule(count=1, sigma=[0.2] * 6 + [0.0]))[0]
    assert "every causal shift of the proposal centers in the coordinates with noise up to" in partly
    assert "in coordinate" not in words_of(ccfs.ProposalSchedule(count=1, sigma=[0.2] * 6))[0]
    turns = [ccfs.ProposalSchedule(count=1, sigma={name: 0.1}) for name in ("a", "b")]
    assert "error of the readings in the coordinates with noise up to" in words_of(ccfs.Schedule(sensor=turns))[0]
    assert "is not certified" in words_of(ccfs.Schedule(sensor=turns), successes=3)[0]


class Slope(gymnasium.Env):
    """One step of reward 1 if the action is positive. What a subclass does besides is its fault."""

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)
        self.render_mode = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.normal(size=1), {}

    def step(self, action):
        self.t += 1
        return self.np_random.normal(size=1), float(self.is_good()), False, False, {}

    def is_good(self):
        return True


class CoinEnv(Slope):
    """A coin that is tossed when the environment is made decides every episode."""

    def __init__(self):
        super().__init__()
        self.coin = bool(np.random.default_rng().integers(2))

    def is_good(self):
        return self.coin


class CountingEnv(Slope):
    """Good in its first `most` episodes, and bad in all others."""

    def __init__(self, most):
        super().__init__()
        self.most, self.episodes = most, 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        return super().reset(seed=seed, options=options)

    def is_good(self):
        return self.episodes <= self.most


class OwnDice(Slope):
    """Its randomness is its own. Every number is another one, so no repetition agrees by chance."""

    def __init__(self):
        super().__init__()
        self.dice = np.random.default_rng()

    def is_good(self):
        return 1.0 + self.dice.random()


class LateDice(OwnDice):
    """Its randomness is its own, and comes at the last step only."""

    def is_good(self):
        return 1.0 if self.t < 3 else super().is_good()


class SharedDice(Slope):
    def is_good(self):
        return random.random() < 0.9


class Odd(Slope):
    """Every second episode is bad."""

    episodes = 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        return super().reset(seed=seed, options=options)

    def is_good(self):
        return self.episodes % 2 == 0


class Learning:
    """A policy that counts its calls and does not begin anew."""

    def __init__(self, most):
        self.most, self.calls = most, 0

    def __call__(self, observation):
        self.calls += 1
        return [0.5 if self.calls <= self.most else -0.5]


class Noisy:
    """A policy with dice of its own."""

    def __init__(self):
        self.dice = np.random.default_rng()

    def __call__(self, observation):
        return [0.5 + 0.01 * self.dice.random()]


class Tiring:
    """A verifier that accepts less and less."""

    def __init__(self):
        self.calls = 0

    def accepts(self, observation, actions):
        self.calls += 1
        return np.full(len(actions), self.calls < 30)


class Counter:
    """An event that counts, whatever happened."""

    def __init__(self):
        self.asked = 0

    def __call__(self, trace):
        self.asked += 1
        return self.asked <= 20


def good(trace):
    return bool(trace.reward.sum() > 0.0)


def half(observation):
    return [0.5]


BASE = {"schedule": SCHEDULE, "horizon": 3, "trials": 20, "target": 0.5, "delta": 0.01, "seed": 3}
AGAIN = "gives another trace when it is run again after the last one"


@pytest.mark.parametrize(
    ("env", "policy", "more", "words"),
    [
        (CountingEnv(22), half, {}, f"{AGAIN}.*reward. The environment behaved differently"),
        (CountingEnv(12), half, {}, f"{AGAIN}.*reward. The environment behaved differently"),
        (CountingEnv(3), half, {}, "The environment behaved differently"),
        (Odd(), half, {}, f"{AGAIN}.*reward. The environment behaved differently"),
        (OwnDice(), half, {}, "The environment behaved differently"),
        (LateDice(), half, {}, "The environment behaved differently"),
        (SharedDice(), half, {}, "trials draw random numbers from Python's `random`, which their reset seed does not"),
        (Slope(), Learning(60), {}, f"{AGAIN}.*center. The controller answered differently"),
        (Slope(), Learning(30), {}, f"{AGAIN}.*center. The controller answered differently"),
        (Slope(), Noisy(), {}, f"{AGAIN}.*center. The controller answered differently"),
        (Slope(), half, {"verifier": Tiring()}, "source. The verifier or a fallback answered differently"),
        (
            Slope(),
            half,
            {"event": Counter()},
            "has the same trace when the event is asked again, but it answered differ",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__) if not isinstance(value, (str, dict)) else "",
)
def test_certify_policy_refuses_trials_that_do_not_repeat(env, policy, more, words, tmp_path):
    with pytest.raises(ccfs.PremiseError, match=words) as caught:
        ccfs.certify_policy(env, policy, run=tmp_path / "run", **{"event": good, **BASE, **more})
    assert str(caught.value).endswith("Nothing is certified.")
    assert not list(tmp_path.rglob("certificates"))
    assert not (tmp_path / "run" / "manifest.json").exists()


class Wearing(Slope):
    """Its simulator remembers all earlier episodes of this object, and can be made again."""

    def __init__(self):
        super().__init__()
        self.episodes = 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        return super().reset(seed=seed, options=options)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward + 1e-3 * self.episodes, terminated, truncated, info


def test_simulator_that_remembers_is_refused_with_advice_that_helps():
    with pytest.raises(ccfs.PremiseError, match=r"put `ccfs\.MadeAnew` around it"):
        ccfs.certify_policy(Wearing(), half, event=good, **BASE)
    found = ccfs.certify_policy(ccfs.MadeAnew(Wearing()), half, event=good, **BASE)
    assert found.successes == BASE["trials"]


def test_a_coin_tossed_at_construction_gives_no_certificate():
    """Each of 12 calls meets 16 new environments. All agree with the first with probability 1/65,536.

    So a certificate comes out with probability under 1e-4. Before, each good coin gave one.
    """
    certificates = []
    for seed in range(12):
        with suppress(ccfs.PremiseError):
            certificates.append(ccfs.certify_policy(CoinEnv(), half, event=good, **{**BASE, "seed": seed}))
    assert certificates == []


def test_a_coin_tossed_at_construction_is_explained(monkeypatch):
    """The coin of the first environment shows heads, and all others show tails."""
    coins = itertools.chain([1], itertools.repeat(0))
    monkeypatch.setattr(np.random, "default_rng", lambda: SimpleNamespace(integers=lambda most: next(coins)))
    with pytest.raises(ccfs.PremiseError, match=r"in an environment that was made anew.*reward.*lambda: MyEnv\(3\)"):
        ccfs.certify_policy(CoinEnv(), half, event=good, **BASE)


def test_a_function_that_makes_the_environment_is_compared_with_itself():
    offsets = iter(np.linspace(0.0, 1.0, 100))

    class Offset(Slope):
        def __init__(self, offset):
            super().__init__()
            self.hidden = offset

        def is_good(self):
            return self.hidden

    with pytest.raises(ccfs.PremiseError, match="made anew"):
        ccfs.certify_policy(lambda: Offset(next(offsets)), half, event=good, **BASE)
    made = ccfs.certify_policy(lambda: Offset(1.0), half, event=good, **BASE)
    assert made.successes == 20


COINS = iter(())


class CoinPolicy:
    """A policy whose answer was drawn when it was made."""

    def __init__(self):
        self.answer = float(next(COINS))

    def __call__(self, observation):
        return [self.answer]


def leaning():
    """Return a policy whose digest says what was drawn."""
    answer = float(next(COINS))
    return lambda observation: [answer]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (CoinPolicy, r"Trial 0 gives another trace with environment and policy made anew.*center. The controller ans"),
        (lambda: CoinPolicy(), r"Trial 0 gives another trace with environment and policy made anew.*center. The con"),
        (leaning, "The policy that was made anew for trial 0 has another digest than the first one"),
    ],
)
def test_a_coin_tossed_when_the_policy_is_made_gives_no_certificate(policy, words, monkeypatch):
    monkeypatch.setitem(globals(), "COINS", itertools.chain([1], itertools.repeat(0)))
    with pytest.raises(ccfs.PremiseError, match=words) as caught:
        ccfs.certify_policy(Slope(), policy, event=good, **BASE)
    assert str(caught.value).endswith("Nothing is certified.")


def test_a_function_that_makes_the_policy_gives_the_certificate_of_the_policy(tmp_path):
    made = ccfs.certify_policy(Slope(), lambda: half, event=good, run=tmp_path / "run", **BASE)
    assert made == ccfs.certify_policy(Slope(), half, event=good, **BASE)
    assert ccfs.audit_policy(tmp_path / "run", Slope(), lambda: half, event=good).is_clean


def test_an_environment_that_nobody_can_make_again_is_refused_with_the_way_out():
    class Hidden(Slope):
        def __init__(self, secret=1):
            super().__init__()

    told = r"made a second time.*Hidden.*nobody can tell what 'secret' was.*`env=lambda: MyEnv\(3\)`.*registered id"
    with pytest.raises(TypeError, match=told):
        ccfs.certify_policy(Hidden(), half, event=good, **BASE)
    assert ccfs.certify_policy(lambda: Hidden(3), half, event=good, **BASE).successes == 20


class RareDice(Slope):
    """Has dice of its own, and throws them in one of ten episodes. Nothing follows from them."""

    def __init__(self):
        super().__init__()
        self.dice = np.random.default_rng(1)

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed, options=options)
        if found[0][0] > 1.3:
            self.dice.random()
        return found


COINS_OF_98 = random.Random(5)


def lucky(trace):
    return COINS_OF_98.random() < 0.98


class Hoping:
    def __init__(self):
        self.dice = np.random.default_rng(2)

    def holds(self, trace):
        return bool(self.dice.random() < 0.98)


def by_entropy(trace):
    return os.urandom(1)[0] >= 5


@pytest.mark.parametrize(
    ("env", "event", "words"),
    [
        (RareDice(), good, "drawn from `env.dice`, which no reset sets: trial 0 leaves it in another state"),
        (Slope(), lucky, "drawn from `COINS_OF_98`, which no reset sets|event answered|gave two answers"),
        (Slope(), Hoping(), "drawn from `event.dice`, which no reset sets|event answered|gave two answers"),
    ],
)
def test_a_generator_that_hardly_ever_matters_is_named(env, event, words):
    """A generator that moved is seen, not guessed from results. So chance has no part in it."""
    for seed in range(2):
        with pytest.raises(ccfs.PremiseError, match=words):
            ccfs.certify_policy(env, half, event=event, **{**BASE, "trials": 60, "seed": seed})


def test_an_event_without_a_generator_that_is_nearly_always_true_is_caught_as_often_as_promised():
    """`by_entropy` fails with probability 5/256. Each of 100 traces gets 5 answers, and 19 of them one more.

    All agree with probability below 0.98 ** 500 < 5e-5 per call.
    """
    for seed in range(3):
        with pytest.raises(ccfs.PremiseError, match="answer"):
            ccfs.certify_policy(Slope(), half, event=by_entropy, **{**BASE, "trials": 100, "seed": seed})


def test_names_of_slices_that_were_put_on_the_environment_hold_for_others_made_like_it():
    env = Slope()
    env.observation_layout = {"height": (0, 1)}  # as `ccfs.envs.make` does it
    noise = ccfs.Schedule(action=SCHEDULE, sensor=ccfs.ProposalSchedule(count=1, sigma={"height": 0.1}))
    made = ccfs.certify_policy(env, half, event=good, **{**BASE, "schedule": noise})
    assert made.successes == 20
    assert "height" in made.sentence


def test_certify_policy_leaves_the_shared_generators_as_it_found_them():
    before = generators_now()
    ccfs.certify_policy(gymnasium.make("Pendulum-v1"), half, event=lambda trace: True, **BASE)
    assert generators_now() == before


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (gymnasium.vector.SyncVectorEnv([Slope]), "must be a single environment, got SyncVectorEnv.*one by one"),
        ("space:Tuple", "got Tuple.*one Box or one MultiDiscrete, in a gymnasium.ActionWrapper"),
        ("space:Dict", "got Dict.*ActionWrapper"),
        ("space:MultiBinary", r"got MultiBinary.*MultiDiscrete\(\[2, 2, ...\]\)"),
        ("space:Text", "got Text.*Box, Discrete|must have Box, Discrete or MultiDiscrete actions, got Text"),
        (None, "got None"),
    ],
)
def test_certify_policy_advises_on_environments_that_do_not_fit(env, words):
    if isinstance(env, str):
        box = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)
        space = {
            "Tuple": gymnasium.spaces.Tuple((box, box)),
            "Dict": gymnasium.spaces.Dict({"a": box}),
            "MultiBinary": gymnasium.spaces.MultiBinary(3),
            "Text": gymnasium.spaces.Text(4),
        }[env.partition(":")[2]]
        env = Slope()
        env.action_space = space
    with pytest.raises(TypeError, match=words):
        ccfs.certify_policy(env, half, event=good, **BASE)


@pytest.mark.extras
def test_certify_policy_advises_on_a_vec_env_of_stable_baselines3():
    from stable_baselines3.common.vec_env import DummyVecEnv

    with pytest.raises(TypeError, match="must be a single environment, got DummyVecEnv"):
        ccfs.certify_policy(DummyVecEnv([Slope]), half, event=good, **BASE)


def test_certificate_knows_seed_environment_digests_and_versions():
    env = gymnasium.make("Pendulum-v1", g=9.0)
    fallbacks = [ccfs.FallbackEntry(name="brake now", fallback=ccfs.FixedFallback((0.0,)), unverified=True)]
    made = ccfs.certify_policy(
        env, make_steering(gain=0.2), event=good, fallbacks=fallbacks, verifier=Even(), **{**BASE, "seed": 12}
    )
    assert made.seed == 12
    assert made.environment.arguments["id"] == "Pendulum-v1"
    assert made.environment.arguments["settings"][-1] == {"g": 9.0}
    assert made.controller == make_steering(gain=0.2).digest
    assert len(made.definition.digest) == 64
    assert made.unverified_fallbacks == ("brake-now",)
    parts = made.provenance.parts
    places = {"environment", "controllers.policy", "program.verifier", "program.fallbacks.brake-now", "events.good"}
    assert places == set(parts)
    assert all(len(digest) == 64 for digest in parts.values())
    assert made.provenance.packages["gymnasium"] == gymnasium.__version__
    assert made.outcomes == {"horizon": 20}
    assert RunCertificate.from_bytes(made.to_bytes(), where="memory") == made
    assert json.loads(made.to_json())["seed"] == 12


class Even:
    """A verifier that accepts everything."""

    def accepts(self, observation, actions):
        return np.ones(len(actions), dtype=bool)


def test_noise_is_fresh_whenever_anything_that_is_known_changes():
    def keys(**changed):
        settings = {"event": good, **BASE, **changed}
        env, policy = settings.pop("env", Slope()), settings.pop("policy", make_steering(gain=0.2))
        made = ccfs.certify_policy(env, policy, **settings)
        return made.protocol, tuple(made.traces.values())

    first = keys()
    assert keys() == first
    changes = [
        {"seed": 4},
        {"trials": 21},
        {"delta": 0.02},
        {"target": 0.4},
        {"family": 2},
        {"schedule": ccfs.ProposalSchedule(count=1, sigma=0.3)},
        {"horizon": 2},
        {"resolution": 2.0**-10},
        {"policy": make_steering(gain=0.3)},
        {"verifier": Even()},
        {"event": lambda trace: bool(trace.reward.sum() > 1.0)},
        {"event": ccfs.NoAbstention(horizon=3)},
        {"env": make(horizon=3)},
    ]
    found = [keys(**change) for change in changes]
    assert len({protocol for protocol, _ in [first, *found]}) == len(changes) + 1
    assert len({files for _, files in [first, *found]}) == len(changes) + 1


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run folder that one call left, with what it was called with."""
    root = tmp_path_factory.mktemp("kept") / "run"
    given = {
        "env": make(horizon=5, post=0.35),
        "policy": make_steering(gain=0.2),
        "event": passes,
        "verifier": ccfs.BoxVerifier(low=[-0.5], high=[0.5]),
        "fallbacks": [ccfs.FallbackEntry(name="center", fallback=ccfs.CenterFallback())],
    }
    return root, given, ccfs.certify_policy(**given, trials=40, run=root, **CLAIM)


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_run_folder_holds_what_the_call_returned(kept):
    root, _, made = kept
    (stored,) = (root / "certificates").rglob("*.json")
    assert stored.read_bytes() == made.to_bytes()
    assert ccfs.load_certificate(stored) == made
    assert (root / "report.html").stat().st_size > 10_000
    assert {path.name for path in root.iterdir()} >= {"traces", "trajectories", "verdicts", "batches", "manifest.json"}


def test_commands_read_the_run_folder(kept):
    root, _, made = kept
    for more in ((), ("--trust",)):
        audited = call("audit", root, *more)
        assert audited.exit_code == 3, audited.output  # no fault, but not everything was checked
        assert "NOT CHECKED: whether the stored verdicts of passes, an event in memory, are right." in audited.output
        replays = "whether 40 of 40 trajectories replay: their objects are in memory. `ccfs.audit_policy` takes them."
        assert f"NOT CHECKED: {replays}" in audited.output
        assert "would run" not in audited.output
        assert "no fault in what was checked" in audited.output
    for command in ("report", "table"):
        told = call(command, root)
        assert told.exit_code == 0, told.output
    assert call("certify", root).exit_code in (0, 1)
    verified = call("verify", next((root / "certificates").rglob("*.json")), "--run", root)
    assert verified.exit_code == 0, verified.output
    assert f"{made.successes} of 40 nominal trials" in verified.output
    assert verified.output.endswith("and the counts from the stored verdicts of an event in memory.\n")
    assert "- from the stored verdicts of passes, an event in memory, which nobody asked again.\n" in verified.output
    assert "`ccfs.audit_policy` makes them again with the objects themselves.\n" in verified.output
    exported = call("export", root, "--minari", "none/none-v0")
    assert exported.exit_code == 2


def test_audit_policy_replays_with_the_objects(kept):
    root, given, _ = kept
    report = ccfs.audit_policy(root, **given)
    assert (report.faults, report.replayed, report.trajectories) == ((), 40, 40)
    assert report.unchecked == ()
    assert ccfs.audit_policy(root, **given, replay=3).replayed == 3


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"policy": make_steering(gain=0.3)}, "protocol.json: `controllers.0.digest` is "),
        ({"event": lambda trace: True}, "protocol.json: `events.0."),
        ({"verifier": None}, "protocol.json: `program.verifier."),
        ({"fallbacks": ()}, "protocol.json: `program.fallbacks`"),
        (
            {"env": make(horizon=5, post=0.3)},
            "protocol.json: `environment.arguments.settings.0.post` is 0.35 in the run",
        ),
        ({"env": lambda: make(horizon=5, post=0.35, start=0.1)}, "start"),
    ],
)
def test_audit_policy_refuses_other_objects(kept, changed, words):
    root, given, _ = kept
    report = ccfs.audit_policy(root, **{**given, **changed})
    assert report.replayed == 0
    assert words in report.faults[0]


def test_audit_policy_finds_an_object_that_only_behaves_differently(kept):
    """Its digest is that of the run, and its answers are not."""
    root, given, _ = kept

    class Impostor:
        digest = given["policy"].digest

        def reset(self):
            pass

        def center(self, observation):
            return np.array([0.05])

    Impostor.__module__, Impostor.__qualname__ = type(given["policy"]).__module__, type(given["policy"]).__qualname__
    report = ccfs.audit_policy(root, **{**given, "policy": Impostor()}, replay=5)
    assert len(report.faults) == 5
    assert "does not replay: the first difference is at step 0, center" in report.faults[0]


def test_audit_of_objects_finds_changed_verdicts_and_files(kept, tmp_path):
    root, _, _ = kept
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    (file,) = sorted((copy / "verdicts").rglob("*.json"))[:1]
    file.write_bytes(file.read_bytes().replace(b"true", b"false", 1))
    assert audit(Store(copy)).faults[0].endswith("was changed after it was written.")
    # Somebody who also writes the hashes anew cannot make the certificate follow from the verdicts.
    journal = copy / "batches" / file.relative_to(copy / "verdicts")
    content = json.loads(journal.read_text())
    content["files"][file.relative_to(copy).as_posix()] = hashlib.sha256(file.read_bytes()).hexdigest()
    journal.write_bytes(canonical_json(content).encode() + b"\n")
    write_manifest(Store(copy), Store(copy).protocol())
    assert any("is not what the traces give" in fault for fault in audit(Store(copy)).faults)


def test_a_run_folder_is_never_used_twice(kept):
    root, given, _ = kept
    with pytest.raises(RunError, match="must be a new folder, but holds a run"):
        ccfs.certify_policy(**given, trials=40, run=root, **CLAIM)


def test_protocol_of_objects_cannot_be_run_from_its_file(kept, tmp_path):
    root, _, _ = kept
    with pytest.raises(ProtocolError, match=r"is an object of the Python program that made this run.*audit_policy"):
        check(Store(root).protocol(), where="p")


def test_events_that_ship_are_counted_again_from_the_traces(tmp_path):
    event = ccfs.AllOf(events=(ccfs.GoalBeforeCost(horizon=5), ccfs.NoAbstention(horizon=5)))
    made = ccfs.certify_policy(make(horizon=5), steer, event=event, trials=7, run=tmp_path / "run", **CLAIM)
    assert made.definition.event == "all-of"
    assert [part.event for part in made.definition.events] == ["goal-before-cost", "no-abstention"]
    assert not (tmp_path / "run" / "verdicts").exists()
    assert audit(Store(tmp_path / "run")).faults == ()


@pytest.mark.parametrize("is_shown", [True, False])
def test_progress_is_shown_on_a_terminal_and_can_be_turned_off(is_shown, monkeypatch):
    seen = io.StringIO()
    console = Console(file=seen, force_terminal=True, width=100)
    monkeypatch.setattr("rich.console.Console", lambda stderr: console)
    ccfs.certify_policy(make(horizon=5), steer, event=passes, trials=7, progress=is_shown, **CLAIM)
    assert ("17/17" in seen.getvalue()) is is_shown  # 7 trials, 3 of them again, and 7 in new environments
    assert ("passes" in seen.getvalue()) is is_shown


def test_progress_is_silent_without_a_terminal(capsys):
    ccfs.certify_policy(make(horizon=5), steer, event=passes, trials=7, **CLAIM)
    assert capsys.readouterr() == ("", "")


def test_stages_go_through_the_protocol_of_objects():
    schedule = ccfs.Schedule(
        action=[ccfs.ProposalSchedule(count=2, sigma=[0.2], rho=0.5)] * 5,
        sensor=ccfs.ProposalSchedule(count=1, sigma=0.1),
    )
    made = ccfs.certify_policy(make(horizon=5), steer, event=passes, trials=7, **{**CLAIM, "schedule": schedule})
    assert made.trajectory.schedule.stages == schedule.stages


@pytest.mark.parametrize("readers", ["all", "controller"])
def test_sensor_blocks_of_each_step_go_through_the_protocol_of_objects(readers, tmp_path):
    scales = (0.1, 0.2, 0.3, 0.2, 0.1)
    schedule = ccfs.Schedule(
        action=[ccfs.ProposalSchedule(count=2, sigma=0.2)] * 5,
        sensor=[ccfs.ProposalSchedule(count=1, sigma=scale) for scale in scales],
        readers=readers,
    )
    given = {"env": make(horizon=5), "policy": steer, "event": passes}
    made = ccfs.certify_policy(**given, trials=7, run=tmp_path / "run", **{**CLAIM, "schedule": schedule})
    assert made.trajectory.schedule == schedule
    assert [block.sigma for block in made.claim.schedule.sensor] == list(scales)
    report = ccfs.audit_policy(tmp_path / "run", **given)
    assert (report.is_clean, report.replayed) == (True, 7)
    assert "schedules" in (tmp_path / "run" / "protocol.json").read_text()


def test_in_words_gives_each_stage_its_own_size():
    sensor = ccfs.ProposalSchedule(count=1, sigma=0.05)
    words, made = words_of(ccfs.Schedule(action=SCHEDULE, sensor=sensor))
    shown = {name: int(size * 1e4) / 1e4 for name, size in made.budgets.items()}
    assert shown["sensor"] < shown["action"]
    assert f"error of the readings up to a total Euclidean size of {shown['sensor']:.4f}, or shift" in words
    assert f"shift of the proposal centers up to {shown['action']:.4f}, or a mixture" in words


def test_in_words_puts_slices_of_the_same_noise_together_because_they_are_covered_together():
    sensor = ccfs.ProposalSchedule(count=1, sigma={"near": 0.05, "far": 0.05, "compass": 0.01})
    words, made = words_of(ccfs.Schedule(sensor=sensor))
    assert "error of the readings of compass up to a total" in words
    assert f"error of the readings of far, near up to {int(made.axes['sensor']['far'] * 1e4) / 1e4:.4f}" in words
    half = made.axes["sensor"]["far"] / 2**0.5
    assert made.lower_at(sensor={"near": half, "far": half}) >= made.target * (1 - 1e-12)
    three = words_of(ccfs.ProposalSchedule(count=1, sigma=[0.2, 0.4, 0.2]))[0]
    assert "shift of the proposal centers in coordinates 0, 2 up to" in three
