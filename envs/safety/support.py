"""Decide whether the fast step supports a stock task."""

from __future__ import annotations

from typing import Any

from ccfs.envs.safety import compat

__all__ = ["is_supported"]

_tasks: Any = compat.stock("tasks")
_geoms: Any = compat.stock("assets.geoms")
_free_geoms: Any = compat.stock("assets.free_geoms")
_mocaps: Any = compat.stock("assets.mocaps")

FAMILIES = {
    getattr(_tasks, f"{family}Level{level}"): family for family in ("Goal", "Button", "Push") for level in range(3)
}
_OBSTACLES = {
    _geoms.Goal,
    _geoms.Hazards,
    _geoms.Buttons,
    _geoms.Pillars,
    _free_geoms.Vases,
    _free_geoms.PushBox,
    _mocaps.Gremlins,
}


def is_supported(task: Any) -> bool:
    """Return True if `task` is a known navigation task with settings under which the fast step is exact.

    Unknown means unsupported. A subclass, a changed setting or another kind of obstacle takes the stock step.
    """
    return (
        type(task) in FAMILIES
        and all(_obstacle_supported(obstacle) for obstacle in task._obstacles)
        and not task.observe_vision
        and not task.debug
        and not task.action_noise
        and task.observation_flatten
        and not task._is_load_static_geoms
        and task.sim_conf.frameskip_binom_p == 1.0
        and task.lidar_conf.type == "pseudo"
        and task.lidar_conf.max_dist is not None
        and task.lidar_conf.alias
        and task.cost_conf.constrain_indicator
        and not task.reward_conf.reward_orientation
        and task.agent.sensor_conf.sensors_angle_components
    )


def _obstacle_supported(obstacle: Any) -> bool:
    if type(obstacle) not in _OBSTACLES or getattr(obstacle, "is_comp_observed", False):
        return False
    if getattr(obstacle, "num", 1) < 1:
        return False
    if not obstacle.is_constrained:
        return True
    if type(obstacle) is _free_geoms.Vases:
        positive = obstacle.contact_cost > 0 and obstacle.velocity_cost > 0 and obstacle.velocity_threshold > 0
        return positive and not obstacle.displace_cost
    if type(obstacle) is _mocaps.Gremlins:
        return bool(obstacle.contact_cost > 0)
    return type(obstacle) in (_geoms.Hazards, _geoms.Pillars, _geoms.Buttons) and obstacle.cost > 0
