"""Learning curves of the three controllers next to the figures that OmniSafe publishes for SafetyPointGoal2.

Run: python experiments/training/plot.py. Reads curves/*.csv (written by `ccfs train export`) and published.csv (from
OmniSafe's on-policy benchmark page), writes figures/learning_curves.svg.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
PANELS = {"return": "episode return", "cost": "episode cost", "multiplier": "Lagrange multiplier"}
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
COST_LIMIT = 25.0


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Draw return, cost and multiplier."""
    plt.rcParams.update({"svg.hashsalt": "ccfs", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    curves = {path.stem: read(path) for path in sorted((HERE / "curves").glob("ppolag-pointgoal2-*.csv"))}
    for color, (name, rows) in zip(COLORS, curves.items(), strict=False):
        steps = [float(row["steps"]) / 1e6 for row in rows]
        label = f"seed {name.rsplit('-', 1)[-1]}, {steps[-1]:.2f} million"
        for axis, column in zip(axes, PANELS, strict=True):
            axis.plot(steps, [float(row[column]) for row in rows], color=color, linewidth=1.1, label=label)
    for row in read(HERE / "published.csv"):
        if row["algorithm"] != "PPO":  # without a constraint: return 25.5 and cost 159 are off these axes
            add_published(axes, row)
    name_published(axes[0])
    axes[1].axhline(COST_LIMIT, color="0.6", linewidth=0.8, linestyle=":")
    axes[1].text(0.1, COST_LIMIT, "limit 25", color="0.4", va="bottom", fontsize=8)
    for axis, title in zip(axes, PANELS.values(), strict=True):
        axis.set(title=title, xlabel="million steps", xlim=(0.0, 11.0))
    axes[1].set_ylim(bottom=0.0)
    axes[2].legend(frameon=False, fontsize=8)
    target = HERE / "figures" / "learning_curves.svg"
    target.parent.mkdir(exist_ok=True)
    figure.savefig(target, metadata={"Date": None})
    print(target.relative_to(HERE.parents[1]))


def add_published(axes, row: dict[str, str]) -> None:
    """Draw OmniSafe's figure at ten million steps; the bar is its spread over seeds, where it is given."""
    marker = {"PPOLag": "o", "TRPOLag": "^", "CPO": "s"}[row["algorithm"]]
    for axis, column in zip(axes[:2], ("return", "cost"), strict=True):
        spread = row[f"{column}_spread"]
        axis.errorbar(
            float(row["steps"]) / 1e6,
            float(row[column]),
            yerr=float(spread) if spread else None,
            fmt=marker,
            color="black" if row["algorithm"] == "PPOLag" else "0.5",
            markersize=5,
            capsize=3,
            label=f"OmniSafe {row['algorithm']}",
        )


def name_published(axis) -> None:
    """Give `axis` a legend of OmniSafe's figures alone."""
    handles, labels = axis.get_legend_handles_labels()
    published = [pair for pair in zip(handles, labels, strict=True) if pair[1].startswith("OmniSafe")]
    axis.legend(*zip(*published, strict=True), frameon=False, fontsize=8)


if __name__ == "__main__":
    main()
