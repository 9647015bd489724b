"""`run.json` describes a run completely, belongs to one run, and names its format."""

from __future__ import annotations

import pytest

from ccfs.images.folder import ImageRun, read_run, write_run

RUN = ImageRun(dataset="mnist", network="mnist-small-sigma1", sigma=1.0)


def test_run_is_read_back_and_may_grow_by_images_only(tmp_path):
    write_run(tmp_path, RUN)
    assert read_run(tmp_path) == RUN
    more = RUN.model_copy(update={"images": 200})
    write_run(tmp_path, more)
    assert read_run(tmp_path) == more
    with pytest.raises(ValueError, match="belongs to another run"):
        write_run(tmp_path, RUN.model_copy(update={"seed": 1}))
    assert read_run(tmp_path) == more


def test_run_names_the_variant_of_its_filter():
    assert RUN.variant == "confidence>0.9" == RUN.rule().variants[-1]
    assert RUN.model_copy(update={"filter": "none"}).variant == "none"


def test_image_run_of_another_format_is_refused(tmp_path):
    write_run(tmp_path, RUN)
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace("ccfs/image-run/1", "ccfs/image-run/2"))
    with pytest.raises(ValueError, match=r"has the format 'ccfs/image-run/2'; this release reads 'ccfs/image-run/1'"):
        read_run(tmp_path)
