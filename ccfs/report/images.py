"""The report of an image run: one HTML file with curves, certificates, images and verified label changes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates.images import Rule, Verdict
from ccfs.certificates.rounding import lower_text, upper_text
from ccfs.images.certificate import write_derived
from ccfs.images.counts import CountTable
from ccfs.images.data import Images
from ccfs.images.folder import ImageRun, read_table
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
from ccfs.report.charts import Chart, data_uri
from ccfs.report.pages import Figure, index_link, rendered

__all__ = ["write_report"]


# One colour per rule, in every chart and table. Red is kept for what is no certificate.
_STYLES = {
    Rule.UNFILTERED: "plain",
    Rule.SIMULTANEOUS: "s0",
    Rule.SPLIT: "s8",
    Rule.EXPLICIT: "s2",
    Rule.COMPLEMENT: "s6",
    Rule.SINGLE_BATCH: "s4",
    Rule.RENYI: "s3",
    Rule.REVERSE_KL: "s5",
    Rule.FORWARD_KL: "s7",
    Rule.SUBSTITUTED: "unproved dash1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """The verdicts of one rule, in the order of the images."""

    rule: Rule
    verdicts: tuple[Verdict, ...]


def write_report(folder: Path, *, delta: float, rows: int, images: Images | None = None) -> Path:
    """Write `report.html` into the run folder. Every number in it is recomputed from the counts.

    Args:
        folder: the run.
        delta: failure probability per image and certificate.
        rows: how many images the table shows.
        images: the images, for their pictures. By default they are loaded again. A run of a Python program has no
            pictures without them.
    """
    run, table = read_table(folder)
    if images is None and run.asked is not None:
        images = run.asked.image_set()
    if images is not None and images.digest != table.key.dataset_sha256:
        raise ValueError("the images are not those that were counted. Check the data folder of the run.")
    columns = _columns(table, run.variant, delta)
    labels = [row.label for row in table.variant(run.variant)]
    thresholds = scaled_thresholds(table.key.sigma, "0.3", "0.5", "0.7")
    lines = [line(column.verdicts, labels, thresholds, strict=True) for column in columns]
    page = rendered(
        "images.html.j2",
        links=index_link(folder),
        run=run,
        network=run.asked.title if run.asked is not None else f"with digest {run.key.model_sha256[:16]}",
        key=table.key,
        delta=delta,
        count=len(labels),
        retained=f"{float(retention(table.variant(run.variant))):.4f}",
        accuracy=f"{float(accuracy(columns[0].verdicts, labels)):.4f}",
        thresholds=thresholds,
        lines=[_line_cells(item) for item in lines],
        curves=_curves(columns, labels, table.key.sigma),
        rules=[_head(column.rule) for column in columns],
        images=_image_rows(table, run, images, columns, rows),
        pairs=_pairs(folder, images),
    )
    write_derived(folder, run, {"report.html": page.encode()})
    return folder / "report.html"


def _columns(table: CountTable, variant: str, delta: float) -> list[_Column]:
    rules: list[tuple[Rule, str]] = []
    if variant != "none":
        joint = [rule for rule in JOINT_RULES if rule is not Rule.SUBSTITUTED]
        proved = list(PROOF_RULES) if table.proof is not None else []
        rules = [(rule, variant) for rule in (*joint, *proved, Rule.SUBSTITUTED)]
    if "none" in table.key.variants:
        rules.append((Rule.UNFILTERED, "none"))
    return [
        _Column(rule=rule, verdicts=verdicts(table.variant(name), rule, table, delta=delta)) for rule, name in rules
    ]


def _head(rule: Rule) -> dict[str, object]:
    return {
        "name": rule.value,
        "style": _STYLES[rule],
        "is_sound": rule is not Rule.SUBSTITUTED,
    }


def _line_cells(item: Line) -> dict[str, object]:
    shares = [f"{count / item.images:.4f}" for count in item.certified]
    cells = [f"{item.positive / item.images:.4f}", item.median_shown, *shares]
    return {"name": item.rule.value, "is_sound": item.is_sound, "cells": cells, "style": _STYLES[item.rule]}


def _curves(columns: list[_Column], labels: list[int], sigma: float) -> Figure:
    """Return certified accuracy against radius."""
    longest = max((item.radius for column in columns for item in column.verdicts), default=0.0)
    grid = np.linspace(0.0, min(max(longest, 0.1 * sigma) * 1.05, 8 * sigma), 400)
    chart = Chart(
        x_range=(0.0, float(grid[-1])),
        y_range=(0.0, 1.0),
        label="Certified accuracy against radius for every certificate",
        x_label="radius",
        y_label="fraction correct beyond radius",
    )
    legend = []
    for column in columns:
        pairs = zip(column.verdicts, labels, strict=True)
        right = np.array([item.radius if item.selected == label else 0.0 for item, label in pairs])
        is_sound = column.rule is not Rule.SUBSTITUTED
        style = _STYLES[column.rule]  # what is no certificate is dashed too, for who sees no red
        shares = [(right > radius).mean() for radius in grid]
        chart.line(np.column_stack([grid, shares]), f"curve {style}", column.rule.value)
        legend.append((f"line {style}", column.rule.value, "" if is_sound else "no certificate"))
    return Figure(title="Certified accuracy against radius", chart=chart, legend=tuple(legend))


def _image_rows(
    table: CountTable, run: ImageRun, images: Images | None, columns: list[_Column], limit: int
) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for position, row in enumerate(table.variant(run.variant)[:limit]):
        chosen = [column.verdicts[position] for column in columns]
        selected = chosen[0].selected
        found.append(
            {
                "index": row.index,
                "picture": None if images is None else _picture(images.picture(row.index)),
                "label": _name(images, row.label),
                "selected": "none" if selected is None else _name(images, selected),
                "is_correct": selected == row.label,
                "retained": f"{sum(row.estimation.retained) / row.estimation.trials:.3f}",
                "radii": [lower_text(item.radius) if item.radius > 0.0 else "abstains" for item in chosen],
            }
        )
    return found


def _pairs(folder: Path, images: Images | None) -> list[dict[str, object]] | None:
    """Return the proved label changes of the attack, or None if no attack was run."""
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
                "before": None if images is None else _picture(images.picture(item.index)),
                "after": _picture(shown),
                "from": _name(images, item.selected),
                "to": _name(images, item.target),
                "distance": upper_text(item.distance),
                "radius": lower_text(item.radius_lower or 0.0),
                "sound": lower_text(item.sound_radius),
                "is_inside_sound": item.distance < item.sound_radius,
            }
        )
    return found


def _name(images: Images | None, label: int) -> str:
    return str(label) if images is None else images.classes[label]


def _picture(pixels: NDArray[np.uint8]) -> str:
    """Return an image (height, width, channels) as a PNG data URI."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(out, "PNG")
    return data_uri("image/png", out.getvalue())
