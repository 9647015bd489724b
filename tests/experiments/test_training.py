"""The training record: every controller at ten million steps, and the README's summary rederived from the curves."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from ccfs.controllers import zoo

HERE = Path(__file__).resolve().parents[2] / "experiments" / "training"
SEEDS = (1120275774, 1346831933, 658990255)


def curve(seed: int) -> dict[str, np.ndarray]:
    with (HERE / "curves" / f"ppolag-pointgoal2-{seed}.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("seed", SEEDS)
def test_readme_tells_the_last_million_steps_of_each_curve(seed: int) -> None:
    found = curve(seed)
    is_last = found["steps"] > 9_000_000
    assert is_last.sum() == 50
    row = (
        f"| {seed} | {found['return'][is_last].mean():.2f} | {found['cost'][is_last].mean():.1f} "
        f"| {found['multiplier'][-1]:.2f} |"
    )
    assert row in (HERE / "README.md").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("seed", SEEDS)
def test_shipped_controllers_are_the_ends_of_their_curves(seed: int) -> None:
    card, found = zoo.load(f"ppolag-pointgoal2-{seed}").card, curve(seed)
    assert card.steps == found["steps"][-1] == 10_000_000
    assert np.array_equal(np.diff(found["steps"]), np.full(499, 20_000.0))
    assert card.curve["last"]["cost"] == pytest.approx(found["cost"][-1], abs=1e-3)


def test_controllers_lie_within_the_published_spread() -> None:
    with (HERE / "published.csv").open(newline="", encoding="utf-8") as file:
        published = next(row for row in csv.DictReader(file) if row["algorithm"] == "PPOLag")
    for seed in SEEDS:
        found = curve(seed)
        for name in ("return", "cost"):
            mean = found[name][found["steps"] > 9_000_000].mean()
            assert abs(mean - float(published[name])) <= float(published[f"{name}_spread"])
