"""The page that lists the runs of a folder, with links to their pages and to the comparisons beside it."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from urllib.parse import quote

from ccfs.files.atomic import write_atomically
from ccfs.report.pages import INDEX, Link, is_ours, rendered, report_link
from ccfs.results.claims import size_text
from ccfs.study.opened import RunList

__all__ = ["write_index"]

_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)


def write_index(folder: Path, found: RunList) -> Path:
    """Write the index of a folder's runs into the folder, and return its path. Nothing of the runs is executed."""
    path = folder / INDEX
    if path.exists() and not is_ours(path):
        raise ValueError(f"{path}: must be absent or a page of ours, but it is another file. Move it away.")
    places = [Path(run.folder) for run in found.runs]
    rows = [
        (Path(os.path.relpath(place, folder)).as_posix(), report_link(place, folder), run)
        for place, run in zip(places, found.runs, strict=True)
    ]
    groups = [(place, run.claims) for place, _, run in rows if run.claims]
    page = rendered("index.html.j2", found=found, rows=rows, groups=groups, pages=_pages(folder), size=size_text)
    write_atomically(path, page.encode())
    return path


def _pages(folder: Path) -> list[Link]:
    """Return the other pages of ours in the folder, such as comparisons."""
    found = []
    for page in sorted(folder.glob("*.html")):
        if page.name != INDEX and is_ours(page):
            title = _TITLE.search(page.read_text(encoding="utf-8", errors="replace")[:5000])
            found.append((quote(page.name), html.unescape(title[1]) if title else page.name))
    return found
