"""How much observation error, seen by the controller only, the kept certificates cover: proved Lipschitz bounds.

    python experiments/goal2/observation.py

Writes observation.csv. Verifier, fallbacks and event read the true observation: `observation_budget` has the premise.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator

import records

from ccfs.controllers import zoo
from ccfs.controllers.lipschitz import lipschitz_upper, observation_budget
from ccfs.protocol.model import Protocol

LIDARS = tuple(range(12, 60))
HEADS = ("results", "arm", "coordinates", "budget", "lipschitz", "product of norms", "rounding", "eta")


def lines() -> Iterator[tuple[str, ...]]:
    """Yield a line for each certified arm of a shipped agent: errors anywhere, and in the lidars only."""
    for name in ("table", "guarded"):
        if (records.RESULTS / name).is_dir():
            yield from _lines(name, records.stored_protocol(name))


def _lines(name: str, protocol: Protocol) -> Iterator[tuple[str, ...]]:
    table = records.rows(records.lines(name), protocol, protocol.events[0].name)
    rows = [row for row in table if row.bound == protocol.claim.bound]
    for kind, coordinates in (("all 60", None), ("48 lidar", LIDARS)):
        bounds = {
            spec.name: lipschitz_upper(zoo.actor(str(spec.arguments["name"])), coordinates=coordinates)
            for spec in protocol.controllers
        }
        for row in rows:
            bound, budget = bounds[row.controller], row.certificate.budget
            eta = None if budget is None else observation_budget(budget, bound, horizon=protocol.horizon)
            numbers = (budget, bound.constant, bound.product, bound.rounding, eta)
            yield name, f"{row.controller}/{row.schedule}", kind, *("" if n is None else repr(n) for n in numbers)


def main() -> None:
    """Write the file."""
    with (records.HERE / "observation.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADS, *lines()])


if __name__ == "__main__":
    main()
