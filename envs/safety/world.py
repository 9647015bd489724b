"""Build the same physics as Safety-Gymnasium, and decode pictures only if something renders."""

from __future__ import annotations

import functools
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

from ccfs.envs.safety import compat, layout, xml

__all__ = ["lighten", "quicken"]

_world: Any = compat.stock("world")
_underlying: Any = compat.stock("bases.underlying")


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
    """Return `function` with some of the names it reads replaced, so that the logic stays in stock code alone."""
    # Not a patch of the stock module: whoever else uses stock in this process keeps it as it is.
    return FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__, function.__defaults__)


_light_yaml = SimpleNamespace(load=lambda file, Loader: _assets(file.read()), FullLoader=None)


class _LightWorld(_world.World):  # type: ignore[misc]
    """The stock world, compiled from the stock XML with one-pixel textures."""

    build = _rebound(_world.World.build, yaml=_light_yaml)

    def reset(self, build: bool = True) -> None:
        """Do nothing. Stock compiles here and again right after, with the same result."""


class _QuickWorld(_LightWorld):
    """A light world whose XML is composed faster."""

    build = _rebound(_world.World.build, yaml=_light_yaml, xmltodict=xml)


class _PictureWorld(_QuickWorld):
    """The stock world with its pictures, compiled once instead of twice."""

    build = _rebound(_world.World.build, xmltodict=xml)


_build_light = _rebound(_underlying.Underlying._build, World=_LightWorld)
_build_quick = _rebound(_underlying.Underlying._build, World=_QuickWorld)
_build_pictures = _rebound(_underlying.Underlying._build, World=_PictureWorld)


def lighten(task: Any) -> None:
    """Make a stock task build worlds without pictures. Everything else is stock code."""
    task._build = MethodType(_build_light, task)


def quicken(task: Any, *, pictures: bool) -> None:
    """Make a stock task build worlds quickly, with the bits of stock and with or without its pictures."""
    task._build = MethodType(_build_pictures if pictures else _build_quick, task)
    generator = task.random_generator
    generator.sample_layout = MethodType(layout.sample_layout, generator)
