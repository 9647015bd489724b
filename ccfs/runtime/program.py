"""The fixed causal program: clip the center, map the candidates, verify, fall back in order, or abstain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypeVar

import numpy as np
from gymnasium.spaces import Box, Space

from ccfs.runtime.components import BoxVerifier, FixedFallback
from ccfs.runtime.interfaces import Fallback, Vector, Verifier

__all__ = ["CandidateMap", "CausalProgram", "FallbackEntry"]

CandidateMap = Callable[[Vector], Vector]
ActType = TypeVar("ActType")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FallbackEntry:
    """One fallback with its name. `unverified` declares that it runs without the verifier's consent.

    The declaration is part of the protocol hash, and the certificate repeats it.
    """

    name: str
    fallback: Fallback
    unverified: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name):
            raise TypeError(f"`name` must be a non-empty string, got {self.name!r}.")
        if not isinstance(self.fallback, Fallback):
            raise TypeError(f"`fallback` must have `action(observation, center)`, got {self.fallback!r}.")
        if not isinstance(self.unverified, bool):
            raise TypeError(f"`unverified` must be True or False, got {self.unverified!r}.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CausalProgram:
    """Everything between the controller's center and the executed action, fixed before sampling.

    Paper, theorem on adaptive feasible trajectories: center map, candidate map, verifier and fallbacks are one common
    kernel of the nominal and of the shifted law. A component that reads the shift, the clock or a generator of its own
    breaks that premise, and no certificate holds.

    Args:
        low: least action, shape (d,). Entries may be -inf.
        high: greatest action, shape (d,). Entries may be inf.
        verifier: says which actions may run.
        fallbacks: asked in this order when no proposal was accepted.
        clip_center: clip the controller's center to the action box, so that a unit of budget is a unit of action.
            Turning it off is recorded on the certificate.
        candidate_map: maps proposals, shape (n, d), to candidates. None clips them to the action box.
        dtype: "float64" or "float32", the precision in which the environment takes actions. Candidates are rounded to
            it before they are verified, so that what runs is exactly what was verified.
    """

    low: Vector
    high: Vector
    verifier: Verifier
    fallbacks: tuple[FallbackEntry, ...] = ()
    clip_center: bool = True
    candidate_map: CandidateMap | None = None
    dtype: str = "float64"

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            bound = np.array(getattr(self, name), dtype=np.float64)
            if bound.ndim != 1 or not bound.size >= 1:
                raise ValueError(f"`{name}` must have shape (d,) with d >= 1, got shape {bound.shape}.")
            bound.flags.writeable = False
            object.__setattr__(self, name, bound)
        if self.low.shape != self.high.shape or not np.all(self.low < self.high):
            raise ValueError(f"`low` must be below `high` in every coordinate, got {self.low} and {self.high}.")
        if not isinstance(self.verifier, Verifier):
            raise TypeError(f"`verifier` must have `accepts(observation, actions)`, got {self.verifier!r}.")
        object.__setattr__(self, "fallbacks", tuple(self.fallbacks))
        if not all(isinstance(entry, FallbackEntry) for entry in self.fallbacks):
            raise TypeError("`fallbacks` must hold FallbackEntry(name=..., fallback=...) values.")
        self._refuse_other_dimensions()
        for part in (self.verifier, *(entry.fallback for entry in self.fallbacks)):
            methods = [name for name in ("observe", "reset") if callable(getattr(part, name, None))]
            if len(methods) == 1:
                raise TypeError(
                    f"{part!r} must have both `observe` and `reset`, or neither, got {methods[0]} only. "
                    "A component with memory is told every observation and every new episode."
                )
        names = [entry.name for entry in self.fallbacks]
        if len(set(names)) != len(names):
            raise ValueError(f"`fallbacks` must have different names, got {names}.")
        if not isinstance(self.clip_center, bool):
            raise TypeError(f"`clip_center` must be True or False, got {self.clip_center!r}.")
        if self.candidate_map is not None and not callable(self.candidate_map):
            raise TypeError(f"`candidate_map` must be callable or None, got {self.candidate_map!r}.")
        if self.dtype not in ("float64", "float32"):
            raise ValueError(f"`dtype` must be 'float64' or 'float32', got {self.dtype!r}.")

    @classmethod
    def for_space(
        cls,
        space: Space[ActType],
        *,
        verifier: Verifier,
        fallbacks: Sequence[FallbackEntry] = (),
        clip_center: bool = True,
        candidate_map: CandidateMap | None = None,
    ) -> CausalProgram:
        """Build the program for an environment's Box action space of shape (d,)."""
        if not isinstance(space, Box) or len(space.shape) != 1 or space.dtype not in (np.float32, np.float64):
            raise TypeError(f"`space` must be a Box of floats with shape (d,), got {space}.")
        return cls(
            low=space.low,
            high=space.high,
            verifier=verifier,
            fallbacks=tuple(fallbacks),
            clip_center=clip_center,
            candidate_map=candidate_map,
            dtype=np.dtype(space.dtype).name,
        )

    @property
    def dimension(self) -> int:
        """Coordinates of an action."""
        return int(self.low.size)

    @property
    def unverified_fallbacks(self) -> tuple[str, ...]:
        """Names of the entries that run without the verifier's consent."""
        return tuple(entry.name for entry in self.fallbacks if entry.unverified)

    def _refuse_other_dimensions(self) -> None:
        """Refuse our own components if they are made for another dimension, because every answer would be rejected."""
        box = self.verifier
        if isinstance(box, BoxVerifier) and box.low.shape != self.low.shape:
            raise ValueError(
                f"`verifier` must have the action's dimension, {self.dimension}, got a BoxVerifier of dimension "
                f"{box.low.size}. Give its `low` and `high` one number for each coordinate."
            )
        for entry in self.fallbacks:
            fixed = entry.fallback
            if isinstance(fixed, FixedFallback) and len(fixed.values) != self.dimension:
                raise ValueError(
                    f"`fallbacks` must have the action's dimension, {self.dimension}, got a FixedFallback "
                    f"{entry.name!r} of dimension {len(fixed.values)}."
                )

    def to_box(self, values: Vector) -> Vector:
        """Clip a vector or a block of vectors to the action box."""
        return np.minimum(np.maximum(values, self.low), self.high)

    def can_run(self, action: Vector) -> bool:
        """Return whether an action is finite and in the action box. No other action ever runs."""
        # Plain floats, because numpy's reductions take longer than the comparison of a few numbers.
        for value, low, high in zip(action.tolist(), self.low.tolist(), self.high.tolist(), strict=True):
            if not (low <= value <= high and isfinite(value)):
                return False
        return True

    def center(self, center: object) -> Vector:
        """Return the center as a fresh float64 vector, clipped unless declared otherwise.

        A NaN stays NaN, and all its proposals are rejected. A wrong shape or kind is a programming error and raises.
        """
        vector = np.array(center, dtype=np.float64)
        if vector.shape != self.low.shape:
            raise ValueError(f"`center` must have shape {self.low.shape}, got {vector.shape}.")
        return self.to_box(vector) if self.clip_center else vector

    def candidates(self, block: Vector) -> Vector:
        """Map a block of proposals, shape (n, d), to candidate actions of the same shape, in the action's precision."""
        candidates = self.to_box(block) if self.candidate_map is None else self.candidate_map(block)
        if self.dtype == "float64":
            return candidates
        with np.errstate(over="ignore"):  # the selector rejects an infinity later
            return candidates.astype(np.float32).astype(np.float64)
