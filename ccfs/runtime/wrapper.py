"""A Gymnasium wrapper whose `step` takes the policy's action as the center of a block."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.schedule import (
    Blocks,
    ObservationLayout,
    ProposalSchedule,
    Schedule,
    Stage,
    as_schedule,
    block_at,
)
from ccfs.runtime.environment import Info, Signals, inner_step, observation_layout
from ccfs.runtime.grid import Grid
from ccfs.runtime.history import PublicStep
from ccfs.runtime.interfaces import CausalAttack, ShiftRecord, Vector
from ccfs.runtime.program import CausalProgram, Choices
from ccfs.runtime.selector import Selection, Selector
from ccfs.runtime.streams import Purpose, Streams

__all__ = ["ProposalWrapper", "Widths"]

Env: TypeAlias = gymnasium.Env[Vector, Vector]
_LEAST_SCALE = 2.0**-40


class Widths(NamedTuple):
    """How many numbers a center, an action and a reading have. A reading has 0 without a sensor stage."""

    center: int
    action: int
    sensor: int = 0


class ProposalWrapper(gymnasium.Wrapper[Vector, Vector, Vector, Vector]):
    """Run any policy through a fixed causal program: draw a block around its action, verify, fall back, or abstain.

    With a sensor stage, `reset` and `step` return the noisy reading of the observation. The observation that ends an
    episode has no noise, because nobody decides on it. Without an action or score stage, the policy's own action is the
    only proposal. On a discrete space with a score stage, `step` takes the policy's scores.

    Any loop that asks a policy and calls `env.step` works unchanged. Abstention ends the episode without an inner
    step: `terminated` is True and `info["ccfs"]["source"]` is "abstain". The wrapper owns the key "ccfs" of `info`.
    Its content is public, so it never shows whether or how the center was shifted.

    Trials are independent only if their noise is. Reset once with a seed and then without, or with a new seed for each
    trial. Resetting every trial with the same seed repeats one trial, and no bound holds for such a count. The wrapper
    warns after the second such episode. A wrapper
    that was never reset with a seed draws from the system's entropy, as Gymnasium's environments do. So copies with
    the same `seed` (in a VecEnv) do not share their noise, and their episodes cannot be repeated.

    Args:
        env: environment with array observations and five or six return values. Its action space is a Box of shape (d,),
            a Discrete or a MultiDiscrete.
        program: the causal program, usually `CausalProgram.for_space(env.action_space, ...)`.
        schedule: the blocks of each stage. One block for every step, or one per step, are those of the deciding stage.
        seed: root seed of the wrapper's own streams. Their key is this seed, the last reset seed and the number of
            episodes since. Two experiments with the same three share their noise, so give each its own `seed`.
        horizon: steps after which the episode is truncated. The default is the length of a schedule with one block per
            step.
        attack: a shift rule with its energy limit. None is nominal.
        signals: the `info` keys under which cost and goal are reported.
        resolution: a power of two such as 2.0**-20. Observations are rounded to its multiples before anybody sees
            them, so that a replay on another processor gives the same ones. None leaves them as they are. Sensor noise
            is added after rounding.
        layout: where the named slices of an observation are, if the schedule names some. Without it, the environment's
            `observation_layout`, or the keys of a Dict space that it flattens.
    """

    def __init__(
        self,
        env: Env,
        *,
        program: CausalProgram,
        schedule: Schedule | ProposalSchedule | Sequence[ProposalSchedule],
        seed: int,
        horizon: int | None = None,
        attack: CausalAttack | None = None,
        signals: Signals | None = None,
        resolution: float | None = None,
        layout: ObservationLayout | None = None,
    ) -> None:
        if not isinstance(program, CausalProgram):
            raise TypeError(f"`program` must be a CausalProgram, got {program!r}. See CausalProgram.for_space.")
        fixed = as_schedule(schedule, program.deciding)
        space: object = env.observation_space
        if isinstance(space, (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)):
            raise TypeError("`env` must have array observations. Wrap it in gymnasium's FlattenObservation first.")
        _check_actions(env.action_space, program)
        if fixed.deciding not in (None, program.deciding):
            raise ValueError(
                f"`schedule` must have the stage `{program.deciding.value}` for the actions {env.action_space}."
            )
        widths = {program.deciding: program.dimension}
        if fixed.sensor is not None:
            widths[Stage.SENSOR] = _sensor_width(space)
            layout = observation_layout(env) if layout is None else layout
        resolved = fixed.resolved(widths, layout)
        _check_scales(resolved, program)
        if attack is not None:
            if attack.schedule != fixed:
                raise ValueError("`attack` must charge by the wrapper's own schedule, got another one.")
            attack.resolve(resolved)
        if fixed.length is not None:
            horizon = fixed.length if horizon is None else horizon
            if not horizon <= fixed.length:
                raise ValueError(f"`schedule` must cover `horizon` {horizon}, got {fixed.length} entries.")
        if horizon is not None:
            checks.count("horizon", horizon, minimum=1)
        if attack is not None and horizon is None:
            raise ValueError("`horizon` must be given with an attack: the energy limit is one over a finite horizon.")
        checks.count("seed", seed)
        grid = Grid(resolution)
        super().__init__(env)
        self._program, self._schedule, self._horizon = program, fixed, horizon
        self._resolved = resolved
        self._attack, self._signals = attack, Signals() if signals is None else signals
        self._selector = Selector(program)
        self._dtype = np.dtype(program.dtype) if program.choices is None else None
        self._grid = grid
        has_noise = resolved.deciding is not None
        self._deciding = program.deciding
        self._blocks = resolved.of(program.deciding) if has_noise else None
        self._center_of = program.center if has_noise else program.noiseless_center
        self._sensor = None if resolved.sensor is None else resolved.of(Stage.SENSOR)
        self._reads_noise = resolved.readers == "all"
        self._widths = Widths(program.dimension, program.action_size, widths.get(Stage.SENSOR, 0))
        if self._sensor is not None:
            like = env.observation_space
            self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, like.shape, cast(type, like.dtype))
        if has_noise and program.choices is not None:
            self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (program.dimension,), np.float64)
        # If the first reset has no seed, the wrapper draws a name for its noise from the system.
        self._root, self._episode, self._scope = seed, 0, ""
        self._seed: int | None = None
        self._is_seeded, self._has_warned = False, False  # whether the user seeded this episode, whether it was said
        self._repeated: tuple[int | None, int] = (None, 0)
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
        """The shifts of the last finished step, None without attack. Only the experimenter may see them."""
        return None if self._attack is None else self._attack.last

    @property
    def pending_shift(self) -> ShiftRecord | None:
        """The shifts of a step that has begun and not finished, None without one."""
        return None if self._attack is None else self._attack.pending

    @property
    def observation(self) -> Vector:
        """The environment's own observation as it is now, rounded and without noise. Everybody gets a copy."""
        return self._observation.copy()

    @property
    def schedule(self) -> Schedule:
        """The blocks of each stage, as they were given."""
        return self._schedule

    @property
    def resolved(self) -> Schedule:
        """The blocks of each stage, with numbers in the place of names of slices."""
        return self._resolved

    @property
    def widths(self) -> Widths:
        """How many numbers a center, an action and a reading have."""
        return self._widths

    @property
    def resolution(self) -> float | None:
        """The grid of the observations, None if they are not rounded."""
        return self._grid.resolution

    def center_of(self, action: object) -> Vector:
        """Return a policy's answer as the center of a block, as `step` takes it. Raise ValueError if it is none."""
        return self._center_of(action)

    def use_streams(self, streams: Streams) -> None:
        """Key the next episode by `streams` instead of by seed and episode number. Reset with their reset seed."""
        self._trial = streams

    def seen(self, observation: Vector) -> Vector:
        """Return the environment's observation as the wrapper takes it: a copy, rounded to the declared grid."""
        return self._grid(observation)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Vector, Info]:
        """Begin an episode. A seed restarts the wrapper's episode count, so that the same seed gives the same noise."""
        if self._trial is not None and self._trial.reset_seed != seed:
            raise ValueError(f"`seed` must be the reset seed of the streams, {self._trial.reset_seed}, got {seed}.")
        self._is_seeded = seed is not None and self._trial is None
        if seed is not None:
            self._scope, self._seed, self._episode = "wrapper", seed, 0
        elif not self._scope and self._trial is None:
            self._scope = f"unseeded wrapper {secrets.token_hex(16)}"
        streams = self._trial or Streams(
            protocol=self._scope, root=self._root, arm="", trial=self._episode, reset_seed=self._seed
        )
        self._trial, self._is_done, self._last = None, True, None
        if self._attack is not None:  # first, so that no shift of the last episode counts if the environment fails
            self._attack.begin(streams.generator(Purpose.SHIFT))
        observation, info = self.env.reset(seed=seed, options=options)
        self._episode += 1
        self._rng = streams.generator(Purpose.PROPOSAL)
        self._selector.reset()
        self._observation = self._reading = self._checked = self.seen(observation)
        self._t = 0
        if self._sensor is not None:
            self._sensor_rng = streams.generator(Purpose.SENSOR)
            self._sense(self._sensor)
        self._is_done = False
        # A copy, because a policy that writes into what it sees would change what verifier and record read.
        return self._reading.copy(), info

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, Info]:
        """Take the policy's action (or scores) as the center of this step's block, and step the environment.

        Raises:
            EnergyRefusedError: the attack overspent. Nothing has been drawn or executed for this shift.
        """
        if self._is_done:
            raise RuntimeError("`reset` must be called before `step`: the episode has ended.")
        center = drawn_around = self._center_of(action)
        if self._attack is not None and self._horizon is not None and self._blocks is not None:
            shift = self._attack.commit(
                self._t, self._horizon, self._observation, center, self._deciding, self._reading
            )
            drawn_around = center if shift is None else center + shift
        self._is_done = True  # stays True if anything below raises, so that no step draws a second block
        if self._blocks is None:
            block = center[None]
        else:
            block = block_at(self._blocks, self._t).sample_block(drawn_around, self._rng)
        self._selector.observe(self._checked)
        selection = self._selector.select(self._checked, center, block)
        if selection.action is None:
            return self._abstain(center, selection)
        return self._execute(center, selection, selection.action)

    def close(self) -> None:
        """Close the inner environment."""
        close: Callable[[], object] = self.env.close
        close()

    def _sense(self, blocks: Blocks) -> None:
        """Draw the reading of the current observation, after the attack committed its shift of it."""
        observation = self._observation
        center = np.array(observation, dtype=np.float64).reshape(-1)
        if center.size != self._widths.sensor or observation.dtype.kind != "f":
            raise TypeError(
                f"`env` must return observations of {self._widths.sensor} floats, as its space says, got "
                f"{observation.dtype} of shape {observation.shape}."
            )
        drawn_around = center
        if self._attack is not None and self._horizon is not None:
            shift = self._attack.commit(self._t, self._horizon, observation, center, Stage.SENSOR)
            drawn_around = center if shift is None else center + shift
        block = block_at(blocks, self._t).sample_block(drawn_around, self._sensor_rng)
        with np.errstate(over="ignore"):  # a trial with an infinite reading ends
            self._reading = block[0].astype(observation.dtype).reshape(observation.shape)
        self._checked = self._reading if self._reads_noise else observation

    def _execute(
        self, center: Vector, selection: Selection, action: Vector | NDArray[np.int64]
    ) -> tuple[Vector, float, bool, bool, Info]:
        # A copy in the environment's precision, so that the environment cannot change the record.
        taken = self._program.executed(action) if self._dtype is None else action.astype(self._dtype)
        inner = inner_step(self.env, taken, self._signals)
        truncated = inner.truncated or self._t + 1 == self._horizon
        step = self._record(center, selection, inner.reward, inner.cost, inner.goal, inner.terminated, truncated)
        self._observation = self._reading = self._checked = self.seen(inner.observation)
        is_done = inner.terminated or truncated
        if self._sensor is not None and not is_done:
            self._sense(self._sensor)
        self._is_done = is_done
        info = {**inner.info, "ccfs": _public_info(step)}
        if inner.cost is not None:
            info.setdefault("cost", inner.cost)
        return self._reading.copy(), inner.reward, inner.terminated, truncated, info

    def _abstain(self, center: Vector, selection: Selection) -> tuple[Vector, float, bool, bool, Info]:
        step = self._record(center, selection, 0.0, None, False, True, False)
        return self._reading.copy(), 0.0, True, False, {"ccfs": _public_info(step)}

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
            self._reading,
        )
        if self._attack is not None:
            self._attack.publish(step)
        self._last = step
        self._t += 1
        if (terminated or truncated) and self._is_seeded:
            self._warn_of_repeated_seed()
        return step

    def _warn_of_repeated_seed(self) -> None:
        """Warn once, at the end of the second episode that was reset with the same seed, with no other in between."""
        self._repeated = (self._seed, self._repeated[1] + 1 if self._repeated[0] == self._seed else 1)
        if self._repeated[1] == 2 and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"Two episodes were reset with the same seed, {self._seed}. The second repeats the noise of the first, "
                "so no bound holds for their count. Take new seeds, or reset once with a seed and then without.",
                stacklevel=4,
            )


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
    if program.choices is not None or Choices.of(space) is not None:
        if program.choices != Choices.of(space):
            raise ValueError(f"`program` must be made for the actions of `env`, {space}. See CausalProgram.for_space.")
        return
    if space.shape != (program.dimension,):
        raise ValueError(f"`program` must have the action dimension of `env`, {space.shape}, got {program.dimension}.")
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype != np.dtype(program.dtype):
        raise ValueError(f"`program` must have the action precision of `env`, {space}, got {program.dtype}.")
    if not (np.all(space.low <= program.low) and np.all(program.high <= space.high)):
        raise ValueError(
            f"`program` must keep to the action box of `env`, {space}, got {program.low} to {program.high}."
        )


def _check_scales(schedule: Schedule, program: CausalProgram) -> None:
    """Refuse noise that is as small as rounding errors in the action box, because no certificate covers those."""
    if schedule.action is None:
        return
    bounds = np.abs(np.concatenate([program.low, program.high]))
    least = _LEAST_SCALE * max([float(bound) for bound in bounds if np.isfinite(bound)], default=1.0)
    scales = np.concatenate([block.scales(program.dimension) for block in schedule.blocks(Stage.ACTION)])
    smallest = float(scales[scales > 0.0].min())
    if not smallest >= least:
        raise ValueError(
            f"`schedule` must have a sigma of at least {least:.3g}, 2^-40 of the action box, got {smallest:g}: "
            "proposals would be rounded to their center."
        )


def _sensor_width(space: object) -> int:
    """Return the number of coordinates of an observation that can be disturbed."""
    if not isinstance(space, gymnasium.spaces.Box) or np.dtype(space.dtype).kind != "f":
        raise TypeError(
            f"`env` must have observations in a Box of floats for a sensor stage, got {space}. "
            "Flatten them (FlattenObservation), or turn whole numbers into floats first."
        )
    return int(np.prod(space.shape))
