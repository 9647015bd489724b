"""Making environments by id, from our function and through Gymnasium, and what importing us costs."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import subprocess
import sys
from importlib.metadata import requires

import gymnasium
import numpy as np
import pytest

from ccfs.envs import TASKS, is_fast, make, registration
from ccfs.envs.registration import builder_of, make_gymnasium
from ccfs.envs.safety import compat
from ccfs.envs.safety.fast import LightBuilder
from ccfs.envs.safety.selftest import same_bits
from ccfs.runtime.environment import observation_layout
from ccfs.runtime.remade import layers, remaker

pytestmark = pytest.mark.slow


def run(code, **environment):
    variables = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "DISPLAY")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**variables, **environment},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def complaint_about_drawing(backend):
    """Ask MuJoCo itself for a drawing context; return its complaint, empty if it gives one."""
    code = f"from mujoco.{backend} import GLContext; GLContext(16, 16).make_current()"
    environment = {**os.environ, "MUJOCO_GL": backend}
    asked = subprocess.run([sys.executable, "-c", code], env=environment, check=False, capture_output=True, text=True)
    return "" if asked.returncode == 0 else (asked.stderr.strip().splitlines() or [f"exit {asked.returncode}"])[-1]


def test_make_gives_six_results_and_stock_wrappers():
    env = make("SafetyPointGoal1-v0", max_episode_steps=3)
    observation, info = env.reset(seed=1)
    assert is_fast(env)
    assert observation.shape == (60,)
    assert observation.dtype == np.float64
    assert info == {}
    flags = [env.step(np.zeros(2))[3:5] for _ in range(3)]
    assert flags == [(False, False), (False, False), (False, True)]
    same_bits(make("ccfs/SafetyPointGoal1-v0").reset(seed=1)[0], observation, "prefix")


def test_gymnasium_makes_our_environment_with_five_results():
    env, ours = gymnasium.make("ccfs/SafetyPointGoal1-v0"), make("SafetyPointGoal1-v0")
    same_bits(env.reset(seed=3), ours.reset(seed=3), "reset")
    assert is_fast(env)
    observation, reward, terminated, truncated, info = env.step(np.ones(2))
    expected = ours.step(np.ones(2))
    same_bits((observation, reward, info.pop("cost"), terminated, truncated, info), expected, "step")
    assert {f"ccfs/{task}" for task in TASKS} <= set(gymnasium.registry)


def test_make_refuses_unknown_ids():
    with pytest.raises(ValueError, match="`env_id` must be an id of Safety-Gymnasium, got 'CartPole-v1'"):
        make("CartPole-v1")


def test_a_python_without_wheels_is_named(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 12, 1, "final", 0))
    make("SafetyPointGoal1-v0").close()  # whoever has built it has it
    found = importlib.util.find_spec
    absent = {"mujoco", "safety_gymnasium"}
    for missing in absent:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, out=missing: None if name == out else found(name))
        for function in (make, make_gymnasium, builder_of):
            with pytest.raises(
                ImportError, match=r"no wheels for this Python, 3\.12\. Use Python 3\.10 or 3\.11: python3"
            ):
                function("SafetyPointGoal1-v0")


def test_markers_of_the_extra_end_where_the_message_begins():
    first = registration._NEWEST[1] + 1
    wanted = [text for text in requires("ccfs-rl") if 'extra == "safety"' in text]
    assert wanted
    assert all(f'python_version < "3.{first}"' in text for text in wanted)


def test_stock_is_one_flag_away():
    stock = compat.stock("builder").Builder
    assert builder_of("SafetyPointGoal1-v0", fast=False)[0] is stock
    assert not is_fast(make("SafetyPointGoal1-v0", fast=False))


def test_is_fast_means_the_short_step():
    for env_id, short in (("SafetyPointGoal1-v0", True), ("SafetyPointCircle1-v0", False)):
        env = make(env_id)
        assert is_fast(env) is short
        env.reset(seed=1)
        assert is_fast(env) is short is (env.unwrapped._plan is not None)


def test_is_fast_tells_how_an_episode_was_started_and_the_next_will_be():
    env = make("SafetyPointGoal1-v0")
    task = env.unwrapped.task
    task.lidar_conf.alias = False
    assert not is_fast(env)
    task.lidar_conf.alias = True
    env.reset(seed=1)
    task.lidar_conf.alias = False
    assert is_fast(env)
    env.reset(seed=1)
    assert not is_fast(env)


def test_is_fast_is_untrue_of_the_reference(build):
    assert not is_fast(build(LightBuilder, "SafetyPointGoal1-v0"))


def test_make_refuses_a_limit_that_the_task_would_cut():
    for env_id, own in (("SafetyPointGoal1-v0", 1000), ("SafetyPointCircle1-v0", 500)):
        with pytest.raises(ValueError, match=f"`max_episode_steps` must be at most {own}, .*, got {own + 1}"):
            make(env_id, max_episode_steps=own + 1)
        make(env_id, max_episode_steps=own)


@pytest.mark.parametrize("env_id", ["SafetyPointGoal1Vision-v0", "SafetyPointGoal1Debug-v0"])
def test_pixels_and_keyboards_get_stock(env_id):
    assert builder_of(env_id)[0] is compat.stock("builder").Builder


def test_importing_is_light_and_the_plugin_quiet():
    loaded = "import sys, {module}; print([m for m in ('torch', 'omnisafe', 'safety_gymnasium') if m in sys.modules])"
    for module in ("ccfs.envs", "gymnasium"):
        assert run(loaded.format(module=module)).strip() == "[]"
    assert "mujoco" not in run("import sys, ccfs.envs; print(*sys.modules)").split()


def test_a_worker_stays_small():
    code = """
from ccfs.envs import make
env = make("SafetyPointGoal2-v0")
for seed in range(2):
    env.reset(seed=seed)
    for _ in range(50):
        env.step(env.action_space.high)
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""
    assert int(run(code)) < 120 * 1024


def test_rendering_shows_the_textured_world_or_says_what_is_missing(monkeypatch):
    code = """
import numpy as np
from ccfs.envs import is_fast, make
env = make("SafetyPointGoal1-v0", render_mode="rgb_array", width=64, height=48, camera_name="fixedfar")
plain = make("SafetyPointGoal1-v0")
assert is_fast(env)
assert env.reset(seed=1)[0].tobytes() == plain.reset(seed=1)[0].tobytes()
first = env.render()
assert env.step(np.ones(2))[0].tobytes() == plain.step(np.ones(2))[0].tobytes()
print(first.shape, first.dtype, first.std() > 20.0, env.unwrapped.task.model.ntexdata > 10**6)
"""
    chosen = next((name for name in ("EGL", "OSMesa") if ctypes.util.find_library(name)), None)
    if chosen is None:
        monkeypatch.delenv("MUJOCO_GL", raising=False)
        with pytest.raises(RuntimeError, match="EGL or OSMesa"):
            make("SafetyPointGoal1-v0", render_mode="rgb_array")
        return
    complaint = complaint_about_drawing(chosen.lower())
    if complaint:
        pytest.skip(f"{chosen} is installed here and cannot draw: {complaint}")
    assert run(code).strip() == "(48, 64, 3) uint8 True True"


def test_rendering_without_a_library_is_explained(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    with pytest.raises(RuntimeError, match=r"apt install libegl1"):
        make("SafetyPointGoal1-v0", render_mode="rgb_array")


@pytest.mark.parametrize("fast", [True, False])
def test_make_says_where_each_sensor_is_in_the_flat_observation(fast):
    """Oracle: the agent's own sensors, read from the simulation after a step."""
    env = make("SafetyPointGoal2-v0", fast=fast)
    layout = observation_layout(env)
    assert list(layout) == [
        "accelerometer", "velocimeter", "gyro", "magnetometer", "goal_lidar", "hazards_lidar", "vases_lidar",
    ]  # fmt: skip
    assert [stop - start for start, stop in layout.values()] == [3, 3, 3, 3, 16, 16, 16]
    env.reset(seed=3)
    seen = env.step(np.array([0.5, 0.3]))[0]
    agent = env.unwrapped.task.agent
    for name in ("accelerometer", "velocimeter", "gyro", "magnetometer"):
        np.testing.assert_array_equal(seen[slice(*layout[name])], agent.get_sensor(name))
    assert observation_layout(make_gymnasium("SafetyPointGoal2-v0", fast=fast)) == layout


@pytest.mark.parametrize("fast", [True, False])
def test_task_is_made_again_as_it_was(fast):
    env = make("SafetyPointGoal1-v0", fast=fast, max_episode_steps=4)
    again = remaker(env)()
    assert [type(layer) for layer in layers(again)] == [type(layer) for layer in layers(env)]
    np.testing.assert_array_equal(again.reset(seed=1)[0], env.reset(seed=1)[0])
    for _ in range(4):
        one, other = again.step(np.ones(2)), env.step(np.ones(2))
        np.testing.assert_array_equal(one[0], other[0])
        assert one[1:5] == other[1:5]
