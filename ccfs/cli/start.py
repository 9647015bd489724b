"""Start the command `ccfs`. Ctrl-C and SIGTERM end it cleanly, from the first import to the last line."""

from __future__ import annotations

import sys
from typing import NoReturn

from ccfs.cli.signals import deliver, die_silently, stop_code, stoppable

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line."""
    try:
        with stoppable():
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
