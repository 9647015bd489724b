"""Replay stored actions in a shipped environment: which trials to choose, and whether they come out as stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ccfs.protocol.model import NOMINAL, Protocol
from ccfs.report.counts import Ending, Key, Trial
from ccfs.report.drawings import Disc, Scene, scene_for
from ccfs.runs.batches import parse_canonical
from ccfs.runs.executors import Engine
from ccfs.runs.reader import RunReader
from ccfs.runs.record import StepRow, TrajectoryRow, chain_start, chain_step, observation_digest
from ccfs.runs.store import Store
from ccfs.runtime.environment import Signals, inner_step
from ccfs.runtime.grid import Grid
from ccfs.runtime.interfaces import Vector
from ccfs.runtime.program import Choices
from ccfs.runtime.wrapper import Widths

__all__ = [
    "ARMS",
    "LAYOUTS",
    "MOST_STEPS",
    "ReplayError",
    "Replays",
    "Retold",
    "first_replayed",
    "layouts",
    "replays",
    "retell",
    "stored_trial",
]


class ReplayError(ValueError):
    """A stored trial that its reset seed and its actions do not give again."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Retold:
    """What a replay shows of a trial and its public trace does not hold.

    Args:
        path: places, array [executed steps + 1, 2].
        nearest: where the nearest obstacle was before each step, (ahead, left) of the robot, array [executed steps, 2].
        is_fallback: whether a fallback acted, one entry per executed step.
        causes: what the first cost came from, "" without any.
        discs: what stood where at the start, and goals that appeared on the way.
    """

    trial: int
    path: Vector
    nearest: Vector
    is_fallback: NDArray[np.bool_]
    causes: str
    discs: tuple[Disc, ...]


def retell(protocol: Protocol, scene: Scene, row: TrajectoryRow, steps: Sequence[StepRow]) -> Retold:
    """Replay a trial, or its first steps, and return what the trace does not hold.

    The hash chain is built again from what the environment gives now (observation, reward, cost, goal, ends) and from
    what is stored (who acted, and how). It must meet the stored one at every step.

    Raises:
        ReplayError: at the first difference.
    """
    env, signals = scene.env, Signals(cost=protocol.environment.cost, goal=protocol.environment.goal)
    grid = Grid(protocol.environment.grid)
    observation, _ = env.reset(seed=row.reset_seed)
    digest = observation_digest(grid(observation))
    _refuse(digest != row.first_observation, row, "the first observation")
    choices = Choices.of(env.action_space)
    widths = _widths(env, choices, steps)
    chain = chain_start(row.reset_seed, widths, digest)
    discs, causes = list(scene.discs()), ""
    path, nearest, acted = [scene.place()], [], []
    done = [step for step in steps if step.action is not None]
    for step in done:
        nearest.append(scene.nearest() or (np.nan, np.nan))
        action = np.array(step.action, dtype=env.action_space.dtype)
        got = inner_step(env, action[0] if choices is not None and choices.is_single else action, signals)
        digest = observation_digest(grid(got.observation))
        _refuse(digest != step.observation, row, f"the observation after step {step.t}")
        line = step._replace(
            reward=got.reward,
            cost=got.cost,
            goal=got.goal,
            terminated=got.terminated,
            truncated=got.truncated or step.t + 1 == protocol.horizon,  # as the wrapper has it
            observation=digest,
        )
        chain = chain_step(chain, line, widths)
        # The chain covers what the environment gives now, so a stored number that was changed alone would not show
        # in it. Compared by repr, NaN equals itself.
        is_other = repr((got.reward, got.cost, got.goal)) != repr((step.reward, step.cost, step.goal))
        _refuse(is_other or chain != step.chain, row, f"the record of step {step.t}")
        path.append(scene.place())
        acted.append(step.source == "fallback")
        if got.cost and not causes:
            causes = scene.causes(got.info)
        # At the last step the goal has been renewed too, but nobody drove to that one.
        if got.goal and step is not done[-1]:
            discs += [disc for disc in scene.discs() if disc.kind == "goal"]
    is_whole = len(done) == len(steps) == row.steps
    _refuse(is_whole and chain != row.chain, row, "the end of the hash chain")
    return Retold(
        trial=row.trial,
        path=np.array(path),
        nearest=np.array(nearest).reshape(-1, 2),
        is_fallback=np.array(acted, dtype=np.bool_),
        causes=causes,
        discs=tuple(discs),
    )


def _widths(env: gymnasium.Env[Vector, Vector], choices: Choices | None, steps: Sequence[StepRow]) -> Widths:
    """Return how many numbers a center, an action and a reading have."""
    has_sensor = any(step.reading is not None for step in steps)
    sensor = int(np.prod(env.observation_space.shape or ())) if has_sensor else 0
    if choices is not None:
        return Widths(choices.scores, len(choices.counts), sensor)
    size = int(np.prod(env.action_space.shape or ()))
    return Widths(size, size, sensor)


def _refuse(differs: bool, row: TrajectoryRow, what: str) -> None:
    if differs:
        raise ReplayError(f"trial {row.trial} does not replay: {what} is not the stored one.")


LAYOUTS = 4
"""Number of maps per arm."""
MOST_STEPS = 12_000
"""Greatest number of steps that a report replays by default: about 15 seconds of one core for the Point robot."""
ARMS = 6
"""Number of arms whose trials are replayed, counted from the first."""
_SAMPLED = 16
# From the worst ending to the best.
_SEVERITY = (Ending.CRASHED, Ending.ABSTAINED, Ending.COST, Ending.EARLY, Ending.TIMEOUT, Ending.GOAL)
_LEAST_PART = 4_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replays:
    """What was replayed, what did not come out as stored, and how many wanted trials the limit left out."""

    told: Mapping[Key, Retold]
    refused: tuple[tuple[Key, str], ...]
    left_out: int
    steps: int

    @property
    def causes(self) -> tuple[tuple[str, int], ...]:
        """What the first cost of replayed trials came from, and in how many trials, the most frequent first."""
        found = Counter(retold.causes for retold in self.told.values() if retold.causes)
        return tuple(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def layouts(trials: Sequence[Trial], arm: str, attack: str | None) -> list[int]:
    """Return trials of an arm to draw, so that every ending is shown before one is shown again.

    Each next trial is one that shows as many new endings as possible, nominal or under the attack. Among equals,
    failures come first, and of these the trials that fail under the attack only.
    """
    ends = {(trial.attack, trial.trial): trial.ending for trial in trials if trial.arm == arm}
    waiting = {
        trial: (ending, ends.get((attack or NOMINAL, trial), ending))
        for (kind, trial), ending in ends.items()
        if kind == NOMINAL
    }
    shown: set[tuple[int, Ending]] = set()
    seen: Counter[tuple[Ending, Ending]] = Counter()

    def rank(trial: int) -> tuple[int, int, int, int, int]:
        pair = waiting[trial]
        before, after = (_SEVERITY.index(ending) for ending in pair)
        # The trial's number comes last, so that equal runs choose equal trials.
        return -len(set(enumerate(pair)) - shown), seen[pair], min(before, after), after - before, trial

    chosen: list[int] = []
    while waiting and len(chosen) < LAYOUTS:
        chosen.append(min(waiting, key=rank))
        pair = waiting.pop(chosen[-1])
        shown |= set(enumerate(pair))
        seen[pair] += 1
    return chosen


def replays(
    store: Store, protocol: Protocol, trials: Sequence[Trial], attack: str | None, *, most_steps: int, engine: Engine
) -> Replays | None:
    """Replay trials for the maps and for the fallback maps, at most `most_steps` steps in all.

    Returns None if the environment has no scene. The result does not depend on the engine.
    """
    by_key = {trial.key: trial for trial in trials}
    wanted = [key for key in dict.fromkeys(_wanted(protocol, trials, attack)) if by_key[key].steps]
    chosen, steps = [], 0
    for key in wanted:  # stop at the first that does not fit, because skipping long trials would choose by outcome
        if steps + by_key[key].steps > most_steps:
            break
        chosen.append(key)
        steps += by_key[key].steps
    parts = _parts(chosen, [by_key[key].steps for key in chosen], engine.in_flight)
    executor = engine.open()
    try:
        tasks = [executor.submit(_replay, protocol.canonical, str(store.root), part) for part in parts]
        results = [task.result() for task in tasks]
    except BaseException:  # also after Ctrl-C, nobody waits for the other parts
        engine.abandon(executor)
        raise
    executor.shutdown()
    found: dict[Key, Retold | str] = {}
    for result in results:
        if result is None:
            return None
        found |= result
    return Replays(
        told={key: item for key in chosen if isinstance(item := found[key], Retold)},
        refused=tuple((key, item) for key in chosen if isinstance(item := found[key], str)),
        left_out=len(wanted) - len(chosen),
        steps=steps,
    )


def _replay(canonical: str, root: str, keys: Sequence[Key]) -> dict[Key, Retold | str] | None:
    """Replay trials in an environment made here. A refused trial gives the reason. Return None without a scene."""
    protocol = parse_canonical(canonical)
    scene = scene_for(protocol)
    if scene is None:
        return None
    found: dict[Key, Retold | str] = {}
    try:
        for key, row, rows in _stored(Store(Path(root)), protocol, keys):
            try:
                found[key] = retell(protocol, scene, row, rows)
            except ReplayError as error:
                found[key] = str(error)
            except (AssertionError, TypeError, ValueError) as error:  # the environment's own refusal of an action
                found[key] = f"trial {row.trial} does not replay: {error}"
    finally:
        scene.close()
    return found


def _parts(keys: Sequence[Key], steps: Sequence[int], count: int) -> list[list[Key]]:
    """Split keys into at most `count` parts with about equal numbers of steps, and not into very small parts."""
    size = max(sum(steps) / count, _LEAST_PART)
    parts: list[list[Key]] = [[]]
    filled = 0
    # Sorted, so that trials of one batch file fall into one part, which reads the file once.
    for key, length in sorted(zip(keys, steps, strict=True)):
        if filled >= size:
            parts.append([])
            filled = 0
        parts[-1].append(key)
        filled += length
    return parts


def first_replayed(trials: Sequence[Trial], arm: str, made: Replays) -> list[Retold]:
    """Return an arm's replayed nominal trials up to the first one left out, so that no outcome is preferred."""
    found = []
    for trial in trials:
        if (trial.arm, trial.attack) == (arm, NOMINAL) and trial.steps:
            if trial.key not in made.told:
                break
            found.append(made.told[trial.key])
    return found


def stored_trial(store: Store, protocol: Protocol, key: Key) -> tuple[TrajectoryRow, list[StepRow]]:
    """Return the stored rows of one trial."""
    _, row, rows = next(_stored(store, protocol, [key]))
    return row, rows


def _wanted(protocol: Protocol, trials: Sequence[Trial], attack: str | None) -> Iterator[Key]:
    """Yield the trials to replay in rounds. A round has one layout and one of the first nominal trials of every arm.

    The arms take turns, so that the limit cuts all of them alike.
    """
    arms = [arm.name for arm in protocol.arms[:ARMS]]
    kinds = [NOMINAL] if attack is None else [NOMINAL, attack]
    drawn = {arm: layouts(trials, arm, attack) for arm in arms}
    known = {trial.key for trial in trials}
    for turn in range(max(LAYOUTS, _SAMPLED)):
        for arm in arms:
            wanted = [(arm, kind, trial) for trial in drawn[arm][turn : turn + 1] for kind in kinds]
            wanted += [(arm, NOMINAL, turn)] if turn < _SAMPLED else []
            yield from (key for key in wanted if key in known)


def _stored(
    store: Store, protocol: Protocol, keys: Sequence[Key]
) -> Iterator[tuple[Key, TrajectoryRow, list[StepRow]]]:
    """Yield the rows of trials. Each batch file is read once."""
    reader = RunReader(store, protocol)
    for arm in protocol.arms:
        for attack in (None, *protocol.attacks):
            name = NOMINAL if attack is None else attack.name
            wanted = {trial for of_arm, kind, trial in keys if (of_arm, kind) == (arm.name, name)}
            for batch in reader.batches(arm, attack):
                some = wanted.intersection(batch.trials)
                if some:
                    for row, steps in reader.steps(batch, some):
                        yield (arm.name, name, row.trial), row, steps
