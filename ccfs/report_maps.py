"""Figures of replayed trajectories as inline SVG: maps of layouts, and where obstacles stood when fallbacks acted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ccfs.drawings import Disc
from ccfs.interfaces import Vector
from ccfs.report_outcomes import Ending
from ccfs.report_replay import Retold
from ccfs.report_svg import Chart

__all__ = ["CELL", "Drawn", "FallbackMap", "end_mark", "fallback_figure", "fallback_map", "map_figure"]

CELL = 0.15
_CELLS = 12
_REACH = CELL * _CELLS / 2
_ROOM = 0.4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """One trajectory on a map: its style (a series colour), its name, the replay, what came first and when."""

    style: str
    name: str
    retold: Retold
    ending: Ending
    at: int

    @property
    def words(self) -> str:
        """What came first: a cost by its cause."""
        return (self.retold.causes if self.ending is Ending.COST else "") or self.ending.value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FallbackMap:
    """Steps and fallback steps by where the nearest obstacle was, arrays [ahead, right]; `far` are beyond the map."""

    steps: NDArray[np.int64]
    fallbacks: NDArray[np.int64]
    far: tuple[int, int]
    trajectories: int

    @property
    def totals(self) -> tuple[int, int]:
        """Fallback steps and all steps, those beyond the map too."""
        return int(self.fallbacks.sum()) + self.far[0], int(self.steps.sum()) + self.far[1]


def map_figure(drawn: Sequence[Drawn], label: str) -> Markup:
    """Draw a layout from above with paths over it: a broad band where a fallback acted, faint after the end mark."""
    discs = dict.fromkeys(disc for item in drawn for disc in item.retold.discs)
    goals = [disc for disc in discs if disc.kind == "goal"]
    places = np.concatenate([*(item.retold.path for item in drawn), *(_box(disc) for disc in goals)])
    (x_low, y_low), (x_high, y_high) = (places.min(axis=0) - _ROOM).tolist(), (places.max(axis=0) + _ROOM).tolist()
    chart = Chart(
        x_range=(x_low, x_high),
        y_range=(y_low, y_high),
        label=label,
        width=320.0,
        height=320.0,
        is_map=True,
        is_bare=True,
        left=1.0,
        right=1.0,
        top=1.0,
        bottom=1.0,
    )
    for disc in (disc for disc in discs if _is_inside(disc, chart)):
        chart.circle(*disc.center, disc.radius, f"disc {disc.kind}", disc.name)
    for item in drawn:
        for run in _runs(item.retold):
            chart.line(_thinned(run), f"band {item.style}", f"{item.name}: a fallback acted")
    for item in drawn:
        if len(item.retold.path) > item.at + 1:
            chart.line(_thinned(item.retold.path[item.at :]), f"track after {item.style}", f"{item.name}: afterwards")
        chart.line(_thinned(item.retold.path[: item.at + 1]), f"track {item.style}", item.name)
    x, y = drawn[0].retold.path[0].tolist()
    chart.circle(x, y, 0.05, "start", "start")
    for item in drawn:
        x, y = item.retold.path[: item.at + 1][-1].tolist()
        words = f"{item.name}: {item.words}"
        # The first is drawn larger, so that it shows where both end at one place.
        size = 7.0 if item is drawn[0] and len(drawn) > 1 else 5.0
        chart.shapes.append(end_mark(item.ending, item.style, chart.x(x), chart.y(y), words, size=size))
    _scale_bar(chart)
    chart.shapes.append(Markup('<rect class="frame" x="0.5" y="0.5" width="319" height="319" rx="4"/>'))
    return chart.svg()


def end_mark(ending: Ending, style: str, x: float, y: float, title: str = "", *, size: float = 5.0) -> Markup:
    """Return the mark of how a path ended: a disc at the goal, a cross at a cost, else a square."""
    shapes = {
        Ending.GOAL: '<circle cx="{x}" cy="{y}" r="{s}"/>',
        Ending.COST: '<path class="under" d="M{x} {y}m-{s} -{s}l{d} {d}m-{d} 0l{d} -{d}"/>'
        '<path class="cross" d="M{x} {y}m-{s} -{s}l{d} {d}m-{d} 0l{d} -{d}"/>',
    }
    shape = shapes.get(ending, '<path d="M{x} {y}m-{s} -{s}h{d}v{d}h-{d}z"/>')
    drawn = Markup(shape).format(x=f"{x:.1f}", y=f"{y:.1f}", s=f"{size:g}", d=f"{2 * size:g}")
    return Markup('<g class="end {}">{}<title>{}</title></g>').format(style, drawn, title)


def fallback_map(told: Sequence[Retold]) -> FallbackMap:
    """Count all steps and those of fallbacks by the place of the nearest obstacle in the robot's frame."""
    nearest = np.concatenate([item.nearest for item in told]) if told else np.zeros((0, 2))
    fell = np.concatenate([item.is_fallback for item in told]) if told else np.zeros(0, dtype=np.bool_)
    ahead, right = nearest[:, 0], -nearest[:, 1]
    near = (np.abs(ahead) < _REACH) & (np.abs(right) < _REACH)  # False for NaN: no obstacle at all
    rows = np.floor((ahead[near] + _REACH) / CELL).astype(np.int64)
    columns = np.floor((right[near] + _REACH) / CELL).astype(np.int64)
    steps, fallbacks = np.zeros((2, _CELLS, _CELLS), dtype=np.int64)
    np.add.at(steps, (rows, columns), 1)
    np.add.at(fallbacks, (rows, columns), fell[near].astype(np.int64))
    far = (int(fell[~near].sum()), int((~near).sum()))
    return FallbackMap(steps=steps, fallbacks=fallbacks, far=far, trajectories=len(told))


def fallback_figure(counts: FallbackMap, label: str) -> Markup:
    """Draw each cell's share of fallback steps as its shade, with their number in it."""
    chart = Chart(
        x_range=(-_REACH, _REACH),
        y_range=(-_REACH, _REACH),
        label=label,
        x_label="nearest obstacle: to the right (m)",
        y_label="ahead of the robot (m)",
        width=400.0,
        height=400.0,
        is_map=True,
    )
    for row in range(_CELLS):
        for column in range(_CELLS):
            steps, fell = int(counts.steps[row, column]), int(counts.fallbacks[row, column])
            if not steps:
                continue
            x, y = column * CELL - _REACH, row * CELL - _REACH
            shade = f'class="cell" style="--share:{100.0 * fell / steps:.0f}%"'
            chart.rectangle(x, y, CELL, CELL, shade, f"fallback in {fell} of {steps} steps")
            if fell:
                style = "many" if fell > 0.7 * steps else "few"
                chart.shapes.append(
                    Markup('<text class="{}" x="{}" y="{}" text-anchor="middle">{}</text>').format(
                        style, f"{chart.x(x + CELL / 2):.1f}", f"{chart.y(y + CELL / 2) + 3.5:.1f}", _short(fell)
                    )
                )
    x, y = chart.x(0.0), chart.y(0.0)
    chart.shapes.append(
        Markup(
            '<path class="robot" d="M{} {}m0 -9l6 15l-6 -4l-6 4z"><title>the robot, heading up</title></path>'
        ).format(f"{x:.1f}", f"{y:.1f}")
    )
    return chart.svg()


def _short(count: int) -> str:
    return str(count) if count < 1000 else f"{count / 1000:.1f}k" if count < 10_000 else f"{count // 1000}k"


def _box(disc: Disc) -> Vector:
    (x, y), r = disc.center, disc.radius
    return np.array([(x - r, y - r), (x + r, y + r)])


def _is_inside(disc: Disc, chart: Chart) -> bool:
    return all(
        low - disc.radius < place < high + disc.radius
        for place, (low, high) in zip(disc.center, (chart.x_range, chart.y_range), strict=True)
    )


def _runs(retold: Retold) -> Iterator[Vector]:
    """Yield the pieces of the path along which a fallback acted without a break."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], retold.is_fallback, [False]]).astype(np.int8)))
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield retold.path[start : end + 1]


def _thinned(path: Vector) -> list[tuple[float, float]]:
    stride = math.ceil(len(path) / 150)
    kept = path if stride <= 1 else np.concatenate([path[:-1:stride], path[-1:]])
    return [(float(x), float(y)) for x, y in kept]


def _scale_bar(chart: Chart) -> None:
    x, y = 14.0, chart.height - 12.0
    length = chart.x(1.0) - chart.x(0.0)
    chart.shapes.append(
        Markup('<path class="axis" d="M{0} {1}v-6M{0} {2}h{3}m0 3v-6"/><text x="{4}" y="{1}">1 m</text>').format(
            f"{x:g}", f"{y:g}", f"{y - 3:g}", f"{length:.1f}", f"{x + length + 5:.1f}"
        )
    )
