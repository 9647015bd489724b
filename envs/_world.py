"""Build the same physics as Safety-Gymnasium without decoding the pictures that only a renderer needs."""

from __future__ import annotations

import functools
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

from ccfs.envs import _compat

__all__ = ["lighten"]

_world: Any = _compat.stock("world")
_underlying: Any = _compat.stock("bases.underlying")


@functools.lru_cache(maxsize=1)
def _assets(text: str) -> Any:
    """Parse the asset list once, with each picture file replaced by a builtin texture of one pixel."""
    assets = _world.yaml.load(text, Loader=_world.yaml.FullLoader)
    for name, texture in assets["textures"].items():
        if any(key.startswith("@file") for key in texture):
            kept = {key: value for key, value in texture.items() if not key.startswith("@file")}
            assets["textures"][name] = {**kept, "@builtin": "flat", "@width": 1, "@height": 1}
    return assets


def _rebound(function: FunctionType, **names: object) -> FunctionType:
    """Return `function` with some of the names it reads replaced: stock code stays the single source of the logic."""
    return FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__, function.__defaults__)


class _LightWorld(_world.World):  # type: ignore[misc]
    """The stock world, compiled from the stock XML with one-pixel textures."""

    build = _rebound(
        _world.World.build,
        yaml=SimpleNamespace(load=lambda file, Loader: _assets(file.read()), FullLoader=None),
    )

    def reset(self, build: bool = True) -> None:
        """Do nothing: stock compiles here and again right after, with the same outcome."""


_light_build = _rebound(_underlying.Underlying._build, World=_LightWorld)


def lighten(task: Any) -> None:
    """Make a stock task build light worlds; its observations, costs and random numbers keep their bits."""
    task._build = MethodType(_light_build, task)
