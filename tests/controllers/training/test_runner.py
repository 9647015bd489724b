"""The runner: turns, milestones, several processes, and a resumed run on Safety-Gymnasium."""

from __future__ import annotations

import csv
import multiprocessing
from pathlib import Path

import pytest
from rich.console import Console
from small_training import Target, config_with, fresh, make

from ccfs.controllers.training import runner
from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.plan import Plan
from ccfs.controllers.training.runner import run_plan
from ccfs.controllers.training.state import TrainingState

pytestmark = pytest.mark.slow


def test_training_on_safety_gymnasium_resumes_bit_for_bit(tmp_path: Path) -> None:
    # New environments stand for a new process: whatever they remember from before must not matter.
    config = TrainingConfig(
        environment="SafetyPointGoal1-v0", seed=9, environments=2, steps_per_epoch=80, total_steps=160,
        update_iterations=1, hidden_sizes=(8,),
    )  # fmt: skip
    environments = runner.make_environments(config)
    for environment in environments:
        environment.task.num_steps = 25  # an episode ends within each epoch
    straight = runner.fresh(config, environments[0])
    straight.run_epoch(environments)
    straight.save(tmp_path / "run" / "checkpoint.npz")
    straight.run_epoch(environments)
    renewed = runner.make_environments(config)
    for environment in renewed:
        environment.task.num_steps = 25
    resumed = runner.furthest(config, tmp_path / "run")
    resumed.run_epoch(renewed)
    assert resumed.parameters.tobytes() == straight.parameters.tobytes()
    assert resumed.normalizer.mean.tobytes() == straight.normalizer.mean.tobytes()
    assert resumed.episodes == straight.episodes
    assert len(straight.episodes) == 4


def test_plan_takes_turns_and_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = (config_with(seed=1), config_with(seed=2))
    plan = Plan(configs=configs, milestones=(400, 800), folder=tmp_path)
    assert [(c.seed, m) for c, m in plan.turns()] == [(1, 400), (2, 400), (1, 800), (2, 800)]
    calls = 0

    class Interrupted(Target):
        def step(self, action):
            nonlocal calls
            calls += 1
            if calls > 700:  # within the second controller's second epoch
                raise KeyboardInterrupt
            return super().step(action)

    with pytest.raises(KeyboardInterrupt):
        run_plan(plan, Console(quiet=True), make=lambda config: [Interrupted() for _ in range(4)])
    assert TrainingState.load(tmp_path / configs[0].name / "checkpoint.npz").steps == 400
    assert TrainingState.load(tmp_path / configs[1].name / "checkpoint.npz").steps == 200
    run_plan(plan, Console(), make=make)
    straight = fresh(configs[1])
    for _ in range(4):
        straight.run_epoch(make(configs[1]))
    ended = TrainingState.load(tmp_path / configs[1].name / "milestone-800.npz")
    assert ended.actor().digest == straight.actor().digest
    assert any(version.startswith("numpy==") for version in ended.versions)
    with (tmp_path / configs[1].name / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["steps"]) for row in rows] == [200.0, 400.0, 600.0, 800.0]
    assert "800 steps" in capsys.readouterr().out
    run_plan(plan, Console(), make=make)
    assert capsys.readouterr().out == "The plan is done: every controller has 800 steps.\n"


def test_plan_continues_from_a_committed_checkpoint(tmp_path: Path) -> None:
    config = config_with()
    state = fresh(config)
    for _ in range(2):
        state.run_epoch(make(config))
    state.save(tmp_path / "committed" / f"{config.name}.npz")
    folders = {"folder": tmp_path / "runs", "checkpoints": tmp_path / "committed"}
    run_plan(Plan(configs=(config,), milestones=(200, 400, 600), **folders), Console(quiet=True), make=make)
    # A milestone that lay behind is not written with another step count.
    written = {path.name: TrainingState.load(path).steps for path in (tmp_path / "runs" / config.name).glob("*.npz")}
    assert written == {"checkpoint.npz": 600, "milestone-600.npz": 600}
    state.run_epoch(make(config))
    ended = TrainingState.load(tmp_path / "runs" / config.name / "checkpoint.npz")
    assert ended.parameters.tobytes() == state.parameters.tobytes()


def test_furthest_refuses_other_settings(tmp_path: Path) -> None:
    fresh(config_with()).save(tmp_path / "checkpoint.npz")
    with pytest.raises(ValueError, match="other settings"):
        runner.furthest(config_with(clip=0.1), tmp_path)
    assert runner.furthest(config_with(), tmp_path / "nowhere") is None


def test_processes_share_a_plan_and_never_a_controller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    busy, free = config_with(), config_with(seed=8)
    plan = Plan(configs=(busy, free), milestones=(200, 400), folder=tmp_path)
    with runner._claimed(tmp_path / busy.name) as is_mine:
        assert is_mine
        run_plan(plan, Console(), make=make)
    assert f"{busy.name}: another process is training it." in capsys.readouterr().out
    assert not (tmp_path / busy.name / "checkpoint.npz").exists()
    assert TrainingState.load(tmp_path / free.name / "checkpoint.npz").steps == 400

    run_plan(plan, Console(), make=make)
    assert "another process" not in capsys.readouterr().out
    alone = Plan(configs=(busy,), milestones=(200, 400), folder=tmp_path / "alone")
    run_plan(alone, Console(quiet=True), make=make)
    ended = [TrainingState.load(folder / busy.name / "checkpoint.npz") for folder in (tmp_path, tmp_path / "alone")]
    assert ended[0].parameters.tobytes() == ended[1].parameters.tobytes()


def test_a_milestone_is_written_even_if_interrupted_right_after_it(tmp_path: Path, monkeypatch) -> None:
    plan = Plan(configs=(config_with(),), milestones=(200, 400), folder=tmp_path)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(runner, "write_curve", stop)
        with pytest.raises(KeyboardInterrupt):
            run_plan(plan, Console(quiet=True), make=make)
    run_plan(plan, Console(quiet=True), make=make)
    steps = {path.name: TrainingState.load(path).steps for path in (tmp_path / config_with().name).glob("*.npz")}
    assert steps == {"checkpoint.npz": 400, "milestone-200.npz": 200, "milestone-400.npz": 400}


def test_real_processes_share_a_plan_and_write_every_milestone(tmp_path: Path) -> None:
    """Two processes at once: each controller passes each milestone once, and its weights are those of one process."""
    configs, milestones = tuple(config_with(seed=seed) for seed in (1, 2, 3)), (200, 400, 600)
    plan = Plan(configs=configs, milestones=milestones, folder=tmp_path / "shared")
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else None)
    workers = [context.Process(target=run_plan, args=(plan, Console(quiet=True)), kwargs={"make": make}) for _ in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    run_plan(plan, Console(quiet=True), make=make)
    run_plan(Plan(configs=configs, milestones=milestones, folder=tmp_path / "alone"), Console(quiet=True), make=make)
    for config in configs:
        for milestone in milestones:
            name = f"{config.name}/milestone-{milestone}.npz"
            shared, alone = (TrainingState.load(tmp_path / folder / name) for folder in ("shared", "alone"))
            assert shared.steps == milestone
            assert shared.parameters.tobytes() == alone.parameters.tobytes()
