"""Settings for every test: hypothesis draws the same cases on each run; browser tests say so where they cannot run."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import browser as chromium
import pytest
from hypothesis import settings

# The helpers in tests/support are importable by name: in pytest by `pythonpath` in pyproject.toml, and by this in the
# child processes that tests start.
SUPPORT = str(Path(__file__).parent / "support")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (SUPPORT, os.environ.get("PYTHONPATH"))))

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def _omnisafe() -> None:
    """Import OmniSafe once, with the cure that Python 3.11 needs; its dependencies warn at import."""
    from ccfs.envs.safety import compat

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compat.stock()
        import omnisafe  # noqa: F401
        import torch

    torch.set_num_threads(1)


@pytest.fixture
def browser(tmp_path: Path) -> chromium.Browser:
    """A headless Chromium; without one the test is skipped, and the end of pytest's output says so."""
    program = chromium.find()
    if program is None:
        if os.environ.get(chromium.REQUIRED):
            pytest.fail(f"{chromium.REQUIRED} is set, but there is {chromium.ABSENT}")
        pytest.skip(chromium.ABSENT)
    folder = tmp_path / "chromium"
    folder.mkdir()
    return chromium.Browser(program=program, folder=folder)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # From the reports, because the tests may have run in other processes.
    skipped = terminalreporter.getreports("skipped")
    missed = [report.nodeid for report in skipped if chromium.ABSENT in str(report.longrepr)]
    if missed:
        terminalreporter.section("browser tests", yellow=True)
        terminalreporter.line(f"NOTICE: {chromium.ABSENT}", yellow=True)
        for name in missed:
            terminalreporter.line(f"  not run: {name}")
