"""Shift rules that know the task: a burst at the most dangerous moment, a learned cost critic, a learned adversary.

The trained networks are in `networks/`, as plain arrays with a card each. A protocol names one by its folder's name and
by its digest, which fixes the weights of the attack:

    [[attacks]]
    name = "critic"
    rule = "critic-greedy"
    budget = 0.1
    arguments = { name = "critic-pointgoal2", digest = "<SHA-256 from its card>" }

Networks answer in multiples of 2**-22, so that shifts do not depend on the machine's matrix library either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from ccfs.attacks.rules import Critic, GreedyShift, fit, length
from ccfs.certificates import checks
from ccfs.runtime.history import PublicHistory
from ccfs.runtime.interfaces import ShiftRule, Vector

if TYPE_CHECKING:
    from ccfs.controllers.actor import NumpyActor

__all__ = [
    "CostCritic",
    "DangerBurstShift",
    "LearnedShift",
    "SensitivityShift",
    "critic_greedy",
    "critic_sensitivity",
    "danger",
    "features",
    "learned",
    "network",
    "shift_of",
    "shipped",
]

_SHIPPED: Final = Path(__file__).parent / "networks"
# The 60 numbers of a Point task with hazards and vases: accelerometer 3, velocimeter 3, gyro 3, magnetometer 3, then 16
# lidar bins each for goal, hazards and vases.
_SIZE: Final = 60
_OBSTACLES: Final = slice(28, 60)
_RANGE: Final = 3.0
_RADII: Final = np.repeat([0.20, 0.24], 16)
_BEARINGS: Final = np.tile((np.arange(16) + 0.5) * (2.0 * math.pi / 16), 2)
_AHEAD, _LEFT = np.cos(_BEARINGS), np.sin(_BEARINGS)
_CREEP: Final = 0.1
_NEAREST: Final = 0.02
_THRUST_GAIN: Final = 4.0
_GRID: Final = 2.0**-22


def danger(observation: Vector) -> tuple[float, float]:
    """Return the danger of the moment, one over the seconds until contact, and the bearing of what is most dangerous.

    The danger of a lidar bin of hazards or vases is the speed of approach over the gap that is left. The speed counts
    as at least 0.1 m/s, because what is close is dangerous at rest too. The gap counts as at least 0.02 m. The bearing
    is in radians from the heading, positive to the left. The danger is 0 if nothing is in sight.
    """
    values = np.asarray(observation, dtype=np.float64)
    if values.shape != (_SIZE,) or not np.isfinite(values).all():
        raise ValueError(f"`observation` must be the {_SIZE} finite numbers of a Point task, got {values!r}.")
    # A lidar value is 1 - distance / range of the nearest obstacle in its bin, and 0 if the bin is empty.
    closeness = values[_OBSTACLES]
    gap = np.maximum(_RANGE * (1.0 - closeness) - _RADII, _NEAREST)
    approach = np.maximum(values[3] * _AHEAD + values[4] * _LEFT, _CREEP)
    scores = np.where(closeness > 0.0, approach / gap, 0.0)
    worst = int(scores.argmax())
    return float(scores[worst]), float(_BEARINGS[worst])


@dataclass(kw_only=True)
class DangerBurstShift:
    """Wait for the first moment more dangerous than `threshold`, then spend everything within `steps` steps.

    It pushes towards what is most dangerous. Thrust saturates at 0.05, so a push changes it only when it changes its
    sign. That is likely where the center's thrust is near zero and rare where it is several `sigma` away. There the
    rule pushes the turn instead.

    Args:
        threshold: in 1/s, see `danger`.
        sigma: of the attacked arm's proposals.
        steps: length of the burst. Each step gets an equal share of the energy.
    """

    threshold: float
    sigma: float
    steps: int = 1
    _begun: int | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        checks.nonnegative("threshold", self.threshold)
        checks.positive("sigma", self.sigma)
        checks.count("steps", self.steps, minimum=1)

    def reset(self) -> None:
        """Wait again."""
        self._begun = None

    def shift(self, history: PublicHistory, rng: np.random.Generator, *, allowance: float) -> Vector:
        """Return this step's share of the burst, or zero before and after it."""
        score, bearing = danger(history.observation)
        if self._begun is None and score > self.threshold:
            self._begun = history.t
        left = 0 if self._begun is None else self._begun + self.steps - history.t
        if left <= 0:
            return np.zeros_like(history.center)
        flips = math.exp(-0.5 * (float(history.center[0]) / self.sigma) ** 2)
        direction = np.array([_THRUST_GAIN * flips * math.cos(bearing), math.sin(bearing)])
        direction = np.rint(direction / _GRID) * _GRID  # the last bits of exp, cos and sin differ between machines
        # Energy grows with the square of the norm, so an equal share of it is a norm divided by a root.
        return fit(direction, allowance / math.sqrt(left), history.scales)


@dataclass(frozen=True, kw_only=True)
class CostCritic:
    """A trained Q(observation, action): the expected discounted first cost if the center is moved to `action`."""

    actor: NumpyActor

    def __post_init__(self) -> None:
        _outputs("a critic", self.actor, 1)

    def __call__(self, observation: Vector, actions: Vector) -> NDArray[np.float64]:
        """Return one score for each action."""
        seen = np.asarray(observation, dtype=np.float64)
        return np.array([self.actor.center(np.concatenate([seen, action]))[0] for action in np.asarray(actions)])


@dataclass(kw_only=True)
class SensitivityShift:
    """Push along the critic's slope, with a norm in proportion to it, so that energy goes where it matters.

    For a small budget the best shift is proportional, step by step, to the slope of the failure probability in the
    center (first order of the likelihood ratio). GreedyShift keeps the direction but spends evenly.

    Args:
        critic: scores actions.
        gain: norm of the shift, in units of the whole budget, at slope 1.
        reach: half the distance over which the slope is taken.
    """

    critic: Critic
    gain: float
    reach: float = 0.25
    _budget: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.critic):
            raise TypeError(f"`critic` must be callable, got {self.critic!r}.")
        checks.positive("gain", self.gain)
        checks.positive("reach", self.reach)

    def reset(self) -> None:
        """Forget the budget of the last trial."""
        self._budget = 0.0

    def shift(self, history: PublicHistory, rng: np.random.Generator, *, allowance: float) -> Vector:
        """Return the shift along the slope."""
        # With one block for every step, the first allowance of a trial is the whole budget and no later one is larger.
        self._budget = max(self._budget, allowance)
        offsets = self.reach * np.eye(history.center.size)
        probes = np.concatenate([history.center + offsets, history.center - offsets])
        scores = np.asarray(self.critic(history.observation, probes), dtype=np.float64)
        if scores.shape != (len(probes),) or not np.isfinite(scores).all():
            raise ValueError(f"`critic` must return {len(probes)} finite scores, got {scores!r}.")
        slope = (scores[: len(offsets)] - scores[len(offsets) :]) / (2.0 * self.reach)
        return fit(slope, min(self.gain * self._budget * length(slope), allowance))


def features(history: PublicHistory, left: float) -> Vector:
    """Return the inputs of a learned adversary: observation, center, share of the budget left, share of time used."""
    time = history.t / history.horizon
    return np.concatenate([np.asarray(history.observation, dtype=np.float64), history.center, [left, time]])


def shift_of(output: Vector, allowance: float) -> Vector:
    """Return the shift for a network's output: a direction, followed by one number that says how much to spend.

    That number z in [-1, 1] (clipped) asks for the norm ((1 + z) / 2)^3 times the allowance. So z = -1 spends nothing,
    z = 0 one 64th of the energy that is left, and z = 1 all of it.
    """
    spend = 0.5 * (1.0 + min(max(float(output[-1]), -1.0), 1.0))
    return fit(np.clip(output[:-1], -1.0, 1.0), spend * spend * spend * allowance)


@dataclass(kw_only=True)
class LearnedShift:
    """A frozen, deterministic network that was trained as an adversary of one arm, under its ledger."""

    actor: NumpyActor
    _budget: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.actor.action_size >= 2:
            raise ValueError(f"`actor` must answer with a direction and a spend, got {self.actor.action_size} numbers.")

    def reset(self) -> None:
        """Forget the budget of the last trial."""
        self._budget = 0.0

    def shift(self, history: PublicHistory, rng: np.random.Generator, *, allowance: float) -> Vector:
        """Return the shift that the network asks for, within the allowance."""
        self._budget = max(self._budget, allowance)
        _outputs("an adversary", self.actor, history.center.size + 1)
        left = allowance / self._budget if self._budget > 0.0 else 0.0
        return shift_of(self.actor.center(features(history, left)), allowance)


def shipped() -> tuple[str, ...]:
    """Return the names of the networks that ship with the package."""
    return tuple(sorted(path.parent.name for path in _SHIPPED.glob("*/card.json")))


def network(name: str, digest: str) -> NumpyActor:
    """Return a shipped network by name, or any other by its folder. Refuse it if its digest is not the given one.

    The file must also match its card. No code of a file is run, because the files hold only JSON and plain arrays.
    """
    from ccfs.controllers import zoo

    if not (isinstance(name, str) and isinstance(digest, str)):
        raise TypeError(f"`name` and `digest` must be strings, got {name!r} and {digest!r}.")
    folder = _SHIPPED / name if name in shipped() else Path(name)
    if not (folder / "card.json").is_file():
        raise ValueError(f"`name` must be one of {shipped()} or a folder with a card, got {name!r}.")
    actor = zoo.load(folder).actor
    if actor.digest != digest:
        raise ValueError(
            f"`digest` must be that of the network {name!r}, {actor.digest}, got {digest!r}. "
            "The network has changed since the protocol was written."
        )
    return actor


def critic_greedy(
    *, name: str, digest: str, probes: int = 16, reach: float = 0.25, norm: float | None = None
) -> GreedyShift:
    """Return GreedyShift with a trained critic."""
    return GreedyShift(critic=CostCritic(actor=network(name, digest)), probes=probes, reach=reach, norm=norm)


def critic_sensitivity(*, name: str, digest: str, gain: float, reach: float = 0.25) -> SensitivityShift:
    """Return SensitivityShift with a trained critic."""
    return SensitivityShift(critic=CostCritic(actor=network(name, digest)), gain=gain, reach=reach)


def learned(*, name: str, digest: str) -> LearnedShift:
    """Return a trained adversary."""
    return LearnedShift(actor=network(name, digest))


def _outputs(what: str, actor: NumpyActor, count: int) -> None:
    if actor.action_size != count:
        raise ValueError(f"`actor` must have {count} outputs to be {what} here, got {actor.action_size}.")


# With this table mypy checks that every rule here is a ShiftRule.
_RULES: tuple[type[ShiftRule], ...] = (DangerBurstShift, SensitivityShift, LearnedShift)
