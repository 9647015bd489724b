"""How a live model's own environment prepares observations: the same steps, on copies that no longer learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ccfs.controllers.actor import FrozenNormalizer, prepared
from ccfs.controllers.adapters.content import framed, value_content
from ccfs.controllers.adapters.environments import Environment, Space, refuse_missing_wrappers
from ccfs.controllers.adapters.saved import LIVE
from ccfs.runtime.flat import unflattened

if TYPE_CHECKING:
    from stable_baselines3.common.running_mean_std import RunningMeanStd
    from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

__all__ = ["Array", "Observed", "Step", "kind", "normalizing", "own_steps", "reading", "stacking"]

Array: TypeAlias = "NDArray[np.generic]"
Observed: TypeAlias = "Array | dict[str, Array]"

_HOME = "stable_baselines3.common.vec_env"
_NORMALIZE = f"{_HOME}.vec_normalize.VecNormalize"
_STACK = f"{_HOME}.vec_frame_stack.VecFrameStack"
_TRANSPOSE = f"{_HOME}.vec_transpose.VecTransposeImage"
_HARMLESS = {
    f"{_HOME}.vec_check_nan.VecCheckNan",
    f"{_HOME}.vec_monitor.VecMonitor",
    f"{_HOME}.vec_video_recorder.VecVideoRecorder",
}
"""Wrappers that hand observations on as they are."""
_BOTTOM = {f"{_HOME}.dummy_vec_env.DummyVecEnv", f"{_HOME}.subproc_vec_env.SubprocVecEnv"}


class Step(Protocol):
    """One step from the environment's observation to the model's."""

    def reset(self) -> None:
        """Forget the trial."""
        ...

    def prepared(self, observation: Observed) -> Observed:
        """Return the observation after this step."""
        ...

    def content(self) -> bytes:
        """Return what determines the step, for the digest."""
        ...


def own_steps(model: object, env: Environment | None) -> tuple[Step, ...] | None:
    """Return how the model's environment (`model.get_env()`) prepares observations, None if it has no environment.

    Wrappers are known by their exact class, because a subclass may do anything. An unknown one is refused, and so is a
    Gymnasium wrapper inside of that environment which `env` lacks.
    """
    ask = getattr(model, "get_env", None)
    layer: object = ask() if callable(ask) else None
    if layer is None:
        return None
    found: list[Step] = []
    while (inner := getattr(layer, "venv", None)) is not None:
        if kind(layer) not in {_NORMALIZE, _STACK, _TRANSPOSE} | _HARMLESS:
            raise ValueError(
                f"The model's environment must have no wrapper that is not known to keep observations, "
                f"got {type(layer).__name__}. If it keeps them, call `model.set_env` with an environment without it. "
                "If it changes them, pass a Controller that changes them in the same way before it asks the model."
            )
        found[:0] = _step(layer)
        layer = inner
    if kind(layer) not in _BOTTOM:
        raise ValueError(
            f"The model's environment must be a DummyVecEnv or a SubprocVecEnv of Stable-Baselines3, got "
            f"{type(layer).__name__}, which may change observations. If it keeps them, call `model.set_env` with a "
            "DummyVecEnv. If it changes them, pass a Controller that changes them in the same way."
        )
    refuse_missing_wrappers(layer, env)
    return (reading(cast("Space", getattr(layer, "observation_space", None))), *found)


def normalizing(steps: tuple[Step, ...]) -> bool:
    """Say whether one of the steps normalises observations."""
    return any(isinstance(part, _Normalize) for step in steps for part in (*getattr(step, "parts", {}).values(), step))


def reading(space: Space) -> Step:
    """Return the step that takes an observation of the wrapped environment, flat or not, as one of `space`."""
    if isinstance(space, spaces.Dict):
        return _Whole(space=space)
    if space.shape is None or space.dtype is None:
        raise TypeError(f"The model must read one array or a Dict of arrays, got the observation space {space}.")
    return _Cast(space=space)


def _step(layer: object) -> list[Step]:
    """Return what a wrapper does to observations, nothing for one that keeps them."""
    name = kind(layer)
    if name in _HARMLESS:
        return []
    if name == _TRANSPOSE:
        keys = getattr(layer, "image_space_keys", None) if isinstance(_space(layer), spaces.Dict) else None
        if getattr(layer, "skip", False):
            return []
        return [_Transpose() if keys is None else _Parts(parts={key: _Transpose() for key in keys})]
    if name == _STACK:
        stacked = cast("VecFrameStack", layer).stacked_obs
        if isinstance(_space(layer), spaces.Dict):
            return [_Parts(parts={key: _stack(part) for key, part in stacked.sub_stacked_observations.items()})]
        return [_stack(stacked)]
    around = cast("VecNormalize", layer)
    if not around.norm_obs:
        return []
    known = cast("RunningMeanStd | dict[str, RunningMeanStd]", around.obs_rms)
    if isinstance(known, dict):
        return [_Parts(parts={key: _normalize(around, known[key]) for key in around.norm_obs_keys or ()})]
    return [_normalize(around, known)]


def _space(layer: object) -> object:
    return getattr(getattr(layer, "venv", None), "observation_space", None)


def stacking(space: Space, frames: int) -> tuple[Step, ...]:
    """Return what `VecFrameStack` with so many frames does to observations of `space`, nothing for one frame."""
    if frames == 1:
        return ()
    if not isinstance(space, spaces.Box):
        raise ValueError(f"`frames` must be 1 for observations that are no Box, got {frames} of {space}. {LIVE}")
    from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

    return (_stack(StackedObservations(1, frames, space)),)


def _stack(stacked: Any) -> _Stack:
    return _Stack(count=stacked.n_stack, axis=stacked.repeat_axis, dtype=stacked.stacked_obs.dtype.str)


def _normalize(around: VecNormalize, known: RunningMeanStd) -> _Normalize:
    mean, var = np.array(known.mean, dtype=np.float64), np.array(known.var, dtype=np.float64)
    return _Normalize(mean=mean, var=var, epsilon=float(around.epsilon), clip=float(around.clip_obs))


def kind(layer: object) -> str:
    """Return the full name of an object's class."""
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


class _Without:
    """A step without memory."""

    __slots__ = ()

    def reset(self) -> None:
        """Do nothing: there is no memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cast(_Without):
    """Cast an observation to the type of the model's environment, as a `VecEnv` does. Refuse another shape."""

    space: Space

    def prepared(self, observation: Observed) -> Observed:
        seen, shape = cast("Array", observation), self.space.shape
        if seen.shape == shape and not isinstance(self.space, (spaces.Discrete, spaces.MultiDiscrete)):
            return seen.astype(self.space.dtype)
        # A flat vector is what `flattened` makes of the same observation.
        if not isinstance(self.space, spaces.Box) or (len(shape or ()) != 1 and seen.ndim == 1):
            if seen.shape == (spaces.flatdim(self.space),):
                return np.asarray(unflattened(self.space, seen))
            if seen.shape == shape:
                return seen.astype(self.space.dtype)
        raise ValueError(
            f"`env` must give observations of shape {shape}, as the model's environment does, got {seen.shape}."
        )

    def content(self) -> bytes:
        return framed("cast", f"{self.space.shape} {np.dtype(self.space.dtype).str}".encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole(_Without):
    """Give a flat observation back as the dictionary that the model's environment has."""

    space: spaces.Dict

    def prepared(self, observation: Observed) -> Observed:
        seen = cast("Array", observation)
        if seen.shape != (spaces.flatdim(self.space),):
            raise ValueError(
                f"`env` must give the observations of {self.space} as one flat vector of {spaces.flatdim(self.space)} "
                f"numbers, got shape {seen.shape}. Wrap it with `ccfs.controllers.flattened(env)`."
            )
        parts = cast("dict[str, object]", unflattened(cast("Space", self.space), seen))
        return {key: np.asarray(part, dtype=self.space.spaces[key].dtype) for key, part in parts.items()}

    def content(self) -> bytes:
        kinds = ((key, part.shape, np.dtype(part.dtype).str) for key, part in self.space.spaces.items())
        return framed("dict", repr(tuple(kinds)).encode())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Parts:
    """Do a step of its own with some parts of a dictionary, and leave the others as they are."""

    parts: Mapping[str, Step]

    def reset(self) -> None:
        """Forget the trial in each part."""
        for step in self.parts.values():
            step.reset()

    def prepared(self, observation: Observed) -> Observed:
        seen = cast("dict[str, Array]", observation)
        return seen | {key: cast("Array", step.prepared(seen[key])) for key, step in self.parts.items()}

    def content(self) -> bytes:
        return framed("parts", b"".join(framed(key, step.content()) for key, step in self.parts.items()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Normalize(_Without):
    """What `VecNormalize.normalize_obs` computes, on copies of its statistics, which no longer learn."""

    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    epsilon: float
    clip: float

    def prepared(self, observation: Observed) -> Observed:
        seen = cast("Array", observation).astype(np.float64)
        scaled = (seen - self.mean) / np.sqrt(self.var + self.epsilon)
        return np.asarray(np.clip(scaled, -self.clip, self.clip), dtype=np.float32)

    def content(self) -> bytes:
        values = (self.mean, self.var, self.epsilon, self.clip)
        return framed("normalize", b"".join(value_content("VecNormalize", value) for value in values))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Normalized(_Without):
    """Statistics that the user gave, because the model came without its environment."""

    normalizer: FrozenNormalizer

    def prepared(self, observation: Observed) -> Observed:
        return prepared(cast("Array", observation), self.normalizer)

    def content(self) -> bytes:
        values = (self.normalizer.mean, self.normalizer.std, self.normalizer.clip)
        return framed("normalizer", b"".join(value_content("normalizer", value) for value in values))


@dataclass(slots=True, kw_only=True, eq=False)
class _Stack:
    """What `VecFrameStack` computes for one environment: the latest frames, zeros before the first."""

    count: int
    axis: int
    dtype: str
    frames: tuple[Array, ...] = field(default=())

    def reset(self) -> None:
        """Forget the frames."""
        self.frames = ()

    def prepared(self, observation: Observed) -> Observed:
        latest = cast("Array", observation).astype(self.dtype)
        kept = self.frames or (np.zeros_like(latest),) * self.count
        self.frames = (*kept[1:], latest)
        return np.concatenate(self.frames, axis=self.axis)

    def content(self) -> bytes:
        return framed("stack", f"{self.count} {self.axis} {self.dtype}".encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transpose(_Without):
    """What `VecTransposeImage` computes: channels first."""

    def prepared(self, observation: Observed) -> Observed:
        return cast("Array", observation).transpose(2, 0, 1)

    def content(self) -> bytes:
        return framed("transpose", b"")
