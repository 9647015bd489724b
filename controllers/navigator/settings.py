"""Every tuned constant of the navigator, in one frozen value that its digest covers."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

__all__ = ["NavigatorSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NavigatorSettings:
    """How far the navigator looks ahead and how it weighs risk. Lengths are in metres, durations in steps.

    Args:
        first_steps: steps that the first of two held actions lasts in a rollout.
        second_steps: steps of the second one.
        risk_weight: steps that one trajectory sample at zero clearance is worth.
        risk_scale: clearance over which that risk falls by a factor e, without noise.
        risk_scale_noise: what a unit of sigma adds to it.
        crash_weight: steps per metre of a sample inside an obstacle, per sample.
        look_ahead: seconds that a rollout's last velocity is continued before its time to the goal is read.
        progress_weight: weight of the mean time to the goal along a rollout, beside the time at its end.
        turn_weight: share of the time to turn into the way that is charged at a rollout's end.
        cruise_share: share of the mean terminal speed that the route planner assumes in the open.
        cruise_limit: greatest speed (m/s) that it assumes.
        route_risk: times the cruising time that the route planner charges for a way at zero clearance.
        closed: clearance below which a way counts as closed, without noise. The robot would only wait there.
        closed_noise: what a unit of sigma adds to it.
        doubt: times the cruising time that it charges for a way through places that were at best seen from afar.
        patient_steps: steps after which risk becomes cheaper, because time runs out.
        hurry_steps: steps over which it does.
        hurry_share: share of the price of risk that is left at the end.
        stuck_steps: steps after which a robot that stays within `stuck_radius` counts its way as closed.
        stuck_radius: metres.
        route_every: steps between two routes. Half of it after an obstacle became known.
        fresh_every: steps between two routes that forget the last one.
        field_every: steps between two fields of distance to possible obstacles.
        deadline: steps within which a goal should be reached.
        narrow_share: share of the clearance `closed` that is enough once the way takes longer than that. Exact readings
            only.
    """

    first_steps: int = 4
    second_steps: int = 22
    risk_weight: float = 7.0
    risk_scale: float = 0.01
    risk_scale_noise: float = 0.0105
    crash_weight: float = 2000.0
    look_ahead: float = 0.5
    progress_weight: float = 0.5
    turn_weight: float = 0.1
    cruise_share: float = 0.75
    cruise_limit: float = 0.8
    route_risk: float = 40.0
    closed: float = 0.035
    closed_noise: float = 0.025
    doubt: float = 2.0
    patient_steps: int = 100
    hurry_steps: int = 200
    hurry_share: float = 0.25
    stuck_steps: int = 70
    stuck_radius: float = 0.15
    route_every: int = 12
    fresh_every: int = 48
    field_every: int = 4
    deadline: int = 500
    narrow_share: float = 0.7

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"`{item.name}` must be finite and at least 0, got {value}.")
            if item.type == "int" and not (isinstance(value, int) and value >= 1):
                raise ValueError(f"`{item.name}` must be a whole number of at least 1, got {value}.")
