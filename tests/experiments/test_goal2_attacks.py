"""The shipped attack networks: trained on development seeds, and named by their digests in the study's protocols."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ccfs.protocol.model import load_protocol

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
CARDS = {path.parent.name: path for path in sorted((ROOT / "ccfs" / "attacks" / "networks").glob("*/card.json"))}
DEVELOPMENT = range(3_000_000_000, 3_001_000_000)


@pytest.mark.parametrize("name", CARDS)
def test_attack_networks_were_trained_on_development_seeds(name):
    low, high = json.loads(CARDS[name].read_text(encoding="utf-8"))["training_reset_seeds"]
    assert low in DEVELOPMENT
    assert high in DEVELOPMENT


def test_protocols_name_every_shipped_attack_network_by_its_digest():
    named = set()
    for path in (ROOT / "experiments" / "goal2").glob("*.toml"):
        for attack in load_protocol(path).attacks:
            if "digest" in attack.arguments:
                name = attack.arguments["name"]
                assert attack.arguments["digest"] == json.loads(CARDS[name].read_text(encoding="utf-8"))["digest"]
                named.add(name)
    assert named == set(CARDS)
