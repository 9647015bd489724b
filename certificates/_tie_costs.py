"""Arb enclosures of the least divergence between a label law and one in which the runner-up ties the top label."""

from __future__ import annotations

from flint import arb

from ccfs.certificates import checks
from ccfs.certificates.validated import exact

__all__ = ["forward_cost", "ordered_pair", "renyi_cost", "root"]


def ordered_pair(p: float, q: float) -> tuple[arb, arb] | None:
    """Return (p, min(q, 1 - p)) as balls, or None unless the first certainly exceeds the second."""
    top = exact(checks.probability("p", p))
    runner = exact(checks.probability("q", q))
    if not runner <= 1 - top:
        runner = 1 - top
    return (top, runner) if top > runner else None


def renyi_cost(order: float, p: arb, q: arb) -> arb | None:
    """Enclose C_order(p, q) for an ordered pair; None says infinite, which happens at p = 1 only."""
    if p == 1:
        return None
    if q == 0:
        mean = arb(0)
    elif order == 1.0:
        mean = (p * q).sqrt()
    else:
        power = exact(order) - 1
        mean = q * (2 / (1 + (q / p) ** power)) ** (1 / power)
    return -(1 - p - q + 2 * mean).log()


def forward_cost(p: arb, q: arb) -> arb:
    """Enclose J(p, q) for an ordered pair."""
    total = p + q
    top = p * (2 * p / total).log()
    return top + q * (2 * q / total).log() if q > 0 else top


def root(ball: arb) -> arb:
    """Enclose the square root of a number known to be nonnegative, whose enclosure may reach below zero."""
    return ball.nonnegative_part().sqrt()
