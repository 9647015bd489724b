"""What is printed on a terminal: escaped text, because a file could forge a line or hide words, and progress."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task

__all__ = ["echo", "echo_error", "error_text", "printable", "progress_display", "seconds_left", "without_markup"]

# Controls (C0, C1, escape, newline), formats (bidirectional overrides, zero width), surrogates, line and paragraph
# separators, private characters and code points that nobody has assigned.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def echo(*lines: object, err: bool = False) -> None:
    """Print lines, each escaped by `printable`, on stderr if `err`."""
    import typer

    for line in lines:
        typer.echo(printable(line), err=err)


def echo_error(error: object) -> None:
    """Print an error on stderr, as one line unless it has several `lines` of its own."""
    echo(*getattr(error, "lines", (error,)), err=True)


def error_text(error: BaseException) -> str:
    r"""Return the class and the message of an exception in one line, without the last full stop.

    >>> print(error_text(ValueError("no\nnumber.")))
    ValueError: no number
    """
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:  # an exception of somebody else's code that cannot be shown
        said = type(error).__name__
    return printable(" ".join(said.split()).removesuffix("."))


def printable(text: object) -> str:
    r"""Return a text as one line that shows every character. Hidden characters are written as escapes.

    Use it to print whatever was read from a file: a name, a message with a name in it, an error.

    >>> print(printable("steer\x1b[2K\rall certified"))
    steer\x1b[2K\x0dall certified
    >>> print(printable("safe \u202edetceles\u202c, 64 of 64"))
    safe \u202edetceles\u202c, 64 of 64
    """
    line = str(text)
    # What Python calls printable has none of the hidden kinds, and figures of a page are long.
    return line if line.isprintable() else "".join(_shown(character) for character in line)


def without_markup(text: object) -> str:
    r"""Return a text for a place where rich reads markup. Rich prints its brackets as they are.

    >>> print(without_markup("[red]certified[/red]"))
    \[red]certified\[/red]
    """
    from rich.markup import escape

    return escape(printable(text))


def progress_display(console: Console) -> Progress:
    """Return a display of bars with a name, a count, a note and the time left. It is silent without a terminal.

    Every task needs the field `note`, which may be empty. The field `found` says how much was done before it began.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        """The time left at the average rate so far. It is known from the first advance on.

        rich's own column looks at the last half minute only, so it knows nothing while a batch takes longer.
        """

        def __init__(self) -> None:
            super().__init__()
            self._last: dict[int, tuple[float, float]] = {}

        def render(self, task: Task) -> Text:
            """Return the time left as text."""
            now = task.elapsed or 0.0
            done, at = self._last.get(task.id, (-1.0, 0.0))
            if done != task.completed:
                done, at = self._last[task.id] = (task.completed, now)
            left = seconds_left(task.completed, task.total or 0.0, task.fields.get("found", 0), at)
            return Text("-:--:--" if left is None else _clock(max(left - (now - at), 0.0)), style="progress.remaining")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    return Progress(*columns, TimeLeft(), console=console, disable=not console.is_terminal)


def seconds_left(completed: float, total: float, found: float, seconds: float) -> float | None:
    """Return how long the rest takes at the average rate of what was done in `seconds`. None before the first advance.

    What was `found` finished at the start took no time, so it tells nothing about the rate.

    >>> seconds_left(80, 192, 0, 40.0)
    56.0
    >>> seconds_left(80, 192, 80, 40.0)
    """
    done = completed - found
    return seconds * (total - completed) / done if done > 0 else None


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
