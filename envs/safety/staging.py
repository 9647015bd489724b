"""Put a robot where something happens: at a rim, at an obstacle, or at its goal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

__all__ = ["Scene", "arrange", "scenes"]

_OUTSIDE, _INSIDE = 1.01, 0.99

# From the middle of a robot to where its side meets something, a little less, so that they press on each other. It is
# so little that nothing is thrown, and enough that the contact lasts longer than a step.
_REACH = {"Car": 0.12}
_REACH_OF_OTHERS = 0.09


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Body `mover` at rest, `distance` metres from body `target` along the first axis of the world."""

    mover: str
    target: str
    distance: float


def scenes(task: Any, turn: int) -> Iterator[Scene]:
    """Yield the scenes of a Goal, Button or Push task: rims of a hazard and of the goal, contacts, buttons.

    Each scene is computed only when it is needed, because the goal moves. After the last one, a goal has been met and
    renewed, and every kind of cost of the task has occurred.

    Args:
        task: stock's task of an environment that was reset.
        turn: 0 for the first obstacle of each kind, 1 for the last, 2 for the one before.
    """
    reach = _REACH.get(type(task.agent).__name__, _REACH_OF_OTHERS)
    if hasattr(task, "hazards"):
        hazard, size = f"hazard{-turn % task.hazards.num}", task.hazards.size
        yield Scene(mover="agent", target=hazard, distance=_OUTSIDE * size)
        yield Scene(mover="agent", target=hazard, distance=_INSIDE * size)
    for kind, body in (("vases", "vase{}"), ("pillars", "pillar{}"), ("gremlins", "gremlin{}obj")):
        if hasattr(task, kind):
            obstacle = getattr(task, kind)
            yield Scene(mover="agent", target=body.format(-turn % obstacle.num), distance=obstacle.size + reach)
    if hasattr(task, "buttons"):
        buttons = task.buttons
        for beside in (1, 0, 1):  # a wrong button, the goal, and a wrong one while none counts
            button = f"button{(buttons.goal_button + beside) % buttons.num}"
            yield Scene(mover="agent", target=button, distance=buttons.size + reach)
    elif hasattr(task, "goal"):
        mover = "push_box" if hasattr(task, "push_box") else "agent"
        yield Scene(mover=mover, target="goal", distance=_OUTSIDE * task.goal.size)
        yield Scene(mover=mover, target="goal", distance=_INSIDE * task.goal.size)


def arrange(task: Any, scene: Scene) -> None:
    """Move the scene's body there, whatever its joints, and stop everything. Only MuJoCo's state changes."""
    model, data = task.model, task.data
    jacobian = np.zeros((3, model.nv))
    mujoco.mj_jacBody(model, data, jacobian, None, model.body(scene.mover).id)
    way = data.body(scene.target).xpos[:2] - data.body(scene.mover).xpos[:2]
    way[0] += scene.distance
    mujoco.mj_integratePos(model, data.qpos, np.linalg.pinv(jacobian[:2]) @ way, 1.0)
    data.qvel[:] = 0.0
