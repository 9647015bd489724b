"""The `ccfs` command: one typer application whose subcommands import what they need when they run."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from ccfs import __version__
from ccfs.cli import image, run, shipped, show, sign, study, train
from ccfs.cli.shared import JsonOption, exit_unless, interruptible, readable_errors
from ccfs.cli.signals import stoppable
from ccfs.files.reading import FACTOR, limits
from ccfs.files.terminal import echo

_IN_ORDER = (
    "demo", "plan", "tune", "register", "run", "compare", "show", "report", "table", "costs", "certify", "verify",
    "audit", "sign", "retrace", "export", "runs", "zoo", "doctor", "cite",
)  # fmt: skip
_MORE = "More"


class _Commands(TyperGroup):
    """Lists the commands in the order in which a user needs them, and shows the errors of all of them alike."""

    def list_commands(self, ctx: object) -> list[str]:
        """Return the names of all commands."""
        names = list(self.commands)
        return [name for name in _IN_ORDER if name in names] + [name for name in names if name not in _IN_ORDER]

    def invoke(self, ctx: object) -> object:
        """Run the command that was asked for."""
        with readable_errors(), stoppable():
            return super().invoke(cast(typer.Context, ctx))

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **options: Any) -> Any:
        """Read the options. Without this, a Ctrl-C in this moment would be answered in another way."""
        with interruptible("Nothing was begun."):
            return super().make_context(info_name, args, *rest, **options)


app = typer.Typer(
    name="ccfs",
    cls=_Commands,
    help="Certificates for filtered Gaussian policies and classifiers that a stranger can recompute.",
    epilog="Exit codes: 0 done, 1 a claim does not hold, 2 bad input, 3 not everything was checked, 130 interrupted "
    "(143 by SIGTERM).",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="markdown",
)
app.add_typer(run.app)
app.add_typer(sign.app)
app.add_typer(show.app)
app.add_typer(study.app)
app.add_typer(shipped.app, rich_help_panel=_MORE)
app.add_typer(image.app, rich_help_panel=_MORE)
app.add_typer(train.app, rich_help_panel=_MORE)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        echo(f"ccfs {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
    factor: float = typer.Option(
        1.0, "--limits", envvar=FACTOR, help="Read files that are so many times larger than usual (docs/formats.md)."
    ),
) -> None:
    """Hold the options that stand before a subcommand."""
    os.environ[FACTOR] = f"{factor:g}"  # so that child processes have the same limits
    limits()  # refuses a factor that is none
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Greek letters gets a question mark, not a crash


@app.command(rich_help_panel=_MORE)
def schema(
    kind: Annotated[str | None, typer.Argument(help="Kind of document, such as protocol.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print tables for people.")] = False,
) -> None:
    """Print the JSON Schema of a document that CCFS writes.

    Without KIND, print the names of all kinds of documents.
    """
    from ccfs.schema import DOCUMENTS, markdown, schema_text

    if kind is None:
        echo(*DOCUMENTS)
        return
    if kind not in DOCUMENTS:
        raise ValueError(f"`KIND` must be one of {', '.join(DOCUMENTS)}, got {kind!r}.")
    text = markdown(kind) if as_markdown else schema_text(kind)
    echo(*text.removesuffix("\n").split("\n"))


@app.command(rich_help_panel=_MORE)
def witness(
    as_json: JsonOption = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page of drawings to this file instead of printing.")
    ] = None,
    shape: Annotated[Path | None, typer.Option(help="Draw the boxes of this TOML file (with --html).")] = None,
) -> None:
    """Recompute the paper's three exact counterexamples.

    Exit code 1: one of them is not proved.
    """
    if shape is not None and html is None:
        raise ValueError("`--shape` needs `--html OUT.html`, because a shape is drawn on a page.")
    if html is not None and as_json:
        raise ValueError("`--html` and `--json` must not be given together. Leave one out.")
    if html is not None and shape is not None:
        from ccfs.gallery.page import write_page
        from ccfs.gallery.shape import load_shape

        write_page(html, [load_shape(shape)])
        echo(f"Page: {html}")
        return
    from ccfs.gallery import witness as printed

    found = printed.pages()
    if html is not None:
        from ccfs.gallery.page import write_page
        from ccfs.gallery.shape import paper_shapes

        write_page(html, paper_shapes(), witnesses=found)
        echo(f"Page: {html}")
    elif as_json:
        echo(*printed.document(found).split("\n"))
    else:
        from rich.console import Console

        printed.render(found, Console())
    exit_unless(all(page.is_proved for page in found))
