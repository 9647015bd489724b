"""The command `ccfs table`: one line for each arm of a run, in the layout of the paper's table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfs.files.terminal import echo, echo_error, without_markup

if TYPE_CHECKING:
    from ccfs.protocol.model import AttackSpec, Protocol
    from ccfs.results.table import TableRow

__all__ = ["app", "markdown"]

app = typer.Typer()


@app.command()
def table(
    run: Annotated[Path, typer.Argument(help="Run directory, finished.")],
    event: Annotated[str | None, typer.Option(help="Which event; default the first.")] = None,
    budget: Annotated[
        float | None, typer.Option(help="Shift budget B of the column L; default the shown attack's, else 0.02.")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document for machines.")] = False,
) -> None:
    """Print counts, lower bounds and certified budgets of every arm.

    A cohort's run is shown under both bounds that hold there; the protocol's own is the claim. Of several attacks the
    one that did most harm is shown, and named.
    """
    from pyarrow import ArrowException

    from ccfs.certificates.bounds import Bound
    from ccfs.protocol.model import ProtocolError
    from ccfs.report.counts import BUDGET
    from ccfs.results.certify import refuse_missing_trials
    from ccfs.results.table import table_document, table_rows, worst_attack
    from ccfs.results.trial_lines import trial_lines
    from ccfs.runs.store import RunError, Store

    try:
        if not run.is_dir():
            raise ValueError(f"`RUN` must be a run directory, got {run}.")
        if not (budget is None or 0.0 <= budget < math.inf):
            raise ValueError(f"`--budget` must be finite and at least 0, got {budget}.")
        store = Store(run)
        protocol = store.protocol()
        refuse_missing_trials(store, protocol)
        cohort = (Bound.HOEFFDING, Bound.COHORT)
        bounds = cohort if protocol.bound in cohort else (protocol.bound,)
        rows = table_rows(trial_lines(store, protocol), protocol, event or protocol.events[0].name, bounds)
    except (RunError, ProtocolError, ValueError, OSError, ArrowException) as error:
        echo_error(error)
        raise typer.Exit(2) from None
    attack = worst_attack(rows, protocol)
    shown = budget if budget is not None else BUDGET if attack is None or attack.budget is None else attack.budget
    if as_json:
        made = table_document(rows, protocol, event or protocol.events[0].name, shown)
        echo(made.to_bytes().decode().rstrip())
    elif as_markdown:
        echo(*markdown(rows, shown, attack).split("\n"))
    else:
        _print(rows, protocol, shown, attack)


def markdown(rows: list[TableRow], budget: float, attack: AttackSpec | None) -> str:
    """Return the table as Markdown; the last column is under `attack`."""
    from ccfs.results.table import HEADS

    name = None if attack is None else attack.name
    lines = [HEADS, ("---",) * len(HEADS), *(row.cells(budget, name) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _print(rows: list[TableRow], protocol: Protocol, budget: float, attack: AttackSpec | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from ccfs.results.table import HEADS

    look = "" if protocol.quick_look_of is None else ", QUICK LOOK: no claim about the whole protocol"
    shifted = "" if attack is None else f", shifted by {attack.name}"
    title = f"{protocol.name}, {rows[0].trials} trials an arm, L at B = {budget:g}{shifted}{look}"
    printed = Table(title=without_markup(title))
    for i, head in enumerate(HEADS):
        printed.add_column(head, justify="left" if i < 3 else "right", no_wrap=True)
    for row in rows:
        printed.add_row(*map(without_markup, row.cells(budget, None if attack is None else attack.name)))
    Console(width=max(Console().width, 120)).print(printed)
