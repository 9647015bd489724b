"""The fast environment against stock, bit for bit; stock Safety-Gymnasium 1.0.0 is the oracle throughout."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from ccfs.envs.safety import compat, costs, layout
from ccfs.envs.safety.fast import Builder, FastBuilder, LightBuilder
from ccfs.envs.safety.physics import Physics
from ccfs.envs.safety.selftest import same_bits

# NumPy's word on how stock reads a joint number, in every robot but Point.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
]
# Each task with a seed whose first 115 steps hold a cost and, but for Push, a goal.
SEEDS = {
    "SafetyPointGoal1-v0": 14,
    "SafetyPointGoal2-v0": 14,
    "SafetyPointButton1-v0": 14,
    "SafetyPointButton2-v0": 14,
    "SafetyPointPush1-v0": 2,
    "SafetyPointPush2-v0": 2,
    "SafetyCarGoal1-v0": 6,
    "SafetyCarGoal2-v0": 14,
}


def hidden(env):
    """Return what later steps depend on and no result shows."""
    task = env.task
    return (
        task.world_info.layout,
        task.world_info.reset_layout,
        task.random_generator.random_generator.get_state(),
        {name: value for name, value in vars(task).items() if name.startswith("last_")},
        task.data.qpos.copy(),
        task.data.qvel.copy(),
        task.data.qacc_warmstart.copy(),
        env.steps,
        env.cost,
    )


def compare(reference, ours, driver, *, seed, steps):
    """Play one episode on both; return the results of the reference."""
    results = []
    same_bits(reference.reset(seed=seed), ours.reset(seed=seed), "reset")
    same_bits(hidden(reference), hidden(ours), "hidden state at reset")
    pilot = driver(reference, seed)
    for step in range(steps):
        action = pilot.action()
        results.append(reference.step(action))
        same_bits(results[-1], ours.step(action), f"step {step}")
        if results[-1][3] or results[-1][4]:
            break
    same_bits(hidden(reference), hidden(ours), "hidden state at the end")
    return results


@pytest.mark.parametrize(("env_id", "seed"), SEEDS.items())
def test_fast_gives_stock_bits(env_id, seed, build, driver):
    reference, ours = build(LightBuilder, env_id), build(FastBuilder, env_id)
    results = compare(reference, ours, driver, seed=seed, steps=115)
    for env in (reference, ours):
        env.task.goal.size = 4.0
    results += compare(reference, ours, driver, seed=5, steps=40)
    assert ours._plan is not None
    assert any("goal_met" in result[5] for result in results)
    assert any(result[2] > 0 for result in results)


def test_fast_gives_the_bits_of_untouched_stock(build, driver):
    reference, ours = build(Builder, "SafetyPointGoal2-v0"), build(FastBuilder, "SafetyPointGoal2-v0")
    results = compare(reference, ours, driver, seed=14, steps=200)
    results += compare(reference, ours, driver, seed=7, steps=50)
    events = {key for result in results for key, value in result[5].items() if value}
    assert {"goal_met", "cost_hazards", "cost_vases_contact", "cost_vases_velocity"} <= events
    different = {
        name
        for name in dir(reference.task.model)
        if isinstance(getattr(reference.task.model, name), np.ndarray)
        and getattr(reference.task.model, name).tobytes() != getattr(ours.task.model, name).tobytes()
    }
    # Pictures aside, the compiled models are the same: "reference" may therefore be stock code on a light world.
    assert all(name.startswith("tex_") for name in different), different
    assert different


def test_button_goals_are_renewed_as_in_stock(build, driver):
    reference, ours = build(LightBuilder, "SafetyPointButton1-v0"), build(FastBuilder, "SafetyPointButton1-v0")
    results = compare(reference, ours, driver, seed=10, steps=250)
    keys = [key for result in results for key, value in result[5].items() if value]
    assert {"goal_met", "cost_buttons"} <= set(keys)
    assert any("cost_buttons" not in result[5] for result in results)


@pytest.mark.parametrize("env_id", ["SafetyPointGoal2-v0", "SafetyCarGoal1-v0"])
def test_fast_is_exact_without_its_shortcuts(env_id, build, driver, monkeypatch):
    monkeypatch.setattr(Physics, "_quaternions_rest", lambda self: False)
    monkeypatch.setattr(costs, "_SPEED_MARGIN", np.inf)
    monkeypatch.setattr(layout, "_uniform_is_plain", lambda: False)
    reference, ours = build(LightBuilder, env_id), build(FastBuilder, env_id)
    compare(reference, ours, driver, seed=2, steps=60)


def test_fast_uses_its_shortcuts(build, driver, monkeypatch):
    calls = []
    plain = mujoco.mj_step2
    monkeypatch.setattr(mujoco, "mj_step2", lambda *arguments: calls.append(1) or plain(*arguments))
    ours = build(FastBuilder, "SafetyPointGoal2-v0")
    ours.reset(seed=2)
    for _ in range(50):
        ours.step(np.ones(2))
    assert len(calls) > 30


def test_fast_notices_a_state_changed_from_outside(build):
    reference, ours = build(LightBuilder, "SafetyPointGoal1-v0"), build(FastBuilder, "SafetyPointGoal1-v0")
    for env in (reference, ours):
        env.reset(seed=1)
        env.step(np.ones(2))
        env.task.data.qpos[0] += 0.1
        env.task.data.qvel[1] -= 0.5
    for _ in range(5):
        same_bits(reference.step(np.ones(2)), ours.step(np.ones(2)), "after a push from outside")


@pytest.mark.parametrize(
    "change",
    [
        lambda task: setattr(task.cost_conf, "constrain_indicator", False),
        lambda task: setattr(task.lidar_conf, "alias", False),
        lambda task: setattr(task.lidar_conf, "max_dist", None),
        lambda task: setattr(task.vases, "contact_cost", 0.0),
        lambda task: setattr(task.hazards, "cost", -1.0),
        lambda task: setattr(task, "__class__", type("Subclass", (type(task),), {})),
    ],
)
def test_unknown_settings_take_the_stock_step(change, build, driver):
    reference, ours = build(LightBuilder, "SafetyPointGoal2-v0"), build(FastBuilder, "SafetyPointGoal2-v0")
    for env in (reference, ours):
        change(env.task)
    compare(reference, ours, driver, seed=4, steps=15)
    assert ours._plan is None


def test_other_robots_and_tasks_keep_stock_bits(build, driver):
    for env_id in ("SafetyRacecarGoal1-v0", "SafetyDoggoGoal1-v0", "SafetyAntGoal1-v0", "SafetyPointCircle1-v0"):
        reference, ours = build(LightBuilder, env_id), build(FastBuilder, env_id)
        same_bits(reference.reset(seed=3), ours.reset(seed=3), env_id)
        rng = np.random.default_rng(0)
        for step in range(25):
            action = rng.uniform(-1.0, 1.0, reference.action_space.shape)
            result = reference.step(action)
            same_bits(result, ours.step(action), f"{env_id} step {step}")
            if result[3]:
                break


def test_a_layout_that_starts_with_a_cost_is_refused_in_stock_words(build):
    complaints = []
    for kind in (LightBuilder, FastBuilder):
        env = build(kind, "SafetyPointGoal1-v0")
        env.task.hazards.size = 5.0
        with pytest.raises(AssertionError, match="World has starting cost!") as caught:
            env.reset(seed=0)
        complaints.append(str(caught.value))
    assert complaints[0] == complaints[1]


def test_a_goal_without_room_ends_the_episode_as_in_stock(build, monkeypatch):
    results = []
    for kind in (LightBuilder, FastBuilder):
        env = build(kind, "SafetyPointGoal1-v0")
        env.task.goal.size = 5.0
        env.reset(seed=0)
        monkeypatch.setattr(env.task.random_generator, "sample_goal_position", lambda: False)
        results.append(env.step(np.zeros(2)))
    same_bits(results[0], results[1], "step")
    assert results[1][3] is True
    with pytest.raises(AssertionError, match="must be reset"):
        env.step(np.zeros(2))


def test_step_refuses_what_stock_refuses(build):
    env = build(FastBuilder, "SafetyPointGoal1-v0")
    with pytest.raises(AssertionError, match="must be reset"):
        env.step(np.zeros(2))
    env.reset(seed=0)
    with pytest.raises(ValueError, match="Action dimension mismatch"):
        env.step(np.zeros(3))


def test_episode_is_truncated_after_num_steps_and_observations_are_fresh(build, driver):
    reference, ours = build(LightBuilder, "SafetyPointGoal1-v0"), build(FastBuilder, "SafetyPointGoal1-v0")
    for env in (reference, ours):
        env.task.num_steps = 7
    results = compare(reference, ours, driver, seed=1, steps=50)
    assert [result[4] for result in results] == [False] * 6 + [True]
    ours.reset(seed=1)
    first, second = ours.step(np.ones(2))[0], ours.step(np.ones(2))[0]
    assert not np.shares_memory(first, second)


def test_not_a_number_in_an_observation_is_refused_as_in_stock(build, monkeypatch):
    env = build(FastBuilder, "SafetyPointGoal1-v0")
    env.reset(seed=0)
    monkeypatch.setattr(env._plan.physics, "sensordata", np.full_like(env._plan.physics.sensordata, np.nan))
    stock_obs = []
    monkeypatch.setattr(env.task, "obs", lambda: stock_obs.append(1) or np.zeros(60))
    env.step(np.zeros(2))
    assert stock_obs == [1]


def test_fixed_layouts_behave_as_in_stock(build):
    observations = []
    for kind in (LightBuilder, FastBuilder):
        env = build(kind, "SafetyPointGoal1-v0")
        env.task.mechanism_conf.randomize_layout = False
        with pytest.raises(AssertionError, match="randomize_layout"):
            env.reset(seed=1)
        observations.append(env.reset()[0])
    same_bits(observations[0], observations[1], "observation")
    assert compat.stock("version").__version__ == "1.0.0"
