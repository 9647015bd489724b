"""`ccfs image` end to end on made-up MNIST files: certify, continue, attack, report, and the exit codes."""

from __future__ import annotations

import hashlib
import struct
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from ccfs.cli.main import app
from ccfs.images import data, read_counts
from ccfs.images.endpoints import read_attack

pytestmark = pytest.mark.slow
torch.set_num_threads(1)  # two threads beside a busy core are far slower than one
runner = CliRunner()


@pytest.fixture
def strokes(tmp_path, monkeypatch):
    """Six pictures of a vertical stroke, in idx files with the MD5s that they really have."""
    images = np.zeros((6, 28, 28), dtype=np.uint8)
    for position in range(6):
        images[position, 4:24, 11 + position // 2 : 14 + position // 2] = 255 - 10 * position
    labels = np.ones(6, dtype=np.uint8)
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for stem in ("train", "t10k"):
        for name, content in (
            (f"{stem}-images-idx3-ubyte", struct.pack(">IIII", 0x803, *images.shape) + images.tobytes()),
            (f"{stem}-labels-idx1-ubyte", struct.pack(">II", 0x801, 6) + labels.tobytes()),
        ):
            (folder / name).write_bytes(content)
            monkeypatch.setitem(data.MNIST_MD5, name, hashlib.md5(content, usedforsecurity=False).hexdigest())
    monkeypatch.setenv("CCFS_DATA", str(tmp_path / "data"))
    return tmp_path


def certify(run, *extra):
    command = ["image", "certify", "--dataset", "mnist", "--network", "mnist-small-sigma1", "--sigma", "1"]
    return runner.invoke(app, [*command, "-o", str(run), "--images", "4", "--n0", "50", "--n", "300", *extra])


class Pictures(HTMLParser):
    """Collects the sources of pictures and every tag."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "img":
            self.sources.append(dict(attrs)["src"])


def test_image_commands_certify_continue_attack_and_report(strokes):
    run = strokes / "run"
    first = certify(run)
    assert first.exit_code == 0, first.output
    assert "UNSOUND" in first.output
    table = read_counts(run / "counts.parquet")
    assert len(table.variant("confidence>0.9")) == 4
    again = certify(run, "--images", "6", "--batch-size", "37")
    assert again.exit_code == 0, again.output
    more = read_counts(run / "counts.parquet")
    assert more.rows[: len(table.rows)] == table.rows
    assert len(more.variant("none")) == 6

    sizes = ["--members", "3", "--steps", "3", "--proposals", "16", "--screen", "100", "--confirmation", "500"]
    attack = runner.invoke(app, ["image", "attack", str(run), *sizes])
    assert attack.exit_code == 0, attack.output
    assert "0 inside sound radii" in attack.output

    report = runner.invoke(app, ["image", "report", str(run)])
    assert report.exit_code == 0, report.output
    page = Pictures()
    page.feed((run / "report.html").read_text(encoding="utf-8"))
    assert len([source for source in page.sources if source.startswith("data:image/png")]) >= 6
    assert "svg" in page.tags
    assert all(source.startswith("data:") for source in page.sources)
    assert "script" not in page.tags


def test_certify_refuses_a_folder_of_another_run(strokes):
    assert certify(strokes / "run").exit_code == 0
    before = (strokes / "run" / "run.json").read_bytes()
    other = certify(strokes / "run", "--seed", "1")
    assert other.exit_code == 2
    assert "another run" in other.output
    assert (strokes / "run" / "run.json").read_bytes() == before


def test_certify_band_and_int8_runs(strokes):
    fit = ["image", "fit-band", "--dataset", "mnist", "--sigma", "1", "-o", str(strokes / "band.npz")]
    assert runner.invoke(app, fit).exit_code == 0
    band = certify(strokes / "band", "--filter", "band", "--band", str(strokes / "band.npz"))
    assert band.exit_code == 0, band.output
    assert "conditional Renyi" in band.output
    report = runner.invoke(app, ["image", "report", str(strokes / "band")])
    assert report.exit_code == 0, report.output
    assert "Covariance ratio 1.0" in (strokes / "band" / "report.html").read_text(encoding="utf-8")
    small = certify(strokes / "int8", "--int8")
    assert small.exit_code == 0, small.output
    kept = [read_counts(strokes / name / "counts.parquet").key for name in ("band", "int8")]
    assert kept[0].model_sha256 != kept[1].model_sha256
    sizes = ["--members", "3", "--steps", "3", "--proposals", "16", "--screen", "100", "--confirmation", "500"]
    attack = runner.invoke(app, ["image", "attack", str(strokes / "int8"), *sizes])
    assert attack.exit_code == 0, attack.output
    head, _ = read_attack(strokes / "int8" / "attack" / "endpoints.jsonl")
    assert head.gradients not in (None, kept[1].model_sha256)


def test_certify_exits_with_1_when_nothing_is_certified(strokes):
    nothing = certify(strokes / "run", "--n0", "1", "--n", "2")
    assert nothing.exit_code == 1, nothing.output


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (("--network", "nobody"), "`name` must be one of"),
        (("--sigma", "-1"), "greater than 0"),
        (("--filter", "band"), "go together"),
        (("--checkpoint", "x.pth"), "not both"),
        (("--filter", "magic"), "none"),
        (("--threshold", "1.5"), "less than 1"),
    ],
)
def test_certify_answers_bad_input_with_2(strokes, extra, said):
    answer = certify(strokes / "run", *extra)
    assert answer.exit_code == 2
    assert said in answer.output
    assert not (strokes / "run").exists()


def test_commands_say_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("CCFS_DATA", str(tmp_path))
    missing = certify(tmp_path / "run")
    assert missing.exit_code == 2
    assert "ccfs image install mnist" in missing.output
    for name in ("attack", "report"):
        answer = runner.invoke(app, ["image", name, str(tmp_path)])
        assert answer.exit_code == 2
        assert "run.json" in answer.output


def test_attack_refuses_runs_without_a_confidence_filter(strokes):
    assert certify(strokes / "run", "--filter", "none").exit_code == 0
    answer = runner.invoke(app, ["image", "attack", str(strokes / "run")])
    assert answer.exit_code == 2
    assert "--filter confidence" in answer.output
