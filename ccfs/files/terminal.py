"""What is printed on a terminal: escaped text, because a file could forge a line or hide words, and progress."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

__all__ = ["echo", "echo_error", "printable", "progress_display", "without_markup"]

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


def printable(text: object) -> str:
    r"""Return a text as one line that shows every character. Hidden characters are written as escapes.

    Use it to print whatever was read from a file: a name, a message with a name in it, an error.

    >>> print(printable("steer\x1b[2K\rall certified"))
    steer\x1b[2K\x0dall certified
    >>> print(printable("safe \u202edetceles\u202c, 64 of 64"))
    safe \u202edetceles\u202c, 64 of 64
    """
    return "".join(_shown(character) for character in str(text))


def without_markup(text: object) -> str:
    r"""Return a text for a place where rich reads markup. Rich prints its brackets as they are.

    >>> print(without_markup("[red]certified[/red]"))
    \[red]certified\[/red]
    """
    from rich.markup import escape

    return escape(printable(text))


def progress_display(console: Console) -> Progress:
    """Return a display of bars with a name, a count, a note and the time left. It is silent without a terminal.

    Every task needs the field `note`, which may be empty.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    return Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
