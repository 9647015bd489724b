"""The commands around a run: run, certify, verify, audit and demo; errors in one line, exit codes 0, 1 and 2."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ccfs.files.terminal import echo, echo_error, without_markup

if TYPE_CHECKING:
    from ccfs.protocol.model import Protocol
    from ccfs.results.certificate import RunCertificate
    from ccfs.runs.executors import Engine
    from ccfs.runs.run import Advance
    from ccfs.runs.store import Store

__all__ = ["app"]

app = typer.Typer()

OutputOption = Annotated[Path | None, typer.Option("--output", "-o", help="Run directory; default runs/NAME-HASH.")]
WorkersOption = Annotated[int | None, typer.Option("--workers", help="Local processes; default all cores.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines.")]
RunArgument = Annotated[Path, typer.Argument(help="Run directory.")]


@app.command()
def run(
    protocol: Annotated[Path, typer.Argument(help="Protocol file (TOML).")],
    output: OutputOption = None,
    workers: WorkersOption = None,
    cluster: Annotated[str | None, typer.Option(help="Address of a Dask scheduler, tcp://host:8786.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Quick look: only the first K trials.")] = None,
) -> None:
    """Run a protocol's trials and certify them; exit 1 if a claim is not certified.

    Interrupt at will: the same command resumes. Every key of a protocol file is explained in docs/protocol.md;
    `ccfs demo --protocol` prints one to start from.
    """
    from ccfs.protocol.model import load_protocol

    with _one_line_errors():
        made = load_protocol(protocol)
        if seeds is not None:
            made = made.first(seeds)
        if cluster is not None and workers is not None:
            raise ValueError("`--workers` and `--cluster` must not be given together.")
        store, is_certified = _run_and_certify(made, output, _engine(workers, cluster), str(protocol))
    place = shlex.quote(str(store.root))
    echo(f"Next: ccfs report {place}, ccfs audit {place}")
    if not is_certified:
        raise typer.Exit(1)


@app.command()
def demo(
    output: OutputOption = None,
    workers: WorkersOption = None,
    protocol: Annotated[bool, typer.Option("--protocol", help="Print the demo's protocol and run nothing.")] = False,
) -> None:
    """Certify a steered cart in half a minute; exit 1 if a claim is not certified.

    With --protocol, print the demo's protocol to start your own.
    """
    from ccfs.cli.demo import TEXT, demo_protocol
    from ccfs.report.page import write_report

    if protocol:
        typer.echo(TEXT, nl=False)
        return
    with _one_line_errors():
        store, is_certified = _run_and_certify(demo_protocol(), output, _engine(workers, None), "the demo's protocol")
        echo(f"Report: {write_report(store)}")
    if not is_certified:
        raise typer.Exit(1)


@app.command()
def certify(run: RunArgument) -> None:
    """Count a finished run's events and write its certificates; exit 1 if a claim is not certified."""
    from ccfs.results.certify import certify as certify_store
    from ccfs.runs.store import Store

    with _one_line_errors():
        store = Store(run)
        documents = certify_store(store)
        _print_certificates(store, documents)
    if not all(document.trajectory.is_certified for document in documents):
        raise typer.Exit(1)


@app.command()
def verify(
    certificate: Annotated[Path, typer.Argument(help="Certificate file (JSON).")],
    run: Annotated[Path | None, typer.Option(help="Run directory, to recount from its traces.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Recompute a certificate's numbers; exit 1 if one does not follow, 2 if the file is no certificate."""
    from ccfs.certificates.trajectory import CertificateError
    from ccfs.results.certificate import NotACertificateError
    from ccfs.results.verify import Verification, refuse_no_file
    from ccfs.results.verify import verify as verify_file
    from ccfs.runs.store import Store

    is_recounted = run is not None
    with _one_line_errors():
        refuse_no_file(certificate)
        try:
            document = verify_file(certificate, None if run is None else Store(run))
        except NotACertificateError as error:
            _fail(error, 2)
        except CertificateError as error:
            if as_json:
                refusal = Verification(
                    holds=False, is_recounted=is_recounted, reason=str(error), sentence=None, premises=()
                )
                echo(refusal.to_bytes().decode().rstrip())
            _fail(error, 1)
    if as_json:
        made = Verification(
            holds=True,
            is_recounted=is_recounted,
            reason=None,
            sentence=document.sentence,
            premises=document.premises,
        )
        echo(made.to_bytes().decode().rstrip())
        return
    echo(document.sentence)
    echo("Premises:")
    for premise in document.premises:
        echo(f"- {premise}")
    echo("Every number follows from the counts" + (", and the counts from the traces." if run else "."))


@app.command()
def audit(
    run: RunArgument,
    replay: Annotated[str, typer.Option(help="How many trajectories to replay: a number, or all.")] = "all",
    expect_protocol: Annotated[str | None, typer.Option(help="The protocol hash that the run must have.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Re-hash, rederive and replay a run; name every fault; exit 1 if there is one.

    Replaying runs the code that the run's protocol names: use --replay 0 on a stranger's run until you have read it.
    """
    from ccfs.audit.run import audit as audit_store
    from ccfs.audit.summary import fault_lines
    from ccfs.runs.store import Store

    if replay != "all" and not replay.isdigit():
        _fail(f"`--replay` must be a number or all, got {replay!r}.", 2)
    if not run.is_dir():
        _fail(f"{run}: must be a run directory, but there is none.", 2)
    with _one_line_errors():
        count = None if replay == "all" else int(replay)
        report = audit_store(Store(run), replay=count, expected=expect_protocol)
    if as_json:
        echo(report.to_bytes().decode().rstrip())
        raise typer.Exit(0 if report.is_clean else 1)
    if report.protocol:
        echo(f"Protocol: {report.protocol}")
    for note in report.notes:
        echo(f"note: {note}")
    for fault in fault_lines(report.faults):
        echo(f"FAULT {fault}", err=True)
    if not report.is_clean:
        _fail(f"{run}: {len(report.faults)} fault(s).", 1)
    echo(
        f"{run}: clean. {report.files} files, {report.trajectories} trajectories, "
        f"{report.replayed} replayed bit for bit."
    )


def _run_and_certify(protocol: Protocol, output: Path | None, engine: Engine, where: str) -> tuple[Store, bool]:
    """Run, certify and print; return the run and whether every claim is certified."""
    from ccfs.results.certify import certify as certify_store
    from ccfs.runs.preflight import preflight
    from ccfs.runs.run import run as run_protocol

    root = output or Path("runs") / f"{protocol.name}-{protocol.hash[:8]}"
    try:
        _refuse_impossible(protocol, where)
        preflight(protocol, where=where)
        with _progress(protocol, engine) as advance:
            store: Store = run_protocol(protocol, root, engine, where=where, advance=advance)
        documents = certify_store(store)
    except KeyboardInterrupt:
        _fail(f"Interrupted. Finished batches are kept in {root}; the same command resumes.", 130)
    finally:
        engine.close()
    _print_certificates(store, documents)
    echo(f"Results: {root}")
    return store, all(document.trajectory.is_certified for document in documents)


def _refuse_impossible(protocol: Protocol, where: str) -> None:
    """Refuse a claim that no outcome of the trials could certify; of a quick look only say it, on stderr."""
    from ccfs.runs.possible import shortfall

    claim, trials = protocol.claim, protocol.trials.count
    missing = shortfall(trials, delta=claim.delta, family=protocol.family, target=claim.target, bound=protocol.bound)
    if missing is None:
        return
    if protocol.quick_look_of is None:
        raise ValueError(f"{where}: `claim` must be one that its trials can certify, but {missing}.")
    echo(f"note: this quick look cannot certify its claim: {missing}.", err=True)


@contextmanager
def _progress(protocol: Protocol, engine: Engine) -> Iterator[Advance]:
    """Show a bar with rate and time left on a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    total = len(protocol.arms) * (1 + len(protocol.attacks)) * protocol.trials.count
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(without_markup(f"{protocol.name} on {engine.name}"), total=total, rate="")

        def advance(trials: int) -> None:
            speed = progress.tasks[0].speed
            progress.update(task, advance=trials, rate="" if speed is None else f"{speed:.1f} trials/s")

        yield advance


def _engine(workers: int | None, cluster: str | None) -> Engine:
    from ccfs.runs.executors import cluster_engine, process_engine, serial_engine

    if cluster is not None:
        return cluster_engine(cluster)
    count = workers if workers is not None else os.cpu_count() or 1
    return serial_engine() if count == 1 else process_engine(count)


def _print_certificates(store: Store, documents: list[RunCertificate]) -> None:
    from ccfs.certificates.rounding import lower_text
    from ccfs.report.counts import endings

    for document in documents:
        echo(document.sentence)
        proof = document.trajectory
        for attacked in document.attacks:
            seen = f"{attacked.successes} of {attacked.trials}"
            if attacked.budget is not None and attacked.trials:
                at = f"certified at least {lower_text(proof.lower_at(attacked.budget))} at budget {attacked.budget:g}"
            else:
                at = f"energy limit {attacked.energy_limit:g}"
            echo(f"  under {attacked.attack}: {seen} observed, {at}")
    for line in endings(store, store.protocol(), documents):
        echo(line)
    echo(f"Protocol: {documents[0].protocol}")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turn the errors that a user can mend into one line and exit code 2."""
    from ccfs.runs.store import RunError

    try:
        yield
    except typer.Exit:
        raise
    except (RunError, ValueError, RuntimeError) as error:
        _fail(error, 2)
    except SystemExit as error:
        _fail(f"code that the protocol names called for the end of the process: {error!r}.", 2)


def _fail(message: object, code: int) -> NoReturn:
    echo_error(message)
    raise typer.Exit(code)
