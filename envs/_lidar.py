"""The pseudo-lidar of Safety-Gymnasium for all obstacles at once, with the bits of its one-by-one loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["PseudoLidar"]

_TURN = np.pi * 2


class PseudoLidar:
    """Lidar bins of several groups of bodies, written into one flat slice of an observation.

    The bits of stock are kept on any machine because every step goes through the same numpy loop or BLAS call as
    stock, only over many bodies: `matmul` over a stack of single rows is one matrix-vector product per row, as for a
    lone row (a matrix-matrix product would round differently), and `absolute` and `arctan2` are ufuncs, whose lanes
    do not depend on each other. Neither `abs(complex)` nor `math.atan2` agrees with them on every processor.
    """

    def __init__(self, groups: Sequence[Sequence[int]], bins: int, max_dist: float) -> None:
        self.bodies = np.array([body for group in groups for body in group], dtype=np.intp)
        self.size = bins * len(groups)
        self._bins = bins
        self._bin_size = _TURN / bins
        self._max_dist = max_dist
        count = len(self.bodies)
        self._offset = np.repeat(np.arange(len(groups)) * bins, [len(group) for group in groups])
        self._world = np.zeros((count, 1, 3))
        self._index = np.empty((3, count), dtype=np.intp)
        self._value = np.empty((3, count))

    def write(
        self, out: NDArray[np.float64], positions: NDArray[np.float64], agent: int, mat: NDArray[np.float64]
    ) -> bool:
        """Fill `out` (zeros on entry) from body `positions`; return False, leaving it undefined, where stock raises.

        Args:
            out: `size` zeros.
            positions: world positions of all bodies, one row each.
            agent: row of the agent.
            mat: rotation of the agent, three by three.
        """
        world = self._world
        origin = positions[agent]
        np.subtract(positions[self.bodies, :2], origin[:2], out=world[:, 0, :2])
        world[:, 0, 2] = 0.0 - origin[2]
        ego = np.matmul(world, mat)
        x = ego[:, 0, 0].copy()
        y = ego[:, 0, 1].copy()
        dist = np.abs(ego[:, 0, :2].copy().view(np.complex128)[:, 0])
        angle = np.arctan2(y, x) % _TURN
        turns = angle / self._bin_size
        if not turns.max() < self._bins:
            return False
        bin_ = turns.astype(np.intp)
        alias = (angle - self._bin_size * bin_) / self._bin_size
        if not (alias.min() >= 0.0 and alias.max() <= 1.0):
            return False
        index, value = self._index, self._value
        sensor = np.divide(np.maximum(0.0, self._max_dist - dist), self._max_dist, out=value[0])
        np.multiply(alias, sensor, out=value[1])
        np.multiply(1.0 - alias, sensor, out=value[2])
        np.add(bin_, self._offset, out=index[0])
        np.add((bin_ + 1) % self._bins, self._offset, out=index[1])
        np.add((bin_ - 1) % self._bins, self._offset, out=index[2])
        np.maximum.at(out, index.ravel(), value.ravel())
        return True
