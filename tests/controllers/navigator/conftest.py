"""What the tests of the guard and its pilots share: one environment and a drive through it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ccfs.controllers.navigator import pilot as pilot_module
from ccfs.envs import make


@pytest.fixture(scope="session")
def env():
    return make("SafetyPointGoal2-v0")


@pytest.fixture(scope="session")
def seen(env):
    """Observations of 40 steps of full thrust with a slow turn."""
    observation, _ = env.reset(seed=3_000_000_008)
    found = [observation]
    for step in range(39):
        observation, *_ = env.step(np.array([1.0, 0.6 * math.sin(step / 10.0)]))
        found.append(observation)
    return found


@pytest.fixture(autouse=True)
def no_pilots():
    """Each test begins without pilots of another."""
    pilot_module._pool().clear()
