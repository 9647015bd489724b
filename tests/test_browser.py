"""The browser helper sees what a page's script wrote, in light and in dark, and its absence is told and not hidden."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PAGE = """<!doctype html><title>t</title><body><p id="told"></p><script>
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
document.getElementById("told").textContent = `${dark ? "dark" : "light"} ${innerWidth}`;
</script>"""


@pytest.mark.parametrize(("dark", "width", "told"), [(False, 1200, "light 1200"), (True, 800, "dark 800")])
def test_browser_runs_scripts_in_the_asked_scheme_and_width(browser, tmp_path, dark, width, told):
    page = tmp_path / "page.html"
    page.write_text(PAGE, encoding="utf-8")
    assert f'<p id="told">{told}</p>' in browser.dom(page, width=width, dark=dark)


def test_browser_measures_what_sticks_out_at_a_phones_width(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<!doctype html><body style="margin:0"><p style="height:10px;width:600px">', encoding="utf-8")
    assert browser.size(page, width=390)[0] == 600
    assert browser.size(page, width=700)[0] == 700


def test_browser_finds_a_faint_text_and_a_picture_without_words(browser, tmp_path):
    page = tmp_path / "page.html"
    body = '<main><h1>t</h1><p style="color:#bbb;background:#fff">faint</p><img src="data:,"></main>'
    page.write_text(f'<!doctype html><html lang="en"><title>t</title><body>{body}</body>', encoding="utf-8")
    assert sorted(name for name, *_ in browser.faults(page, width=800)) == ["color-contrast", "image-alt"]


@pytest.mark.parametrize("is_required", [False, True])
def test_browser_absence_is_noticed_in_the_output(tmp_path, is_required):
    """A fresh pytest on this file, on a PATH without any Chromium."""
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    if is_required:
        environment["CCFS_REQUIRE_BROWSER"] = "1"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "1",
        "-k",
        "scripts",
        str(Path(__file__)),
    ]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert "no Chromium on this machine" in done.stdout
    if is_required:
        assert done.returncode == 1
    else:
        assert done.returncode == 0
        assert "NOTICE" in done.stdout
        assert "not run: tests/test_browser.py::test_browser_runs_scripts" in done.stdout
