"""Start the command `ccfs`. Ctrl-C and SIGTERM end it cleanly, from the first import to the last line."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line."""
    # No traceback while Python imports what handles signals.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ccfs.cli.signals import deliver, die_silently, stop_code, stoppable

    try:
        with stoppable():
            _name_glfw()
            from ccfs.cli.main import app

            deliver()
            app(prog_name="ccfs")
        code: object = 0
    except KeyboardInterrupt as error:  # before a command began
        sys.stderr.write("Interrupted.\n")
        code = stop_code(error)
    except SystemExit as error:
        code = error.code
    finally:
        die_silently()  # Python is about to end, and would show where it was
    sys.exit(code)  # type: ignore[arg-type]


def _name_glfw() -> None:
    """Say which file of glfw to load. Otherwise glfw, which MuJoCo imports, asks a helper process for its version.

    Nobody waits for the helper when a command is stopped or its workers are killed, and it ends with a traceback then.
    """
    import os
    from importlib.util import find_spec
    from pathlib import Path

    if os.environ.get("PYGLFW_LIBRARY") or (spec := find_spec("glfw")) is None or spec.origin is None:
        return
    wanted = os.environ.get("PYGLFW_LIBRARY_VARIANT") or os.environ.get("XDG_SESSION_TYPE") or ""
    folder = Path(spec.origin).parent
    variant = folder / ("wayland" if wanted.lower() == "wayland" else "x11")
    if files := sorted([*variant.glob("libglfw*.so*"), *folder.glob("libglfw*.dylib")]):
        os.environ["PYGLFW_LIBRARY"] = str(files[0])
