"""The examples in the docstrings of the package run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

# Walked recursively, so that a new folder cannot hide its examples. The siblings are named, because an editable
# install does not list them under `ccfs`.
PACKAGES = ("ccfs", "ccfs.certificates", "ccfs.controllers", "ccfs.envs")


def has_example(module: pkgutil.ModuleInfo) -> bool:
    """Read the source instead of importing it: a module without examples may need an extra."""
    spec = module.module_finder.find_spec(module.name, None)
    return spec is not None and spec.origin is not None and ">>> " in Path(spec.origin).read_text(encoding="utf-8")


MODULES = sorted(
    {
        module.name
        for package in PACKAGES
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
        if has_example(module)
    }
)


def test_doctests_are_found_in_every_kind_of_folder() -> None:
    assert len(MODULES) >= 20
    assert {name.split(".")[1] for name in MODULES} >= {"certificates", "files", "images", "report"}


@pytest.mark.parametrize("name", MODULES)
def test_doctests_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
