"""A navigator for Point robots that draws its own map: a controller that reaches goals under large proposal noise."""

from __future__ import annotations

from ccfs.controllers.navigator.controller import Navigator
from ccfs.controllers.navigator.guard import (
    BrakeFallback,
    MapGuard,
    NavigatorFallback,
    StopFallback,
    would_be_safe,
)
from ccfs.controllers.navigator.lidar_map import LidarMap
from ccfs.controllers.navigator.settings import NavigatorSettings

__all__ = [
    "BrakeFallback",
    "LidarMap",
    "MapGuard",
    "Navigator",
    "NavigatorFallback",
    "NavigatorSettings",
    "StopFallback",
    "would_be_safe",
]
