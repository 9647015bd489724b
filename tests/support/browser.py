"""Headless Chromium for the tests: read a page's DOM after its scripts ran, or take a picture of it."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

__all__ = ["ABSENT", "REQUIRED", "Browser", "find"]

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REQUIRED = "CCFS_REQUIRE_BROWSER"
"""Set (by CI) to have the browser tests fail where there is no Chromium."""
ABSENT = "no Chromium on this machine: the browser tests did not run (Debian: apt-get install chromium)"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
NARROWEST = 500
"""Headless Chromium makes no window narrower than this: a phone's width is a frame inside one."""
FRAME = """<!doctype html><body style="margin:0"><iframe id="frame" srcdoc="{page}"
style="border:0;display:block;width:{width}px;height:{height}px"></iframe><script>
addEventListener("load", () => {{
  const root = document.getElementById("frame").contentDocument.documentElement;
  document.body.dataset.size = `${{root.clientWidth}} ${{root.scrollWidth}} ${{root.scrollHeight}}`;
}});</script>"""

POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
# The shades at the ends of a table that scrolls are a picture, before which axe cannot judge a contrast.
AXE = """<style>.scroll {{ background: none !important }}</style><script>{axe}</script><script>
addEventListener("load", async () => {{
  const found = await axe.run();
  const told = found.violations.map(one => [one.id, ...one.nodes.slice(0, 3).map(node => node.html)]);
  document.body.dataset.axe = JSON.stringify({{passed: found.passes.map(one => one.id), told}});
}});</script></body>"""


def find() -> str | None:
    """Return the path of the first Chromium on the machine."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Browser:
    """One Chromium; every call gets a fresh profile in `folder`."""

    program: str
    folder: Path

    def dom(self, page: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> str:
        """Return the page's DOM as HTML, after its scripts ran; `width` at least `NARROWEST`."""
        return self._run(page, width, height, dark, "--dump-dom")

    def size(self, page: Path, *, width: int) -> tuple[int, int]:
        """Return width and height of the page's content when it is shown `width` pixels wide, a phone's too."""
        shown = self.dom(self._framed(page, width, 900), width=max(width, NARROWEST))
        found = re.search(r'data-size="(\d+) (\d+) (\d+)"', shown)
        assert found, shown[:2000]
        client, content, tall = map(int, found.groups())
        assert client == width, f"the frame is {client} wide, not {width}"
        return content, tall

    def faults(self, page: Path, *, width: int, dark: bool = False) -> list[list[str]]:
        """Return what axe finds wrong for people who use a keyboard, a reader of screens or weak eyes.

        Everything folded is opened first. The page's policy is taken out, because it forbids every script.
        """
        script = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
        text = POLICY.sub("", page.read_text(encoding="utf-8")).replace("<details", "<details open")
        target = self.folder / "axe.html"
        target.write_text(text.replace("</body>", AXE.format(axe=script)), encoding="utf-8")
        shown = self._run(target, width, 900, dark, "--virtual-time-budget=60000", "--dump-dom")
        found = re.search(r'data-axe="([^"]*)"', shown)
        assert found, shown[-2000:]
        told = json.loads(html.unescape(found[1]))
        assert {"color-contrast", "document-title"} <= set(told["passed"]), told
        return list(told["told"])

    def screenshot(
        self, page: Path, picture: Path, *, width: int = 1200, height: int = 900, dark: bool = False
    ) -> Path:
        """Write a PNG of the page's first `height` pixels and return its path."""
        shown = page if width >= NARROWEST else self._framed(page, width, height)
        self._run(shown, max(width, NARROWEST), height, dark, f"--screenshot={picture}")
        assert picture.is_file(), f"Chromium wrote no picture of {page}"
        return picture

    def _framed(self, page: Path, width: int, height: int) -> Path:
        content = html.escape(page.read_text(encoding="utf-8"))
        target = self.folder / f"frame-{width}.html"
        target.write_text(FRAME.format(page=content, width=width, height=height), encoding="utf-8")
        return target

    def _run(self, page: Path, width: int, height: int, dark: bool, *last: str) -> str:
        profile = self.folder / f"profile-{len(list(self.folder.glob('profile-*')))}"
        scheme = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
        command = [
            self.program,
            *FLAGS,
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            *scheme,
            *last,
            page.resolve().as_uri(),
        ]
        environment = {**os.environ, "HOME": str(self.folder)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout
