"""Export certificates of an image run: CSV, the TSV of Cohen's program, and a LaTeX table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from ccfs.certificates.images import Rule
from ccfs.certificates.rounding import lower_text
from ccfs.images.counts import CountTable
from ccfs.images.summary import Line, verdicts

__all__ = ["cohen_tsv", "csv_table", "latex_table"]


def csv_table(table: CountTable, pairs: Sequence[tuple[str, Rule]], *, delta: float) -> str:
    """Return one line per image and rule, with the full radius as Python prints it.

    Args:
        table: the counts.
        pairs: variants with the rule to apply to each.
        delta: failure probability per image and rule.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("index", "label", "selected", "rule", "variant", "radius", "top", "retained", "drawn", "delta"))
    for variant, rule in pairs:
        rows = table.variant(variant)
        for row, found in zip(rows, verdicts(rows, rule, table, delta=delta), strict=True):
            top = 0 if found.selected is None else row.estimation.retained[found.selected]
            selected = "" if found.selected is None else found.selected
            kept = sum(row.estimation.retained)
            place = (row.index, row.label, selected, rule.value, variant)
            writer.writerow((*place, repr(found.radius), top, kept, row.estimation.trials, delta))
    return out.getvalue()


def cohen_tsv(table: CountTable, variant: str, rule: Rule, *, delta: float) -> str:
    """Return the table that Cohen's `certify.py` writes, for programs that plot it. Radii are rounded down.

    An image without a certificate has the prediction -1 and the radius 0.0, as there. No time is known, so it is 0.
    """
    lines = ["idx\tlabel\tpredict\tradius\tcorrect\ttime"]
    rows = table.variant(variant)
    for row, found in zip(rows, verdicts(rows, rule, table, delta=delta), strict=True):
        certified = found.selected is not None and found.radius > 0.0
        predicted = found.selected if certified else -1
        radius = lower_text(found.radius, 6) if certified else "0.0"
        lines.append(f"{row.index}\t{row.label}\t{predicted}\t{radius}\t{int(predicted == row.label)}\t0:00:00")
    return "\n".join(lines) + "\n"


def latex_table(lines: Sequence[Line]) -> str:
    """Return a LaTeX table of fractions of images, one line per rule. A diagnostic is marked as unsound."""
    heads = " & ".join(f"$>{threshold}$" for threshold in lines[0].thresholds)
    body = []
    for line in lines:
        shares = " & ".join(lower_text(count / line.images, 3) for count in line.certified)
        name = _escaped(line.rule.value)
        body.append(f"{name} & {lower_text(line.positive / line.images, 3)} & {line.median_shown} & {shares} \\\\")
    columns = "l" + "r" * (2 + len(lines[0].thresholds))
    head = f"Certificate & positive & median & {heads} \\\\"
    return "\n".join(
        (
            f"\\begin{{tabular}}{{{columns}}}",
            "\\toprule",
            head,
            "\\midrule",
            *body,
            "\\bottomrule",
            "\\end{tabular}",
            "",
        )
    )


def _escaped(text: str) -> str:
    return "".join(f"\\{character}" if character in "&%$#_{}" else character for character in text)
