"""Draw the navigator's map at work on one development seed: what it knows, what it only fears, and the truth beside.

python experiments/navigator/draw.py --seed 3000000259 --sigma 1.0
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

from ccfs.controllers.navigator import Navigator
from ccfs.controllers.navigator.lidar_map import HALF_WIDTH
from ccfs.envs import make

EXTENT = (-HALF_WIDTH, HALF_WIDTH) * 2
COLOURS = ("tab:red", "tab:blue")


def panel(axes, navigator: Navigator, path: list[tuple[float, float]], task, start: np.ndarray, step: int) -> None:
    """Draw one moment."""
    drawn = navigator.map
    axes.imshow(np.minimum(navigator.route.time.T, 500.0), origin="lower", extent=EXTENT, cmap="Greys", alpha=0.6)
    for kind, colour in enumerate(COLOURS):
        layer = np.zeros((*drawn.possible.shape[1:], 4))
        layer[drawn.possible[kind]] = (*mpl.colors.to_rgb(colour), 0.25)
        axes.imshow(layer.transpose(1, 0, 2), origin="lower", extent=EXTENT)
        radius = (0.2, 0.2414)[kind]
        for body in (task.hazards, task.vases)[kind].pos:
            axes.add_patch(plt.Circle(body[:2] - start, radius, fill=False, ec=colour, lw=1.2))
        for point in drawn.known[kind]:
            axes.plot(*point, "o", color=colour, ms=5)
    if drawn.goal:
        axes.add_patch(plt.Circle(drawn.goal, 0.3, color="tab:green", alpha=0.5))
    axes.plot(*np.array(path).T, "k-", lw=1.5)
    heading = drawn.pose.heading
    axes.arrow(*path[-1], 0.15 * np.cos(heading), 0.15 * np.sin(heading), width=0.03, color="tab:orange", zorder=5)
    axes.set(title=f"step {step}", xlim=(-2.1 - start[0], 2.1 - start[0]), ylim=(-2.1 - start[1], 2.1 - start[1]))


def main() -> None:
    """Read the arguments, run, write beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--sigma", type=float, required=True)
    arguments = parser.parse_args()
    env, navigator = make("SafetyPointGoal2-v0"), Navigator(arguments.sigma)
    rng = np.random.Generator(np.random.Philox(key=arguments.seed))
    observation, _ = env.reset(seed=arguments.seed)
    task = env.unwrapped.task
    start = task.agent.pos[:2].copy()
    figure, axes = plt.subplots(1, 4, figsize=(20, 5.4), constrained_layout=True)
    path: list[tuple[float, float]] = []
    moments = iter(zip(axes, (1, 40, 100, 10**6), strict=True))
    axis, moment = next(moments)
    for step in range(1, 501):
        center = navigator.center(observation)
        path.append((navigator.map.pose.x, navigator.map.pose.y))
        if step == moment:
            panel(axis, navigator, path, task, start, step)
            axis, moment = next(moments)
        distance = np.hypot(*(np.array(navigator.map.goal or (9, 9)) - path[-1]))
        action = np.clip(center + arguments.sigma * rng.standard_normal(2), -1, 1)
        if distance < 0.32:
            break
        observation, *_ = env.step(action)
    panel(axis, navigator, path, task, start, step)
    figure.suptitle(
        "Circles: hazards (red) and vases (blue) as they are. Dots: those the robot knows. Shade: where it thinks "
        f"another may be. Grey: time to the goal. sigma = {arguments.sigma}, seed {arguments.seed}"
    )
    figure.savefig(Path(__file__).parent / "map.png", dpi=60)


if __name__ == "__main__":
    main()
