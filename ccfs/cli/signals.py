"""Let Ctrl-C and SIGTERM end a command cleanly."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

__all__ = ["INTERRUPTED", "TERMINATED", "TerminatedError", "die_silently", "stop_code", "stoppable"]

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C and after SIGTERM, as shells report them."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, as `kill`, a batch system or a container sends it. It is handled wherever Ctrl-C is."""


def stop_code(error: KeyboardInterrupt) -> int:
    """Return the exit code of a command that was stopped."""
    return TERMINATED if isinstance(error, TerminatedError) else INTERRUPTED


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise KeyboardInterrupt at a Ctrl-C and at a SIGTERM. The second one ends the process at once.

    A shell that starts a command in the background lets it ignore SIGINT, so that one is set too. Only the main thread
    may set signals. In another one this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, _stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    # Whoever asks twice does not want to wait. A run survives that too.
    die_silently()
    raise TerminatedError if number == signal.SIGTERM else KeyboardInterrupt


def die_silently() -> None:
    """Let the next signal end the process without a traceback."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
