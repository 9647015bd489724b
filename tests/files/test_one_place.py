"""Parquet, atomic writes and locks have one module each: nobody else calls what these call."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("ccfs", "certificates", "controllers", "envs", "experiments", "benchmarks")


@cache
def trees():
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in files}


def named(tree):
    """Yield every imported module, every attribute as it is written, and every text (as for `import_module`)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def replaces_a_file(tree):
    """Whether `os.replace` or its like is named, or a `replace` has one argument, as that of a path has."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    if any(call.func.attr in ("replace", "rename") and len(call.args) == 1 and not call.keywords for call in calls):
        return True
    return any(re.fullmatch(r"(os|shutil)\.(replace|rename|move)", name) for name in named(tree))


def reads_parquet(tree):
    return any(re.match(r"(pa|arrow|pyarrow)\.(parquet|dataset)\b", name) for name in named(tree))


def locks_a_file(tree):
    return any(re.fullmatch(r"(fcntl|msvcrt|filelock)(\.\w+)?", name) for name in named(tree))


@pytest.mark.parametrize(
    ("does", "module"), [(reads_parquet, "parquet"), (replaces_a_file, "atomic"), (locks_a_file, "lock")]
)
def test_one_module_alone_does_it(does, module):
    assert [path for path, tree in trees().items() if does(tree)] == [f"ccfs/files/{module}.py"]
