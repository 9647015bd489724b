"""Run the one layout of the ladder on which the navigator came too late again: is the layout hard, and is it mended?

    python experiments/goal2/late.py

Writes late.csv: the trial itself and eight with fresh noise, each by the navigator of the ladder, which went around a
narrow gap however long that took, and by that of today. Nothing is certified by it, and nothing was tuned on it.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import records
from numpy.typing import NDArray

from ccfs.controllers.navigator import Navigator, NavigatorSettings
from ccfs.protocol.model import Protocol, parse_protocol
from ccfs.runs.build import build_arm
from ccfs.runs.record import TrajectoryRow
from ccfs.runs.trial import StopRule, run_trial

TABLE, SEEDS = records.HERE / "late.csv", (None, *range(900, 908))
HEADS = ("seed of the noise", "navigator", "outcome", "goal step", "first cost step", "steps")
PATIENT = replace(NavigatorSettings(), deadline=10**6)
"""Settings of the navigator as it was in the ladder: never late, so that no narrower gap is tried."""


def late_trial() -> int:
    """Return the number of the trial that was in no goal-before-cost."""
    (late,) = (line for line in records.lines("ladder").to_pylist() if not line["in goal-before-cost"])
    return int(late["trial"])


def with_noise(seed: int | None) -> Protocol:
    """Return the protocol of the ladder, or one that differs in its seed only."""
    stored = records.stored_protocol("ladder")
    if seed is None:
        return stored
    return parse_protocol({**json.loads(stored.canonical), "seed": seed}, where="late.py")


def again(seed: int | None, settings: NavigatorSettings) -> tuple[TrajectoryRow, list[float]]:
    """Run the layout, and return what the lidar says at each step too: metres to the goal, at most 3."""
    protocol = with_noise(seed)
    arm = protocol.arms[0]
    wrapped, shipped = build_arm(protocol, arm, None)
    navigator = Navigator(shipped.robot.sigma, settings)
    seen: list[float] = []

    def center(observation: NDArray[np.float64]) -> NDArray[np.float64]:
        seen.append(3.0 * (1.0 - float(observation[12:28].max())))
        return navigator.center(observation)

    watched = SimpleNamespace(reset=navigator.reset, center=center)
    stop = StopRule(goal=protocol.stop.goal, cost=protocol.stop.cost)
    streams = protocol.streams(arm, late_trial())
    row = run_trial(wrapped, watched, horizon=protocol.horizon, stop=stop, streams=streams)[1]
    wrapped.close()
    return row, seen


def line(seed: int | None, name: str) -> tuple[str, ...]:
    """Return a line of the file."""
    row, _ = again(seed, PATIENT if name == "ladder" else NavigatorSettings())
    found = ("ladder" if seed is None else seed, name, row.outcome, row.goal_step, row.first_cost_step, row.steps)
    return tuple("" if value is None else str(value) for value in found)


def main() -> None:
    """Write the file."""
    _, seen = again(None, PATIENT)
    first = min(seen[:250])
    hidden = seen.count(3.0)
    print(f"{first:.2f} m at step {seen.index(first)}, out of sight in {hidden} steps, {seen[-1]:.2f} m at the end")
    rows = [line(seed, name) for seed in SEEDS for name in ("ladder", "today")]
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADS, *rows])


if __name__ == "__main__":
    main()
