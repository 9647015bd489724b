"""Print the SafetyPointGoal2 table of a finished run beside the paper's, and check it against what is kept.

    ccfs run experiments/goal2/protocol.toml -o runs/goal2; python experiments/goal2/table.py runs/goal2

`make table` does both. `--stock K` also runs K trials on stock Safety-Gymnasium, alternating, and gives the ratio.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import records
from rich.console import Console
from rich.table import Table
from stock import compare

from ccfs.results.table import heads
from ccfs.results.trial_lines import trial_lines
from ccfs.runs.store import Store

KEPT = "table"


def paper_rows() -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the paper's cells by controller and proposals."""
    with (records.HERE / "paper.csv").open(newline="", encoding="utf-8") as file:
        return {(row["controller"], row["proposals"]): tuple(row.values())[2:] for row in csv.DictReader(file)}


def printed(run: Path) -> Table:
    """Return the table of a run: for each arm ours under both bounds, then the paper's row."""
    store = Store(run)
    protocol = store.protocol()
    found = records.rows(trial_lines(store, protocol), protocol, protocol.events[0].name)
    theirs = paper_rows()
    look = "" if protocol.quick_look_of is None else "\nQUICK LOOK: not the protocol's cohort, no claim about it"
    table = Table(title=f"SafetyPointGoal2-v0, {found[0].trials} reset seeds, L at B = {records.BUDGET}{look}")
    for i, head in enumerate(heads(found)):
        table.add_column(head, justify="left" if i < 3 else "right", no_wrap=True)
    for hoeffding, cohort in zip(found[::2], found[1::2], strict=True):
        for row in (hoeffding, cohort):
            table.add_row(*row.cells(records.BUDGET, protocol.attacks[0].name))
        key = (cohort.controller, cohort.schedule)
        table.add_row(*key, "paper", *theirs[key], style="dim", end_section=True)
    return table


def main() -> None:
    """Read the arguments and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--stock", type=int, default=0, help="trials to compare with stock Safety-Gymnasium")
    parser.add_argument("--keep", action="store_true", help="store the run's small part in results/table")
    arguments = parser.parse_args()
    console = Console(width=max(Console().width, 110))
    console.print(printed(arguments.run))
    console.print("p_L, B_cert and L are rounded down. The paper's controllers and cohort are others than ours.")
    if arguments.stock:
        found = compare(Store(arguments.run).protocol(), arguments.stock)
        console.print(
            f"Stock Safety-Gymnasium on {found.trials} of these trials ({found.steps} steps): {found.different} other "
            f"traces, {found.ratio:.1f} times our processor time ({found.stock:.1f} s against {found.ours:.1f} s)."
        )
    if arguments.keep:
        console.print(f"Kept: {records.keep(arguments.run, KEPT, 'make table')}")
    if (records.RESULTS / KEPT).is_dir():
        common, other = records.differences(arguments.run, KEPT)
        verdict = "all with the kept hash" if not other else f"{other} with ANOTHER hash than kept"
        console.print(f"{common} trajectories are kept too, {verdict}.")
        if other:
            console.print("Other controllers, other code or another processor family; see docs/goal2.md.")


if __name__ == "__main__":
    main()
