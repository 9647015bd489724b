"""Check the built site: every link leads somewhere, nothing comes from other hosts, and our style sheet has a use.

    python docs/check_site.py FOLDER

mkdocs checks the links that it knows. This looks at the pages as a browser gets them, so it sees all of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Found(HTMLParser):
    """What a page links to, what it loads, and where links may lead in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors = {"", "__skip"}
        self.classes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag has."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.classes |= set(values.get("class", "").split())
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(values.get("href", ""))
        elif "src" in values:
            self.loads.append(values["src"])


@cache
def page(path: Path) -> Found:
    """Return what is in a page."""
    found = Found()
    found.feed(path.read_text(encoding="utf-8"))
    return found


def faults(folder: Path) -> Iterator[str]:
    """Yield what is wrong, in words."""
    pages = [path for path in sorted(folder.rglob("*.html")) if path.name != "404.html"]
    if not pages:
        yield f"{folder}: has no pages"
    style = folder / "site.css"
    used = {name for path in pages for name in page(path).classes}
    for name in re.findall(r"\.([a-z][\w-]*)", style.read_text(encoding="utf-8")) if style.is_file() else ():
        if name not in used:  # a theme renamed it, and its rule does nothing any more
            yield f"site.css: no page has the class {name}"
    for path in pages:
        here, found = path.relative_to(folder), page(path)
        for target in found.loads:
            if urlsplit(target).scheme not in ("", "data") or target.startswith("//"):
                yield f"{here}: loads {target}, which is on another host"
        for target in (*found.links, *found.loads):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            there = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if there.is_dir():
                there /= "index.html"
            if not there.is_file():
                yield f"{here}: {target} is not there"
            elif there.suffix == ".html" and unquote(parts.fragment) not in page(there).anchors:
                yield f"{here}: {target} has no such place"


if __name__ == "__main__":
    said = list(faults(Path(sys.argv[1]).resolve()))
    print(*said, sep="\n")
    print(f"{len(said)} faults in {len(list(Path(sys.argv[1]).rglob('*.html')))} pages.")
    raise SystemExit(bool(said))
