"""The commands that show a run: page, table, totals, named disturbances, scores of attacks, a Minari dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ccfs.cli.shared import (
    JsonOption,
    ModulesOption,
    RunArgument,
    TrustOption,
    engine_for,
    exit_unless,
    numbers,
    open_run,
    print_table,
    progress_bar,
)
from ccfs.files.terminal import echo

__all__ = ["app"]

_PANEL = "Show a run"
app = typer.Typer()


@app.command(rich_help_panel=_PANEL)
def report(
    run: RunArgument,
    drawing: Annotated[
        str | None, typer.Option(help='Your own drawing of trajectories, "module:callable". Its module is run.')
    ] = None,
    replay_steps: Annotated[
        int, typer.Option(help="Greatest number of steps to replay for the maps. 0 replays nothing.", min=0)
    ] = 12_000,
    modules: ModulesOption = None,
) -> None:
    """Write RUN/report.html: one page with claims, figures and provenance.

    Code that the run's protocol names is not run. Only environments that CCFS ships replay stored actions.
    """
    from ccfs.report.page import write_report

    store = open_run(run, modules)
    path = write_report(store, drawing=drawing, most_steps=replay_steps, engine=engine_for(None))
    echo(f"Report: {path}")


@app.command(rich_help_panel=_PANEL)
def table(
    run: RunArgument,
    event: Annotated[str | None, typer.Option(help="Name of the event. Default: the protocol's first.")] = None,
    budget: Annotated[
        float | None, typer.Option(help="Shift budget of the column L. Default: that of the shown attack, else 0.02.")
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option(help="Stage of the budgets: sensor, action or score. Default: that of the shown attack."),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX, for the package booktabs.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    modules: ModulesOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the counts, lower bounds and certified budgets of every arm.

    The columns of counts follow the event. A run on a cohort is shown under both bounds that hold there. The claim is
    the one under the protocol's own bound. If there are several attacks, the table shows the one that did most harm and
    names it. An event of your own is code that the run names, and needs --trust.
    """
    from ccfs.files.frames import csv_table, latex_table, markdown_table
    from ccfs.results.table import LEFT, run_table

    if sum((as_markdown, as_latex, as_csv, as_json)) > 1:
        raise ValueError("`--markdown`, `--latex`, `--csv` and `--json` must not be given together. Keep one.")
    made = run_table(open_run(run, modules, trust=trust), event=event, budget=budget, stage=stage)
    if as_json:
        echo(made.document.to_bytes().decode().rstrip())
    elif as_markdown:
        echo(*markdown_table(made.heads, made.cells).split("\n"))
    elif as_latex:
        echo(*latex_table(made.heads, made.cells, title=made.title, left=LEFT).split("\n"))
    elif as_csv:
        echo(*csv_table(made.heads, made.cells).splitlines())
    else:
        print_table(made.title, made.heads, made.cells, left=LEFT)


BudgetsOption = Annotated[
    str | None, typer.Option(help="Shift budgets, such as 0,0.02,0.1. Default: 0 and those of the attacks.")
]
GridOption = Annotated[str | None, typer.Option(help="Totals whose probability is shown, such as 0,1,5,10.")]
LevelOption = Annotated[float, typer.Option(help="Probability of the shown quantile. The rest is the worst part.")]


@app.command(rich_help_panel=_PANEL)
def costs(
    run: RunArgument,
    budgets: BudgetsOption = None,
    grid: GridOption = None,
    level: LevelOption = 0.9,
    most: Annotated[
        float | None,
        typer.Option(help="Greatest total cost of a trial. Default: the horizon, if every step cost 0 or 1."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Certify the total cost: its expectation, distribution, quantile and worst part.

    All are certified without and under shift. Everything about all arms holds together with the protocol's delta. The
    run's certificates have a delta of their own.
    """
    _show_totals(run, "cost", (None, most), budgets, grid, level, as_json=as_json)


@app.command(rich_help_panel=_PANEL)
def returns(
    run: RunArgument,
    least: Annotated[float | None, typer.Option(help="Least return that a trial can have at all.")] = None,
    most: Annotated[float | None, typer.Option(help="Greatest return that a trial can have at all.")] = None,
    budgets: BudgetsOption = None,
    grid: GridOption = None,
    level: LevelOption = 0.9,
    as_json: JsonOption = False,
) -> None:
    """Certify the return, the sum of the rewards, as `ccfs costs` certifies the cost.

    --least and --most are needed, and are what a trial can give, not what was seen.
    """
    _show_totals(run, "return", (least, most), budgets, grid, level, as_json=as_json)


def _show_totals(
    run: Path,
    kind: str,
    limits: tuple[float | None, float | None],
    budgets: str | None,
    grid: str | None,
    level: float,
    *,
    as_json: bool,
) -> None:
    from ccfs.results.totals import default_budgets, default_limits, in_lines, run_totals, total_study

    if not 0.0 < level < 1.0:
        raise ValueError(f"`--level` must be in (0, 1), got {level}.")
    shifts = None if budgets is None else numbers("--budgets", budgets)
    points = None if grid is None else numbers("--grid", grid, may_be_negative=True)
    study = total_study(open_run(run), kind, lowest=limits[0], highest=limits[1])
    shown = (shifts or default_budgets(study), points or default_limits(study), level)
    if as_json:
        echo(run_totals(study, *shown).to_bytes().decode().rstrip())
    else:
        echo(*in_lines(study, *shown))


@app.command(rich_help_panel=_PANEL)
def families(run: RunArgument, as_json: JsonOption = False) -> None:
    """Print what is certified under the protocol's named disturbances.

    For each one also what the count alone gives for every shift of the same size. `ccfs run` and `ccfs certify` write
    these certificates, and `ccfs verify` computes one again. Exit code 1: the target is not certified for one of them.
    """
    from ccfs.results.families import families_document, stored_families
    from ccfs.runs.manifest import manifest_faults

    store = open_run(run)
    protocol = store.protocol()
    if not protocol.families:
        raise ValueError(f"{run}: must have named disturbances, but its protocol has no `families`.")
    for fault in manifest_faults(store):
        raise ValueError(f"{run}: {fault} Audit this run first.")
    found = stored_families(store, protocol)
    if as_json:
        echo(families_document(protocol, found).to_bytes().decode().rstrip())
    else:
        for document in found:
            echo(document.sentence, f"  {document.comparison}")
    exit_unless(all(document.is_certified for document in found))


@app.command(rich_help_panel=_PANEL)
def score(
    run: RunArgument,
    attacks: Annotated[
        Path | None, typer.Option(help="TOML file with `[[attacks]]` to score. Default: those of the protocol.")
    ] = None,
    modules: ModulesOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Score attacks on nominal trials, without running them.

    Every nominal trial is replayed once, and each rule is asked for its shifts, which are not applied. Their likelihood
    ratios say how probable the event would be under the rule. The result is kept in RUN/scores.json, and the report
    shows it beside what was observed. Code that the run names needs --trust.
    """
    from ccfs.results.scores import rules_in, score_lines
    from ccfs.results.scores import score as score_run

    store = open_run(run, modules, trust=trust)
    protocol = store.protocol()
    rules = protocol.attacks if attacks is None else rules_in(protocol, attacks)
    total = len(protocol.arms) * protocol.trials.count
    with progress_bar(f"{protocol.name}, nominal trials again", total, "trials") as advance:
        found = score_run(store, rules, advance=advance)
    echo(*([found.to_bytes().decode().rstrip()] if as_json else score_lines(found)))


@app.command(rich_help_panel=_PANEL)
def export(
    run: RunArgument,
    minari: Annotated[str, typer.Option(help="Name of the new dataset, such as demo/steering-v0.")],
    arm: Annotated[str | None, typer.Option(help="Arm (controller/schedule), if there are several.")] = None,
    attack: Annotated[str | None, typer.Option(help="Name of an attack. Default: the nominal trials.")] = None,
    modules: ModulesOption = None,
    trust: TrustOption = False,
) -> None:
    """Export trials as a Minari dataset (extra `minari`).

    A run does not store observations. So each trial is replayed, and its hashes must agree with the stored ones. Code
    that the run names needs --trust.
    """
    from ccfs.results.minari import export_minari

    made = export_minari(open_run(run, modules, trust=trust), minari, arm=arm, attack=attack)
    echo(f"Dataset {made.dataset_id}: {made.episodes} episodes, {made.steps} steps.")
    if made.left_out:
        echo(f"Left out, because no step was executed: trials {', '.join(map(str, made.left_out))}.")


@app.command(rich_help_panel=_PANEL)
def retrace(
    run: RunArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder for the traces.")],
    trials: Annotated[str, typer.Option(help="Which trials: one number, or FIRST:END without the end.")] = "0:100",
    arm: Annotated[str | None, typer.Option(help="Arm (controller/schedule). Default: all.")] = None,
    modules: ModulesOption = None,
    trust: TrustOption = False,
) -> None:
    """Make traces of a run again that keeps none (`traces = "hashes"`).

    Each trial runs again, and its line and its hash must be the stored ones. The traces are Parquet files as those of
    other runs. Code that the run names needs --trust.
    """
    from ccfs.results.retrace import retrace as make_again

    first, colon, end = trials.partition(":")
    if not (first.isdecimal() and (end.isdecimal() or not colon)):
        raise ValueError(f"`--trials` must be a number or FIRST:END, such as 0:100, got {trials!r}.")
    wanted = range(int(first), int(end) if colon else int(first) + 1)
    made = make_again(open_run(run, modules, trust=trust), output, wanted, arm=arm)
    echo(f"Traces: {output}/traces, {made} trials, each with its stored hash.")
