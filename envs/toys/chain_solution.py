"""The chain solved by dynamic programming: exact nominal probability, and an adversary with its exact value."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, roots_hermitenorm

from ccfs.attacks.rules import fit
from ccfs.certificates.schedule import ProposalSchedule
from ccfs.envs.toys.chain import ChainSpec
from ccfs.runtime.history import PublicHistory
from ccfs.runtime.interfaces import Vector

__all__ = ["ChainAdversary", "ChainSolution", "solve", "step_law"]

_NODES, _WEIGHTS = roots_hermitenorm(96)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def step_law(
    spec: ChainSpec, schedule: ProposalSchedule, state: int, shift: float
) -> tuple[NDArray[np.float64], float]:
    """Return the probabilities of the next state, and of abstention, for one block with a shifted center.

    Given the shared innovation the proposals are independent, so the first accepted one is drawn from the accepted
    region's parts, and no proposal is accepted with the rejection probability to the power N; the shared innovation is
    integrated by 96-point Gauss-Hermite quadrature.
    """
    center = min(max(spec.centers[state], -1.0), 1.0) + shift
    means = center + schedule.sigma * math.sqrt(schedule.rho) * _NODES
    scale = schedule.sigma * math.sqrt(1.0 - schedule.rho)
    # Candidates are clipped to [-1, 1]: an interval that reaches the box's edge takes in the whole tail.
    low = -math.inf if spec.lows[state] <= -1.0 else spec.lows[state]
    high = math.inf if spec.highs[state] >= 1.0 else spec.highs[state]

    def mass(a: float, b: float) -> NDArray[np.float64]:
        left, right = max(a, low), min(b, high)
        if not left < right:
            return np.zeros_like(means)
        return np.asarray(ndtr((right - means) / scale) - ndtr((left - means) / scale))

    down, stay, up = mass(-math.inf, -spec.edge), mass(-spec.edge, spec.edge), mass(spec.edge, math.inf)
    rejected = np.clip(1.0 - (down + stay + up), 0.0, 1.0)
    # (1 - r^N) / (1 - r) as a sum: stable when nothing is rejected or everything.
    tries = sum((rejected**k for k in range(schedule.count)), np.zeros_like(rejected))
    law = np.zeros(len(spec.centers))
    for part, action in ((down, -1.0), (stay, 0.0), (up, 1.0)):
        law[spec.after(state, action)] += float(_WEIGHTS @ (part * tries))
    nobody = float(_WEIGHTS @ rejected**schedule.count)
    retreat = min(max(spec.retreats[state], -1.0), 1.0)
    if spec.lows[state] <= retreat <= spec.highs[state]:
        law[spec.after(state, retreat)] += nobody
        return law, 0.0
    return law, nobody


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainSolution:
    """Values and choices of the best adversary that spends whole units of energy.

    `values[t, s, e]` is the probability of reaching the horizon without danger or abstention from state s at step t
    with e units left; `units[t, s, e]` is what the adversary spends, with the sign of its shift.
    """

    values: NDArray[np.float64]
    units: NDArray[np.int64]
    unit: float
    charge: float
    start: int

    def nominal(self) -> float:
        """The event's probability without any shift."""
        return float(self.values[0, self.start, 0])

    def attacked(self, units: int) -> float:
        """The event's probability under the adversary with `units` units of energy: mu² = units * unit."""
        return float(self.values[0, self.start, units])


def solve(spec: ChainSpec, schedule: ProposalSchedule, *, horizon: int, units: int, unit: float) -> ChainSolution:
    """Solve the chain for an adversary with up to `units` units of energy of size `unit`.

    The adversary is restricted to whole units, so its value is at least the infimum over all causal shift rules: a
    certificate must lie below it.
    """
    charge, size = schedule.charge, len(spec.centers)
    spends = np.arange(-units, units + 1)
    shifts = np.sign(spends) * np.sqrt(np.abs(spends) * unit / charge)
    laws = np.array([[step_law(spec, schedule, s, float(shift))[0] for shift in shifts] for s in range(size)])
    values = np.zeros((horizon + 1, size, units + 1))
    chosen = np.zeros((horizon, size, units + 1), dtype=np.int64)
    values[horizon, : spec.danger, :] = 1.0
    for t in range(horizon - 1, -1, -1):
        for state in range(spec.danger):
            for left in range(units + 1):
                options = [k for k in spends if abs(k) <= left]
                outcomes = [float(laws[state, k + units] @ values[t + 1, :, left - abs(k)]) for k in options]
                best = int(np.argmin(outcomes))
                values[t, state, left], chosen[t, state, left] = outcomes[best], options[best]
    return ChainSolution(values=values, units=chosen, unit=unit, charge=charge, start=spec.start)


class ChainAdversary:
    """Plays a solution's choices: an adaptive shift rule whose exact value is known."""

    def __init__(self, solution: ChainSolution, units: int) -> None:
        self._solution, self._units, self._left = solution, units, units

    def reset(self) -> None:
        """Begin with all units."""
        self._left = self._units

    def shift(self, history: PublicHistory, rng: np.random.Generator, *, allowance: float) -> Vector:
        """Return the solved shift of the current state and energy."""
        spend = int(self._solution.units[history.t, int(history.observation[0]), self._left])
        self._left -= abs(spend)
        norm = math.sqrt(abs(spend) * self._solution.unit / self._solution.charge)
        return fit(np.array([float(np.sign(spend))]), min(norm, allowance))
