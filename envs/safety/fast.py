"""Safety-Gymnasium's environment class with a faster step that gives the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccfs.envs.safety import compat
from ccfs.envs.safety.costs import Costs
from ccfs.envs.safety.physics import Physics
from ccfs.envs.safety.rewards import reward_of
from ccfs.envs.safety.sensors import Observer
from ccfs.envs.safety.support import is_supported
from ccfs.envs.safety.world import lighten, quicken

__all__ = ["FastBuilder", "LightBuilder", "PictureBuilder"]

Builder: Any = compat.stock("builder").Builder
_ResamplingError: Any = compat.stock("utils.common_utils").ResamplingError


class LightBuilder(Builder):  # type: ignore[misc]
    """The stock environment without pictures. Stock code computes everything but pixels."""

    def _get_task(self) -> Any:
        task = super()._get_task()
        lighten(task)
        return task


class FastBuilder(Builder):  # type: ignore[misc]
    """The stock environment with cheap resets and, where `is_supported`, a fast step with the same result."""

    terminated: bool
    truncated: bool
    _plan: _Plan | None = None
    _pictures = False

    def _get_task(self) -> Any:
        task = super()._get_task()
        quicken(task, pictures=self._pictures)
        return task

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, object]]:
        """Start an episode: observation and an empty dictionary, as stock returns them."""
        self._plan, task = None, self.task
        if not is_supported(task):
            result: tuple[NDArray[np.float64], dict[str, object]] = super().reset(seed=seed, options=options)
            return result
        if not task.mechanism_conf.randomize_layout:
            if seed is not None:
                raise AssertionError("Cannot set seed if randomize_layout=False")
            self.set_seed(0)
        elif seed is not None:
            self.set_seed(seed)
        self.terminated = self.truncated = False
        self.steps = 0
        task.reset()
        task.update_world()
        task.specific_reset()
        task.agent.reset()
        # After `update_world`, which compiles a new model: everything that was looked up before belongs to the old one.
        plan = _Plan(task)
        plan.physics.refresh()
        self.cost = plan.costs.indicators(plan.costs.touches())
        if self.cost["cost_sum"] != 0:
            raise AssertionError(f"World has starting cost! {self.cost}")
        self.first_reset = False
        plan.physics.sense()
        self._plan = plan
        return plan.observer.observe(), {}

    def step(
        self, action: NDArray[np.generic]
    ) -> tuple[NDArray[np.float64], np.float64, float, bool, bool, dict[str, object]]:
        """Take one step: observation, reward, cost, terminated, truncated, info, all as stock returns them."""
        plan, task = self._plan, self.task
        if plan is None:
            result: tuple[NDArray[np.float64], np.float64, float, bool, bool, dict[str, object]] = super().step(action)
            return result
        if self.terminated or self.truncated:
            raise AssertionError("Environment must be reset before stepping.")
        action = np.asarray(action)
        if action.shape != plan.action_shape:
            raise ValueError("Action dimension mismatch")

        physics, costs = plan.physics, plan.costs
        conf = task.sim_conf
        # Stock draws the number of sub-steps, and this draw moves the random stream.
        physics.advance(action, task.random_generator.binomial(conf.frameskip_binom_n, conf.frameskip_binom_p))
        touches = costs.touches()
        reward = plan.reward.collect(touches)
        clip = task.reward_conf.reward_clip
        if clip and not -clip < reward < clip:
            reward = np.clip(reward, -clip, clip)
            print("Warning: reward was outside of range!")  # noqa: T201  (stock's own words)
        # Stock computes the forces again before it asks for costs. Contacts may have moved by a bit.
        if physics.settle():
            touches = costs.touches()
        self.cost = costs.indicators(touches)
        info: dict[str, object] = dict(self.cost)
        cost = self.cost["cost_sum"]
        # After the costs and before the goal, as in stock: the timer of the buttons runs here.
        task.specific_step()
        if plan.reward.achieved(touches):
            info["goal_met"] = True
            self._renew_goal()
        if not task.agent.is_alive():
            self.terminated = True
        self.steps += 1
        if self.steps >= task.num_steps:
            self.truncated = True
        physics.sense()
        return plan.observer.observe(), reward, cost, self.terminated, self.truncated, info

    def _renew_goal(self) -> None:
        task = self.task
        if not task.mechanism_conf.continue_goal:
            self.terminated = True
            return
        task.update_layout()
        try:
            task.update_world()
        except _ResamplingError:
            if not task.mechanism_conf.terminate_resample_failure:
                raise
            self.terminated = True


class PictureBuilder(FastBuilder):
    """The fast environment with stock's textures, for rendering off-screen."""

    _pictures = True


class _Plan:
    """What every step of an episode needs, looked up once."""

    def __init__(self, task: Any) -> None:
        self.action_shape: tuple[int, ...] = task.action_space.shape
        self.physics = Physics(task)
        self.costs = Costs(task, self.physics)
        self.reward = reward_of(task, self.physics)
        self.observer = Observer(task, self.physics)
