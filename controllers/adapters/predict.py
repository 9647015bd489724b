"""Controllers from live models with `predict`: their memory is carried, and their observations are prepared."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ccfs.controllers.actor import answered
from ccfs.controllers.adapters import torch_content
from ccfs.controllers.adapters.content import framed, value_content

if TYPE_CHECKING:
    from stable_baselines3.common.policies import BasePolicy
    from stable_baselines3.common.running_mean_std import RunningMeanStd
    from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

__all__ = ["PredictController", "Predictor", "from_predict", "observation_layers"]

Array = NDArray[np.generic]

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


@runtime_checkable
class Predictor(Protocol):
    """A model as Stable-Baselines3 has it. Its `predict` may also take `state` and `episode_start`."""

    def predict(self, observation: NDArray[np.float64], *, deterministic: bool) -> tuple[ArrayLike, object]:
        """Return the action and the state to hand in at the next step, None for a model without memory."""
        ...


def from_predict(model: Predictor) -> PredictController:
    """Return the controller that answers as `model.predict(..., deterministic=True)` does in the model's environment.

    A model of Stable-Baselines3 that holds its environment (`model.get_env()`) gets its observations as that
    environment prepares them: `VecNormalize` with its statistics frozen, `VecFrameStack` and `VecTransposeImage`. Any
    other wrapper that may change observations is refused. A model loaded without its environment has no statistics:
    load it with `env=`. A state that `predict` returns is handed in again at the next step and forgotten at a reset.

    Assumes: nobody trains the model afterwards. It keeps no memory besides the state that `predict` returns.
    """
    if not isinstance(model, Predictor):
        raise TypeError(f"`model` must have `predict`, got {type(model).__name__}. See `from_callable`.")
    return PredictController(model)


class PredictController:
    """A live model as a controller. Satisfies `Controller`."""

    def __init__(self, model: Predictor) -> None:
        self._predict = model.predict
        self._takes = _named(model.predict) & {"state", "episode_start"}
        self._stages = _stages(model)
        self._digest = _digest(model, self._stages)
        self.reset()

    @property
    def digest(self) -> str:
        """SHA-256 of the policy's tensors, plain attributes and class names, and of how its observations are prepared.

        It is empty for a model without a torch policy, because such a model cannot be read.
        """
        return self._digest

    def reset(self) -> None:
        """Forget the state and the stacked frames, because a new trial begins."""
        self._state: object = None
        self._is_start = True
        for stage in self._stages:
            stage.reset()

    def center(self, observation: ArrayLike) -> NDArray[np.float64]:
        """Return the deterministic action as float64. NaN and infinities are refused."""
        seen: Array = np.array(observation)
        for stage in self._stages:
            seen = stage.prepared(seen)
        memory = {"state": self._state, "episode_start": np.array([self._is_start])}
        given = {name: value for name, value in memory.items() if name in self._takes}
        # What `predict` takes was read from its signature, which the protocol cannot say.
        answer, self._state = self._predict(seen, deterministic=True, **given)  # type: ignore[arg-type]
        if self._state is not None and "state" not in self._takes:
            raise TypeError(
                "`predict` must take `state` when it returns one, got a state and no argument to hand it in again. "
                "Pass a Controller that carries the state from step to step."
            )
        self._is_start = False
        return answered("predict", answer)


class _Stage(Protocol):
    """One step from the environment's observation to the model's."""

    def reset(self) -> None: ...
    def prepared(self, observation: Array) -> Array: ...
    def content(self) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cast:
    """Cast an observation to the type of the model's environment, as a `VecEnv` does. Refuse another shape."""

    shape: tuple[int, ...]
    dtype: str

    def reset(self) -> None:
        """Do nothing: there is no memory."""

    def prepared(self, observation: Array) -> Array:
        if observation.shape != self.shape:
            raise ValueError(
                f"`env` must give observations of shape {self.shape}, as the model's environment does, "
                f"got {observation.shape}."
            )
        return observation.astype(self.dtype)

    def content(self) -> bytes:
        return framed("cast", f"{self.shape} {self.dtype}".encode())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Normalize:
    """What `VecNormalize.normalize_obs` computes, on copies of its statistics, which no longer learn."""

    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    epsilon: float
    clip: float

    def reset(self) -> None:
        """Do nothing: there is no memory."""

    def prepared(self, observation: Array) -> Array:
        scaled = (observation.astype(np.float64) - self.mean) / np.sqrt(self.var + self.epsilon)
        return np.asarray(np.clip(scaled, -self.clip, self.clip), dtype=np.float32)

    def content(self) -> bytes:
        values = (self.mean, self.var, self.epsilon, self.clip)
        return framed("normalize", b"".join(value_content("VecNormalize", value) for value in values))


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

    def prepared(self, observation: Array) -> Array:
        latest = observation.astype(self.dtype)
        kept = self.frames or (np.zeros_like(latest),) * self.count
        self.frames = (*kept[1:], latest)
        return np.concatenate(self.frames, axis=self.axis)

    def content(self) -> bytes:
        return framed("stack", f"{self.count} {self.axis} {self.dtype}".encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transpose:
    """What `VecTransposeImage` computes: channels first."""

    def reset(self) -> None:
        """Do nothing: there is no memory."""

    def prepared(self, observation: Array) -> Array:
        return observation.transpose(2, 0, 1)

    def content(self) -> bytes:
        return framed("transpose", b"")


def observation_layers(model: object) -> list[object]:
    """Return the wrappers of the model's environment that change observations, innermost first.

    Wrappers are known by their exact class, because a subclass may do anything. An unknown one is refused.
    """
    _, layers = _environment(model)
    return layers


def _environment(model: object) -> tuple[object, list[object]]:
    """Return the vectorised environment at the bottom (None without one) and `observation_layers`."""
    ask = getattr(model, "get_env", None)
    layer: object = ask() if callable(ask) else None
    found: list[object] = []
    while (inner := getattr(layer, "venv", None)) is not None:
        kind = _kind(layer)
        if kind not in {_NORMALIZE, _STACK, _TRANSPOSE} | _HARMLESS:
            raise ValueError(
                f"The model's environment must have no wrapper that is not known to keep observations, "
                f"got {type(layer).__name__}. If it keeps them, call `model.set_env` with an environment without it. "
                "If it changes them, pass a Controller that changes them in the same way before it asks the model."
            )
        # Both have a switch that turns them off.
        is_idle = not getattr(layer, "norm_obs", True) or getattr(layer, "skip", False)
        if kind not in _HARMLESS and not is_idle:
            found.insert(0, layer)
        layer = inner
    return layer, found


def _stages(model: object) -> tuple[_Stage, ...]:
    bottom, layers = _environment(model)
    if bottom is None:
        return ()
    space = getattr(bottom, "observation_space", None)
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or dtype is None:
        raise TypeError(f"The model must read one array, got the observation space {space}.")
    return (_Cast(shape=tuple(shape), dtype=np.dtype(dtype).str), *map(_stage, layers))


def _stage(layer: object) -> _Stage:
    kind = _kind(layer)
    if kind == _TRANSPOSE:
        return _Transpose()
    if kind == _STACK:
        stacked = cast("VecFrameStack", layer).stacked_obs
        return _Stack(count=stacked.n_stack, axis=stacked.repeat_axis, dtype=stacked.stacked_obs.dtype.str)
    around = cast("VecNormalize", layer)
    # A dictionary of statistics belongs to a dictionary of observations, which `_stages` has refused.
    known = cast("RunningMeanStd", around.obs_rms)
    mean, var = np.array(known.mean, dtype=np.float64), np.array(known.var, dtype=np.float64)
    return _Normalize(mean=mean, var=var, epsilon=float(around.epsilon), clip=float(around.clip_obs))


def _kind(layer: object) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


def _named(function: object) -> set[str]:
    """Return the names of a function's arguments, none if they cannot be read."""
    try:
        return set(inspect.signature(function).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return set()


def _digest(model: object, stages: tuple[_Stage, ...]) -> str:
    policy: object = getattr(model, "policy", None)
    if not (hasattr(policy, "set_training_mode") and hasattr(policy, "named_modules")):
        return ""
    trained = cast("BasePolicy", policy)
    trained.set_training_mode(False)  # as `predict` does: the mode is part of the hash
    parts = framed("model", _kind(model).encode()) + torch_content.state(trained, is_described=True)
    prepared = b"".join(stage.content() for stage in stages)
    return hashlib.sha256(b"ccfs.predict-controller/1" + parts + prepared).hexdigest()
