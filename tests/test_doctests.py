"""The examples in the docstrings of the package run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

# Walked recursively, so that a new folder cannot hide its examples. The siblings are named, because an editable
# install does not list them under `ccfs`. `ccfs.__main__` would start the command.
PACKAGES = ("ccfs", "ccfs.certificates", "ccfs.controllers", "ccfs.envs")
MODULES = sorted(
    {
        module.name
        for package in PACKAGES
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
    }
    - {"ccfs.__main__"}
)


def examples(name: str) -> list[doctest.DocTest]:
    return [test for test in doctest.DocTestFinder().find(importlib.import_module(name)) if test.examples]


def test_doctests_are_found_in_every_folder_that_has_some() -> None:
    found = {name for name in MODULES if examples(name)}
    assert len(found) >= 20
    assert {name.split(".")[1] for name in found} >= {"certificates", "controllers"}


@pytest.mark.parametrize("name", MODULES)
def test_doctests_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
