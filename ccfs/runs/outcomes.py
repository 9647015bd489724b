"""How a trajectory ended: one enum, from the steps alone."""

from __future__ import annotations

from enum import Enum

__all__ = ["Outcome"]


class Outcome(Enum):
    """The reason why no further step was taken."""

    HORIZON = "horizon"
    """All steps of the horizon were executed, and the environment did not terminate at the last one."""
    GOAL = "goal"
    """The protocol's stopping rule ended it at the first goal."""
    COST = "cost"
    """The protocol's stopping rule ended it at the first positive cost."""
    ABSTAINED = "abstained"
    """No proposal and no fallback was accepted: nothing was executed."""
    TERMINATED = "terminated"
    """The environment terminated, at the last step of the horizon or before."""
    TRUNCATED = "truncated"
    """The environment was cut short before the horizon."""
    NONFINITE = "nonfinite"
    """An observation, a reward or a cost was not a finite number."""
    CRASHED = "crashed"
    """The environment or the controller raised."""
