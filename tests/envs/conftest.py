"""What the environment tests share: building stock and fast environments, and a driver that makes things happen."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path

import pytest

from ccfs.envs.safety import compat

EXACTNESS = Path(__file__).parents[2] / "experiments" / "exactness"


@pytest.fixture(scope="session")
def build():
    """Build an environment class with the arguments registered for an id, without wrappers."""
    registry = compat.stock("utils.registration")

    def built(kind, env_id):
        return kind(**copy.deepcopy(registry.spec(env_id).kwargs))

    return built


@pytest.fixture(scope="session")
def driver():
    """Return the class of drivers used by the exactness study."""
    spec = importlib.util.spec_from_file_location("exactness_drivers", EXACTNESS / "drivers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Driver
