"""Spaces and statistics that Stable-Baselines3 pickled, read without running the pickle and without gym.

`vecnormalize.pkl` and the spaces in a model's .zip are pickles, and loading one runs whatever it names. Here exactly
the layout that the library writes is read off, whether its spaces are those of gym or of Gymnasium. Anything else is
refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ccfs.controllers.actor import FrozenNormalizer
from ccfs.controllers.adapters.environments import Space
from ccfs.files.pickled import Built, PickleError, array, dtype, followed
from ccfs.files.reading import read_bytes

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecNormalize

__all__ = ["LIVE", "LOST", "RAW", "Normalizer", "as_normalizer", "normalizer_from_sb3", "space_of", "statistics"]

RAW: Final = "none"
"""In place of a normaliser: the policy reads observations as they are."""
Normalizer: TypeAlias = "FrozenNormalizer | VecNormalize | str | os.PathLike[str] | None"
"""What an adapter takes as `normalizer`: statistics, their wrapper, the path of vecnormalize.pkl, or "none"."""
LOST: Final = (
    "Pass `normalizer=` to `ccfs.controllers.as_controller`: the statistics of its `VecNormalize` "
    "(`normalizer_from_sb3(vec_env)`, or the path of its "
    f'vecnormalize.pkl), or "{RAW}" if the policy reads observations as they are.'
)

LIVE: Final = "Use `as_controller` with the live model itself. Load a file with its library only if you trust it."

_DEPTH: Final = 8
_VEC_NORMALIZE: Final = "stable_baselines3.common.vec_env.vec_normalize.VecNormalize"
_RUNNING: Final = "stable_baselines3.common.running_mean_std.RunningMeanStd"
_KEYS: Final = {
    "num_envs", "observation_space", "action_space", "obs_keys", "norm_obs_keys", "obs_spaces", "obs_rms", "ret_rms",
    "clip_obs", "clip_reward", "gamma", "epsilon", "training", "norm_obs", "norm_reward", "old_obs", "old_reward",
    "render_mode", "reset_infos", "_seeds", "_options", "metadata",
}  # fmt: skip
# A part that is not normalised is clipped to this, which changes no number in single precision.
_UNCLIPPED: Final = float(np.finfo(np.float32).max)


def as_normalizer(normalizer: Normalizer) -> FrozenNormalizer | str | None:
    """Return what a user gave as `normalizer`: statistics, "none" for a policy that needs none, or None for nothing."""
    if normalizer is None or isinstance(normalizer, FrozenNormalizer) or normalizer == RAW:
        return normalizer
    if isinstance(normalizer, (str, os.PathLike)):
        return statistics(Path(normalizer))
    if hasattr(normalizer, "norm_obs") and hasattr(normalizer, "clip_obs"):
        return normalizer_from_sb3(normalizer) if normalizer.norm_obs else RAW
    raise TypeError(
        f"`normalizer` must be a FrozenNormalizer, a VecNormalize, the path of a vecnormalize.pkl, or {RAW!r}, "
        f"got {type(normalizer).__name__}."
    )


def normalizer_from_sb3(environment: VecNormalize) -> FrozenNormalizer:
    """Return the observation statistics of a `VecNormalize`, frozen. Those of a Dict are for its flat vector."""
    known: object = environment.obs_rms
    moments: dict[str | None, tuple[object, object]] = {}
    if isinstance(known, dict):
        moments = {key: (known[key].mean, known[key].var) for key in environment.norm_obs_keys or ()}
    elif hasattr(known, "mean") and hasattr(known, "var"):
        moments = {None: (known.mean, known.var)}
    else:
        raise TypeError(f"`environment` must be a VecNormalize of observations, got {type(environment).__name__}.")
    space = cast("Space", environment.observation_space)
    return _frozen(moments, space, environment.epsilon, environment.clip_obs)


def statistics(path: Path) -> FrozenNormalizer | str:
    """Return the statistics in a `vecnormalize.pkl` (`VecNormalize.save`), "none" if it normalises rewards alone.

    The pickle is not run. A file with anything else than the library writes there is refused.
    """
    written = read_bytes(path)
    try:
        return _statistics(followed(written))
    except PickleError as error:
        raise ValueError(
            f"{path.name} must be what `VecNormalize.save` writes, got something else: {error} It is not run. If you "
            "trust the file, load it with Stable-Baselines3 and pass `normalizer=normalizer_from_sb3(vec_env)`."
        ) from error


def _statistics(saved: object) -> FrozenNormalizer | str:
    state = _state(saved, _VEC_NORMALIZE)
    unknown = state.keys() - _KEYS
    if unknown:
        raise PickleError(f"A VecNormalize has no {sorted(map(str, unknown))}.")
    if state.get("norm_obs") is False:
        return RAW
    if state.get("norm_obs") is not True:
        raise PickleError("`norm_obs` must be True or False.")
    space, known = space_of(state.get("observation_space")), state.get("obs_rms")
    if isinstance(known, dict):
        keys = state.get("norm_obs_keys", list(known))
        if not (
            isinstance(keys, list)
            and isinstance(space, spaces.Dict)
            and set(keys) <= known.keys() & space.spaces.keys()
        ):
            raise PickleError("The statistics must be those of parts of the observation.")
        moments: dict[str | None, tuple[object, object]] = {key: _moments(known[key]) for key in keys}
    else:
        moments = {None: _moments(known)}
    return _frozen(moments, space, _number(state.get("epsilon")), _number(state.get("clip_obs")))


def _moments(known: object) -> tuple[object, object]:
    state = _state(known, _RUNNING)
    if state.keys() != {"mean", "var", "count"}:
        raise PickleError(f"Statistics must have mean, var and count, got {sorted(map(str, state))}.")
    return array(state["mean"]), array(state["var"])


def _number(value: object) -> float:
    found = array(value)
    if found.shape != () or found.dtype.kind not in "iuf":
        raise PickleError("A setting of VecNormalize must be a number.")
    return float(found)


def _frozen(
    moments: Mapping[str | None, tuple[object, object]], space: Space, epsilon: float, clip: float
) -> FrozenNormalizer:
    """Return statistics for the flat vector of an observation. Parts without any are left as they are."""
    parts: dict[str | None, Space] = {None: space}
    if isinstance(space, spaces.Dict):
        parts = dict(space.spaces.items())
    means, stds, clips = [], [], []
    for key, part in parts.items():
        size = spaces.flatdim(part)
        mean, var = (np.asarray(value, dtype=np.float64) for value in moments.get(key, (np.zeros(size), np.ones(size))))
        if not (mean.size == var.size == size and bool((var + epsilon > 0.0).all())):
            raise PickleError(f"Statistics must fit the observation, {size} numbers, got {mean.size} and {var.size}.")
        means.append(mean.reshape(-1))
        stds.append(np.sqrt(var.reshape(-1) + (epsilon if key in moments else 0.0)))
        clips.append(np.full(size, clip if key in moments else _UNCLIPPED))
    made = [np.concatenate(values) for values in (means, stds, clips)]
    return FrozenNormalizer(mean=made[0], std=made[1], clip=made[2], dtype="float64")


def space_of(saved: object, depth: int = 0) -> Space:
    """Return the space that a pickle of gym or of Gymnasium describes."""
    if not (isinstance(saved, Built) and depth < _DEPTH):
        raise PickleError(f"The value must be a space, got {type(saved).__name__}.")
    home, _, name = saved.name.partition(".spaces.")
    if home in ("gym", "gymnasium"):
        state = _state(saved, saved.name)
        if name == "box.Box":
            return cast("Space", _box(state))
        if name == "discrete.Discrete":
            return cast("Space", spaces.Discrete(_whole(state.get("n")), start=_whole(state.get("start", 0))))
        if name == "multi_discrete.MultiDiscrete":
            return cast("Space", spaces.MultiDiscrete(_wholes(state.get("nvec"))))
        if name == "multi_binary.MultiBinary":
            return cast("Space", spaces.MultiBinary(_wholes(state.get("n")).tolist()))
        if name == "dict.Dict":
            parts = _items(state.get("spaces"))
            # In their own order, which decides what the flat vector means.
            return cast("Space", spaces.Dict([(key, space_of(part, depth + 1)) for key, part in parts]))
    raise PickleError(f"The value must be a Box, Discrete, MultiDiscrete, MultiBinary or Dict, got {saved.name!r}.")


def _box(state: Mapping[str, object]) -> spaces.Box:
    low, high, of = array(state.get("low")), array(state.get("high")), dtype(state.get("dtype"))
    shape = state.get("_shape", state.get("shape"))
    if not (
        low.shape == high.shape == shape and low.dtype == high.dtype == of and bool(np.less_equal(low, high).all())
    ):
        raise PickleError("A Box must have bounds of one shape, `low` below `high`.")
    return spaces.Box(low, high, dtype=of.type)  # type: ignore[arg-type]


def _whole(value: object) -> int:
    found = _wholes(value)
    if found.shape != ():
        raise PickleError("A Discrete must have one size.")
    return int(found)


def _wholes(value: object) -> NDArray[np.int64]:
    found = array(value)
    if found.dtype.kind not in "iu":
        raise PickleError("The sizes of a space must be whole numbers.")
    return found.astype(np.int64)


def _items(value: object) -> list[tuple[str, object]]:
    pairs = list(value.items()) if isinstance(value, dict) else []
    if isinstance(value, Built) and value.name == "collections.OrderedDict" and value.arguments == ():
        pairs = value.items
    if not (pairs and all(isinstance(key, str) for key, _ in pairs)):
        raise PickleError("A Dict must have named parts.")
    return cast("list[tuple[str, object]]", pairs)


def _state(saved: object, name: str) -> dict[str, object]:
    """Return the attributes of an object of one class, made without arguments."""
    is_plain = isinstance(saved, Built) and saved.name == name and saved.arguments == () and not saved.items
    if not (is_plain and isinstance(saved, Built) and isinstance(saved.state, dict)):
        got = (saved.name or "an object of unknown class") if isinstance(saved, Built) else type(saved).__name__
        raise PickleError(f"The value must be a {name.rpartition('.')[2] or 'known class'}, got {got}.")
    return saved.state
