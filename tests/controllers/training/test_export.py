"""What an exported card says is what was trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_training import NOISE_CONFIG, Noise, noise_checkpoint
from typer.testing import CliRunner

from ccfs.cli.main import app
from ccfs.controllers import zoo
from ccfs.controllers.training.export import export
from ccfs.controllers.training.seeds import EVALUATION_SEED_LIMIT
from ccfs.controllers.training.state import TrainingState


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return noise_checkpoint(tmp_path)


def test_export_writes_the_truth(checkpoint: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["train", "export", str(checkpoint), "--zoo", str(tmp_path / "zoo"), "--record", str(tmp_path / "record")]
    )
    assert result.exit_code == 0, result.output
    assert "200 steps" in result.output
    state = TrainingState.load(checkpoint)
    entry = zoo.load(tmp_path / "zoo" / NOISE_CONFIG.name)
    assert entry.card.steps == state.steps == 200
    assert entry.card.config["total_steps"] == 400
    assert entry.card.seed == 5
    assert entry.card.versions == ("numpy==0",)
    assert entry.card.training_reset_seeds == (EVALUATION_SEED_LIMIT, 2**32 - 1)
    assert entry.actor.digest == state.actor().digest == entry.card.digest
    resumed = TrainingState.load(tmp_path / "record" / "checkpoints" / f"{NOISE_CONFIG.name}.npz")
    assert resumed.parameters.tobytes() == state.parameters.tobytes()
    assert (tmp_path / "record" / "curves" / f"{NOISE_CONFIG.name}.csv").read_text().count("\n") == 3


def test_export_repeats_to_the_byte(checkpoint: Path, tmp_path: Path) -> None:
    cards = [export(checkpoint, zoo_folder=tmp_path / name, record=tmp_path / name) for name in ("a", "b")]
    assert cards[0] == cards[1]


def test_export_does_not_replace_a_controller_trained_further(checkpoint: Path, tmp_path: Path) -> None:
    folders = {"zoo_folder": tmp_path / "zoo", "record": tmp_path}
    export(checkpoint, **folders)
    young = TrainingState.fresh(NOISE_CONFIG, observation_size=3, action_size=2)
    young.save(tmp_path / "young.npz")
    with pytest.raises(ValueError, match="must hold at least one epoch"):
        export(tmp_path / "young.npz", **folders)
    young.run_epoch([Noise(), Noise()])
    young.save(tmp_path / "young.npz")
    with pytest.raises(ValueError, match="The checkpoint has only 100"):
        export(tmp_path / "young.npz", **folders)
    assert zoo.load(tmp_path / "zoo" / NOISE_CONFIG.name).card.steps == 200
