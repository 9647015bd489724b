"""The commands that show a run: page, table, totals, named disturbances, scores of attacks, a Minari dataset."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    progress_bar,
)
from ccfs.files.terminal import echo, without_markup

if TYPE_CHECKING:
    from ccfs.protocol.model import AttackSpec, Protocol
    from ccfs.results.table import TableRow

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
    modules: ModulesOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the counts, lower bounds and certified budgets of every arm.

    A run on a cohort is shown under both bounds that hold there. The claim is the one under the protocol's own bound.
    If there are several attacks, the table shows the one that did most harm and names it. An event of your own is code
    that the run names, and needs --trust.
    """
    from ccfs.results.certify import refuse_missing_trials
    from ccfs.results.table import (
        markdown,
        shown_bounds,
        shown_budget,
        shown_stage,
        table_document,
        table_rows,
        worst_attack,
    )
    from ccfs.results.trial_lines import trial_lines

    if not (budget is None or 0.0 <= budget < math.inf):
        raise ValueError(f"`--budget` must be finite and at least 0, got {budget}.")
    store = open_run(run, modules, trust=trust)
    protocol = store.protocol()
    refuse_missing_trials(store, protocol)
    name = event or protocol.events[0].name
    # Lines of this event alone, so that no other event runs its code.
    shown_event = protocol.model_copy(update={"events": tuple(part for part in protocol.events if part.name == name)})
    rows = table_rows(trial_lines(store, shown_event), protocol, name, shown_bounds(protocol))
    attack = worst_attack(rows, protocol)
    known = {found.value for arm in protocol.arms for found in arm.schedule.plan.stages}
    if stage is not None and stage not in known:
        raise ValueError(f"`--stage` must be one of {', '.join(sorted(known))}, got {stage!r}.")
    of_stage = shown_stage(attack) if stage is None else stage
    shown = shown_budget(attack, of_stage) if budget is None else budget
    if as_json:
        echo(table_document(rows, protocol, name, shown, of_stage).to_bytes().decode().rstrip())
    elif as_markdown:
        echo(*markdown(rows, shown, attack, of_stage).split("\n"))
    else:
        _print(rows, protocol, shown, attack, of_stage)


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


def _print(
    rows: list[TableRow], protocol: Protocol, budget: float, attack: AttackSpec | None, stage: str | None
) -> None:
    from rich.console import Console
    from rich.table import Table

    from ccfs.results.table import HEADS

    look = "" if protocol.quick_look_of is None else ", QUICK LOOK: no claim about the whole protocol"
    shifted = "" if attack is None else f", shifted by {attack.name}"
    of_stage = "" if stage is None else f" of the {stage} stage"
    title = f"{protocol.name}, {rows[0].trials} trials per arm, L at B = {budget:g}{of_stage}{shifted}{look}"
    printed = Table(title=without_markup(title))
    for i, head in enumerate(HEADS):
        printed.add_column(head, justify="left" if i < 3 else "right", no_wrap=True)
    for row in rows:
        printed.add_row(*map(without_markup, row.cells(budget, None if attack is None else attack.name, stage)))
    # A narrow terminal wraps lines. A table that is cut to its width would lose digits.
    Console(width=max(Console().width, 120)).print(printed)
