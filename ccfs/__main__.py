"""The command line as `python -m ccfs`."""

from __future__ import annotations

from ccfs.cli.main import app

if __name__ == "__main__":
    app(prog_name="ccfs")
