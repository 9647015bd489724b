"""Attack one arm with every rule at several budgets on development seeds, and write what was observed.

    python experiments/goal2/attacks/evaluate.py --arm ppolag-pointgoal2-1120275774 --budgets 0.02 0.1 0.3 --seeds 64 \
        --adversary adversary-ppolag-pointgoal2

writes `<output>_rows.csv` (one line a trajectory) and `<output>_summary.csv` (one line a rule and budget). All rules
meet the same resets and the same proposal noise, so that differences between them are not luck of the draw. Arms: a
shipped agent with N = 1 and sigma = 0.2 / sqrt(1.05), or "navigator" with sigma 1; every finite action is accepted,
centers are clipped. Development seeds only: nothing here is a certificate. `floor` is what the theorem leaves of the
*observed* nominal rate at the budget; an attack that realises 1 of the drop would attain it.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path
from statistics import NormalDist

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from arms import DEVELOPMENT, HORIZON, SHIPPED, controller_of, wrapped

from ccfs.controllers import zoo
from ccfs.learned_shift import CostCritic, DangerBurstShift, SensitivityShift, critic_greedy, learned, network
from ccfs.protocols import ShiftRule
from ccfs.shifts import OpposedShift, RandomShift
from ccfs.streams import Streams
from ccfs.trial import StopRule, run_trial

HERE = Path(__file__).parent
CRITIC = "critic-pointgoal2"
FIRST_SEED = DEVELOPMENT[0] + 500_000
GAIN = 2.0
THRESHOLD = 3.0
ROOT = 20_260_101
COLUMNS = ("rule", "budget", "seed", "outcome", "steps", "energy")


def digest(name: str) -> str:
    """Return the digest of a shipped network, read from its card."""
    return zoo.load(SHIPPED / name).card.digest


def rules(sigma: float, adversary: str | None) -> dict[str, ShiftRule]:
    """Return every rule by name."""
    critic = CostCritic(actor=network(CRITIC, digest(CRITIC)))
    found: dict[str, ShiftRule] = {
        "opposed": OpposedShift(),
        "random": RandomShift(),
        "danger burst, 1 step": DangerBurstShift(threshold=THRESHOLD, sigma=sigma),
        "danger burst, 30 steps": DangerBurstShift(threshold=THRESHOLD, sigma=sigma, steps=30),
        "critic, greedy": critic_greedy(name=CRITIC, digest=digest(CRITIC)),
        "critic, by slope": SensitivityShift(critic=critic, gain=GAIN),
    }
    if adversary is not None:
        found["learned adversary"] = learned(name=adversary, digest=digest(adversary))
    return found


def cell(arm: str, rule: ShiftRule | None, budget: float, seeds: range) -> list[tuple[int, str, int, float]]:
    """Return seed, outcome, steps and spent energy of every trajectory of one rule at one budget."""
    controller, schedule = controller_of(arm)
    env = wrapped(schedule, rule, budget, seed=ROOT)
    rows = []
    for trial, seed in enumerate(seeds):
        _, row = run_trial(
            env,
            controller,
            horizon=HORIZON,
            stop=StopRule(goal=True, cost=True),
            streams=Streams(root=ROOT, arm=arm, trial=trial),
            reset_seed=seed,
        )
        spent = 0.0 if env.last_shift is None else env.last_shift.spent
        rows.append((seed, row.outcome, row.steps, spent))
    env.close()
    return rows


def safe_rate(rows: list[tuple[int, str, int, float]]) -> float:
    """Return the share of trajectories without cost until the goal or the horizon."""
    return sum(row[1] in ("goal", "horizon") for row in rows) / len(rows)


def summary(rule: str, budget: float, rows: list[tuple[int, str, int, float]], nominal: float, sigma: float) -> dict:
    """Return one line: counts, safe rate, the theorem's floor, the share of the drop that was realised."""
    outcomes = [row[1] for row in rows]
    counts = {kind: outcomes.count(kind) for kind in ("goal", "horizon", "cost")}
    safe = safe_rate(rows)
    used = float(np.mean([row[3] for row in rows])) * sigma**2
    normal, inner = NormalDist(), 0.0 < nominal < 1.0
    floor = normal.cdf(normal.inv_cdf(nominal) - budget / sigma) if inner else nominal
    share = (nominal - safe) / (nominal - floor) if budget and inner else 0.0
    return {
        "rule": rule,
        "budget": budget,
        "trials": len(rows),
        **counts,
        "safe_rate": round(safe, 4),
        "floor": round(floor, 4),
        "realised_share": round(share, 3),
        "mean_steps": round(float(np.mean([row[2] for row in rows])), 1),
        "mean_energy_share": round(used / budget**2, 3) if budget else 0.0,
    }


def main() -> None:
    """Read the arguments, run, write beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arm", required=True)
    parser.add_argument("--budgets", type=float, nargs="+", required=True)
    parser.add_argument("--seeds", type=int, required=True)
    parser.add_argument("--first", type=int, default=FIRST_SEED)
    parser.add_argument("--adversary", default=None, help="name of the learned adversary; leave out to go without")
    parser.add_argument("--only", nargs="*", default=None, help="names of rules; all by default")
    parser.add_argument("--output", default="evaluation", help="how the names of the results begin")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if not (len(seeds) and seeds[0] in DEVELOPMENT and seeds[-1] in DEVELOPMENT):
        parser.error("seeds must lie in the development range 3000000000 to 3000999999: others are kept untouched")
    sigma = controller_of(arguments.arm)[1].sigma
    chosen = {
        name: rule
        for name, rule in rules(sigma, arguments.adversary).items()
        if arguments.only is None or name in arguments.only
    }
    plan = [(name, rule, budget) for budget in arguments.budgets for name, rule in chosen.items()]
    lines: list[tuple[object, ...]] = []
    summaries: list[dict] = []
    nominal = 0.0
    for name, rule, budget in [("none", None, 0.0), *plan]:
        start = time.monotonic()
        rows = cell(arguments.arm, rule, budget, seeds)
        if rule is None:
            nominal = safe_rate(rows)
        lines += [(name, budget, *row) for row in rows]
        summaries.append(summary(name, budget, rows, nominal, sigma))
        print(summaries[-1], f"{time.monotonic() - start:.0f} s", flush=True)
        # Written after each rule: an interrupted evaluation keeps what it has.
        with (HERE / f"{arguments.output}_rows.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *lines])
        with (HERE / f"{arguments.output}_summary.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(summaries[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(summaries)


if __name__ == "__main__":
    main()
