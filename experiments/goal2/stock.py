"""Run a few trials of a run on stock Safety-Gymnasium and on ours, in turns: same bytes? how much faster?

    python experiments/goal2/stock.py RUN TRIALS

`make table` does it at its end.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ccfs.protocol.model import Arm, Protocol, parse_protocol
from ccfs.runs.build import build_arm
from ccfs.runs.record import TrajectoryRow
from ccfs.runs.store import Store
from ccfs.runs.trial import StopRule, run_trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Processor seconds of the same trials, and how many gave another trace."""

    trials: int
    steps: int
    ours: float
    stock: float
    different: int

    @property
    def ratio(self) -> float:
        """How many times the trials of stock ours does in the same processor time."""
        return self.stock / self.ours


def compare(protocol: Protocol, trials: int) -> Comparison:
    """Run the first trials of the arms in turn, each on both, the order swapped from trial to trial."""
    content = json.loads(protocol.canonical)
    content["environment"]["arguments"]["fast"] = False
    kinds = {"ours": protocol, "stock": parse_protocol(content, where="stock")}
    spent = dict.fromkeys(kinds, 0.0)
    steps = different = 0
    arms = protocol.arms
    replay(protocol, arms[0], 0, parts=protocol)  # the start-up self-test and the imports are no part of a trial
    for number in range(trials):
        arm, trial = arms[number % len(arms)], number // len(arms)
        chains = {}
        for kind in sorted(kinds, reverse=bool(number % 2)):
            begun = time.process_time()
            row = replay(protocol, arm, trial, parts=kinds[kind])
            spent[kind] += time.process_time() - begun
            chains[kind] = row.chain
        steps += row.steps
        different += chains["ours"] != chains["stock"]
    return Comparison(trials=trials, steps=steps, ours=spent["ours"], stock=spent["stock"], different=different)


def replay(protocol: Protocol, arm: Arm, trial: int, *, parts: Protocol) -> TrajectoryRow:
    """Run a trial of one protocol, with the noise that its hash gives, in the environment of another."""
    wrapped, controller = build_arm(parts, arm, None)
    stop = StopRule(goal=protocol.stop.goal, cost=protocol.stop.cost)
    try:
        streams = protocol.streams(arm, trial)
        return run_trial(wrapped, controller, horizon=protocol.horizon, stop=stop, streams=streams)[1]
    finally:
        wrapped.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python experiments/goal2/stock.py RUN TRIALS")
    found = compare(Store(Path(sys.argv[1])).protocol(), int(sys.argv[2]))
    print(
        f"Stock Safety-Gymnasium on {found.trials} of these trials ({found.steps} steps): {found.different} other "
        f"traces, {found.ratio:.1f} times our processor time ({found.stock:.1f} s against {found.ours:.1f} s)."
    )
