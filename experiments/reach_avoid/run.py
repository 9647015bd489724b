"""Feasible actions of 448 states: where the label really changes, and which radii are honest about it.

    python experiments/reach_avoid/run.py [--seed 20260704] [--out experiments/reach_avoid] [--redraw]

Masses are products of normal CDF differences, no sampling. The label of the conditioned action is followed along the
vertical (lateral) axis: d/dy log(s_above / s_below) is the difference of two conditional means over sigma^2 (eq.
occupancy-derivatives), positive because everything above lies above everything below. So each vertical line has one
label boundary, and Brent's method finds it between brackets. `--redraw` makes the figure from the stored rows.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import mpmath as mp
import numpy as np
from scipy.optimize import brentq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import layouts
from _shared import commands, figures, records
from _shared.oracle import DIGITS, Oracle, quantile, relative_error
from matplotlib.patches import Circle, Rectangle

from ccfs.certificates.filtered import joint_mass_radius, substituted_radius

HERE = Path(__file__).resolve().parent
SCRIPT = "experiments/reach_avoid/run.py"
ROWS, BOXES, FIGURE = "rows.csv", "boxes.csv", "reach_avoid.png"
BRENT = 2e-13
MARGIN = 2e-10
RAYS = 72
Record = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the command accepts."""

    seed: int = field(default=20260704, metadata={"help": "root seed of the layouts"})
    sample: int = field(default=32, metadata={"help": "states recomputed at 50 digits"})
    out: str = field(default=str(HERE), metadata={"help": "folder to write to"})
    redraw: bool = field(default=False, metadata={"help": "only draw the figure, from the stored rows"})


def vertical_boundary(layout: layouts.Layout) -> float:
    """Return the lateral center at which both labels are equally likely, the forward center being nominal."""
    boxes, labels = layout.feasible()

    def lead(lateral: float) -> float:
        below, above = boxes.log_label_masses([layouts.NOMINAL_FORWARD, lateral], labels)
        return float(above - below)

    reach = 1.0
    while not lead(-reach) < 0.0 < lead(reach):
        reach *= 2.0
    return float(brentq(lead, -reach, reach, xtol=BRENT, rtol=4.0 * np.finfo(float).eps))


def layout_rows(number: int, seed: int) -> list[Record]:
    """Compute the seven states of one layout."""
    layout = layouts.draw(number, seed)
    boxes, labels = layout.feasible()
    boundary = vertical_boundary(layout)
    angles = np.linspace(0.0, 2.0 * np.pi, RAYS, endpoint=False)
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    rows: list[Record] = []
    for state in range(layouts.STATES):
        center = layouts.center(layout, state)
        masses = boxes.label_masses(center, labels)
        label, occupancy = int(np.argmax(masses)), float(masses.sum())
        top, runner = float(masses.max()), float(masses.min())
        joint = joint_mass_radius(top, runner, layouts.SIGMA)
        around = boxes.label_masses(center + joint * ring, labels)
        rows.append(
            {
                "layout": number,
                "state": state,
                "lateral_center": float(center[1]),
                "label": label,
                "occupancy": occupancy,
                "top_mass": top,
                "runner_mass": runner,
                "boundary": boundary,
                "boundary_distance": abs(float(center[1]) - boundary),
                "joint_radius": joint,
                "substituted_radius": substituted_radius(top / occupancy, runner / occupancy, layouts.SIGMA),
                "label_changes_on_joint_circle": int((np.argmax(around, axis=-1) != label).sum()),
            }
        )
    return rows


def compute(seed: int) -> records.Table:
    """Compute every state."""
    rows = [row for number in range(layouts.LAYOUTS) for row in layout_rows(number, seed)]
    return {name: np.asarray([row[name] for row in rows]) for name in rows[0]}


def drawn_boxes(seed: int) -> records.Table:
    """Return the feasible rectangles of every layout, with their labels."""
    rows: list[Record] = []
    for number in range(layouts.LAYOUTS):
        boxes, labels = layouts.draw(number, seed).feasible()
        for low, high, label in zip(boxes.lows, boxes.highs, labels, strict=True):
            ends = {"low_forward": low[0], "low_lateral": low[1], "high_forward": high[0], "high_lateral": high[1]}
            rows.append({"layout": number, "label": label, **{name: float(end) for name, end in ends.items()}})
    return {name: np.asarray([row[name] for row in rows]) for name in rows[0]}


def spread(values: layouts.Array) -> dict[str, float]:
    """Return median and percentiles."""
    fifth, median, last = (float(np.percentile(values, q)) for q in (5, 50, 95))
    return {"median": median, "percentile_5": fifth, "percentile_95": last}


def summarise(rows: records.Table) -> Record:
    """Derive the summary from the rows alone."""
    distance, joint, substituted = (rows[k] for k in ("boundary_distance", "joint_radius", "substituted_radius"))
    return {
        "states": len(distance),
        "layouts": len(np.unique(rows["layout"])),
        "numerical_margin": MARGIN,
        "substituted_crosses": int((substituted > distance + MARGIN).sum()),
        "joint_crosses": int((joint > distance + MARGIN).sum()),
        "joint_positive": int((joint > 0.0).sum()),
        "label_changes_on_joint_circles": int(rows["label_changes_on_joint_circle"].sum()),
        "least_substituted_excess": float((substituted - distance).min()),
        "least_joint_slack": float((distance - joint).min()),
        "boundary_distance": spread(distance),
        "joint_radius": spread(joint),
        "substituted_radius": spread(substituted),
        "joint_over_boundary": {"median": float(np.median(joint / distance)), "max": float((joint / distance).max())},
        "joint_over_substituted_median": float(np.median(joint / substituted)),
        "occupancy": spread(rows["occupancy"]),
    }


def sample_errors(rows: records.Table, seed: int, sample: int) -> dict[str, float]:
    """Recompute a random sample of states at 50 digits, the boundary by its own root finder."""
    errors = []
    for index in np.random.default_rng([seed, layouts.LAYOUTS]).choice(len(rows["layout"]), size=sample, replace=False):
        row = {name: column[index] for name, column in rows.items()}
        layout = layouts.draw(int(row["layout"]), seed)
        boxes, labels = layout.feasible()
        truth, center = Oracle(boxes.lows, boxes.highs, boxes.sigma), layouts.center(layout, int(row["state"]))
        with mp.workdps(DIGITS):
            forward, lateral = (mp.mpf(float(x)) for x in center)
            masses = truth.label_masses([forward, lateral], labels)
            top, runner = max(masses), min(masses)
            root = mp.findroot(
                lambda y, truth=truth, forward=forward, labels=labels: _lead(truth, forward, y, labels),
                mp.mpf(float(row["boundary"])),
            )
            half = mp.mpf(layouts.SIGMA) / 2
            exact = {
                "top_mass": top,
                "runner_mass": runner,
                "boundary_distance": abs(lateral - root),
                "joint_radius": half * (quantile(top) - quantile(runner)),
                "substituted_radius": half * (quantile(top / sum(masses)) - quantile(runner / sum(masses))),
            }
        errors.append({name: relative_error(float(row[name]), value) for name, value in exact.items()})
    return {name: max(error[name] for error in errors) for name in errors[0]}


def _lead(truth: Oracle, forward: mp.mpf, lateral: mp.mpf, labels: tuple[int, ...]) -> mp.mpf:
    below, above = truth.label_masses([forward, lateral], labels)
    return mp.log(above / below)


def figure(rows: records.Table, boxes: records.Table, path: Path) -> None:
    """Panel A: one layout's feasible actions and radii. Panel B: radii of all states against the boundary."""
    drawn, (left, right) = figures.panels(2, width=9.6, height=4.4)
    shown, state = 0, 5
    for index in np.flatnonzero(boxes["layout"] == shown):
        corner = boxes["low_forward"][index], boxes["low_lateral"][index]
        size = boxes["high_forward"][index] - corner[0], boxes["high_lateral"][index] - corner[1]
        color = figures.BLUE if boxes["label"][index] else figures.GREEN
        left.add_patch(Rectangle(corner, *size, facecolor=color, alpha=0.25, edgecolor=color))
    row = {name: column[(rows["layout"] == shown) & (rows["state"] == state)][0] for name, column in rows.items()}
    center = layouts.NOMINAL_FORWARD, row["lateral_center"]
    left.plot(*center, "o", color=figures.INK, ms=4)
    left.axhline(row["boundary"], color=figures.INK, lw=1.2, label="label boundary on this vertical line", ls="--")
    looks = (
        ("substituted_radius", figures.RED, "substituted radius"),
        ("joint_radius", figures.INK, "joint-mass radius"),
    )
    for name, color, label in looks:
        left.add_patch(Circle(center, row[name], fill=False, edgecolor=color, lw=1.5))
        left.plot([], [], color=color, lw=1.5, label=label)
    left.set_xlim(-0.6, 1.8)
    left.set_ylim(-1.05, 1.75)
    left.set_aspect("equal")
    left.set_xlabel("forward")
    left.set_ylabel("lateral position after the slide")
    left.legend(loc="upper left", borderaxespad=0.1)
    left.set_title("A  one state: pass above (blue) or below")
    limit = float(rows["substituted_radius"].max()) * 1.05
    for name, color, label in reversed(looks):
        right.scatter(rows["boundary_distance"], rows[name], s=9, alpha=0.6, lw=0, color=color, label=label)
    right.plot([0.0, limit], [0.0, limit], color=figures.INK, lw=0.9, ls="--")
    right.set_xlim(0.0, float(rows["boundary_distance"].max()) * 1.05)
    right.set_ylim(0.0, limit)
    right.set_xlabel("distance to the label boundary")
    right.set_ylabel("radius")
    right.legend(loc="upper left")
    right.set_title("B  448 states; above the diagonal is wrong")
    figures.save(drawn, path)


def main(words: list[str] | None = None) -> None:
    """Run the study, store it, and print what matters."""
    arguments = commands.parse(Arguments, __doc__.splitlines()[0], words)
    out = Path(arguments.out)
    if not arguments.redraw:
        out.mkdir(parents=True, exist_ok=True)
        records.write_table(out / ROWS, compute(arguments.seed))
        records.write_table(out / BOXES, drawn_boxes(arguments.seed))
        rows = records.read_table(out / ROWS)
        worst = sample_errors(rows, arguments.seed, arguments.sample)
        print(f"worst relative error against 50 digits, {arguments.sample} states: {worst}")
        oracle = {"digits": DIGITS, "sampled_states": arguments.sample, "worst_relative_error": worst}
        summary = {**summarise(rows), "oracle": oracle}
        records.write_summary(out, summary, command=commands.spelled(SCRIPT, arguments))
        records.seal(out, (ROWS, BOXES, records.SUMMARY))
    figure(records.read_table(out / ROWS), records.read_table(out / BOXES), out / FIGURE)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
