"""One call gives the certificate that the counts give, from independent nominal trials, and refuses early."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import ccfs
from ccfs.certificates.binomial import clopper_pearson_lower
from ccfs.certificates.trajectory import certify_event
from ccfs.envs.toys.corridor import make, make_steering, nominal_probability

SCHEDULE = ccfs.ProposalSchedule(count=1, sigma=0.2)
CLAIM = {"schedule": SCHEDULE, "horizon": 5, "target": 0.5, "delta": 0.01, "seed": 3}


def steer(observation):
    return [-0.2 * observation[0]]


class Model:
    """As Stable-Baselines3 has it."""

    def predict(self, observation, *, deterministic):
        assert deterministic
        return np.array(steer(observation), dtype=np.float32), None


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


@pytest.mark.parametrize("policy", [steer, Model(), make_steering(gain=0.2)])
def test_certify_policy_takes_functions_models_and_controllers(policy):
    """Each has a noise of its own, because its protocol names another policy. So their counts differ."""
    event = ccfs.GoalBeforeCost(horizon=5)
    made = ccfs.certify_policy(make(horizon=5, post=0.35), policy, event=event, trials=40, **CLAIM)
    assert 25 < made.successes < 40  # with p = 0.867, outside of this with probability under 0.005
    assert made == ccfs.certify_policy(make(horizon=5, post=0.35), policy, event=event, trials=40, **CLAIM)


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
        "The probability of NoAbstention is not certified to be at least 0.5: its lower bound is 0.0000 "
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
        ({"policy": Model}, TypeError, "`policy` must be made first, got the class Model"),
        ({"policy": lambda o: Model().predict(o, deterministic=True)}, TypeError, r"got a pair \(action, state\)"),
        ({"policy": lambda o: (np.array([0.1]), np.zeros(3))}, TypeError, r"got a pair \(action, state\)"),
        ({"policy": lambda o: [np.nan]}, ValueError, "`center` must be finite"),
        ({"event": 3}, TypeError, "`event`"),
        ({"event": ccfs.GoalBeforeCost}, TypeError, "`event` must be made first, got the class GoalBeforeCost"),
        ({"verifier": Nones()}, TypeError, r"`verifier` Nones must return a NumPy array .*, got None"),
        ({"verifier": ccfs.BoxVerifier(low=[0, 0], high=[1, 1])}, ValueError, "`verifier` must have .* dimension, 1,"),
        (
            {"env": gymnasium.make("Pendulum-v1"), "event": ccfs.GoalBeforeCost(horizon=5)},
            ValueError,
            "`env` must report a cost at every step, because the event 'GoalBeforeCost' needs it",
        ),
        ({"policy": lambda o: [1.0, 2.0]}, ValueError, "`center`"),
        ({"policy": lambda o: 1 / 0}, ZeroDivisionError, "division"),
        ({"event": lambda trace: None}, TypeError, "`holds`"),
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


@pytest.mark.slow
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


@pytest.mark.slow
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
        (lambda o: [0.1], ccfs.ProposalSchedule(count=2, sigma=0.5), r"`center` must be scores of shape \(2,\)"),
        (lambda o: [np.nan, 0.0], ccfs.ProposalSchedule(count=2, sigma=0.5), "`center` must be finite"),
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
