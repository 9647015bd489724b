"""Layouts and random states are those of stock."""

from __future__ import annotations

import pytest

from ccfs.envs.safety import layout
from ccfs.envs.safety.fast import LightBuilder
from ccfs.envs.safety.selftest import same_bits

# NumPy's word on how stock reads a joint number, in every robot but Point.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
]


@pytest.mark.parametrize("env_id", ["SafetyPointGoal2-v0", "SafetyCarPush2-v0"])
def test_layouts_and_random_states_are_those_of_stock(env_id, build):
    generator = build(LightBuilder, env_id).task.random_generator
    task = build(LightBuilder, env_id).task
    task._build_placements_dict()
    generator.set_placements_info(task.placements_conf.placements, task.placements_conf.extents, 0.0)
    stock = type(generator).sample_layout
    for seed in range(60):
        outcomes = []
        for sample in (stock, layout.sample_layout):
            generator.set_random_seed(seed)
            generator.layout = None
            outcomes.append((sample(generator), generator.layout, generator.random_generator.get_state()))
        same_bits(outcomes[0], outcomes[1], f"seed {seed}")
