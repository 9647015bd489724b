"""What every page is made of: the templates, figures with their files, the list of contents, links to other pages."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ccfs.certificates.rounding import exact_text, lower_text, upper_text
from ccfs.files.terminal import printable
from ccfs.report.charts import Chart, data_uri
from ccfs.report.standalone import standalone

__all__ = ["INDEX", "Figure", "Link", "contents", "index_link", "is_ours", "rendered", "report_link"]

INDEX = "index.html"
"""Name of the page that lists the runs of a folder."""
_GENERATOR = '<meta name="generator" content="ccfs">'
_HIGHEST = 3  # folders above a run in which an index is looked for, as deep as it looks itself
_SECTION = re.compile(r'<section id="([^"]+)"[^>]*>\s*<h2>(.*?)</h2>', re.DOTALL)
Link = tuple[str, str]
"""Address and words."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Figure:
    """A chart with its title, its legend (style, name, share) and its caption. It comes with an SVG and a CSV file."""

    title: str
    chart: Chart
    legend: tuple[tuple[str, str, str], ...] = ()
    caption: str | Markup = ""
    is_keyed: bool = True
    """Whether the page shows the legend. Otherwise a table beside the figure does, and only the SVG file has it."""

    @property
    def svg(self) -> str:
        """The SVG file as a data URI. It needs no style sheet, and its legend is part of it."""
        return data_uri("image/svg+xml", standalone(self.chart, self.title, self.legend))

    @property
    def csv(self) -> str:
        """The numbers of the chart as a data URI."""
        return data_uri("text/csv", self.chart.csv().encode())

    @property
    def file(self) -> str:
        """The name of its files, without the ending."""
        return "-".join(re.findall(r"[a-z0-9.]+", self.title.lower()))[:80].strip("-.") or "figure"


def rendered(template: str, *, links: Sequence[Link] = (), **values: object) -> str:
    """Return a page from the one folder of templates. Whatever is not Markup is escaped, hidden characters too.

    Args:
        template: name of the template.
        links: other pages, at the top of this one.
        values: what the template needs.
    """
    environment = Environment(
        loader=PackageLoader("ccfs.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # A text from a file could turn around the words beside it, as U+202E does.
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters.update(
        lower=lower_text, upper=upper_text, exact=exact_text, contents=contents, breakable=_breakable
    )
    return environment.get_template(template).render(links=links, generator=Markup(_GENERATOR), **values)


def _breakable(name: str) -> Markup:
    """Return a name that a narrow column may break after a slash, and nowhere else."""
    return escape(printable(name)).replace("/", Markup("/<wbr>"))


def contents(body: str) -> list[tuple[str, Markup]]:
    """Return the place and the title of every section of a page, so that no list of contents misses one.

    >>> contents('<section id="a"><h2>First</h2></section>')
    [('a', Markup('First'))]
    """
    return [(place, Markup(title)) for place, title in _SECTION.findall(body)]


def is_ours(page: Path) -> bool:
    """Return whether a file is a page that we wrote."""
    try:
        with page.open(encoding="utf-8", errors="replace") as file:
            return _GENERATOR in file.read(1000)
    except OSError:
        return False


def report_link(run: Path, folder: Path) -> str:
    """Return the address of a run's page for a page in a folder, "" if the run has no page."""
    report = run / "report.html"
    return quote(Path(os.path.relpath(report.resolve(), folder.resolve())).as_posix()) if report.is_file() else ""


def index_link(folder: Path) -> tuple[Link, ...]:
    """Return the link from a page in a folder to the index of runs above it, if there is one."""
    above = folder.resolve()
    for up in range(1, _HIGHEST + 1):
        above = above.parent
        if is_ours(above / INDEX):
            return (("../" * up + INDEX, "All runs"),)
    return ()
