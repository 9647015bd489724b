"""Certify named disturbances for every arm from nominal traces that are there already: bias, steering, gain, delay.

    python experiments/goal2/disturbances.py weigh RUN NAME    # traces of a run, once: results of NAME must be kept
    python experiments/goal2/disturbances.py certify           # from the kept weights and trial lines alone

`weigh` draws the noise of each nominal trial again and keeps S and Q of `ccfs.certificates.families` in
disturbances/NAME.parquet. `certify` writes disturbances.csv. Nothing here runs an environment.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import records
from numpy.typing import NDArray

from ccfs.certificates.bounds import Bound
from ccfs.certificates.families import FamilyCertificate, certify_family
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.protocol.model import Arm, Protocol
from ccfs.protocol.tables import FamilySpec
from ccfs.results.families import alone
from ccfs.runs.reader import RunReader
from ccfs.runs.store import Store
from ccfs.runs.trace import Trace
from ccfs.runs.weights import Disturbance, disturbance, is_weighed
from ccfs.runtime.wrapper import Widths

WEIGHTS = records.HERE / "disturbances"
TABLE = records.HERE / "disturbances.csv"
ARMS = {
    "families": ("C1/one",),
    "attacks": ("C2/one", "C3/one"),
    "agents": ("C1/wide", "C2/wide", "C3/wide"),
    "sensors": ("C1/sensor", "C2/sensor", "C3/sensor"),
    "timed": ("C1/falling",),
    "guarded": ("C1/one", "C1/four", "C2/one", "C2/four", "C3/one", "C3/four"),
    "ladder": ("navigator/one",),
    "sensing": ("navigator/joint",),
}
"""The kept run that each arm is weighed from: the one with most nominal trials of it."""
DELTA, TRIED = 0.001, 3
SIZES = (0.5, 1.0)
"""Sizes mu of a box, on a path of all steps, that are shown. A third one, 1.5, was looked at for one arm before the
rule was written, so that three sizes share delta. The counts of the arms have their claims there too."""
MOST = {"constant": None, "center": (1.0, 1.0), "lag": (2.0, 2.0)}
"""Greatest features. Actions are in [-1, 1], so that a center is at most 1 and changes by at most 2 in a step."""


@dataclass(frozen=True)
class Named:
    """A disturbance that an engineer names: the features, the motors that it touches, and whether it has one sign."""

    name: str
    features: str
    places: tuple[int, ...] = (0, 1)
    is_positive: bool = False

    def box(self, ceiling: NDArray[np.float64], mu: float) -> list[tuple[float, float]]:
        """Return the box whose corners have size mu if every feature is 1 at every step, cut to five decimals."""
        most = 1.0 if MOST[self.features] is None else MOST[self.features][0]
        limit = mu * most / math.sqrt(len(self.places) * max(ceiling[place, place] for place in self.places))
        cut = float(f"{math.floor(limit * 10**5) / 10**5:.5f}")
        return [(0.0 if self.is_positive else -cut, cut)] * len(self.places)


NAMED = (
    Named("bias of both motors", "constant"),
    Named("steering offset", "constant", places=(1,)),
    Named("gain error of both motors", "center"),
    Named("delay of both commands, as a share of a step", "lag", is_positive=True),
)
HEADS = ("results", "arm", "event", "disturbance", "size", "at most", "trials", "in the event", "lower", "count alone")


def claims() -> int:
    """Return how many claims share delta."""
    return TRIED * len(NAMED) * sum(map(len, ARMS.values()))


def of_arm(protocol: Protocol, arm: Arm, features: str) -> Disturbance:
    """Return the disturbance of both motors with some features. Its box does not matter here."""
    spec = FamilySpec(name=features, features=features, box=(0.0, 0.0), most=MOST[features], stage="action")
    return disturbance(protocol, arm, spec, Widths(center=2, action=2, sensor=60))


def weigh(run: Path, name: str) -> None:
    """Keep S and Q of the nominal trials of a run. Its traces must be those of the kept results."""
    store = Store(run)
    protocol = store.protocol()
    kept = json.loads((records.RESULTS / name / "record.json").read_text(encoding="utf-8"))
    if protocol.hash != kept["protocol"]:
        raise SystemExit(f"{run} must be a run of the protocol of results/{name}.")
    reader, columns = RunReader(store, protocol), []
    for arm in protocol.arms:
        if arm.name not in ARMS[name]:
            continue
        made = {features: of_arm(protocol, arm, features) for features in MOST}
        for batch in reader.batches(arm, None):
            for file in batch.files:
                if file.startswith("traces/") and store.digest(file) != kept["traces"][file]:
                    raise SystemExit(f"{run}: {file} is not the one that was kept.")
            columns += [_line(protocol, arm, trace, made) for trace in reader.traces(batch)]
    WEIGHTS.mkdir(exist_ok=True)
    (WEIGHTS / f"{name}.parquet").write_bytes(parquet_bytes(pa.Table.from_pylist(columns)))


def _line(protocol: Protocol, arm: Arm, trace: Trace, made: dict[str, Disturbance]) -> dict[str, object]:
    """Return the weights of one trial. Each coordinate of theta moves a motor of its own, so Q is diagonal."""
    if not is_weighed(trace):
        raise SystemExit(f"{arm.name}: trial {trace.trial} may hide a block.")
    line: dict[str, object] = {"arm": arm.name, "trial": trace.trial}
    for features, one in made.items():
        weight = one.weight(trace, protocol.streams(arm, trace.trial))
        for place in (0, 1):
            line[f"{features} S{place}"] = weight.score[place]
            line[f"{features} Q{place}"] = weight.energy[place][place]
    return line


def certified(name: str, arm: Arm, event: str, named: Named, mu: float) -> tuple[FamilyCertificate, float]:
    """Return the certificate of one disturbance and size, and what the count alone gives for every shift of that size.

    It is computed from the kept weights, and from the trial lines for the event.
    """
    protocol = records.stored_protocol(name)
    weights = weights_of(name, arm.name)
    nominal = _nominal(name, arm)
    if [line["trial"] for line in nominal] != [line["trial"] for line in weights]:
        raise SystemExit(f"{name}: weights and trial lines of {arm.name} must be of the same trials.")
    held = [line[f"in {event}"] for line in nominal]
    ceiling = np.array(of_arm(protocol, arm, named.features).ceiling)
    places, key = list(named.places), named.features
    box = named.box(ceiling, mu)
    made = certify_family(
        held,
        [[line[f"{key} S{place}"] for place in places] for line in weights],
        [np.diag([line[f"{key} Q{place}"] for place in places]) for line in weights],
        name=named.name,
        box=box,
        ceiling=ceiling[np.ix_(places, places)],
        cells=[max(math.ceil(16 * mu / len(places) ** 0.5), 1)] * len(places),
        delta=DELTA,
        family=claims(),
        sampling="cohort",
    )
    return made, alone(Bound.COHORT, sum(held), len(held), DELTA, claims(), made.size)


def weights_of(name: str, arm: str) -> list[dict[str, object]]:
    """Return the kept weights of the nominal trials of an arm."""
    lines = read_parquet((WEIGHTS / f"{name}.parquet").read_bytes()).to_pylist()
    return [line for line in lines if line["arm"] == arm]


def _nominal(name: str, arm: Arm) -> list[dict[str, object]]:
    found = records.lines(name).to_pylist()
    return [
        line for line in found if f"{line['controller']}/{line['schedule']}" == arm.name and line["attack"] == "nominal"
    ]


def lines(names: tuple[str, ...] = tuple(ARMS)) -> Iterator[tuple[str, ...]]:
    """Yield one line for each arm, disturbance and size, for the first event of its protocol."""
    for name in names:
        protocol = records.stored_protocol(name)
        event = protocol.events[0].name
        for arm in (arm for arm in protocol.arms if arm.name in ARMS[name]):
            for named in NAMED:
                for mu in SIZES:
                    made, count = certified(name, arm, event, named, mu)
                    lower = "" if made.lower is None else repr(made.lower)
                    counts = (len(made.held), sum(made.held))
                    numbers = (f"{mu:g}", f"{made.box[0][1]:g}", *map(str, counts), lower, repr(count))
                    yield name, arm.name, event, named.name, *numbers


def main(arguments: list[str]) -> None:
    """Do what the first lines of this file say."""
    if arguments[:1] == ["weigh"] and len(arguments) == 3:
        weigh(Path(arguments[1]), arguments[2])
    elif arguments == ["certify"]:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADS, *lines()])
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
