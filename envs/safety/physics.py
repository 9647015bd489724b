"""Advance one compiled model exactly as Safety-Gymnasium does, without the work whose result nobody reads."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

__all__ = ["Physics"]

_AFTER_VELOCITY = int(mujoco.mjtStage.mjSTAGE_VEL)
_NO_STAGE = int(mujoco.mjtStage.mjSTAGE_NONE)
_NO_SENSOR = int(mujoco.mjtDisableBit.mjDSBL_SENSOR)


class Physics:
    """The simulator behind one episode.

    Stock calls `mj_step` ten times and then `mj_forward` three times. No call may be dropped, because each forward
    rewrites the solver's warm start, which affects later contacts. But sensors are read only at the end, so all other
    calls skip them. A repeated forward recomputes positions and velocities from the same numbers, unless it
    renormalises a quaternion. So it may start at the forces if a renormalisation would change no bit. The same holds
    for the first of the ten steps if nobody changed the state since the last observation.
    """

    def __init__(self, task: Any) -> None:
        model, data = task.model, task.data
        self.model, self.data = model, data
        self.position: NDArray[np.float64] = data.xpos
        self._body_pos: NDArray[np.float64] = model.body_pos
        self.qpos: NDArray[np.float64] = data.qpos
        self.qvel: NDArray[np.float64] = data.qvel
        self.sensordata: NDArray[np.float64] = data.sensordata
        self._ctrl: NDArray[np.float64] = data.ctrl
        self._low, self._high = model.actuator_ctrlrange[:, 0].copy(), model.actuator_ctrlrange[:, 1].copy()
        self._option = model.opt
        self._with_sensors = int(model.opt.disableflags)
        self._scratch = np.empty_like(self.qpos)
        self._is_euler = model.opt.integrator == mujoco.mjtIntegrator.mjINT_EULER
        self._rest: tuple[bytes, bytes, bytes] | None = None
        self._mocap_pos: NDArray[np.float64] = data.mocap_pos
        self._movers = [
            (_mocap_ids(model, mocap), mocap.travel, mocap.size) for mocap in task._mocaps.values() if mocap.num
        ]
        self.agent = int(model.body("agent").id)
        self.rotation: NDArray[np.float64] = data.xmat[self.agent].reshape(3, 3)

    def advance(self, action: NDArray[np.generic], substeps: int) -> None:
        """Apply `action`, clipped to the actuators, for `substeps` steps, and update positions and contacts."""
        model, data = self.model, self.data
        # `np.clip` gives the same bits and takes longer.
        self._ctrl[:] = np.minimum(np.maximum(action, self._low), self._high)
        self._option.disableflags = self._with_sensors | _NO_SENSOR
        try:
            if self._movers:
                for _ in range(substeps):
                    self._move()
                    mujoco.mj_step(model, data)
            elif substeps:
                # The first half of `mj_step` would compute again what the last observation left.
                if self._is_current():
                    mujoco.mj_step2(model, data)
                    substeps -= 1
                if substeps:
                    mujoco.mj_step(model, data, substeps)
            mujoco.mj_forwardSkip(model, data, _NO_STAGE, 1)
        finally:
            self._option.disableflags = self._with_sensors

    def refresh(self) -> None:
        """Update positions and contacts after the state was set from outside."""
        mujoco.mj_forwardSkip(self.model, self.data, _NO_STAGE, 1)

    def settle(self) -> bool:
        """Repeat the forward computation without sensors. Return True if positions or contacts may have moved."""
        if self._quaternions_rest():
            mujoco.mj_forwardSkip(self.model, self.data, _AFTER_VELOCITY, 1)
            return False
        mujoco.mj_forwardSkip(self.model, self.data, _NO_STAGE, 1)
        return True

    def sense(self) -> None:
        """Repeat the forward computation once more, now with sensors."""
        model, data = self.model, self.data
        # Until the end of this call nobody knows whether the next step may start in the middle.
        self._rest = None
        if self._quaternions_rest():
            mujoco.mj_sensorPos(model, data)
            mujoco.mj_sensorVel(model, data)
            mujoco.mj_forwardSkip(model, data, _AFTER_VELOCITY, 0)
            if self._is_euler:
                self._rest = self._state()
        else:
            mujoco.mj_forward(model, data)

    def _state(self) -> tuple[bytes, bytes, bytes]:
        return self.qpos.tobytes(), self.qvel.tobytes(), self._body_pos.tobytes()

    def _is_current(self) -> bool:
        """Return True if positions and velocities are computed from the current state and `mj_step` would accept it.

        `mj_step` restarts a simulation that holds a number beyond 1e10. A sum of squares below 1e20 excludes that.
        """
        return self._rest == self._state() and bool(self.qpos.dot(self.qpos) + self.qvel.dot(self.qvel) < 1e20)

    def _quaternions_rest(self) -> bool:
        self._scratch[:] = self.qpos
        mujoco.mj_normalizeQuat(self.model, self._scratch)
        return bool(self._scratch.tobytes() == self.qpos.tobytes())

    def _move(self) -> None:
        phase = float(self.data.time)
        sine, cosine = np.sin(phase), np.cos(phase)
        for ids, travel, size in self._movers:
            self._mocap_pos[ids] = (sine * travel, cosine * travel, size)


def _mocap_ids(model: Any, mocap: Any) -> NDArray[np.intp]:
    bodies = [model.body(f"{mocap.name[:-1]}{i}mocap").id for i in range(mocap.num)]
    return np.array([model.body_mocapid[body] for body in bodies], dtype=np.intp)
