"""The `ccfs` command: one typer application whose subcommands import what they need when they run."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from ccfs import __version__
from ccfs.cli import image as image_cli
from ccfs.cli import report as report_cli
from ccfs.cli import run as run_cli
from ccfs.cli import table as table_cli
from ccfs.cli import train as train_cli
from ccfs.files.terminal import echo, echo_error

_WORKFLOW = ("demo", "run", "report", "table", "costs", "certify", "verify", "audit", "export")


class _InOrderOfWork(TyperGroup):
    """Lists the commands around a run in the order in which they are needed, then the others."""

    def list_commands(self, ctx: object) -> list[str]:
        """Return the names of all commands."""
        names = list(self.commands)
        return [name for name in _WORKFLOW if name in names] + [name for name in names if name not in _WORKFLOW]


app = typer.Typer(
    name="ccfs",
    cls=_InOrderOfWork,
    help="Certificates for filtered Gaussian policies and classifiers that a stranger can recompute.",
    no_args_is_help=True,
    add_completion=False,
)
app.add_typer(image_cli.app)
app.add_typer(run_cli.app)
app.add_typer(report_cli.app)
app.add_typer(table_cli.app)
app.add_typer(train_cli.app)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        echo(f"ccfs {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Hold the options that stand before a subcommand."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Greek letters gets a question mark, not a crash


@app.command()
def schema(
    kind: Annotated[str | None, typer.Argument(help="Kind of document, such as protocol.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print tables for people.")] = False,
) -> None:
    """Print the JSON Schema of a kind of document that CCFS writes, or the names of all kinds."""
    from ccfs.schema import DOCUMENTS, markdown, schema_text

    if kind is None:
        echo(*DOCUMENTS)
        return
    if kind not in DOCUMENTS:
        echo(f"`KIND` must be one of {', '.join(DOCUMENTS)}, got {kind!r}.", err=True)
        raise typer.Exit(2)
    text = markdown(kind) if as_markdown else schema_text(kind)
    echo(*text.removesuffix("\n").split("\n"))


@app.command()
def witness(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document for machines."),
    html: Annotated[Path | None, typer.Option(help="Write a page of drawings here instead of printing.")] = None,
    shape: Annotated[Path | None, typer.Option(help="Draw the boxes of this TOML file (with --html).")] = None,
) -> None:
    """Recompute the three exact counterexamples of the paper in fractions and print what each shows."""
    if shape is not None and html is None:
        echo("`--shape` needs `--html OUT.html`: a drawn shape is shown on a page.", err=True)
        raise typer.Exit(2)
    if html is not None and as_json:
        echo("`--html` and `--json` are two outputs: ask for one at a time.", err=True)
        raise typer.Exit(2)
    if html is not None and shape is not None:
        _write_gallery(html, shape)
        return
    from rich.console import Console

    from ccfs.gallery import witness as printed

    found = printed.pages()
    if html is not None:
        _write_gallery(html, None)
    elif as_json:
        echo(*printed.document(found).split("\n"))
    else:
        printed.render(found, Console())
    if not all(page.is_proved for page in found):
        raise typer.Exit(1)


def _write_gallery(html: Path, shape: Path | None) -> None:
    """Write the page of one drawn shape, or of the paper's three with their proofs; exit 2 if it cannot be drawn."""
    from ccfs.gallery.page import write_page
    from ccfs.gallery.shape import load_shape, paper_shapes
    from ccfs.gallery.witness import pages

    try:
        if shape is None:
            write_page(html, paper_shapes(), witnesses=pages())
        else:
            write_page(html, [load_shape(shape)])
    except (OSError, ValueError) as error:
        echo_error(error)
        raise typer.Exit(2) from None
    echo(f"wrote {html}")
