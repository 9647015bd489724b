"""Run the one layout of the ladder on which the navigator came too late again, with fresh noise: is the layout hard?

    python experiments/goal2/late.py

Writes late.csv, and prints how far the goal was in the late trial itself. Nothing is certified by it, and nothing
was tuned on it.
"""

from __future__ import annotations

import csv
import json
from types import SimpleNamespace

import numpy as np
import records
import stock
from numpy.typing import NDArray

from ccfs.protocol.model import parse_protocol
from ccfs.runs.build import build_arm
from ccfs.runs.record import TrajectoryRow
from ccfs.runs.trial import StopRule, run_trial

TABLE, SEEDS = records.HERE / "late.csv", range(900, 908)
HEADS = ("seed of the noise", "reset seed", "outcome", "goal step", "first cost step", "steps")


def late_trial() -> int:
    """Return the number of the trial that was in no goal-before-cost."""
    (late,) = (line for line in records.lines("ladder").to_pylist() if not line["in goal-before-cost"])
    return int(late["trial"])


def again(seed: int) -> TrajectoryRow:
    """Run the layout with the noise of a protocol that differs in its seed only."""
    content = json.loads(records.stored_protocol("ladder").canonical)
    protocol = parse_protocol({**content, "seed": seed}, where="late.py")
    return stock.replay(protocol, protocol.arms[0], late_trial(), parts=protocol)


def line(seed: int) -> tuple[str, ...]:
    """Return a line of the file."""
    row = again(seed)
    found = (seed, row.reset_seed, row.outcome, row.goal_step, row.first_cost_step, row.steps)
    return tuple("" if value is None else str(value) for value in found)


def goal_distances() -> list[float]:
    """Run the late trial itself again, and return what the lidar says at each step: metres to the goal, at most 3."""
    protocol = records.stored_protocol("ladder")
    arm = protocol.arms[0]
    wrapped, controller = build_arm(protocol, arm, None)
    seen: list[float] = []
    answer = controller.center

    def center(observation: NDArray[np.float64]) -> NDArray[np.float64]:
        seen.append(3.0 * (1.0 - float(observation[12:28].max())))
        return answer(observation)

    watched = SimpleNamespace(reset=controller.reset, center=center)
    stop = StopRule(goal=protocol.stop.goal, cost=protocol.stop.cost)
    run_trial(wrapped, watched, horizon=protocol.horizon, stop=stop, streams=protocol.streams(arm, late_trial()))
    wrapped.close()
    return seen


def main() -> None:
    """Write the file."""
    seen = goal_distances()
    first = min(seen[:250])
    hidden = seen.count(3.0)
    print(f"{first:.2f} m at step {seen.index(first)}, out of sight in {hidden} steps, {seen[-1]:.2f} m at the end")
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADS, *map(line, SEEDS)])


if __name__ == "__main__":
    main()
