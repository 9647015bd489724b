"""How a trajectory ended: one enum whose members say whether the trajectory ran as long as the protocol meant."""

from __future__ import annotations

from enum import Enum

__all__ = ["Outcome"]


class Outcome(Enum):
    """The reason why no further step was taken."""

    HORIZON = "horizon"
    """All steps of the horizon were executed."""
    GOAL = "goal"
    """The protocol's stopping rule ended it at the first goal."""
    COST = "cost"
    """The protocol's stopping rule ended it at the first positive cost."""
    ABSTAINED = "abstained"
    """No proposal and no fallback was accepted: nothing was executed."""
    TERMINATED = "terminated"
    """The environment ended early."""
    TRUNCATED = "truncated"
    """The environment was cut short before the horizon."""
    NONFINITE = "nonfinite"
    """An observation, a reward or a cost was not a finite number."""
    CRASHED = "crashed"
    """The environment or the controller raised."""

    @property
    def is_complete(self) -> bool:
        """Whether the trajectory ran as long as the protocol meant, so that an event may hold at its end."""
        return self in (Outcome.HORIZON, Outcome.GOAL)
