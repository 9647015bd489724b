"""The commands around a run: run, demo, certify, verify and audit."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfs.cli.shared import (
    BAD_INPUT,
    DOES_NOT_HOLD,
    NOT_CHECKED,
    CaOption,
    CertOption,
    ClusterOption,
    JsonOption,
    KeyOption,
    ModulesOption,
    OutputOption,
    RunArgument,
    TimeoutOption,
    TrustOption,
    WorkersOption,
    cluster_or,
    engine_for,
    exit_unless,
    fail,
    find_modules,
    interruptible,
    list_image_parts,
    open_run,
    print_claims,
    progress_bar,
)
from ccfs.files.terminal import echo

if TYPE_CHECKING:
    from ccfs.protocol.model import Protocol
    from ccfs.results.certificate import RunCertificate
    from ccfs.results.verify import SignatureCheck, Verification
    from ccfs.runs.executors import Engine
    from ccfs.runs.store import Store

__all__ = ["app", "run_and_certify"]

_PANEL = "Run and check"
app = typer.Typer()


@app.command(rich_help_panel=_PANEL)
def run(
    protocol: Annotated[Path, typer.Argument(help="Protocol file (TOML).")],
    output: OutputOption = None,
    workers: WorkersOption = None,
    cluster: ClusterOption = None,
    cluster_timeout: TimeoutOption = None,
    tls_ca: CaOption = None,
    tls_cert: CertOption = None,
    tls_key: KeyOption = None,
    seeds: Annotated[int | None, typer.Option(help="Quick look: run only the first K reset seeds of each arm.")] = None,
    modules: ModulesOption = None,
    registration: Annotated[
        Path | None,
        typer.Option(
            help="The record that `ccfs register` wrote of this protocol. The run takes it in at its beginning."
        ),
    ] = None,
) -> None:
    """Run the trials of a protocol and certify them.

    Modules of your own are found in --modules, which is the folder of the protocol file if you do not give it. You may
    interrupt a run at any time. The same command resumes it. docs/protocol.md explains every key of a protocol
    file, and `ccfs demo --protocol` prints one to start from. Exit code 1: a claim is not certified.
    """
    from ccfs.files.reading import limits, read_bytes
    from ccfs.protocol.model import load_protocol
    from ccfs.runs.build import foreign_targets
    from ccfs.runs.trust import foreign_parts

    made = load_protocol(protocol)
    if seeds is not None:
        made = made.first(seeds)
    folder = protocol.resolve().parent if modules is None else modules
    find_modules(folder)
    _refuse_hidden_modules(made, folder)
    record = None if registration is None else read_bytes(registration, most=limits().document)
    engine = cluster_or(workers, cluster, cluster_timeout, (tls_ca, tls_cert, tls_key))
    store, is_certified = run_and_certify(made, output, engine, str(protocol), folder, record)
    place = shlex.quote(str(store.root))
    where = f" --modules {shlex.quote(str(modules or protocol.parent))}" if foreign_targets(made) else ""
    where += " --trust" if foreign_parts(made) else ""
    echo(f"Next: ccfs show {place}, ccfs report {place}, ccfs audit {place}{where}")
    exit_unless(is_certified)


@app.command(rich_help_panel=_PANEL)
def demo(
    output: OutputOption = None,
    workers: WorkersOption = None,
    protocol: Annotated[bool, typer.Option("--protocol", help="Print the demo's protocol and run nothing.")] = False,
) -> None:
    """Certify a steered cart in half a minute.

    With --protocol, print the demo's protocol to start your own. Exit code 1: a claim is not certified.
    """
    from ccfs.cli.demo import TEXT, demo_protocol
    from ccfs.report.page import write_report

    if protocol:
        typer.echo(TEXT, nl=False)
        return
    store, is_certified = run_and_certify(demo_protocol(), output, engine_for(workers), "the demo's protocol")
    echo(f"Report: {write_report(store)}")
    exit_unless(is_certified)


@app.command(rich_help_panel=_PANEL)
def certify(
    run: RunArgument, modules: ModulesOption = None, trust: TrustOption = False, as_json: JsonOption = False
) -> None:
    """Count the events of a finished run and write its certificates.

    `ccfs run` does this at its end. An event of your own is code that the run names, and needs --trust here. Exit code
    1: a claim is not certified.
    """
    from ccfs.results.certify import certify as certify_store

    store = open_run(run, modules, trust=trust)
    documents = certify_store(store)
    if as_json:
        from ccfs.study.opened import summary

        echo(summary(run).to_bytes().decode().rstrip())
    else:
        _print_certificates(store, documents)
    exit_unless(all(document.trajectory.is_certified for document in documents))


@app.command(rich_help_panel=_PANEL)
def verify(
    certificate: Annotated[Path, typer.Argument(help="Certificate file (JSON).")],
    run: Annotated[
        Path | None, typer.Option(help="Folder of the run. With it, the counts are counted again from the traces.")
    ] = None,
    signer: Annotated[
        Path | None,
        typer.Option(help="Who must have signed the run: a public key, or a file like OpenSSH's allowed_signers."),
    ] = None,
    modules: ModulesOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Recompute the numbers of a certificate, and say what was only quoted from the file.

    With --signer, the run must be signed by a key in that file: a public key, or OpenSSH's allowed_signers. Exit code
    1: a number does not follow, or the signature does not fit. Exit code 2: the file is no certificate.
    """
    from ccfs.certificates.trajectory import CertificateError
    from ccfs.files.signing import SignatureError
    from ccfs.images.certificate import is_image_certificate
    from ccfs.images.counts import RecordError
    from ccfs.results.certificate import NotACertificateError
    from ccfs.results.families import is_family_certificate
    from ccfs.results.verify import refuse_no_file, refused

    refuse_no_file(certificate)
    try:
        signature = _checked_signature(certificate, run, signer)
        if is_image_certificate(certificate):
            made, conclusion = _verified_images(certificate, run, signature)
        elif is_family_certificate(certificate):
            opened = None if run is None else open_run(run, modules, trust=trust)
            made, conclusion = _verified_family(certificate, opened, signature)
        else:
            made, conclusion = _verified(
                certificate, None if run is None else open_run(run, modules, trust=trust), signature
            )
    except NotACertificateError as error:
        fail(error, BAD_INPUT)
    except (CertificateError, RecordError, SignatureError) as error:
        if as_json:
            echo(refused(error, is_recounted=run is not None).to_bytes().decode().rstrip())
        fail(error, DOES_NOT_HOLD)
    if as_json:
        echo(made.to_bytes().decode().rstrip())
        return
    echo(f"The certificate says: {made.sentence}")
    checked = () if made.signature is None else (made.signature.sentence,)
    for title, lines in (
        ("Recomputed here:", (*checked, *made.recomputed)),
        ("Only quoted, and written by whoever wrote the file:", made.quoted),
        ("Premises:", made.premises),
    ):
        echo(title, *(f"- {line}" for line in lines))
    echo(conclusion)


def _checked_signature(certificate: Path, run: Path | None, signer: Path | None) -> SignatureCheck | None:
    from ccfs.files.signing import read_signers
    from ccfs.results.verify import signature_check

    if signer is None:
        return None
    if run is None:
        raise ValueError("`--signer` needs `--run RUN`, because a signature is over the manifest of a run.")
    return signature_check(certificate, open_run(run), read_signers(signer))


def _verified(certificate: Path, store: Store | None, signature: SignatureCheck | None) -> tuple[Verification, str]:
    """Recompute a certificate, and return the verdict and its last sentence."""
    from ccfs.protocol.registry import IN_MEMORY
    from ccfs.results.verify import verification
    from ccfs.results.verify import verify as verify_file

    document = verify_file(certificate, store)
    made = verification(document, is_recounted=store is not None, signature=signature)
    counted = "stored verdicts of an event in memory" if document.definition.event == IN_MEMORY else "traces"
    counted = counted if document.root is None else "stored verdicts: this run keeps no traces"
    return made, "Every number follows from the counts" + (f", and the counts from the {counted}." if store else ".")


def _verified_family(
    certificate: Path, store: Store | None, signature: SignatureCheck | None
) -> tuple[Verification, str]:
    """Compute the certificate of a named disturbance again, and return the verdict and its last sentence."""
    from ccfs.results.families import family_verification, verify_family

    document = verify_family(certificate, store)
    made = family_verification(document, is_recounted=store is not None, signature=signature)
    return made, "Every number follows from the weights" + (", and the weights from the traces." if store else ".")


def _verified_images(certificate: Path, run: Path | None, signature: SignatureCheck | None) -> tuple[Verification, str]:
    """Recompute every radius of an image certificate, and return the verdict and its last sentence."""
    from ccfs.images.certificate import verify_image
    from ccfs.results.verify import Verification

    document = verify_image(certificate, run)
    made_by = "that the counts are those of the network, the images and the noise with these digests."
    made = Verification(
        holds=True,
        is_recounted=run is not None,
        reason=None,
        sentence=document.sentence,
        recomputed=(f"{len(document.claims)} labels and radii, from the counts in the file.",),
        quoted=(made_by,) if run is not None else (made_by, "that the run has these counts. Use --run."),
        premises=document.premises,
        signature=signature,
    )
    return made, "Every radius follows from the counts" + (", and the counts are those of the run." if run else ".")


@app.command(rich_help_panel=_PANEL)
def audit(
    run: RunArgument,
    replay: Annotated[
        str | None,
        typer.Option(
            help="How many trials or images to replay, drawn at random: a number, or all. Default: all trials (300 if "
            "the run keeps no traces), or one image."
        ),
    ] = None,
    seed: Annotated[
        str | None, typer.Option(help="Your own seed of the draw. Default: fresh random numbers, which are printed.")
    ] = None,
    expect_protocol: Annotated[str | None, typer.Option(help="The protocol hash that the run must have.")] = None,
    modules: ModulesOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check a run without trusting it, and name every fault.

    Every file is hashed, every number is derived and trials are replayed. Code that the run names does not run without
    --trust. The audit lists that code and says what it could not check. Exit code 1: there is a fault. Exit code 3:
    there is none, but something that was asked for was not checked.
    """
    from ccfs.audit.run import audit as audit_store
    from ccfs.audit.run import fault_lines
    from ccfs.certificates.rounding import upper_text

    if replay not in (None, "all") and not replay.isdigit():
        raise ValueError(f"`--replay` must be a number or all, got {replay!r}.")
    is_image = (run / "run.json").is_file()
    count = int(replay) if replay not in (None, "all") else None
    if is_image:
        from ccfs.images.audit import audit_images

        if trust:
            list_image_parts(run)
        number = 1 if replay is None else count
        report = audit_images(run, replay=number, trust=trust, expected=expect_protocol, seed=seed)
    else:
        store = open_run(run, modules, trust=trust)
        number = _usual_replay(store) if replay is None else count
        report = audit_store(store, replay=number, expected=expect_protocol, seed=seed)
    if as_json:
        echo(report.to_bytes().decode().rstrip())
        exit_unless(report.is_clean)
        if report.unchecked:
            raise typer.Exit(NOT_CHECKED)
        return
    if report.protocol:
        echo(f"Protocol: {report.protocol}")
    for note in report.notes:
        echo(f"note: {note}")
    for fault in fault_lines(report.faults):
        echo(f"FAULT {fault}", err=True)
    for what in report.unchecked:
        echo(f"NOT CHECKED: {what}")
    if not report.is_clean:
        fail(f"{run}: {len(report.faults)} fault(s).", DOES_NOT_HOLD)
    if report.unchecked and report.would_run and not trust:
        echo(*(f"would run {part}" for part in report.would_run))
        echo("Read that code, then use --trust.")
    verdict = "no fault in what was checked" if report.unchecked else "clean"
    echo(
        f"{run}: {verdict}. {report.files} files, {report.trajectories} {'images' if is_image else 'trajectories'}, "
        f"{report.replayed} replayed bit for bit."
    )
    if report.seed is not None:
        shares = " and ".join(
            f"{part.forged} or more forged ones ({upper_text(100 * part.forged / report.trajectories, 2)}%) with "
            f"probability {part.probability:g}"
            for part in report.exposure
        )
        echo(f"Drawn by the seed {report.seed}. Such a draw exposes {shares}.")
    if report.unchecked:
        raise typer.Exit(NOT_CHECKED)


def _usual_replay(store: Store) -> int | None:
    """Return how many trials an audit replays if nobody says: all, or some of a run that is too long for that."""
    from ccfs.runs.store import RunError

    try:
        return None if store.protocol().keeps_traces else 300
    except (RunError, ValueError):
        return None  # the audit says what is wrong


def run_and_certify(
    protocol: Protocol,
    output: Path | None,
    engine: Engine,
    where: str,
    modules: Path | None = None,
    registration: bytes | None = None,
) -> tuple[Store, bool]:
    """Run, certify and print. Return the run and whether every claim is certified."""
    from ccfs.results.certify import certify as certify_store
    from ccfs.runs.preflight import preflight
    from ccfs.runs.provenance import own_event_digests
    from ccfs.runs.run import run as run_protocol

    root = output or Path("runs") / f"{protocol.name}-{protocol.hash[:8]}"
    total = len(protocol.arms) * (1 + len(protocol.attacks)) * protocol.trials.count
    try:
        with interruptible(f"Finished batches are kept in {root}. The same command resumes."):
            _refuse_impossible(protocol, where)
            preflight(protocol, where=where)
            if not root.exists():  # before the first trial, a protocol can still be changed
                for place, spec, digest in own_event_digests(protocol):
                    if spec.digest is None and digest is not None:
                        echo(
                            f'note: `{place}` is code of your own. The hash covers it with: digest = "{digest}"',
                            err=True,
                        )
            with progress_bar(f"{protocol.name} on {engine.name}", total, "trials") as bar:
                store = run_protocol(
                    protocol,
                    root,
                    engine,
                    where=where,
                    advance=bar,
                    found=bar.found,
                    modules=modules,
                    registration=registration,
                )
            documents = certify_store(store)
    finally:
        engine.close()
    _print_certificates(store, documents)
    echo(f"Results: {root}")
    return store, all(document.trajectory.is_certified for document in documents)


def _refuse_hidden_modules(protocol: Protocol, folder: Path) -> None:
    """Refuse a protocol whose module in the folder is not the one that Python would import."""
    from ccfs.files.imports import hidden_modules
    from ccfs.runs.build import foreign_targets

    for path, found in hidden_modules(foreign_targets(protocol), folder):
        raise ValueError(
            f"{path}: Python finds another module of this name, {found or 'which has no file'}. Rename yours, or name "
            "the folder of the right one with --modules."
        )


def _refuse_impossible(protocol: Protocol, where: str) -> None:
    """Refuse a claim that no outcome of the trials could certify. For a quick look, only say so on stderr."""
    from ccfs.runs.counting import impossible

    missing = impossible(protocol)
    if missing is None:
        return
    if protocol.quick_look_of is None:
        raise ValueError(f"{where}: `claim` must be one that its trials can certify, but {missing}.")
    echo(f"note: this quick look cannot certify its claim: {missing}.", err=True)


def _print_certificates(store: Store, documents: list[RunCertificate]) -> None:
    """Print the claims as a table, then what decided trials. `ccfs show` prints each claim as a sentence."""
    from ccfs.results.claims import claim_lines
    from ccfs.results.derive import endings
    from ccfs.results.families import stored_families

    protocol = store.protocol()
    look = "" if protocol.quick_look_of is None else ", QUICK LOOK: no claim about the whole protocol"
    claim = f"all {documents[0].family} claims together fail with probability at most {protocol.claim.delta:g}"
    print_claims(f"{protocol.name}: {claim}{look}", claim_lines(documents))
    for family in stored_families(store, protocol):
        echo(family.sentence, f"  {family.comparison}")
    echo(*endings(store, protocol, documents))
    echo(f"Protocol: {documents[0].protocol}", documents[0].registered)
