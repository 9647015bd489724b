"""Small verifiers and fallbacks that need no environment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ccfs.runtime.interfaces import Flags, Vector

__all__ = ["AcceptAll", "BoxVerifier", "CenterFallback", "FixedFallback"]


@dataclass(frozen=True, slots=True)
class AcceptAll:
    """Accept every action. The selector itself rejects those that are not finite or outside of the action box."""

    def accepts(self, observation: Vector, actions: Vector) -> Flags:
        """Return all True."""
        return np.ones(len(actions), dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoxVerifier:
    """Accept the actions inside a fixed box, edges included, whatever is observed."""

    low: Vector
    high: Vector

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            bound = np.array(getattr(self, name), dtype=np.float64)
            bound.flags.writeable = False
            object.__setattr__(self, name, bound)
        if self.low.ndim != 1 or self.low.shape != self.high.shape or not (self.low <= self.high).all():
            raise ValueError(f"`low` must be at most `high` in every coordinate, got {self.low} and {self.high}.")

    def accepts(self, observation: Vector, actions: Vector) -> Flags:
        """Return which actions are in the box. Raise for another dimension, where numpy would repeat the bounds."""
        if actions.ndim != 2 or actions.shape[1:] != self.low.shape:
            raise ValueError(f"`actions` must have shape (n, {self.low.size}), as the box has, got {actions.shape}.")
        inside = (actions >= self.low) & (actions <= self.high)
        # `inside.all` does the same through a Python function, which takes longer.
        return np.asarray(np.logical_and.reduce(inside, axis=1))


@dataclass(frozen=True, slots=True)
class CenterFallback:
    """Run the controller's clipped center. In the paper this fallback runs without verification: declare it so."""

    def action(self, observation: Vector, center: Vector) -> Vector:
        """Return the center."""
        return center


@dataclass(frozen=True, slots=True)
class FixedFallback:
    """Run one fixed action, such as a brake."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(float(value) for value in self.values))
        if not (self.values and np.isfinite(self.values).all()):
            raise ValueError(f"`values` must be finite numbers, got {self.values}.")

    def action(self, observation: Vector, center: Vector) -> Vector:
        """Return the fixed action."""
        return np.array(self.values)
