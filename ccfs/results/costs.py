"""The cost study of a run: counts of "total cost at most c" over a grid, certified together for every arm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ccfs.certificates import checks
from ccfs.certificates.trajectory import certify_event
from ccfs.protocol.model import Arm, Protocol
from ccfs.results.certify import refuse_missing_trials
from ccfs.results.cost_curve import CostCurve, cost_curve
from ccfs.runs.counting import refuse_changed_events
from ccfs.runs.events import total_cost
from ccfs.runs.manifest import manifest_faults
from ccfs.runs.reader import RunReader
from ccfs.runs.store import RunError, Store

__all__ = ["GRID", "CostStudy", "cost_study"]

# Fixed here and not by anybody who has seen the costs.
GRID = (0.0, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 500.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostStudy:
    """A cost curve for each arm, all valid together with failure probability at most `delta`.

    That is beside the run's certificates, which have their own. Assumes: the grid was fixed before anybody saw the
    costs, and no trajectory can cost more than `most`; `is_most_given` is False where that was taken from steps that
    all cost 0 or 1.
    """

    protocol: Protocol
    delta: float
    family: int
    most: float
    is_most_given: bool
    grid: tuple[float, ...]
    curves: dict[str, CostCurve]


def cost_study(store: Store, *, grid: Sequence[float] | None = None, most: float | None = None) -> CostStudy:
    """Count and certify the total cost of a finished run.

    The failure probability is the protocol's delta, split over all arms and grid points (and further, where the
    protocol's family says that it is one of several studies). A trajectory that abstains, crashes, ends early or
    reports no cost counts as one that costs `most`.

    Args:
        store: the run.
        grid: costs c to certify P(total cost <= c) at, at least 0 and below `most`; by default `GRID`.
        most: greatest possible total cost of a trajectory; by default the horizon if every recorded step cost 0 or 1.
    """
    protocol = store.protocol()
    faults = manifest_faults(store)
    if faults:
        raise RunError(f"{store.root}: {faults[0]} Audit this run before counting its costs.")
    refuse_missing_trials(store, protocol)
    refuse_changed_events(store, protocol)
    totals, greatest, is_binary = _read(store, protocol)
    if most is None and not is_binary:
        raise ValueError(
            "`--most` must be given: recorded steps cost other than 0 or 1, so that nothing tells what a trajectory "
            "can cost at most."
        )
    ceiling = float(protocol.horizon) if most is None else checks.positive("--most", most)
    if not greatest <= ceiling:
        raise ValueError(f"`--most` must be at least {greatest:g}, a total cost that was recorded, got {ceiling:g}.")
    points = _grid(grid, ceiling)
    studies = -(-protocol.family // protocol.claims)  # this run's share, where its family counts other runs too
    family = len(protocol.arms) * len(points) * studies
    curves = {arm.name: _curve(protocol, arm, totals[arm.name], points, family, ceiling) for arm in protocol.arms}
    return CostStudy(
        protocol=protocol,
        delta=protocol.claim.delta,
        family=family,
        most=ceiling,
        is_most_given=most is not None,
        grid=points,
        curves=curves,
    )


def _curve(
    protocol: Protocol, arm: Arm, totals: list[float], grid: tuple[float, ...], family: int, ceiling: float
) -> CostCurve:
    proofs = {
        at: certify_event(
            sum(total <= at for total in totals),
            len(totals),
            delta=protocol.claim.delta,
            family=family,
            target=protocol.claim.target,
            schedule=arm.schedule.blocks,
            bound=protocol.bound,
            event=f"total cost at most {at:g}",
        )
        for at in grid
    }
    return cost_curve(proofs, ceiling=ceiling)


def _grid(given: Sequence[float] | None, ceiling: float) -> tuple[float, ...]:
    if given is None:
        return tuple(at for at in GRID if at < ceiling)
    points = tuple(sorted({checks.nonnegative("--grid", at) for at in given}))
    if not (points and points[-1] < ceiling):
        raise ValueError(f"`--grid` must hold costs below {ceiling:g}, the greatest possible one, got {list(given)}.")
    return points


def _read(store: Store, protocol: Protocol) -> tuple[dict[str, list[float]], float, bool]:
    """Return each arm's nominal totals (infinity: not known), the greatest total seen, and if all steps cost 0 or 1.

    What the environment can cost shows in the attacked arms too.
    """
    totals: dict[str, list[float]] = {}
    reader = RunReader(store, protocol)
    greatest, is_binary, is_any = 0.0, True, False
    for arm in protocol.arms:
        totals[arm.name] = []
        for attack in (None, *protocol.attacks):
            for trace in (trace for batch in reader.batches(arm, attack) for trace in reader.traces(batch)):
                costs = trace.cost[: protocol.horizon]
                known = costs[np.isfinite(costs)]
                greatest = max(greatest, math.fsum(known))
                is_binary = is_binary and bool(np.isin(known, (0.0, 1.0)).all())
                is_any = is_any or known.size > 0
                if attack is None:
                    totals[arm.name].append(total_cost(trace, protocol.horizon))
    if not is_any:
        raise ValueError(f"{store.root}: must have recorded costs, but no step has one. See `environment.cost`.")
    return totals, greatest, is_binary
