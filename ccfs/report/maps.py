"""What a report shows of replayed trials: maps of layouts, where fallbacks acted, and one picture."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ccfs.protocol.model import NOMINAL, Protocol
from ccfs.report.charts import Chart, data_uri, thinned
from ccfs.report.counts import Ending, Key, Trial
from ccfs.report.drawings import SCENES, Disc, scene_for
from ccfs.report.pages import Figure
from ccfs.report.replay import (
    ARMS,
    ReplayError,
    Replays,
    Retold,
    first_replayed,
    layouts,
    replays,
    retell,
    stored_trial,
)
from ccfs.runs.executors import Engine
from ccfs.runs.record import StepRow, TrajectoryRow
from ccfs.runs.store import Store
from ccfs.runtime.interfaces import Vector

__all__ = [
    "CELL",
    "ArmMaps",
    "Drawn",
    "FallbackMap",
    "Picture",
    "Replayed",
    "end_mark",
    "fallback_figure",
    "fallback_map",
    "map_figure",
    "picture",
    "replayed",
]

CELL = 0.15
_CELLS = 12
_REACH = CELL * _CELLS / 2
_ROOM = 0.4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """One trial on a map: its style (a series colour), its name, its replay, how it ended and when."""

    style: str
    name: str
    retold: Retold
    ending: Ending
    at: int

    @property
    def words(self) -> str:
        """How it ended. A cost is named by its cause."""
        return (self.retold.causes if self.ending is Ending.COST else "") or self.ending.value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FallbackMap:
    """All steps and fallback steps by where the nearest obstacle was, arrays [ahead, right].

    `far` counts those whose obstacle was beyond the map: (fallback steps, all steps).
    """

    steps: NDArray[np.int64]
    fallbacks: NDArray[np.int64]
    far: tuple[int, int]
    trajectories: int

    @property
    def totals(self) -> tuple[int, int]:
        """Fallback steps and all steps, including those beyond the map."""
        return int(self.fallbacks.sum()) + self.far[0], int(self.steps.sum()) + self.far[1]


def map_figure(drawn: Sequence[Drawn], label: str) -> Chart:
    """Draw a layout and paths from above. A path is broad where a fallback acted and faint after its end mark."""
    # A dict keeps the order and drops doubles: both trials of a map show the same layout.
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
        digits=4,
        left=1.0,
        right=1.0,
        top=1.0,
        bottom=1.0,
    )
    for disc in (disc for disc in discs if _is_inside(disc, chart)):
        chart.circle(*disc.center, disc.radius, f"disc {disc.kind}", disc.name)
    for item in drawn:
        # Bands first, so that no band hides a path.
        for run in _runs(item.retold):
            chart.line(thinned(run), f"band {item.style}", f"{item.name}: a fallback acted")
    for item in drawn:
        if len(item.retold.path) > item.at + 1:
            chart.line(thinned(item.retold.path[item.at :]), f"track after {item.style}", f"{item.name}: afterwards")
        chart.line(thinned(item.retold.path[: item.at + 1]), f"track {item.style}", item.name)
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
    return chart


def end_mark(ending: Ending, style: str, x: float, y: float, title: str = "", *, size: float = 5.0) -> Markup:
    """Return the mark of how a path ended: a disc for the goal, a cross for a cost, else a square."""
    shapes = {
        Ending.GOAL: '<circle cx="{x}" cy="{y}" r="{s}"/>',
        Ending.COST: '<path class="under" d="M{x} {y}m-{s} -{s}l{d} {d}m-{d} 0l{d} -{d}"/>'
        '<path class="cross" d="M{x} {y}m-{s} -{s}l{d} {d}m-{d} 0l{d} -{d}"/>',
    }
    shape = shapes.get(ending, '<path d="M{x} {y}m-{s} -{s}h{d}v{d}h-{d}z"/>')
    drawn = Markup(shape).format(x=f"{x:.1f}", y=f"{y:.1f}", s=f"{size:g}", d=f"{2 * size:g}")
    return Markup('<g class="end {}">{}<title>{}</title></g>').format(style, drawn, title)


def fallback_map(told: Sequence[Retold]) -> FallbackMap:
    """Count all steps and fallback steps by the place of the nearest obstacle in the robot's frame."""
    nearest = np.concatenate([item.nearest for item in told]) if told else np.zeros((0, 2))
    fell = np.concatenate([item.is_fallback for item in told]) if told else np.zeros(0, dtype=np.bool_)
    # Scenes say what is left of the robot. The page shows right to the right.
    ahead, right = nearest[:, 0], -nearest[:, 1]
    near = (np.abs(ahead) < _REACH) & (np.abs(right) < _REACH)  # False for NaN, which means that there is no obstacle
    rows = np.floor((ahead[near] + _REACH) / CELL).astype(np.int64)
    columns = np.floor((right[near] + _REACH) / CELL).astype(np.int64)
    steps, fallbacks = np.zeros((2, _CELLS, _CELLS), dtype=np.int64)
    np.add.at(steps, (rows, columns), 1)
    np.add.at(fallbacks, (rows, columns), fell[near].astype(np.int64))
    far = (int(fell[~near].sum()), int((~near).sum()))
    return FallbackMap(steps=steps, fallbacks=fallbacks, far=far, trajectories=len(told))


def fallback_figure(counts: FallbackMap, label: str) -> Chart:
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
    chart.heads = ("right from (m)", "right to (m)", "ahead from (m)", "ahead to (m)", "fallback steps", "steps")
    for row in range(_CELLS):
        for column in range(_CELLS):
            steps, fell = int(counts.steps[row, column]), int(counts.fallbacks[row, column])
            if not steps:
                continue
            x, y = column * CELL - _REACH, row * CELL - _REACH
            words = f"fallback in {fell} of {steps} steps"
            chart.rows.append((*(round(end, 2) for end in (x, x + CELL, y, y + CELL)), fell, steps))
            chart.rectangle((x, x + CELL), (y, y + CELL), "cell", words, share=fell / steps)
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
    return chart


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
    # With False at both ends, starts and ends of the runs alternate, and the last run has an end.
    edges = np.flatnonzero(np.diff(np.concatenate([[False], retold.is_fallback, [False]]).astype(np.int8)))
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield retold.path[start : end + 1]


def _scale_bar(chart: Chart) -> None:
    x, y = 14.0, chart.height - 12.0
    length = chart.x(1.0) - chart.x(0.0)
    chart.shapes.append(
        Markup('<path class="axis" d="M{0} {1}v-6M{0} {2}h{3}m0 3v-6"/><text x="{4}" y="{1}">1 m</text>').format(
            f"{x:g}", f"{y:g}", f"{y - 3:g}", f"{length:.1f}", f"{x + length + 5:.1f}"
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture as a data URI, or why there is none."""

    uri: str = ""
    legend: str = ""
    missing: str = ""


def picture(protocol: Protocol, row: TrajectoryRow, steps: Sequence[StepRow]) -> Picture:
    """Replay the given steps with an environment that can render, and return a picture of its last state.

    Rendering off-screen needs libraries that a machine may lack, in more ways than can be foreseen. Whatever goes wrong
    there, the report is written without the picture and says so.
    """
    try:
        scene = scene_for(protocol, pictures=True)
        if scene is None:
            return Picture(missing="this environment has no scene.")
        try:
            retell(protocol, scene, row, steps)
            return Picture(uri=_data_uri(np.asarray(scene.env.render())), legend=scene.legend())
        finally:
            scene.close()
    except ReplayError as error:
        return Picture(missing=str(error))
    except Exception as error:
        return Picture(missing=f"this machine could not render off-screen ({type(error).__name__}).")


def _data_uri(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> str:
    from PIL import Image  # comes with matplotlib

    # The top of the picture is sky, in every task.
    below_sky = pixels[pixels.shape[0] // 6 :]
    stream = io.BytesIO()
    Image.fromarray(below_sky).save(stream, "JPEG", quality=82)
    return data_uri("image/jpeg", stream.getvalue())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmMaps:
    """The maps of one arm. `endings` are those that occur on them."""

    arm: str
    figures: tuple[Figure, ...]
    endings: tuple[Ending, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replayed:
    """What a report shows of replayed trials, or why nothing was replayed."""

    missing: str = ""
    made: Replays | None = None
    maps: tuple[ArmMaps, ...] = ()
    fallbacks: tuple[Figure, ...] = ()
    without_fallbacks: tuple[str, ...] = ()
    picture: Picture | None = None
    picture_words: str = ""


def replayed(
    store: Store, protocol: Protocol, trials: Sequence[Trial], attack: str | None, *, most_steps: int, engine: Engine
) -> Replayed | None:
    """Replay what the page shows, nominal and under `attack`. Return None if nothing is to be replayed."""
    if not most_steps or protocol.environment.make not in SCENES:
        return None
    try:
        made = replays(store, protocol, trials, attack, most_steps=most_steps, engine=engine)
    except ImportError as error:
        return Replayed(missing=f"the environment is not installed here: {error}")
    if made is None:
        return None
    by_key = {trial.key: trial for trial in trials}
    maps = [
        _arm_maps(by_key, arm.name, layouts(trials, arm.name, attack), attack, made) for arm in protocol.arms[:ARMS]
    ]
    heat, without = [], []
    for arm in protocol.arms[:ARMS]:
        counts = fallback_map(first_replayed(trials, arm.name, made))
        fell, steps = counts.totals
        if fell:
            label = f"{arm.name}: share of fallback steps by the place of the nearest obstacle"
            words = f"First {counts.trajectories} trials: {fell} of {steps} steps by a fallback. "
            words += f"Beyond the map: {counts.far[0]} of {counts.far[1]} steps."
            title = f"{arm.name}, where fallbacks acted"
            heat.append(Figure(title=title, chart=fallback_figure(counts, label), caption=words))
        elif counts.trajectories:
            without.append(arm.name)
    shown = _to_picture(protocol, trials, attack, made)
    image, words = (None, "") if shown is None else _picture(store, protocol, by_key[shown])
    return Replayed(
        made=made,
        maps=tuple(item for item in maps if item.figures),
        fallbacks=tuple(heat),
        without_fallbacks=tuple(without),
        picture=image,
        picture_words=words,
    )


def _arm_maps(
    by_key: Mapping[Key, Trial], arm: str, chosen: Sequence[int], attack: str | None, made: Replays
) -> ArmMaps:
    figures, endings = [], []
    for number in chosen:
        kinds = [(NOMINAL, "s0")] if attack is None else [(NOMINAL, "s0"), (attack, "s1")]
        drawn, words = [], []
        for kind, style in kinds:
            key = (arm, kind, number)
            trial = by_key.get(key)
            if trial is not None and key in made.told:
                item = Drawn(style=style, name=kind, retold=made.told[key], ending=trial.ending, at=trial.at)
                drawn.append(item)
                words.append(f"{kind}: {item.words} at step {trial.at}")
                endings.append(trial.ending)
            elif any(refused == key for refused, _ in made.refused):
                words.append(f"{kind}: refused, it does not replay")
        if drawn:
            title = f"trial {number}, reset seed {by_key[arm, NOMINAL, number].reset_seed}"
            chart = map_figure(drawn, f"{arm}, {title}: {'; '.join(words)}")
            legend = tuple((f"line {item.style}", item.name, item.words) for item in drawn)
            caption = ". ".join(words) + "."
            figures.append(Figure(title=f"{arm}, {title}", chart=chart, legend=legend, caption=caption, is_keyed=False))
    return ArmMaps(arm=arm, figures=tuple(figures), endings=tuple(dict.fromkeys(endings)))


def _to_picture(protocol: Protocol, trials: Sequence[Trial], attack: str | None, made: Replays) -> Key | None:
    """Return a nominal trial on the maps. If one of them ended in a cost, it is that one."""
    keys = [(arm.name, NOMINAL, i) for arm in protocol.arms[:ARMS] for i in layouts(trials, arm.name, attack)]
    shown = [key for key in keys if key in made.told]
    return next((key for key in shown if made.told[key].causes), shown[0] if shown else None)


def _picture(store: Store, protocol: Protocol, trial: Trial) -> tuple[Picture, str]:
    row, steps = stored_trial(store, protocol, trial.key)
    count = trial.at if trial.ending is Ending.COST else max(1, trial.steps // 2)
    image = picture(protocol, row, steps[:count])
    moment = "at the moment of its cost" if trial.ending is Ending.COST else f"after step {count}"
    return image, f"{trial.arm}, nominal trial {trial.trial} (reset seed {trial.reset_seed}) {moment}."
