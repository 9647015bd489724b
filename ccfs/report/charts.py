"""Small charts as inline SVG: scales, axes, shapes. Colours come from the page's style, so light and dark both fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

__all__ = ["GLYPHS", "Chart", "glyph", "ticks"]

GLYPHS = 8
"""Number of marker shapes; the style has as many series colours."""


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers inside [low, high], about `count` of them.

    >>> ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    span = high - low
    if not 0.0 < span < math.inf:
        return [low]
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def glyph(kind: int, x: float, y: float, title: str = "", size: float = 4.5) -> Markup:
    """Return the marker of series `kind` at a place in pixels."""
    shapes = (
        '<circle cx="{x}" cy="{y}" r="{s}"/>',
        '<path d="M{x} {y}m0 -{b}l{b} {d}h-{d}z"/>',
        '<path d="M{x} {y}m-{s} -{s}h{t}v{t}h-{t}z"/>',
        '<path d="M{x} {y}m0 -{b}l{b} {b}l-{b} {b}l-{b} -{b}z"/>',
        '<path d="M{x} {y}m0 {b}l{b} -{d}h-{d}z"/>',
        '<path d="M{x} {y}m-{s} -{s}l{t} {t}m-{t} 0l{t} -{t}" class="open"/>',
        '<path d="M{x} {y}m-{b} 0h{d}m-{b} -{b}v{d}" class="open"/>',
        '<circle cx="{x}" cy="{y}" r="{s}" class="open"/>',
    )
    big = size * 1.25
    places = {"x": x, "y": y, "s": size, "t": 2 * size, "b": big, "d": 2 * big}
    shape = Markup(shapes[kind % GLYPHS]).format(**{name: f"{value:.1f}" for name, value in places.items()})
    return Markup('<g class="glyph s{}">{}<title>{}</title></g>').format(kind % GLYPHS, shape, title)


@dataclass(slots=True, kw_only=True)
class Chart:
    """A plot area with linear axes. Shapes are added in data units, in drawing order."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    label: str
    x_label: str = ""
    y_label: str = ""
    width: float = 480.0
    height: float = 300.0
    is_map: bool = False
    is_bare: bool = False
    shapes: list[Markup] = field(default_factory=list)
    left: float = 50.0
    bottom: float = 42.0
    top: float = 12.0
    right: float = 20.0

    def __post_init__(self) -> None:
        self.x_range, self.y_range = _widened(self.x_range), _widened(self.y_range)
        if self.is_map:  # one unit is as long across as up: widen the shorter axis about its middle
            across, up = self.width - self.left - self.right, self.height - self.top - self.bottom
            unit = max(_span(self.x_range) / across, _span(self.y_range) / up)
            self.x_range, self.y_range = _about(self.x_range, unit * across), _about(self.y_range, unit * up)

    def x(self, value: float) -> float:
        """Return the pixel of an abscissa."""
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Return the pixel of an ordinate, counted from the top."""
        low, high = self.y_range
        return self.height - self.bottom - (value - low) / (high - low) * (self.height - self.top - self.bottom)

    def line(self, points: Sequence[tuple[float, float]], style: str, title: str = "") -> None:
        """Add a polyline; a point that is not finite breaks it."""
        moves, is_down = [], False
        for x, y in points:
            if not (math.isfinite(x) and math.isfinite(y)):
                is_down = False
                continue
            moves.append(f"{'L' if is_down else 'M'}{self.x(x):.1f} {self.y(y):.1f}")
            is_down = True
        if moves:
            self.shapes.append(
                Markup('<path class="line {}" d="{}"><title>{}</title></path>').format(style, "".join(moves), title)
            )

    def area(self, lower: Sequence[float], upper: Sequence[float], edges: Sequence[float], style: str) -> None:
        """Add the band between two step functions that are constant between consecutive edges."""
        if all(a == b for a, b in zip(lower, upper, strict=True)):
            return
        over = [(edge, value) for i, value in enumerate(upper) for edge in (edges[i], edges[i + 1])]
        under = [(edge, value) for i, value in enumerate(lower) for edge in (edges[i], edges[i + 1])]
        path = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in [*over, *reversed(under)])
        self.shapes.append(Markup('<path class="area {}" d="M{}z"/>').format(style, path))

    def rectangle(self, x: float, y: float, width: float, height: float, style: str, title: str = "") -> None:
        """Add a rectangle by its lower left corner, in data units; `style` is the text of its attributes."""
        self.shapes.append(
            Markup('<rect x="{}" y="{}" width="{}" height="{}" {}><title>{}</title></rect>').format(
                f"{self.x(x):.1f}",
                f"{self.y(y + height):.1f}",
                f"{self.x(x + width) - self.x(x):.1f}",
                f"{self.y(y) - self.y(y + height):.1f}",
                Markup(style),
                title,
            )
        )

    def circle(self, x: float, y: float, radius: float, style: str, title: str = "") -> None:
        """Add a circle whose radius is in data units of the x axis."""
        pixels = self.x(x + radius) - self.x(x)
        self.shapes.append(
            Markup('<circle class="{}" cx="{}" cy="{}" r="{}"><title>{}</title></circle>').format(
                style, f"{self.x(x):.1f}", f"{self.y(y):.1f}", f"{pixels:.1f}", title
            )
        )

    def whisker(self, x: float, low: float, high: float, kind: int, *, at: float, nudge: float, title: str) -> None:
        """Add a marker at (x, at) with an interval, moved sideways by `nudge` pixels so that neighbours stay apart."""
        place = self.x(x) + nudge
        top, base = self.y(high), self.y(low)
        path = f"M{place:.1f} {base:.1f}V{top:.1f}M{place - 3:.1f} {base:.1f}h6M{place - 3:.1f} {top:.1f}h6"
        self.shapes.append(Markup('<path class="whisker s{}" d="{}"/>').format(kind % GLYPHS, path))
        self.shapes.append(glyph(kind, place, self.y(at), title))

    def text(self, x: float, y: float, words: str, *, anchor: str = "start", dx: float = 0.0, dy: float = 0.0) -> None:
        """Add words at a place in data units, moved by pixels."""
        self.shapes.append(
            Markup('<text class="note" x="{}" y="{}" text-anchor="{}">{}</text>').format(
                f"{self.x(x) + dx:.1f}", f"{self.y(y) + dy:.1f}", anchor, words
            )
        )

    def svg(self) -> Markup:
        """Return the chart."""
        return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}</svg>').format(
            f"{self.width:g}",
            f"{self.height:g}",
            self.label,
            "" if self.is_bare else self._axes(),
            Markup("").join(self.shapes),
        )

    def _axes(self) -> Markup:
        parts, floor = [], self.height - self.bottom
        for value in ticks(*self.y_range):
            parts.append(
                Markup('<path class="grid" d="M{} {}H{}"/><text x="{}" y="{}" text-anchor="end">{}</text>').format(
                    f"{self.left:g}",
                    f"{self.y(value):.1f}",
                    f"{self.width - self.right:g}",
                    f"{self.left - 6:g}",
                    f"{self.y(value) + 4:.1f}",
                    f"{value:g}",
                )
            )
        for value in ticks(*self.x_range):
            parts.append(
                Markup(
                    '<path class="tick" d="M{0} {1}v4"/><text x="{0}" y="{2}" text-anchor="middle">{3}</text>'
                ).format(f"{self.x(value):.1f}", f"{floor:g}", f"{floor + 17:g}", f"{value:g}")
            )
        parts.append(
            Markup('<path class="axis" d="M{} {}H{}"/>').format(
                f"{self.left:g}", f"{floor:g}", f"{self.width - self.right:g}"
            )
        )
        middle = (self.left + self.width - self.right) / 2
        parts.append(
            Markup('<text class="name" x="{}" y="{}" text-anchor="middle">{}</text>').format(
                f"{middle:g}", f"{self.height - 6:g}", self.x_label
            )
        )
        parts.append(
            Markup('<text class="name" transform="translate(13 {}) rotate(-90)" text-anchor="middle">{}</text>').format(
                f"{(self.top + floor) / 2:g}", self.y_label
            )
        )
        return Markup("").join(parts)


def _span(pair: tuple[float, float]) -> float:
    return pair[1] - pair[0]


def _about(pair: tuple[float, float], span: float) -> tuple[float, float]:
    middle = (pair[0] + pair[1]) / 2
    return middle - span / 2, middle + span / 2


def _widened(pair: tuple[float, float]) -> tuple[float, float]:
    low, high = pair
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"a chart's range must be finite, got {pair}.")
    return pair if high > low else (low - 0.5, high + 0.5)
