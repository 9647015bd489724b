"""The pseudo-lidar of Safety-Gymnasium for all obstacles at once, with the bits of stock's loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["PseudoLidar"]

_TURN = np.pi * 2


class PseudoLidar:
    """Lidar bins of several groups of bodies, written into one flat slice of an observation.

    The bits are those of stock on any machine, because every operation is the same numpy loop or BLAS call as in stock,
    only over many bodies. `matmul` over a stack of single rows is one matrix-vector product per row, as for a single
    row. (A matrix-matrix product would round differently.) `absolute` and `arctan2` are ufuncs, whose lanes do not
    depend on each other. Neither `abs(complex)` nor `math.atan2` agrees with them on every processor.

    Constants are arrays and results go to buffers, because at this size most of numpy's time is overhead.
    """

    def __init__(self, groups: Sequence[Sequence[int]], bins: int, max_dist: float) -> None:
        self.size = bins * len(groups)
        self._bins = bins
        self._bodies = np.array([body for group in groups for body in group], dtype=np.intp)
        count = len(self._bodies)
        self._turn = np.full(count, _TURN)
        self._bin_size = np.full(count, _TURN / bins)
        self._max_dist = np.full(count, max_dist, dtype=np.float64)
        self._zeros, self._ones = np.zeros(count), np.ones(count)
        here = np.arange(bins)
        self._neighbours = np.stack([here, (here + 1) % bins, (here - 1) % bins])
        self._offset = np.repeat(np.arange(len(groups)) * bins, [len(group) for group in groups])
        self._mat, self._stack = np.empty((3, 3)), np.empty((count, 1, 3))
        self._world = self._stack[:, 0]
        self._height = self._world[:, 2]
        self._ego = np.empty((count, 1, 3))
        self._ego_xy, self._ego_x, self._ego_y = self._ego[:, 0, :2], self._ego[:, 0, 0], self._ego[:, 0, 1]
        self._complex = np.empty(count, dtype=np.complex128)
        self._pairs = self._complex.view(np.float64).reshape(count, 2)
        self._x, self._y = np.empty(count), np.empty(count)
        self._value = np.empty((3, count))
        self._sensor, self._next, self._last = self._value
        self._values = self._value.reshape(-1)

    def write(
        self, out: NDArray[np.float64], positions: NDArray[np.float64], agent: int, mat: NDArray[np.float64]
    ) -> bool:
        """Fill `out` from body `positions`. Where stock raises, return False and leave `out` undefined.

        Args:
            out: `size` zeros.
            positions: world positions of all bodies, one row each.
            agent: row of the agent.
            mat: rotation of the agent, three by three.
        """
        bin_size, world, sensor = self._bin_size, self._world, self._sensor
        positions.take(self._bodies, 0, world, "clip")
        # Stock sets the height to zero before it subtracts the agent's position, and so do we.
        self._height[:] = 0.0
        world -= positions[agent]
        self._mat[:] = mat
        np.matmul(self._stack, self._mat, self._ego)
        self._pairs[:] = self._ego_xy
        self._x[:] = self._ego_x
        self._y[:] = self._ego_y
        dist = np.abs(self._complex)
        angle = np.arctan2(self._y, self._x)
        angle %= self._turn
        turns = np.divide(angle, bin_size)
        if not max(turns.tolist()) < self._bins:
            return False
        bin_ = turns.astype(np.intp)
        alias = np.multiply(bin_size, bin_)
        np.subtract(angle, alias, alias)
        alias /= bin_size
        shares = alias.tolist()
        if not (min(shares) >= 0.0 and max(shares) <= 1.0):
            return False
        np.subtract(self._max_dist, dist, dist)
        np.maximum(self._zeros, dist, dist)
        np.divide(dist, self._max_dist, sensor)
        np.multiply(alias, sensor, self._next)
        np.subtract(self._ones, alias, alias)
        np.multiply(alias, sensor, self._last)
        index = self._neighbours.take(bin_, 1)
        index += self._offset
        # Unbuffered: two bodies may write into one bin, and the greater value stays.
        np.maximum.at(out, index.reshape(-1), self._values)
        return True
