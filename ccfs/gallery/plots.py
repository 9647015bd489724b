"""The gallery's drawings as inline SVG: text and lines take their colours from the page, maps are embedded pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from typing import cast

import numpy as np
from contourpy import LineType, contour_generator
from matplotlib import colormaps
from matplotlib.image import imsave
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ccfs.gallery.study import ROUNDING, Study

__all__ = ["COLOURS", "STYLE", "event_plot", "occupancy_plot", "radii_plot", "ratio_plot"]

COLOURS = 6
"""Number of label colours, --s0 to --s5."""

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --card: #f6f8fa; --ink: #1b1f24; --muted: #59636e; --line: #d8dee4;
  --good: #116b3a; --bad: #a3261b; --s0: #0f766e; --s1: #0b62c4; --s2: #8a6100; --s3: #7c3aed; --s4: #be185d;
  --s5: #57606a; }
@media (prefers-color-scheme: dark) { :root { --ground: #0f1318; --card: #171d24; --ink: #e6ebf1; --muted: #98a4b0;
  --line: #303a45; --good: #6fdc9b; --bad: #ff9d94; --s0: #2dd4bf; --s1: #62aaff; --s2: #e3b341; --s3: #b79cff;
  --s4: #f778ba; --s5: #8b949e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.2rem clamp(.9rem, 4vw, 2.5rem) 4rem; background: var(--ground);
  color: var(--ink); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { margin: 0; font-size: 1.8rem; line-height: 1.2; }
h2 { margin: 0 0 .3rem; font-size: 1.35rem; overflow-wrap: anywhere; }
h3 { margin: 0 0 .3rem; font-size: 1.02rem; }
p { max-width: 46rem; margin: .5rem 0; overflow-wrap: anywhere; }
section { margin-top: 2.2rem; padding-top: 1.2rem; border-top: 1px solid var(--line); }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
.verdict { padding: .8rem 1rem; border-radius: .4rem; background: var(--card); border-left: .3rem solid var(--good);
  color: var(--ink); font-weight: 400; }
.verdict.bad { border-left-color: var(--bad); }
.verdict.bad b { color: var(--bad); }
.plots { display: grid; gap: 1.2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 23rem), 1fr));
  margin: 1rem 0; }
figure { margin: 0; padding: .8rem; background: var(--card); border-radius: .5rem; min-width: 0; }
figure > svg { display: block; width: 100%; height: auto; }
figcaption { font-size: .9rem; color: var(--muted); margin-top: .3rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem .3rem 0; text-align: left; border-bottom: 1px solid var(--line);
  vertical-align: baseline; }
thead th { color: var(--muted); font-weight: 500; }
.n { white-space: nowrap; }
.why { min-width: 16rem; }
pre { overflow-x: auto; padding: .8rem 1rem; border-radius: .4rem; background: var(--card); font-size: .82rem; }
.scale { margin: .2rem 0 0; font-size: .82rem; color: var(--muted); text-align: center; max-width: none; }
.bar { display: inline-block; width: 45%; height: .6rem; border-radius: .2rem; vertical-align: baseline; }
svg text { font-size: 12px; fill: var(--muted); }
svg .name { fill: var(--ink); }
svg .axis { stroke: var(--muted); fill: none; }
svg .label { fill: var(--c); opacity: .3; }
svg .band { fill: var(--c); opacity: .14; }
svg .outline { fill: none; stroke: var(--ink); stroke-width: 1.2; }
svg .outline.bright { stroke: #fff; stroke-opacity: .85; }
svg .center { fill: var(--ink); stroke: var(--ground); stroke-width: 1.5; }
svg .sound { fill: none; stroke: var(--good); stroke-width: 2; }
svg .unsound { fill: none; stroke: var(--bad); stroke-width: 2; stroke-dasharray: 6 4; }
svg .thick { stroke-width: 5; }
svg .decision { fill: none; stroke: var(--ink); stroke-width: 1.3; stroke-dasharray: 3 3; }
svg .change { stroke: var(--bad); stroke-width: 3; }
svg .level { fill: none; stroke: #111; stroke-width: 1.4; }
svg .curve { fill: none; stroke: var(--ink); stroke-width: 2; }
svg .rule { stroke: var(--muted); stroke-dasharray: 5 4; }
svg .failing { fill: var(--bad); opacity: .22; }
"""


Array = NDArray[np.float64]
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 440.0, 56.0, 12.0, 12.0, 34.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Maps data to pixels; in the plane a unit is as long across as up, unless the drawing would be extreme."""

    x: tuple[float, float]
    y: tuple[float, float]
    inner: float

    @classmethod
    def of(cls, x: tuple[float, float], y: tuple[float, float], *, is_map: bool) -> _Frame:
        across = _WIDTH - _LEFT - _RIGHT
        tall = min(max(across * (y[1] - y[0]) / (x[1] - x[0]), 150.0), 520.0) if is_map else 190.0
        return cls(x=x, y=y, inner=tall)

    def px(self, value: float) -> float:
        return _LEFT + (value - self.x[0]) / (self.x[1] - self.x[0]) * (_WIDTH - _LEFT - _RIGHT)

    def py(self, value: float) -> float:
        return _TOP + self.inner * (1.0 - (value - self.y[0]) / (self.y[1] - self.y[0]))

    def rect(self, x: tuple[float, float], y: tuple[float, float], style: str) -> str:
        """Draw a rectangle, cut at the frame."""
        left, right = (self.px(min(max(end, self.x[0]), self.x[1])) for end in x)
        low, high = (self.py(min(max(end, self.y[0]), self.y[1])) for end in y)
        size = f'width="{max(right - left, 0.0):.1f}" height="{max(low - high, 0.0):.1f}"'
        return f'<rect class="{style}" x="{left:.1f}" y="{high:.1f}" {size}/>'

    def line(self, points: Array, style: str) -> str:
        shown = " ".join(f"{self.px(x):.1f},{self.py(y):.1f}" for x, y in points.tolist())
        return f'<polyline class="{style}" points="{shown}"/>'

    def ring(self, center: Array, radius: float, style: str) -> str:
        rx, ry = self.px(self.x[0] + radius) - self.px(self.x[0]), self.py(self.y[0]) - self.py(self.y[0] + radius)
        at = f'cx="{self.px(float(center[0])):.1f}" cy="{self.py(float(center[1])):.1f}"'
        return f'<ellipse class="{style}" {at} rx="{rx:.1f}" ry="{ry:.1f}"/>'

    def mark(self, x: float, y: float, style: str) -> str:
        return f'<circle class="{style}" cx="{self.px(x):.1f}" cy="{self.py(y):.1f}" r="4"/>'

    def cross(self, x: float, y: float) -> str:
        return f'<path class="change" d="M{self.px(x) - 5:.1f} {self.py(y) - 5:.1f}l10 10m0 -10l-10 10"/>'

    def picture(self, rgba: NDArray[np.uint8]) -> str:
        """Embed an image over the whole frame; row 0 is the lowest."""
        file = io.BytesIO()
        imsave(file, rgba[::-1], format="png", metadata={"Software": "ccfs"})
        data = base64.b64encode(file.getvalue()).decode("ascii")
        size = f'width="{_WIDTH - _LEFT - _RIGHT:.1f}" height="{self.inner:.1f}"'
        where = f'x="{_LEFT}" y="{_TOP}" {size} preserveAspectRatio="none"'
        return f'<image {where} href="data:image/png;base64,{data}"/>'

    def svg(self, parts: Iterable[str], title: str, x_name: str, y_name: str) -> str:
        """Close the drawing: parts are cut at the frame; without a name the vertical axis has no numbers."""
        height = _TOP + self.inner + _BOTTOM
        view = f'viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img" aria-label="{escape(title)}"'
        clip = f'<svg x="{_LEFT}" y="{_TOP}" width="{_WIDTH - _LEFT - _RIGHT}" height="{self.inner:.1f}"'
        window = f'viewBox="{_LEFT} {_TOP} {_WIDTH - _LEFT - _RIGHT} {self.inner:.1f}" preserveAspectRatio="none">'
        inside = f"{clip} {window}{''.join(parts)}</svg>"
        return f"<svg {view}>{inside}{self._axes(x_name, y_name)}</svg>"

    def _axes(self, x_name: str, y_name: str) -> str:
        bottom, right = _TOP + self.inner, _WIDTH - _RIGHT
        parts = [f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom:.1f}H{right}"/>']
        for tick in _ticks(*self.x):
            parts.append(f'<text x="{self.px(tick):.1f}" y="{bottom + 14:.1f}" text-anchor="middle">{tick:g}</text>')
        for tick in _ticks(*self.y) if y_name else []:
            parts.append(f'<text x="{_LEFT - 6}" y="{self.py(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
        middle = 0.5 * (_LEFT + right)
        parts.append(f'<text class="name" x="{middle}" y="{bottom + 29:.1f}" text-anchor="middle">{x_name}</text>')
        at = f'transform="translate(11 {_TOP + 0.5 * self.inner:.1f}) rotate(-90)"'
        parts.append(f'<text class="name" {at} text-anchor="middle">{y_name}</text>')
        return "".join(parts)


def occupancy_plot(study: Study) -> str:
    """Draw how much of the proposal is kept, over centers."""
    decades = study.maps.log_occupancy / np.log(10.0)
    if study.shape.boxes.dim == 1:
        return _curve(study, np.exp(study.maps.log_occupancy), "occupancy", "kept share of proposals", (0.0, 1.0))
    low = max(float(decades.min()), -4.0)
    shade = np.clip((decades - low) / max(-low, 1e-12), 0.0, 1.0)
    scale = _scale("viridis", f"{10.0**low:.2g} or less", "1", "kept share of proposals")
    return _map(study, "viridis", shade, "occupancy over centers", []) + scale


def ratio_plot(study: Study) -> str:
    """Draw the greatest conditional variance over sigma squared, over centers; 1 is the Gaussian's."""
    ratio = study.maps.local_ratio
    if study.shape.boxes.dim == 1:
        top = max(1.2, min(float(ratio.max()) * 1.05, 6.0))
        return _curve(study, np.minimum(ratio, top), "Λ over centers", "Λ", (0.0, top), level=1.0)
    shade = np.clip(0.5 * ratio, 0.0, 1.0)
    lines = _level(study.maps.axes, ratio, 1.0 + ROUNDING)
    scale = _scale("coolwarm", "0", "2 or more", "Λ; the line is Λ = 1")
    return _map(study, "coolwarm", shade, "local ratio over centers", lines) + scale


def event_plot(study: Study) -> str:
    """Draw the centers from which some event violates the Gaussian comparison for a short axis move."""
    fails = study.maps.fails
    if study.shape.boxes.dim == 1:
        slack = study.maps.event_slack
        reach = float(np.abs(slack).max()) * 1.1 + 1e-12
        return _curve(study, slack, "event slack over centers", "least slack", (-reach, reach), level=0.0, shaded=fails)
    frame = _plane(study.maps.axes)
    rgba = np.zeros((*fails.shape, 4), dtype=np.uint8)
    rgba[fails] = (205, 62, 45, 165)
    parts = [frame.picture(rgba), *_boxes(study, frame, "outline"), _center(study, frame)]
    return frame.svg(parts, "centers where the event comparison fails", "z₁", "z₂")


def radii_plot(study: Study) -> str:
    """Draw the labelled boxes, the radii around the center, and the nearest label change found."""
    if study.shape.boxes.dim == 1:
        return _intervals(study)
    frame = _plane(study.near.axes)
    parts = list(_boxes(study, frame, "label"))
    if study.change is not None:
        parts += [frame.line(line, "decision") for line in _level(study.near.axes, study.near.lead, 0.0)]
    for radius in study.radii:
        if 0.0 < radius.value < np.inf:
            parts.append(frame.ring(study.shape.center, radius.value, "sound" if radius.is_sound else "unsound"))
    parts.append(_center(study, frame))
    if study.change is not None:
        parts.append(frame.cross(float(study.change[0]), float(study.change[1])))
    return frame.svg(parts, "radii around the chosen center", "z₁", "z₂")


def _plane(axes: tuple[Array, ...]) -> _Frame:
    x, y = axes
    return _Frame.of((float(x[0]), float(x[-1])), (float(y[0]), float(y[-1])), is_map=True)


def _map(study: Study, palette: str, shade: Array, title: str, lines: list[Array]) -> str:
    frame = _plane(study.maps.axes)
    rgba = colormaps[palette](shade, bytes=True)
    parts = [frame.picture(rgba), *_boxes(study, frame, "outline bright")]
    parts += [frame.line(line, "level") for line in lines]
    return frame.svg([*parts, _center(study, frame)], title, "center z₁", "center z₂")


def _level(axes: tuple[Array, ...], values: Array, level: float) -> list[Array]:
    """Return the lines along which the values equal `level`, arrays [points, 2]."""
    x, y = axes
    found = contour_generator(x=x, y=y, z=values, line_type=LineType.Separate).lines(level)
    return [np.asarray(line) for line in cast("list[Array]", found)]


def _boxes(study: Study, frame: _Frame, style: str) -> list[str]:
    boxes = study.shape.boxes
    drawn = zip(boxes.lows.tolist(), boxes.highs.tolist(), study.shape.labels, strict=True)
    return [
        frame.rect((low[0], high[0]), (low[1], high[1]), f"{style} c{label % COLOURS}") for low, high, label in drawn
    ]


def _center(study: Study, frame: _Frame) -> str:
    return frame.mark(float(study.shape.center[0]), float(study.shape.center[1]), "center")


def _curve(
    study: Study,
    values: Array,
    title: str,
    name: str,
    span: tuple[float, float],
    *,
    level: float | None = None,
    shaded: NDArray[np.bool_] | None = None,
) -> str:
    """Draw one quantity over one-dimensional centers, the kept set as a band below."""
    (x,) = study.maps.axes
    frame = _Frame.of((float(x[0]), float(x[-1])), span, is_map=False)
    parts = [frame.rect((low[0], high[0]), span, f"band c{label % COLOURS}") for low, high, label in _line_boxes(study)]
    if shaded is not None:
        edges = np.flatnonzero(np.diff(np.concatenate([[False], shaded, [False]]).astype(np.int8)))
        runs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        parts += [frame.rect((float(x[start]), float(x[stop - 1])), span, "failing") for start, stop in runs]
    if level is not None:
        parts.append(frame.line(np.asarray([[x[0], level], [x[-1], level]]), "rule"))
    parts.append(frame.line(np.stack([x, values], axis=1), "curve"))
    return frame.svg(parts, title, "center", name)


def _intervals(study: Study) -> str:
    (x,) = study.near.axes
    shown = [radius for radius in study.radii if 0.0 < radius.value < np.inf]
    frame = _Frame.of((float(x[0]), float(x[-1])), (0.0, len(shown) + 1.0), is_map=False)
    parts = [
        frame.rect((low[0], high[0]), frame.y, f"label c{label % COLOURS}") for low, high, label in _line_boxes(study)
    ]
    at = float(study.shape.center[0])
    for row, radius in enumerate(shown):
        ends = np.asarray([[at - radius.value, row + 1.0], [at + radius.value, row + 1.0]])
        parts.append(frame.line(ends, "thick sound" if radius.is_sound else "thick unsound"))
    parts.append(frame.mark(at, 0.4, "center"))
    if study.change is not None:
        edge = float(study.change[0])
        parts.append(frame.line(np.asarray([[edge, 0.0], [edge, len(shown) + 1.0]]), "decision"))
    return frame.svg(parts, "radii around the chosen center", "proposal and center", "")


def _line_boxes(study: Study) -> list[tuple[list[float], list[float], int]]:
    boxes = study.shape.boxes
    return list(zip(boxes.lows.tolist(), boxes.highs.tolist(), study.shape.labels, strict=True))


def _scale(palette: str, low: str, high: str, name: str) -> str:
    """Return a colour scale as HTML, as wide as the drawing."""
    stops = ", ".join(_hex(colormaps[palette], at) for at in np.linspace(0.0, 1.0, 9).tolist())
    bar = f'<span class="bar" style="background: linear-gradient(90deg, {stops})"></span>'
    return f'<p class="scale">{low} {bar} {high}<br>{name}</p>'


def _hex(palette: Callable[[float], tuple[float, float, float, float]], at: float) -> str:
    red, green, blue = (round(255 * part) for part in palette(at)[:3])
    return f"#{red:02x}{green:02x}{blue:02x}"


def _ticks(low: float, high: float) -> list[float]:
    found = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [round(float(tick), 10) for tick in found if low <= tick <= high]
