"""The stored evaluation of the attacks follows from its own rows, on development seeds, with the shipped networks."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments" / "goal2" / "attacks"
CARDS = sorted((ROOT / "ccfs" / "attacks").glob("*/card.json"))
DEVELOPMENT = range(3_000_000_000, 3_001_000_000)


def table(name):
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_stored_summary_follows_from_the_stored_rows():
    outcomes = defaultdict(list)
    for row in table("evaluation_rows.csv"):
        outcomes[row["rule"], row["budget"]].append(row["outcome"])
    summary = table("evaluation_summary.csv")
    assert {(line["rule"], line["budget"]) for line in summary} == set(outcomes)
    for line in summary:
        found = outcomes[line["rule"], line["budget"]]
        assert int(line["trials"]) == len(found)
        for kind in ("goal", "horizon", "cost"):
            assert int(line[kind]) == found.count(kind)
        safe = (found.count("goal") + found.count("horizon")) / len(found)
        assert float(line["safe_rate"]) == round(safe, 4)


def test_stored_rows_cover_every_rule_with_the_same_seeds_within_their_budgets():
    seeds = defaultdict(list)
    for row in table("evaluation_rows.csv"):
        seeds[row["rule"], row["budget"]].append(int(row["seed"]))
        # charge 26.25 of the attacked arm: the ledger's energy never exceeds that of the budget
        assert float(row["energy"]) <= 26.25 * float(row["budget"]) ** 2 * (1.0 + 1e-12)
    assert len(set(map(tuple, seeds.values()))) == 1
    assert len({rule for rule, _ in seeds}) >= 6
    assert all(seed in DEVELOPMENT for seed in seeds["none", "0.0"])


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.parent.name)
def test_attack_networks_were_trained_on_development_seeds_other_than_the_evaluated(path):
    low, high = json.loads(path.read_text(encoding="utf-8"))["training_reset_seeds"]
    assert low in DEVELOPMENT
    assert high in DEVELOPMENT
    assert not any(low <= int(row["seed"]) <= high for row in table("evaluation_rows.csv"))
