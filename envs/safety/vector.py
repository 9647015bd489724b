"""Many copies of one Safety-Gymnasium task in one process, stepped together, for training.

Interface, with numpy in and numpy out, for n copies, observation length d and action length a::

    env = SafetyVectorEnv("SafetyPointGoal2-v0", num_envs=10)
    observation = env.reset(seed=7)                 # (n, d) float64, copy i is seeded with 7 + i
    step = env.step(actions)                        # (n, a), copies that end are reset once, at once
    step.observation                                # (n, d): the first one of the next episode where `step.done`
    step.reward, step.cost                          # (n,) float64
    step.terminated, step.truncated, step.done      # (n,) bool
    step.final_observation                          # (n, d): the observation this step led to, ended or not
    step.goal_met                                   # (n,) bool
    step.episodes                                   # `Episode`(index, total_reward, total_cost, length) of those ended

    saved = env.state_dict()                        # arrays only: `np.savez(path, **saved)` holds it, no pickle
    observation = env.load_state_dict(saved)        # continues bit for bit, also in the middle of episodes

To bootstrap a value at a time limit, evaluate `final_observation[i]` where `truncated[i] and not terminated[i]`.
Resets after the first continue each copy's own random stream, as in stock. If stock refuses a layout because it starts
with a cost, the layout is drawn again from the same stream. `load_state_dict` replays the running episodes (at most
`max_episode_steps` steps per copy), which is exact and keeps the saved state small.
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gymnasium.spaces import Box

__all__ = ["Episode", "SafetyVectorEnv", "VectorStep"]

_SEED_LIMIT = 2**32
_RESET_TRIES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Totals of one finished episode of copy `index`."""

    index: int
    total_reward: float
    total_cost: float
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorStep:
    """What one joint step returned. The module's docstring gives the shapes."""

    observation: NDArray[np.float64]
    reward: NDArray[np.float64]
    cost: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_observation: NDArray[np.float64]
    goal_met: NDArray[np.bool_]
    episodes: tuple[Episode, ...]

    @property
    def done(self) -> NDArray[np.bool_]:
        """Copies whose episode ended with this step."""
        return self.terminated | self.truncated


class SafetyVectorEnv:
    """`num_envs` copies of one task in one process. The module's docstring shows the interface.

    Args:
        env_id: such as "SafetyPointGoal2-v0".
        num_envs: number of copies, at least 1.
        max_episode_steps: time limit of an episode, at most the task's own. None for the task's own (1,000 for most).
        fast: False to step stock code (for comparisons).
    """

    def __init__(self, env_id: str, num_envs: int, *, max_episode_steps: int | None = None, fast: bool = True) -> None:
        if not num_envs >= 1:
            raise ValueError(f"`num_envs` must be at least 1, got {num_envs}.")
        if max_episode_steps is not None and not max_episode_steps >= 1:
            raise ValueError(f"`max_episode_steps` must be at least 1, got {max_episode_steps}.")
        from ccfs.envs.registration import builder_of, check_limit

        kind, spec = builder_of(env_id, fast=fast)
        self.env_id = env_id
        self.num_envs = num_envs
        self._kind, self._arguments = kind, spec.kwargs
        self._envs: list[Any] = [self._build() for _ in range(num_envs)]
        if max_episode_steps is None:
            self.max_episode_steps = int(min(spec.max_episode_steps, self._envs[0].task.num_steps))
        else:
            check_limit(self._envs[0], max_episode_steps)
            self.max_episode_steps = int(max_episode_steps)
        self.observation_space: Box = self._envs[0].observation_space
        self.action_space: Box = self._envs[0].action_space
        self._runs = [_Run() for _ in range(num_envs)]

    @property
    def is_at_start(self) -> bool:
        """True if every copy has been reset and none has stepped since."""
        return all(run.start is not None and not run.actions for run in self._runs)

    def reset(self, *, seed: int | Sequence[int] | None = None) -> NDArray[np.float64]:
        """Reset all copies and return their first observations.

        Args:
            seed: copy i gets `seed + i`, or `seed[i]` if a sequence is given, each in [0, 2**32). None continues the
                random streams. It is refused at the first reset, because an unseeded run cannot be repeated.
        """
        seeds = self._seeds(seed)
        return np.stack([self._reset_one(i, seeds[i]) for i in range(self.num_envs)])

    def step(self, actions: NDArray[np.floating[Any]]) -> VectorStep:
        """Step all copies with `actions` of shape (num_envs, action length) and reset those that end."""
        actions = np.asarray(actions)
        shape = (self.num_envs, *self.action_space.shape)
        if actions.shape != shape:
            raise ValueError(f"`actions` must have shape {shape}, got {actions.shape}.")
        if any(run.start is None for run in self._runs):
            raise RuntimeError("`reset(seed=...)` must be called before the first step.")
        n, d = self.num_envs, self.observation_space.shape[0]
        final_observation = np.empty((n, d))
        reward, cost = np.empty(n), np.empty(n)
        terminated, truncated, goal_met = (np.zeros(n, dtype=np.bool_) for _ in range(3))
        for i, (env, run) in enumerate(zip(self._envs, self._runs, strict=True)):
            result = env.step(actions[i])
            final_observation[i], reward[i], cost[i], terminated[i], ended, info = result
            run.record(actions[i], reward[i], cost[i])
            truncated[i] = ended or len(run.actions) >= self.max_episode_steps
            goal_met[i] = "goal_met" in info
        observation = final_observation.copy()
        episodes = []
        for i in np.flatnonzero(terminated | truncated).tolist():
            episodes.append(self._runs[i].episode(i))
            observation[i] = self._reset_one(i, None)
        return VectorStep(
            observation=observation,
            reward=reward,
            cost=cost,
            terminated=terminated,
            truncated=truncated,
            final_observation=final_observation,
            goal_met=goal_met,
            episodes=tuple(episodes),
        )

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Return arrays from which `load_state_dict` continues exactly from the present state."""
        if any(run.start is None for run in self._runs):
            raise RuntimeError("`reset(seed=...)` must be called before there is a state to save.")
        starts = [run.start for run in self._runs if run.start is not None]
        actions = [np.asarray(action, dtype=np.float64) for run in self._runs for action in run.actions]
        width = self.action_space.shape[0]
        return {
            "env_id": np.array(self.env_id),
            "max_episode_steps": np.array(self.max_episode_steps),
            "rng_keys": np.stack([start.keys for start in starts]),
            "rng_positions": np.array([start.position for start in starts]),
            "first_episodes": np.array([start.is_first for start in starts]),
            "lengths": np.array([len(run.actions) for run in self._runs]),
            "actions": np.array(actions, dtype=np.float64).reshape(-1, width),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float64]:
        """Continue from `state_dict()` and return the current observations.

        Raises:
            ValueError: if the state is of another task, number of copies or time limit. Then nothing has changed.
        """
        mine = (self.env_id, self.max_episode_steps, self.num_envs)
        theirs = (str(state["env_id"]), int(state["max_episode_steps"]), len(state["lengths"]))
        if mine != theirs:
            raise ValueError(f"`state` must be of (task, time limit, copies) {mine}, got {theirs}.")
        ends = np.cumsum(state["lengths"]).tolist()
        episodes = np.split(np.asarray(state["actions"], dtype=np.float64), ends[:-1])
        observations = []
        for i, actions in enumerate(episodes):
            start = _Start(
                keys=np.asarray(state["rng_keys"][i], dtype=np.uint32),
                position=int(state["rng_positions"][i]),
                is_first=bool(state["first_episodes"][i]),
            )
            observations.append(self._replay(i, start, actions))
        return np.stack(observations)

    def close(self) -> None:
        """Close every copy."""
        for env in self._envs:
            env.close()

    def _build(self) -> Any:
        return self._kind(**copy.deepcopy(self._arguments))

    def _seeds(self, seed: int | Sequence[int] | None) -> list[int | None]:
        if seed is None:
            if any(run.start is None for run in self._runs):
                raise ValueError("`seed` must be given at the first reset, got None. Pass an integer below 2**32.")
            return [None] * self.num_envs
        if isinstance(seed, SupportsIndex):
            seeds = [operator.index(seed) + i for i in range(self.num_envs)]
        else:
            seeds = [operator.index(value) for value in seed]
        if len(seeds) != self.num_envs or not all(0 <= value < _SEED_LIMIT for value in seeds):
            raise ValueError(f"`seed` must give {self.num_envs} integers in [0, 2**32), got {seed!r}.")
        return list(seeds)

    def _reset_one(self, i: int, seed: int | None) -> NDArray[np.float64]:
        env, run = self._envs[i], self._runs[i]
        if seed is not None:
            env.set_seed(seed)
        for _ in range(_RESET_TRIES):
            run.begin(env)
            try:
                observation: NDArray[np.float64] = env.reset()[0]
            except AssertionError as error:
                if "starting cost" not in str(error):
                    raise
            else:
                return observation
        raise RuntimeError(f"{self.env_id} started with a cost {_RESET_TRIES} times in a row.")

    def _replay(self, i: int, start: _Start, actions: NDArray[np.float64]) -> NDArray[np.float64]:
        # The first reset of an environment computes forces once, and later ones twice. So an episode must be replayed
        # after the same number of resets: none, or at least one.
        env = self._envs[i] = self._build()
        if not start.is_first:
            with contextlib.suppress(AssertionError):
                env.reset(seed=0)
        # Without a pending normal draw: `begin` has refused such a state.
        env.task.random_generator.random_generator.set_state(("MT19937", start.keys, start.position, 0, 0.0))
        observation = self._reset_one(i, None)
        for action in actions:
            observation, reward, cost, *_ = env.step(action)
            self._runs[i].record(action, reward, cost)
        return observation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Everything that determines how an episode begins."""

    keys: NDArray[np.uint32]
    position: int
    is_first: bool


class _Run:
    """The running episode of one copy."""

    def __init__(self) -> None:
        self.start: _Start | None = None
        self.actions: list[NDArray[np.floating[Any]]] = []
        self.total_reward = 0.0
        self.total_cost = 0.0

    def begin(self, env: Any) -> None:
        _, keys, position, has_gauss, _ = env.task.random_generator.random_generator.get_state()
        if has_gauss:
            raise RuntimeError("The random stream holds a pending normal draw, which no known task makes.")
        self.start = _Start(keys=keys, position=position, is_first=env.task.world is None)
        self.actions = []
        self.total_reward = 0.0
        self.total_cost = 0.0

    def record(self, action: NDArray[np.floating[Any]], reward: float, cost: float) -> None:
        self.actions.append(action.copy())
        self.total_reward += float(reward)
        self.total_cost += float(cost)

    def episode(self, index: int) -> Episode:
        return Episode(
            index=index, total_reward=self.total_reward, total_cost=self.total_cost, length=len(self.actions)
        )
