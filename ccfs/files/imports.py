"""Find the files behind a callable from import statements alone, without importing or running anything."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

from ccfs.files.code import parsed

__all__ = ["closure", "files_behind", "imported_names", "is_built_in", "is_importable", "module_file"]

# A package with more files is a library. Only those of its modules count that are imported.
_MOST_FILES = 1000
_STANDARD = Path(os.__file__).parent


def module_file(module: str) -> Path | None:
    """Return the file of a module, None if there is none. Neither the module nor its package is imported."""
    spec = _spec(module)
    place = spec.origin if spec is not None and spec.has_location else None
    place = place or getattr(sys.modules.get(module), "__file__", None)  # a script has no spec
    path = Path(place) if place else None
    return path if path is not None and path.is_file() else None


def is_importable(module: str) -> bool:
    """Return whether an import would find a module, in a file or elsewhere, such as in an archive."""
    return module in sys.modules or _spec(module) is not None


def is_built_in(module: str) -> bool:
    """Return whether a module belongs to the interpreter and has no file."""
    return module in sys.builtin_module_names


def closure(modules: Iterable[str], package: str, *, users: Iterable[Path] = ()) -> dict[str, Path]:
    """Return the files of the modules and of all that they import from `package`, by their dotted names.

    Imports inside functions count, and so does `import_module` with a literal name. The `__init__` of a package
    counts if something is imported from it that is not one of its modules.

    Args:
        modules: where to start.
        package: first part of the dotted names that are followed.
        users: files from elsewhere whose imports are followed too.
    """
    found: dict[str, Path] = {}
    pending = [*modules, *(name for path in users for name in _inside(package, path, ""))]
    while pending:
        name = pending.pop()
        path = None if name in found else module_file(name)
        if path is not None:
            found[name] = path
            pending += _inside(package, path, name if path.name == "__init__.py" else name.rpartition(".")[0])
    return found


def _inside(package: str, path: Path, home: str) -> Iterator[str]:
    """Yield the modules of `package` that a file in the package `home` imports."""
    for base, member in imported_names(path, home):
        if base.partition(".")[0] != package:
            continue
        if member and module_file(f"{base}.{member}") is not None:
            yield f"{base}.{member}"
        else:
            yield from (base, *_lazy_homes(base, member))


def files_behind(reference: str, package: str) -> dict[str, Path]:
    """Return the files behind "module:callable" by names that do not depend on their folder.

    They are all modules of its package, or the single file, and whatever these import from elsewhere, directly or not.
    The standard library, installed packages and `package` itself do not count. For a module of `package` it is the
    module's file alone, because `closure` gives the rest. If the module imports the callable by name from another
    module, that module counts too, installed or not. The answer is empty if the module is missing or built in.
    """
    found: dict[str, Path] = {}
    seen: set[tuple[str, str]] = set()
    pending = [(reference.partition(":")[0], reference.partition(":")[2].partition(".")[0])]
    while pending:
        module, name = pending.pop()
        source = module_file(module)
        if source is None or (module, name) in seen:
            continue
        seen.add((module, name))
        if module.partition(".")[0] == package:
            suffix = "/__init__.py" if source.name == "__init__.py" else ".py"
            found[module.replace(".", "/") + suffix] = source
        else:
            found.update(_own_files(module, package))
        pending += _homes(module, source, name)
    return found


def imported_names(path: Path, package: str = "") -> Iterator[tuple[str, str]]:
    """Yield (module, member) for each import in a file. The member is empty for a whole module.

    Args:
        path: the file. A file that is not Python imports nothing.
        package: dotted name of the package where relative imports start.
    """
    tree = parsed(path.read_bytes()) if path.suffix == ".py" else None
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((_absolute(node, package), alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and _is_import_call(node):
            yield from ((text, "") for text in _first_text(node))


def _is_import_call(node: ast.Call) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in ("import_module", "__import__")


def _first_text(node: ast.Call) -> Iterator[str]:
    """Yield the module that an import call names, if it is written there as a text."""
    named = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
    for value in [*node.args[:1], *named]:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    above = [part for part in parts[: len(parts) - node.level + 1] if part]
    return ".".join([*above, node.module] if node.module else above)


def _spec(module: str) -> ModuleSpec | None:
    loaded = getattr(sys.modules.get(module), "__spec__", None)
    if isinstance(loaded, ModuleSpec):
        return loaded
    parent = module.rpartition(".")[0]
    if not parent:
        try:
            return importlib.util.find_spec(module)
        except (ImportError, ValueError):
            return None
    above = _spec(parent)
    if above is None or above.submodule_search_locations is None:
        return None
    for finder in sys.meta_path:  # `find_spec` of importlib would import the package
        spec = finder.find_spec(module, above.submodule_search_locations)
        if spec is not None:
            return spec
    return None


def _own_files(module: str, package: str) -> dict[str, Path]:
    """Return the files of a module's package and those of all modules they import that are not installed."""
    found: dict[str, Path] = {}
    pending = [module]
    while pending:
        new = {name: path for name, path in _package_files(pending.pop()).items() if name not in found}
        found.update(new)
        for name, path in new.items():
            # An installed package imports installed packages only, whose versions are recorded.
            for base, member in () if _is_installed(path) else imported_names(path, ".".join(name.split("/")[:-1])):
                parts = [part for part in (*base.split("."), member) if part]
                reached = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
                pending += [other for other in reached if _is_own(other, package)]
    return found


def _is_own(module: str, package: str) -> bool:
    """Return whether a module is here, and not in `package`, in the standard library or installed."""
    path = None if module.partition(".")[0] == package else module_file(module)
    # By its place, not by its name: a file beside an event may be called like a module of the standard library.
    return path is not None and not (_is_installed(path) or path.is_relative_to(_STANDARD))


def _is_installed(path: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def _package_files(module: str) -> dict[str, Path]:
    """Return all modules of a module's package, or the folder of an installed one.

    A single file stands for itself, and so does a module of a very large package.
    """
    top = module.partition(".")[0]
    spec = _spec(top)
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    files = {f"{top}/{path.relative_to(folder).as_posix()}": path for folder in folders for path in _modules(folder)}
    if 0 < len(files) <= _MOST_FILES:
        return {top: folders[0]} if _is_installed(folders[0]) else files
    source = module_file(module)
    if source is None:
        return {}
    end = "/__init__.py" if source.name == "__init__.py" else source.suffix
    return {module.replace(".", "/") + end: source}


def _homes(module: str, source: Path, name: str) -> list[tuple[str, str]]:
    """Return where a file imports a name from, as (module, name there)."""
    package = module if source.name == "__init__.py" else module.rpartition(".")[0]
    tree = parsed(source.read_bytes()) if source.suffix == ".py" else None
    named = [
        (_absolute(node, package), name if alias.name == "*" else alias.name)
        for node in (() if tree is None else tree.body)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (alias.asname or alias.name) in (name, "*")
    ]
    return named + [(home, name) for home in _lazy_homes(module, name)]


def _lazy_homes(module: str, name: str) -> list[str]:
    """Return the modules from which a package's `__init__` imports a name on first use, read from its table."""
    source = module_file(module)
    tree = parsed(source.read_bytes()) if source is not None and source.name == "__init__.py" else None
    tables = [node for node in (() if tree is None else ast.walk(tree)) if isinstance(node, ast.Dict)]
    return [
        value.value
        for table in tables
        for key, value in zip(table.keys, table.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == name
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and module_file(value.value) is not None
    ]


def _modules(folder: Path) -> Iterator[Path]:
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if name != "__pycache__" and not name.startswith(".")]
        yield from (Path(place) / name for name in names if name.endswith(".py"))
