"""One look for the figures of the single-step studies, and files whose bytes do not depend on the day."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, GREY, INK = "#2f6db3", "#d9822b", "#2f8f5b", "#c0392b", "#9aa3ad", "#22272e"
STYLE = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.dpi": 160,
    "savefig.dpi": 160,
}


def panels(columns: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Open a figure with `columns` axes side by side in the common style."""
    plt.rcParams.update(STYLE)
    figure, axes = plt.subplots(1, columns, figsize=(width, height), layout="constrained", squeeze=False)
    return figure, list(axes[0])


def save(figure: Figure, path: Path) -> None:
    """Write a PNG without a date or a program's name in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)
