"""What the selector decided at one step: which proposal or fallback acts, or that nobody does."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Selection", "Source"]


class Source(Enum):
    """Where the executed action came from."""

    PROPOSAL = "proposal"
    FALLBACK = "fallback"
    ABSTAIN = "abstain"


class Selection(NamedTuple):  # a tuple: it is made at every step, and a frozen dataclass takes three times as long
    """The outcome of one selection: the source, its index (proposal or fallback, -1 on abstention), and the action.

    `skipped` names the fallbacks that raised or answered with something that is no finite action; it is part of the
    public outcome, because a skipped fallback is something an auditor wants to see.
    """

    source: Source
    index: int  # type: ignore[assignment]  # the word of the record; a tuple's own is not used
    action: NDArray[np.float64] | None
    skipped: tuple[str, ...] = ()
