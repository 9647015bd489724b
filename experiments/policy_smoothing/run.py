"""Certified return under sensor shifts, beside what the formula of Policy Smoothing gives on the same episodes.

ccfs run experiments/policy_smoothing/cartpole.toml -o runs/policy-smoothing-cartpole
ccfs run experiments/policy_smoothing/pendulum.toml -o runs/policy-smoothing-pendulum
python experiments/policy_smoothing/run.py            # reads both runs, a few seconds
python experiments/policy_smoothing/run.py --redraw   # figure and rows from the stored totals
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _shared import commands, figures, records

from ccfs.certificates.binomial import clopper_pearson_lower
from ccfs.certificates.means import certify_totals
from ccfs.runs.outcomes import Outcome
from ccfs.runs.reader import RunReader
from ccfs.runs.store import Store

HERE = Path(__file__).resolve().parent
SCRIPT = "experiments/policy_smoothing/run.py"
TOTALS, ROWS, FIGURE = "totals.parquet", "rows.csv", "policy_smoothing.png"
SIGMA, DELTA, HORIZON = 0.2, 0.01, 200
# CartPole pays 1 per step. A step of Pendulum costs at most pi^2 + 0.1 * 8^2 + 0.001 * 2^2, here rounded up.
RANGES = {"cartpole": (0.0, 200.0), "pendulum": (-16.2737 * HORIZON, 0.0)}
BUDGETS = tuple(i / 50 for i in range(31))
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the command accepts."""

    runs: str = field(default="runs", metadata={"help": "folder of the two runs"})
    out: str = field(default=str(HERE), metadata={"help": "folder to write to"})
    redraw: bool = field(default=False, metadata={"help": "start from the stored totals"})


def totals_of(run: Path, worst: float) -> Array:
    """Return the total reward of every trial. A trial that did not end properly counts with the worst total."""
    store = Store(run)
    protocol = store.protocol()
    reader = RunReader(store, protocol)
    proper = {Outcome.HORIZON.value, Outcome.TERMINATED.value, Outcome.TRUNCATED.value}
    rows = [row for arm in protocol.arms for batch in reader.batches(arm, None) for row in reader.trajectories(batch)]
    return np.array([row.total_reward if row.outcome in proper else worst for row in rows])


def moved(lower: Array, budget: float) -> Array:
    """Return lower bounds on probabilities under sensor shifts of size `budget`, Phi(Phi^-1(p) - B / sigma)."""
    return np.asarray(ndtr(ndtri(lower) - budget / SIGMA))


def theirs(task: str, totals: Array, budgets: tuple[float, ...]) -> Array:
    """Return the expected return by their formula: thresholds with Clopper and Pearson, or the DKW band.

    CartPole has 200 thresholds, each at delta / 200. The totals of Pendulum are real numbers, so the formula takes the
    one-sided DKW inequality for all thresholds at once. Doubles are exact enough for a comparison.
    """
    lowest, _ = RANGES[task]
    if task == "cartpole":
        thresholds = np.arange(1, HORIZON + 1)
        counts = [int((totals >= threshold).sum()) for threshold in thresholds]
        lower = np.array([clopper_pearson_lower(count, len(totals), delta=DELTA / HORIZON) for count in counts])
        widths = np.ones(HORIZON)
    else:
        edges = np.concatenate([[lowest], np.sort(totals)])
        share = 1.0 - np.arange(len(totals)) / len(totals)
        lower = np.maximum(share - np.sqrt(np.log(1.0 / DELTA) / (2 * len(totals))), 0.0)
        widths = np.diff(edges)
    return np.array([lowest + float(widths @ moved(lower, budget)) for budget in budgets])


def ours(task: str, totals: Array, budgets: tuple[float, ...]) -> Array:
    """Return the certified expected return, rounded down."""
    lowest, highest = RANGES[task]
    proof = certify_totals(
        totals.tolist(), kind="return", lowest=lowest, highest=highest, delta=DELTA, family=1, sampling="law"
    )
    return np.array([proof.expected(budget / SIGMA) for budget in budgets])


def compute(totals: records.Table) -> records.Table:
    """Return both curves of both tasks."""
    parts = []
    for task in RANGES:
        values = totals["total"][totals["task"] == task]
        parts.append((np.full(len(BUDGETS), task), ours(task, values, BUDGETS), theirs(task, values, BUDGETS)))
    return {
        "task": np.concatenate([part[0] for part in parts]),
        "budget": np.tile(BUDGETS, len(parts)),
        "ours": np.concatenate([part[1] for part in parts]),
        "theirs": np.concatenate([part[2] for part in parts]),
    }


def summarise(rows: records.Table, totals: records.Table) -> dict[str, object]:
    """Return what the page says, from the stored rows and totals."""
    found: dict[str, object] = {"sigma": SIGMA, "delta": DELTA}
    for task in RANGES:
        mine = rows["task"] == task
        gain = rows["ours"][mine] - rows["theirs"][mine]
        values = totals["total"][totals["task"] == task]
        found[task] = {
            "episodes": len(values),
            "mean_return": round(float(values.mean()), 4),
            "budgets": int(mine.sum()),
            "budgets_where_ours_is_lower": int((gain < 0.0).sum()),
            "least_gain": round(float(gain.min()), 4),
            "greatest_gain": round(float(gain.max()), 4),
        }
    return found


def draw(rows: records.Table, path: Path) -> None:
    """Draw both curves of both tasks."""
    figure, axes = figures.panels(2, width=8.6, height=3.4)
    for axis, (task, (lowest, _)) in zip(axes, RANGES.items(), strict=True):
        mine = rows["task"] == task
        axis.plot(rows["budget"][mine], rows["ours"][mine], color=figures.BLUE, label="CCFS")
        axis.plot(rows["budget"][mine], rows["theirs"][mine], color=figures.ORANGE, ls="--", label="Policy Smoothing")
        axis.set_title({"cartpole": "CartPole-v1, 200 steps", "pendulum": "Pendulum-v1, 200 steps"}[task])
        axis.set_xlabel("sensor budget of an episode")
        axis.set_ylabel("certified expected return")
        axis.set_ylim(bottom=max(lowest, float(rows["theirs"][mine].min()) - 20.0))
        axis.legend(loc="lower left")
    figures.save(figure, path)


def main() -> None:
    """Read the runs or the stored totals, and write rows, summary and figure."""
    arguments = commands.parse(Arguments, __doc__ or "")
    out = Path(arguments.out)
    if arguments.redraw:
        totals = records.read_table(out / TOTALS)
    else:
        found = {task: totals_of(Path(arguments.runs) / f"policy-smoothing-{task}", RANGES[task][0]) for task in RANGES}
        totals = {
            "task": np.concatenate([np.full(len(values), task) for task, values in found.items()]),
            "total": np.concatenate(list(found.values())),
        }
        records.write_table(out / TOTALS, totals)
    rows = compute(totals)
    records.write_table(out / ROWS, rows)
    records.write_summary(out, summarise(rows, totals), command=f"python {SCRIPT}")
    records.seal(out, (TOTALS, ROWS, records.SUMMARY))
    draw(rows, out / FIGURE)
    print(summarise(rows, totals))


if __name__ == "__main__":
    main()
