"""Reset seeds of training repeat and stay out of the range for evaluation."""

from __future__ import annotations

from ccfs.controllers.training.seeds import EVALUATION_SEED_LIMIT, reset_seeds


def test_reset_seeds_stay_out_of_the_evaluation_range_and_repeat() -> None:
    first = [seed for seed, _ in zip(reset_seeds(658990255, 3), range(1_000), strict=False)]
    again = [seed for seed, _ in zip(reset_seeds(658990255, 3), range(1_000), strict=False)]
    assert first == again
    assert min(first) >= EVALUATION_SEED_LIMIT
    assert max(first) < 2**32
    assert first != [seed for seed, _ in zip(reset_seeds(658990255, 4), range(1_000), strict=False)]
