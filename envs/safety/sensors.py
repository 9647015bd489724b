"""Flat observations of Safety-Gymnasium navigation tasks, written directly into one array."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from ccfs.envs.safety.lidar import PseudoLidar
from ccfs.envs.safety.physics import Physics

__all__ = ["Observer"]


class Observer:
    """Observation of one built world: sensors of the agent, then lidars in stock's order."""

    def __init__(self, task: Any, physics: Physics) -> None:
        self._task, self._physics = task, physics
        model = physics.model
        keys = list(task.obs_info.obs_space_dict.spaces)
        lidars = [obstacle for obstacle in task._obstacles if obstacle.is_lidar_observed]
        if keys[len(keys) - len(lidars) :] != [f"{obstacle.name}_lidar" for obstacle in lidars]:
            raise ValueError(f"`task` must list its lidars last and in order, got {keys}.")
        self.size = int(task.observation_space.shape[0])
        groups = [_lidar_bodies(model, obstacle) for obstacle in lidars]
        self._lidar = PseudoLidar(groups, task.lidar_conf.num_bins, task.lidar_conf.max_dist)
        self._start = self.size - self._lidar.size
        self._timed = self._timed_slice(lidars)
        self._read_sensors(keys[: len(keys) - len(lidars)])

    def observe(self) -> NDArray[np.float64]:
        """Return a new observation of the current state. Raise as stock does if it is not valid."""
        physics = self._physics
        obs = np.zeros(self.size)
        obs[self._plain_out] = physics.sensordata[self._plain_in]
        for out, adr in self._angles:
            theta = float(physics.sensordata[adr])
            # numpy's functions, as in stock. Those of `math` may differ in the last bit.
            obs[out], obs[out + 1] = np.sin(theta), np.cos(theta)
        for out, adr in self._quaternions:
            mujoco.mju_quat2Mat(obs[out : out + 9], physics.sensordata[adr : adr + 4])
        written = self._lidar.write(obs[self._start :], physics.position, physics.agent, physics.rotation)
        # With a NaN the comparison is false, and stock's own code raises its own error.
        if not (written and obs.dot(obs) >= 0.0):
            return np.asarray(self._task.obs())
        if self._timed is not None and self._task.buttons.timer != 0:
            obs[self._timed] = 0.0
        return obs

    def _timed_slice(self, lidars: list[Any]) -> slice | None:
        names = [obstacle.name for obstacle in lidars]
        if not hasattr(self._task, "buttons") or "buttons" not in names:
            return None
        bins = self._task.lidar_conf.num_bins
        start = self._start + bins * names.index("buttons")
        return slice(start, start + bins)

    def _read_sensors(self, keys: list[str]) -> None:
        info, model = self._task.agent.sensor_info, self._physics.model
        plain_in: list[int] = []
        plain_out: list[int] = []
        self._angles: list[tuple[int, int]] = []
        self._quaternions: list[tuple[int, int]] = []
        out = 0
        for key in keys:
            sensor = model.sensor(key)
            adr, dim = int(sensor.adr[0]), int(sensor.dim[0])
            if key in info.hinge_pos_names:
                self._angles.append((out, adr))
                out += 2
                continue
            if key in info.ballquat_names:
                self._quaternions.append((out, adr))
                out += 9
                continue
            # Stock leaves out x and y of the free joint, which would tell where the agent is.
            skipped = 2 if key == info.freejoint_pos_name else 0
            plain_in += range(adr + skipped, adr + dim)
            plain_out += range(out, out + dim - skipped)
            out += dim - skipped
        if out != self._start:
            raise ValueError(f"`task` must observe {self._start} sensor readings, got {out}.")
        self._plain_in, self._plain_out = _compact(plain_in), _compact(plain_out)


def _compact(index: list[int]) -> slice | NDArray[np.intp]:
    if index and index == list(range(index[0], index[0] + len(index))):
        return slice(index[0], index[0] + len(index))
    return np.array(index, dtype=np.intp)


def _lidar_bodies(model: Any, obstacle: Any) -> list[int]:
    if not hasattr(obstacle, "num"):
        return [int(model.body(obstacle.name).id)]
    suffix = "obj" if obstacle.type == "mocaps" else ""
    return [int(model.body(f"{obstacle.name[:-1]}{i}{suffix}").id) for i in range(obstacle.num)]
