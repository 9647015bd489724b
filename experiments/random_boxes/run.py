"""KL of conditioned Gaussians on 384 random box unions: 6,144 cells, with the fixed-weight control beside each.

    python experiments/random_boxes/run.py [--seed 20260611] [--out experiments/random_boxes] [--redraw]

Dimensions 2, 5, 10, 20 x 4, 8, 16 boxes x two families x 16 replicates are the base geometries; each is reused for two
volume settings, two scales, two displacements and two directions. `--redraw` makes the figure from the stored rows.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _shared import commands, figures, geometries, records
from _shared.comparisons import DIRECTIONS, moves, oracle_errors, ratios, worst_of
from _shared.oracle import Oracle, relative_error

from ccfs.certificates.occupancy import BoxUnion

HERE = Path(__file__).resolve().parent
SCRIPT = "experiments/random_boxes/run.py"
ROWS, FAR, FIGURE = "rows.parquet", "far_tails.csv", "random_boxes.png"
DIMENSIONS = (2, 5, 10, 20)
COUNTS = (4, 8, 16)
SCALES = (0.25, 0.5)
DISTANCES = (0.05, 0.15)
REPLICATES = 16
FAR_DISTANCES = (3.0, 10.0, 30.0, 100.0)
Record = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the command accepts."""

    seed: int = field(default=20260611, metadata={"help": "root seed of geometries and independent directions"})
    sample: int = field(default=48, metadata={"help": "rows recomputed at 50 digits"})
    out: str = field(default=str(HERE), metadata={"help": "folder to write to"})
    redraw: bool = field(default=False, metadata={"help": "only draw the figure, from the stored rows"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """One base geometry's place in the design."""

    family: str
    dimension: int
    count: int
    replicate: int

    def generator(self, seed: int, purpose: int) -> np.random.Generator:
        """Return the stream of one purpose: 0 draws the geometry, 1 the independent direction, 2 a far direction."""
        place = (geometries.FAMILIES.index(self.family), self.dimension, self.count, self.replicate)
        return np.random.default_rng([seed, purpose, *place])

    def geometry(self, seed: int) -> geometries.Geometry:
        """Draw the boxes."""
        return geometries.draw(self.family, self.dimension, self.count, self.generator(seed, 0))

    def free_direction(self, seed: int) -> geometries.Array:
        """Draw the direction that does not look at the boxes."""
        return geometries.unit_vector(self.dimension, self.generator(seed, 1))


def bases() -> list[Base]:
    """Return the 384 base geometries in order."""
    return [
        Base(family=family, dimension=dimension, count=count, replicate=replicate)
        for family in geometries.FAMILIES
        for dimension in DIMENSIONS
        for count in COUNTS
        for replicate in range(REPLICATES)
    ]


def base_rows(base: Base, number: int, seed: int) -> list[Record]:
    """Compute the 16 cells of one base geometry."""
    geometry, free = base.geometry(seed), base.free_direction(seed)
    rows: list[Record] = []
    for volume in geometries.VOLUMES:
        for sigma in SCALES:
            found = ratios(moves(geometry, volume, sigma, DISTANCES, free))
            for i, direction in enumerate(DIRECTIONS):
                for j, distance in enumerate(DISTANCES):
                    place = {"geometry": number, **asdict(base), "volume": volume, "sigma": sigma}
                    values = {name: float(column[i, j]) for name, column in found.items()}
                    rows.append({**place, "direction": direction, "distance": distance, **values})
    return rows


def compute(seed: int) -> records.Table:
    """Compute every row."""
    rows = [row for number, base in enumerate(bases()) for row in base_rows(base, number, seed)]
    return {name: np.asarray([row[name] for row in rows]) for name in rows[0]}


def summarise(rows: records.Table) -> Record:
    """Derive the summary from the rows alone."""
    ratio, top = rows["kl_ratio"], rows["direction"] == "covariance"
    above = top & (ratio > 1.0)
    agreement = np.abs(rows["kl_direct"] - rows["kl_path"])
    by_group: dict[str, dict[str, int]] = {}
    for family in geometries.FAMILIES:
        for volume in geometries.VOLUMES:
            here = above & (rows["family"] == family) & (rows["volume"] == volume)
            by_group[f"{family}, {volume}"] = {
                str(count): len(np.unique(rows["geometry"][here & (rows["count"] == count)])) for count in COUNTS
            }
    return {
        "cells": len(ratio),
        "base_geometries": len(np.unique(rows["geometry"])),
        "covariance_direction_above_one": int(above.sum()),
        "covariance_direction_geometries_above_one": len(np.unique(rows["geometry"][above])),
        "geometries_above_one_by_group_and_count": by_group,
        "covariance_direction_max_ratio": float(ratio[top].max()),
        "independent_direction_above_one": int((~top & (ratio > 1.0)).sum()),
        "independent_direction_max_ratio": float(ratio[~top].max()),
        "fixed_anchor_above_one": int((rows["fixed_ratio"] > 1.0).sum()),
        "fixed_anchor_max_ratio": float(rows["fixed_ratio"].max()),
        "direct_and_path_max_difference": float(agreement.max()),
        "kl_and_path_max_relative_difference": float(np.abs(rows["kl"] / rows["kl_path"] - 1.0).max()),
    }


def summarise_far(rows: records.Table) -> Record:
    """Derive the far-tail part of the summary from its rows."""
    names = ("log_occupancy_error", "kl_error", "variance_error")
    return {
        "far_tails": {
            "centers": len(rows["kl_error"]),
            "least_log_occupancy": float(rows["log_occupancy"].min()),
            "worst_relative_error": {name.removesuffix("_error"): float(rows[name].max()) for name in names},
        }
    }


def sample_errors(rows: records.Table, seed: int, sample: int) -> dict[str, float]:
    """Recompute a random sample of rows at 50 digits and return the worst relative errors."""
    listed, errors = bases(), []
    for index in np.random.default_rng([seed, 3]).choice(len(rows["kl"]), size=sample, replace=False):
        base = listed[int(rows["geometry"][index])]
        volume, sigma = str(rows["volume"][index]), float(rows["sigma"][index])
        at = moves(base.geometry(seed), volume, sigma, DISTANCES, base.free_direction(seed))
        direction = DIRECTIONS.index(str(rows["direction"][index]))
        errors.append(oracle_errors(at, direction, DISTANCES.index(float(rows["distance"][index]))))
    return worst_of(errors)


def far_tails(seed: int) -> records.Table:
    """Put centers 3 to 100 scales away from the anchor and compare log occupancy, KL and variance with 50 digits."""
    rows: list[Record] = []
    for base in bases()[:: 2 * REPLICATES]:
        geometry, rng = base.geometry(seed), base.generator(seed, 2)
        boxes = BoxUnion(*geometry.bounds("skewed"), SCALES[0])
        truth = Oracle(boxes.lows, boxes.highs, boxes.sigma)
        for away in FAR_DISTANCES:
            unit, step = (geometries.unit_vector(base.dimension, rng) for _ in range(2))
            start = geometry.anchor + boxes.sigma * away * unit
            stop = start + boxes.sigma * DISTANCES[1] * step
            logs, variance = float(boxes.log_occupancy(start)), step @ boxes.covariance(start) @ step / boxes.sigma**2
            rows.append(
                {
                    **asdict(base),
                    "sigmas_away": away,
                    "log_occupancy": logs,
                    "log_occupancy_error": relative_error(logs, truth.log_occupancy(start)),
                    "kl_error": relative_error(float(boxes.kl(start, stop)), truth.kl(start, stop)),
                    "variance_error": relative_error(float(variance), truth.directional_ratio(start, step)),
                }
            )
    return {name: np.asarray([row[name] for row in rows]) for name in rows[0]}


def figure(rows: records.Table, path: Path) -> None:
    """Panel A: KL ratio of every cell by dimension and direction. Panel B: the fixed-anchor control."""
    drawn, (left, right) = figures.panels(2, width=9.6, height=3.7)
    spread = np.random.default_rng(0).uniform(-0.15, 0.15, size=len(rows["kl"]))
    place = np.searchsorted(DIMENSIONS, rows["dimension"]) + spread
    for direction, shift, color in zip(DIRECTIONS, (-0.2, 0.2), (figures.ORANGE, figures.BLUE), strict=True):
        here = rows["direction"] == direction
        for axes, name in ((left, "kl_ratio"), (right, "fixed_ratio")):
            axes.scatter(place[here] + shift, rows[name][here], s=4, alpha=0.35, lw=0, color=color, rasterized=True)
        above = here & (rows["kl_ratio"] > 1.0)
        ring = {"facecolor": "none", "edgecolor": figures.RED, "lw": 0.8}
        left.scatter(place[above] + shift, rows["kl_ratio"][above], s=14, **ring)
        left.scatter([], [], s=18, color=color, label=f"{direction} direction")
    left.scatter([], [], s=18, facecolor="none", edgecolor=figures.RED, label="above the Gaussian rate")
    for axes in (left, right):
        axes.axhline(1.0, color=figures.INK, lw=1.0, ls=":")
        axes.set_xticks(range(len(DIMENSIONS)), [str(dimension) for dimension in DIMENSIONS])
        axes.set_xlabel("dimension")
        axes.set_ylim(0.0, max(1.12, float(rows["kl_ratio"].max()) * 1.12))
    left.set_title("A  conditioning on the whole union")
    right.set_title("B  fixed anchor weights")
    left.set_ylabel("KL / Gaussian KL")
    left.legend(loc="upper left", ncols=1, borderaxespad=0.1, handletextpad=0.2)
    figures.save(drawn, path)


def main(words: list[str] | None = None) -> None:
    """Run the study, store it, and print what matters."""
    arguments = commands.parse(Arguments, __doc__.splitlines()[0], words)
    out = Path(arguments.out)
    if not arguments.redraw:
        out.mkdir(parents=True, exist_ok=True)
        started = time.process_time()
        records.write_table(out / ROWS, compute(arguments.seed))
        seconds = time.process_time() - started
        print(f"6,144 cells in {seconds:.1f} s of processor time")
        records.write_table(out / FAR, far_tails(arguments.seed))
        rows = records.read_table(out / ROWS)
        worst = sample_errors(rows, arguments.seed, arguments.sample)
        print(f"worst relative error against 50 digits, {arguments.sample} cells: {worst}")
        summary = {
            **summarise(rows),
            **summarise_far(records.read_table(out / FAR)),
            "oracle": {"digits": 50, "sampled_cells": arguments.sample, "worst_relative_error": worst},
            "processor_seconds": round(seconds, 1),
        }
        records.write_summary(out, summary, command=commands.spelled(SCRIPT, arguments))
        records.seal(out, (ROWS, FAR, records.SUMMARY))
    figure(records.read_table(out / ROWS), out / FIGURE)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
