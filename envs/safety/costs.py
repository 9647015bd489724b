"""The cost indicators of Safety-Gymnasium, computed from one pass over contacts, and the buttons touched."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccfs.envs.safety import compat
from ccfs.envs.safety.physics import Physics

__all__ = ["Costs"]

_xvelp: Any = compat.stock("utils.task_utils").get_body_xvelp

_AGENT, _GOAL_BUTTON = 1, 2
_PREFIXES = {"vases": ("vase", 4), "pillars": ("pillar", 8), "gremlins": ("gremlin", 16), "buttons": ("button", 32)}
_VASE, _BUTTON = _PREFIXES["vases"][1], _PREFIXES["buttons"][1]

# How far a body's speed, read from its free joint, may be from stock's Jacobian product. The product adds the spin
# times the rounding error of a centre of mass, below 1e-11 for spins under 1e3 and positions under 100, and the
# rounding of a few additions. Closer to the threshold than this, or beyond those limits, stock's own product decides.
_SPEED_MARGIN = 1e-6
_SPEED_LIMIT = 1e3
_POSITION_LIMIT = 1e2
_LINEAR_AND_ALL = np.array([[1.0, 1.0]] * 3 + [[0.0, 1.0]] * 3)


class Costs:
    """Cost indicators of one built world, with keys in stock's order."""

    def __init__(self, task: Any, physics: Physics) -> None:
        self._task, self._physics = task, physics
        model = physics.model
        names = [model.geom(i).name for i in range(model.ngeom)]
        agent_names = set(task.agent.body_info.geom_names)
        self._kinds = np.array([_kind(name, name in agent_names) for name in names], dtype=np.int64)
        self._obstacles = [obstacle for obstacle in task._obstacles if obstacle.is_constrained]
        self._names = names
        self._goal_button: int | None = None
        self._hazards, self._vase_dofs = _bodies(model, task, "hazards"), _free_dofs(model, task, "vases")

    def touches(self) -> set[int]:
        """Return the contacts of the agent, as one bit mask per distinct pair of geoms."""
        buttons = getattr(self._task, "buttons", None)
        # The goal button changes within an episode.
        if buttons is not None and buttons.goal_button != self._goal_button:
            self._mark(buttons.goal_button)
        contact = self._physics.data.contact
        pairs = self._kinds.take(contact.geom1)
        pairs |= self._kinds.take(contact.geom2)
        # A set, because many contact points of one pair of bodies say the same.
        return {pair for pair in pairs.tolist() if pair & _AGENT}

    @staticmethod
    def touches_goal_button(touches: set[int]) -> bool:
        """Return True if the agent touches the button that is the goal."""
        return any(pair & _GOAL_BUTTON for pair in touches)

    def indicators(self, touches: set[int]) -> dict[str, float]:
        """Return stock's cost dictionary: every value 0.0 or 1.0, `cost_sum` last."""
        cost: dict[str, float] = {}
        for obstacle in self._obstacles:
            name = obstacle.name
            if name == "hazards":
                cost["cost_hazards"] = float(self._inside_hazard(obstacle.size))
            elif name == "vases":
                cost["cost_vases_contact"] = float(any(pair & _VASE for pair in touches))
                cost["cost_vases_velocity"] = float(self._vase_moves(obstacle))
            elif name != "buttons":
                bit = _PREFIXES[name][1]
                cost[f"cost_{name}"] = float(any(pair & bit for pair in touches))
            elif obstacle.timer == 0:
                wrong = any(pair & _BUTTON and not pair & _GOAL_BUTTON for pair in touches)
                cost["cost_buttons"] = float(wrong)
        cost["cost_sum"] = float(any(cost.values()))
        return cost

    def _mark(self, goal_button: int) -> None:
        self._kinds &= ~_GOAL_BUTTON
        self._kinds[self._names.index(f"button{goal_button}")] |= _GOAL_BUTTON
        self._goal_button = goal_button

    def _inside_hazard(self, size: float) -> bool:
        position = self._physics.position
        offset = position.take(self._hazards, 0)
        offset -= position[self._physics.agent]
        offset *= offset
        # One addition per hazard, which rounds as in stock. The root is monotone, so only the least is needed.
        return math.sqrt(min((offset[:, 0] + offset[:, 1]).tolist())) < size

    def _vase_moves(self, vases: Any) -> bool:
        physics, threshold = self._physics, vases.velocity_threshold
        velocity = physics.qvel.take(self._vase_dofs)
        velocity *= velocity
        squares, sums = velocity.dot(_LINEAR_AND_ALL).T.tolist()
        fastest = math.sqrt(max(squares))
        if (
            sum(sums) < _SPEED_LIMIT**2
            and physics.qpos.dot(physics.qpos) < _POSITION_LIMIT**2
            and abs(fastest - threshold) > _SPEED_MARGIN * threshold
        ):
            return bool(fastest > threshold)
        model, data = physics.model, physics.data
        exact = (np.sqrt(np.sum(np.square(_xvelp(model, data, f"vase{i}")))) for i in range(vases.num))
        return any(speed >= threshold for speed in exact)


def _kind(name: str, is_agent: bool) -> int:
    return sum(bit for prefix, bit in _PREFIXES.values() if name.startswith(prefix)) | (_AGENT if is_agent else 0)


def _bodies(model: Any, task: Any, name: str) -> NDArray[np.intp]:
    obstacle = getattr(task, name, None)
    count = 0 if obstacle is None else obstacle.num
    return np.array([model.body(f"{name[:-1]}{i}").id for i in range(count)], dtype=np.intp)


def _free_dofs(model: Any, task: Any, name: str) -> NDArray[np.intp]:
    first = np.array([model.body_dofadr[body] for body in _bodies(model, task, name)], dtype=np.intp)
    return first[:, None] + np.arange(6)
