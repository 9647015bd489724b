"""Time of a named disturbance: weigh 4,096 trajectories of 500 steps, and certify a net of 306 points over a box.

Run: python benchmarks/bench_families.py
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates.families import certify_family
from ccfs.certificates.schedule import ProposalSchedule, Stage
from ccfs.protocol.tables import FamilySpec
from ccfs.runs.weights import Disturbance
from ccfs.runtime.streams import Streams

TRIALS, STEPS, CELLS, SIGMA = 4096, 500, (17, 18), 0.2


class Steps:
    """A stand-in for a trace: centers of a trial, as `Disturbance.weight` reads them."""

    def __init__(self, centers: NDArray[np.float64]) -> None:
        self.centers = centers

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.centers)


def main() -> None:
    """Print processor seconds on one core."""
    rng = np.random.default_rng(0)
    spec = FamilySpec(name="bias", features="constant", box=(0.01, 0.01), cells=CELLS)
    family = Disturbance(spec, Stage.ACTION, (ProposalSchedule(count=1, sigma=SIGMA),), 2, STEPS, None)
    # Every second trial fails, and trials end between step 100 and step 500.
    lengths, held = rng.integers(100, STEPS + 1, size=TRIALS), rng.uniform(size=TRIALS) < 0.5
    began = time.process_time()
    weights = [
        family.weight(
            Steps(np.zeros((length, 2))),  # type: ignore[arg-type]
            Streams(protocol="benchmark", root=0, arm="", trial=trial, reset_seed=trial),
        )
        for trial, length in enumerate(lengths.tolist())
    ]
    weighed = time.process_time()
    proof = certify_family(
        held,
        [weight.score for weight in weights],
        [weight.energy for weight in weights],
        name="bias",
        box=family.box,
        ceiling=family.ceiling,
        cells=CELLS,
        delta=0.001,
        family=6,
        sampling="cohort",
    )
    ended = time.process_time()
    print(f"{TRIALS:,} trajectories of at most {STEPS} steps, {proof.net} points, box size mu = {proof.size:.2f}")
    print(f"  weigh     {weighed - began:7.2f} s")
    print(f"  certify   {ended - weighed:7.2f} s, at least {proof.lower:.4f} in the whole box")


if __name__ == "__main__":
    main()
