"""The package imports without torch, and use without it says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_import_works_without_torch_and_use_says_what_to_install():
    code = """
import sys
sys.modules["torch"] = None
from ccfs.images import NoFilter, load_shipped
try:
    load_shipped("any")
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(sys.prefix)
    )
    assert "pip install 'ccfs-rl[torch]'" in done.stdout
