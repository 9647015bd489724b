"""A verifier that accepts an action only if the robot can still stop and arrive after it, and its fallbacks."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ccfs.controllers.navigator.controller import VERSION, package_digest
from ccfs.controllers.navigator.pilot import PilotArguments, PilotSettings, SharedPilot
from ccfs.controllers.navigator.stopping import brake_action, would_be_safe

if TYPE_CHECKING:
    from typing_extensions import Unpack  # `typing` has it from Python 3.11 on

__all__ = ["BrakeFallback", "MapGuard", "NavigatorFallback", "StopFallback"]


class MapGuard:
    """A `Verifier` with memory. It accepts an action if the robot can stop after it and can still arrive in time.

    The guard keeps a map and adds one observation per step. While the navigator could still reach the goal in good time
    from here, the guard accepts every action that `would_be_safe` with `room` to spare. The navigator's own action, a
    brake and no thrust need no such room. When time becomes short, it accepts only these three, so that a slow
    controller still reaches the goal. Its answers are a function of the observations since `reset`.

    Args:
        settings: the fields of `PilotSettings`, by name.
    """

    def __init__(self, **settings: Unpack[PilotArguments]) -> None:
        self.settings = PilotSettings(**settings)
        self._shared = SharedPilot(self.settings)
        told = repr((VERSION, "guard", self.settings, package_digest()))
        self._digest = hashlib.sha256(told.encode()).hexdigest()

    @property
    def digest(self) -> str:
        """SHA-256 of the code, its version and the settings."""
        return self._digest

    def reset(self) -> None:
        """Forget the map, because a new trial begins."""
        self._shared.reset()

    def observe(self, observation: NDArray[np.float64]) -> None:
        """Add a new step's observation to the map."""
        self._shared.observe(observation)

    def accepts(self, observation: NDArray[np.float64], actions: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which actions may run. Raise for an observation that was not the last one observed."""
        pilot, settings = self._shared.at(observation), self.settings
        accepted = would_be_safe(pilot.map, pilot.surroundings, actions, settings.margin)
        if pilot.is_late or settings.room > 0.0:
            own = np.stack((pilot.action(), brake_action(observation), np.zeros(2)))
            # Fallbacks arrive here in the precision of the action space, so compare in that precision.
            same = np.abs(actions[:, None] - own[None]).max(axis=2) <= np.finfo(np.float32).eps
            allowed = same.any(axis=1)
            if not pilot.is_late:
                allowed |= would_be_safe(pilot.map, pilot.surroundings, actions, settings.margin, settings.room)
            accepted &= allowed
        return accepted


class NavigatorFallback:
    """The navigator's own action, without noise. This is the fallback that makes progress.

    With the guard's settings it shares the guard's map. The guard then accepts its action whenever any action that it
    could choose is safe.

    Args:
        settings: the fields of `PilotSettings`, by name.
    """

    def __init__(self, **settings: Unpack[PilotArguments]) -> None:
        self._shared = SharedPilot(PilotSettings(**settings))

    def reset(self) -> None:
        """Forget the map, because a new trial begins."""
        self._shared.reset()

    def observe(self, observation: NDArray[np.float64]) -> None:
        """Add a new step's observation to the map."""
        self._shared.observe(observation)

    def action(self, observation: NDArray[np.float64], center: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the best action that would be safe."""
        return self._shared.at(observation).action()


@dataclass(frozen=True, slots=True)
class BrakeFallback:
    """Brake along the heading, by the velocity in the observation alone."""

    def action(self, observation: NDArray[np.float64], center: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the braking action."""
        return brake_action(observation)


@dataclass(frozen=True, slots=True)
class StopFallback:
    """No thrust and no turn, whatever is observed."""

    def action(self, observation: NDArray[np.float64], center: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return zeros."""
        return np.zeros(2)
