"""Run a training plan: resume from the last checkpoint, save after each epoch, show progress."""

from __future__ import annotations

import copy
import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID

from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.plan import Plan
from ccfs.controllers.training.rollout import CostEnvironment, Space, reset
from ccfs.controllers.training.seeds import reset_seeds
from ccfs.controllers.training.state import CURVE, TrainingState
from ccfs.files.atomic import PARTIAL, remove_together, settle, write_atomically
from ccfs.files.lock import LockedError, locked
from ccfs.files.terminal import progress_display

__all__ = ["fresh", "furthest", "make_environments", "run_plan", "versions", "write_curve"]

EnvironmentMaker = Callable[[TrainingConfig], Sequence[CostEnvironment]]
_PACKAGES = ("ccfs-rl", "gymnasium", "mujoco", "numpy", "safety-gymnasium")


def run_plan(plan: Plan, console: Console, *, make: EnvironmentMaker | None = None) -> None:
    """Work through the plan from where it stands. An interruption loses at most the epoch in progress.

    Several processes may share a plan, one per core. Each takes the first turn whose controller is free.
    """
    settle(plan.folder)
    environments: Sequence[CostEnvironment] | None = None
    while turns := _open_turns(plan):
        # Made only if there is work, and once: all controllers of a plan train on the same copies.
        environments = environments or (make or make_environments)(plan.configs[0])
        for config, milestone in turns:
            with _claimed(plan.folder / config.name) as is_mine:
                if is_mine:
                    _take(plan, config, milestone, environments, console)
                    break
        else:
            for config, _ in turns:
                console.print(f"{config.name}: another process is training it.", highlight=False, soft_wrap=True)
            return
    last = plan.milestones[-1]
    console.print(f"The plan is done: every controller has {last:,} steps.", highlight=False, soft_wrap=True)


def _open_turns(plan: Plan) -> list[tuple[TrainingConfig, int]]:
    """Return the next turn of every controller that has one, in the plan's order."""
    reached = {}
    for config in plan.configs:
        state = furthest(config, plan.folder / config.name, committed=plan.checkpoints)
        reached[config] = 0 if state is None else state.steps
    first: dict[TrainingConfig, int] = {}
    for config, milestone in plan.turns():
        if milestone > reached[config]:
            first.setdefault(config, milestone)
    return list(first.items())


def _take(
    plan: Plan, config: TrainingConfig, milestone: int, environments: Sequence[CostEnvironment], console: Console
) -> None:
    """Train a claimed controller until the milestone. Load it first, because another process may have trained it."""
    folder = plan.folder / config.name
    state = furthest(config, folder, committed=plan.checkpoints) or fresh(config, environments[0])
    if state.steps < milestone:
        _run_turn(state, folder, environments, until=milestone, console=console)


def furthest(config: TrainingConfig, folder: Path, *, committed: Path | None = None) -> TrainingState | None:
    """Return the most advanced checkpoint of this run, None if there is none. Other settings are refused."""
    found = [folder / "checkpoint.npz", *([committed / f"{config.name}.npz"] if committed else [])]
    states = [TrainingState.load(path) for path in found if path.exists()]
    if any(state.config != config for state in states):
        raise ValueError(f"{folder} holds a run with other settings. Choose another folder or the same settings.")
    # A committed checkpoint may be ahead of the folder, for instance in a fresh clone.
    return max(states, key=lambda state: state.steps, default=None)


def fresh(config: TrainingConfig, environment: CostEnvironment) -> TrainingState:
    """Return the state before the first epoch on such environments."""
    sizes = (_size(environment.observation_space), _size(environment.action_space))
    return TrainingState.fresh(config, observation_size=sizes[0], action_size=sizes[1])


def make_environments(config: TrainingConfig) -> Sequence[CostEnvironment]:
    """Return the configured number of fast environments, all in this process, each reset once.

    The first reset of a Safety-Gymnasium environment computes forces once, and later ones twice, which changes the last
    bits. After one reset, a resumed run is bit for bit the uninterrupted one.
    """
    from ccfs.envs.registration import builder_of

    kind, spec = builder_of(config.environment)
    environments = [kind(**copy.deepcopy(spec.kwargs)) for _ in range(config.environments)]
    # The seeds of an epoch that the run never reaches, so no training episode is spent.
    seeds = reset_seeds(config.seed, config.epochs)
    for environment in environments:
        reset(environment, seeds)
    return environments


def write_curve(state: TrainingState, path: Path) -> None:
    """Write the learning curve as CSV, atomically."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(CURVE)
    writer.writerows([f"{number:.9g}" for number in row] for row in state.curve)
    write_atomically(path, text.getvalue().encode())


def versions(*more: str) -> frozenset[str]:
    """Return name==version of the packages that determine the results of training, and of `more`."""
    found = set()
    for name in (*_PACKAGES, *more):
        try:
            found.add(f"{name}=={metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return frozenset(found)


def _run_turn(
    state: TrainingState, folder: Path, environments: Sequence[CostEnvironment], *, until: int, console: Console
) -> None:
    state.versions = state.versions | versions()
    with progress_display(console) as progress:
        task = progress.add_task(state.config.name, total=until, completed=state.steps, note="", found=state.steps)
        while state.steps < until:
            state.run_epoch(environments)
            # The checkpoint comes last. It says that the epoch is done, and then nobody would write the others again.
            if state.steps == until:
                state.save(folder / f"milestone-{until}.npz")
            write_curve(state, folder / "curve.csv")
            state.save(folder / "checkpoint.npz")
            _show(progress, task, state)
    done = f"{state.config.name}: {state.steps:,} steps, checkpoint in {folder}"
    console.print(done, highlight=False, soft_wrap=True)


def _show(progress: Progress, task: TaskID, state: TrainingState) -> None:
    row = dict(zip(CURVE, state.curve[-1], strict=True))
    rate = state.config.steps_per_epoch / (row["rollout_seconds"] + row["update_seconds"])
    note = f"return {row['return']:.2f}  cost {row['cost']:.1f}  λ {row['multiplier']:.3f}  {rate:,.0f} steps/s"
    progress.update(task, completed=state.steps, note=note)


def _size(space: Space) -> int:
    if space.shape is None or len(space.shape) != 1:
        raise ValueError(f"Spaces must be flat boxes, got shape {space.shape}.")
    return space.shape[0]


@contextmanager
def _claimed(folder: Path) -> Iterator[bool]:
    """Give True while only this process may train in `folder`. The claim ends with the process, even by a kill."""
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder))
        except LockedError:
            yield False
        else:
            remove_together(list(folder.glob(f"{PARTIAL}*")))
            yield True
