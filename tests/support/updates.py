"""Our update and OmniSafe's beside each other, on made up experience."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.constrained import update_constrained
from ccfs.controllers.training.networks import ACTOR, Adam, Layout, log_density
from ccfs.controllers.training.trust_region import update_in_trust_region
from ccfs.controllers.training.update import Batch, Multiplier, update

LAYOUT = Layout(observation_size=7, action_size=2, hidden_sizes=(16, 12))
STEPS = 200


def random_batch(parameters: np.ndarray, rng: np.random.Generator, *, spread: float = 1.0) -> Batch:
    """Return an epoch of made up experience."""
    observations = rng.normal(size=(STEPS, LAYOUT.observation_size)).astype(parameters.dtype)
    means = LAYOUT.forward(parameters, observations)[-1][ACTOR]
    log_std = LAYOUT.views(parameters)[2][ACTOR]
    actions = means + np.exp(log_std) * rng.normal(size=means.shape).astype(parameters.dtype)
    # Old densities of a slightly different policy, so that ratios fall on both sides of the clip range.
    old = log_density(actions, means, log_std) + (0.3 * rng.normal(size=STEPS)).astype(parameters.dtype)
    column = {"size": STEPS, "scale": spread}
    return Batch(
        observations=observations,
        actions=actions,
        log_densities=old,
        **{
            field.name: rng.normal(**column).astype(parameters.dtype)
            for field in fields(Batch)
            if field.name.endswith(("targets", "advantages"))
        },
    )


def run_both(
    omnisafe_agent, config: TrainingConfig, dtype: type, *, epochs: int, spread: float = 1.0, costs=(60.0, 35.0, 10.0)
):
    """Run our update and OmniSafe's from the same weights on the same experience. Return both sets of weights.

    `costs` are the mean costs of the epochs.
    """
    rng = np.random.default_rng(20_000)
    parameters = LAYOUT.initial(rng).astype(dtype)
    LAYOUT.views(parameters)[2][ACTOR] = [-0.3, 0.2]
    adam = Adam(np.zeros_like(parameters), np.zeros_like(parameters), 0)
    multiplier = Multiplier(value=config.multiplier_init)
    theirs = omnisafe_agent(config, LAYOUT)
    theirs.load(parameters)
    for epoch in range(epochs):
        batch = random_batch(parameters, rng, spread=spread)
        orders = [rng.permutation(STEPS) for _ in range(config.update_iterations)]
        cost = costs[epoch]
        logged = theirs.update(batch, cost, orders)
        rate = config.critic_learning_rate
        rates = np.array([3e-4 * (1.0 - epoch / config.epochs), rate, rate])
        left = iter(orders)
        common = {"layout": LAYOUT, "config": config, "learning_rates": rates, "permutation": left.__next__}
        if config.algorithm == "cpo":
            report = update_constrained(batch, parameters, adam, excess=cost - 25.0, **common)
        else:
            multiplier = multiplier.updated(cost, cost_limit=25.0, learning_rate=0.035)
            learn = update_in_trust_region if config.algorithm == "trpolag" else update
            report = learn(batch, parameters, adam, multiplier=multiplier.value, **common)
            assert multiplier.value == pytest.approx(theirs.multiplier, abs=1e-7)
        assert report.iterations == logged["Train/StopIter"]
        assert report.kl == pytest.approx(float(logged["Train/KL"]), rel=1e-4)
    return parameters, theirs.matrix()
