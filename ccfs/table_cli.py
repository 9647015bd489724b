"""The command `ccfs table`: one line for each arm of a run, in the layout of the paper's table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ccfs.protocol import Protocol
    from ccfs.table import TableRow

__all__ = ["app", "markdown"]

app = typer.Typer()


@app.command()
def table(
    run: Annotated[Path, typer.Argument(help="Run directory, finished.")],
    event: Annotated[str | None, typer.Option(help="Which event; default the first.")] = None,
    budget: Annotated[float, typer.Option(help="Shift budget B of the column L.")] = 0.02,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Print counts, lower bounds and certified budgets of every arm.

    A cohort's run is shown under both bounds that hold there; the protocol's own is the claim.
    """
    from ccfs.certificates.bounds import Bound
    from ccfs.certify import refuse_missing_trials
    from ccfs.protocol import ProtocolError
    from ccfs.store import RunError, Store
    from ccfs.table import table_rows
    from ccfs.trial_lines import trial_lines

    try:
        if not (run.is_dir() and budget >= 0.0):
            raise ValueError(f"`RUN` must be a run directory and `--budget` at least 0, got {run} and {budget}.")
        store = Store(run)
        protocol = store.protocol()
        refuse_missing_trials(store, protocol)
        cohort = (Bound.HOEFFDING, Bound.COHORT)
        bounds = cohort if protocol.bound in cohort else (protocol.bound,)
        rows = table_rows(trial_lines(store, protocol), protocol, event or protocol.events[0].name, bounds)
    except (RunError, ProtocolError, ValueError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    if as_markdown:
        typer.echo(markdown(rows, protocol, budget))
    else:
        _print(rows, protocol, budget)


def markdown(rows: list[TableRow], protocol: Protocol, budget: float) -> str:
    """Return the table as Markdown."""
    from ccfs.table import HEADS

    attack = protocol.attacks[0].name if protocol.attacks else None
    lines = [HEADS, ("---",) * len(HEADS), *(row.cells(budget, attack) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _print(rows: list[TableRow], protocol: Protocol, budget: float) -> None:
    from rich.console import Console
    from rich.table import Table

    from ccfs.table import HEADS

    attack = protocol.attacks[0].name if protocol.attacks else None
    look = "" if protocol.quick_look_of is None else " QUICK LOOK: no claim about the whole protocol"
    printed = Table(title=f"{protocol.name}, {rows[0].trials} trials an arm, L at B = {budget:g}{look}")
    for i, head in enumerate(HEADS):
        printed.add_column(head, justify="left" if i < 3 else "right", no_wrap=True)
    for row in rows:
        printed.add_row(*row.cells(budget, attack))
    Console(width=max(Console().width, 110)).print(printed)
