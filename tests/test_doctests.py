"""The examples in the docstrings of the core package run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import ccfs
import ccfs.certificates
import ccfs.gallery
import ccfs.report

MODULES = sorted(
    module.name
    for package in (ccfs, ccfs.certificates, ccfs.gallery, ccfs.report)
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    if not module.ispkg
)


def test_doctests_are_found() -> None:
    finder = doctest.DocTestFinder()
    examples = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(examples) >= 20


@pytest.mark.parametrize("name", MODULES)
def test_doctests_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
