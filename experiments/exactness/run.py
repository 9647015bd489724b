"""Play many episodes on stock Safety-Gymnasium and on ours side by side and compare every bit that leaves them.

    python experiments/exactness/run.py [--tasks ...] [--seeds 50] [--steps 1000] [--out results]

For each task the reference is `safety_gymnasium.make` itself. The study compares reset and step results (observation,
reward, cost, flags, info) with types and key order. After every episode and every goal it also compares the layout,
the layout at reset and the random state. In every fifth episode of a Push task the goal is wider on both sides,
because no simple driver gets the box there often.

The study writes one JSON file per task, with the counts of compared events, a SHA-256 of all compared step results and
a digest of the compared code. `checksums.txt` covers the files. The first difference ends the run. A task whose file is
of the same command and the same code is skipped.
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
from ccfs.files.code import file_code_digest

HERE = Path(__file__).parent
TASKS = [
    f"Safety{robot}{task}{level}-v0"
    for robot, task in (("Point", "Goal"), ("Point", "Button"), ("Point", "Push"), ("Car", "Goal"))
    for level in (1, 2)
]
GOAL, WIDE_GOAL = 0.3, 0.8


COMPARED = (
    "compat", "costs", "fast", "layout", "lidar", "physics", "rewards", "sensors", "support", "world", "xml",
)  # fmt: skip
"""The modules of `ccfs.envs.safety` that a fast reset or step runs."""


def source_digest() -> str:
    """Return one digest over the code of the compared modules. A comment or a docstring does not change it."""
    folder = Path(fast.__file__).parent
    told = "".join(f"{name} {file_code_digest(folder / f'{name}.py')}\n" for name in COMPARED)
    return hashlib.sha256(told.encode()).hexdigest()


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


def is_same_study(result: dict[str, object], task: str, seeds: int, steps: int) -> bool:
    """Say whether a stored result is what this run would write again."""
    return result["command"] == command(task, seeds, steps) and result["sha256_of_source"] == SOURCE


def study(task: str, seeds: int, steps: int) -> dict[str, object]:
    """Compare `seeds` episodes of one task and return what was compared."""
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
    """Run the study. A difference ends it with a traceback that says where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for task in arguments.tasks:
        path = arguments.out / f"{task}.json"
        if path.exists() and is_same_study(json.loads(path.read_text()), task, arguments.seeds, arguments.steps):
            print(f"{task}: done before", flush=True)
            continue
        result = study(task, arguments.seeds, arguments.steps)
        path.write_text(json.dumps(result, indent=2) + "\n")
        write_checksums(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
