"""Time of a validated Clopper-Pearson bound beside SciPy's unvalidated one, alternating in one run.

Run: python benchmarks/bench_binomial.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from scipy.stats import beta

from ccfs.certificates.binomial import clopper_pearson_lower

TRIALS = 100_000
DELTAS = (0.001 / 3, 0.001 / 27, 1.5625e-8)
ROUNDS = 20
BATCH = 15


def timed(bound: Callable[[int, float], float], cases: list[tuple[int, float]]) -> tuple[float, list[float]]:
    """Return seconds per call and the bounds."""
    start = time.perf_counter()
    values = [bound(successes, delta) for successes, delta in cases]
    return (time.perf_counter() - start) / len(cases), values


def main() -> None:
    """Print mean times, their ratio, and how often SciPy's double lies above the proved bound."""
    rng = np.random.default_rng(0)
    validated, unvalidated, above, total = [], [], 0, 0
    for _ in range(ROUNDS):
        cases = [(int(rng.integers(1, TRIALS)), float(rng.choice(DELTAS))) for _ in range(BATCH)]
        ours, proved = timed(lambda s, d: clopper_pearson_lower(s, TRIALS, delta=d), cases)
        theirs, plain = timed(lambda s, d: float(beta.ppf(d, s, TRIALS - s + 1)), cases)
        validated.append(ours)
        unvalidated.append(theirs)
        above += sum(p > q for p, q in zip(plain, proved, strict=True))
        total += BATCH
    ours, theirs = statistics.mean(validated), statistics.mean(unvalidated)
    print(f"Clopper-Pearson lower bound, {TRIALS:,} trials, {total} random counts")
    print(f"  validated (Arb)        {ours * 1e3:8.3f} ms a bound")
    print(f"  scipy.stats.beta.ppf   {theirs * 1e3:8.3f} ms a bound, above the greatest sound double {above} times")
    print(f"  ratio                  {ours / theirs:8.2f}")


if __name__ == "__main__":
    main()
