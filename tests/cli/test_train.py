"""The command `ccfs train`: what it shows, how it stops, and what it refuses."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from small_training import noise_checkpoint
from typer.testing import CliRunner

from ccfs.cli.main import app
from ccfs.controllers.training import runner
from ccfs.controllers.training.state import TrainingDivergedError, TrainingState


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return noise_checkpoint(tmp_path)


def test_status_shows_how_far_runs_are(checkpoint: Path) -> None:
    result = CliRunner().invoke(app, ["train", "status", str(checkpoint.parents[1])])
    assert result.exit_code == 0, result.output
    assert "200" in result.output


def test_train_refuses_bad_input(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("seeds = [1]")
    plan = str(tmp_path / "plan.toml")
    for arguments, message in (
        (["--algo", "dqn"], "must be one of ppo-lag, trpo-lag, cpo, ppo-penalty, sb3-ppo"),
        (["--steps", "30000"], "`--steps` must be a multiple of 20000"),
        (["--steps", "0"], "`--steps` must be a multiple of 20000"),
        (["--plan", str(tmp_path / "none.toml")], "No such file"),
        (["--plan", plan, "--seed", "0"], "`--seed` must not be given here: the plan says it"),
        (["--plan", plan, "-o", "elsewhere"], "`--output` must not be given here: the plan says it"),
        (["--penalty", "0.1"], "`--penalty` must not be given here: it belongs to sb3-ppo"),
        (["--algo", "trpo-lag", "--penalty", "0.1"], "`--penalty` must not be given here: it belongs to sb3-ppo"),
        (["--algo", "cpo", "--penalty", "0.1"], "`--penalty` must not be given here: it belongs to sb3-ppo"),
        (["--algo", "sb3-ppo", "--plan", plan], "`--plan` must not be given here"),
        (["--algo", "trpo-lag", "--plan", plan], "`--plan` must not be given here"),
    ):
        result = CliRunner().invoke(app, ["train", *arguments])
        assert result.exit_code == 2
        assert message in result.output


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"garbage"])
def test_a_broken_checkpoint_is_named_by_every_command(checkpoint: Path, tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "runs" / checkpoint.parent.name
    folder.mkdir(parents=True)
    (folder / "checkpoint.npz").write_bytes(content)
    with pytest.raises(ValueError, match="must be a whole checkpoint"):
        TrainingState.load(folder / "checkpoint.npz")
    shown = CliRunner().invoke(app, ["train", "status", str(tmp_path / "runs")])
    assert shown.exit_code == 0
    assert "must be a whole checkpoint" in shown.output
    exported = CliRunner().invoke(app, ["train", "export", str(folder / "checkpoint.npz"), "--zoo", str(tmp_path)])
    assert exported.exit_code == 2
    assert "must be a whole checkpoint" in exported.output


def test_divergence_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(plan: object, console: object) -> None:
        raise TrainingDivergedError("Epoch 3 left a weight that is not finite.")

    monkeypatch.setattr(runner, "run_plan", diverge)
    result = CliRunner().invoke(app, ["train", "-o", str(tmp_path)])
    assert result.exit_code == 2
    assert "Epoch 3 left a weight" in result.output


def test_train_stopped_by_a_signal_says_how_to_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(runner, "run_plan", lambda plan, console: signal.raise_signal(signal.SIGTERM))
    result = CliRunner().invoke(app, ["train", "-o", str(tmp_path)])
    assert result.exit_code == 143
    assert "The same command continues" in result.output
    assert signal.getsignal(signal.SIGTERM) is before


def test_stopped_sb3_says_what_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ccfs.controllers.training import sb3

    monkeypatch.setattr(sb3, "train_sb3", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    result = CliRunner().invoke(app, ["train", "--algo", "sb3-ppo", "-o", str(tmp_path)])
    assert result.exit_code == 130
    assert "saved every 100,000 steps" in result.output
