"""Lines of a table count every image, and thresholds scale exactly."""

from __future__ import annotations

import pytest
import torch
from image_toys import SIGMA, counted

from ccfs.certificates.images import Rule, verdict
from ccfs.images.summary import line, scaled_thresholds, table_lines, verdicts

pytestmark = pytest.mark.slow
torch.set_num_threads(1)  # two threads beside a busy core are far slower than one


def test_summary_lines_count_every_image(tmp_path):
    table = counted(tmp_path)
    lines = {
        item.rule: item for item in table_lines(table, "confidence>0.9", delta=0.001, thresholds=["0.1"], strict=True)
    }
    assert {item.images for item in lines.values()} == {12}
    assert not lines[Rule.SUBSTITUTED].is_sound
    assert lines[Rule.SUBSTITUTED].certified[0] > lines[Rule.SIMULTANEOUS].certified[0]
    found = verdicts(table.variant("none"), Rule.UNFILTERED, table, delta=0.001)
    assert line(found, [0] * 12, ["0.1"], strict=True) == lines[Rule.UNFILTERED]
    assert lines[Rule.UNFILTERED].median == sorted(item.radius for item in found)[5]
    mixed = verdict(Rule.EXPLICIT, table.rows[0].selection, table.rows[0].estimation, sigma=SIGMA, delta=0.001)
    with pytest.raises(ValueError, match="one rule"):
        line([found[0], mixed], [0, 0], ["0.1"], strict=True)


def test_thresholds_scale_exactly_with_sigma():
    assert scaled_thresholds(0.25, "0.3", "0.5") == ("0.3", "0.5")
    assert scaled_thresholds(0.12, "0.3") == ("0.144",)
