"""The index of a folder links to the pages of its runs and to comparisons, and they link back."""

from __future__ import annotations

import re

import pytest
from toy_protocol import protocol
from typer.testing import CliRunner

from ccfs.cli.main import app
from ccfs.results.certify import certify
from ccfs.runs.executors import serial_engine
from ccfs.runs.run import run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("runs")
    for name in ("first run", "inner/second"):
        place = made / name
        place.parent.mkdir(exist_ok=True)
        certify(run(protocol(tmp_path_factory.mktemp("p"), trials=8), place, serial_engine(), where="p"))
    return made


def invoke(*arguments):
    done = CliRunner().invoke(app, [str(part) for part in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_index_comparison_and_reports_link_to_one_another(browser, folder):
    index, other = folder / "index.html", folder / "compare.html"
    assert "Page:" in invoke("runs", folder, "--html")
    assert 'href="first' not in index.read_text(encoding="utf-8"), "there is no page yet"
    for name, up in (("first run", "../"), ("inner/second", "../../")):
        invoke("report", folder / name)
        assert f'<a href="{up}index.html">All runs</a>' in (folder / name / "report.html").read_text(encoding="utf-8")
    invoke("compare", folder / "first run", folder / "inner/second", "--delta", "0.05", "--html", other)
    invoke("runs", folder, "--html")
    text = index.read_text(encoding="utf-8")
    links = re.findall(r'href="([^"#]+)"', text)
    assert links == ["first%20run/report.html", "inner/second/report.html", "compare.html"]
    beside = re.findall(r'href="([^"#:]+)"', other.read_text(encoding="utf-8"))
    assert beside == ["index.html", "first%20run/report.html", "inner/second/report.html"]
    assert text.count("8 of 8") + text.count("7 of 8") >= 2
    for page in (index, other):
        assert browser.faults(page, width=500) == []
        assert browser.faults(page, width=1400, dark=True) == []
        assert browser.size(page, width=390)[0] == 390


def test_index_does_not_replace_a_page_of_somebody_else(tmp_path):
    (tmp_path / "index.html").write_text("<p>mine", encoding="utf-8")
    done = CliRunner().invoke(app, ["runs", str(tmp_path), "--html"])
    assert done.exit_code == 2
    assert "Move it away" in done.output
    assert (tmp_path / "index.html").read_text(encoding="utf-8") == "<p>mine"
