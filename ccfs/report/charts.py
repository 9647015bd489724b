"""Charts as inline SVG, with the numbers behind them.

Colours come from the one style sheet of the pages, so that a chart fits light and dark.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np
from contourpy import LineType, contour_generator
from markupsafe import Markup
from numpy.typing import NDArray

from ccfs.files.frames import csv_table
from ccfs.runtime.interfaces import Vector

__all__ = [
    "GLYPHS",
    "Chart",
    "data_uri",
    "glyph",
    "level_lines",
    "shaded",
    "thinned",
    "ticks",
]

GLYPHS = 8
"""Number of marker shapes. The style sheet has as many series colours."""
_MOST_POINTS = 150
Place = TypeVar("Place", float, Vector)


def data_uri(kind: str, content: bytes) -> str:
    """Return a file of a media type, such as "image/png", as the text that a page holds instead of it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def level_lines(axes: tuple[Vector, ...], values: Vector, level: float) -> list[Vector]:
    """Return the lines along which values on a grid equal `level`, arrays [points, 2]."""
    x, y = axes
    found = contour_generator(x=x, y=y, z=values, line_type=LineType.Separate).lines(level)
    return [np.asarray(line) for line in cast("list[Vector]", found)]


def shaded(palette: str, shares: Vector) -> NDArray[np.uint8]:
    """Return the colours of shares between 0 and 1, array [..., 4]."""
    from matplotlib import colormaps

    return np.asarray(colormaps[palette](shares, bytes=True), dtype=np.uint8)


def thinned(path: Vector) -> Vector:
    """Return a path with at most about 150 points, the first and the last among them."""
    stride = math.ceil(len(path) / _MOST_POINTS)
    return path if stride <= 1 else np.concatenate([path[:-1:stride], path[-1:]])


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
    # The factor below 1 keeps a span that is itself round from falling to the next step by rounding.
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= raw * 0.999)
    # Multiples of the step, not sums of it, so that 0.30000000000000004 is never a label.
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
    """A plot area with linear axes. Shapes are added in data units, in drawing order.

    On a map both axes have the same scale. A bare chart has no axes. A clipped chart cuts shapes at its frame. What has
    a name is also kept as numbers for `csv`, rounded to `digits` decimals where these are given. A chart whose numbers
    are no points sets `heads` and `rows` itself.
    """

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    label: str
    x_label: str = ""
    y_label: str = ""
    width: float = 480.0
    height: float = 300.0
    is_map: bool = False
    is_bare: bool = False
    is_clipped: bool = False
    shapes: list[Markup] = field(default_factory=list)
    heads: tuple[str, ...] = ()
    rows: list[tuple[object, ...]] = field(default_factory=list)
    below: list[Markup] = field(default_factory=list)
    digits: int | None = None
    left: float = 50.0
    bottom: float = 42.0
    top: float = 12.0
    right: float = 20.0

    def __post_init__(self) -> None:
        self.x_range, self.y_range = _widened(self.x_range), _widened(self.y_range)
        if self.is_map:  # widen the shorter axis about its middle, so that both have the same scale
            unit = max(_span(self.x_range) / self._across, _span(self.y_range) / self._up)
            self.x_range = _about(self.x_range, unit * self._across)
            self.y_range = _about(self.y_range, unit * self._up)

    def x(self, value: Place) -> Place:
        """Return the pixel of an abscissa, or the pixels of many."""
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * self._across

    def y(self, value: Place) -> Place:
        """Return the pixel of an ordinate, counted from the top, or the pixels of many."""
        low, high = self.y_range
        return self.height - self.bottom - (value - low) / (high - low) * self._up

    def line(self, points: Sequence[tuple[float, float]] | Vector, style: str, title: str = "") -> None:
        """Add a polyline. A point that is not finite breaks it."""
        places = np.asarray(points, dtype=np.float64).reshape(-1, 2)
        is_there = np.isfinite(places).all(axis=1)
        # A point after a gap lifts the pen.
        is_first = is_there & ~np.concatenate([[False], is_there[:-1]])
        pixels = np.column_stack([self.x(places[:, 0]), self.y(places[:, 1])])[is_there].tolist()
        pens = np.where(is_first, "M", "L")[is_there].tolist()
        moves = [f"{pen}{x:.1f} {y:.1f}" for pen, (x, y) in zip(pens, pixels, strict=True)]
        if title:
            self.rows += [(title, *self._kept(place)) for place in places.tolist()]
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

    def rectangle(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        style: str,
        title: str = "",
        *,
        share: float | None = None,
    ) -> None:
        """Add a rectangle between its ends on both axes, cut at the frame. `share` shades it between 0 and 1."""
        left, right = (self.x(min(max(end, self.x_range[0]), self.x_range[1])) for end in x)
        base, top = (self.y(min(max(end, self.y_range[0]), self.y_range[1])) for end in y)
        self.shapes.append(
            Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}"{}><title>{}</title></rect>').format(
                f"{left:.1f}",
                f"{top:.1f}",
                f"{right - left:.1f}",
                f"{base - top:.1f}",
                style,
                "" if share is None else Markup(' style="--share:{}%"').format(f"{100.0 * share:.0f}"),
                title,
            )
        )

    def circle(self, x: float, y: float, radius: float, style: str, title: str = "") -> None:
        """Add a circle in data units. It looks like an ellipse if the axes have different scales."""
        if title:
            self.rows.append((title, *self._kept((x, y, radius))))
        across, up = self.x(x + radius) - self.x(x), self.y(y) - self.y(y + radius)
        self.shapes.append(
            Markup('<ellipse class="{}" cx="{}" cy="{}" rx="{}" ry="{}"><title>{}</title></ellipse>').format(
                style, f"{self.x(x):.1f}", f"{self.y(y):.1f}", f"{across:.1f}", f"{up:.1f}", title
            )
        )

    def dot(self, x: float, y: float, style: str, title: str = "") -> None:
        """Add a dot of one size at a place in data units."""
        if title:
            self.rows.append((title, *self._kept((x, y))))
        self.shapes.append(
            Markup('<circle class="{}" cx="{}" cy="{}" r="4"/>').format(style, f"{self.x(x):.1f}", f"{self.y(y):.1f}")
        )

    def cross(self, x: float, y: float, style: str, title: str = "") -> None:
        """Add a cross of one size at a place in data units."""
        if title:
            self.rows.append((title, *self._kept((x, y))))
        self.shapes.append(
            Markup('<path class="{}" d="M{} {}l10 10m0 -10l-10 10"/>').format(
                style, f"{self.x(x) - 5:.1f}", f"{self.y(y) - 5:.1f}"
            )
        )

    def picture(self, rgba: NDArray[np.uint8]) -> None:
        """Add a picture over the whole plot area. Its row 0 is the lowest."""
        from matplotlib.image import imsave

        file = io.BytesIO()
        # Without the name and version of the library, so that the same data give the same bytes.
        imsave(file, rgba[::-1], format="png", metadata={"Software": "ccfs"})
        self.shapes.append(
            Markup('<image {} preserveAspectRatio="none" href="{}"/>').format(
                self._area(), data_uri("image/png", file.getvalue())
            )
        )

    def whisker(self, x: float, low: float, high: float, kind: int, *, nudge: float) -> None:
        """Add an interval at x, moved sideways by `nudge` pixels so that neighbours stay apart."""
        place = self.x(x) + nudge
        top, base = self.y(high), self.y(low)
        path = f"M{place:.1f} {base:.1f}V{top:.1f}M{place - 3:.1f} {base:.1f}h6M{place - 3:.1f} {top:.1f}h6"
        self.shapes.append(Markup('<path class="whisker s{}" d="{}"/>').format(kind % GLYPHS, path))

    def marker(self, x: float, y: float, kind: int, *, nudge: float = 0.0, title: str) -> None:
        """Add the marker of series `kind`, moved sideways by `nudge` pixels."""
        self.shapes.append(glyph(kind, self.x(x) + nudge, self.y(y), title))

    def text(self, x: float, y: float, words: str, *, anchor: str = "start", dx: float = 0.0, dy: float = 0.0) -> None:
        """Add words at a place in data units, moved by pixels."""
        self.shapes.append(
            Markup('<text class="note" x="{}" y="{}" text-anchor="{}">{}</text>').format(
                f"{self.x(x) + dx:.1f}", f"{self.y(y) + dy:.1f}", anchor, words
            )
        )

    def scale(self, palette: str, low: str, high: str, name: str) -> None:
        """Add a colour scale between two texts below the axis. The chart needs 40 pixels more at its bottom."""
        x, y, wide = self.left + 0.25 * self._across, self.height - 32.0, 0.5 * self._across / 32
        for i, (red, green, blue, _) in enumerate(shaded(palette, np.linspace(0.0, 1.0, 32)).tolist()):
            colour = f"#{red:02x}{green:02x}{blue:02x}"
            rect = '<rect x="{:.1f}" y="{:g}" width="{:.1f}" height="10" fill="{}"/>'
            self.below.append(Markup(rect).format(x + i * wide, y, wide + 0.5, colour))
        ends = (
            (x - 6, y + 9, "end", low),
            (x + 32 * wide + 6, y + 9, "start", high),
            (x + 16 * wide, y + 26, "middle", name),
        )
        for at, height, anchor, words in ends:
            text = '<text x="{:.1f}" y="{:g}" text-anchor="{}">{}</text>'
            self.below.append(Markup(text).format(at, height, anchor, words))

    def csv(self) -> str:
        """Return the numbers of the chart: its own heads and rows, or series, places and sizes of what has a name."""
        names = self.heads or ("series", self.x_label or "x", self.y_label or "y", "low or radius", "high")
        width = len(self.heads) or max(map(len, self.rows), default=3)
        cells = [[_cell(value) for value in (*row, *[""] * (width - len(row)))] for row in self.rows]
        return csv_table(names[:width], cells)

    def svg(self) -> Markup:
        """Return the chart."""
        shapes = Markup("").join(self.shapes)
        if self.is_clipped:
            low, top, across, up = self.left, self.top, self._across, self._up
            shapes = Markup('<svg {} viewBox="{:g} {:g} {:g} {:g}">{}</svg>').format(
                self._area(), low, top, across, up, shapes
            )
        return Markup('<svg viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}{}{}</svg>').format(
            self.width,
            self.height,
            self.label,
            "" if self.is_bare else self._axes(),
            shapes,
            Markup("").join(self.below),
        )

    def _kept(self, place: Sequence[float]) -> tuple[float, ...]:
        return tuple(place) if self.digits is None else tuple(round(value, self.digits) for value in place)

    @property
    def _across(self) -> float:
        return self.width - self.left - self.right

    @property
    def _up(self) -> float:
        return self.height - self.top - self.bottom

    def _area(self) -> Markup:
        return Markup('x="{:g}" y="{:g}" width="{:g}" height="{:g}"').format(
            self.left, self.top, self._across, self._up
        )

    def _axes(self) -> Markup:
        parts, floor = [], self.height - self.bottom
        for value in ticks(*self.y_range) if self.y_label else []:  # an axis without a name has no numbers
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
                f"{middle:g}", f"{floor + 36:g}", self.x_label
            )
        )
        parts.append(
            Markup('<text class="name" transform="translate(13 {}) rotate(-90)" text-anchor="middle">{}</text>').format(
                f"{(self.top + floor) / 2:g}", self.y_label
            )
        )
        return Markup("").join(parts)


def _cell(value: object) -> str:
    """Return a value as text. A number keeps all its digits, so that a bound stays one."""
    return repr(value) if isinstance(value, float) else str(value)


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
