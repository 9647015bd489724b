"""Safety-Gymnasium tasks as scenes of a report: where things are, and where a cost came from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ccfs.envs.registration import TASKS, make_repeatable
from ccfs.report.drawings import Disc
from ccfs.runtime.interfaces import Vector

if TYPE_CHECKING:
    import gymnasium

__all__ = ["PICTURE_SIZE", "TaskScene", "scene"]

PICTURE_SIZE = (480, 360)
_KNOWN: dict[str, tuple[type, ...]] = {"env_id": (str,), "max_episode_steps": (int, type(None)), "fast": (bool,)}
_KINDS = {"hazards": "hazard", "vases": "vase", "goal": "goal"}


class TaskScene:
    """One task, read from the simulator's own state."""

    def __init__(self, env: gymnasium.Env[Vector, Vector]) -> None:
        self.env = env

    def discs(self) -> tuple[Disc, ...]:
        """Return hazards, vases, the goal and everything else that is there, each as a disc of its size."""
        return tuple(
            Disc(
                name=_singular(part.name),
                center=(float(place[0]), float(place[1])),
                radius=float(part.size),
                kind=_KINDS.get(part.name, "other"),
            )
            for part in self._task._obstacles
            for place in _places(part)
        )

    def place(self) -> tuple[float, float]:
        """Return where the robot is, in metres."""
        place = self._task.agent.pos
        return float(place[0]), float(place[1])

    def nearest(self) -> tuple[float, float] | None:
        """Return the nearest centre of an obstacle that can cost, (ahead, to the left) of the robot, in metres."""
        task = self._task
        agent, turn = task.agent.pos, task.agent.mat
        offsets = [place - agent for part in task._obstacles if part.is_constrained for place in _places(part)]
        if not offsets:
            return None
        x, y, _ = min(offsets, key=lambda offset: math.hypot(offset[0], offset[1])) @ turn
        return float(x), float(y)

    def causes(self, info: dict[str, object]) -> str:
        """Return the obstacles that a cost came from: "hazard", "vase", "hazard and vase", ..."""
        found = [
            _singular(key.removeprefix("cost_").split("_")[0])
            for key, value in info.items()
            if key.startswith("cost_") and key != "cost_sum" and isinstance(value, (int, float)) and value > 0.0
        ]
        return " and ".join(dict.fromkeys(found))

    def legend(self) -> str:
        """Return the legend of a rendered picture."""
        looks = {"hazards": "blue discs are hazards", "vases": "cyan cubes are vases", "goal": "green is the goal"}
        seen = [looks[part.name] for part in self._task._obstacles if part.name in looks]
        words = ["Small and red is the robot, above it its lidar", *seen, "a red bubble marks a cost"]
        return ", ".join(words) + "."

    def close(self) -> None:
        """Close the environment, and free its graphics while their libraries are still loaded."""
        for viewer in self._task._viewers.values():
            viewer.free()
        self.env.close()  # type: ignore[no-untyped-call]

    @property
    def _task(self) -> Any:
        return cast(Any, self.env.unwrapped).task


def scene(arguments: Mapping[str, object], *, pictures: bool = False) -> TaskScene | None:
    """Return the scene that `ccfs.envs.make_repeatable` gives for recorded arguments, or None if it cannot be drawn."""
    env_id = arguments.get("env_id")
    if not isinstance(env_id, str) or env_id.removeprefix("ccfs/") not in TASKS:
        return None
    if not all(type(value) in _KNOWN.get(name, ()) for name, value in arguments.items()):
        return None
    settings: dict[str, Any] = dict(arguments)
    if pictures:
        width, height = PICTURE_SIZE
        # Only one trial is drawn. Stock steps are slower, but need no self-test, which would load all textures again.
        settings |= {"render_mode": "rgb_array", "width": width, "height": height, "camera_name": "fixedfar"}
        settings["fast"] = False
    return TaskScene(make_repeatable(**settings))


def _places(part: Any) -> list[Vector]:
    places = part.pos
    return list(places) if isinstance(places, list) else [np.asarray(places)]


def _singular(name: str) -> str:
    return name.removesuffix("s")
