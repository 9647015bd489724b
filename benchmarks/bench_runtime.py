"""Speed of the runtime: the wrapper's cost a step, and local processes against the serial engine, alternating."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import gymnasium
import numpy as np

from ccfs.components import BoxVerifier, CenterFallback
from ccfs.executors import Engine, process_engine, serial_engine
from ccfs.program import CausalProgram, FallbackEntry
from ccfs.protocol import parse_protocol
from ccfs.rollouts import run
from ccfs.schedules import ProposalSchedule
from ccfs.toml import read_toml
from ccfs.wrapper import ProposalWrapper

STEPS, ROUNDS = 5_000, 7
PROTOCOL = """
name = "busy"
seed = 1
horizon = 50
batch = 4
trials = { initial_law = 120 }
claim = { delta = 0.05, target = 0.5, bound = "clopper-pearson" }
environment = { make = "bench_runtime:Busy" }
controllers = [{ name = "still", make = "bench_runtime:Still" }]
schedules = [{ name = "four", block = { count = 4, sigma = 0.2 } }]
program = { verifier = { make = "ccfs.components:AcceptAll" } }
events = [{ name = "acts", event = "no_abstention" }]
"""


class Quick(gymnasium.Env):
    """Does nothing at all, with an observation of 60 numbers."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (60,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        """Return zeros."""
        return np.zeros(60), {}

    def step(self, action):
        """Return zeros."""
        return np.zeros(60), 0.0, False, False, {"cost": 0.0}


class Busy(Quick):
    """Burns about a millisecond of one core a step, as a simulator does."""

    def step(self, action):
        """Count."""
        total = 0
        for i in range(20_000):
            total += i
        return np.full(60, float(total > 0)), 0.0, False, False, {"cost": 0.0}


class Still:
    """A controller that stays."""

    digest = "still"

    def reset(self) -> None:
        """Do nothing."""

    def center(self, observation):
        """Return zero."""
        return np.zeros(2)


def actor():
    """Return a numpy actor of the usual size, 60-64-64-2."""
    rng = np.random.default_rng(0)
    first, second, last = (0.1 * rng.standard_normal(shape) for shape in ((60, 64), (64, 64), (64, 2)))
    return lambda observation: np.tanh(np.tanh(observation @ first) @ second) @ last


def seconds_a_step(env, policy) -> float:
    """Return the processor time of one step with the policy's call: other work on the machine does not count."""
    observation, _ = env.reset(seed=0)
    start = time.process_time()
    for _ in range(STEPS):
        observation, *_ = env.step(policy(observation))
    return (time.process_time() - start) / STEPS


def overhead() -> float:
    """Return the wrapper's own time a step in microseconds: the least of alternating rounds."""
    plain = Quick()
    entry = FallbackEntry(name="center", fallback=CenterFallback(), unverified=True)
    verifier = BoxVerifier(low=(-0.9, -0.9), high=(0.9, 0.9))
    program = CausalProgram.for_space(plain.action_space, verifier=verifier, fallbacks=(entry,))
    schedule = ProposalSchedule.from_multiplier(4, 0.2, 1.05)
    wrapped = ProposalWrapper(Quick(), program=program, schedules=schedule, seed=0)
    policy = actor()
    rounds = [(seconds_a_step(plain, policy), seconds_a_step(wrapped, policy)) for _ in range(ROUNDS)]
    return 1e6 * (min(full for _, full in rounds) - min(bare for bare, _ in rounds))


def rate(engine: Engine) -> float:
    """Return trials a second once every worker is at work: from the fifth finished batch to the last."""
    protocol = parse_protocol(read_toml(PROTOCOL), where="bench")
    stamps: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        run(protocol, Path(folder) / "run", engine, where="bench", advance=lambda _: stamps.append(time.perf_counter()))
    return protocol.batch * (len(stamps) - 5) / (stamps[-1] - stamps[4])


def main() -> None:
    """Print both."""
    print(f"wrapper: {overhead():.1f} us a step beyond the inner step (N = 4, numpy actor, 60 numbers; limit 60)")
    serial, processes = zip(*((rate(serial_engine()), rate(process_engine(2))) for _ in range(3)), strict=True)
    ratio = max(processes) / max(serial)
    print(f"two processes: {ratio:.2f} times serial ({max(processes):.1f} against {max(serial):.1f} trials/s; aim 1.8)")


if __name__ == "__main__":
    # Workers import this file by name.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    sys.path.insert(0, str(Path(__file__).parent))
    main()
