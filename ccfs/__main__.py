"""The command line as `python -m ccfs`."""

from __future__ import annotations

from ccfs.cli.start import main

if __name__ == "__main__":
    main()
