"""One way in: whatever a user has for a policy becomes a controller here, or is refused with what to do."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from gymnasium import spaces
from numpy.typing import ArrayLike

from ccfs.controllers import zoo
from ccfs.controllers.actor import NumpyActor
from ccfs.controllers.adapters.callables import CallableController, from_callable
from ccfs.controllers.adapters.environments import Environment, Space, refuse_action_space
from ccfs.controllers.adapters.omnisafe import from_omnisafe
from ccfs.controllers.adapters.predict import Predictor, from_predict, is_bare_policy
from ccfs.controllers.adapters.programs import from_onnx, from_torchscript
from ccfs.controllers.adapters.rl_zoo import from_rl_zoo, settings_folder
from ccfs.controllers.adapters.saved import Normalizer
from ccfs.controllers.adapters.sb3 import from_sb3
from ccfs.controllers.adapters.torch import from_torch
from ccfs.runtime.flat import checked_environment
from ccfs.runtime.interfaces import Controller

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Policy", "as_controller"]

Policy: TypeAlias = "Controller | Predictor | Callable[..., ArrayLike] | nn.Module | str | os.PathLike[str]"
"""What a user may have: see `as_controller`."""

_KINDS = (
    "a Controller, a model with `predict`, a torch module, a function of the observation, or a path: of a .zip, .onnx, "
    ".pt or .npz file, of a folder of the RL Zoo, of a run of OmniSafe or of an entry of the zoo"
)


def as_controller(
    policy: Policy,
    *,
    env: Environment | None = None,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    normalizer: Normalizer = None,
) -> Controller:
    """Return the controller of a policy, whatever library it comes from.

    A live model is asked as its own library asks it (`from_predict`). A path is read without running code of the file:
    a .zip of Stable-Baselines3, a folder of the RL Zoo, a run of OmniSafe, an entry of our zoo. ONNX and TorchScript
    files are programs, which run when they are asked. A function gets observations as `env` gives them, a dict if it
    gives dicts. Its digest is empty if nobody can tell what determines it (`from_callable` says why, and takes
    `content=`).

    Args:
        policy: a Controller, a model or policy of Stable-Baselines3 or sb3-contrib, another model with `predict`, a
            torch module, a function, or a path.
        env: the environment to be certified, as the user has it. With Dict observations the controller reads the flat
            vector of `ccfs.controllers.flattened(env)`.
        observation_space: of the environment, if `env` is not given.
        action_space: likewise.
        normalizer: statistics of observations that are lost from the policy, or "none" (see `from_sb3`).
    """
    if env is not None:
        checked_environment(env)
        observation_space = env.observation_space if observation_space is None else observation_space
        action_space = env.action_space if action_space is None else action_space
    if action_space is not None:
        refuse_action_space(action_space)
    if isinstance(policy, type):
        raise TypeError(f"`policy` must be made first, got the class {policy.__name__}. Call it with its arguments.")
    if isinstance(policy, (str, os.PathLike)):
        return _from_path(Path(policy), observation_space, action_space, normalizer)
    if isinstance(policy, Controller):
        if normalizer is not None:
            raise ValueError("`normalizer` must be None for a Controller, which prepares its observations itself.")
        return policy
    torch = sys.modules.get("torch")  # a module of torch cannot be here without it
    if torch is not None and isinstance(policy, torch.jit.ScriptModule):
        return from_torchscript(policy, normalizer)
    is_module = torch is not None and isinstance(policy, torch.nn.Module)
    # A module of one's own may have a `predict` of its own.
    if isinstance(policy, Predictor) and (is_bare_policy(policy) or not is_module):
        return from_predict(
            policy, env=env, observation_space=observation_space, action_space=action_space, normalizer=normalizer
        )
    if is_module:
        return _from_module(cast("nn.Module", policy), normalizer)
    if not callable(policy):
        raise TypeError(f"`policy` must be {_KINDS}, got {policy!r:.200}.")
    if normalizer is not None:
        raise ValueError("`normalizer` must be None for a function. Normalise inside of it.")
    return _from_function(policy, observation_space, action_space)


def _from_path(
    path: Path, observation_space: Space | None, action_space: Space | None, normalizer: Normalizer
) -> Controller:
    if not path.exists() and not path.suffix and path.with_suffix(".zip").is_file():
        path = path.with_suffix(".zip")  # the library leaves it out too
    if path.suffix == ".zip" or (path.is_dir() and settings_folder(path) is not None):
        read = from_rl_zoo if settings_folder(path) is not None else from_sb3
        return read(path, normalizer, observation_space=observation_space, action_space=action_space)
    if path.suffix == ".onnx":
        return from_onnx(path, normalizer)
    epoch = re.fullmatch(r"epoch-(\d+)\.pt", path.name)
    if epoch is not None and path.parent.name == "torch_save":
        return _without_normalizer(path, normalizer, from_omnisafe(path.parent.parent, int(epoch[1])))
    if path.suffix in (".pt", ".pth", ".ts", ".jit"):
        return from_torchscript(path, normalizer)
    if (path / "torch_save").is_dir():
        return _without_normalizer(path, normalizer, from_omnisafe(path))
    if path.suffix == ".npz" or (path / "actor.npz").is_file():
        actor = NumpyActor.load(path) if path.is_file() else zoo.load(path).actor
        return _without_normalizer(path, normalizer, actor)
    if str(path) in zoo.names():
        return _without_normalizer(path, normalizer, zoo.actor(str(path)))
    there = "nothing there" if not path.exists() else "a folder of another kind" if path.is_dir() else "another file"
    raise ValueError(f"`policy` must be {_KINDS}, got the path {str(path)!r}, {there}.")


def _without_normalizer(path: Path, normalizer: Normalizer, controller: Controller) -> Controller:
    if normalizer is not None:
        raise ValueError(f"`normalizer` must be None for {path.name}, which holds its own.")
    return controller


def _from_module(module: nn.Module, normalizer: Normalizer) -> Controller:
    try:
        return from_torch(module, normalizer)
    except ValueError as error:
        if "`content` must be given" not in str(error):
            raise
        raise ValueError(
            f"{error} Make the controller yourself: ccfs.controllers.from_torch(module, content=...) takes bytes that "
            "determine it, such as the file of its class. Or pass a function that asks it."
        ) from error


def _from_function(
    function: Callable[..., ArrayLike], observation_space: Space | None, action_space: Space | None
) -> Controller:
    # The controller reads flat vectors. The function wants what the environment gives.
    whole = None if observation_space is None or isinstance(observation_space, spaces.Box) else observation_space
    try:
        return from_callable(function, "policy", observation_space=whole, action_space=action_space)
    except ValueError:  # it cannot be hashed
        return CallableController(function, "policy", "", observation_space=whole, action_space=action_space)
