"""The gallery page: where conditioning on a drawn set is safe, and where the substituted radius promises too much."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ccfs import __version__
from ccfs.certificates.occupancy import EventVerdict
from ccfs.files.atomic import write_atomically
from ccfs.gallery.shape import EXAMPLE, Shape
from ccfs.gallery.study import MOVE, ROUNDING, Radius, Study, study
from ccfs.gallery.witness import Quantity, WitnessPage
from ccfs.report.charts import Chart, level_lines, shaded
from ccfs.report.pages import Figure, rendered

__all__ = ["page", "write_page"]

Array = NDArray[np.float64]
_COLOURS = 6
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 440.0, 56.0, 12.0, 12.0, 42.0


def write_page(path: Path, shapes: Sequence[Shape], *, witnesses: Sequence[WitnessPage] = ()) -> None:
    """Compute and write the page. It fetches nothing from anywhere."""
    content = page([study(shape) for shape in shapes], witnesses=witnesses)
    write_atomically(path, content.encode())


def page(studies: Sequence[Study], *, witnesses: Sequence[WitnessPage] = ()) -> str:
    """Return the page: an introduction, a section per shape, the proved witnesses, and how to draw one's own."""
    return rendered(
        "gallery.html.j2",
        shapes=studies,
        figures=_figures,
        verdict=_verdict,
        witnesses=witnesses,
        enclosure=_enclosure,
        example=EXAMPLE.strip().split("\n"),
        newline=Markup("\n"),
        version=__version__,
    )


def _figures(found: Study) -> tuple[Figure, ...]:
    name = found.shape.title
    return (
        Figure(title=f"{name}, Radii at the center", chart=_radii_plot(found), caption=_radii_words(found)),
        Figure(title=f"{name}, Occupancy", chart=_occupancy_plot(found), caption=_occupancy_words(found)),
        Figure(title=f"{name}, Λ, the local ratio", chart=_ratio_plot(found), caption=_ratio_words(found)),
        Figure(
            title=f"{name}, Where events break the comparison",
            chart=_event_plot(found),
            caption=_event_words(found),
        ),
    )


def _verdict(found: Study) -> str | Markup:
    share = f"among these, label {found.label} has {found.probability:.4g}"
    kept = f"Of all proposals, {found.occupancy:.4g} are kept, and {share}."
    if found.change is None:
        reason = "there is only one label" if len(set(found.shape.labels)) == 1 else "none was found within 4 sigma"
        return f"{kept} The decision does not change nearby: {reason}."
    where = f"The nearest change of label that was found is {found.change_distance:.4g} away."
    if any(not radius.is_sound for radius in found.broken):
        return Markup("{} {} <b>It is inside the substituted radius, which promises too much.</b>").format(kept, where)
    if found.shape.boxes.is_convex:
        return f"{kept} {where} The set is convex, so every radius below is a certificate, the substituted one too."
    return f"{kept} {where} The substituted radius does not reach it here, by luck and not by a theorem."


def _radii_words(found: Study) -> Markup:
    is_marked = found.change is not None and found.shape.boxes.dim == 2
    change = " × marks the nearest change of label found." if is_marked else ""
    return Markup(
        '<span class="good">Solid</span>: sound radii. <span class="bad">Dashed</span>: unsound. '
        f"Dotted: where the decision changes as the center moves.{change} Drawn close to the center."
    )


def _occupancy_words(found: Study) -> str:
    return (
        "The share of proposals that survive the filter, over centers. Where it is small, a large majority among "
        f"survivors is little Gaussian mass. At the chosen center it is {found.occupancy:.4g}."
    )


def _ratio_words(found: Study) -> str:
    if found.local_ratio > 1.0 + ROUNDING:
        said = "above 1: a tiny move changes the kept law more than it changes the Gaussian"
    else:
        said = "not above 1: from here tiny moves are no worse than the Gaussian's. This says nothing of other centers"
    return f"Greatest variance of the kept law over σ². At the chosen center {found.local_ratio:.4g}, {said}."


def _event_words(found: Study) -> str:
    words = {EventVerdict.HOLDS: "holds", EventVerdict.FAILS: "fails", EventVerdict.UNDECIDED: "undecided"}
    told = ", ".join(f"{name} {words[verdict]}" for name, verdict in found.events)
    return (
        f"Red: for a move of {MOVE:g}σ along an axis, some event breaks the Gaussian comparison. Elsewhere no sampled "
        f"event does. Decided at the chosen center: {told}."
    )


def _enclosure(quantity: Quantity) -> str:
    if quantity.is_exact:
        return f"{quantity.value.lower} exactly"
    lower, upper = quantity.value.decimals(12)
    return f"[{lower}, {upper}]"


def _occupancy_plot(study: Study) -> Chart:
    """Draw how much of the proposal is kept, over centers."""
    decades = study.maps.log_occupancy / np.log(10.0)
    if study.shape.boxes.dim == 1:
        return _curve(study, np.exp(study.maps.log_occupancy), "occupancy", "kept share of proposals", (0.0, 1.0))
    low = max(float(decades.min()), -4.0)
    shade = np.clip((decades - low) / max(-low, 1e-12), 0.0, 1.0)
    chart = _map(study, "viridis", shade, "occupancy over centers", [], study.maps.log_occupancy)
    chart.scale("viridis", f"{10.0**low:.2g} or less", "1", "kept share of proposals (in the CSV its logarithm)")
    return chart


def _ratio_plot(study: Study) -> Chart:
    """Draw the greatest conditional variance divided by sigma squared, over centers. The Gaussian has 1."""
    ratio = study.maps.local_ratio
    if study.shape.boxes.dim == 1:
        top = max(1.2, min(float(ratio.max()) * 1.05, 6.0))
        return _curve(study, np.minimum(ratio, top), "Λ over centers", "Λ", (0.0, top), level=1.0)
    shade = np.clip(0.5 * ratio, 0.0, 1.0)
    lines = level_lines(study.maps.axes, ratio, 1.0 + ROUNDING)
    chart = _map(study, "coolwarm", shade, "local ratio over centers", lines, ratio)
    chart.scale("coolwarm", "0", "2 or more", "Λ; the line is Λ = 1")
    return chart


def _event_plot(study: Study) -> Chart:
    """Draw the centers from which some event violates the Gaussian comparison for a short axis move."""
    fails = study.maps.fails
    if study.shape.boxes.dim == 1:
        slack = study.maps.event_slack
        reach = float(np.abs(slack).max()) * 1.1 + 1e-12
        return _curve(study, slack, "event slack over centers", "least slack", (-reach, reach), level=0.0, shaded=fails)
    chart = _plane(study.maps.axes, "centers where the event comparison fails", "z₁", "z₂")
    rgba = np.zeros((*fails.shape, 4), dtype=np.uint8)
    rgba[fails] = (205, 62, 45, 165)
    chart.picture(rgba)
    _add_boxes(study, chart, "outline")
    _add_center(study, chart)
    _keep_grid(chart, study.maps.axes, fails.astype(np.int8))
    return chart


def _radii_plot(study: Study) -> Chart:
    """Draw the labelled boxes, the radii around the center, and the nearest label change found."""
    if study.shape.boxes.dim == 1:
        return _intervals(study)
    chart = _plane(study.near.axes, "radii around the chosen center", "z₁", "z₂")
    _add_boxes(study, chart, "label")
    if study.change is not None:
        for line in level_lines(study.near.axes, study.near.lead, 0.0):
            chart.line(line, "decision")
    x, y = study.shape.center.tolist()
    for radius in study.radii:
        if 0.0 < radius.value < np.inf:
            chart.circle(x, y, radius.value, "sound" if radius.is_sound else "unsound", radius.name)
    _add_center(study, chart)
    if study.change is not None:
        change_x, change_y = study.change.tolist()
        chart.cross(change_x, change_y, "change", "nearest change of label found")
    _add_names(study, chart)
    return chart


def _add_names(study: Study, chart: Chart) -> None:
    """Name the circles: words in a column at the left edge, each with a line to its circle."""
    x, y = (float(place) for place in study.shape.center)
    shown = sorted((radius for radius in study.radii if 0.0 < radius.value < np.inf), key=lambda radius: radius.value)
    # Equal radii are one circle with several names.
    named: dict[float, list[Radius]] = {}
    for radius in shown:
        named.setdefault(round(chart.x(x + radius.value) - chart.x(x)), []).append(radius)
    for row, (size, radii) in enumerate(named.items()):
        words = ", ".join(radius.name if radius.is_sound else f"{radius.name}: UNSOUND" for radius in radii)
        top = chart.top + 18.0 + 18.0 * row
        # From the words to the upper left of the circle, at an angle of its own, so that no two lines lie together.
        turn = np.deg2rad(120.0 + 14.0 * row)
        at_x, at_y = chart.x(x) + size * np.cos(turn), chart.y(y) - size * np.sin(turn)
        left = chart.left + 8.0
        style = "sound-name" if all(radius.is_sound for radius in radii) else "unsound-name"
        line = '<path class="leader" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>'
        chart.shapes.append(Markup(line).format(left + 6.6 * len(words) + 4.0, top - 4.0, at_x, at_y))
        text = '<text class="halo {}" x="{:.1f}" y="{:.1f}">{}</text>'
        chart.shapes.append(Markup(text).format(style, left, top, words))


def _keep_grid(chart: Chart, axes: tuple[Array, ...], values: NDArray[np.float64] | NDArray[np.int8]) -> None:
    """Keep values over two axes as the numbers of a chart: a line for each place upwards, a column for each across."""
    across, up = axes
    chart.heads = ("up \\ across", *(f"{place:.6g}" for place in across.tolist()))
    rows = zip(up.tolist(), values.tolist(), strict=True)
    chart.rows = [(f"{place:.6g}", *(f"{value:.5g}" for value in row)) for place, row in rows]


def _plane(axes: tuple[Array, ...], label: str, x_name: str, y_name: str, *, foot: float = 0.0) -> Chart:
    """Return a chart with the same scale on both axes, unless it would be extremely flat or tall."""
    x, y = ((float(axis[0]), float(axis[-1])) for axis in axes)
    tall = (_WIDTH - _LEFT - _RIGHT) * (y[1] - y[0]) / (x[1] - x[0])
    return _chart(x, y, min(max(tall, 150.0), 520.0), label, x_name, y_name, foot=foot)


def _chart(
    x: tuple[float, float],
    y: tuple[float, float],
    tall: float,
    label: str,
    x_name: str,
    y_name: str,
    *,
    foot: float = 0.0,
) -> Chart:
    return Chart(
        x_range=x,
        y_range=y,
        label=label,
        x_label=x_name,
        y_label=y_name,
        width=_WIDTH,
        height=_TOP + tall + _BOTTOM + foot,
        left=_LEFT,
        right=_RIGHT,
        top=_TOP,
        bottom=_BOTTOM + foot,
        is_clipped=True,
    )


def _map(study: Study, palette: str, shade: Array, label: str, lines: list[Array], values: Array) -> Chart:
    chart = _plane(study.maps.axes, label, "center z₁", "center z₂", foot=44.0)
    chart.picture(shaded(palette, shade))
    _add_boxes(study, chart, "outline bright")
    for line in lines:
        chart.line(line, "level")
    _add_center(study, chart)
    _keep_grid(chart, study.maps.axes, values)
    return chart


def _add_boxes(study: Study, chart: Chart, style: str) -> None:
    """Add the retained set. In one dimension its boxes are as tall as the chart."""
    boxes = study.shape.boxes
    for low, high, label in zip(boxes.lows.tolist(), boxes.highs.tolist(), study.shape.labels, strict=True):
        y = (low[1], high[1]) if boxes.dim == 2 else chart.y_range
        chart.rectangle((low[0], high[0]), y, f"{style} s{label % _COLOURS}", f"label {label}")


def _add_center(study: Study, chart: Chart) -> None:
    x, y = study.shape.center.tolist()
    chart.dot(x, y, "center")


def _curve(
    study: Study,
    values: Array,
    label: str,
    name: str,
    span: tuple[float, float],
    *,
    level: float | None = None,
    shaded: NDArray[np.bool_] | None = None,
) -> Chart:
    """Draw one quantity over one-dimensional centers, with the kept set as a tint behind it."""
    (x,) = study.maps.axes
    chart = _chart((float(x[0]), float(x[-1])), span, 190.0, label, "center", name)
    _add_boxes(study, chart, "tint")
    if shaded is not None:
        edges = np.flatnonzero(np.diff(np.concatenate([[False], shaded, [False]]).astype(np.int8)))
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            chart.rectangle((float(x[start]), float(x[stop - 1])), span, "failing")
    if level is not None:
        chart.line([(float(x[0]), level), (float(x[-1]), level)], "target")
    chart.line(np.stack([x, values], axis=1), "curve plain", name)
    return chart


def _intervals(study: Study) -> Chart:
    (x,) = study.near.axes
    shown = [radius for radius in study.radii if 0.0 < radius.value < np.inf]
    top = len(shown) + 1.0
    label = "radii around the chosen center"
    chart = _chart((float(x[0]), float(x[-1])), (0.0, top), 190.0, label, "proposal and center", "")
    _add_boxes(study, chart, "label")
    at = float(study.shape.center[0])
    for row, radius in enumerate(shown):
        ends = [(at - radius.value, row + 1.0), (at + radius.value, row + 1.0)]
        chart.line(ends, f"thick {'sound' if radius.is_sound else 'unsound'}", radius.name)
        words = radius.name if radius.is_sound else f"{radius.name}: UNSOUND"
        style = "sound-name" if radius.is_sound else "unsound-name"
        place = f"{chart.x(at):.1f}", f"{chart.y(row + 1.0) - 7.0:.1f}"
        text = '<text class="halo {}" x="{}" y="{}" text-anchor="middle">{}</text>'
        chart.shapes.append(Markup(text).format(style, *place, words))
    chart.dot(at, 0.4, "center")
    if study.change is not None:
        edge = float(study.change[0])
        chart.line([(edge, 0.0), (edge, top)], "decision")
    return chart
