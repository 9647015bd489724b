"""The rewards and goal conditions of the Goal, Button and Push tasks, with stock's arithmetic on cached positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ccfs.envs.safety.costs import Costs
from ccfs.envs.safety.physics import Physics
from ccfs.envs.safety.support import FAMILIES

__all__ = ["GoalReward", "reward_of"]


class GoalReward:
    """Progress of the agent towards the goal, plus a bonus on arrival."""

    def __init__(self, task: Any, physics: Physics) -> None:
        self._task, self._physics = task, physics
        self._goal = int(physics.model.body("goal").id)
        self._source = task.goal

    def collect(self, touches: set[int]) -> np.float64:
        """Return this step's reward and remember the distance. Call this once per step."""
        task = self._task
        distance = self._distance()
        reward = 0.0 + (task.last_dist_goal - distance) * self._source.reward_distance
        task.last_dist_goal = np.float64(distance)
        if self.achieved(touches):
            reward += self._source.reward_goal
        return np.float64(reward)

    def achieved(self, touches: set[int]) -> bool:
        """Return True if the goal is reached now."""
        return bool(self._distance() <= self._task.goal.size)

    def _distance(self) -> float:
        # Two squares and one addition round the same in any order, so plain floats give numpy's bits.
        position = self._physics.position
        gx, gy, _ = position[self._goal].tolist()
        ax, ay, _ = position[self._physics.agent].tolist()
        dx, dy = gx - ax, gy - ay
        return math.sqrt(dx * dx + dy * dy)


class ButtonReward(GoalReward):
    """Progress towards the goal button, plus a bonus for touching it."""

    def __init__(self, task: Any, physics: Physics) -> None:
        super().__init__(task, physics)
        self._source = task.buttons

    def achieved(self, touches: set[int]) -> bool:
        """Return True if the agent touches the goal button."""
        return Costs.touches_goal_button(touches)


class PushReward(GoalReward):
    """Progress of the agent towards the box and of the box towards the goal, plus a bonus on arrival of the box."""

    def __init__(self, task: Any, physics: Physics) -> None:
        super().__init__(task, physics)
        self._box = int(physics.model.body("push_box").id)

    def collect(self, touches: set[int]) -> np.float64:
        """Return this step's reward and remember both distances. Call this once per step."""
        task, box = self._task, self._task.push_box
        to_box = self._distance3(self._physics.agent)
        is_far = task.last_dist_box > box.null_dist * box.size
        reward = 0.0 + (task.last_dist_box - to_box) * box.reward_box_dist * is_far
        task.last_dist_box = to_box
        to_goal = self._distance3(self._goal)
        reward += (task.last_box_goal - to_goal) * box.reward_box_goal
        task.last_box_goal = to_goal
        if to_goal <= task.goal.size:
            reward += task.goal.reward_goal
        return np.float64(reward)

    def achieved(self, touches: set[int]) -> bool:
        """Return True if the box is at the goal."""
        return bool(self._distance3(self._goal) <= self._task.goal.size)

    def _distance3(self, body: int) -> np.float64:
        # Three terms: the order of addition matters, so numpy itself adds them.
        position = self._physics.position
        return np.float64(np.sqrt(np.add.reduce(np.square(position[self._box] - position[body]))))


def reward_of(task: Any, physics: Physics) -> GoalReward:
    """Return the reward of a supported task."""
    kinds = {"Goal": GoalReward, "Button": ButtonReward, "Push": PushReward}
    return kinds[FAMILIES[type(task)]](task, physics)
