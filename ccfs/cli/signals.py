"""Let Ctrl-C and SIGTERM end a command cleanly."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

__all__ = ["INTERRUPTED", "TERMINATED", "TerminatedError", "deliver", "die_silently", "stop_code", "stoppable"]

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C and after SIGTERM, as shells report them."""
_Hook: TypeAlias = "Callable[[sys.UnraisableHookArgs], object]"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Windows has no alarm.
_ALARM = getattr(signal, "SIGALRM", None)
_IMPORTERS = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
_EVERY = 0.01
# An import may run a user's own code, which may take for ever.
_PATIENCE = 5.0


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, as `kill`, a batch system or a container sends it. It is handled wherever Ctrl-C is."""


class _Stop:
    """A signal that waits until it can be raised."""

    number: int | None = None
    until = 0.0
    outer = 0
    """Number of frames of imports around the command itself."""


_stop = _Stop()


def stop_code(error: KeyboardInterrupt) -> int:
    """Return the exit code of a command that was stopped."""
    return TERMINATED if isinstance(error, TerminatedError) else INTERRUPTED


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise KeyboardInterrupt at a Ctrl-C and at a SIGTERM. The second one ends the process at once.

    While a module is imported the exception waits, because libraries answer it there with errors of their own, or not
    at all. Where Python can only print it, as in a `__del__`, it is raised again a little later.

    A shell that starts a command in the background lets it ignore SIGINT, so that one is set too. Only the main thread
    may set signals. In another one this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    deliver()
    former = {number: signal.signal(number, _came) for number in _SIGNALS}
    if _ALARM is not None:
        former[_ALARM] = signal.getsignal(_ALARM)
    outer, _stop.outer = _stop.outer, _imports(sys._getframe())
    hook, sys.unraisablehook = sys.unraisablehook, _unraised(sys.unraisablehook)
    try:
        yield
        deliver()
    finally:
        _forget()
        sys.unraisablehook, _stop.outer = hook, outer
        for number, handler in former.items():
            # None: the handler was not set by Python, so Python cannot set it again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def deliver() -> None:
    """Raise a signal that waits."""
    number = _stop.number
    if number is not None:
        _forget()
        raise TerminatedError if number == signal.SIGTERM else KeyboardInterrupt


def die_silently() -> None:
    """Let the next signal end the process without a traceback."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _came(number: int, frame: FrameType | None) -> None:
    # Whoever asks twice does not want to wait. A run survives that too.
    die_silently()
    _stop.number = number
    if _ALARM is None or not _is_importing(frame):
        deliver()
    _wait(number)


def _wait(number: int) -> None:
    _stop.number, _stop.until = number, time.monotonic() + _PATIENCE
    if _ALARM is not None:
        signal.signal(_ALARM, _ring)
        # An alarm of the system also ends a wait of the main thread, which a thread of ours could not.
        signal.setitimer(signal.ITIMER_REAL, _EVERY, _EVERY)


def _ring(number: int, frame: FrameType | None) -> None:
    if time.monotonic() > _stop.until or not _is_importing(frame):
        deliver()


def _forget() -> None:
    # The handler of the alarm stays. One may be on its way, which would end the process.
    if _stop.number is not None and _ALARM is not None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    _stop.number = None


def _is_importing(frame: FrameType | None) -> bool:
    return _imports(frame) > _stop.outer


def _imports(frame: FrameType | None) -> int:
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename in _IMPORTERS
        frame = frame.f_back
    return count


def _unraised(former: _Hook) -> _Hook:
    """Return a hook that raises a stop again which Python could not pass on."""

    def hook(told: sys.UnraisableHookArgs) -> None:
        if isinstance(told.exc_value, KeyboardInterrupt):
            _wait(signal.SIGTERM if isinstance(told.exc_value, TerminatedError) else signal.SIGINT)
        else:
            former(told)

    return hook
