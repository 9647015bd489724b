"""`run.json` says what was counted and what was asked, grows by images only, and names its format."""

from __future__ import annotations

import pytest
from image_runs import run

from ccfs.images.folder import Asked, ImageRun, joined, ranges, read_run, read_table
from ccfs.runs.store import RunError

ASKED = Asked(dataset="mnist", network="mnist-small-sigma1", sigma=1.0)


def test_run_is_read_back_and_may_grow_by_images_only(tmp_path):
    key = run(tmp_path, indices=[3, 1]).key
    assert read_run(tmp_path) == ImageRun(key=key, images=((1, 2), (3, 4)), asked=None)
    more = ImageRun(key=key, images=((0, 2),), asked=ASKED)
    assert joined(read_run(tmp_path), more, where=tmp_path).indices == (0, 1, 3)
    with pytest.raises(RunError, match="belongs to another run: seed differ"):
        joined(more, more.model_copy(update={"key": key.model_copy(update={"seed": 9})}), where=tmp_path)


def test_ranges_cover_exactly_the_indices():
    assert ranges([]) == ()
    assert ranges([9, 0, 1, 2, 7, 8]) == ((0, 3), (7, 10))


def test_asked_names_the_variant_of_its_filter():
    assert ASKED.variant == "confidence>0.9" == ASKED.rule().variants[-1]
    assert ASKED.model_copy(update={"filter": "none"}).variant == "none"


def test_image_run_of_another_format_is_refused(tmp_path):
    run(tmp_path, indices=[0])
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace("ccfs/image-run/2", "ccfs/image-run/9"))
    with pytest.raises(ValueError, match=r"has the format 'ccfs/image-run/9'; this release reads 'ccfs/image-run/2'"):
        read_run(tmp_path)


def test_counts_of_another_run_are_refused(tmp_path):
    run(tmp_path / "a", indices=[0])
    run(tmp_path / "b", indices=[0], seed=2)
    (tmp_path / "a" / "counts.parquet").write_bytes((tmp_path / "b" / "counts.parquet").read_bytes())
    with pytest.raises(ValueError, match="counts of another run"):
        read_table(tmp_path / "a")
