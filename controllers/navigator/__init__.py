"""The navigator: a controller for Point robots that draws its own map and reaches goals under large noise."""

from __future__ import annotations

from ccfs.controllers.navigator.controller import Navigator
from ccfs.controllers.navigator.guard import (
    BrakeFallback,
    MapGuard,
    NavigatorFallback,
    StopFallback,
)
from ccfs.controllers.navigator.lidar_map import LidarMap
from ccfs.controllers.navigator.noisy_map import NoisyMap
from ccfs.controllers.navigator.pilot import PilotSettings
from ccfs.controllers.navigator.settings import NavigatorSettings
from ccfs.controllers.navigator.stopping import would_be_safe

__all__ = [
    "BrakeFallback",
    "LidarMap",
    "MapGuard",
    "Navigator",
    "NavigatorFallback",
    "NavigatorSettings",
    "NoisyMap",
    "PilotSettings",
    "StopFallback",
    "would_be_safe",
]
