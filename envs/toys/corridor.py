"""A linear-Gaussian corridor whose worst causal adversary is known and attains the certificate exactly."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ccfs.attacks.rules import fit
from ccfs.certificates import checks
from ccfs.certificates.schedule import Stage
from ccfs.runtime.history import PublicHistory
from ccfs.runtime.interfaces import Vector

__all__ = [
    "Corridor",
    "Steering",
    "WorstShift",
    "average",
    "make",
    "make_steering",
    "nominal_probability",
    "simulate",
    "worst_shifts",
]


class Corridor(gymnasium.Env[NDArray[np.float64], NDArray[np.float64]]):
    """A cart moves one cell per step along a corridor and steers sideways. At the end there is a post.

    Its lateral position follows x[t+1] = x[t] + a[t]. After `horizon` steps, a position above `post` costs 1, and any
    other position meets the goal. Nothing else is random. With Gaussian proposals around the center -gain * x[t], the
    last position is Gaussian, and the event "no cost" is a half-space of the innovations. In that case the comparison
    of the paper's theorem on adaptive trajectories is an equality. With a sensor stage the center is
    -gain * (x[t] + sensor noise), and all of this still holds.

    The observation is the lateral position and the number of steps left.
    """

    observation_layout: Final = MappingProxyType({"position": (0, 1), "steps_left": (1, 2)})

    def __init__(self, *, horizon: int = 10, post: float = 0.5, start: float = 0.0) -> None:
        self._horizon = checks.count("horizon", horizon, minimum=1)
        self._post = checks.finite("post", post)
        self._start = checks.finite("start", start)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.render_mode = None
        self._x, self._t = self._start, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, object]]:
        """Begin at the start. The seed changes nothing."""
        super().reset(seed=seed)
        self._x, self._t = self._start, 0
        return self._observation(), {}

    def step(self, action: NDArray[np.float64]) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, object]]:
        """Steer by the action. At the last step the cart passes the post or hits it."""
        self._x += float(action[0])
        self._t += 1
        is_last = self._t == self._horizon
        hits = is_last and not self._x <= self._post
        info: dict[str, object] = {"cost": float(hits)}
        if is_last and not hits:
            info["goal_met"] = True
        return self._observation(), -abs(self._x), False, is_last, info

    def _observation(self) -> NDArray[np.float64]:
        return np.array([self._x, float(self._horizon - self._t)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Steering:
    """Steer back to the middle: center -gain * position."""

    gain: float = 0.2

    def __post_init__(self) -> None:
        checks.finite("gain", self.gain)

    @property
    def digest(self) -> str:
        """Name and gain determine every answer."""
        return hashlib.sha256(f"corridor steering 1 {self.gain!r}".encode()).hexdigest()

    def reset(self) -> None:
        """Do nothing: the controller has no memory."""

    def center(self, observation: Vector) -> Vector:
        """Return the steering center."""
        return np.array([-self.gain * float(observation[0])])


def make(*, horizon: int = 10, post: float = 0.5, start: float = 0.0) -> Corridor:
    """Make a corridor, for protocol files."""
    return Corridor(horizon=horizon, post=post, start=start)


def make_steering(*, gain: float = 0.2) -> Steering:
    """Make the corridor's controller, for protocol files."""
    return Steering(gain=gain)


class average:  # noqa: N801  # made in protocol files like a function
    """A candidate map. Every candidate is the mean of the block, which keeps all information about a shift."""

    def __call__(self, block: Vector) -> Vector:
        """Return the block with each row replaced by the mean row."""
        return np.repeat(block.mean(axis=0, keepdims=True), len(block), axis=0)


def _weights(horizon: int, gain: float) -> NDArray[np.float64]:
    """Return how much an innovation of step t moves the last position: (1 - gain) ** (horizon - 1 - t)."""
    return np.asarray((1.0 - gain) ** np.arange(horizon - 1, -1, -1, dtype=np.float64))


def nominal_probability(
    *, horizon: int, post: float, start: float, gain: float, sigma: float, kappa: float, sensor: float = 0.0
) -> float:
    """Return the exact probability of passing the post without shift, when the block's mean steers.

    The last position is Gaussian with mean start * (1 - gain) ** horizon. Its variance is the sum of squared weights
    times (sigma² / kappa + gain² sensor²). With one proposal, kappa is 1. `sensor` is the standard deviation of the
    noise of the position that is read.
    """
    weights = _weights(horizon, gain)
    scale = math.hypot(sigma / math.sqrt(kappa), gain * sensor) * float(np.linalg.norm(weights))
    return 0.5 * math.erfc(-(post - start * (1.0 - gain) ** horizon) / scale / math.sqrt(2.0))


def worst_shifts(*, horizon: int, gain: float, budget: float) -> NDArray[np.float64]:
    """Return the shifts of Euclidean budget `budget` that lower the passing probability most, shape (horizon, 1).

    They are proportional to the weights. Then the last position moves by budget * |weights|. In its own standard
    deviations that is mu = sqrt(kappa) * budget / sigma, which is the theorem's bound. No adaptive rule does better.
    """
    weights = _weights(horizon, gain)
    return (budget * weights / np.linalg.norm(weights))[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstShift:
    """Spend the allowance as `worst_shifts` does, step by step. It is the strongest causal attack on this corridor.

    A shift of the action moves the last position by its weight, and an error of the position that is read moves it by
    -gain times the weight. Over all blocks that may be shifted, the best energy of a block is proportional to the
    squared effect of one standard deviation. With both stages the energy is split between sensor and actuator. Then the
    last position moves by mu of its own standard deviations, which is the theorem's bound.

    Args:
        gain: the controller's gain.
        action: standard deviation of the block's mean, sigma / sqrt(kappa). It matters if both stages are shifted.
        sensor: standard deviation of the noise of the position that is read. It matters if the sensor is shifted.
    """

    gain: float
    action: float = 1.0
    sensor: float = 0.0

    def __post_init__(self) -> None:
        checks.finite("gain", self.gain)
        checks.nonnegative("action", self.action)
        checks.nonnegative("sensor", self.sensor)

    def reset(self) -> None:
        """Do nothing: the rule has no memory."""

    def shift(self, history: PublicHistory, rng: np.random.Generator, *, allowance: float) -> Vector:
        """Return this block's share of what is left, towards the post."""
        effects = {Stage.SENSOR: abs(self.gain) * self.sensor, Stage.ACTION: self.action}
        weights = _weights(history.horizon, self.gain)[history.t :]
        blocks = np.outer(weights, [effects[stage] for stage in history.stages]).ravel()
        blocks = blocks[history.stages.index(history.stage) :]
        length = float(np.linalg.norm(blocks))
        share = float(blocks[0] / length) if length > 0.0 else 0.0
        direction = np.zeros_like(history.center)
        # A cart that is seen too far from the post steers less away from it.
        direction[0] = 1.0 if history.stage is Stage.ACTION else -math.copysign(1.0, self.gain)
        return fit(direction, allowance * share, history.scales)


def simulate(
    noise: NDArray[np.float64],
    shifts: NDArray[np.float64],
    *,
    gain: float,
    start: float = 0.0,
    errors: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return the last positions of many trials at once.

    Args:
        noise: what the block adds to its center, shape (trials, horizon).
        shifts: shifts of the center, shape (horizon, 1).
        gain: the controller's gain.
        start: the first position.
        errors: what is read of the position minus the position, noise and shift together, shape (trials, horizon).
    """
    position = np.full(len(noise), start)
    for t in range(noise.shape[1]):
        read = position if errors is None else position + errors[:, t]
        position = position + ((-gain * read + shifts[t, 0]) + noise[:, t])
    return position
