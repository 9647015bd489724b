"""What the two ways of checking the event criterion share: the margins they return and normal quantiles of logs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri_exp

__all__ = ["Margins", "Tail", "cumulative", "probit", "quantile"]

Array = NDArray[np.float64]


class Tail(Enum):
    """What is known about the slack in unbounded tails; the value is the least slack that it leaves possible."""

    BOUNDED = math.inf
    HOLDS = 0.0
    OPEN = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """Lower bound on the slack outside the tails, least slack seen at any event, and the state of the tails."""

    lower: float
    upper: float
    tail: Tail


def cumulative(cells: Array) -> tuple[Array, Array]:
    """Return log mass below and above each of the points that bound the cells, given their log masses."""
    nothing = np.array([-np.inf])
    below = np.concatenate([nothing, np.logaddexp.accumulate(cells)])
    above = np.concatenate([np.logaddexp.accumulate(cells[::-1])[::-1], nothing])
    return np.minimum(below, 0.0), np.minimum(above, 0.0)


def probit(below: Array, above: Array) -> Array:
    """Return the normal quantile of a probability given as its log and the log of its complement."""
    return np.where(below < above, quantile(np.minimum(below, above)), -quantile(np.minimum(below, above)))


def quantile(log_probability: Array) -> Array:
    """Return the normal quantile of exp(log_probability), with full accuracy only below one half."""
    with np.errstate(all="ignore"):
        return np.asarray(ndtri_exp(np.minimum(log_probability, 0.0)))
