"""What the navigator does: reach goals under noise, repeat itself exactly, refuse settings that mean nothing."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ccfs.controllers.navigator import Navigator, NavigatorSettings, controller
from ccfs.controllers.navigator.controller import VERSION, package_digest
from ccfs.runtime.interfaces import Controller

pytestmark = pytest.mark.slow
TASK = "SafetyPointGoal2-v0"


def run(env, navigator, seed, sigma, steps):
    """Return outcome, observations and centers of one episode."""
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    navigator.reset()
    seen, centers = [], []
    for _ in range(steps):
        seen.append(observation)
        centers.append(navigator.center(observation))
        action = np.clip(centers[-1] + sigma * rng.standard_normal(2), -1, 1)
        observation, _, cost, _, _, info = env.step(action)
        if cost > 0:
            return "cost", seen, centers
        if info.get("goal_met"):
            return "goal", seen, centers
    return "timeout", seen, centers


@pytest.mark.parametrize(("seed", "sigma"), [(3_000_000_001, 0.2), (3_000_000_002, 1.0), (3_000_000_003, 1.0)])
def test_navigator_reaches_the_goal_before_any_cost(env, seed, sigma):
    outcome, _, centers = run(env, Navigator(sigma), seed, sigma, 500)
    assert outcome == "goal"
    assert all(c.shape == (2,) and c.dtype == np.float64 and np.abs(c).max() <= 1.0 for c in centers)
    assert all(abs(c[0]) == 1.0 for c in centers)


def test_navigator_takes_a_narrow_way_once_the_way_around_takes_too_long(env):
    """On this layout of the tuning seeds a gap near the goal counts as closed, and the way around is long."""
    patient = Navigator(1.0, NavigatorSettings(deadline=10**6))
    outcome, _, centers = run(env, patient, 3_000_011_028, 1.0, 500)
    assert outcome == "timeout"
    hurried = Navigator(1.0)
    outcome, _, other_centers = run(env, hurried, 3_000_011_028, 1.0, 500)
    assert outcome == "goal"
    # Until it is late, it does the same.
    differing = [not np.array_equal(one, other) for one, other in zip(centers, other_centers, strict=False)]
    assert differing.index(True) > 100


def test_navigator_is_a_function_of_the_history_since_reset(env):
    navigator = Navigator(0.5)
    _, seen, centers = run(env, navigator, 3_000_000_004, 0.5, 60)
    for other in (navigator, Navigator(0.5)):
        other.reset()
        assert [other.center(observation).tobytes() for observation in seen] == [c.tobytes() for c in centers]


def test_navigator_digest_covers_sigma_settings_version_and_source(monkeypatch):
    digests = {Navigator(0.5).digest, Navigator(0.6).digest}
    digests.add(Navigator(0.5, NavigatorSettings(risk_weight=1.0)).digest)
    monkeypatch.setattr("ccfs.controllers.navigator.controller.VERSION", VERSION + "x")
    digests.add(Navigator(0.5).digest)
    monkeypatch.setattr("ccfs.controllers.navigator.controller.package_digest", lambda: "other code")
    digests.add(Navigator(0.5).digest)
    assert len(digests) == 5
    assert isinstance(Navigator(0.5), Controller)


def test_navigator_digest_changes_with_its_code_and_not_with_a_comment(tmp_path):
    original = Path(controller.__file__).parent
    before = package_digest()
    for file in sorted(path.name for path in original.glob("*.py")):
        mended, changed = (shutil.copytree(original, tmp_path / kind / file) for kind in ("mended", "changed"))
        text = (original / file).read_text(encoding="utf-8")
        docstring, rest = text.split("\n", 1)
        (mended / file).write_text(f'"""Mended."""\n# mended\n{rest}', encoding="utf-8")
        (changed / file).write_text(f"{text}\n_CHANGED = 1\n", encoding="utf-8")
        assert docstring.startswith('"""')
        assert package_digest(mended) == before
        assert package_digest(changed) != before


@pytest.mark.parametrize("sigma", [math.nan, math.inf, -1.0])
def test_navigator_refuses_sigma(sigma):
    with pytest.raises(ValueError, match="`sigma` must be finite and at least 0"):
        Navigator(sigma)


def test_navigator_imports_neither_torch_nor_mujoco():
    code = "import sys, ccfs.controllers.navigator; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "ccfs.controllers.navigator" in loaded
    assert {"torch", "mujoco", "safety_gymnasium", "scipy"} & set(loaded) == set()
