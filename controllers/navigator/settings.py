"""Every tuned constant of the navigator, in one frozen value that its digest covers."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

__all__ = ["NavigatorSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NavigatorSettings:
    """How far the navigator looks ahead and what it fears; lengths in metres, durations in steps.

    Args:
        first_steps: steps that the first of two held actions lasts in a rollout.
        second_steps: steps of the second one.
        risk_weight: steps that one trajectory sample at zero clearance is worth.
        risk_scale: clearance over which that risk falls by a factor e, without noise.
        risk_scale_noise: what a unit of sigma adds to it.
        crash_weight: steps per metre of a sample inside an obstacle, per sample.
        look_ahead: seconds that a rollout's last velocity is continued before its time to the goal is read.
        turn_weight: share of the time to turn into the way that is charged at a rollout's end.
        cruise_speed: speed (m/s) that the route planner reckons with in the open.
        route_risk: times the cruising time that the route planner charges for a way at zero clearance.
        doubt: share of that price that a way beside unseen places costs.
        route_every: steps between two routes.
        field_every: steps between two fields of distance to possible obstacles.
    """

    first_steps: int = 4
    second_steps: int = 14
    risk_weight: float = 12.0
    risk_scale: float = 0.02
    risk_scale_noise: float = 0.02
    crash_weight: float = 2000.0
    look_ahead: float = 0.25
    turn_weight: float = 0.6
    cruise_speed: float = 0.7
    route_risk: float = 15.0
    doubt: float = 0.15
    route_every: int = 12
    field_every: int = 4

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"`{item.name}` must be finite and at least 0, got {value}.")
            if item.type == "int" and not (isinstance(value, int) and value >= 1):
                raise ValueError(f"`{item.name}` must be a whole number of at least 1, got {value}.")
