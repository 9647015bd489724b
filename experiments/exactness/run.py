"""Play many episodes on stock Safety-Gymnasium and on ours side by side and compare every bit that leaves them.

    python experiments/exactness/run.py [--tasks ...] [--seeds 50] [--steps 1000] [--out results]

For each task the reference is `safety_gymnasium.make` itself. Compared, with types and key order: reset and step
results (observation, reward, cost, flags, info), the layout and the layout at reset, and the random state, after
every episode and after every goal. In every fifth episode of a Push task the goal is wider on both sides, because no
simple driver gets the box there often. One JSON file per task is written, with the counts of events that were
compared and a SHA-256 of all compared step results; `checksums.txt` covers the files. The first difference ends the
run; a task that is done is skipped when the command is given again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from drivers import Driver

from ccfs.envs import is_fast, make
from ccfs.envs.safety import fast
from ccfs.envs.safety.selftest import same_bits

HERE = Path(__file__).parent
TASKS = [
    f"Safety{robot}{task}{level}-v0"
    for robot, task in (("Point", "Goal"), ("Point", "Button"), ("Point", "Push"), ("Car", "Goal"))
    for level in (1, 2)
]
GOAL, WIDE_GOAL = 0.3, 0.8


def source_digest() -> str:
    """Return a SHA-256 over the modules that make up the fast environment, in alphabetical order."""
    folder = Path(fast.__file__).parent
    digest = hashlib.sha256()
    for path in [*sorted(folder.glob("_[a-z]*.py")), folder / "fast.py"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


SOURCE = source_digest()


def compare_hidden(stock: Any, ours: Any, where: str) -> None:
    """Compare what later steps depend on: layouts and the random state."""
    one, other = stock.unwrapped.task, ours.unwrapped.task
    for name in ("layout", "reset_layout"):
        same_bits(getattr(one.world_info, name), getattr(other.world_info, name), f"{where} {name}")
    states = [task.random_generator.random_generator.get_state() for task in (one, other)]
    same_bits(states[0], states[1], f"{where} random state")


def reset_outcome(env: Any, seed: int) -> object:
    """Return what a reset returns, or the complaint with which it refuses a layout that starts with a cost."""
    try:
        return env.reset(seed=seed)
    except AssertionError as error:
        return str(error)


def compare_episode(stock: Any, ours: Any, seed: int, steps: int, digest: Any, events: dict[str, int]) -> None:
    """Play one episode on both, compare it, and count what happened in it."""
    for env in (stock, ours):
        if hasattr(env.unwrapped.task, "push_box"):
            env.unwrapped.task.goal.size = WIDE_GOAL if seed % 5 == 0 else GOAL
    first = reset_outcome(stock, seed)
    same_bits(first, reset_outcome(ours, seed), f"seed {seed} reset")
    compare_hidden(stock, ours, f"seed {seed} reset")
    if isinstance(first, str):
        events["refused_resets"] = events.get("refused_resets", 0) + 1
        return
    driver = Driver(stock, seed)
    for step in range(steps):
        action = driver.action()
        where = f"seed {seed} step {step}"
        result = stock.step(action)
        same_bits(result, ours.step(action), where)
        observation, reward, cost, terminated, truncated, info = result
        digest.update(observation.tobytes())
        digest.update(np.array([reward, cost, terminated, truncated]).tobytes())
        events["out_of_range_actions"] += int(np.abs(action).max() > 1.0)
        events["float32_actions"] += int(action.dtype == np.float32)
        for key, value in info.items():
            events[key] = events.get(key, 0) + int(value > 0)
        if "goal_met" in info:
            compare_hidden(stock, ours, where)
        events["steps"] += 1
        if terminated or truncated:
            break
    compare_hidden(stock, ours, f"seed {seed} end")
    events["episodes"] += 1


def command(task: str, seeds: int, steps: int) -> str:
    """Return the command that repeats one task."""
    return f"python experiments/exactness/run.py --tasks {task} --seeds {seeds} --steps {steps}"


def study(task: str, seeds: int, steps: int) -> dict[str, object]:
    """Compare `seeds` episodes of one task; return what was compared."""
    stock, ours = make(task, fast=False), make(task)
    if not is_fast(ours) or is_fast(stock):
        raise SystemExit(f"{task}: nothing to compare, the fast environment fell back to stock.")
    digest = hashlib.sha256()
    events = dict.fromkeys(("episodes", "steps", "out_of_range_actions", "float32_actions"), 0)
    start = time.perf_counter()
    for seed in range(seeds):
        compare_episode(stock, ours, seed, steps, digest, events)
        if seed % 10 == 9:
            print(f"{task}: {seed + 1} of {seeds} seeds equal, {time.perf_counter() - start:.0f} s", flush=True)
    return {
        "task": task,
        "command": command(task, seeds, steps),
        "differences": 0,
        "events": dict(sorted(events.items())),
        "sha256_of_steps": digest.hexdigest(),
        "sha256_of_source": SOURCE,
        "versions": {name: version(name) for name in ("safety-gymnasium", "mujoco", "gymnasium", "numpy")}
        | {"python": platform.python_version(), "machine": platform.machine()},
    }


def write_checksums(folder: Path) -> None:
    """Write the SHA-256 of every result file, in the format of `sha256sum`."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in sorted(folder.glob("*.json"))]
    (folder / "checksums.txt").write_text("\n".join(lines) + "\n")


def main() -> int:
    """Run the study; a difference ends it with a traceback that says where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for task in arguments.tasks:
        path = arguments.out / f"{task}.json"
        if path.exists() and json.loads(path.read_text())["command"] == command(task, arguments.seeds, arguments.steps):
            print(f"{task}: done before", flush=True)
            continue
        result = study(task, arguments.seeds, arguments.steps)
        path.write_text(json.dumps(result, indent=2) + "\n")
        write_checksums(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
