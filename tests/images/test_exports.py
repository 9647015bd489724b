"""Exports say what the certificates say, rounded down, and Cohen's table is read back by its readers."""

from __future__ import annotations

import csv
import io

import pytest
import torch
from image_toys import counted

from ccfs.certificates.images import Rule, verdict
from ccfs.images.exports import cohen_tsv, csv_table, latex_table
from ccfs.images.others import read_log
from ccfs.images.summary import table_lines

torch.set_num_threads(1)


@pytest.fixture
def table(tmp_path):
    return counted(tmp_path / "run")


def test_csv_has_every_radius_exactly(table):
    text = csv_table(table, [("confidence>0.9", Rule.SPLIT), ("none", Rule.UNFILTERED)], delta=0.001)
    lines = list(csv.DictReader(io.StringIO(text)))
    assert len(lines) == 24
    for line, row in zip(lines, table.variant("confidence>0.9"), strict=False):
        found = verdict(Rule.SPLIT, row.selection, row.estimation, sigma=table.key.sigma, delta=0.001)
        assert float(line["radius"]) == found.radius
        assert int(line["drawn"]) == row.estimation.trials


def test_cohens_table_is_read_back_and_rounded_down(table, tmp_path):
    path = tmp_path / "cohen.tsv"
    path.write_text(cohen_tsv(table, "confidence>0.9", Rule.SIMULTANEOUS, delta=0.001))
    rows = read_log(path)
    assert [row.index for row in rows] == list(range(12))
    for line, row in zip(rows, table.variant("confidence>0.9"), strict=True):
        found = verdict(Rule.SIMULTANEOUS, row.selection, row.estimation, sigma=table.key.sigma, delta=0.001)
        assert float(line.radius) <= found.radius
        assert (line.selected is None) == (not found.is_certified)


def test_latex_table_has_one_line_per_rule(table):
    lines = table_lines(table, "confidence>0.9", delta=0.001, thresholds=("0.3",), strict=True)
    text = latex_table(lines)
    assert text.count("\\\\") == len(lines) + 1
    assert "UNSOUND" in text
    assert text.startswith("\\begin{tabular}{lrrr}")
