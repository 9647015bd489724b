"""The `ccfs` command: one typer application whose subcommands import what they need when they run."""

from __future__ import annotations

import typer

from ccfs import __version__, image_cli, report_cli, run_cli, train_cli

app = typer.Typer(
    name="ccfs",
    help="Certificates for filtered Gaussian policies and classifiers that a stranger can recompute.",
    no_args_is_help=True,
    add_completion=False,
)
app.add_typer(image_cli.app)
app.add_typer(run_cli.app)
app.add_typer(report_cli.app)
app.add_typer(train_cli.app)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"ccfs {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Hold the options that stand before a subcommand."""


@app.command()
def witness(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document for machines."),
) -> None:
    """Recompute the three exact counterexamples of the paper in fractions and print what each shows."""
    from rich.console import Console

    from ccfs import witness as printed

    found = printed.pages()
    if as_json:
        typer.echo(printed.document(found))
    else:
        printed.render(found, Console())
    if not all(page.is_proved for page in found):
        raise typer.Exit(1)
