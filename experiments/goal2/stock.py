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

from ccfs.protocol.model import Protocol, parse_protocol
from ccfs.runs.batches import plan, replay
from ccfs.runs.store import Store


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
    texts = {"ours": protocol.canonical, "stock": parse_protocol(content, where="stock").canonical}
    spent = dict.fromkeys(texts, 0.0)
    steps = different = 0
    arms = protocol.arms
    first = next(plan(protocol, arms[0], None))
    replay(texts["ours"], first, 0)  # the start-up self-test and the imports are no part of a trial
    for number in range(trials):
        batch = next(plan(protocol, arms[number % len(arms)], None))
        trial = number // len(arms)
        chains = {}
        for kind in sorted(texts, reverse=bool(number % 2)):
            begun = time.process_time()
            _, row = replay(texts[kind], batch, trial)
            spent[kind] += time.process_time() - begun
            chains[kind] = row.chain
        steps += row.steps
        different += chains["ours"] != chains["stock"]
    return Comparison(trials=trials, steps=steps, ours=spent["ours"], stock=spent["stock"], different=different)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python experiments/goal2/stock.py RUN TRIALS")
    found = compare(Store(Path(sys.argv[1])).protocol(), int(sys.argv[2]))
    print(
        f"Stock Safety-Gymnasium on {found.trials} of these trials ({found.steps} steps): {found.different} other "
        f"traces, {found.ratio:.1f} times our processor time ({found.stock:.1f} s against {found.ours:.1f} s)."
    )
