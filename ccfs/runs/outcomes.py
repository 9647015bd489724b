"""The outcomes of a trial, one name for each reason why it took no further step."""

from __future__ import annotations

from enum import Enum

__all__ = ["Outcome"]


class Outcome(Enum):
    """Why a trial took no further step."""

    HORIZON = "horizon"
    """All steps of the horizon were executed, and the environment did not terminate at the last one."""
    GOAL = "goal"
    """The protocol's stopping rule ended the trial at its first goal."""
    COST = "cost"
    """The protocol's stopping rule ended the trial at its first positive cost."""
    ABSTAINED = "abstained"
    """The verifier accepted no candidate and no fallback, so the environment was not stepped."""
    TERMINATED = "terminated"
    """The environment terminated, at the last step of the horizon or before."""
    TRUNCATED = "truncated"
    """The environment truncated the trial before the horizon."""
    NONFINITE = "nonfinite"
    """An observation, a reward or a cost was not a finite number."""
    CRASHED = "crashed"
    """The environment or the controller raised an exception."""
