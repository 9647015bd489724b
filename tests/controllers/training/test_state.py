"""A training state: a resumed run equals an uninterrupted one, and the actor is the policy that was trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_training import config_with, fresh, make

from ccfs.controllers.training.state import CURVE, TrainingState

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("algorithm", ["ppolag", "ppo-penalty", "trpolag", "cpo"])
def test_training_resumed_equals_training_uninterrupted(tmp_path: Path, algorithm: str) -> None:
    config = config_with(algorithm=algorithm)
    straight = fresh(config)
    for _ in range(4):
        straight.run_epoch(make(config))
    broken = fresh(config)
    for _ in range(4):
        broken.run_epoch(make(config))
        broken.save(tmp_path / "checkpoint.npz")
        broken = TrainingState.load(tmp_path / "checkpoint.npz")
    assert broken.parameters.tobytes() == straight.parameters.tobytes()
    assert broken.adam.first.tobytes() == straight.adam.first.tobytes()
    assert broken.adam.second.tobytes() == straight.adam.second.tobytes()
    assert broken.multiplier == straight.multiplier
    assert broken.actor().digest == straight.actor().digest
    assert broken.episodes == straight.episodes
    timeless = len(CURVE) - 2
    assert [row[:timeless] for row in broken.curve] == [row[:timeless] for row in straight.curve]


def test_training_with_a_penalty_holds_the_price_of_cost() -> None:
    config = config_with(algorithm="ppo-penalty", multiplier_init=0.7)
    state = fresh(config)
    state.run_epoch(make(config))
    assert (state.multiplier.value, state.multiplier.steps) == (0.7, 0)


@pytest.mark.parametrize("algorithm", ["ppolag", "trpolag"])
def test_training_learns_the_target(algorithm: str) -> None:
    config = config_with(
        algorithm=algorithm, actor_learning_rate=0.01, critic_learning_rate=0.01, cost_limit=1.0, total_steps=6_000
    )
    state, environments = fresh(config), make(config_with())
    for _ in range(config.epochs):
        state.run_epoch(environments)
    first, last = state.curve[0], state.curve[-1]
    assert last[CURVE.index("epoch_return")] > 0.5 * first[CURVE.index("epoch_return")]
    assert last[CURVE.index("epoch_cost")] < 0.5 * first[CURVE.index("epoch_cost")]
    assert state.steps == 6_000


def test_actor_equals_the_policy_that_was_trained() -> None:
    config = config_with()
    state = fresh(config)
    state.run_epoch(make(config))
    actor, frozen = state.actor(), state.normalizer.frozen()
    for observation in np.random.default_rng(1).normal(size=(20, 3)):
        normalised = frozen(observation.astype(np.float32))
        expected = state.layout.forward(state.parameters, normalised[None])[-1][0, 0]
        np.testing.assert_allclose(actor.center(observation), expected, atol=1e-6)
