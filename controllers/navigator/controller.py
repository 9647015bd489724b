"""The controller that drives a Point robot to its goal without touching anything, from observations alone."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.navigator.clearance import Surroundings
from ccfs.controllers.navigator.lidar_map import CELL
from ccfs.controllers.navigator.noisy_map import AnyMap, NoisyMap, map_for
from ccfs.controllers.navigator.robot import NoisyRobot
from ccfs.controllers.navigator.rollouts import Bundle, Rollouts
from ccfs.controllers.navigator.route import GOAL_RADIUS, Route
from ccfs.controllers.navigator.settings import NavigatorSettings
from ccfs.files.code import file_code_digest

__all__ = ["VERSION", "Navigator", "package_digest"]

VERSION: Final = "ccfs.navigator/3"
_NEVER: Final = -(10**6)
_NEW_GOAL: Final = 0.1
_GLIDE: Final = 1.5
_GLIDE_SHARES: Final = np.arange(1, 7)[:, None] / 6.0
# A little inside the edge of the goal, against errors of the pose.
_REACHED: Final = GOAL_RADIUS - 0.01


class Navigator:
    """A `Controller` for SafetyPointGoal tasks of 60 numbers: memory, no randomness, centers inside the action box.

    At each step it adds the observation to its map. Then it compares candidates: pairs of held actions that end in a
    brake, as they go on average under proposal noise of scale `sigma`. It judges them by the time that is left to the
    goal and by how near they pass to anything that is or may be there. Thrust is always +-1, because noise flips that
    least often.

    Args:
        sigma: scale of the proposal noise that the navigator will run under. It is fixed before sampling.
        settings: tuned constants, or None for the shipped ones.
        sensor: scale of the Gaussian noise on every number that it will read. 0 says that readings are exact, up to a
            grid of 2^-20. Under noise that it was not told of, it finds nothing.
        drawn: a map that somebody else updates and resets, for use with `decide`. None for a map of its own.
    """

    def __init__(
        self,
        sigma: float,
        settings: NavigatorSettings | None = None,
        *,
        sensor: float = 0.0,
        drawn: AnyMap | None = None,
    ) -> None:
        self.settings = settings or NavigatorSettings()
        self.robot = NoisyRobot(sigma=sigma)
        self.map = drawn or map_for(sensor)
        self._owns_map = drawn is None
        self.route = Route(self.settings, self.robot)
        self.surroundings = Surroundings()
        self._rollouts = Rollouts(self.robot, self.settings.first_steps, self.settings.second_steps)
        # Many candidates begin alike, and a guard asks about the beginning only.
        starts, which = np.unique(self._rollouts.actions, axis=0, return_inverse=True)
        self._distinct = (starts, which.reshape(-1))
        self._scale = self.settings.risk_scale + self.settings.risk_scale_noise * sigma
        self._turn_rate = self.robot.mean_turn(1.0)
        told = repr((VERSION, sigma, sensor, asdict(self.settings), package_digest()))
        self._digest = hashlib.sha256(told.encode()).hexdigest()
        self.reset()

    @property
    def digest(self) -> str:
        """SHA-256 of the code, its version, the noise scale and every constant."""
        return self._digest

    def reset(self) -> None:
        """Forget the map, because a new trial begins."""
        if self._owns_map:
            self.map.reset()
        self._steps = 0
        self._version, self._had_goal = -1, False
        self._goal: tuple[float, float] | None = None
        self._begun = 0
        self._anchor, self._anchored = (math.inf, math.inf), 0
        self.route.blocks.clear()
        self._patience = 1.0
        self._is_hurried = False
        self._planned = self._fresh = _NEVER
        self._refreshed = _NEVER

    def center(self, observation: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the center for this observation. Call this once per step."""
        self.map.observe(observation)
        return self.decide()

    def decide(self) -> NDArray[np.float64]:
        """Return the center for the map as it is, after `map.observe`. Call this once per step."""
        self.follow(is_driving=True)
        return np.array(self.actions[int(np.argmin(self.costs()))])

    @property
    def actions(self) -> NDArray[np.float64]:
        """The first action of each candidate, shape (n, 2)."""
        return self._rollouts.actions

    @property
    def distinct_actions(self) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """The different ones among `actions`, and which of them each candidate begins with."""
        return self._distinct

    def follow(self, *, is_driving: bool) -> None:
        """Renew route and fields for the map as it is. Call this once per step. Then `costs` changes nothing.

        Args:
            is_driving: whether the robot follows this navigator. If not, a robot that does not move is not stuck.
        """
        self._renew(is_driving=is_driving)
        self._steps += 1

    def _renew(self, *, is_driving: bool) -> None:
        goal = self.map.goal
        if goal and self._goal and math.dist(goal, self._goal) > _NEW_GOAL:
            self._begun = self._steps
            self._is_hurried = False
            self.route.blocks.clear()
        # A goal out of sight is still where it was.
        self._goal = goal or self._goal
        late = (self._steps - self._begun - self.settings.patient_steps) / self.settings.hurry_steps
        self._patience = 1.0 - (1.0 - self.settings.hurry_share) * min(max(late, 0.0), 1.0)
        stuck = self._is_stuck(is_driving=is_driving)
        if stuck:
            self.route.block_ahead(self.map)
        settings, drawn, since = self.settings, self.map, self._steps - self._planned
        found = stuck or (drawn.goal is not None) != self._had_goal
        learned = drawn.version != self._version and since >= settings.route_every // 2
        if found or learned or since >= settings.route_every:
            fresh = found or learned or self._steps - self._fresh >= settings.fresh_every
            self.route.plan(drawn, fresh=fresh, narrow=self._is_hurried)
            if not self._is_hurried and self._is_late():
                # The way around takes too long, so try what was too narrow, and do not change the mind again.
                self._is_hurried = fresh = True
                self.route.plan(drawn, fresh=True, narrow=True)
            self._planned, self._version, self._had_goal = self._steps, drawn.version, drawn.goal is not None
            self._fresh = self._steps if fresh else self._fresh
        if self._steps - self._refreshed >= settings.field_every:
            self.surroundings.refresh(drawn)
            self._refreshed = self._steps

    def _is_late(self) -> bool:
        """Say whether the way takes longer than there is time, on a map that is good enough to drive closer."""
        # Noisy readings place obstacles worse than a narrow gap needs: the robot would often only wait in front of it.
        if isinstance(self.map, NoisyMap):
            return False
        pose = self.map.pose
        time = float(self.route.time_at(np.array([pose.x]), np.array([pose.y]))[0])
        return time > self.settings.deadline - (self._steps - self._begun)

    def _is_stuck(self, *, is_driving: bool) -> bool:
        """Say whether the robot has stayed around one place for too long."""
        here = (self.map.pose.x, self.map.pose.y)
        if not is_driving or math.dist(here, self._anchor) > self.settings.stuck_radius:
            self._anchor, self._anchored = here, self._steps
        if self._steps - self._anchored < self.settings.stuck_steps:
            return False
        # Counted anew, so that the next way is not closed at the next step too.
        self._anchored = self._steps
        return True

    def costs(self) -> NDArray[np.float64]:
        """Return the cost (steps) of each candidate."""
        settings, rollouts, pose = self.settings, self._rollouts, self.map.pose
        cos, sin = math.cos(pose.heading), math.sin(pose.heading)
        vx, vy = pose.mass_velocity
        bundle = rollouts.bundle(cos * vx + sin * vy, cos * vy - sin * vx)
        x, y = pose.x + cos * bundle.x - sin * bundle.y, pose.y + sin * bundle.x + cos * bundle.y
        facing_cos, facing_sin = cos * bundle.cos - sin * bundle.sin, sin * bundle.cos + cos * bundle.sin
        clearance = self.surroundings.clearance(self.map, x, y, facing_cos, facing_sin, 0.5 * CELL)
        risk = self._patience * settings.risk_weight * np.exp(-np.maximum(clearance, 0.0) / self._scale)
        risk += settings.crash_weight * np.maximum(-clearance, 0.0)
        held = rollouts.held_samples
        last_x, last_y = x[held - 1], y[held - 1]
        go_x, go_y = self._going(bundle, cos, sin)
        glide = settings.look_ahead * _GLIDE_SHARES
        glide_x, glide_y = last_x + glide * go_x, last_y + glide * go_y
        here = self.route.time_at(last_x, last_y)
        there = self.route.time_at(glide_x[1::2], glide_y[1::2])
        there[np.logical_or.accumulate(self.route.is_closed_at(glide_x, glide_y))[1::2]] = math.inf
        there = there.min(axis=0)
        # A glide gains no more than the open way allows. Otherwise it would seem to carry the robot through a wall.
        most = _GLIDE * settings.look_ahead / self.route.pace * np.sqrt(go_x * go_x + go_y * go_y)
        time = np.minimum(here, np.maximum(there, here - most))
        # Early progress counts too. Otherwise a run-up that ends fast seems best, and is put off again at each step.
        time += settings.progress_weight * self.route.time_at(x[:held:2], y[:held:2]).mean(axis=0)
        down_x, down_y = self.route.down_at(last_x, last_y)
        aside = np.abs(facing_cos[held - 1] * down_y - facing_sin[held - 1] * down_x)
        time += settings.turn_weight / self._turn_rate * np.arcsin(np.minimum(aside, 1.0))
        if self.map.goal is not None:
            self._arrive(x, y, risk, time)
        return np.asarray(time + risk.sum(axis=0))

    def _going(self, bundle: Bundle, cos: float, sin: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return cos * bundle.end_vx - sin * bundle.end_vy, sin * bundle.end_vx + cos * bundle.end_vy

    def _arrive(
        self, x: NDArray[np.float64], y: NDArray[np.float64], risk: NDArray[np.float64], time: NDArray[np.float64]
    ) -> None:
        """Where a held path reaches the goal, count the time and the risk only up to there."""
        if self.map.goal is None:
            return
        held = self._rollouts.held_samples
        dx, dy = x[:held] - self.map.goal[0], y[:held] - self.map.goal[1]
        inside = dx * dx + dy * dy < _REACHED * _REACHED
        if not inside.any():
            return
        arrived = inside.any(axis=0)
        first = inside.argmax(axis=0)
        # The goal is renewed on arrival, so what comes after is another task.
        risk[(np.arange(len(risk))[:, None] > first) & arrived] = 0.0
        time[arrived] = self._rollouts.times[first[arrived]] - self._rollouts.steps


@cache
def package_digest(folder: Path = Path(__file__).parent) -> str:
    """Return one digest over the navigator's code. Other code is another controller. Another comment is not."""
    told = "".join(f"{path.name} {file_code_digest(path)}\n" for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(told.encode()).hexdigest()
