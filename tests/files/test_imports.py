"""Modules in a folder of the user's are found, never in the place of another module."""

from __future__ import annotations

import sys

import pytest

from ccfs.files.imports import add_modules, hidden_modules, module_file


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("own_module_of_a_test.py", "random.py", "numpy.py"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_add_modules_puts_the_folder_last_and_once(folder):
    before = list(sys.path)
    add_modules(folder)
    add_modules(folder)
    assert sys.path == [*before, str(folder.resolve())]
    assert module_file("own_module_of_a_test") == folder / "own_module_of_a_test.py"


def test_a_module_of_the_folder_never_takes_the_place_of_an_installed_one(folder):
    """Otherwise a file called random.py beside a protocol would be what numpy imports."""
    add_modules(folder)
    names = ["own_module_of_a_test:make", "random:make", "numpy:make", "absent:make", "json:loads"]
    assert [path.name for path, _ in hidden_modules(names, folder)] == ["numpy.py", "random.py"]
    assert all(found is not None and folder not in found.parents for _, found in hidden_modules(names, folder))


def test_a_package_of_the_folder_is_found_by_its_top(folder):
    (folder / "own_package_of_a_test" / "inner").mkdir(parents=True)
    (folder / "own_package_of_a_test" / "__init__.py").write_text("")
    names = ["own_package_of_a_test.inner:make"]
    assert [path.name for path, _ in hidden_modules(names, folder)] == ["__init__.py"]  # not on the path yet
    add_modules(folder)
    assert list(hidden_modules(names, folder)) == []
