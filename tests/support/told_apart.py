"""Checks of adapters that several tests share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

from ccfs.controllers import Controller

ONES = np.ones(3)


def loaded(folder: Path, text: str, name: str = "written_here") -> ModuleType:
    """Write a module, import it and return it."""
    (folder / f"{name}.py").write_text(text)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def assert_told_apart(first: Controller, second: Controller) -> None:
    """Two controllers that answer differently must have different digests."""
    assert first.center(ONES).tolist() != second.center(ONES).tolist(), "the case itself must differ"
    assert first.digest != second.digest


def assert_no_bad_advice(error: BaseException) -> None:
    """A refusal must not repeat torch's advice to unpickle the file, neither in its words nor in its context."""
    assert "weights_only" not in str(error)
    assert error.__suppress_context__
    assert error.__cause__ is None
