"""Small environments built from functions, for tests of the runtime."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np

from ccfs.envs.toys.corridor import Corridor
from ccfs.runs.events import NoAbstention, NoCostUntilGoal, holds
from ccfs.runtime.components import AcceptAll

__all__ = ["AcceptAll", "NoAbstention", "NoCostUntilGoal", "holds"]
"""Parts of ours as if they were code of a user's own, which a protocol names by "toys:..."."""


class Line(gymnasium.Env):
    """A point on a line: the action is added with noise; cost above 1, goal above 2. Six values a step if asked."""

    def __init__(
        self,
        *,
        dtype=np.float64,
        six=False,
        noise=0.01,
        steps=None,
        ends_at=None,
        breaks_at=None,
        nan_at=None,
        dimension=2,
    ):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (dimension,), dtype)
        self.six, self.noise, self.steps = six, noise, steps
        self.ends_at, self.breaks_at, self.nan_at = ends_at, breaks_at, nan_at
        self.executed = []
        self.render_mode = None

    def _see(self):
        return np.array([self.x, float(self.t), self.x**2])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.normal(0, 0.1)), 0
        return self._see(), {}

    def step(self, action):
        assert action.dtype == self.action_space.dtype
        if self.t == self.breaks_at:
            raise RuntimeError("the simulation diverged")
        self.executed.append(action.copy())
        self.x += 0.1 * float(action[0]) + self.noise * float(self.np_random.normal())
        self.t += 1
        if self.t == self.nan_at:
            self.x = np.nan
        cost, info = float(self.x > 1.0), {}
        if self.x > 2.0:
            info["goal_met"] = True
        terminated, truncated = self.t == self.ends_at, self.t == self.steps
        if self.six:
            return self._see(), self.x, cost, terminated, truncated, info
        return self._see(), self.x, terminated, truncated, {**info, "cost": cost}


class Fragile(Corridor):
    """A corridor that raises when the cart comes near the post."""

    def step(self, action):
        found = super().step(action)
        if found[0][0] > 0.4:
            raise RuntimeError("the cart broke")
        return found


class Push:
    """A controller that always pushes to the right."""

    digest = "push"

    def reset(self):
        pass

    def center(self, observation):
        return np.array([0.8, 0.1])


class Drifting:
    """A controller for the corridor whose digest a test can change."""

    digest = "drifting"

    def reset(self):
        pass

    def center(self, observation):
        return np.array([0.01])


def limited(steps, outer=None):
    """A line of one dimension under one or two time limits."""
    env = gymnasium.wrappers.TimeLimit(Line(dimension=1), steps)
    return env if outer is None else gymnasium.wrappers.TimeLimit(env, outer)


def registered(steps):
    """A line of one dimension with a time limit in its spec alone."""
    env = Line(dimension=1)
    env.spec = gymnasium.envs.registration.EnvSpec("Line-v0", max_episode_steps=steps)
    return env


class Priced(gymnasium.Env):
    """Costs `price` in each of the first (reset seed mod 4) of six steps, whatever is done. A cost is a lost reward."""

    def __init__(self, *, price=1.0, crash_at=None, silent_at=None, steps=None):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)
        self.price, self.crash_at, self.silent_at, self.steps = price, crash_at, silent_at, steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.costly = 0, 0 if seed is None else seed % 4
        return np.zeros(1), {}

    def step(self, action):
        if self.t == self.crash_at:
            raise RuntimeError("the simulation diverged")
        reward = -self.price * (self.t < self.costly)
        info = {"cost": -reward}
        if self.silent_at is not None and self.t >= self.silent_at:
            info = {}
        self.t += 1
        return np.zeros(1), reward, False, self.t == self.steps, info


class Slow(Priced):
    """Takes half a minute for a step of a trial with a reset seed from 104 on, while TOY_SLOW is set."""

    def reset(self, *, seed=None, options=None):
        self.is_slow = bool(os.environ.get("TOY_SLOW")) and 104 <= seed < 2**31
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.is_slow:
            time.sleep(30)
        return super().step(action)


def foreign_threads():
    """How many threads this process has that Python did not start: those of linear algebra.

    Some builds of Arrow start one that tidies up its memory. It computes nothing and is not counted.
    """
    np.ones((600, 600)) @ np.ones((600, 600))
    names = [(task / "comm").read_text(encoding="utf-8").strip() for task in Path("/proc/self/task").iterdir()]
    return len([name for name in names if name != "jemalloc_bg_thd"]) - threading.active_count()


class Buttons(gymnasium.Env):
    """Counts which action was pressed. The observation is the last action and the time; the reward is the action."""

    def __init__(self, *, space=None, steps=None, start=0, count=3, groups=None):
        if space is None:
            space = (
                gymnasium.spaces.Discrete(count, start=start)
                if groups is None
                else gymnasium.spaces.MultiDiscrete(groups)
            )
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space, self.steps = space, steps
        self.render_mode, self.pressed = None, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.pressed = 0, []
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.pressed.append(action)
        self.t += 1
        last = float(np.sum(action))
        seen = np.array([last, self.t], dtype=np.float32)
        return seen, last, False, self.t == self.steps, {"cost": float(last == 2.0)}


class Scores:
    """A controller that gives the same scores at every step."""

    digest = "scores"

    def __init__(self, scores=(0.0, 1.0, 0.5)):
        self._scores = scores

    def reset(self):
        pass

    def center(self, observation):
        return np.array(self._scores)
