"""Does the covariance at the anchor foretell the KL ratio? A replication on 128 held-out geometries, 1,024 rows.

    python experiments/covariance_holdout/run.py [--seed 20260923] [--out experiments/covariance_holdout] [--redraw]

The family (coherent, 16 boxes, balanced volumes) comes from `experiments/random_boxes`; the seed is new, and no stream
is shared with that study. `--redraw` makes the figure from the stored rows.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from fractions import Fraction
from math import comb
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _shared import commands, figures, geometries, records
from _shared.comparisons import DIRECTIONS, Moves, moves, oracle_errors, ratios, worst_of

HERE = Path(__file__).resolve().parent
SCRIPT = "experiments/covariance_holdout/run.py"
ROWS, FIGURE = "rows.csv", "covariance_holdout.png"
DIMENSIONS = (10, 20)
SCALES = (0.25, 0.5)
DISTANCES = (0.05, 0.15)
PER_DIMENSION = 64
FAMILY, COUNT, VOLUME = "coherent", 16, "balanced"
_STUDY = 7
Record = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the command accepts."""

    seed: int = field(default=20260923, metadata={"help": "root seed of geometries and independent directions"})
    sample: int = field(default=32, metadata={"help": "rows recomputed at 50 digits"})
    out: str = field(default=str(HERE), metadata={"help": "folder to write to"})
    redraw: bool = field(default=False, metadata={"help": "only draw the figure, from the stored rows"})


def geometry_moves(number: int, sigma: float, seed: int) -> Moves:
    """Draw base geometry `number` (0 to 127) and displace its anchor at one scale."""
    dimension = DIMENSIONS[number // PER_DIMENSION]
    shape, free = (np.random.default_rng([seed, _STUDY, purpose, number]) for purpose in (0, 1))
    geometry = geometries.draw(FAMILY, dimension, COUNT, shape)
    return moves(geometry, VOLUME, sigma, DISTANCES, geometries.unit_vector(dimension, free))


def geometry_rows(number: int, seed: int) -> list[Record]:
    """Compute the eight rows of one base geometry."""
    rows: list[Record] = []
    for sigma in SCALES:
        found = ratios(geometry_moves(number, sigma, seed))
        for i, direction in enumerate(DIRECTIONS):
            for j, distance in enumerate(DISTANCES):
                place = {"geometry": number, "dimension": DIMENSIONS[number // PER_DIMENSION], "sigma": sigma}
                values = {name: float(column[i, j]) for name, column in found.items() if name != "fixed_ratio"}
                rows.append({**place, "direction": direction, "distance": distance, **values})
    return rows


def compute(seed: int) -> records.Table:
    """Compute every row."""
    numbers = range(PER_DIMENSION * len(DIMENSIONS))
    rows = [row for number in numbers for row in geometry_rows(number, seed)]
    return {name: np.asarray([row[name] for row in rows]) for name in rows[0]}


def sign_test(wins: int, losses: int) -> Fraction:
    """Return the exact one-sided p-value: the chance of at least `wins` heads in wins + losses fair tosses."""
    total = wins + losses
    return Fraction(sum(comb(total, k) for k in range(wins, total + 1)), 2**total)


def geometry_maxima(rows: records.Table) -> dict[str, geometries.Array]:
    """Return the greatest KL ratio of every base geometry in each direction."""
    numbers = np.unique(rows["geometry"])
    return {
        direction: np.asarray(
            [rows["kl_ratio"][(rows["geometry"] == n) & (rows["direction"] == direction)].max() for n in numbers]
        )
        for direction in DIRECTIONS
    }


def summarise(rows: records.Table) -> Record:
    """Derive the summary from the rows alone."""
    best = geometry_maxima(rows)
    top, free = (best[direction] for direction in DIRECTIONS)
    wins, losses = int(((top > 1.0) & ~(free > 1.0)).sum()), int(((free > 1.0) & ~(top > 1.0)).sum())
    cells = [
        (rows["dimension"] == dimension)
        & (rows["sigma"] == sigma)
        & (rows["distance"] == distance)
        & (rows["direction"] == direction)
        for dimension in DIMENSIONS
        for sigma in SCALES
        for distance in DISTANCES
        for direction in DIRECTIONS
    ]
    rank = [float(spearmanr(rows["anchor_ratio"][cell], rows["kl_ratio"][cell]).statistic) for cell in cells]
    covariance_rows = rows["direction"] == "covariance"
    return {
        "rows": len(rows["kl"]),
        "base_geometries": len(top),
        "geometries_above_one": {"covariance": int((top > 1.0).sum()), "independent": int((free > 1.0).sum())},
        "rows_above_one": {
            "covariance": int((rows["kl_ratio"][covariance_rows] > 1.0).sum()),
            "independent": int((rows["kl_ratio"][~covariance_rows] > 1.0).sum()),
        },
        "sign_test": {"wins": wins, "losses": losses, "p_value": float(sign_test(wins, losses))},
        "geometries_with_greater_covariance_maximum": int((top > free).sum()),
        "median_difference_of_maxima": float(np.median(top - free)),
        "covariance_max_ratio": float(top.max()),
        "independent_max_ratio": float(free.max()),
        "least_spearman": min(rank),
        "greatest_finite_minus_anchor": float(np.abs(rows["kl_ratio"] - rows["anchor_ratio"]).max()),
        "direct_and_path_max_difference": float(np.abs(rows["kl_direct"] - rows["kl_path"]).max()),
        "kl_and_path_max_relative_difference": float(np.abs(rows["kl"] / rows["kl_path"] - 1.0).max()),
    }


def sample_errors(rows: records.Table, seed: int, sample: int) -> dict[str, float]:
    """Recompute a random sample of rows at 50 digits and return the worst relative errors."""
    errors = []
    for index in np.random.default_rng([seed, _STUDY, 2]).choice(len(rows["kl"]), size=sample, replace=False):
        at = geometry_moves(int(rows["geometry"][index]), float(rows["sigma"][index]), seed)
        direction = DIRECTIONS.index(str(rows["direction"][index]))
        errors.append(oracle_errors(at, direction, DISTANCES.index(float(rows["distance"][index]))))
    return worst_of(errors)


def figure(rows: records.Table, path: Path) -> None:
    """Panel A: covariance at the anchor against the finite KL ratio. Panel B: their difference."""
    drawn, (left, right) = figures.panels(2, width=9.6, height=3.9)
    for direction, color in zip(DIRECTIONS, (figures.ORANGE, figures.BLUE), strict=True):
        for distance, marker in zip(DISTANCES, ("o", "^"), strict=True):
            here = (rows["direction"] == direction) & (rows["distance"] == distance)
            x, y = rows["anchor_ratio"][here], rows["kl_ratio"][here]
            look = {"s": 13, "alpha": 0.55, "lw": 0, "color": color, "marker": marker}
            left.scatter(x, y, label=f"{direction}, {distance}σ", **look)
            right.scatter(x, y - x, **look)
    low, high = 0.0, float(max(rows["anchor_ratio"].max(), rows["kl_ratio"].max())) * 1.05
    left.plot([low, high], [low, high], color=figures.INK, lw=0.8)
    left.axhline(1.0, color=figures.INK, lw=0.9, ls=":")
    for axes in (left, right):
        axes.axvline(1.0, color=figures.INK, lw=0.9, ls=":")
        axes.set_xlabel("Var⟨u, X⟩ / σ² at the anchor")
        axes.set_xlim(low, high)
    right.axhline(0.0, color=figures.INK, lw=0.8)
    left.set_ylim(low, high)
    left.set_ylabel("KL / Gaussian KL at finite distance")
    right.set_ylabel("finite minus anchor ratio")
    left.set_title("A  local diagnostic and finite KL")
    right.set_title("B  what the diagonal hides")
    left.legend(loc="lower right", handletextpad=0.2, frameon=True, facecolor="white", edgecolor="none", framealpha=1.0)
    figures.save(drawn, path)


def main(words: list[str] | None = None) -> None:
    """Run the study, store it, and print what matters."""
    arguments = commands.parse(Arguments, __doc__.splitlines()[0], words)
    out = Path(arguments.out)
    if not arguments.redraw:
        out.mkdir(parents=True, exist_ok=True)
        records.write_table(out / ROWS, compute(arguments.seed))
        rows = records.read_table(out / ROWS)
        worst = sample_errors(rows, arguments.seed, arguments.sample)
        print(f"worst relative error against 50 digits, {arguments.sample} rows: {worst}")
        oracle = {"digits": 50, "sampled_rows": arguments.sample, "worst_relative_error": worst}
        summary = {**summarise(rows), "oracle": oracle}
        records.write_summary(out, summary, command=commands.spelled(SCRIPT, arguments))
        records.seal(out, (ROWS, records.SUMMARY))
    figure(records.read_table(out / ROWS), out / FIGURE)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
