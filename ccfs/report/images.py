"""One HTML file about a run of image certification: curves, certificates, every image, verified endpoint pairs."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates.rounding import lower_text, upper_text
from ccfs.images import CountTable, ImageSet, Rule, Verdict, read_counts
from ccfs.images.folder import ImageRun, read_run
from ccfs.images.summary import (
    JOINT_RULES,
    PROOF_RULES,
    Line,
    accuracy,
    line,
    retention,
    scaled_thresholds,
    verdicts,
)

__all__ = ["write_report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """The verdicts of one rule, in the order of the images."""

    rule: Rule
    verdicts: tuple[Verdict, ...]


def write_report(folder: Path, *, delta: float, rows: int) -> Path:
    """Write `report.html` into the run folder from its counts; every number in it is recomputed here."""
    from jinja2 import Environment, StrictUndefined

    run, table = read_run(folder), read_counts(folder / "counts.parquet")
    images = run.image_set()
    if images.digest != table.key.dataset_sha256:
        raise ValueError("the images are not those of the counts. Check the data folder of the run.")
    columns = _columns(table, run.arm, delta)
    labels = [row.label for row in table.arm(run.arm)]
    thresholds = scaled_thresholds(table.key.sigma, "0.3", "0.5", "0.7")
    lines = [line(column.verdicts, labels, thresholds, strict=True) for column in columns]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(_PAGE).render(
        run=run,
        key=table.key,
        delta=delta,
        count=len(labels),
        retained=f"{float(retention(table.arm(run.arm))):.4f}",
        accuracy=f"{float(accuracy(columns[0].verdicts, labels)):.4f}",
        thresholds=thresholds,
        lines=[_line_cells(item) for item in lines],
        curves=_curves(columns, labels, table.key.sigma),
        rules=[column.rule for column in columns],
        images=_image_rows(table, run, images, columns, rows),
        pairs=_pairs(folder, images),
    )
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _columns(table: CountTable, arm: str, delta: float) -> list[_Column]:
    rules: list[tuple[Rule, str]] = []
    if arm != "none":
        joint = [rule for rule in JOINT_RULES if rule is not Rule.SUBSTITUTED]
        proved = list(PROOF_RULES) if table.key.proof is not None else []
        rules = [(rule, arm) for rule in (*joint, *proved, Rule.SUBSTITUTED)]
    if "none" in table.key.arms:
        rules.append((Rule.UNFILTERED, "none"))
    return [_Column(rule=rule, verdicts=verdicts(table.arm(name), rule, table, delta=delta)) for rule, name in rules]


def _line_cells(item: Line) -> dict[str, object]:
    shares = [f"{count / item.images:.4f}" for count in item.certified]
    cells = [f"{item.positive / item.images:.4f}", item.median_shown, *shares]
    return {"name": item.rule.value, "is_sound": item.is_sound, "cells": cells}


def _curves(columns: list[_Column], labels: list[int], sigma: float) -> str:
    """Return certified accuracy against radius as an SVG data URI."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    longest = max((item.radius for column in columns for item in column.verdicts), default=0.0)
    grid = np.linspace(0.0, min(max(longest, 0.1 * sigma) * 1.05, 8 * sigma), 400)
    for column in columns:
        pairs = zip(column.verdicts, labels, strict=True)
        right = np.array([item.radius if item.selected == label else 0.0 for item, label in pairs])
        style = "--" if column.rule is Rule.SUBSTITUTED else "-"
        axes.plot(grid, [(right > radius).mean() for radius in grid], style, label=column.rule.value, linewidth=1.4)
    axes.set(xlabel="radius", ylabel="fraction of images, correct and beyond the radius", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    out = io.BytesIO()
    FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None})  # type: ignore[no-untyped-call]
    return "data:image/svg+xml;base64," + base64.b64encode(out.getvalue()).decode()


def _image_rows(
    table: CountTable, run: ImageRun, images: ImageSet, columns: list[_Column], limit: int
) -> list[dict[str, object]]:
    found = []
    for position, row in enumerate(table.arm(run.arm)[:limit]):
        chosen = [column.verdicts[position] for column in columns]
        selected = chosen[0].selected
        found.append(
            {
                "index": row.index,
                "picture": _picture(images.images[row.index]),
                "label": images.classes[row.label],
                "selected": "none" if selected is None else images.classes[selected],
                "is_correct": selected == row.label,
                "retained": f"{sum(row.estimation.retained) / row.estimation.trials:.3f}",
                "radii": [lower_text(item.radius) if item.radius > 0.0 else "abstains" for item in chosen],
            }
        )
    return found


def _pairs(folder: Path, images: ImageSet) -> list[dict[str, object]] | None:
    """Return the proved label changes of the attack, or None where none was run."""
    from ccfs.images.endpoints import read_attack, shifted_center

    path = folder / "attack" / "endpoints.jsonl"
    if not path.is_file():
        return None
    _, endpoints = read_attack(path)
    found: list[dict[str, object]] = []
    for item in endpoints:
        if not item.is_verified or item.selected is None or item.target is None or item.distance is None:
            continue
        moved = shifted_center(folder / "attack", item.index)
        shown = np.clip(np.rint(moved * 255.0), 0, 255).astype(np.uint8)
        found.append(
            {
                "index": item.index,
                "before": _picture(images.images[item.index]),
                "after": _picture(shown),
                "from": images.classes[item.selected],
                "to": images.classes[item.target],
                "distance": upper_text(item.distance),
                "radius": lower_text(item.radius_lower or 0.0),
                "sound": lower_text(item.sound_radius),
                "is_inside_sound": item.distance < item.sound_radius,
            }
        )
    return found


def _picture(pixels: NDArray[np.uint8]) -> str:
    """Return an image (height, width, channels) as a PNG data URI."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Image certificates: {{ run.network or run.checkpoint.name }}</title>
<style>
 body { font: 15px/1.45 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }
 h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
 table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
 th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; }
 th { vertical-align: bottom; font-weight: 600; } th:first-child, td:first-child, .left { text-align: left; }
 .unsound { color: #a33; } .wrong { background: #fff3f0; } .scroll { overflow-x: auto; }
 img.pixels { width: 48px; height: 48px; image-rendering: pixelated; display: block; }
 figure { margin: 1rem 0; } figure img { max-width: 100%; }
 .pairs { display: grid; grid-template-columns: repeat(auto-fill, minmax(31rem, 1fr)); gap: .8rem; }
 .pair { display: flex; gap: .6rem; align-items: center; }
 .pair img { width: 80px; height: 80px; image-rendering: pixelated; }
</style>
<h1>Image certificates</h1>
<p>{{ count }} images of {{ key.dataset }}, network {{ run.network or run.checkpoint.name -}}
{{ " (8-bit)" if run.int8 }}, filter {{ run.arm }}, noise scale {{ key.sigma }}, {{ key.selection_trials }} selection
and {{ key.estimation_trials }} estimation proposals an image, failure probability {{ delta }} per image and
certificate. Retained {{ retained }} of all proposals; selected label correct at {{ accuracy }} of the images.</p>
{% if key.proof %}
<p>Covariance ratio {{ key.proof.covariance_ratio }}, proved: {{ key.proof.statement }}.</p>
{% endif %}
<h2>Certificates from the same counts</h2>
<div class="scroll"><table>
<tr><th>certificate<th>positive<th>median radius{% for t in thresholds %}<th>&gt; {{ t }}{% endfor %}</tr>
{% for item in lines %}
<tr{% if not item.is_sound %} class="unsound"{% endif %}><td>{{ item.name }}{% for cell in item.cells %}<td>{{ cell }}\
{% endfor %}</tr>
{% endfor %}
</table></div>
<p>Radii are rounded down. Fractions are of all images, with the correct label and a radius strictly above the
threshold. The line in red is no certificate: the decision can change inside that radius.</p>
<figure><img src="{{ curves }}" alt="Certified accuracy against radius for every certificate"></figure>
{% if pairs is not none %}
<h2>Verified label changes inside the substituted radius</h2>
{% if not pairs %}<p>The attack found none.</p>{% endif %}
<div class="pairs">
{% for pair in pairs %}
<div class="pair"><img src="{{ pair.before }}" alt="image {{ pair.index }}"><span>&rarr;</span>
<img src="{{ pair.after }}" alt="image {{ pair.index }} moved">
<span>image {{ pair.index }}: {{ pair.from }} &rarr; {{ pair.to }}<br>distance {{ pair.distance }}, substituted radius
at least {{ pair.radius }}<br>certified radius {{ pair.sound }}{% if pair.is_inside_sound %}
<strong class="unsound">INSIDE A CERTIFIED RADIUS</strong>{% endif %}</span></div>
{% endfor %}
</div>
{% endif %}
<h2>Images</h2>
<div class="scroll"><table>
<tr><th>image<th><th class="left">label<th class="left">selected<th>retained
{% for rule in rules %}<th{% if rule.name == "SUBSTITUTED" %} class="unsound"{% endif %}>{{ rule.value }}
{% endfor %}</tr>
{% for row in images %}
<tr{% if not row.is_correct %} class="wrong"{% endif %}><td>{{ row.index }}
<td><img class="pixels" src="{{ row.picture }}" alt="image {{ row.index }}">
<td class="left">{{ row.label }}<td class="left">{{ row.selected }}<td>{{ row.retained }}
{% for radius in row.radii %}<td>{{ radius }}{% endfor %}</tr>
{% endfor %}
</table></div>
</html>
"""
