"""Attack agent C1 with an adversary that simulates what is to come: how much harm does it do?

    python experiments/goal2/lookahead.py   # lookahead.csv, about an hour of one core; goes on where it stopped

No attacker on the spot could know so much, but the certificate covers it: its shifts depend on the past alone. It has a
copy of the world in the state of the trial. Near an obstacle it rolls out futures with fresh noise, without shift and
with each of eight shifts that are held for 25 steps. It takes the one after which most futures meet a cost, if enough
do. One such shift spends the whole budget. Each trial has the reset seed and the noise of a nominal trial of the study
harm, so the two are compared as a pair. The settings were tried by hand on development seeds from 3,000,904,000 on, 24
of them with a budget of 5 (19 safe without shift, 13 with) and of 3 (19 and 16).
"""

from __future__ import annotations

import csv
import functools
import io
import math
import multiprocessing
import os
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import records
from numpy.typing import NDArray
from rich.console import Console

from ccfs.attacks.attack import Attack
from ccfs.attacks.ledger import energy_limit
from ccfs.attacks.rules import fit, length
from ccfs.certificates.schedule import Stage
from ccfs.files.atomic import write_atomically
from ccfs.protocol.model import Arm, Protocol
from ccfs.runs.build import build_arm, build_controller, build_environment, build_program
from ccfs.runs.trial import StopRule, run_trial
from ccfs.runtime.grid import Grid
from ccfs.runtime.history import PublicHistory
from ccfs.runtime.selector import Selector

TABLE = records.HERE / "lookahead.csv"
HEADS = ("budget", "trial", "reset seed", "outcome", "steps", "energy", "chain")
BUDGETS = (5.0, 3.0)
PAIRS = 256

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How far the adversary looks and when it acts.

    Args:
        norm: length of a shift at one step.
        near: metres to an obstacle within which it looks ahead.
        hold: steps for which a shift is held.
        ahead: steps that are rolled out.
        rollouts: how many futures a shift is tried on. All shifts see the same noise.
        worth: how many futures must turn to a cost.
    """

    norm: float
    near: float = 1.0
    hold: int = 25
    ahead: int = 60
    rollouts: int = 6
    worth: int = 3

    @classmethod
    def of(cls, budget: float) -> Settings:
        """Return settings with which one shift that is held spends the budget."""
        return cls(norm=budget / math.sqrt(cls.hold))


class Lookahead:
    """A `ShiftRule` with a copy of the world. `follow` must name the reset seed before each trial."""

    def __init__(self, protocol: Protocol, arm: Arm, settings: Settings) -> None:
        env = build_environment(protocol.environment)
        self._world: Any = env.unwrapped
        self._world._renew_goal = lambda: None  # trials end at the goal, so that no future needs another one
        self._program, self._controller = build_program(protocol, env), build_controller(protocol, arm)
        self._selector = Selector(self._program)
        self._grid = Grid(protocol.environment.grid)
        (block,) = arm.schedule.plan.blocks(Stage.ACTION)
        self._sigma = float(block.resolved(2).sigma)
        self._settings = settings
        ways = [(math.cos(i * math.pi / 4), math.sin(i * math.pi / 4)) for i in range(8)]
        self._tried = [np.zeros(2), *(fit(np.array(way), settings.norm) for way in ways)]
        self._seed = 0

    def follow(self, seed: int) -> None:
        """Take the reset seed of the next trial."""
        self._seed = seed

    def reset(self) -> None:
        """Begin a trial: bring the copy of the world to its start."""
        self._seen = self._grid(self._world.reset(seed=self._seed)[0])
        self._held, self._left = np.zeros(2), 0

    def shift(self, history: PublicHistory, rng: np.random.Generator, *, allowance: float) -> Array:
        """Return the shift that is held, after looking ahead if a new one is due."""
        if history.steps:
            self._seen = self._grid(self._world.step(self._program.executed(history.steps[-1].action))[0])
        if not np.array_equal(self._seen, history.observation):
            raise RuntimeError("the copy of the world must be in the state of the trial, and it is in another one.")
        if self._left == 0:
            self._held = self._best(rng) if allowance > self._settings.norm / 2 and self._is_near() else np.zeros(2)
            self._left = self._settings.hold
        self._left -= 1
        return fit(self._held, min(allowance, length(self._held)))

    def _is_near(self) -> bool:
        return 3.0 * (1.0 - float(self._seen[28:].max())) < self._settings.near

    def _best(self, rng: np.random.Generator) -> Array:
        """Return the shift after which most futures meet a cost, or none if that is not worth the price."""
        settings = self._settings
        noise = self._sigma * rng.standard_normal((settings.rollouts, settings.ahead, 2))
        state = _State(self._world)

        def costs(shift: Array, draws: Array) -> int:
            return sum(self._meets_cost(state, shift, drawn) for drawn in draws)

        # Two futures for every shift, and the others only for the best three and for no shift at all.
        first = [costs(shift, noise[:2]) for shift in self._tried]
        hopeful = [i for i in np.argsort(first, kind="stable")[::-1][:3] if first[i] > first[0]]
        found = {i: first[i] + costs(self._tried[i], noise[2:]) for i in [0, *hopeful]} if hopeful else {0: 0}
        state.restore()
        best = max(found, key=lambda i: found[i])
        return self._tried[best if found[best] - found[0] >= settings.worth else 0]

    def _meets_cost(self, state: _State, shift: Array, noise: Array) -> bool:
        state.restore()
        seen = self._seen
        for t, drawn in enumerate(noise):
            center = self._program.center(self._controller.center(seen))
            pushed = center + shift if t < self._settings.hold else center
            action = self._selector.select(seen, center, (pushed + drawn)[None]).action
            observation, _, cost, *_, info = self._world.step(self._program.executed(action))
            if cost > 0.0 or "goal_met" in info:
                return bool(cost > 0.0)
            seen = self._grid(observation)
        return False


class _State:
    """The state of a world as it is now, to come back to. The simulator computes the rest from it."""

    def __init__(self, world: Any) -> None:
        self._world, task = world, world.task
        data = task.data
        self._arrays = [(part, part.copy()) for part in (data.qpos, data.qvel, data.act, data.qacc_warmstart)]
        self._time = data.time
        self._plain = world.steps, world.terminated, world.truncated, task.last_dist_goal

    def restore(self) -> None:
        """Bring the world back to this state."""
        world, task = self._world, self._world.task
        for part, saved in self._arrays:
            part[:] = saved
        task.data.time = self._time
        world.steps, world.terminated, world.truncated, task.last_dist_goal = self._plain
        world._plan.physics._rest = None  # positions and velocities are those of another state


class Attacker:
    """Runs attacked trials of one budget. Each process makes its own."""

    def __init__(self, budget: float) -> None:
        self.budget, self._protocol = budget, records.stored_protocol("harm")
        (self._arm,) = self._protocol.arms
        plan = self._arm.schedule.plan
        (block,) = plan.blocks(Stage.ACTION)
        self._rule = Lookahead(self._protocol, self._arm, Settings.of(budget))
        attack = Attack(rule=self._rule, limit=energy_limit(budget, block), schedule=plan)
        self._env, self._controller = build_arm(self._protocol, self._arm, attack)

    def run(self, trial: int) -> tuple[str, ...]:
        """Return the line of a trial."""
        protocol, streams = self._protocol, self._protocol.streams(self._arm, trial)
        self._rule.follow(streams.reset_seed)
        stop = StopRule(goal=protocol.stop.goal, cost=protocol.stop.cost)
        recorder, row = run_trial(self._env, self._controller, horizon=protocol.horizon, stop=stop, streams=streams)
        energy = recorder.shifts[-1].spent
        found = (f"{self.budget:g}", trial, row.reset_seed, row.outcome, row.steps, repr(energy), row.chain.hex())
        return tuple(map(str, found))


@functools.cache
def attacker(budget: float) -> Attacker:
    """Return the attacker of a budget, made once in each process."""
    return Attacker(budget)


def attacked(place: tuple[float, int]) -> tuple[str, ...]:
    """Return the line of a budget and a trial."""
    budget, trial = place
    return attacker(budget).run(trial)


def kept() -> list[tuple[str, ...]]:
    """Return the lines that are there."""
    if not TABLE.exists():
        return []
    with TABLE.open(newline="", encoding="utf-8") as file:
        return [tuple(line) for line in csv.reader(file)][1:]


def main() -> None:
    """Run what is missing. The file is whole after each trial."""
    lines, console = kept(), Console()
    done = {(float(line[0]), int(line[1])) for line in lines}
    places = [(budget, trial) for budget in BUDGETS for trial in range(PAIRS)]
    with multiprocessing.get_context("spawn").Pool(min(2, os.cpu_count() or 1)) as pool:
        for line in pool.imap(attacked, [place for place in places if place not in done]):
            lines.append(line)
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([HEADS, *lines])
            write_atomically(TABLE, text.getvalue().encode())
            console.print(*line[:6])


if __name__ == "__main__":
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    main()
