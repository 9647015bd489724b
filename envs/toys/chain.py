"""Finite chains with verifier, fallback and abstention, and their best adversaries by dynamic programming.

`Chain` moves by the size of a continuous action. `Switch` moves up or down by one of two discrete actions, which are
decided by noisy scores.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import gymnasium
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, roots_hermitenorm

from ccfs.attacks.rules import fit
from ccfs.certificates import checks
from ccfs.certificates.schedule import ProposalSchedule
from ccfs.runtime.history import PublicHistory
from ccfs.runtime.interfaces import Flags, Vector

__all__ = [
    "Chain",
    "ChainAdversary",
    "ChainController",
    "ChainFallback",
    "ChainSolution",
    "ChainSpec",
    "ChainVerifier",
    "Switch",
    "SwitchAdversary",
    "SwitchController",
    "SwitchFallback",
    "SwitchSpec",
    "SwitchVerifier",
    "make",
    "make_controller",
    "solve",
    "solve_switch",
    "step_law",
    "switch_law",
]

_NODES, _WEIGHTS = roots_hermitenorm(96)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSpec:
    """The chain in tables, with one entry per state. The last state is the dangerous one.

    An action above `edge` moves one state up, an action below `-edge` one state down, and any other stays. In state s
    the controller's center is `centers[s]`, the verifier accepts actions in [`lows[s]`, `highs[s]`], and the fallback
    is `retreats[s]`.
    """

    centers: tuple[float, ...] = (0.3, 0.2, 0.1, -0.1, 0.0)
    lows: tuple[float, ...] = (-1.0, -1.0, -1.0, -0.9, -1.0)
    highs: tuple[float, ...] = (1.0, 1.0, 0.8, 0.5, 1.0)
    retreats: tuple[float, ...] = (0.0, 0.0, -0.5, -0.95, 0.0)
    edge: float = 0.25
    start: int = 1

    def __post_init__(self) -> None:
        size = len(self.centers)
        for name in ("centers", "lows", "highs", "retreats"):
            table = tuple(checks.finite(f"{name}[{i}]", value) for i, value in enumerate(getattr(self, name)))
            if len(table) != size or not size >= 2:
                raise ValueError(f"`{name}` must have one entry for each of at least 2 states, got {table}.")
            object.__setattr__(self, name, table)
        if not 0 <= self.start < size - 1:
            raise ValueError(f"`start` must be a state below the last, got {self.start}.")
        checks.positive("edge", self.edge)

    @property
    def danger(self) -> int:
        """The state that costs."""
        return len(self.centers) - 1

    def after(self, state: int, action: float) -> int:
        """Return the next state."""
        move = int(action > self.edge) - int(action < -self.edge)
        return min(max(state + move, 0), self.danger)


class Chain(gymnasium.Env[NDArray[np.float64], NDArray[np.float64]]):
    """A walk on the chain. The dangerous state costs 1 and ends the episode. The observation is the state."""

    def __init__(self, spec: ChainSpec) -> None:
        self._chain = spec
        self.observation_space = gymnasium.spaces.Box(0.0, float(spec.danger), (1,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)
        self.render_mode = None
        self._state = spec.start

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, object]]:
        """Begin at the start. The seed changes nothing."""
        super().reset(seed=seed)
        self._state = self._chain.start
        return np.array([float(self._state)]), {}

    def step(self, action: NDArray[np.float64]) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, object]]:
        """Move by the action's sign and size."""
        self._state = self._chain.after(self._state, float(action[0]))
        is_danger = self._state == self._chain.danger
        return np.array([float(self._state)]), float(self._state), is_danger, False, {"cost": float(is_danger)}


@dataclass(frozen=True, slots=True)
class ChainController:
    """The center of each state."""

    spec: ChainSpec

    @property
    def digest(self) -> str:
        """The table determines every answer."""
        return hashlib.sha256(f"chain controller 1 {self.spec.centers!r}".encode()).hexdigest()

    def reset(self) -> None:
        """Do nothing: the controller has no memory."""

    def center(self, observation: Vector) -> Vector:
        """Return the state's center."""
        return np.array([self.spec.centers[int(observation[0])]])


@dataclass(frozen=True, slots=True)
class ChainVerifier:
    """The accepted interval of each state."""

    spec: ChainSpec

    def accepts(self, observation: Vector, actions: Vector) -> Flags:
        """Return which actions are in the state's interval."""
        state = int(observation[0])
        return np.asarray((actions[:, 0] >= self.spec.lows[state]) & (actions[:, 0] <= self.spec.highs[state]))


@dataclass(frozen=True, slots=True)
class ChainFallback:
    """The retreat of each state. The verifier may reject it, and then the program abstains."""

    spec: ChainSpec

    def action(self, observation: Vector, center: Vector) -> Vector:
        """Return the state's retreat."""
        return np.array([self.spec.retreats[int(observation[0])]])


def make() -> Chain:
    """Make the default chain, for protocol files."""
    return Chain(ChainSpec())


def make_controller() -> ChainController:
    """Make the default chain's controller, for protocol files."""
    return ChainController(ChainSpec())


def step_law(
    spec: ChainSpec, schedule: ProposalSchedule, state: int, shift: float
) -> tuple[NDArray[np.float64], float]:
    """Return the probabilities of the next state, and of abstention, for one block with a shifted center.

    Given the shared innovation, the proposals are independent. So the first accepted one follows the masses of the
    parts of the accepted region, and with probability (rejection probability)^N none is accepted. The shared innovation
    is integrated by 96-point Gauss-Hermite quadrature.
    """
    center = min(max(spec.centers[state], -1.0), 1.0) + shift
    sigma = float(schedule.scales(1)[0])
    means = center + sigma * math.sqrt(schedule.rho) * _NODES
    scale = sigma * math.sqrt(1.0 - schedule.rho)
    # Candidates are clipped to [-1, 1], so an interval that reaches the edge of the box includes the whole tail.
    low = -math.inf if spec.lows[state] <= -1.0 else spec.lows[state]
    high = math.inf if spec.highs[state] >= 1.0 else spec.highs[state]

    def mass(a: float, b: float) -> NDArray[np.float64]:
        left, right = max(a, low), min(b, high)
        if not left < right:
            return np.zeros_like(means)
        return np.asarray(ndtr((right - means) / scale) - ndtr((left - means) / scale))

    down, stay, up = mass(-math.inf, -spec.edge), mass(-spec.edge, spec.edge), mass(spec.edge, math.inf)
    rejected = np.clip(1.0 - (down + stay + up), 0.0, 1.0)
    # (1 - r^N) / (1 - r) as a sum, which is stable if nothing or everything is rejected.
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

    `values[t, s, e]` is the probability of reaching the horizon without danger or abstention, from state s at step t
    with e units left. `units[t, s, e]` is what the adversary spends, with the sign of its shift.
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

    The adversary is restricted to whole units, so its value is at least the infimum over all causal shift rules. A
    certificate must be below it.
    """
    size = len(spec.centers)
    shifts = _sizes(units, unit, schedule.charge)
    laws = np.array([[step_law(spec, schedule, s, float(shift))[0] for shift in shifts] for s in range(size)])
    return _solved(laws, start=spec.start, horizon=horizon, unit=unit, charge=schedule.charge)


def _sizes(units: int, unit: float, charge: float) -> NDArray[np.float64]:
    """Return the shifts of -units to units units of energy."""
    spends = np.arange(-units, units + 1)
    return np.asarray(np.sign(spends) * np.sqrt(np.abs(spends) * unit / charge))


def _solved(laws: NDArray[np.float64], *, start: int, horizon: int, unit: float, charge: float) -> ChainSolution:
    """Solve by backward induction, from the laws of the next state, array [state, spend, next state].

    The last state is the dangerous one. What is missing in a law is abstention.
    """
    size, units = len(laws), (laws.shape[1] - 1) // 2
    values = np.zeros((horizon + 1, size, units + 1))
    chosen = np.zeros((horizon, size, units + 1), dtype=np.int64)
    values[horizon, : size - 1, :] = 1.0
    for t in range(horizon - 1, -1, -1):
        for state in range(size - 1):
            for left in range(units + 1):
                options = range(-left, left + 1)
                outcomes = [float(laws[state, k + units] @ values[t + 1, :, left - abs(k)]) for k in options]
                best = int(np.argmin(outcomes))
                values[t, state, left], chosen[t, state, left] = outcomes[best], options[best]
    return ChainSolution(values=values, units=chosen, unit=unit, charge=charge, start=start)


class ChainAdversary:
    """An adaptive shift rule that plays a solution's choices, so its exact value is known."""

    _direction = np.ones(1)
    """Where a positive spend pushes."""

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
        return fit(float(np.sign(spend)) * self._direction, min(norm, allowance))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSpec:
    """A chain with two actions, in tables with one entry per state. The last state is the dangerous one.

    Action 0 moves one state down and action 1 one state up. In state s the controller's scores are `scores[s]`, the
    verifier accepts the actions `allowed[s]`, and the fallback is `retreats[s]`.
    """

    scores: tuple[tuple[float, float], ...] = ((0.0, 0.8), (0.0, 0.2), (0.3, 0.0), (0.9, 0.0), (0.0, 0.0))
    allowed: tuple[tuple[int, ...], ...] = ((0, 1), (0, 1), (0, 1), (0, 1), (0, 1))
    retreats: tuple[int, ...] = (0, 0, 0, 0, 0)
    start: int = 1

    def __post_init__(self) -> None:
        size = len(self.scores)
        if not (size >= 2 and len(self.allowed) == len(self.retreats) == size):
            raise ValueError(f"`scores` must have one entry for each of at least 2 states, as the others, got {size}.")
        if not 0 <= self.start < size - 1:
            raise ValueError(f"`start` must be a state below the last, got {self.start}.")

    @property
    def danger(self) -> int:
        """The state that costs."""
        return len(self.scores) - 1

    def after(self, state: int, action: int) -> int:
        """Return the next state."""
        return min(max(state + (1 if action == 1 else -1), 0), self.danger)


class Switch(gymnasium.Env[NDArray[np.float64], np.int64]):
    """A walk on the chain by two actions. The dangerous state costs 1 and ends the episode."""

    def __init__(self, spec: SwitchSpec) -> None:
        self._chain = spec
        self.observation_space = gymnasium.spaces.Box(0.0, float(spec.danger), (1,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.render_mode = None
        self._state = spec.start

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, object]]:
        """Begin at the start. The seed changes nothing."""
        super().reset(seed=seed)
        self._state = self._chain.start
        return np.array([float(self._state)]), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, object]]:
        """Move up or down."""
        self._state = self._chain.after(self._state, int(action))
        is_danger = self._state == self._chain.danger
        return np.array([float(self._state)]), float(self._state), is_danger, False, {"cost": float(is_danger)}


@dataclass(frozen=True, slots=True)
class SwitchController:
    """The scores of each state."""

    spec: SwitchSpec

    @property
    def digest(self) -> str:
        """The table determines every answer."""
        return hashlib.sha256(f"switch controller 1 {self.spec.scores!r}".encode()).hexdigest()

    def reset(self) -> None:
        """Do nothing: the controller has no memory."""

    def center(self, observation: Vector) -> Vector:
        """Return the state's scores."""
        return np.array(self.spec.scores[int(observation[0])])


@dataclass(frozen=True, slots=True)
class SwitchVerifier:
    """The accepted actions of each state."""

    spec: SwitchSpec

    def accepts(self, observation: Vector, actions: Vector) -> Flags:
        """Return which actions are allowed in the state."""
        return np.isin(actions, self.spec.allowed[int(observation[0])])


@dataclass(frozen=True, slots=True)
class SwitchFallback:
    """The retreat of each state. The verifier may reject it, and then the program abstains."""

    spec: SwitchSpec

    def action(self, observation: Vector, center: Vector) -> Vector:
        """Return the number of the state's retreat."""
        return np.array(self.spec.retreats[int(observation[0])])


def switch_law(
    spec: SwitchSpec, schedule: ProposalSchedule, state: int, shift: float
) -> tuple[NDArray[np.float64], float]:
    """Return the probabilities of the next state, and of abstention, for one block with shifted scores.

    The action depends on the difference of the two noisy scores alone, which is Gaussian with scale sigma sqrt(2). The
    cheapest shift that moves the difference by x moves each score by x / 2. So `shift`, its norm, moves the difference
    by sqrt(2) times as much. Given the shared innovation the rows are independent, as in `step_law`.
    """
    down, up = spec.scores[state]
    sigma = float(schedule.scales(1)[0]) * math.sqrt(2.0)
    means = up - down + math.sqrt(2.0) * shift + sigma * math.sqrt(schedule.rho) * _NODES
    rises = np.asarray(ndtr(means / (sigma * math.sqrt(1.0 - schedule.rho))))
    masses = {0: 1.0 - rises, 1: rises}
    law = np.zeros(len(spec.scores))
    rejected = 1.0 - sum((masses[action] for action in spec.allowed[state]), np.zeros_like(rises))
    rejected = np.clip(rejected, 0.0, 1.0)
    tries = sum((rejected**k for k in range(schedule.count)), np.zeros_like(rises))
    for action in spec.allowed[state]:
        law[spec.after(state, action)] += float(_WEIGHTS @ (masses[action] * tries))
    nobody = float(_WEIGHTS @ rejected**schedule.count)
    if spec.retreats[state] in spec.allowed[state]:
        law[spec.after(state, spec.retreats[state])] += nobody
        return law, 0.0
    return law, nobody


def solve_switch(
    spec: SwitchSpec, schedule: ProposalSchedule, *, horizon: int, units: int, unit: float
) -> ChainSolution:
    """Solve the chain of two actions, as `solve` does the other one."""
    shifts = _sizes(units, unit, schedule.charge)
    states = range(len(spec.scores))
    laws = np.array([[switch_law(spec, schedule, s, float(shift))[0] for shift in shifts] for s in states])
    return _solved(laws, start=spec.start, horizon=horizon, unit=unit, charge=schedule.charge)


class SwitchAdversary(ChainAdversary):
    """Plays a solution of `solve_switch`: it moves the two scores apart or together."""

    _direction = np.array([-1.0, 1.0])
