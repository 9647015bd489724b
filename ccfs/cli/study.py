"""The commands around studies: plan, tune, compare, and look at runs, agents and this machine."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ccfs.cli.shared import (
    JsonOption,
    ModulesOption,
    RunArgument,
    TrustOption,
    WorkersOption,
    engine_for,
    exit_unless,
    find_modules,
    interruptible,
    numbers,
    open_run,
    print_claims,
    print_table,
    progress_bar,
)
from ccfs.files.terminal import echo

if TYPE_CHECKING:
    from ccfs.certificates.schedule import Schedule
    from ccfs.protocol.model import Protocol
    from ccfs.study.plan import TrialPlan

__all__ = ["app"]

_DESIGN, _LOOK = "Design a study", "Look around"
Kind = TypeVar("Kind")
app = typer.Typer()
zoo = typer.Typer(name="zoo", help="The trained agents that ship with the package.", no_args_is_help=True)
app.add_typer(zoo, rich_help_panel=_LOOK)


@app.command(rich_help_panel=_DESIGN)
def plan(
    protocol: Annotated[Path | None, typer.Argument(help="Protocol file (TOML). Or give the options below.")] = None,
    rate: Annotated[
        str | None,
        typer.Option(help="Assumed success rate. Several with commas are equally likely rates of initial states."),
    ] = None,
    pilot: Annotated[
        Path | None, typer.Option(help="Folder of a pilot run instead. Its counts give the rate of each arm.")
    ] = None,
    budget: Annotated[float, typer.Option(help="Wanted budget. 0 asks for the target itself.")] = 0.0,
    stage: Annotated[str | None, typer.Option(help="Stage of the budget: sensor, action or score.")] = None,
    chance: Annotated[float, typer.Option(help="Wanted probability of certifying it.")] = 0.9,
    draws: Annotated[
        int | None,
        typer.Option(help="Draws at each initial state. With several, runs are simulated. Default: the protocol's."),
    ] = None,
    trials: Annotated[str | None, typer.Option(help="Numbers of trials to show, such as 100,1000.")] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise of a single proposal, without a protocol.")] = None,
    target: Annotated[float | None, typer.Option(help="Probability to keep. Default: the protocol's.")] = None,
    delta: Annotated[float | None, typer.Option(help="Failure probability. Default: the protocol's.")] = None,
    family: Annotated[int | None, typer.Option(help="Claims that share delta. Default: the protocol's, or 1.")] = None,
    bound: Annotated[
        str | None, typer.Option(help="hoeffding, cohort, clopper-pearson or anytime. Default: the protocol's.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw budgets against trials (.svg, .pdf or .png).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Forecast how many trials a wanted budget needs.

    This is a forecast for an assumed or piloted success rate. It certifies nothing. Exit code 1: no number of trials
    suffices for some arm.
    """
    from ccfs.protocol.model import load_protocol
    from ccfs.study.plan import HEADS, PlanDocument
    from ccfs.study.plan import plan as forecast
    from ccfs.study.plan_families import FAMILY_HEADS, plan_families

    made = None if protocol is None else load_protocol(protocol)
    if (rate is None) == (pilot is None):
        raise ValueError("give `--rate` (assumed) or `--pilot` (folder of a run), and only one of them.")
    if made is None and pilot is not None:
        raise ValueError("`--pilot` needs the protocol file that is planned, because it has the schedules.")
    rates = None if rate is None else numbers("--rate", rate)
    shown = None if trials is None else [int(number) for number in numbers("--trials", trials)]
    claim = None if made is None else made.claim
    found: list[TrialPlan] = []
    for name, schedule, counted in _planned(made, pilot, sigma):
        found.append(
            forecast(
                schedule=schedule,
                target=_given("target", target, None if claim is None else claim.target),
                delta=_given("delta", delta, None if claim is None else claim.delta),
                bound=_given("bound", bound, None if made is None else _count_rule(made)),
                family=family or (1 if made is None else made.family),
                rate=rates,
                pilot=counted,
                budget=budget,
                stage=stage,
                chance=chance,
                draws=draws or _counted_draws(made),
                trials=shown,
                name=name,
            )
        )
    if plot is not None:
        _draw_plans(found, plot)
    named = () if made is None or pilot is None else plan_families(made, open_run(pilot), chance=chance)
    if as_json:
        echo(PlanDocument(plans=tuple(found), families=named).to_bytes().decode().rstrip())
    else:
        for one in found:
            if any(line.median is not None for line in one.lines):  # else all of it is dashes, and the sentence says so
                print_table(f"{one.name}, rate {one.rate:.4g}: a forecast", HEADS, one.cells(), left=0)
            echo(one.sentence)
        for part in named:
            print_table(f"{part.name}: a forecast", FAMILY_HEADS, part.cells(), left=0)
            echo(part.sentence)
        if named == () and made is not None and made.families:
            echo("Named disturbances are forecast from a pilot that has them: --pilot RUN.")
        echo("These are forecasts. Only the certifying run certifies.")
        if plot is not None:
            echo(f"Plot: {plot}")
    exit_unless(None not in [*(one.needed for one in found), *(part.needed for part in named)])


def _count_rule(protocol: Protocol) -> str:
    """Return the protocol's rule for counts. A stratified claim has none, so it is the one for its way of sampling."""
    if protocol.bound is not None:
        return protocol.bound.value
    return "clopper-pearson" if protocol.trials.seeds is None else "cohort"


def _counted_draws(protocol: Protocol | None) -> int:
    draws = None if protocol is None else protocol.trials.draws
    return 1 if draws is None else draws.main


def _given(name: str, option: Kind | None, default: Kind | None) -> Kind:
    found = default if option is None else option
    if found is None:
        raise ValueError(f"`--{name}` must be given without a protocol file.")
    return found


def _planned(
    protocol: Protocol | None, pilot: Path | None, sigma: float | None
) -> list[tuple[str, Schedule, tuple[int, int] | None]]:
    """Return what is to be planned: a name, a schedule, and the counts of the pilot."""
    from ccfs.certificates.schedule import ProposalSchedule, as_schedule
    from ccfs.study.plan import piloted

    if protocol is None:
        block = ProposalSchedule(count=1, sigma=_given("sigma", sigma, None))
        return [(f"sigma {block.sigma}", as_schedule(block), None)]
    if sigma is not None:
        raise ValueError("`--sigma` must not be given with a protocol file, which has its own schedules.")
    if pilot is None:
        return [(schedule.name, schedule.plan, None) for schedule in protocol.schedules]
    return piloted(protocol, open_run(pilot))


def _draw_plans(plans: Sequence[TrialPlan], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0 * len(plans)), layout="constrained")
    for place, one in enumerate(plans, start=1):
        one.plot(figure.add_subplot(len(plans), 1, place))
    figure.savefig(path)


@app.command(rich_help_panel=_DESIGN)
def tune(
    protocol: Annotated[Path, typer.Argument(help="Protocol file (TOML) with a table [tune].")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the pilots and results. Default: runs/NAME-tune.")
    ] = None,
    workers: WorkersOption = None,
    modules: ModulesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Try settings on pilot seeds, pick by expected budget and wanted rate, and write the certifying protocol.

    You may interrupt it at any time. The same command resumes. docs/studies.md explains the table [tune]. Exit code 1:
    no setting has the wanted rate.
    """
    from ccfs.study.tune import FRONT, PROTOCOL, RECORD, load_tuning
    from ccfs.study.tune import tune as run_sweep

    made = load_tuning(protocol)
    folder = protocol.resolve().parent if modules is None else modules
    find_modules(folder)
    root = output or Path("runs") / f"{made.base.name}-tune"
    engine = engine_for(workers)
    try:
        with (
            interruptible(f"Finished batches are kept in {root}. The same command resumes."),
            progress_bar(f"{made.base.name} on {engine.name}", 0, "trials") as bar,
        ):
            record = run_sweep(made, root, engine, modules=folder, begin=bar.extend, advance=bar, found=bar.found)
    finally:
        engine.close()
    if as_json:
        echo(record.to_bytes().decode().rstrip())
    else:
        print_table(f"{made.base.name}: budgets are forecasts", record.heads(), record.cells(), left=1)
        echo(*(f"left out: {what}: {why}" for what, why in record.left_out.items()))
        echo(record.sentence, f"Record: {root / RECORD}, front: {root / FRONT}")
        if record.chosen is not None:
            echo(f"Next: ccfs run {shlex.quote(str(root / PROTOCOL))}")
    exit_unless(record.chosen is not None)


@app.command(rich_help_panel=_DESIGN)
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs. One is enough to compare its arms.")],
    delta: Annotated[float, typer.Option(help="Failure probability of all differences together.")],
    event: Annotated[str | None, typer.Option(help="Name of the one event to compare. Default: all.")] = None,
    against: Annotated[
        str | None, typer.Option(help="Arm to compare all others with (RUN:ARM if there are several runs).")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file.")] = None,
    modules: ModulesOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Set arms and runs side by side, and certify differences of nominal probabilities on common seeds.

    The claim is about trials without shift. On cohorts it is about the average over the common reset seeds, and for
    draws from a law it is about that law.
    """
    from ccfs.files.atomic import write_atomically
    from ccfs.study.compare import HEADS, page
    from ccfs.study.compare import compare as compared

    stores = [open_run(run, modules, trust=trust) for run in runs]
    made = compared(stores, delta=delta, event=event, against=against)
    if html is not None:
        write_atomically(html, page(made, stores, html.parent).encode())
    if as_json:
        echo(made.to_bytes().decode().rstrip())
        return
    for run in made.runs:
        print_claims(run.name, run.claims)
    if made.differences:
        cells = [(*one.cells, one.better) for one in made.differences]
        title = f"Differences without shift, all together at delta = {delta:g}"
        print_table(title, (*HEADS, "better"), cells, left=3)
        echo(*(one.sentence for one in made.differences if one.lower > 0.0 or one.upper < 0.0))
        about = {"cohort": "the average over the common reset seeds", "law": "a start drawn from the initial law"}
        echo(f"Each is about {' or '.join(about[kind] for kind in sorted({one.about for one in made.differences}))}.")
    echo(*(f"note: {note}" for note in made.notes))
    if html is not None:
        echo(f"Page: {html}")


@app.command(rich_help_panel=_LOOK)
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder to look into.")] = Path("runs"),
    html: Annotated[
        bool, typer.Option("--html", help="Write FOLDER/index.html, with links to the pages of the runs.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the runs in a folder: how far they are and how many claims are certified."""
    from ccfs.study.index import write_index
    from ccfs.study.opened import list_runs

    found = list_runs(folder)
    page = write_index(folder, found) if html else None
    if as_json:
        echo(found.to_bytes().decode().rstrip())
        return
    rows = [(one.folder, one.kind, one.name, (one.protocol or "")[:8], one.state) for one in found.runs]
    if rows:
        print_table(
            "1 run" if len(rows) == 1 else f"{len(rows)} runs",
            ("folder", "kind", "study", "protocol", "state"),
            rows,
            left=5,
        )
        echo(*(f"unreadable: {one.description}" for one in found.runs if one.kind == "unreadable"))
        echo("What is certified is quoted from the certificates there. `ccfs audit RUN` checks a run.")
    else:
        echo(f"{folder}: holds no run. `ccfs demo` makes one.")
    if page is not None:
        echo(f"Page: {page}. A page of a run that `ccfs report` writes from now on links back to it.")


@app.command(rich_help_panel=_LOOK)
def show(run: RunArgument, as_json: JsonOption = False) -> None:
    """Show what a run is, how far it is, and what it claims. Nothing of it is executed.

    The counts are quoted, and every number is recomputed from them. `ccfs audit` checks the counts too. Exit code 1: a
    claim is not certified. Exit code 2: it cannot be read.
    """
    from ccfs.study.opened import OpenedRun, summary

    open_run(run)
    found = summary(run)
    if found.kind == "unreadable":
        raise ValueError(found.description)
    if as_json:
        echo(found.to_bytes().decode().rstrip())
    else:
        # Names of image runs and descriptions are free text, which could look like a claim.
        echo(
            f'Image run of "{found.name}": {found.state}' if found.kind == "images" else f"{found.name}: {found.state}"
        )
        if found.description:
            echo(found.description if found.kind == "images" else f'Its author says: "{found.description}"')
        if found.claims:
            print_claims(found.name, found.claims)
            echo(*(document.sentence for document in OpenedRun(open_run(run)).certificates))
            echo(f"The counts are quoted from these certificates. `ccfs audit {shlex.quote(str(run))}` checks them.")
        if found.protocol is not None:
            echo(f"Protocol: {found.protocol}")
    exit_unless(all(claim.is_certified for claim in found.claims))


@zoo.command("list")
def zoo_list(as_json: JsonOption = False) -> None:
    """List the shipped agents."""
    import json

    from ccfs.controllers.zoo import load, names

    cards = [load(name).card for name in names()]
    if as_json:
        echo(json.dumps([json.loads(card.as_json()) for card in cards], sort_keys=True))
        return
    rows = [(card.name, card.environment, card.algorithm, f"{card.steps:,}") for card in cards]
    print_table("Shipped agents", ("name", "environment", "algorithm", "steps"), rows, left=3)
    echo('In a protocol: make = "zoo", arguments = { name = "..." }. `ccfs zoo show NAME` prints a card.')


@zoo.command("show")
def zoo_show(
    name: Annotated[str, typer.Argument(help="Name of a shipped agent, or the folder of one.")],
    as_json: JsonOption = False,
) -> None:
    """Print the card of an agent, after its weights were compared with it."""
    import json

    from ccfs.controllers.zoo import load

    card = load(name).card
    text = card.as_json().rstrip()
    if as_json:
        echo(*text.split("\n"))
        return
    echo(f"{card.name}: {card.algorithm} on {card.environment}, seed {card.seed}, {card.steps:,} steps")
    for key, value in card.curve.items():
        listed = value if isinstance(value, list) else []
        rows = [row for row in listed if isinstance(row, dict)]
        if rows and rows == listed:
            heads = list(rows[0])
            cells = [[json.dumps(row.get(head)) for head in heads] for row in rows]
            print_table(key.replace("_", " "), heads, cells, left=0)
        else:
            echo(f"{key.replace('_', ' ')}: {json.dumps(value)}")
    first, last = card.training_reset_seeds
    echo(f"Training may have used the reset seeds {first} to {last}. Name them in `used_before`.")
    echo(f"Digest: {card.digest}", f"Trained by: {card.command}")


@app.command(rich_help_panel=_LOOK)
def doctor(
    cluster: Annotated[str | None, typer.Option(help="Address of a Dask scheduler to try.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what takes seconds: fast path, renderer.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what is installed, what works here, and what to type to mend the rest.

    Exit code 1: something that is installed does not work.
    """
    from ccfs.study.doctor import diagnosis

    found = diagnosis(cluster=cluster, is_quick=quick)
    if as_json:
        echo(found.to_bytes().decode().rstrip())
    else:
        rows = [(check.name, check.state, check.detail) for check in found.checks]
        title = f"CCFS {found.version}, Python {found.python}, {found.platform}"
        print_table(title, ("what", "state", "found"), rows, left=3)
        for check in found.checks:
            echo(*(f"{check.name}: {command}" for command in check.mend))
    exit_unless(found.is_sound)


@app.command(rich_help_panel=_LOOK)
def cite(
    run: Annotated[Path | None, typer.Argument(help="Folder of a run to cite too.")] = None,
) -> None:
    """Print BibTeX of the paper, of this software and, with RUN, of a run by its protocol hash."""
    from ccfs.study.cite import bibtex

    echo(*bibtex(None if run is None else open_run(run).protocol()).rstrip().split("\n"))
