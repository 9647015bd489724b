"""What a report can draw of an environment: its trajectory drawing, and a scene that replays stored actions."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol as Shape
from typing import TypeAlias, cast

import gymnasium
import numpy as np

from ccfs.protocol.model import Arm, Protocol
from ccfs.runs.trace import Trace
from ccfs.runtime.interfaces import Vector

__all__ = [
    "DRAWINGS",
    "SCENES",
    "Disc",
    "Drawing",
    "Panel",
    "PathGroup",
    "Rule",
    "Scene",
    "Shown",
    "drawing_for",
    "scene_for",
    "totals",
]

DRAWINGS: dict[str, str] = {"corridor": "ccfs.envs.toys.drawings:corridor"}
"""The drawing of each shipped environment that has one, as "module:callable". Others get `totals`."""
SCENES: dict[str, str] = {"safety-gymnasium": "ccfs.envs.safety.point_maps:scene"}
"""The scene of each shipped environment that has one. A report makes no environment that is not listed here."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shown:
    """Trials of one arm to draw, nominal or under one attack."""

    attack: str
    traces: tuple[Trace, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathGroup:
    """Paths, arrays [points, 2], that share a name and a colour. The bold one, if any, is their mean."""

    name: str
    paths: tuple[Vector, ...]
    bold: Vector | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A straight line to show from one point to another, such as a wall."""

    name: str
    start: tuple[float, float]
    end: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disc:
    """A round place on a map, such as a hazard. `kind` is "hazard", "vase", "goal" or "other"."""

    name: str
    center: tuple[float, float]
    radius: float
    kind: str = "other"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Panel:
    """One drawing of paths, over time or on a map. On a map both axes have the same scale."""

    caption: str
    x_label: str
    y_label: str
    groups: tuple[PathGroup, ...]
    rules: tuple[Rule, ...] = ()
    discs: tuple[Disc, ...] = ()
    is_map: bool = False


Drawing: TypeAlias = Callable[[Protocol, Arm, Sequence[Shown]], Panel]
"""Gets the protocol, an arm, its nominal trials, and the same trials with the same noise under one attack."""


def drawing_for(protocol: Protocol, reference: str | None = None) -> Drawing:
    """Return the drawing named by "module:callable". Its module is run. The default is the environment's own."""
    path = reference or DRAWINGS.get(protocol.environment.make)
    if path is None:
        return totals
    module, _, name = path.partition(":")
    try:
        found: object = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f'`drawing` must be an importable "module:callable", got {path!r}: {error}.') from error
    if not callable(found):
        raise ValueError(f"`drawing` must name a callable, got {path!r}.")
    return cast(Drawing, found)


class Scene(Shape):
    """A shipped environment in which a report replays stored actions, and what can be read from its state.

    Every method but `causes` is about the present state of `env`.
    """

    @property
    def env(self) -> gymnasium.Env[Vector, Vector]:
        """The environment, with five or six results per step."""
        ...

    def discs(self) -> tuple[Disc, ...]:
        """Return what stands where."""
        ...

    def place(self) -> tuple[float, float]:
        """Return where the robot is, in the units of `discs`."""
        ...

    def nearest(self) -> tuple[float, float] | None:
        """Return the center of the nearest obstacle, (ahead, to the left) of the robot, or None if there is none."""
        ...

    def legend(self) -> str:
        """Return what a rendered picture shows in which colour, as a sentence."""
        ...

    def close(self) -> None:
        """Close `env` and free what it drew with."""
        ...

    def causes(self, info: dict[str, object]) -> str:
        """Return what the cost of a step came from, in a few words, or "" if there was none."""
        ...


def scene_for(protocol: Protocol, *, pictures: bool = False) -> Scene | None:
    """Return the environment's scene, or None if it has none. With `pictures`, its `env` renders off-screen.

    Only shipped environments are made, from the recorded arguments. Nothing else that the protocol names is run.
    """
    path = SCENES.get(protocol.environment.make)
    if path is None:
        return None
    module, _, name = path.partition(":")
    make = cast(Callable[..., Scene | None], getattr(importlib.import_module(module), name))
    return make(protocol.environment.arguments, pictures=pictures)


def totals(protocol: Protocol, arm: Arm, shown: Sequence[Shown]) -> Panel:
    """Draw the cost so far over time, or the reward so far where the environment reports no cost."""
    has_cost = any(np.isfinite(trace.cost).any() for part in shown for trace in part.traces)
    groups = []
    for part in shown:
        values = [trace.cost if has_cost else trace.reward for trace in part.traces]
        paths = [np.column_stack([np.arange(len(run) + 1), np.append(0.0, np.nancumsum(run))]) for run in values]
        groups.append(PathGroup(name=part.attack, paths=tuple(paths)))
    what = "cost" if has_cost else "reward"
    return Panel(
        caption=f"Total {what} so far. Each line is one trial.",
        x_label="step",
        y_label=f"total {what}",
        groups=tuple(groups),
    )
