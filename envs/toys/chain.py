"""A finite chain with verifier, fallback and abstention, small enough that its worst adversary can be computed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.runtime.interfaces import Flags, Vector

__all__ = ["Chain", "ChainController", "ChainFallback", "ChainSpec", "ChainVerifier", "make", "make_controller"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSpec:
    """The chain in tables, one entry a state; the last state is the dangerous one.

    An action above `edge` moves one state up, one below `-edge` one down, any other stays. In state s the controller's
    center is `centers[s]`, the verifier accepts actions in [`lows[s]`, `highs[s]`], and the fallback is `retreats[s]`.
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
    """Walk on the chain; reaching the dangerous state costs 1 and ends the episode. Observation: the state."""

    def __init__(self, spec: ChainSpec) -> None:
        self._chain = spec
        self.observation_space = gymnasium.spaces.Box(0.0, float(spec.danger), (1,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)
        self.render_mode = None
        self._state = spec.start

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, object]]:
        """Begin at the start; the seed changes nothing."""
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
        """Return which actions lie in the state's interval."""
        state = int(observation[0])
        return np.asarray((actions[:, 0] >= self.spec.lows[state]) & (actions[:, 0] <= self.spec.highs[state]))


@dataclass(frozen=True, slots=True)
class ChainFallback:
    """The retreat of each state; the verifier may reject it, and then the program abstains."""

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
