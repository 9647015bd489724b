"""Make environments by id: ours (exact and fast) or stock, with six results a step or with Gymnasium's five."""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any

from ccfs.envs import _rendering

if TYPE_CHECKING:
    import gymnasium

__all__ = ["TASKS", "builder_of", "is_fast", "make", "make_gymnasium", "register"]

TASKS: tuple[str, ...] = tuple(
    f"Safety{agent}{task}{level}-v0"
    for agent in ("Point", "Car")
    for task in ("Goal", "Button", "Push")
    for level in range(3)
)
"""Ids whose steps take the short way."""

_BUILDER = "safety_gymnasium.builder:Builder"
_HUMAN_OR_PIXELS = ("observe_vision", "debug")


def make(
    env_id: str,
    *,
    fast: bool = True,
    render_mode: str | None = None,
    max_episode_steps: int | None = None,
    **settings: object,
) -> gymnasium.Env[Any, Any]:
    """Make a Safety-Gymnasium environment that gives stock's bits several times faster.

    The result behaves as that of `safety_gymnasium.make`: steps return (observation, reward, cost, terminated,
    truncated, info). A window, pixel observations and keyboard control get the stock environment itself. The first
    environment of an id in a process is checked against stock on a short run; should a bit differ on this machine, a
    warning is issued and stock is returned.

    Args:
        env_id: such as "SafetyPointGoal2-v0"; any id of Safety-Gymnasium, with or without "ccfs/" before it.
        fast: False for the stock environment.
        render_mode: "rgb_array" or "depth_array" to render off-screen, which needs EGL or OSMesa; a reset then takes
            about a second, to decode textures.
        max_episode_steps: override of the registered episode length.
        settings: passed to the environment class (`config`, `width`, `height`, `camera_name`, ...).
    """
    from ccfs.envs import _compat

    arguments = dict(settings)
    if render_mode is not None:
        arguments["render_mode"] = render_mode
    off_screen = render_mode in _rendering.OFF_SCREEN
    if off_screen:
        _rendering.choose_backend()
    can_be_fast = fast and (render_mode is None or off_screen)
    kind, spec = builder_of(env_id, fast=can_be_fast, config=arguments.get("config"), pictures=off_screen)
    spec = dataclasses.replace(spec, entry_point=kind)
    stock = _compat.stock("utils.registration")
    env: gymnasium.Env[Any, Any] = stock.make(spec, max_episode_steps=max_episode_steps, **arguments)
    return env


def builder_of(env_id: str, *, fast: bool = True, config: object = None, pictures: bool = False) -> tuple[Any, Any]:
    """Return the class that `make` would instantiate and the registered specification with its arguments.

    Args:
        env_id: as for `make`.
        fast: False for the stock class.
        config: configuration that replaces the registered one.
        pictures: True to load the textures that rendering shows.
    """
    from ccfs.envs import _compat

    stock = _compat.stock("utils.registration")
    name = env_id.removeprefix("ccfs/")
    if name not in stock.safe_registry:
        raise ValueError(f"`env_id` must be an id of Safety-Gymnasium, got {env_id!r}. Try one of {', '.join(TASKS)}.")
    spec = stock.spec(name)
    if fast and _can_be_fast(spec, config):
        selftest = importlib.import_module("ccfs.envs.selftest")
        if selftest.passes(name):
            module = importlib.import_module("ccfs.envs.fast")
            return (module.PictureBuilder if pictures else module.FastBuilder), spec
    return stock.load_env_creator(spec.entry_point), spec


def is_fast(env: gymnasium.Env[Any, Any]) -> bool:
    """Return True if `env` was made by us and takes the short way, False for stock."""
    return type(env.unwrapped).__module__ == "ccfs.envs.fast"


def make_gymnasium(env_id: str, **settings: Any) -> gymnasium.Env[Any, Any]:
    """Make an environment with Gymnasium's five results a step; the cost is `info["cost"]`.

    This is what `gymnasium.make("ccfs/SafetyPointGoal2-v0")` calls.
    """
    from ccfs.envs import _compat

    conversion = _compat.stock("wrappers.gymnasium_conversion")
    env: gymnasium.Env[Any, Any] = conversion.SafetyGymnasium2Gymnasium(make(env_id, **settings))
    return env


def register() -> None:
    """Register `TASKS` with Gymnasium; its plugin entry point calls this inside the namespace "ccfs"."""
    from gymnasium.envs.registration import register as gymnasium_register

    for task in TASKS:
        gymnasium_register(
            id=task,
            entry_point="ccfs.envs.registration:make_gymnasium",
            max_episode_steps=1000,
            kwargs={"env_id": task},
        )


def _can_be_fast(spec: Any, config: object) -> bool:
    if spec.entry_point != _BUILDER:
        return False
    chosen = spec.kwargs.get("config") if config is None else config
    return isinstance(chosen, dict) and not any(chosen.get(key) for key in _HUMAN_OR_PIXELS)
