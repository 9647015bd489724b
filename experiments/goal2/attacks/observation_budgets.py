"""How much error in the controller's observation a certified shift budget covers, for each shipped agent.

    python experiments/goal2/attacks/observation_budgets.py --budgets 0.02 0.1 0.2 0.4

writes `observation_budgets.csv`: the proved Lipschitz constant, the product of the layers' norms, the rounding term,
and for each shift budget B the observation budget over 500 steps, everywhere, in what can move in a plane, and in the
lidar bins alone. A lidar bin is 1 - distance / 3 m, so that an error of 0.001 there is 3 mm. What is assumed stands at
`ccfs.controllers.lipschitz.observation_budget`.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from ccfs.controllers import zoo
from ccfs.controllers.lipschitz import lipschitz_upper, observation_budget

HORIZON = 500
RESTING = (2, 5, 6, 7, 11)  # vertical acceleration, velocity and field, roll and pitch: constant for a robot in a plane
PARTS = {
    "all": tuple(range(60)),
    "planar": tuple(i for i in range(60) if i not in RESTING),
    "lidar": tuple(range(12, 60)),
}


def main() -> None:
    """Bound every agent, write beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", type=float, nargs="+", required=True)
    arguments = parser.parse_args()
    names = [f"eta_at_{budget}" for budget in arguments.budgets]
    lines: list[list[object]] = [["agent", "steps", "digest", "errors_in", "constant", "product", "rounding", *names]]
    for name in zoo.names():
        entry = zoo.load(name)
        for part, coordinates in PARTS.items():
            bound = lipschitz_upper(entry.actor, coordinates=coordinates)
            etas = [observation_budget(budget, bound, horizon=HORIZON) for budget in arguments.budgets]
            lines.append([name, entry.card.steps, bound.digest, part, bound.constant, bound.product, bound.rounding])
            lines[-1] += ["" if eta is None else eta for eta in etas]
            print(*lines[-1], flush=True)
    with (Path(__file__).parent / "observation_budgets.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


if __name__ == "__main__":
    main()
