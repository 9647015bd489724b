"""The source behind a run, as digests: all of ccfs, and the modules around each callable that a protocol names."""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from ccfs.building import resolve

__all__ = ["own_digest", "reference_digest"]

_OWN = ("ccfs", "ccfs.certificates", "ccfs.controllers", "ccfs.envs")
# A package with more files is a library whose version is recorded; only the file and its neighbours count then.
_MOST_FILES = 1000


@lru_cache(maxsize=1)
def own_digest() -> str:
    """Return one SHA-256 (hex) over the names and bytes of all modules of ccfs.

    Taken once a process: what runs is what was imported, whatever is written to the files later.
    """
    files: dict[str, Path] = {}
    for package in _OWN:
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for path in _modules_under(Path(folder)):
                files[f"{package.replace('.', '/')}/{path.relative_to(folder).as_posix()}"] = path
    return _digest(files)


@lru_cache(maxsize=256)
def reference_digest(reference: str) -> str:
    """Return one SHA-256 (hex) over the modules behind "module:callable", taken once a process.

    In a package: all its modules. In a single file: the file and what it imports, directly or not, from its own
    folder by import statements. A callable that comes from another module brings that one with it.
    """
    module = reference.partition(":")[0]
    home = getattr(inspect.unwrap(resolve("sources", reference)), "__module__", None)
    files: dict[str, Path] = {}
    for found in dict.fromkeys((module, home if isinstance(home, str) else module)):
        if found.partition(".")[0] != "ccfs":  # own_digest holds these
            files.update(_behind(found))
    return _digest(files) if files else "built in"


def _behind(module: str) -> dict[str, Path]:
    top = sys.modules.get(module.partition(".")[0])
    folders = [Path(folder) for folder in getattr(top, "__path__", ())]
    package = {
        f"{folder.name}/{path.relative_to(folder).as_posix()}": path
        for folder in folders
        for path in _modules_under(folder)
    }
    if package and len(package) <= _MOST_FILES:
        return package
    source = getattr(sys.modules.get(module), "__file__", None)
    if source is None or not Path(source).is_file():
        return {}
    return _neighbours(Path(source))


def _neighbours(source: Path) -> dict[str, Path]:
    """Return a file and everything in its folder that its import statements reach."""
    folder, found, pending = source.parent, {source.name: source}, [source]
    if folder.name in ("site-packages", "dist-packages") or source.suffix != ".py":
        return found  # its neighbours are other people's packages, or it is compiled
    while pending:
        path = pending.pop()
        for name in _imported(path):
            reached = [folder / f"{name}.py"] if (folder / f"{name}.py").is_file() else []
            for other in reached or _modules_under(folder / name):
                key = other.relative_to(folder).as_posix()
                if key not in found:
                    found[key] = other
                    pending.append(other)
    return found


def _imported(path: Path) -> set[str]:
    """Return the first parts of the names that a file imports; of relative ones, as if from its own folder."""
    names: set[str] = set()
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # it cannot be imported either
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module.partition(".")[0]} if node.module else {alias.name for alias in node.names}
    return names


def _modules_under(folder: Path) -> Iterator[Path]:
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if name != "__pycache__" and not name.startswith(".")]
        yield from (Path(place) / name for name in names if name.endswith(".py"))


def _digest(files: dict[str, Path]) -> str:
    whole = hashlib.sha256()
    for name in sorted(files):
        whole.update(f"{len(name.encode())}:{name}".encode() + hashlib.sha256(files[name].read_bytes()).digest())
    return whole.hexdigest()
