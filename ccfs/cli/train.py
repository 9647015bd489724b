"""The `ccfs train` commands: train controllers, continue their training, export them, and show how far they are."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfs.cli.shared import JsonOption, interruptible, print_table
from ccfs.files.terminal import echo, echo_error

if TYPE_CHECKING:
    from ccfs.controllers.training.plan import Plan

__all__ = ["app"]

_RUNS = Path("runs/training")
_ZOO = Path("controllers/zoo")
_RECORD = Path("experiments/training")
_TASK, _STEPS = "SafetyPointGoal2-v0", 10_000_000
_NAMES = {"ppo-lag": "ppolag", "trpo-lag": "trpolag", "cpo": "cpo", "ppo-penalty": "ppo-penalty"}
_INTERRUPTED = {
    **dict.fromkeys(_NAMES, "The last finished epoch is saved. The same command continues from it."),
    "sb3-ppo": "Training is saved every 100,000 steps. The same command continues from there.",
}

app = typer.Typer(
    name="train",
    help="Train controllers by PPO-Lagrangian, TRPO-Lagrangian, CPO or PPO with a penalty, with OmniSafe's settings.",
    invoke_without_command=True,
)


@app.callback()
def train(
    context: typer.Context,
    plan: Annotated[Path | None, typer.Option(help="TOML file with the controllers and milestones.")] = None,
    algo: Annotated[
        str, typer.Option(help="ppo-lag, trpo-lag, cpo, ppo-penalty, or sb3-ppo of Stable-Baselines3 (extra `sb3`).")
    ] = "ppo-lag",
    environment: Annotated[str | None, typer.Option(help=f"Task, without a plan. Default: {_TASK}.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the controller, without a plan. Default: 0.")] = None,
    steps: Annotated[int | None, typer.Option(help=f"Steps to reach, without a plan. Default: {_STEPS}.")] = None,
    penalty: Annotated[
        float | None,
        typer.Option(help="The price of cost. Default: 0.1 for sb3-ppo, 1 for ppo-penalty. Others set it themselves."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help=f"Folder of runs, without a plan. Default: {_RUNS}.")
    ] = None,
) -> None:
    """Train, or continue where the last run stopped.

    Every epoch is saved. Ctrl-C loses at most one epoch, and the same command continues. sb3-ppo saves every 100,000
    steps.
    """
    if context.invoked_subcommand is not None:
        return
    # One thread is fastest: batches of 64 are too small to share, and a second thread on a busy core only waits.
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from rich.console import Console

    console = Console()
    given = {
        "plan": plan, "environment": environment, "seed": seed, "steps": steps, "output": output, "penalty": penalty,
    }  # fmt: skip
    if algo not in _INTERRUPTED:
        raise ValueError(f"`--algo` must be one of {', '.join(_INTERRUPTED)}, got {algo!r}.")
    _refuse_ignored(algo, plan, given)
    task, number, folder = environment or _TASK, seed or 0, output or _RUNS
    aim = _STEPS if steps is None else steps
    with interruptible(_INTERRUPTED[algo]):
        if algo == "sb3-ppo":
            from ccfs.controllers.training.sb3 import train_sb3

            price = 0.1 if penalty is None else penalty
            train_sb3(task, seed=number, steps=aim, penalty=price, folder=folder, console=console)
        else:
            from ccfs.controllers.training.runner import run_plan

            price_held = {} if penalty is None else {"multiplier_init": penalty}
            run_plan(_plan(plan, _NAMES[algo], task, number, aim, folder, price_held), console)


def _refuse_ignored(algo: str, plan: Path | None, given: Mapping[str, object]) -> None:
    """Refuse options that would have no effect, because the user expects one."""
    why = {} if algo == "ppo-lag" else {"plan": f"{algo} trains one controller"}
    if algo in ("ppo-lag", "trpo-lag", "cpo"):
        why["penalty"] = "it belongs to sb3-ppo and ppo-penalty"
    if plan is not None:
        why = dict.fromkeys(("environment", "seed", "steps", "output"), "the plan says it") | why
    for name, reason in why.items():
        if given[name] is not None:
            raise ValueError(f"`--{name}` must not be given here: {reason}. Leave it out.")


def _plan(
    path: Path | None,
    algorithm: str,
    environment: str,
    seed: int,
    steps: int,
    folder: Path,
    settings: Mapping[str, float],
) -> Plan:
    from ccfs.controllers.training.config import TrainingConfig
    from ccfs.controllers.training.plan import Plan

    if path is not None:
        return Plan.read(path)
    config = TrainingConfig.of(algorithm, environment=environment, seed=seed, **settings)
    if not (0 < steps <= config.total_steps and steps % config.steps_per_epoch == 0):
        epochs = f"{config.steps_per_epoch} (an epoch) up to {config.total_steps}"
        raise ValueError(f"`--steps` must be a multiple of {epochs}, got {steps}.")
    return Plan(configs=(config,), milestones=(steps,), folder=folder)


@app.command()
def export(
    checkpoints: Annotated[list[Path], typer.Argument(help="Checkpoints (.npz) of `ccfs train` runs.")],
    zoo: Annotated[Path, typer.Option(help="Folder of the zoo.")] = _ZOO,
    record: Annotated[Path, typer.Option(help="Folder for checkpoints and learning curves.")] = _RECORD,
) -> None:
    """Write the zoo entry, the checkpoint and the learning curve of trained controllers."""
    from ccfs.controllers.training.export import export as write

    for path in checkpoints:
        card = write(path, zoo_folder=zoo, record=record)
        echo(f"{card.name}: {card.steps:,} steps in {zoo / card.name}")


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(help="Folder of runs.")] = _RUNS,
    as_json: JsonOption = False,
) -> None:
    """Show how far each run is."""
    from ccfs.controllers.training.plan import training_status

    found = training_status(folder)
    if as_json:
        echo(found.to_bytes().decode().rstrip())
        return
    for error in found.unread:
        echo_error(error)
    rows = [
        (one.controller, f"{one.steps:,}", f"{one.episode_return:.2f}", f"{one.episode_cost:.1f}",
         f"{one.multiplier:.3f}", f"{one.steps_per_second:,.0f}")
        for one in found.runs
    ]  # fmt: skip
    print_table("Training", ("controller", "steps", "return", "cost", "multiplier", "steps/s"), rows)
