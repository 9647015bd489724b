"""One call gives the certificate that the counts give, from independent nominal trials, and refuses early."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import ccfs
from ccfs.certificates.binomial import clopper_pearson_lower
from ccfs.envs.corridor import make, make_steering, nominal_probability

SCHEDULE = ccfs.ProposalSchedule(count=1, sigma=0.2)
CLAIM = {"schedule": SCHEDULE, "horizon": 5, "target": 0.5, "delta": 0.01, "seed": 3}


def steer(observation):
    return [-0.2 * observation[0]]


class Model:
    """As Stable-Baselines3 has it."""

    def predict(self, observation, *, deterministic):
        assert deterministic
        return np.array(steer(observation), dtype=np.float32), None


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
    event = ccfs.GoalBeforeCost(horizon=5)
    made = ccfs.certify_policy(make(horizon=5, post=0.35), policy, event=event, trials=40, **CLAIM)
    assert made.successes == ccfs.certify_policy(make(horizon=5, post=0.35), steer, event=passes, trials=40, **CLAIM).successes  # fmt: skip  # noqa: E501
    assert 0 < made.successes < 40


def test_certify_policy_draws_fresh_starts_and_noise():
    seen = []

    def record(trace):
        seen.append((trace.centers[0, 0], trace.actions[0, 0]))
        return True

    env = gymnasium.make("Pendulum-v1")
    ccfs.certify_policy(env, lambda o: [o[2] / 8.0], event=record, trials=6, **{**CLAIM, "horizon": 2})
    assert len({center for center, _ in seen}) == 6
    assert len({a - c for a, c in seen}) == 6


def test_certify_policy_counts_abstention_as_it_is_seen():
    never = ccfs.BoxVerifier(low=[5.0], high=[6.0])
    made = ccfs.certify_policy(make(horizon=5), steer, event=ccfs.NoAbstention(horizon=5), trials=5, verifier=never, **CLAIM)  # fmt: skip  # noqa: E501
    assert (made.successes, made.mu) == (0, None)
    assert ccfs.in_words(made).startswith("Not certified: the probability is at least 0.0000, below 0.5")


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"trials": 0}, ValueError, "`trials`"),
        ({"delta": float("nan")}, ValueError, "`delta`"),
        ({"target": 1.0}, ValueError, "`target`"),
        ({"policy": 3}, TypeError, "`policy`"),
        ({"event": 3}, TypeError, "`event`"),
        ({"policy": lambda o: [1.0, 2.0]}, ValueError, "`center`"),
        ({"policy": lambda o: 1 / 0}, ZeroDivisionError, "division"),
        ({"event": lambda trace: None}, TypeError, "`holds`"),
    ],
)
def test_certify_policy_refuses_before_counting(changed, error, words):
    arguments = {"policy": steer, "event": passes, "trials": 3, **CLAIM, **changed}
    with pytest.raises(error, match=words):
        ccfs.certify_policy(make(horizon=5), **arguments)


def test_in_words_rounds_down():
    proof = ccfs.certify_event(100, 100, delta=0.01, family=1, target=0.9, schedule=SCHEDULE, bound="clopper-pearson")
    words = ccfs.in_words(proof)
    assert "at least 0.9549 without shift" in words
    assert 0.95499 < proof.p_lower < 0.955
    assert f"budget {int(proof.budget * 1e4) / 1e4:.4f} " in words


def test_api_is_small_lazy_and_complete():
    for name in ccfs.__all__:
        assert getattr(ccfs, name) is not None
        assert name in dir(ccfs)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        ccfs.absent  # noqa: B018
