"""Make environments by id, ours or stock, with six results per step or with Gymnasium's five."""

from __future__ import annotations

import ctypes.util
import dataclasses
import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gymnasium

__all__ = ["TASKS", "builder_of", "check_limit", "is_fast", "make", "make_gymnasium", "make_repeatable", "register"]

TASKS: tuple[str, ...] = tuple(
    f"Safety{agent}{task}{level}-v0"
    for agent in ("Point", "Car")
    for task in ("Goal", "Button", "Push")
    for level in range(3)
)
"""Ids whose steps are fast."""
_BUILDER = "safety_gymnasium.builder:Builder"
_HUMAN_OR_PIXELS = ("observe_vision", "debug")
# Settings that decide whether the fast step applies. The self-test runs with them.
_DECISIVE = ("config", "task_id")
_OFF_SCREEN = ("rgb_array", "depth_array")
_NEWEST = (3, 11)
"""The newest Python on which the extra `safety` can be installed, as its markers in pyproject.toml say."""
_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}


def make(
    env_id: str,
    *,
    fast: bool = True,
    render_mode: str | None = None,
    max_episode_steps: int | None = None,
    **settings: object,
) -> gymnasium.Env[Any, Any]:
    """Make a Safety-Gymnasium environment that gives stock's bits several times faster.

    The result behaves like that of `safety_gymnasium.make`: steps return (observation, reward, cost, terminated,
    truncated, info). With a window, pixel observations or keyboard control, the result is the stock environment itself.
    In each process, the first environment of an id and configuration is compared with stock on a short run. If a bit
    differs on this machine, a warning is issued and stock is returned.

    Its attribute `observation_layout` says where each sensor is in the flat observation: {"gyro": (6, 9), ...}.

    Args:
        env_id: any id of Safety-Gymnasium, such as "SafetyPointGoal2-v0", with or without "ccfs/" before it.
        fast: False for the stock environment.
        render_mode: "rgb_array" or "depth_array" to render off-screen, which needs EGL or OSMesa. A reset then takes
            about a second, because it decodes textures. The comparison makes two such resets.
        max_episode_steps: episode length instead of the registered one, at most the task's own (1,000 for most).
        settings: passed to the environment class (`config`, `width`, `height`, `camera_name`, ...).

    Raises:
        ValueError: if `env_id` is unknown, or if `max_episode_steps` is more than the task itself allows.
    """
    arguments = dict(settings)
    if render_mode is not None:
        arguments["render_mode"] = render_mode
    off_screen = render_mode in _OFF_SCREEN
    if off_screen:
        _choose_backend()
    can_be_fast = fast and (render_mode is None or off_screen)
    kind, spec = builder_of(env_id, fast=can_be_fast, settings=arguments, pictures=off_screen)
    spec = dataclasses.replace(spec, entry_point=kind)
    stock = _stock("utils.registration")
    env: gymnasium.Env[Any, Any] = stock.make(spec, max_episode_steps=max_episode_steps, **arguments)
    if max_episode_steps is not None:
        check_limit(env.unwrapped, max_episode_steps)
    _name_slices(env.unwrapped)
    return env


def make_repeatable(
    env_id: str, *, fast: bool = True, max_episode_steps: int | None = None, **settings: Any
) -> gymnasium.Env[Any, Any]:
    """Make an environment whose episodes follow from their reset seeds alone. Protocols name it `safety-gymnasium`.

    Each episode is the first one of a new stock environment, to the bit. What `make` gives does as stock does: from its
    second reset on, last bits may differ from that. They do with Car and Racecar, and rarely with a box to push.

    Args:
        env_id: as for `make`, and so are the others.
        fast: False for the stock environment.
        max_episode_steps: episode length instead of the registered one.
        settings: other arguments of `make`.
    """
    env = make(env_id, fast=fast, max_episode_steps=max_episode_steps, **settings)
    if not hasattr(env.unwrapped, "task"):  # a robot of Gymnasium, which is compiled once
        return env
    # Imported here, because Gymnasium imports this module while it is imported itself.
    from ccfs.envs.safety.repeatable import NewWorlds

    return NewWorlds(env)


def _stock(name: str) -> Any:
    """Import a module of Safety-Gymnasium. On a Python that it has no wheels for, say so: no command would help."""
    is_here = all(importlib.util.find_spec(part) is not None for part in ("mujoco", "safety_gymnasium"))
    if not is_here and sys.version_info[:2] > _NEWEST:
        raise ImportError(
            f"Safety-Gymnasium needs MuJoCo 2.3.3, which has no wheels for this Python, "
            f"{sys.version_info[0]}.{sys.version_info[1]}. Use Python 3.10 or 3.11: "
            f"python3.11 -m venv NEW && NEW/bin/pip install 'ccfs-rl[safety]'"
        )
    # Imported here, so that `import ccfs.envs` needs neither Safety-Gymnasium nor MuJoCo.
    from ccfs.envs.safety import compat

    return compat.stock(name)


def _name_slices(env: Any) -> None:
    """Say where each sensor is in the flat observation, so that a sensor stage can name them."""
    # Imported here, because Gymnasium imports this module while it is imported itself.
    from gymnasium.spaces import Box

    from ccfs.runtime.environment import flattened_layout

    # The tasks with a speed limit, such as SafetyHalfCheetahVelocity-v1, are robots of Gymnasium, without a `task`.
    if isinstance(env.observation_space, Box) and hasattr(env, "task"):
        env.observation_layout = flattened_layout(env.task.obs_info.obs_space_dict)


def check_limit(env: Any, max_episode_steps: int) -> None:
    """Refuse a time limit that is longer than the task's own episodes."""
    own = getattr(getattr(env, "task", None), "num_steps", max_episode_steps)
    if not max_episode_steps <= own:
        raise ValueError(
            f"`max_episode_steps` must be at most {own}, where the task itself ends an episode, "
            f"got {max_episode_steps}."
        )


def builder_of(
    env_id: str, *, fast: bool = True, settings: Mapping[str, object] | None = None, pictures: bool = False
) -> tuple[Any, Any]:
    """Return the class that `make` would instantiate and the registered specification with its arguments.

    Args:
        env_id: as for `make`.
        fast: False for the stock class.
        settings: arguments that replace the registered ones, of which `config` and `task_id` matter.
        pictures: True to load the textures that rendering shows.
    """
    stock = _stock("utils.registration")
    name = env_id.removeprefix("ccfs/")
    if name not in stock.safe_registry:
        raise ValueError(f"`env_id` must be an id of Safety-Gymnasium, got {env_id!r}. Try one of {', '.join(TASKS)}.")
    spec = stock.spec(name)
    decisive = {key: value for key, value in (settings or {}).items() if key in _DECISIVE}
    if fast and _can_be_fast(spec, decisive):
        module = importlib.import_module("ccfs.envs.safety.fast")
        kind = module.PictureBuilder if pictures else module.FastBuilder
        if importlib.import_module("ccfs.envs.safety.selftest").passes(name, kind, decisive):
            return kind, spec
    return stock.load_env_creator(spec.entry_point), spec


def is_fast(env: gymnasium.Env[Any, Any]) -> bool:
    """Return True if the steps of `env` are fast, False if they are stock's.

    During an episode the answer is about that episode. Before and after it, the answer is about the next one.
    """
    inner: Any = env.unwrapped
    if type(inner).__module__ != "ccfs.envs.safety.fast":
        return False
    module = importlib.import_module("ccfs.envs.safety.fast")
    if type(inner) not in (module.FastBuilder, module.PictureBuilder):
        return False
    if inner.done:
        return bool(importlib.import_module("ccfs.envs.safety.support").is_supported(inner.task))
    return inner._plan is not None


def make_gymnasium(env_id: str, **settings: Any) -> gymnasium.Env[Any, Any]:
    """Make an environment with Gymnasium's five results per step. The cost is `info["cost"]`. Its episodes repeat.

    This is what `gymnasium.make("ccfs/SafetyPointGoal2-v0")` calls.
    """
    conversion = _stock("wrappers.gymnasium_conversion")
    env: gymnasium.Env[Any, Any] = conversion.SafetyGymnasium2Gymnasium(make_repeatable(env_id, **settings))
    return env


def register() -> None:
    """Register `TASKS` with Gymnasium, and make Safety-Gymnasium importable on Python 3.11.

    Gymnasium's plugin entry point calls this inside the namespace "ccfs" when Gymnasium is imported.
    """
    from gymnasium.envs.registration import register as gymnasium_register

    from ccfs.envs.safety.compat import cure_import

    cure_import()

    for task in TASKS:
        gymnasium_register(
            id=task,
            entry_point="ccfs.envs.registration:make_gymnasium",
            max_episode_steps=1000,
            kwargs={"env_id": task},
        )


def _can_be_fast(spec: Any, settings: Mapping[str, object]) -> bool:
    if spec.entry_point != _BUILDER:
        return False
    chosen = {**spec.kwargs, **settings}.get("config")
    return isinstance(chosen, dict) and not any(chosen.get(key) for key in _HUMAN_OR_PIXELS)


def _choose_backend() -> str:
    """Return the value of `MUJOCO_GL`. If the user has not set it, set it to a backend that is installed.

    Raises:
        RuntimeError: if neither EGL nor OSMesa is installed.
    """
    if "MUJOCO_GL" not in os.environ:
        for backend, library in _LIBRARIES.items():
            if ctypes.util.find_library(library):
                os.environ["MUJOCO_GL"] = backend
                break
        else:
            raise RuntimeError(
                "Rendering off-screen needs the library EGL or OSMesa, and neither was found. On Debian: "
                "`apt install libegl1 libegl-mesa0` (or `libosmesa6`). With a screen, set MUJOCO_GL=glfw."
            )
    return os.environ["MUJOCO_GL"]
