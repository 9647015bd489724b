"""The fixed causal program: take the center, make candidates of its block, verify, fall back in order, or abstain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypeVar, cast

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.schedule import Stage
from ccfs.runtime.components import BoxVerifier, FixedFallback
from ccfs.runtime.interfaces import Fallback, Flags, Vector, Verifier

__all__ = ["CandidateMap", "CausalProgram", "Choices", "FallbackEntry", "fallback_entries"]

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


def fallback_entries(fallbacks: Iterable[FallbackEntry]) -> tuple[FallbackEntry, ...]:
    """Return fallbacks as a tuple. Refuse one without its name."""
    entries = tuple(fallbacks) if isinstance(fallbacks, Iterable) else (fallbacks,)
    wrong = [entry for entry in entries if not isinstance(entry, FallbackEntry)]
    if wrong or not isinstance(fallbacks, Iterable):
        raise TypeError(
            f"`fallbacks` must hold FallbackEntry values, got {(wrong or entries)[0]!r}. "
            'Give a list with names, as in [FallbackEntry(name="brake", fallback=FixedFallback((0.0,)))].'
        )
    return entries


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The actions of a Discrete or MultiDiscrete space: so many per group, counted from `starts`.

    Scores of all groups stand one after the other in one vector. The candidate of a group is the action with the
    greatest score, the lowest one on ties.

    Args:
        counts: number of actions of each group.
        starts: number of the first action of each group.
        is_single: whether an action is one number (Discrete) and not a vector of them (MultiDiscrete).
    """

    counts: tuple[int, ...]
    starts: tuple[int, ...]
    is_single: bool

    def __post_init__(self) -> None:
        if not self.counts or len(self.starts) != len(self.counts) or (self.is_single and len(self.counts) != 1):
            raise ValueError(f"`counts` and `starts` must have one entry per group, got {self.counts}, {self.starts}.")
        for count in self.counts:
            checks.count("counts", count, minimum=1)

    @classmethod
    def of(cls, space: object) -> Choices | None:
        """Return the choices of a space of one group or one vector of groups, None for any other space."""
        if isinstance(space, Discrete):
            return cls(counts=(int(space.n),), starts=(int(space.start),), is_single=True)
        if isinstance(space, MultiDiscrete) and space.nvec.ndim == 1:
            starts = np.broadcast_to(getattr(space, "start", 0), space.nvec.shape)  # newer than Gymnasium 0.28
            return cls(counts=tuple(space.nvec.tolist()), starts=tuple(starts.tolist()), is_single=False)
        return None

    @property
    def scores(self) -> int:
        """Number of scores."""
        return sum(self.counts)

    def greatest(self, scores: Vector) -> tuple[NDArray[np.int64], Flags]:
        """Return the action of each row of scores, shape (n, groups), and which rows have one.

        A row has none if a score is NaN, or if the greatest score of a group is not finite. A score of -inf says that
        an action is not allowed.
        """
        actions = np.empty((len(scores), len(self.counts)), dtype=np.int64)
        usable = np.ones(len(scores), dtype=np.bool_)
        begin = 0
        for group, (count, start) in enumerate(zip(self.counts, self.starts, strict=True)):
            part = scores[:, begin : begin + count]
            actions[:, group] = part.argmax(axis=1)
            actions[:, group] += start
            usable &= np.isfinite(part.max(axis=1))  # the greatest of numbers with a NaN is NaN
            begin += count
        return actions, usable

    def contains(self, action: Sequence[int]) -> bool:
        """Return whether an action has a number of each group."""
        groups = zip(action, self.starts, self.counts, strict=True)
        return all(start <= number < start + count for number, start, count in groups)

    def numbers(self, answer: object) -> NDArray[np.int64] | None:
        """Return an answer as the numbers of an action, shape (groups,), or None if it is none."""
        array = np.asarray(answer)
        shapes = ((), (1,)) if self.is_single else ((len(self.counts),),)
        if array.shape not in shapes or array.dtype.kind not in "iuf":
            return None
        values = array.reshape(-1).tolist()
        if not all(isfinite(value) and value == int(value) for value in values):
            return None
        whole = [int(value) for value in values]
        return np.array(whole, dtype=np.int64) if self.contains(whole) else None

    def one_hot(self, action: NDArray[np.int64]) -> Vector:
        """Return scores of which those of the action are 1 and all others 0."""
        scores = np.zeros(self.scores)
        begins = np.cumsum([0, *self.counts[:-1]])
        scores[begins + action - np.array(self.starts)] = 1.0
        return scores


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CausalProgram:
    """Everything between the controller's center and the executed action, fixed before sampling.

    Paper, theorem on adaptive feasible trajectories: center map, candidate map, verifier and fallbacks are one common
    kernel of the nominal and of the shifted law. A component that reads the shift, the clock or a generator of its own
    breaks that premise, and no certificate holds.

    Args:
        low: least center, shape (d,), which for a box is the least action. Entries may be -inf.
        high: greatest center, shape (d,). Entries may be inf.
        verifier: says which actions may run.
        fallbacks: asked in this order when no proposal was accepted.
        clip_center: clip the controller's center to the action box, so that a unit of budget is a unit of action.
            Turning it off is recorded on the certificate.
        candidate_map: maps proposals, shape (n, d), to candidates. None clips them to the action box.
        dtype: "float64" or "float32", the precision in which the environment takes actions. Candidates are rounded to
            it before they are verified, so that what runs is exactly what was verified.
        choices: the actions of a discrete space. The center has one score for each, and a candidate is the action with
            the greatest score. None is for a box, where a candidate is a proposal.
    """

    low: Vector
    high: Vector
    verifier: Verifier
    fallbacks: tuple[FallbackEntry, ...] = ()
    clip_center: bool = True
    candidate_map: CandidateMap | None = None
    dtype: str = "float64"
    choices: Choices | None = None

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
        object.__setattr__(self, "fallbacks", fallback_entries(self.fallbacks))
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
        if self.choices is not None and self.low.shape != (self.choices.scores,):
            raise ValueError(
                f"`low` must have one entry for each of {self.choices.scores} scores, got {self.low.size}."
            )

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
        """Build the program for an environment's action space: a Box of shape (d,), a Discrete or a MultiDiscrete."""
        choices = Choices.of(space)
        if choices is not None:
            low, high, dtype = np.full(choices.scores, -np.inf), np.full(choices.scores, np.inf), "float64"
        elif isinstance(space, Box) and len(space.shape) == 1 and space.dtype in (np.float32, np.float64):
            low, high, dtype = space.low, space.high, np.dtype(space.dtype).name
        else:
            raise TypeError(
                f"`space` must be a Box of floats with shape (d,), a Discrete, or a MultiDiscrete with one dimension, "
                f"got {space}."
            )
        return cls(
            low=low,
            high=high,
            verifier=verifier,
            fallbacks=fallback_entries(fallbacks),
            clip_center=clip_center,
            candidate_map=candidate_map,
            dtype=dtype,
            choices=choices,
        )

    @property
    def dimension(self) -> int:
        """Coordinates of a center: those of an action of a box, or the scores of a discrete space."""
        return int(self.low.size)

    @property
    def action_size(self) -> int:
        """Numbers of an action: its coordinates, or one per group of a discrete space."""
        return self.dimension if self.choices is None else len(self.choices.counts)

    @property
    def deciding(self) -> Stage:
        """The stage whose block this program takes its candidates from."""
        return Stage.ACTION if self.choices is None else Stage.SCORE

    @property
    def unverified_fallbacks(self) -> tuple[str, ...]:
        """Names of the entries that run without the verifier's consent."""
        return tuple(entry.name for entry in self.fallbacks if entry.unverified)

    def _refuse_other_dimensions(self) -> None:
        """Refuse our own components if they are made for another dimension, because every answer would be rejected."""
        box = self.verifier
        if isinstance(box, BoxVerifier) and self.choices is not None and self.choices.is_single:
            raise ValueError(
                "`verifier` must accept action numbers, got a BoxVerifier, which is for vectors. "
                "Write one with `accepts(observation, actions)` for int64 `actions` of shape (n,)."
            )
        if isinstance(box, BoxVerifier) and box.low.size != self.action_size:
            raise ValueError(
                f"`verifier` must have the action's dimension, {self.action_size}, got a BoxVerifier of dimension "
                f"{box.low.size}. Give its `low` and `high` one number for each coordinate."
            )
        for entry in self.fallbacks:
            fixed = entry.fallback
            if isinstance(fixed, FixedFallback) and len(fixed.values) != self.action_size:
                raise ValueError(
                    f"`fallbacks` must have the action's dimension, {self.action_size}, got a FixedFallback "
                    f"{entry.name!r} of dimension {len(fixed.values)}."
                )

    def executed(self, action: Vector | NDArray[np.int64]) -> Vector:
        """Return an action as the environment takes it: a copy in its precision, or the number of a discrete action."""
        if self.choices is None:
            return action.astype(self.dtype)
        return cast(Vector, action[0] if self.choices.is_single else action.copy())

    def to_box(self, values: Vector) -> Vector:
        """Clip a vector or a block of vectors to the action box."""
        return np.minimum(np.maximum(values, self.low), self.high)

    def can_run(self, action: Vector | NDArray[np.int64]) -> bool:
        """Return whether an action is finite and in the action space. No other action ever runs."""
        if self.choices is not None:
            return self.choices.contains(action.tolist())
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
            if self.choices is not None:
                raise ValueError(
                    f"`center` must be {self.dimension} scores, one per action, got {center!r}. "
                    "With a score stage the policy must return its logits or Q-values, not an action."
                )
            raise ValueError(f"`center` must have shape {self.low.shape}, got {vector.shape}.")
        return self.to_box(vector) if self.clip_center else vector

    def noiseless_center(self, center: object) -> Vector:
        """Return the center if no noise is added to it. For a discrete space it may also be an action's number.

        An action gives scores of 1 for itself and 0 for all others.
        """
        if self.choices is None or np.shape(np.asarray(center)) == self.low.shape != (1,):
            return self.center(center)
        action = self.choices.numbers(center)
        return self.center(center) if action is None else self.choices.one_hot(action)

    def candidates(self, block: Vector) -> Vector:
        """Map a block of proposals, shape (n, d), to candidate actions of the same shape, in the action's precision.

        For a discrete space these are the scores of which `decided` takes the greatest.
        """
        if self.choices is not None:
            return block if self.candidate_map is None else self.candidate_map(block)
        candidates = self.to_box(block) if self.candidate_map is None else self.candidate_map(block)
        if self.dtype == "float64":
            return candidates
        with np.errstate(over="ignore"):  # the selector rejects an infinity later
            return candidates.astype(np.float32).astype(np.float64)
