"""Bounds of a mean on the same data, and the prices of certificates in trials.

    python experiments/bounds/run.py [--seed 20261204] [--delta 0.001] [--out experiments/bounds]

The data are coins with a given number of successes, the total costs of the stored SafetyPointGoal2 runs, and two
continuous laws. Every row has a lower and an upper bound of each kind that applies. `prices.py` says what a number of
trials certifies, for each kind of certificate.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import prices
from _shared import commands, records

from ccfs.certificates.betting import mean_lower, mean_upper
from ccfs.certificates.binomial import clopper_pearson_lower, clopper_pearson_upper
from ccfs.certificates.rounding import lower_text, upper_text
from ccfs.files.parquet import read_parquet

HERE = Path(__file__).resolve().parent
SCRIPT = "experiments/bounds/run.py"
ROWS, PRICES = "rows.csv", "prices.csv"
COSTS = HERE.parent / "goal2" / "results" / "costs" / "trajectories.parquet"
HORIZON = 500.0  # a step costs 0 or 1
COINS = ((128, 256), (205, 256), (243, 256), (253, 256), (256, 256), (1638, 2048), (2028, 2048))
METHODS = ("hoeffding", "bernstein", "clopper_pearson", "betting")
Array = NDArray[np.float64]
Pair = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the command accepts."""

    seed: int = field(default=20261204, metadata={"help": "seed of what is drawn"})
    delta: float = field(default=0.001, metadata={"help": "failure probability of each bound and certificate"})
    out: str = field(default=str(HERE), metadata={"help": "folder to write to"})


def samples(seed: int) -> Iterator[tuple[str, Array, float]]:
    """Yield the name, the values and the highest possible value of each data set. The lowest is 0."""
    for successes, trials in COINS:
        yield f"{successes} of {trials} coins", np.repeat([1.0, 0.0], [successes, trials - successes]), 1.0
    stored = read_parquet(COSTS)
    names, totals = stored.column("controller").to_pylist(), stored.column("total_cost").to_pylist()
    for name in ("C1", "C2", "C3"):
        yield f"total cost of {name}", np.array([t for n, t in zip(names, totals, strict=True) if n == name]), HORIZON
    rng = np.random.default_rng(seed)
    for trials in (256, 10_000):
        yield f"{trials} uniform", rng.uniform(size=trials), 1.0
        yield f"{trials} beta(10, 30)", rng.beta(10.0, 30.0, size=trials), 1.0


def hoeffding(values: Array, highest: float, delta: float) -> Pair:
    """Return Hoeffding's bounds (1963, Theorem 1). Independent trials suffice."""
    slack = highest * math.sqrt(-math.log(delta) / (2 * len(values)))
    return _clipped(float(values.mean()), slack, highest)


def bernstein(values: Array, highest: float, delta: float) -> Pair:
    """Return the empirical Bernstein bounds of Maurer and Pontil (2009, Theorem 4), for trials with one law."""
    trials, log = len(values), math.log(2.0 / delta)
    slack = math.sqrt(2.0 * float(values.var(ddof=1)) * log / trials) + highest * 7.0 * log / (3.0 * (trials - 1))
    return _clipped(float(values.mean()), slack, highest)


def clopper_pearson(values: Array, highest: float, delta: float) -> Pair:
    """Return the exact bounds for coins with one probability, NaN for other data."""
    if not np.isin(values, (0.0, highest)).all():
        return math.nan, math.nan
    successes, trials = int((values == highest).sum()), len(values)
    return tuple(
        highest * bound(successes, trials, delta=delta) for bound in (clopper_pearson_lower, clopper_pearson_upper)
    )


def betting(values: Array, highest: float, delta: float) -> Pair:
    """Return the bounds of `ccfs.certificates.betting`. Independent trials suffice."""
    return mean_lower(values, delta=delta, highest=highest), mean_upper(values, delta=delta, highest=highest)


def compute(seed: int, delta: float) -> records.Table:
    """Return one row per data set."""
    rows = []
    for name, values, highest in samples(seed):
        row: dict[str, object] = {"data": name, "trials": len(values), "highest": highest, "mean": float(values.mean())}
        for method in METHODS:
            row[f"{method}_lower"], row[f"{method}_upper"] = globals()[method](values, highest, delta)
        rows.append(row)
    return {key: np.asarray([row[key] for row in rows]) for key in rows[0]}


def summarise(rows: records.Table) -> dict[str, object]:
    """Return how the distance of the lower bound from the mean compares with betting's, for each method."""
    ours = rows["mean"] - rows["betting_lower"]
    return {
        f"{method} over betting, lower, median": float(np.nanmedian((rows["mean"] - rows[f"{method}_lower"]) / ours))
        for method in METHODS[:-1]
    }


def markdown(rows: records.Table) -> Iterator[str]:
    """Yield the lines of the README's table, every bound rounded against us."""
    yield "| data | mean | Hoeffding | empirical Bernstein | Clopper-Pearson | betting |"
    yield "|---|---|---|---|---|---|"
    for i, name in enumerate(rows["data"]):
        cells = []
        for method in METHODS:
            low, high = float(rows[f"{method}_lower"][i]), float(rows[f"{method}_upper"][i])
            cells.append("–" if math.isnan(low) else f"{lower_text(low, 3)} to {upper_text(high, 3)}")
        yield f"| {name} | {rows['mean'][i]:.3f} | {' | '.join(cells)} |"


def _clipped(mean: float, slack: float, highest: float) -> Pair:
    return max(mean - slack, 0.0), min(mean + slack, highest)


def main(words: list[str] | None = None) -> None:
    """Compute the rows and the prices, store them, and print the tables."""
    arguments = commands.parse(Arguments, __doc__.splitlines()[0], words)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    records.write_table(out / ROWS, compute(arguments.seed, arguments.delta))
    rows = records.read_table(out / ROWS)
    records.write_summary(out, summarise(rows), command=commands.spelled(SCRIPT, arguments))
    records.write_table(out / PRICES, prices.compute(arguments.seed, arguments.delta))
    records.seal(out, (ROWS, PRICES, records.SUMMARY))
    print("\n".join(markdown(rows)))
    table = records.read_table(out / PRICES)
    for question in dict.fromkeys(table["question"].tolist()):
        print("", question, "", *prices.markdown(table, question), sep="\n")


if __name__ == "__main__":
    main()
