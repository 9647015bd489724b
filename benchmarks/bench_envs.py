"""Speed of our Safety-Gymnasium against stock: CPU time of 500-step episodes, reset included, taken in turns.

Stock and ours play the same seeds and actions, one episode each in alternation, in one process on one core; the ratio
of the two totals is what counts. CPU time is used because other work on the machine does not enter it. Memory is the
peak of a fresh process that makes an environment, resets it and steps it.

    python benchmarks/bench_envs.py [--episodes 3] [--tasks SafetyPointGoal2-v0 ...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from ccfs.envs import is_fast, make

STEPS = 500
REQUIRED = {
    "SafetyPointGoal2-v0": 4.5,
    "SafetyPointGoal1-v0": 12.0,
    "SafetyPointButton1-v0": 3.0,
    "SafetyPointButton2-v0": 3.0,
    "SafetyPointPush1-v0": 3.0,
    "SafetyPointPush2-v0": 3.0,
    "SafetyCarGoal1-v0": 3.0,
    "SafetyCarGoal2-v0": 3.0,
}
MEMORY_LIMIT_MB = 120.0
WORKER = """
import sys
from ccfs.envs import make
env = make("SafetyPointGoal2-v0", fast=sys.argv[1] == "fast")
for seed in range(2):
    env.reset(seed=seed)
    for _ in range(100):
        env.step(env.action_space.high)
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def episode_seconds(env, seed: int) -> float:
    """Return the CPU time of one reset and `STEPS` steps."""
    actions = np.random.default_rng(seed).uniform(-1.0, 1.0, (STEPS, *env.action_space.shape))
    start = time.process_time()
    env.reset(seed=seed)
    for action in actions:
        env.step(action)
    return time.process_time() - start


def compare(task: str, episodes: int) -> tuple[float, float]:
    """Return total CPU seconds of stock and of ours over the same episodes, played in turns after one reset each."""
    contenders = {"stock": make(task, fast=False), "fast": make(task)}
    if not is_fast(contenders["fast"]):
        raise SystemExit(f"{task}: the fast environment fell back to stock.")
    for env in contenders.values():
        env.reset(seed=0)
    total = dict.fromkeys(contenders, 0.0)
    for seed in range(1, episodes + 1):
        for name, env in contenders.items():
            total[name] += episode_seconds(env, seed)
    return total["stock"], total["fast"]


def worker_megabytes(kind: str) -> float:
    """Return the peak memory of a fresh worker process."""
    output = subprocess.run([sys.executable, "-c", WORKER, kind], check=True, capture_output=True, text=True)
    return float(output.stdout) / 1024


def main() -> int:
    """Print one line per task and return 1 if a requirement is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", default=list(REQUIRED), choices=list(REQUIRED))
    arguments = parser.parse_args()
    missed = False
    print(f"{'task':24}{'stock s/episode':>16}{'ours s/episode':>16}{'ratio':>8}{'required':>10}")
    for task in arguments.tasks:
        stock, ours = compare(task, arguments.episodes)
        ratio, required = stock / ours, REQUIRED[task]
        missed |= ratio < required
        seconds = f"{stock / arguments.episodes:16.3f}{ours / arguments.episodes:16.3f}"
        print(f"{task:24}{seconds}{ratio:8.2f}{required:10.1f}{'' if ratio >= required else '  MISSED'}", flush=True)
    ours, stock = worker_megabytes("fast"), worker_megabytes("stock")
    missed |= ours >= MEMORY_LIMIT_MB
    print(f"memory of a worker: {ours:.0f} MB (required: below {MEMORY_LIMIT_MB:.0f}), stock {stock:.0f} MB")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
