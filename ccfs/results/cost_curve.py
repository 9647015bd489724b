"""Certified distribution of the total cost over a grid, and a certified bound on its expectation, under shift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from ccfs.certificates import checks
from ccfs.certificates.rounding import fraction_upper
from ccfs.certificates.trajectory import TrajectoryCertificate

__all__ = ["CostCurve", "cost_curve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCurve:
    """Certificates of the events "total cost at most c" over a grid of c, all valid together.

    Assumes: every certificate's family counts all of them, and the total cost of a trajectory lies in [0, `ceiling`];
    a trajectory that abstains, stops early or crashes counts with the cost `ceiling`.
    """

    grid: tuple[float, ...]
    certificates: tuple[TrajectoryCertificate, ...]
    ceiling: float

    def lower_at(self, cost: float, *, budget: float) -> float:
        """Return the certified P(total cost <= `cost`) under shifts of Euclidean budget `budget`, rounded down.

        The probability grows with the cost, so the best certificate at or below `cost` counts; without one it is 0.
        """
        level = checks.finite("cost", cost)
        if level >= self.ceiling:
            return 1.0
        pairs = zip(self.grid, self.certificates, strict=True)
        return max((proof.lower_at(budget) for at, proof in pairs if at <= level), default=0.0)

    def expected_upper(self, *, budget: float) -> float:
        """Return a certified upper bound on the expected total cost under shifts of Euclidean budget `budget`.

        E[C] is the integral of P(C > c) from 0 to the ceiling; on each cell of the grid P(C > c) is at most one minus
        the certified probability at the cell's left end. Exact sums, rounded up once.
        """
        edges = [0.0, *(at for at in self.grid if 0.0 < at < self.ceiling), self.ceiling]
        total = Fraction(0)
        for left, right in pairwise(edges):
            exceeds = 1 - Fraction(self.lower_at(left, budget=budget))
            total += (Fraction(right) - Fraction(left)) * exceeds
        return fraction_upper(total)


def cost_curve(certificates: Mapping[float, TrajectoryCertificate], *, ceiling: float) -> CostCurve:
    """Build the curve from one certificate for each grid point; refuse certificates that are not of one study.

    Args:
        certificates: certificate of "total cost at most c" by c.
        ceiling: greatest possible total cost, for a cost of at most 1 a step the horizon.
    """
    top = checks.positive("ceiling", ceiling)
    grid = tuple(sorted(checks.finite("grid", at) for at in certificates))
    if not grid:
        raise ValueError("`certificates` must hold at least one grid point, got none.")
    proofs = tuple(certificates[at] for at in grid)
    studies = {(proof.trials, proof.delta, proof.family, proof.bound, proof.schedule) for proof in proofs}
    if len(studies) != 1:
        raise ValueError("`certificates` must share trials, delta, family, bound and schedule: one simultaneous study.")
    if not proofs[0].family >= len(proofs):
        raise ValueError(f"`family` must count all {len(proofs)} grid points, got {proofs[0].family}.")
    counts = [proof.successes for proof in proofs]
    if counts != sorted(counts):
        raise ValueError(f"`successes` must not fall when the cost budget grows, got {counts}.")
    return CostCurve(grid=grid, certificates=proofs, ceiling=top)
