"""The commands that show a run to others: report writes its page, costs its cost curves, export a Minari dataset."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ccfs.files.terminal import echo, echo_error

__all__ = ["app"]

app = typer.Typer()

RunArgument = Annotated[Path, typer.Argument(help="Run directory.")]


@app.command()
def report(
    run: RunArgument,
    drawing: Annotated[
        str | None, typer.Option(help='Trajectory drawing, "module:callable"; its module is imported and run.')
    ] = None,
    replay_steps: Annotated[
        int, typer.Option(help="Steps to replay at most, for the maps of shipped environments; 0 replays none.", min=0)
    ] = 12_000,
) -> None:
    """Write RUN/report.html: one page with the claims, what is not claimed, figures and provenance.

    No code that the run's protocol names is run, but for environments that CCFS ships: they replay stored actions.
    """
    from ccfs.report.page import write_report
    from ccfs.runs.executors import process_engine
    from ccfs.runs.store import Store

    with _one_line_errors(run):
        engine = process_engine(os.cpu_count() or 1)
        path = write_report(Store(run), drawing=drawing, most_steps=replay_steps, engine=engine)
    echo(f"Report: {path}")


@app.command()
def costs(
    run: RunArgument,
    budgets: Annotated[
        str | None, typer.Option(help="Shift budgets, as 0,0.02,0.1; default 0 and those of the attacks.")
    ] = None,
    grid: Annotated[str | None, typer.Option(help="Total costs, as 0,1,5,10; choose them before the run.")] = None,
    most: Annotated[
        float | None, typer.Option(help="Greatest possible total cost; default the horizon if steps cost 0 or 1.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document for machines.")] = False,
) -> None:
    """Certify the distribution of the total cost, and its expectation, without and under shift.

    All bounds of all arms hold together with the protocol's failure probability, beside the run's certificates.
    """
    from ccfs.results.costs import cost_study
    from ccfs.results.costs_text import default_budgets, document, in_lines
    from ccfs.runs.store import Store

    with _one_line_errors(run):
        study = cost_study(Store(run), grid=None if grid is None else _numbers("--grid", grid), most=most)
        shifts = default_budgets(study) if budgets is None else _numbers("--budgets", budgets)
        lines = [document(study, shifts)] if as_json else list(in_lines(study, shifts))
    echo(*lines)


@app.command()
def export(
    run: RunArgument,
    minari: Annotated[str, typer.Option(help="Dataset id, such as demo/steering-v0.")],
    arm: Annotated[str | None, typer.Option(help="Which arm (controller/schedule), if there are several.")] = None,
    attack: Annotated[str | None, typer.Option(help="Which attack; default the nominal trajectories.")] = None,
) -> None:
    """Export trajectories as a Minari dataset (extra `minari`).

    Observations are not stored in a run, so each trajectory is replayed and compared with its stored hashes. Replaying
    runs the code that the run's protocol names: read it before exporting a stranger's run.
    """
    from ccfs.results.minari import export_minari
    from ccfs.runs.store import Store

    with _one_line_errors(run):
        made = export_minari(Store(run), minari, arm=arm, attack=attack)
    echo(f"Dataset {made.dataset_id}: {made.episodes} episodes, {made.steps} steps.")
    if made.left_out:
        echo(f"Left out, because no step was executed: trials {', '.join(map(str, made.left_out))}.")


def _numbers(option: str, text: str) -> tuple[float, ...]:
    """Return finite numbers of at least 0 that are written with commas."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"`{option}` must be numbers with commas, as 0,1,5, got {text!r}.") from None
    if not all(0.0 <= number < math.inf for number in found):
        raise ValueError(f"`{option}` must be finite and at least 0, got {text!r}.")
    return found


@contextmanager
def _one_line_errors(run: Path) -> Iterator[None]:
    """Turn the errors that a user can mend into one line and exit code 2."""
    from pyarrow import ArrowException

    from ccfs.runs.store import RunError

    try:
        if not run.is_dir():
            raise ValueError(f"{run}: must be a run directory, but there is none.")
        yield
    except (RunError, ValueError, ImportError, RuntimeError, OSError, ArrowException) as error:
        echo_error(error)
        raise typer.Exit(2) from None
