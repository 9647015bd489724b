"""A Gymnasium wrapper whose `step` takes the policy's action as the center of a block."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TypeAlias

import gymnasium
import numpy as np

from ccfs.certificates import checks
from ccfs.certificates.schedule import ProposalSchedule, Schedule, as_schedule, schedule_at
from ccfs.runtime.environment import Info, Signals, inner_step
from ccfs.runtime.grid import Grid
from ccfs.runtime.history import PublicStep
from ccfs.runtime.interfaces import CausalAttack, ShiftRecord, Vector
from ccfs.runtime.program import CausalProgram
from ccfs.runtime.selector import Selection, Selector
from ccfs.runtime.streams import Purpose, Streams

__all__ = ["ProposalWrapper"]

Env: TypeAlias = gymnasium.Env[Vector, Vector]
_LEAST_SCALE = 2.0**-40


class ProposalWrapper(gymnasium.Wrapper[Vector, Vector, Vector, Vector]):
    """Run any policy through a fixed causal program: draw a block around its action, verify, fall back, or abstain.

    Any loop that asks a policy and calls `env.step` works unchanged. Abstention ends the episode without an inner
    step: `terminated` is True and `info["ccfs"]["source"]` is "abstain". The wrapper owns the key "ccfs" of `info`.
    Its content is public, so it never shows whether or how the center was shifted.

    Trials are independent only if their noise is. Reset once with a seed and then without, or with a new seed for each
    trial. Resetting every trial with the same seed repeats one trial, and no bound holds for such a count. A wrapper
    that was never reset with a seed draws from the system's entropy, as Gymnasium's environments do. So copies with
    the same `seed` (in a VecEnv) do not share their noise, and their episodes cannot be repeated.

    Args:
        env: environment with a Box action space of shape (d,), array observations and five or six return values.
        program: the causal program, usually `CausalProgram.for_space(env.action_space, ...)`.
        schedule: one block for every step, or one per step.
        seed: root seed of the wrapper's own streams. Their key is this seed, the last reset seed and the number of
            episodes since. Two experiments with the same three share their noise, so give each its own `seed`.
        horizon: steps after which the episode is truncated. The default is the length of a schedule with one block per
            step.
        attack: a shift rule with its energy limit. None is nominal.
        signals: the `info` keys under which cost and goal are reported.
        resolution: a power of two such as 2.0**-20. Observations are rounded to its multiples before anybody sees
            them, so that a replay on another processor gives the same ones. None leaves them as they are.
    """

    def __init__(
        self,
        env: Env,
        *,
        program: CausalProgram,
        schedule: ProposalSchedule | Sequence[ProposalSchedule],
        seed: int,
        horizon: int | None = None,
        attack: CausalAttack | None = None,
        signals: Signals | None = None,
        resolution: float | None = None,
    ) -> None:
        fixed = as_schedule(schedule)
        if not isinstance(program, CausalProgram):
            raise TypeError(f"`program` must be a CausalProgram, got {program!r}. See CausalProgram.for_space.")
        space: object = env.observation_space
        if isinstance(space, (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)):
            raise TypeError("`env` must have array observations. Wrap it in gymnasium's FlattenObservation first.")
        if env.action_space.shape != (program.dimension,):
            raise ValueError(
                f"`program` must have the action dimension of `env`, {env.action_space.shape}, got {program.dimension}."
            )
        _check_actions(env.action_space, program)
        _check_scales(fixed, program)
        if attack is not None and attack.schedule != fixed:
            raise ValueError("`attack` must charge by the wrapper's own schedule, got another one.")
        if isinstance(fixed, tuple):
            horizon = len(fixed) if horizon is None else horizon
            if not horizon <= len(fixed):
                raise ValueError(f"`schedule` must cover `horizon` {horizon}, got {len(fixed)} entries.")
        if horizon is not None:
            checks.count("horizon", horizon, minimum=1)
        if attack is not None and horizon is None:
            raise ValueError("`horizon` must be given with an attack: the energy limit is one over a finite horizon.")
        checks.count("seed", seed)
        grid = Grid(resolution)
        super().__init__(env)
        self._program, self._schedule, self._horizon = program, fixed, horizon
        self._attack, self._signals = attack, Signals() if signals is None else signals
        self._selector, self._dtype = Selector(program), np.dtype(program.dtype)
        self._grid = grid
        # If the first reset has no seed, the wrapper draws a name for its noise from the system.
        self._root, self._episode, self._scope = seed, 0, ""
        self._seed: int | None = None
        self._trial: Streams | None = None
        self._t, self._is_done = 0, True
        self._last: PublicStep | None = None

    @property
    def program(self) -> CausalProgram:
        """The causal program that this wrapper runs."""
        return self._program

    @property
    def last_step(self) -> PublicStep:
        """The last finished step, as everybody may see it."""
        if self._last is None:
            raise RuntimeError("no step has been taken since `reset`.")
        return self._last

    @property
    def last_shift(self) -> ShiftRecord | None:
        """The last committed shift and its energy, None without attack. Only the experimenter may see it."""
        return None if self._attack is None else self._attack.last

    @property
    def resolution(self) -> float | None:
        """The grid of the observations, None if they are not rounded."""
        return self._grid.resolution

    def use_streams(self, streams: Streams) -> None:
        """Key the next episode by `streams` instead of by seed and episode number. Reset with their reset seed."""
        self._trial = streams

    def seen(self, observation: Vector) -> Vector:
        """Return what everybody sees of the environment's observation: a copy, rounded to the declared grid."""
        return self._grid(observation)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Vector, Info]:
        """Begin an episode. A seed restarts the wrapper's episode count, so that the same seed gives the same noise."""
        if self._trial is not None and self._trial.reset_seed != seed:
            raise ValueError(f"`seed` must be the reset seed of the streams, {self._trial.reset_seed}, got {seed}.")
        if seed is not None:
            self._scope, self._seed, self._episode = "wrapper", seed, 0
        elif not self._scope and self._trial is None:
            self._scope = f"unseeded wrapper {secrets.token_hex(16)}"
        streams = self._trial or Streams(
            protocol=self._scope, root=self._root, arm="", trial=self._episode, reset_seed=self._seed
        )
        self._trial, self._is_done, self._last = None, True, None
        observation, info = self.env.reset(seed=seed, options=options)
        self._episode += 1
        self._rng = streams.generator(Purpose.PROPOSAL)
        if self._attack is not None:
            self._attack.begin(streams.generator(Purpose.SHIFT))
        self._selector.reset()
        self._observation = self.seen(observation)
        self._t, self._is_done = 0, False
        # A copy, because a policy that writes into what it sees would change what verifier and record read.
        return self._observation.copy(), info

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, Info]:
        """Take the policy's action as the center of this step's block. Return what the environment returned.

        Raises:
            EnergyRefusedError: the attack overspent. Nothing has been drawn or executed.
        """
        if self._is_done:
            raise RuntimeError("`reset` must be called before `step`: the episode has ended.")
        center = self._program.center(action)
        drawn_around = center
        if self._attack is not None and self._horizon is not None:
            drawn_around = center + self._attack.commit(self._t, self._horizon, self._observation, center)
        self._is_done = True  # stays True if anything below raises, so that no step draws a second block
        block = schedule_at(self._schedule, self._t).sample_block(drawn_around, self._rng)
        self._selector.observe(self._observation)
        selection = self._selector.select(self._observation, center, block)
        if selection.action is None:
            return self._abstain(center, selection)
        return self._execute(center, selection, selection.action)

    def close(self) -> None:
        """Close the inner environment."""
        close: Callable[[], object] = self.env.close
        close()

    def _execute(self, center: Vector, selection: Selection, action: Vector) -> tuple[Vector, float, bool, bool, Info]:
        # A copy in the environment's precision, so that the environment cannot change the record.
        inner = inner_step(self.env, action.astype(self._dtype), self._signals)
        truncated = inner.truncated or self._t + 1 == self._horizon
        step = self._record(center, selection, inner.reward, inner.cost, inner.goal, inner.terminated, truncated)
        self._observation = self.seen(inner.observation)
        self._is_done = inner.terminated or truncated
        info = {**inner.info, "ccfs": _public_info(step)}
        if inner.cost is not None:
            info.setdefault("cost", inner.cost)
        return self._observation.copy(), inner.reward, inner.terminated, truncated, info

    def _abstain(self, center: Vector, selection: Selection) -> tuple[Vector, float, bool, bool, Info]:
        step = self._record(center, selection, 0.0, None, False, True, False)
        return self._observation.copy(), 0.0, True, False, {"ccfs": _public_info(step)}

    def _record(
        self,
        center: Vector,
        selection: Selection,
        reward: float,
        cost: float | None,
        goal: bool,
        terminated: bool,
        truncated: bool,
    ) -> PublicStep:
        step = PublicStep(
            self._t,
            self._observation,
            center,
            selection.source,
            selection.index,
            selection.action,
            selection.skipped,
            reward,
            cost,
            goal,
            terminated,
            truncated,
        )
        if self._attack is not None:
            self._attack.publish(step)
        self._last = step
        self._t += 1
        return step


def _public_info(step: PublicStep) -> Info:
    return {
        "source": step.source._value_,  # `value` is a property, three times as slow
        "index": step.index,
        "center": step.center.copy(),
        "action": None if step.action is None else step.action.copy(),
        "skipped": step.skipped,
    }


def _check_actions(space: gymnasium.Space[Vector], program: CausalProgram) -> None:
    """Refuse a program that could run an action outside of the environment's action space."""
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype != np.dtype(program.dtype):
        raise ValueError(f"`program` must have the action precision of `env`, {space}, got {program.dtype}.")
    if not (np.all(space.low <= program.low) and np.all(program.high <= space.high)):
        raise ValueError(
            f"`program` must keep to the action box of `env`, {space}, got {program.low} to {program.high}."
        )


def _check_scales(schedule: Schedule, program: CausalProgram) -> None:
    """Refuse noise that is as small as rounding errors in the action box, because no certificate covers those."""
    bounds = np.abs(np.concatenate([program.low, program.high]))
    least = _LEAST_SCALE * max([float(bound) for bound in bounds if np.isfinite(bound)], default=1.0)
    smallest = min(part.sigma for part in (schedule if isinstance(schedule, tuple) else (schedule,)))
    if not smallest >= least:
        raise ValueError(
            f"`schedule` must have a sigma of at least {least:.3g}, 2^-40 of the action box, got {smallest:g}: "
            "proposals would be rounded to their center."
        )
