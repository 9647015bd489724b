"""One map and one navigator for all parts of a program that were told the same observations."""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.navigator.clearance import Surroundings
from ccfs.controllers.navigator.controller import Navigator
from ccfs.controllers.navigator.noisy_map import map_for
from ccfs.controllers.navigator.stopping import would_be_safe

__all__ = ["Pilot", "PilotArguments", "PilotSettings", "SharedPilot"]

_MOST_PILOTS: Final = 4
_RELIEF: Final = 40
"""Steps that the navigator must gain before it is no longer late. Otherwise the two would alternate at each step."""
_UNSEEN_GOAL: Final = 1.0
"""Assumed distance (metres) of a goal out of sight beyond the middle of where it may be."""
_START: Final = b""
_LOCAL: Final = threading.local()


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotSettings:
    """How much room the pilot keeps, and when it must drive itself.

    Args:
        margin: least clearance of a stopping path that counts as safe, in metres per m/s of speed.
        room: metres of clearance that a guarded action needs in addition. The navigator, a brake and no action do not.
        caution: noise scale that the navigator assumes. It keeps more room for a larger one.
        share: time granted to the navigator, as a multiple of its own estimate. 0 grants none.
        reserve: steps granted in addition.
        horizon: steps of a trial.
        sensor: scale of the noise on every reading.
    """

    margin: float = 0.015
    room: float = 0.0
    caution: float = 0.3
    share: float = 1.25
    reserve: int = 60
    horizon: int = 500
    sensor: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"`{item.name}` must be finite and at least 0, got {value}.")
            if item.type == "int" and not isinstance(value, int):
                raise ValueError(f"`{item.name}` must be a whole number, got {value}.")


class PilotArguments(TypedDict, total=False):
    """The fields of `PilotSettings`, as keyword arguments."""

    margin: float
    room: float
    caution: float
    share: float
    reserve: int
    horizon: int
    sensor: float


class Pilot:
    """A map, its distance fields and a navigator that follows the robot, whoever drives it."""

    def __init__(self, settings: PilotSettings) -> None:
        self._settings = settings
        self.map = map_for(settings.sensor)
        self.surroundings = Surroundings()
        self.navigator = Navigator(settings.caution, drawn=self.map)
        self.map.reset()
        self._steps = 0
        self.is_late = False
        """Whether the navigator would need the time that is left."""
        self._action: NDArray[np.float64] | None = None

    def observe(self, observation: NDArray[np.float64]) -> None:
        """Add one step's observation."""
        self._action = None
        self.map.observe(observation)
        self.surroundings.refresh(self.map)
        self.navigator.follow(is_driving=self.is_late)
        self._steps += 1
        # Once late, it must gain `_RELIEF` steps before it counts as in time again.
        left = self._settings.horizon - self._steps - self._settings.reserve - (_RELIEF if self.is_late else 0)
        self.is_late = not self._settings.share * self.time_left() <= left

    def time_left(self) -> float:
        """Return the navigator's estimate of the steps from here to the goal."""
        pose, route = self.map.pose, self.navigator.route
        beyond = 0.0 if self.map.goal else _UNSEEN_GOAL / route.pace
        return beyond + float(route.time_at(np.array([pose.x]), np.array([pose.y]))[0])

    def action(self) -> NDArray[np.float64]:
        """Return the navigator's best action among those that `would_be_safe`, or its best of all if none is."""
        if self._action is None:
            starts, which = self.navigator.distinct_actions
            cost = self.navigator.costs()
            safe = would_be_safe(self.map, self.surroundings, starts, self._settings.margin)
            if safe.any():
                cost = np.where(safe[which], cost, math.inf)
            self._action = self.navigator.actions[int(np.argmin(cost))]
        return np.array(self._action)


class SharedPilot:
    """A pilot as one client sees it: always the pilot for exactly the observations that this client received.

    The parts of a program are built one by one, so they cannot be given a common map. Instead, pilots are kept under
    the chained hash of their observations. The second client that receives the same step finds the work done. A client
    that finds no pilot replays its own observations. So sharing never changes an answer.

    Args:
        settings: clients share only pilots of equal settings.
    """

    def __init__(self, settings: PilotSettings) -> None:
        self._settings = settings
        self.reset()

    def reset(self) -> None:
        """Forget the observations, because a new trial begins."""
        self._told: list[NDArray[np.float64]] = []
        self._key = _START

    def observe(self, observation: NDArray[np.float64]) -> None:
        """Add one step's observation."""
        told = np.array(observation, dtype=np.float64)
        if told.shape != (60,) or not np.isfinite(told).all():
            raise ValueError(f"`observation` must be 60 finite numbers, got {told!r}.")
        key = hashlib.sha256(self._key + told.tobytes()).digest()
        if (key, self._settings) not in _pool():
            pilot = self._pilot_at(self._key, self._told)
            # The observation changes the pilot, so it must not stay under its old key.
            _pool().pop((self._key, self._settings), None)
            pilot.observe(told)
            self._keep(key, pilot)
        self._key = key
        self._told.append(told)

    def at(self, observation: NDArray[np.float64]) -> Pilot:
        """Return the pilot. Raise unless `observation` is the last one observed, because an old map proves nothing."""
        if not (self._told and np.array_equal(self._told[-1], observation)):
            raise RuntimeError("`observation` is not the last one observed. Tell it each step with `observe`.")
        pilot = self._pilot_at(self._key, self._told)
        self._keep(self._key, pilot)
        return pilot

    def _pilot_at(self, key: bytes, told: list[NDArray[np.float64]]) -> Pilot:
        pool = _pool()
        if (key, self._settings) in pool:
            return pool[key, self._settings]
        pilot = Pilot(self._settings)
        for observation in told:
            pilot.observe(observation)
        return pilot

    def _keep(self, key: bytes, pilot: Pilot) -> None:
        pool = _pool()
        pool[key, self._settings] = pilot
        pool.move_to_end((key, self._settings))
        # Few are enough: the parts of one program move on together.
        while len(pool) > _MOST_PILOTS:
            pool.popitem(last=False)


def _pool() -> OrderedDict[tuple[bytes, PilotSettings], Pilot]:
    """Return this thread's pilots. Two threads never share a pilot, because a pilot changes with each step."""
    if not hasattr(_LOCAL, "pool"):
        _LOCAL.pool = OrderedDict()
    pool: OrderedDict[tuple[bytes, PilotSettings], Pilot] = _LOCAL.pool
    return pool
