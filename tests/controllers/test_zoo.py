"""The zoo: shipped controllers match their cards, and an entry that was touched is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_training import NOISE_CONFIG, noise_checkpoint

from ccfs.controllers import ZooError, zoo
from ccfs.controllers.training.export import export
from ccfs.controllers.training.seeds import EVALUATION_SEED_LIMIT
from ccfs.controllers.training.state import CURVE, TrainingState


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return noise_checkpoint(tmp_path)


def test_load_refuses_whatever_does_not_match_its_card(checkpoint: Path, tmp_path: Path) -> None:
    export(checkpoint, zoo_folder=tmp_path / "zoo", record=tmp_path)
    good = tmp_path / "zoo" / NOISE_CONFIG.name
    card = json.loads((good / "card.json").read_text())
    written = (good / "actor.npz").read_bytes()

    def changed(actor: bytes, **fields: object) -> Path:
        folder = tmp_path / "bad"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "actor.npz").write_bytes(actor)
        (folder / "card.json").write_text(json.dumps(card | fields))
        return folder

    for place in (0, len(written) // 2, len(written) - 1):
        flipped = bytearray(written)
        flipped[place] ^= 1
        with pytest.raises(ZooError, match=r"actor\.npz has SHA-256"):
            zoo.load(changed(bytes(flipped)))
    with pytest.raises(ZooError, match="the actor's digest is"):
        zoo.load(changed(written, digest="0" * 64))
    with pytest.raises(ZooError, match="must have format"):
        zoo.load(changed(written, format="ccfs.zoo-card/2"))
    with pytest.raises(ZooError, match="must have the keys"):
        zoo.load(changed(written, accuracy=1.0))
    for field, value in (
        ("steps", "many"), ("steps", -1), ("steps", True), ("steps", 1.5), ("seed", None), ("name", 3),
        ("algorithm", None), ("environment", []), ("command", {}), ("config", []), ("curve", "flat"),
        ("versions", "numpy==0"), ("versions", [1]), ("training_reset_seeds", [1]),
        ("training_reset_seeds", [2, 1]), ("training_reset_seeds", ["1", "2"]), ("training_reset_seeds", 7),
        ("actor_sha256", 0), ("digest", "0" * 63), ("digest", "G" * 64),
    ):  # fmt: skip
        with pytest.raises(ZooError, match=f"`{field}` of a card must be"):
            zoo.load(changed(written, **{field: value}))
    (changed(written) / "card.json").write_text("{")
    with pytest.raises(ZooError, match="A card must be JSON"):
        zoo.load(tmp_path / "bad")
    with pytest.raises(ZooError, match="No controller"):
        zoo.load(tmp_path / "nowhere")
    assert zoo.load(changed(written)).card.steps == 200


def test_shipped_controllers_are_the_papers_and_match_their_cards() -> None:
    entries = {name: zoo.load(name) for name in zoo.names()}
    seeds = {entry.card.seed for entry in entries.values() if entry.card.environment == "SafetyPointGoal2-v0"}
    assert {1120275774, 1346831933, 658990255} <= seeds
    for name, entry in entries.items():
        assert entry.card.name == name
        assert entry.actor.center(np.zeros(entry.actor.observation_size)).shape == (entry.actor.action_size,)


def test_shipped_controllers_are_not_ahead_of_the_committed_checkpoints() -> None:
    """Training may have gone on since an agent was certified; a checkpoint never lags behind its card."""
    record = Path(__file__).parents[2] / "experiments" / "training"
    found = {path.stem: TrainingState.load(path) for path in (record / "checkpoints").glob("*.npz")}
    assert found.keys() == {name for name in zoo.names() if name.startswith("ppolag-")}
    for name, state in found.items():
        card = zoo.load(name).card
        rows = (record / "curves" / f"{name}.csv").read_text().splitlines()
        assert card.steps <= state.steps == 20_000 * (len(rows) - 1)
        assert card.curve["last"]["steps"] == card.steps
        at_export = dict(zip(CURVE, state.curve[card.steps // 20_000 - 1], strict=True))
        assert card.curve["last"]["return"] == pytest.approx(at_export["return"], abs=1e-4)
        assert card.curve["last"]["multiplier"] == pytest.approx(at_export["multiplier"], abs=1e-4)
        if card.steps == state.steps:
            assert card.digest == state.actor().digest
        assert card.training_reset_seeds[0] >= EVALUATION_SEED_LIMIT


@pytest.mark.parametrize("million", [1, 2, 3, 5])
def test_stored_milestones_have_the_step_counts_of_their_folders(million: int) -> None:
    folder = Path(__file__).parents[2] / "experiments" / "training" / "milestones" / f"{million}m"
    entries = [zoo.load(path) for path in sorted(folder.iterdir())]
    assert [entry.card.name for entry in entries] == [name for name in zoo.names() if name.startswith("ppolag-")]
    assert {entry.card.steps for entry in entries} == {million * 1_000_000}
