"""Draw what the lidar verifier of the table accepts: four situations above, the accepted actions below.

python experiments/goal2/verifier.py
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.patches import Circle, Rectangle, Wedge

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _shared import figures

from ccfs.envs.safety.lidar_box import LidarBox

HERE = Path(__file__).resolve().parent
BIN = 2.0 * math.pi / 16
SITUATIONS = (
    ("nothing near", 1.0, ((2.0, 1.2),)),
    ("hazard ahead, 1 m/s", 1.0, ((0.45, 0.1),)),
    ("hazard front right, 0.5 m/s", 0.5, ((0.55, -0.7),)),
    ("hazard behind, -0.8 m/s", -0.8, ((0.4, math.pi - 0.1),)),
)


def observe(speed: float, objects: tuple[tuple[float, float], ...]) -> np.ndarray:
    """Return an observation with this forward speed and hazards at (distance, bearing), as the lidar writes them."""
    observation = np.zeros(60)
    observation[3] = speed
    bins = observation[28:44]
    for distance, bearing in objects:
        closeness, place = 1.0 - distance / 3.0, bearing % (2.0 * math.pi) / BIN
        index, share = int(place), place % 1.0
        for step, weight in ((0, 1.0), (1, share), (-1, 1.0 - share)):
            slot = (index + step) % 16
            bins[slot] = max(bins[slot], weight * closeness)
    return observation


def main() -> None:
    """Draw and save."""
    plt.rcParams.update(figures.STYLE)
    verifier = LidarBox()
    figure, axes = plt.subplots(2, len(SITUATIONS), figsize=(11, 5.6), layout="constrained")
    noise = np.random.default_rng(0).normal(size=(120, 2))
    for (title, speed, objects), scene, box in zip(SITUATIONS, axes[0], axes[1], strict=True):
        scene.set_title(title)
        for angle in np.arange(16) * 22.5:
            front = angle in (0, 22.5, 315, 337.5)
            scene.add_patch(Wedge((0, 0), 0.9, angle, angle + 22.5, color=figures.BLUE, alpha=0.12 if front else 0.03))
        scene.add_patch(Circle((0, 0), 0.1, color=figures.INK))
        scene.add_patch(Circle((0, 0), verifier.keep_away, fill=False, ls=":", color=figures.RED))
        arrow = {"arrowstyle": "-|>", "color": figures.ORANGE, "lw": 2}
        scene.annotate("", (0.45 * speed, 0), (0, 0), arrowprops=arrow)
        for distance, bearing in objects:
            place = (distance * math.cos(bearing), distance * math.sin(bearing))
            scene.add_patch(Circle(place, 0.2, color=figures.RED, alpha=0.35))
            scene.plot(*place, ".", color=figures.RED)
        scene.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal", xticks=[], yticks=[])
        observation = observe(speed, objects)
        low, high = verifier.box(observation)
        box.add_patch(Rectangle(low, *(high - low), color=figures.GREEN, alpha=0.18))
        actions = np.clip(np.array([0.3, 0.2]) + 0.4 * noise, -1, 1)
        accepted = verifier.accepts(observation, actions)
        box.plot(*actions[accepted].T, ".", ms=4, color=figures.GREEN, label="accepted")
        box.plot(*actions[~accepted].T, "x", ms=4, color=figures.RED, label="rejected")
        box.set(xlim=(-1.08, 1.08), ylim=(-1.08, 1.08), aspect="equal", xlabel="thrust a0", ylabel="turn a1 (left > 0)")
    axes[1, 1].legend(loc="lower right")
    figures.save(figure, HERE / "figures" / "verifier.png")


if __name__ == "__main__":
    main()
