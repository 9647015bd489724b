"""Run stored actions again in a shipped environment, compare every step with the trace, and keep what it lacks."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ccfs.adapter import Signals, inner_step
from ccfs.drawings import Disc, Scene
from ccfs.hashing import chain_start, chain_step, observation_digest
from ccfs.interfaces import Vector
from ccfs.protocol import Protocol
from ccfs.recording import StepRow, TrajectoryRow

__all__ = ["ReplayError", "Retold", "retell"]


class ReplayError(ValueError):
    """A stored trajectory that does not come out of its reset seed and its actions."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Retold:
    """A trajectory with what its public trace does not hold.

    Args:
        path: places, array [executed steps + 1, 2].
        nearest: where the nearest obstacle was before each step, (ahead, left) of the robot, array [executed steps, 2].
        is_fallback: whether a fallback acted, one entry an executed step.
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
    """Replay a trajectory, or its first steps, and return what the trace does not hold.

    The hash chain is built again from what the environment gives now (observation, reward, cost, goal, ends) and from
    what is stored (who acted, and how). It must meet the stored one at every step.

    Raises:
        ReplayError: at the first difference.
    """
    env, signals = scene.env, Signals(cost=protocol.environment.cost, goal=protocol.environment.goal)
    observation, _ = env.reset(seed=row.reset_seed)
    digest = observation_digest(observation)
    _refuse(digest != row.first_observation, row, "the first observation")
    chain = chain_start(row.reset_seed, digest)
    discs, causes = list(scene.discs()), ""
    path, nearest, acted = [scene.place()], [], []
    done = [step for step in steps if step.action is not None]
    for step in done:
        nearest.append(scene.nearest() or (np.nan, np.nan))
        got = inner_step(env, np.array(step.action, dtype=env.action_space.dtype), signals)
        digest = observation_digest(got.observation)
        _refuse(digest != step.observation, row, f"the observation after step {step.t}")
        chain = chain_step(
            chain,
            t=step.t,
            center=_doubles(step.center),
            source=step.source,
            index=step.index,
            action=_doubles(step.action or ()),
            skipped=step.skipped,
            reward=got.reward,
            cost=got.cost,
            goal=got.goal,
            terminated=got.terminated,
            truncated=got.truncated or step.t + 1 == protocol.horizon,  # as the wrapper has it
            observation=digest,
        )
        # repr, by which NaN equals itself: a stored number may have been changed and its place in the chain not.
        is_other = repr((got.reward, got.cost, got.goal)) != repr((step.reward, step.cost, step.goal))
        _refuse(is_other or chain != step.chain, row, f"the record of step {step.t}")
        path.append(scene.place())
        acted.append(step.source == "fallback")
        if got.cost and not causes:
            causes = scene.causes(got.info)
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


def _refuse(differs: bool, row: TrajectoryRow, what: str) -> None:
    if differs:
        raise ReplayError(f"trial {row.trial} does not replay: {what} is not the stored one.")


def _doubles(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)
