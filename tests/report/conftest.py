"""Make the toy environments of the runtime's tests importable by name, also in the processes that the tests start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

TOYS = str(Path(__file__).parents[1] / "ccfs")
sys.path.insert(0, TOYS)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (TOYS, os.environ.get("PYTHONPATH"))))
