"""Shift rules that need no knowledge of the task. Each stays within what its ledger still accepts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ccfs.attacks.ledger import squared_norm
from ccfs.certificates import checks
from ccfs.runtime.history import PublicHistory
from ccfs.runtime.interfaces import ShiftRule, Vector

__all__ = [
    "BurstShift",
    "ConstantShift",
    "Critic",
    "GreedyShift",
    "NoShift",
    "OpposedShift",
    "RandomShift",
    "ScriptedShift",
    "fit",
    "length",
]


def length(vector: Vector) -> float:
    """Return the Euclidean length, with the same bits on every processor.

    BLAS computes `np.linalg.norm`, with other last bits on other processors. Attacked trials would not replay there.
    """
    return math.sqrt(math.fsum((vector * vector).tolist()))


def fit(direction: Vector, norm: float, scales: Vector | None = None) -> Vector:
    """Return `direction` scaled to the length `norm`: at most a few roundings below it, and never above.

    A direction that is zero or not finite gives the zero shift.

    Args:
        direction: where to push.
        norm: the length, such as a share of the allowance.
        scales: as `PublicHistory.scales` has them. If they differ, the shift has the energy of a shift of this length
            along the narrowest coordinate: it is longer where there is more noise, and 0 where there is none.
    """
    vector = np.array(direction, dtype=np.float64)
    if scales is not None and _differ(scales) and scales.shape == vector.shape:
        return _fit_ellipsoid(vector, norm, scales)
    largest = float(np.abs(vector).max(initial=0.0))
    if not (norm > 0.0 and largest > 0.0 and math.isfinite(largest)):
        return np.zeros_like(vector)
    # Scaled by the largest coordinate first, so that squares of tiny coordinates do not become zero.
    vector /= largest
    vector *= norm / length(vector)
    # The division rounds, so the norm may be too long by a few last bits. The ledger is exact and would refuse it.
    shrink = 2.0**-52
    while squared_norm(vector) > Fraction(norm) ** 2:
        vector *= 1.0 - shrink
        shrink = min(2.0 * shrink, 0.5)
    return vector


def _differ(scales: Vector) -> bool:
    return not bool((scales == scales[:1]).all())


def _fit_ellipsoid(vector: Vector, norm: float, scales: Vector) -> Vector:
    """Return the vector at the size norm / least scale in units of the scales, and 0 where the scale is 0."""
    noisy = scales > 0.0
    least = float(scales[noisy].min())
    whitened = np.zeros_like(vector)
    whitened[noisy] = vector[noisy] / (scales[noisy] / least)
    unit = fit(whitened, norm)
    shift = np.zeros_like(vector)
    shift[noisy] = unit[noisy] * (scales[noisy] / least)
    # Scales are roots that were rounded down, so their squares are below those of the ledger by less than 2^-51.
    limit = Fraction(norm) ** 2 * (1 - Fraction(1, 2**49)) / Fraction(least) ** 2
    shrink = 2.0**-52
    while _squared_size(shift, scales) > limit:
        shift *= 1.0 - shrink
        shrink = min(2.0 * shrink, 0.5)
    return shift


def _squared_size(shift: Vector, scales: Vector) -> Fraction:
    pairs = zip(shift.tolist(), scales.tolist(), strict=True)
    return sum(((Fraction(value) / Fraction(scale)) ** 2 for value, scale in pairs if value), Fraction(0))


def _push(history: PublicHistory, direction: Vector, allowance: float, norm: float | None) -> Vector:
    """Return a shift of the fixed norm as far as allowed. Without one, an even share of the energy that is left."""
    if norm is None:
        share = allowance / math.sqrt(history.blocks_left)
        return fit(direction, min(share, allowance), history.scales)
    whole = fit(direction, min(norm, allowance), history.scales)
    if history.scales is None or not _differ(history.scales) or length(whole) <= norm:
        return whole
    # Along a coordinate with more noise the same energy goes further than the norm that was asked for.
    return fit(whole, norm)


class _Memoryless:
    """A rule with nothing to forget."""

    def reset(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class NoShift(_Memoryless):
    """Never shift."""

    def shift(self, history: PublicHistory, rng: np.random.Generator, *, allowance: float) -> Vector:
        """Return zero."""
        return np.zeros_like(history.center)


@dataclass(frozen=True, kw_only=True)
class OpposedShift(_Memoryless):
    """Push against the (clipped) center with a fixed norm or an even share. The paper tests this shift."""

    norm: float | None = None

    def __post_init__(self) -> None:
        _optional_norm(self.norm)

    def shift(self, history: PublicHistory, rng: np.random.Generator, *, allowance: float) -> Vector:
        """Return the shift opposite to the center."""
        return _push(history, -history.center, allowance, self.norm)


@dataclass(frozen=True, kw_only=True)
class ConstantShift(_Memoryless):
    """Push in one fixed direction, with a fixed norm or an even share."""

    direction: tuple[float, ...]
    norm: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "direction", _direction(self.direction))
        _optional_norm(self.norm)

    def shift(self, history: PublicHistory, rng: np.random.Generator, *, allowance: float) -> Vector:
        """Return the shift along the direction."""
        return _push(history, np.array(self.direction), allowance, self.norm)


@dataclass(frozen=True, kw_only=True)
class RandomShift(_Memoryless):
    """Push in a uniformly random direction from the rule's own stream."""

    norm: float | None = None

    def __post_init__(self) -> None:
        _optional_norm(self.norm)

    def shift(self, history: PublicHistory, rng: np.random.Generator, *, allowance: float) -> Vector:
        """Return a shift in a fresh random direction."""
        return _push(history, rng.standard_normal(history.center.shape), allowance, self.norm)


class Critic(Protocol):
    """Scores actions. A higher score is worse for the event."""

    def __call__(self, observation: Vector, actions: Vector) -> NDArray[np.float64]:
        """Return one score for each action, shape (n,), for `actions` of shape (n, d)."""
        ...


@dataclass(frozen=True, kw_only=True)
class GreedyShift(_Memoryless):
    """Push towards the action that a critic finds worst among random probes around the center."""

    critic: Critic
    probes: int = 16
    reach: float = 0.1
    norm: float | None = None

    def __post_init__(self) -> None:
        checks.count("probes", self.probes, minimum=2)
        checks.positive("reach", self.reach)
        _optional_norm(self.norm)
        if not callable(self.critic):
            raise TypeError(f"`critic` must be callable, got {self.critic!r}.")

    def shift(self, history: PublicHistory, rng: np.random.Generator, *, allowance: float) -> Vector:
        """Return the shift towards the worst probe."""
        probes = rng.standard_normal((self.probes, history.center.size))
        probes *= self.reach / np.linalg.norm(probes, axis=1, keepdims=True)
        scores = np.asarray(self.critic(history.observation, history.center + probes), dtype=np.float64)
        if scores.shape != (self.probes,) or not np.isfinite(scores).all():
            raise ValueError(f"`critic` must return {self.probes} finite scores, got {scores!r}.")
        return _push(history, probes[int(scores.argmax())], allowance, self.norm)


@dataclass(frozen=True, kw_only=True)
class BurstShift(_Memoryless):
    """Spend everything at one step, against the center or in a fixed direction."""

    step: int
    direction: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        checks.count("step", self.step)
        if self.direction is not None:
            object.__setattr__(self, "direction", _direction(self.direction))

    def shift(self, history: PublicHistory, rng: np.random.Generator, *, allowance: float) -> Vector:
        """Return the whole allowance at the chosen step, zero elsewhere."""
        direction = -history.center if self.direction is None else np.array(self.direction)
        return fit(direction, allowance if history.t == self.step else 0.0, history.scales)


@dataclass(frozen=True, kw_only=True)
class ScriptedShift(_Memoryless):
    """Play back given shifts, one per step, and zero after the last. The ledger refuses one that overspends."""

    shifts: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shifts", tuple(_vector("shifts", row) for row in self.shifts))

    def shift(self, history: PublicHistory, rng: np.random.Generator, *, allowance: float) -> Vector:
        """Return the scripted shift of this step."""
        return np.array(self.shifts[history.t]) if history.t < len(self.shifts) else np.zeros_like(history.center)


def _optional_norm(norm: float | None) -> None:
    if norm is not None:
        checks.nonnegative("norm", norm)


def _vector(name: str, values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(checks.finite(f"{name}[{i}]", value) for i, value in enumerate(values))


def _direction(values: tuple[float, ...]) -> tuple[float, ...]:
    direction = _vector("direction", values)
    if not any(direction):
        raise ValueError(f"`direction` must have a coordinate other than 0, got {direction}.")
    return direction


# With this table mypy checks that every rule here is a ShiftRule.
_SHIPPED: tuple[type[ShiftRule], ...] = (
    NoShift,
    OpposedShift,
    ConstantShift,
    RandomShift,
    GreedyShift,
    BurstShift,
    ScriptedShift,
)
