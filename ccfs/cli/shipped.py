"""The commands `ccfs study list` and `ccfs study run`: the studies that ship with the package."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from ccfs.cli.run import run_and_certify
from ccfs.cli.shared import JsonOption, OutputOption, WorkersOption, engine_for, exit_unless, print_table
from ccfs.files.terminal import echo

if TYPE_CHECKING:
    from ccfs.experiments import Study
    from ccfs.runs.store import Store

__all__ = ["app"]

app = typer.Typer(name="study", help="The studies that ship with the package, to run again.", no_args_is_help=True)


@app.command(name="list")
def list_all(as_json: JsonOption = False) -> None:
    """List the studies with what each asks."""
    from ccfs.experiments import list_studies

    found = list_studies()
    if as_json:
        echo(found.to_bytes().decode().rstrip())
        return
    rows = [(one.name, one.description, f"{one.trials:,}") for one in found.studies]
    print_table("Studies", ("Name", "What it asks", "Trials"), rows, left=2)
    echo("Next: ccfs study run NAME")


@app.command(name="run")
def run_study(
    name: Annotated[str, typer.Argument(help="Name of the study, such as goal2.")],
    output: OutputOption = None,
    workers: WorkersOption = None,
    seeds: Annotated[int | None, typer.Option(help="Quick look: run only the first K trials of each arm.")] = None,
) -> None:
    """Run a study again, print its table and write its report.

    The table has the paper's rows if the paper has them. The traces are compared with those that are kept. You may
    interrupt at any time, and the same command resumes. Exit code 1: a claim is not certified.
    """
    from ccfs.experiments import study
    from ccfs.protocol.model import load_protocol
    from ccfs.report.page import write_report

    one = study(name)
    made = load_protocol(one.protocol)
    if seeds is not None:
        made = made.first(seeds)
    store, is_certified = run_and_certify(made, output, engine_for(workers), name)
    for event in made.events:
        _print_table(one, store, event.name)
    echo(_comparison(one, store), f"Report: {write_report(store, engine=engine_for(workers))}")
    echo(f"Next: ccfs audit {shlex.quote(str(store.root))}")
    exit_unless(is_certified)


def _print_table(one: Study, store: Store, event: str) -> None:
    """Print the table of an event. After the rows of an arm comes the paper's."""
    from ccfs.results.table import LEFT, run_table

    made = run_table(store, event=event)
    theirs = one.paper_rows()
    rows = []
    for i, (row, cells) in enumerate(zip(made.rows, made.cells, strict=True)):
        rows.append(cells)
        key = (row.controller, row.schedule)
        is_last = [(other.controller, other.schedule) for other in made.rows[i + 1 : i + 2]] != [key]
        if is_last and key in theirs:
            rows.append((*key, "paper", *theirs[key]))
    print_table(made.title, made.heads, rows, left=LEFT)
    echo(
        "p_L, B_cert and L are rounded down."
        + (" The paper's agents and seeds are others than ours." if theirs else "")
    )


def _comparison(one: Study, store: Store) -> str:
    """Say whether the traces of a run are those that are kept."""
    if one.kept is not None and store.protocol().quick_look_of is not None:
        return "A quick look draws noise of its own, so its traces are compared with nothing."
    common, other = (0, 0) if one.kept is None else one.compared(store)
    if not common:
        return "No trial of this run is kept, so its traces were compared with nothing."
    if not other:
        return f"{common} trials are kept too, all with the same trace hash."
    return (
        f"{common} trials are kept too, {other} of them with ANOTHER trace hash. Other code, other packages or another "
        "processor family can do this. docs/goal2.md says more."
    )
