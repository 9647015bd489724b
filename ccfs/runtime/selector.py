"""Select the action of a step. Whatever a component raises or returns, no action runs that was not accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ccfs.runtime.history import Source
from ccfs.runtime.interfaces import Flags, Observer, Vector
from ccfs.runtime.program import CausalProgram, Choices

__all__ = ["Selection", "Selector"]


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """What the selector decided at one step: the source, its index (-1 on abstention) and the action.

    The action has one entry per coordinate, or one number per group of a discrete space. `skipped` names the fallbacks
    that raised or gave no possible action. It is public, because an auditor wants to see it.
    """

    source: Source
    index: int
    action: Vector | NDArray[np.int64] | None
    skipped: tuple[str, ...] = ()


class Selector:
    """Runs one causal program over the steps of a trial.

    Paper, Algorithm 2, inner loop: the first accepted proposal in index order, else the first accepted fallback in
    declared order, else abstention. A component that raises (or exits) has rejected, so there is always an answer.
    """

    def __init__(self, program: CausalProgram) -> None:
        self._program, self._choices = program, program.choices
        parts = [program.verifier, *(entry.fallback for entry in program.fallbacks)]
        self._observers: list[Observer] = []
        for part in parts:
            if isinstance(part, Observer) and not any(part is known for known in self._observers):
                self._observers.append(part)
        self._broken: set[int] = set()

    def reset(self) -> None:
        """Tell every component with memory that a new trial begins. An exception of a component is passed on."""
        self._broken.clear()
        for observer in self._observers:
            observer.reset()

    def observe(self, observation: Vector) -> None:
        """Show the observation of a new step once to every component with memory."""
        for observer in self._observers:
            if id(observer) not in self._broken:
                try:
                    observer.observe(observation.copy())
                except (Exception, SystemExit):
                    self._broken.add(id(observer))

    def select(self, observation: Vector, center: Vector, block: Vector) -> Selection:
        """Return the decision for one block of proposals, shape (n, d), around the (unshifted) `center`."""
        candidates = self._candidates(block)
        if candidates is not None:
            if self._choices is not None:
                return self._select_discrete(observation, center, *self._choices.greatest(candidates))
            index = self._first_accepted(observation, candidates)
            if index is not None:
                return Selection(source=Source.PROPOSAL, index=index, action=candidates[index].copy())
        return self._fall_back(observation, center)

    def _select_discrete(
        self, observation: Vector, center: Vector, actions: NDArray[np.int64], usable: Flags
    ) -> Selection:
        index = self._first_accepted(observation, actions, usable)
        if index is None:
            return self._fall_back(observation, center)
        return Selection(source=Source.PROPOSAL, index=index, action=actions[index].copy())

    def _fall_back(self, observation: Vector, center: Vector) -> Selection:
        skipped: list[str] = []
        for index, entry in enumerate(self._program.fallbacks):
            action = self._fallback_action(index, observation, center)
            if action is None:
                skipped.append(entry.name)
            elif entry.unverified or self._first_accepted(observation, action) == 0:
                return Selection(source=Source.FALLBACK, index=index, action=action[0].copy(), skipped=tuple(skipped))
        return Selection(source=Source.ABSTAIN, index=-1, action=None, skipped=tuple(skipped))

    def _fallback_action(self, index: int, observation: Vector, center: Vector) -> Vector | NDArray[np.int64] | None:
        """Return the fallback's mapped action as a block of one, or None if it gives none in the action space."""
        fallback = self._program.fallbacks[index].fallback
        if id(fallback) in self._broken:
            return None
        try:
            answer = np.array(fallback.action(observation.copy(), center.copy()))
            if self._choices is not None:
                return _numbers(self._choices, answer, center)
            if answer.shape != center.shape or answer.dtype.kind not in "fiu":
                return None
            action = self._candidates(answer.astype(np.float64)[None])
        except (Exception, SystemExit):
            return None
        return action if action is not None and self._program.can_run(action[0]) else None

    def _candidates(self, block: Vector) -> Vector | None:
        """Return the candidates, or None if the candidate map fails."""
        if self._program.candidate_map is None:
            return self._program.candidates(block)  # our own clipping returns a new array that nobody else has
        try:
            candidates = self._program.candidates(block.copy())
        except (Exception, SystemExit):
            return None
        if type(candidates) is not np.ndarray or candidates.shape != block.shape or candidates.dtype != np.float64:
            return None
        return candidates.copy()  # the map could keep its array and change it after the verifier accepted

    def _first_accepted(
        self, observation: Vector, candidates: Vector | NDArray[np.int64], usable: Flags | None = None
    ) -> int | None:
        """Return the first candidate that is in the action space and accepted. None if there is none.

        Of discrete candidates `usable` says which are actions at all, since their rows of scores have a greatest one. A
        verifier that is broken, or whose answer is malformed, has accepted nothing.
        """
        program = self._program
        if id(program.verifier) in self._broken:
            return None
        try:
            # The verifier gets copies, so it can change neither the action that runs nor what the others see.
            asked = candidates[:, 0] if self._choices is not None and self._choices.is_single else candidates
            flags = program.verifier.accepts(observation.copy(), cast(Vector, asked.copy()))
            # Exactly an ndarray: a subclass could answer differently each time it is asked.
            if type(flags) is not np.ndarray or flags.dtype.char != "?" or flags.shape != candidates.shape[:1]:
                return None
            verdicts = flags.tolist()
        except (Exception, SystemExit):
            return None
        for index, is_accepted in enumerate(verdicts):
            if is_accepted and (usable is None or usable[index]) and program.can_run(candidates[index]):
                return index
        return None


def _numbers(choices: Choices, answer: NDArray[np.generic], center: Vector) -> NDArray[np.int64] | None:
    """Return the discrete action of a fallback as a block of one: its number, or the best one by the scores it gave."""
    numbers = choices.numbers(answer)
    if numbers is not None:
        return numbers[None]
    if answer.shape != center.shape or answer.dtype.kind != "f":
        return None
    actions, usable = choices.greatest(answer.astype(np.float64)[None])
    return actions if usable[0] else None
