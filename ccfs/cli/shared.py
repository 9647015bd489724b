"""What the commands share: errors and exit codes, progress, workers, and options that occur more than once."""

from __future__ import annotations

import math
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from ccfs.cli.signals import stop_code
from ccfs.files.terminal import echo, echo_error, error_text, printable, progress_display, without_markup

if TYPE_CHECKING:
    from rich.progress import Progress

    from ccfs.images.folder import Asked
    from ccfs.results.claims import ClaimLine
    from ccfs.runs.executors import Engine
    from ccfs.runs.store import Store

__all__ = [
    "BAD_INPUT",
    "DOES_NOT_HOLD",
    "NOT_CHECKED",
    "Bar",
    "CaOption",
    "CertOption",
    "ClusterOption",
    "JsonOption",
    "KeyOption",
    "ModulesOption",
    "OutputOption",
    "RunArgument",
    "TimeoutOption",
    "TrustOption",
    "WorkersOption",
    "cluster_or",
    "engine_for",
    "exit_unless",
    "fail",
    "find_modules",
    "interruptible",
    "list_image_parts",
    "numbers",
    "open_run",
    "print_claims",
    "print_table",
    "progress_bar",
    "readable_errors",
]

DOES_NOT_HOLD, BAD_INPUT, NOT_CHECKED = 1, 2, 3
"""Exit codes. A command that did its work ends with 0. `ccfs/cli/signals.py` has those of a stopped one."""

RunArgument = Annotated[Path, typer.Argument(help="Folder of a run, as `ccfs run` wrote it.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder of the run. Default: runs/NAME-HASH.")
]
WorkersOption = Annotated[int | None, typer.Option("--workers", help="Number of local processes. Default: all cores.")]
ModulesOption = Annotated[
    Path | None,
    typer.Option("--modules", help="Folder of your own modules that the run names, such as that of its protocol file."),
]
TrustOption = Annotated[
    bool,
    typer.Option("--trust", help="Run the code that the run names, in a confined process. Read that code first."),
]
ClusterOption = Annotated[
    str | None, typer.Option(help="Address of a Dask scheduler, such as tcp://host:8786 (docs/cluster.md).")
]
TimeoutOption = Annotated[
    float | None, typer.Option("--cluster-timeout", help="Seconds to wait for a worker of the cluster. Default: 60.")
]
CaOption = Annotated[Path | None, typer.Option("--tls-ca", help="Authority that signed the cluster's certificates.")]
CertOption = Annotated[Path | None, typer.Option("--tls-cert", help="Your certificate for a tls:// cluster.")]
KeyOption = Annotated[Path | None, typer.Option("--tls-key", help="Private key of --tls-cert.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines.")]


def fail(message: object, code: int) -> NoReturn:
    """Print a message on stderr and end the command with an exit code."""
    echo_error(message)
    raise typer.Exit(code)


def exit_unless(holds: bool) -> None:
    """End the command with exit code 1 unless what it checked holds."""
    if not holds:
        raise typer.Exit(DOES_NOT_HOLD)


@contextmanager
def readable_errors() -> Iterator[None]:
    """Show an error that a user can mend as a message without a traceback, and end with exit code 2.

    Of any kind is what code of the user's own raises. Other errors pass through: they are bugs of ours, and their
    traceback is needed to find them.
    """
    try:
        yield
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise  # typer ends all three. The last one says that nobody reads the output any more, as with `| head`.
    except KeyboardInterrupt as error:
        fail("Interrupted.", stop_code(error))
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            raise  # rich ends the process in this way
        # Whatever code it carries, the command did not finish its work.
        fail(f"Code that this command ran tried to end the process: {error!r}. Remove that call.", BAD_INPUT)
    except MemoryError:
        fail("There is not enough memory for what was asked. Nothing was changed.", BAD_INPUT)
    except Exception as error:
        if isinstance(error, _mendable()):
            fail(_sentence(error), BAD_INPUT)
        place = _place_in_own_code(error)
        if place is None:
            raise
        fail(f"{place}: raised {error_text(error)}. This is code of your own: mend it.", BAD_INPUT)


def _place_in_own_code(error: BaseException) -> str | None:
    """Return the file and line of the user's own code that raised, or None if it was ours."""
    libraries = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        path = frame.f_code.co_filename
        if frame.f_globals.get("__name__", "").partition(".")[0] == "ccfs":
            return None
        if os.path.isfile(path) and not path.startswith(libraries):
            return f"{path}, line {line}"
    return None


def _sentence(error: Exception) -> object:
    """Return an error as it is, or what the system says about a file as a sentence."""
    if type(error).__module__ in ("_csv", "zipfile", "zipfile._path"):
        return f"A file that was named cannot be read as what its name says: {error}."
    if type(error).__module__ != "builtins" or not isinstance(error, OSError) or not error.strerror:
        return error
    return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."


def _mendable() -> tuple[type[Exception], ...]:
    # Imported after the fact: a command that succeeds does not pay for them.
    import csv
    import zipfile

    from pyarrow import ArrowException

    from ccfs.files.lock import LockedError
    from ccfs.images.counts import RecordError
    from ccfs.images.data import DataError

    standard = (ValueError, TypeError, RuntimeError, OSError, ImportError, ArithmeticError)
    return (*standard, ArrowException, LockedError, DataError, RecordError, zipfile.BadZipFile, csv.Error)


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Answer Ctrl-C and SIGTERM with what is kept and how to go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        fail(f"Interrupted. {advice}", stop_code(error))


class Bar:
    """Moves a bar on. Call it with what was just done, or `found` with what an earlier call had done."""

    def __init__(self, display: Progress, name: str, total: int, unit: str) -> None:
        self._display, self._unit = display, unit
        self._task = display.add_task(without_markup(name), total=total, note="", found=0)
        self._found = 0

    def __call__(self, done: int) -> None:
        """Move the bar on by work that was just done."""
        self._display.update(self._task, advance=done)
        task = self._display.tasks[0]
        seconds, made = task.elapsed or 0.0, task.completed - self._found
        if seconds > 0.0:
            self._display.update(self._task, note=f"{made / seconds:.1f} {self._unit}/s")

    def extend(self, more: int) -> None:
        """Make the bar longer, if more work turned up."""
        self._display.update(self._task, total=(self._display.tasks[0].total or 0) + more)

    def found(self, done: int) -> None:
        """Move the bar on by work that was done before. It does not count for the rate."""
        self._found += done
        self._display.update(self._task, advance=done, found=self._found)


@contextmanager
def progress_bar(name: str, total: int, unit: str) -> Iterator[Bar]:
    """Show a bar with rate and time left on stderr if that is a terminal. Gives what moves it on."""
    from rich.console import Console

    with progress_display(Console(stderr=True)) as display:
        yield Bar(display, name, total, unit)


def engine_for(workers: int | None) -> Engine:
    """Return the engine for the option `--workers`."""
    from ccfs.runs.executors import process_engine, serial_engine

    count = workers if workers is not None else os.cpu_count() or 1
    return serial_engine() if count == 1 else process_engine(count)


def cluster_or(
    workers: int | None,
    cluster: str | None,
    timeout: float | None,
    tls: tuple[Path | None, Path | None, Path | None],
) -> Engine:
    """Return the engine for the options `--workers`, `--cluster`, `--cluster-timeout` and `--tls-...`."""
    if cluster is None:
        if timeout is not None or any(tls):
            raise ValueError("`--cluster-timeout` and `--tls-...` must be given with `--cluster` only.")
        return engine_for(workers)
    if workers is not None:
        raise ValueError("`--workers` and `--cluster` must not be given together. Leave one out.")
    from ccfs.runs.cluster import PATIENCE, Tls, cluster_engine

    ca, cert, key = tls
    files = None if ca is None or cert is None or key is None else Tls(ca=ca, cert=cert, key=key)
    if files is None and any(tls):
        raise ValueError("`--tls-ca`, `--tls-cert` and `--tls-key` must be given together.")
    say = partial(echo, err=True)
    return cluster_engine(cluster, tls=files, patience=PATIENCE if timeout is None else timeout, say=say)


def find_modules(folder: Path | None) -> None:
    """Let this process find the modules in a folder that the user named. Refuse a path that is no folder."""
    from ccfs.files.imports import add_modules

    if folder is not None:
        if not folder.is_dir():
            raise ValueError(f"`--modules` must be a folder, got {folder}.")
        add_modules(folder)


def open_run(folder: Path, modules: Path | None = None, *, trust: bool = False) -> Store:
    """Return the run in a folder. Refuse a path that is no folder.

    Modules are looked for in the folder `modules` too. Never in the run itself, which may be a stranger's. With
    `trust`, code that the run names may run in a confined process. It is listed on stderr first.
    """
    from ccfs.runs.store import Store, Trust

    find_modules(modules)
    if not folder.is_dir():
        raise ValueError(
            f"{folder}: must be a run directory, but there is none. Give the folder that `ccfs run` wrote."
        )
    if not trust:
        return Store(folder)
    from ccfs.runs.trust import foreign_parts

    store = Store(folder, trust=Trust.CONFINED)
    for part in foreign_parts(store.protocol()):
        echo(f"runs {part}", err=True)
    return store


def list_image_parts(run: Path | Asked | None) -> None:
    """List on stderr what an image run names outside of the package, with the digest of each. Nothing is run."""
    from ccfs.images.folder import read_run

    try:
        asked = read_run(run).asked if isinstance(run, Path) else run
    except (RuntimeError, ValueError):
        return  # the command itself says what is wrong
    for part in () if asked is None else asked.foreign:
        key = part.partition(":")[0]
        echo(f"loads {part}, {_part_digest(asked, key)}", err=True)


def _part_digest(asked: Asked | None, key: str) -> str:
    from ccfs.files.digests import canonical_json, file_digest, text_digest

    if asked is None or key in ("dataset", "data"):
        return "which are images"
    files = asked.files()
    try:
        digest = file_digest(files[key]) if key in files else text_digest(canonical_json(asked.code()))
    except (OSError, ValueError) as error:
        return f"which cannot be read here: {error}"
    return f"digest {digest[:16]}"


def numbers(option: str, text: str, *, may_be_negative: bool = False) -> tuple[float, ...]:
    """Return finite numbers, of at least 0 unless told otherwise, that are written with commas."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"`{option}` must be numbers with commas, such as 0,1,5, got {text!r}.") from None
    if not all(math.isfinite(number) and (may_be_negative or number >= 0.0) for number in found):
        what = "finite" if may_be_negative else "finite and at least 0"
        raise ValueError(f"`{option}` must be {what}, got {text!r}.")
    return found


def print_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Print a table of texts. The first `left` columns are set to the left, the others to the right."""
    from rich.box import HEAVY_HEAD, SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, lines = Console(), 3 * len(heads) + 1
    room = console.width if console.is_terminal else sys.maxsize
    is_tight = sum(widths := _widths(heads, rows, left, room - lines)) + lines > room
    if is_tight:
        widths, lines = _widths(heads, rows, left, room - len(heads)), len(heads)
    printed = Table(
        box=SIMPLE_HEAD if is_tight else HEAVY_HEAD, show_edge=not is_tight, padding=(0, 0 if is_tight else 1)
    )
    for i, (head, width) in enumerate(zip(heads, widths, strict=True)):
        justify: Literal["left", "right"] = "left" if i < left else "right"
        printed.add_column(Text(_broken(head, width)), justify=justify, width=width, overflow="fold")
    for row in rows:
        texts = (_broken(cell, widths[i]) if i < left else printable(cell) for i, cell in enumerate(row))
        printed.add_row(*map(Text, texts))
    echo(title)  # not as rich's title, which is wrapped to the width of the table
    console.width = sum(widths) + lines
    console.print(printed)


def _widths(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int, room: int) -> list[int]:
    """Return the widths of columns. If there is no room, heads and texts are broken as `_broken` does it.

    Nothing else is broken, because a number that is cut would be another number.
    """
    from rich.cells import cell_len

    def widest(texts: Iterable[str]) -> int:
        return max(map(cell_len, texts), default=0)

    columns = [[printable(row[i]) for row in rows] for i in range(len(heads))]
    widths = [widest([head, *column]) for head, column in zip(heads, columns, strict=True)]
    words = [[word for cell in column for word in _words(cell)] for column in columns]
    least = [widest([*_words(head), *(words[i] if i < left else columns[i])]) for i, head in enumerate(heads)]
    while sum(widths) > room and widths != least:
        loosest = max(range(len(heads)), key=lambda i: widths[i] if widths[i] > least[i] else 0)
        widths[loosest] -= 1
    return widths


def _words(text: str) -> list[str]:
    """Return the words of a text. In schedules.one or C1/one, a dot or a slash ends a word."""
    return [word.strip() for word in _split(text)]


def _split(text: str) -> list[str]:
    """Return the words of a text with the space before each."""
    return re.split(r"(?=\s)|(?<=[./])(?=[A-Za-z])", text)


def _broken(text: str, width: int) -> str:
    """Return a text on lines of at most `width`, if no word of it is wider."""
    from rich.cells import cell_len

    line = printable(text)
    if cell_len(line) <= width:
        return line
    lines = [""]
    for word in _split(line.strip()):
        if lines[-1] and cell_len(lines[-1] + word) > width:
            lines.append(word.strip())
        else:
            lines[-1] += word
    return "\n".join(lines)


def print_claims(title: str, claims: Sequence[ClaimLine]) -> None:
    """Print a table of certificates."""
    from ccfs.results.claims import claim_cells

    print_table(title, *claim_cells(claims), left=2)
