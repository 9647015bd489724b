"""Tables for notebooks and papers: pandas, HTML, LaTeX, CSV and Markdown from the same heads and rows of texts."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ccfs.files.terminal import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

__all__ = ["axes", "csv_table", "data_frame", "html_table", "latex_table", "markdown_table"]

Rows = Sequence[Sequence[str]]
# A backslash first, because the others put one there.
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "∞": r"$\infty$",
}  # fmt: skip

# What other programs read as nothing and as infinity.
_CSV = {"–": "", "∞": "inf"}


def data_frame(rows: Sequence[Mapping[str, object]]) -> DataFrame:
    """Return rows as a pandas frame. Raise ImportError with the pip command if pandas is missing."""
    try:
        import pandas
    except ImportError:
        raise ImportError("`to_frame()` needs pandas, which is not installed. Install it: pip install pandas") from None
    return pandas.DataFrame.from_records([dict(row) for row in rows])


def axes(given: Axes | None) -> Axes:
    """Return the axes to draw into: the given ones, or those of a new figure that no window shows."""
    if given is not None:
        return given
    from matplotlib.figure import Figure

    made: Axes = Figure(figsize=(6.4, 4.0), layout="constrained").add_subplot()
    return made


def markdown_table(heads: Sequence[str], rows: Rows) -> str:
    """Return a table as Markdown.

    >>> print(markdown_table(["arm", "B"], [["a|b", "0.1"]]))
    | arm | B |
    | --- | --- |
    | a\\|b | 0.1 |
    """
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def csv_table(heads: Sequence[str], rows: Rows) -> str:
    """Return a table as CSV, with a line end after every line. A cell that is a dash becomes an empty one.

    >>> print(csv_table(["arm", "B"], [["a,b", "0.1"], ["c", "–"]]), end="")
    arm,B
    "a,b",0.1
    c,
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([heads, *([_CSV.get(cell, cell) for cell in row] for row in rows)])
    return text.getvalue()


def latex_table(heads: Sequence[str], rows: Rows, *, title: str, left: int = 1) -> str:
    r"""Return a table as LaTeX, for the package booktabs. The first `left` columns are set to the left.

    The title is a comment, so that whoever writes the caption knows what the columns are about.

    >>> print(latex_table(["arm", "p_L", "L"], [["a_1", "0.9", "0.8"]], title="L at B = 0.02"))
    % L at B = 0.02
    \begin{tabular}{lrr}
    \toprule
    arm & $p_{\mathrm{L}}$ & $L$ \\
    \midrule
    a\_1 & 0.9 & 0.8 \\
    \bottomrule
    \end{tabular}
    """
    columns = "l" * left + "r" * (len(heads) - left)
    body = [" & ".join(map(_latex, row)) + r" \\" for row in rows]
    top = [f"\\begin{{tabular}}{{{columns}}}", r"\toprule", " & ".join(map(_latex_head, heads)) + r" \\", r"\midrule"]
    return "\n".join([f"% {printable(title)}", *top, *body, r"\bottomrule", r"\end{tabular}"])


def html_table(heads: Sequence[str], rows: Rows, *, caption: str = "") -> str:
    """Return a table as HTML for a notebook. Every text is escaped, hidden characters too."""
    title = f"<caption>{_html(caption)}</caption>" if caption else ""
    head = "".join(f"<th>{_html(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{_html(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in printable(text))


def _latex_head(text: str) -> str:
    """Return a head as LaTeX. One letter is a symbol, and an index, as in p_L, is set as one."""
    symbol, mark, index = text.partition("_")
    if not (len(symbol) == 1 and symbol.isalpha() and (index.isalpha() or not mark)):
        return _latex(text)
    return f"${symbol}_{{\\mathrm{{{index}}}}}$" if mark else f"${symbol}$"


def _html(text: str) -> str:
    return html.escape(printable(text))
