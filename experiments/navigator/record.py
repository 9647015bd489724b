"""Tuning record of the navigator on development seeds: outcomes under growing proposal noise, no verifier, N = 1.

    python experiments/navigator/record.py --sigmas 1.0 1.2 --seeds 256 --first 3000011000 --processes 2

writes `record.csv` (one row a trajectory) and `summary.json` (counts, steps, the budget B at q = 0.9 that the same
counts would give on a certified cohort, checksum of the rows, the command). Development seeds only: a certificate needs
seeds that nobody looked at.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import multiprocessing
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import NormalDist

import numpy as np

from ccfs.certificates.binomial import cohort_lower
from ccfs.certificates.schedule import ProposalSchedule
from ccfs.controllers.navigator import Navigator, NavigatorSettings
from ccfs.envs import make

HERE = Path(__file__).parent
TASK, HORIZON, DELTA, TARGET = "SafetyPointGoal2-v0", 500, 0.001, 0.9
DEVELOPMENT = range(3_000_000_000, 3_001_000_000)


def episode(env, navigator: Navigator, schedule: ProposalSchedule, seed: int) -> tuple[str, int, float]:
    """Return outcome, steps, and seconds of processor time spent in the controller."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    observation, _ = env.reset(seed=seed)
    navigator.reset()
    spent = 0.0
    for step in range(1, HORIZON + 1):
        start = time.process_time()
        center = navigator.center(observation)
        spent += time.process_time() - start
        action = np.clip(schedule.sample_block(center, rng)[0], -1.0, 1.0)
        observation, _, cost, _, _, info = env.step(action)
        if cost > 0:
            return "cost", step, spent
        if info.get("goal_met"):
            return "goal", step, spent
    return "timeout", HORIZON, spent


def arm(seeds: range, keep: Path, sigma: float) -> list[tuple[str, int, float]]:
    """Return one row a seed; rows are kept in a folder, so that an interrupted record goes on where it was."""
    env, navigator, schedule = make(TASK), Navigator(sigma), ProposalSchedule(count=1, sigma=sigma)
    kept = keep / f"{navigator.digest}.jsonl"
    keep.mkdir(parents=True, exist_ok=True)
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    rows = {seed: (outcome, steps, spent) for seed, outcome, steps, spent in map(json.loads, lines)}
    for seed in seeds:
        if seed not in rows:
            rows[seed] = episode(env, navigator, schedule, seed)
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps([seed, *rows[seed]]) + "\n")
    return [rows[seed] for seed in seeds]


def budget(successes: int, trials: int, sigma: float) -> float | None:
    """B at q = 0.9 for N = 1 if a certified cohort gave these counts; None where nothing is certified."""
    lower = cohort_lower(successes, trials, delta=DELTA)
    normal = NormalDist()
    if not lower > TARGET:
        return None
    return math.floor(1e4 * sigma * (normal.inv_cdf(lower) - normal.inv_cdf(TARGET))) / 1e4


def summarise(sigma: float, rows: list[tuple[str, int, float]]) -> dict[str, object]:
    """Return the counts, steps and budgets of one arm."""
    counts = Counter(outcome for outcome, _, _ in rows)
    reached = [steps for outcome, steps, _ in rows if outcome == "goal"]
    return {
        "sigma": sigma,
        "trials": len(rows),
        **{name: counts[name] for name in ("goal", "cost", "timeout")},
        "steps_median": float(np.median(reached)) if reached else None,
        "steps_95": float(np.percentile(reached, 95)) if reached else None,
        "steps_most": max(reached, default=None),
        "controller_ms_a_step": round(1e3 * sum(r[2] for r in rows) / sum(r[1] for r in rows), 2),
        "budget_if_certified": budget(counts["goal"], len(rows), sigma),
        "budget_if_256_of_256": budget(256, 256, sigma),
    }


def main() -> None:
    """Read the arguments, run, write beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sigmas", type=float, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--keep",
        type=Path,
        default=HERE.parents[1] / ".cache" / "navigator",
        help="finished rows, by the controller's digest",
    )
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if not (len(seeds) and seeds[0] in DEVELOPMENT and seeds[-1] in DEVELOPMENT):
        parser.error("seeds must lie in the development range 3000000000 to 3000999999: others are kept untouched")
    lines, summaries = [["sigma", "seed", "outcome", "steps"]], []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=arguments.processes, mp_context=context) as pool:
        arms = pool.map(partial(arm, seeds, arguments.keep), arguments.sigmas)
        for sigma, rows in zip(arguments.sigmas, arms, strict=True):
            lines += [[repr(sigma), str(seed), row[0], str(row[1])] for seed, row in zip(seeds, rows, strict=True)]
            summaries.append({**summarise(sigma, rows), "digest": Navigator(sigma).digest})
            print(json.dumps(summaries[-1]), flush=True)
    with (HERE / "record.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)
    summary = {
        "command": f"python experiments/navigator/record.py --sigmas {' '.join(map(repr, arguments.sigmas))}"
        f" --seeds {arguments.seeds} --first {arguments.first}",
        "task": TASK,
        "event": f"goal_before_cost({HORIZON})",
        "target": TARGET,
        "delta": DELTA,
        "settings": asdict(NavigatorSettings()),
        "record_sha256": hashlib.sha256((HERE / "record.csv").read_bytes()).hexdigest(),
        "arms": summaries,
    }
    (HERE / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
