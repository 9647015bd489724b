"""The `ccfs train` command: train controllers in turns, continue them, and export what was reached."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ccfs.controllers.training.plan import Plan

__all__ = ["app"]

_RUNS = Path("runs/training")
_ZOO = Path("controllers/zoo")
_RECORD = Path("experiments/training")

app = typer.Typer(
    name="train",
    help="Train controllers (PPO-Lagrangian with OmniSafe's settings); interrupt and continue at will.",
    invoke_without_command=True,
)


@app.callback()
def train(
    context: typer.Context,
    plan: Annotated[Path | None, typer.Option(help="TOML file naming the controllers and milestones.")] = None,
    algo: Annotated[str, typer.Option(help="ppo-lag, or sb3-ppo for Stable-Baselines3 (extra `sb3`).")] = "ppo-lag",
    environment: Annotated[str, typer.Option(help="Task, without a plan.")] = "SafetyPointGoal2-v0",
    seed: Annotated[int, typer.Option(help="Seed of the controller, without a plan.")] = 0,
    steps: Annotated[int, typer.Option(help="Environment steps to reach, without a plan.")] = 10_000_000,
    penalty: Annotated[float, typer.Option(help="sb3-ppo only: reward minus this times the cost.")] = 0.1,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of runs, without a plan.")] = _RUNS,
) -> None:
    """Train, or continue where the last run stopped. Every epoch is saved; Ctrl-C loses at most one."""
    if context.invoked_subcommand is not None:
        return
    # One thread: batches of 64 are too small to share, and a second thread on a busy core only waits.
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from rich.console import Console

    from ccfs.controllers.training.runner import run_plan

    console = Console()
    # Ctrl-C also where a shell started us in the background, and a polite kill, end with the same message.
    former = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if algo == "sb3-ppo":
            from ccfs.controllers.training.sb3 import train_sb3

            train_sb3(environment, seed=seed, steps=steps, penalty=penalty, folder=output, console=console)
        elif algo == "ppo-lag":
            run_plan(_plan(plan, environment, seed, steps, output), console)
        else:
            raise ValueError(f"`algo` must be ppo-lag or sb3-ppo, got {algo!r}.")
    except (ValueError, TypeError, RuntimeError, OSError, ImportError) as error:
        typer.echo(f"ccfs train: {error}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        console.print("Stopped. The last finished epoch is saved; the same command continues from it.")
        raise typer.Exit(130) from None
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _plan(path: Path | None, environment: str, seed: int, steps: int, folder: Path) -> Plan:
    from ccfs.controllers.training.config import TrainingConfig
    from ccfs.controllers.training.plan import Plan

    if path is not None:
        return Plan.read(path)
    config = TrainingConfig(environment=environment, seed=seed)
    return Plan(configs=(config,), milestones=(steps,), folder=folder)


@app.command()
def export(
    checkpoints: Annotated[list[Path], typer.Argument(help="Checkpoints (.npz) of `ccfs train` runs.")],
    zoo: Annotated[Path, typer.Option(help="Folder of the zoo.")] = _ZOO,
    record: Annotated[Path, typer.Option(help="Folder for resumable checkpoints and learning curves.")] = _RECORD,
) -> None:
    """Write zoo entry, resumable checkpoint and learning curve of each checkpoint, with its true step count."""
    from ccfs.controllers.training.export import export as write

    for path in checkpoints:
        try:
            card = write(path, zoo_folder=zoo, record=record)
        except (ValueError, TypeError, OSError) as error:
            typer.echo(f"ccfs train export: {error}", err=True)
            raise typer.Exit(2) from error
        typer.echo(f"{card.name}: {card.steps:,} steps in {zoo / card.name}")


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(help="Folder of runs.")] = _RUNS,
) -> None:
    """Show how far each run is."""
    from rich.console import Console
    from rich.table import Table

    from ccfs.controllers.training.state import CURVE, TrainingState

    table = Table("controller", *CURVE[:3], "multiplier", "steps/s")
    for path in sorted(folder.glob("*/checkpoint.npz")):
        state = TrainingState.load(path)
        row = dict(zip(CURVE, state.curve[-1], strict=True))
        rate = state.config.steps_per_epoch / (row["rollout_seconds"] + row["update_seconds"])
        shown = (f"{state.steps:,}", f"{row['return']:.2f}", f"{row['cost']:.1f}", f"{row['multiplier']:.3f}")
        table.add_row(state.config.name, *shown, f"{rate:,.0f}")
    Console().print(table)
