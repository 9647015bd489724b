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
from ccfs.gallery.study import MOVE, ROUNDING, Study, study
from ccfs.gallery.witness import Quantity, WitnessPage
from ccfs.report.charts import Chart, Figure, colour_ramp, level_lines, rendered, shaded

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
        example=EXAMPLE,
        version=__version__,
    )


def _figures(found: Study) -> tuple[Figure, ...]:
    return (
        Figure(title="Radii at the center", figure=_radii_plot(found), caption=_radii_words(found)),
        Figure(title="Occupancy", figure=_occupancy_plot(found), caption=_occupancy_words(found)),
        Figure(title="Λ, the local ratio", figure=_ratio_plot(found), caption=_ratio_words(found)),
        Figure(title="Where events break the comparison", figure=_event_plot(found), caption=_event_words(found)),
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


def _occupancy_plot(study: Study) -> Markup:
    """Draw how much of the proposal is kept, over centers."""
    decades = study.maps.log_occupancy / np.log(10.0)
    if study.shape.boxes.dim == 1:
        return _curve(study, np.exp(study.maps.log_occupancy), "occupancy", "kept share of proposals", (0.0, 1.0))
    low = max(float(decades.min()), -4.0)
    shade = np.clip((decades - low) / max(-low, 1e-12), 0.0, 1.0)
    scale = _scale("viridis", f"{10.0**low:.2g} or less", "1", "kept share of proposals")
    return _map(study, "viridis", shade, "occupancy over centers", []) + scale


def _ratio_plot(study: Study) -> Markup:
    """Draw the greatest conditional variance divided by sigma squared, over centers. The Gaussian has 1."""
    ratio = study.maps.local_ratio
    if study.shape.boxes.dim == 1:
        top = max(1.2, min(float(ratio.max()) * 1.05, 6.0))
        return _curve(study, np.minimum(ratio, top), "Λ over centers", "Λ", (0.0, top), level=1.0)
    shade = np.clip(0.5 * ratio, 0.0, 1.0)
    lines = level_lines(study.maps.axes, ratio, 1.0 + ROUNDING)
    scale = _scale("coolwarm", "0", "2 or more", "Λ; the line is Λ = 1")
    return _map(study, "coolwarm", shade, "local ratio over centers", lines) + scale


def _event_plot(study: Study) -> Markup:
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
    return chart.svg()


def _radii_plot(study: Study) -> Markup:
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
        chart.cross(change_x, change_y, "change")
    return chart.svg()


def _plane(axes: tuple[Array, ...], label: str, x_name: str, y_name: str) -> Chart:
    """Return a chart with the same scale on both axes, unless it would be extremely flat or tall."""
    x, y = ((float(axis[0]), float(axis[-1])) for axis in axes)
    tall = (_WIDTH - _LEFT - _RIGHT) * (y[1] - y[0]) / (x[1] - x[0])
    return _chart(x, y, min(max(tall, 150.0), 520.0), label, x_name, y_name)


def _chart(x: tuple[float, float], y: tuple[float, float], tall: float, label: str, x_name: str, y_name: str) -> Chart:
    return Chart(
        x_range=x,
        y_range=y,
        label=label,
        x_label=x_name,
        y_label=y_name,
        width=_WIDTH,
        height=_TOP + tall + _BOTTOM,
        left=_LEFT,
        right=_RIGHT,
        top=_TOP,
        bottom=_BOTTOM,
        is_clipped=True,
    )


def _map(study: Study, palette: str, shade: Array, label: str, lines: list[Array]) -> Markup:
    chart = _plane(study.maps.axes, label, "center z₁", "center z₂")
    chart.picture(shaded(palette, shade))
    _add_boxes(study, chart, "outline bright")
    for line in lines:
        chart.line(line, "level")
    _add_center(study, chart)
    return chart.svg()


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
) -> Markup:
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
    chart.line(np.stack([x, values], axis=1), "curve plain")
    return chart.svg()


def _intervals(study: Study) -> Markup:
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
    chart.dot(at, 0.4, "center")
    if study.change is not None:
        edge = float(study.change[0])
        chart.line([(edge, 0.0), (edge, top)], "decision")
    return chart.svg()


def _scale(palette: str, low: str, high: str, name: str) -> Markup:
    """Return a colour scale as HTML, as wide as the drawing."""
    ramp = '<p class="scale">{} <span class="ramp" style="background: {}"></span> {}<br>{}</p>'
    return Markup(ramp).format(low, colour_ramp(palette), high, name)
