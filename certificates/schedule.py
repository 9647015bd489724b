"""Proposal blocks: how many proposals, how wide, how correlated, what a shift costs, and the plan over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.rounding import fraction_upper

__all__ = ["ProposalSchedule", "Schedule", "as_schedule", "kappa", "rho_for_multiplier", "schedule_at"]


def kappa(count: int, rho: float) -> float:
    """Return the energy multiplier of a block of `count` proposals with pairwise correlation `rho`.

    kappa = N / (1 + (N - 1) rho) is the squared length of the whitened all-ones direction (Theorem 14,
    thm:adaptive-trajectory). A shift of the block's center costs kappa times its squared norm over sigma squared.

    Args:
        count: proposals in a block, N in the paper, at least 1.
        rho: correlation between two proposals of one block, in [0, 1).

    Returns:
        kappa, rounded up. This overstates the cost, so a budget that is derived from it is never too large.

    Raises:
        TypeError: `count` is not an integer, or `rho` is not a real number.
        ValueError: an argument is out of range, or a single proposal has a correlation.

    >>> kappa(4, 0.0), kappa(1, 0.0)
    (4.0, 1.0)
    """
    return fraction_upper(_kappa_exact(*_block(count, rho)))


def rho_for_multiplier(count: int, multiplier: float) -> float:
    """Return the correlation at which a shift of `count` proposals has the energy multiplier `multiplier`.

    This is the inverse of `kappa`: rho = (N / lambda - 1) / (N - 1).

    Args:
        count: proposals in a block, N in the paper.
        multiplier: the kappa to reach, in (1, N] for N > 1 and exactly 1 for N = 1.

    Returns:
        rho, rounded up, so that the block never costs more than `multiplier`.

    Raises:
        TypeError: `count` is not an integer, or `multiplier` is not a real number.
        ValueError: no correlation gives this multiplier.

    >>> kappa(4, rho_for_multiplier(4, 1.05))
    1.05
    """
    proposals = checks.count("count", count, minimum=1)
    factor = checks.positive("multiplier", multiplier)
    if proposals == 1:
        if factor != 1.0:
            raise ValueError(f"`multiplier` must be 1 for a single proposal, got {factor}.")
        return 0.0
    if not 1.0 < factor <= proposals:
        raise ValueError(f"`multiplier` must be in (1, {proposals}] for {proposals} proposals, got {factor}.")
    return fraction_upper((proposals / Fraction(factor) - 1) / (proposals - 1))


@dataclass(frozen=True, slots=True, init=False)
class ProposalSchedule:
    """One proposal block: `count` Gaussian proposals of scale `sigma` around a center, pairwise correlation `rho`.

    Assumes: fixed before sampling. Blocks may differ between steps, but must not depend on what was sampled.

    Args:
        count: proposals in a block, N in the paper.
        sigma: standard deviation of each proposal, in the units of the center.
        rho: correlation between two proposals of one block, in [0, 1). It is 0 if neither it nor `multiplier` is given.
        multiplier: the `kappa` that the block shall have, instead of `rho`. The block's own kappa is never above it.

    >>> ProposalSchedule(count=4, sigma=0.2, multiplier=1.05).kappa
    1.05
    """

    count: int
    sigma: float
    rho: float

    def __init__(self, *, count: int, sigma: float, rho: float | None = None, multiplier: float | None = None) -> None:
        if rho is not None and multiplier is not None:
            raise ValueError(f"`rho` must not be given beside `multiplier`, got {rho} and {multiplier}.")
        given = rho if multiplier is None else rho_for_multiplier(count, multiplier)
        proposals, correlation = _block(count, 0.0 if given is None else given)
        scale = checks.positive("sigma", sigma)
        if not 1e-150 <= scale <= 1e150:
            raise ValueError(f"`sigma` must be between 1e-150 and 1e150, so that a charge is a double, got {scale}.")
        for name, value in (("count", proposals), ("sigma", scale), ("rho", correlation)):
            object.__setattr__(self, name, value)

    @property
    def kappa(self) -> float:
        """Energy multiplier of the block, rounded up."""
        return kappa(self.count, self.rho)

    @property
    def charge(self) -> float:
        """Energy of a shift of length one, kappa / sigma squared, rounded up."""
        return fraction_upper(self.charge_exact)

    @property
    def charge_exact(self) -> Fraction:
        """Energy of a shift of length one as an exact fraction of the stored doubles."""
        return _kappa_exact(self.count, self.rho) / Fraction(self.sigma) ** 2

    def sample_block(self, center: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw the complete block, shape (count, d): first the shared normals, then those of each proposal.

        The number of normals never depends on what is accepted later. Drawing until acceptance would change the law for
        which the theorem charges. A center that is not finite gives proposals that are not finite.
        """
        if center.ndim != 1:
            raise ValueError(f"`center` must have shape (d,), got {center.shape}.")
        normals = rng.standard_normal((self.count + 1, center.shape[0]))
        normals *= _scales(self.count, self.sigma, self.rho)
        block = normals[1:]  # changed in place: new arrays would take most of the time of a small block
        block += normals[0] + center
        return block


# One block for every step, or one per step.
Schedule = ProposalSchedule | tuple[ProposalSchedule, ...]


def as_schedule(schedule: ProposalSchedule | Sequence[ProposalSchedule]) -> Schedule:
    """Return one block as it is, and several as a non-empty tuple.

    Raises:
        TypeError: an entry is not a ProposalSchedule, or there is none.
    """
    if isinstance(schedule, ProposalSchedule):
        return schedule
    fixed = tuple(schedule)
    if not fixed or not all(isinstance(entry, ProposalSchedule) for entry in fixed):
        raise TypeError(f"`schedule` must be a ProposalSchedule or a non-empty sequence of them, got {schedule!r}.")
    return fixed


def schedule_at(schedule: Schedule, t: int) -> ProposalSchedule:
    """Return the block of step `t`.

    Raises:
        ValueError: the schedule has one block per step and ends before `t`.
    """
    if isinstance(schedule, ProposalSchedule):
        return schedule
    if not 0 <= t < len(schedule):
        raise ValueError(
            f"`t` must be in [0, {len(schedule)}), got {t}. Give a schedule for every step of the horizon."
        )
    return schedule[t]


def _block(count: object, rho: object) -> tuple[int, float]:
    proposals = checks.count("count", count, minimum=1)
    correlation = checks.finite("rho", rho)
    if not 0.0 <= correlation < 1.0:
        raise ValueError(f"`rho` must be in [0, 1), got {correlation}. `multiplier` gives the correlation for a cost.")
    if proposals == 1 and correlation != 0.0:
        raise ValueError(f"`rho` must be 0 for a single proposal, got {correlation}.")
    return proposals, correlation


@lru_cache(maxsize=256)
def _scales(count: int, sigma: float, rho: float) -> NDArray[np.float64]:
    """Return the standard deviations of the shared normals and of each proposal's own, shape (count + 1, 1)."""
    scales = np.asarray(sigma * np.sqrt(np.array([[rho], *[[1.0 - rho]] * count])))
    scales.setflags(write=False)  # the cache gives one array to every caller
    return scales


def _kappa_exact(count: int, rho: float) -> Fraction:
    return count / (1 + (count - 1) * Fraction(rho))
