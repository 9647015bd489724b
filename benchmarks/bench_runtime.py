"""Speed of the runtime on the corridor with N = 4: a wrapped step, a recorded step, a short trial, and two processes.

    python benchmarks/bench_runtime.py [FOLDER]

FOLDER holds an installed first edition (`pip install --no-deps --target FOLDER .` in a checkout of it). Both editions
then run in two processes that take turns, so that other work on the machine slows both. Without a folder the figures
are set beside those in `first_edition.json`, which were measured the same way. Times are processor time.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
ROUNDS, STEPS, TRIALS = 7, 4_000, 640
PROTOCOL = """
name = "speed"
seed = 1
horizon = {horizon}
batch = 16
trials = {{ initial_law = {trials} }}
claim = {{ delta = 0.05, target = 0.5, bound = "clopper-pearson" }}
schedules = [{{ name = "four", {stage} = {{ count = 4, sigma = 0.2, multiplier = 1.05 }} }}]
events = [{{ name = "acts", event = "{acts}" }}]
controllers = [{{ name = "steer", make = "{steering}" }}]

[environment]
make = "{corridor}"
arguments = {{ horizon = {horizon} }}

[program]
verifier = {{ make = "{box}", arguments = {{ low = [-0.9], high = [0.9] }} }}
fallbacks = [{{ name = "center", make = "{center}", unverified = true }}]
"""
# What each part is called now, and what it was called in the first edition.
NAMES = {
    "build": ("ccfs.runs.build", "ccfs.building"),
    "executors": ("ccfs.runs.executors", "ccfs.executors"),
    "protocol": ("ccfs.protocol.model", "ccfs.protocol"),
    "run": ("ccfs.runs.run", "ccfs.rollouts"),
    "batches": ("ccfs.runs.batches", "ccfs.batches"),
    "toml": ("ccfs.files.toml", "ccfs.toml"),
}
# What a protocol calls the parts now, and what the first edition called them.
WORDS = {
    "stage": "action",
    "acts": "no-abstention",
    "steering": "steering",
    "corridor": "corridor",
    "box": "box",
    "center": "center",
}
FIRST_WORDS = {
    "stage": "block",
    "acts": "no_abstention",
    "steering": "ccfs.envs.corridor:make_steering",
    "corridor": "ccfs.envs.corridor:make",
    "box": "ccfs.components:BoxVerifier",
    "center": "ccfs.components:CenterFallback",
}


def is_first() -> bool:
    """Return whether the first edition is imported here. Asked of its folder: an import may find the other edition."""
    return not (Path(import_module("ccfs").__file__).parent / "files").is_dir()


def module(part: str):
    """Import a part of whichever edition is installed here."""
    return import_module(NAMES[part][is_first()])


def protocol(horizon: int, trials: int):
    """Return the corridor's protocol."""
    text = PROTOCOL.format(
        horizon=horizon,
        trials=trials,
        **(FIRST_WORDS if is_first() else WORDS),
    )
    return module("protocol").parse_protocol(module("toml").read_toml(text), where="bench")


class Measures:
    """What a child process can measure; each method returns microseconds of processor time."""

    def __init__(self) -> None:
        self._long, self._seed = protocol(STEPS, 16), 0
        self._wrapped, self._controller = module("build").build_arm(self._long, self._long.arms[0], None)

    def inner(self) -> float:
        """Return the time of the environment's own step, with the controller's call."""
        return self._steps(self._wrapped.env)

    def wrapped(self) -> float:
        """Return the time of a wrapped step, with the controller's call."""
        return self._steps(self._wrapped)

    def _steps(self, env) -> float:
        self._seed += 1  # the wrapper warns of a seed that is used twice
        observation, _ = env.reset(seed=self._seed)
        start = time.process_time()
        for _ in range(STEPS):
            observation, *_ = env.step(self._controller.center(observation))
        return 1e6 * (time.process_time() - start) / STEPS

    def recorded(self) -> float:
        """Return the time of a wrapped and recorded step."""
        batches, arm = module("batches"), self._long.arms[0]
        start = time.process_time()
        batches._trial(self._long, arm, self._wrapped, self._controller, 0)
        return 1e6 * (time.process_time() - start) / STEPS

    def trial(self) -> float:
        """Return the time of a five-step trial of a run with batches of 16, once the run has begun."""
        stamps = []
        with tempfile.TemporaryDirectory() as folder:
            module("run").run(
                protocol(5, TRIALS),
                Path(folder) / "run",
                module("executors").serial_engine(),
                where="bench",
                advance=lambda _: stamps.append(time.process_time()),
            )
        return 1e6 * (stamps[-1] - stamps[4]) / (16 * (len(stamps) - 5))

    def memory(self) -> float:
        """Return the megabytes that a batch with a horizon of 30,000 adds to the process."""
        made = protocol(30_000, 16)
        batch = next(module("batches").plan(made, made.arms[0], None))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        module("batches").run_batch(made.canonical, batch)
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


class Contender:
    """One edition in its own process."""

    def __init__(self, folder: str | None) -> None:
        path = [folder] if folder else []
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "bench_runtime.py"), "--child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def measure(self, name: str) -> float:
        """Ask for one measure."""
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()


def child() -> None:
    """Answer the measures that the parent asks for."""
    measures = Measures()
    for line in sys.stdin:
        print(getattr(measures, line.strip())(), flush=True)


def compare(contenders: dict[str, Contender]) -> dict[str, dict[str, float]]:
    """Return the least of alternating rounds for every contender and measure."""
    found: dict[str, dict[str, float]] = {name: {} for name in contenders}
    for measure in ("inner", "wrapped", "recorded", "trial", "memory"):
        for _ in range(1 if measure == "memory" else ROUNDS):
            for name, contender in contenders.items():
                value = contender.measure(measure)
                found[name][measure] = min(value, found[name].get(measure, value))
    return found


def lines(now: dict[str, float], first: dict[str, float]) -> list[str]:
    """Return the figures with their ratios."""
    shown = [
        f"{name:9} {now[name]:9.1f} {unit}   first edition {first[name]:9.1f}   ratio {now[name] / first[name]:.2f}"
        for name, unit in [("inner", "us"), ("wrapped", "us"), ("recorded", "us"), ("trial", "us"), ("memory", "MB")]
    ]
    shown.append(f"wrapped step: {now['wrapped'] / first['wrapped']:.2f} of the first edition's (aim: at most 0.65)")
    shown.append(f"recorded step: {now['recorded'] / now['wrapped']:.2f} times the wrapped one (aim: at most 1.3)")
    scaled = 0.072 * now["trial"] / first["wrapped"]
    shown.append(f"five-step trial where the first edition's wrapped step takes 72 us: {scaled:.2f} ms (aim: 0.6)")
    return shown


def main() -> None:
    """Print the figures of this edition beside those of the first."""
    stored = HERE / "first_edition.json"
    contenders = {"now": Contender(None)}
    if len(sys.argv) > 1:
        contenders["first"] = Contender(sys.argv[1])
    found = compare(contenders)
    for contender in contenders.values():
        contender.close()
    first = found.get("first") or json.loads(stored.read_text())["figures"]
    print("\n".join(lines(found["now"], first)))
    print(json.dumps(found))


if __name__ == "__main__":
    child() if sys.argv[1:] == ["--child"] else main()
