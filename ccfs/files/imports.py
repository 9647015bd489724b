"""Find the files behind a callable: from import statements alone, and after an import from what it has loaded."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import CodeType, ModuleType

from ccfs.files.code import code_files, parsed

__all__ = [
    "add_modules",
    "closure",
    "files_behind",
    "from_source",
    "hidden_modules",
    "imported_names",
    "is_built_in",
    "is_importable",
    "loaded_files",
    "loading",
    "module_file",
    "module_of",
    "packages_behind",
]

# A package with more files is a library. Only those of its modules count that are imported.
_MOST_FILES = 1000
_STANDARD = Path(os.__file__).parent


def add_modules(folder: Path) -> None:
    """Let this process and the processes that it starts find the modules in a folder.

    The folder comes after all others. So a file in it that is called like an installed module is not imported for it
    by accident. Processes that multiprocessing starts get the same search path.
    """
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.append(place)
        importlib.invalidate_caches()


def hidden_modules(references: Iterable[str], folder: Path) -> Iterator[tuple[Path, Path | None]]:
    """Yield each module of a folder that is named but not found, with the file that is found in its place.

    Args:
        references: names of code as "module:callable".
        folder: where the modules should be.
    """
    for top in sorted({reference.partition(":")[0].partition(".")[0] for reference in references}):
        inside = [path for path in (folder / f"{top}.py", folder / top / "__init__.py") if path.is_file()]
        found = module_file(top)
        if inside and not (found is not None and found.resolve() in [path.resolve() for path in inside]):
            yield inside[0], found


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
        path: the file. One that is not Python, or not there, imports nothing.
        package: dotted name of the package where relative imports start.
    """
    if path.suffix == ".py" and path.is_file():
        yield from _imports(path.read_bytes(), package)


@lru_cache(maxsize=512)
def _imports(source: bytes, package: str) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    tree = parsed(source)
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.Import):
            found += ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found += ((_absolute(node, package), alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and _is_import_call(node):
            found += ((text, "") for text in _first_text(node))
    return tuple(found)


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
    if path is not None and _is_installed(path):
        # One that no package brought here has no version, so its file counts.
        return not _distributions(module.partition(".")[0])
    return path is not None and is_users(path)


def is_users(path: Path) -> bool:
    """Return whether a file belongs neither to the standard library nor to an installed package."""
    # By its place, not by its name: a file beside an event may be called like a module of the standard library.
    return not (_is_installed(path) or path.is_relative_to(_STANDARD))


def _is_installed(path: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def _package_files(module: str) -> dict[str, Path]:
    """Return all modules of a module's package, or the folder of an installed one.

    A single file stands for itself, and so does a module of a very large package.
    """
    top = module.partition(".")[0]
    spec = _spec(top)
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    files = {
        f"{top}/{path.relative_to(folder).as_posix()}": path
        for folder in folders
        if folder.is_dir()
        for path in code_files(folder)
    }
    if 0 < len(files) <= _MOST_FILES:
        return {top: folders[0]} if _is_installed(folders[0]) else files
    source = module_file(module)
    return {} if source is None else {_file_name(module, source): source}


def _file_name(module: str, path: Path) -> str:
    """Return the name of a module's file that does not depend on its folder."""
    stem, _, suffix = path.name.partition(".")
    return module.replace(".", "/") + (f"/{path.name}" if stem == "__init__" else f".{suffix}")


def module_of(name: str) -> str:
    """Return the module of a name that `files_behind` or `loaded_files` gave.

    >>> module_of("mine/deep/__init__.py"), module_of("mine/number.cpython-311-x86_64-linux-gnu.so")
    ('mine.deep', 'mine.number')
    """
    folder, _, file = name.rpartition("/")
    stem = file.partition(".")[0]
    return (folder if stem == "__init__" else f"{folder}/{stem}" if folder else stem).replace("/", ".")


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


_loaded: dict[str, set[str]] = {}


@contextmanager
def loading(reference: str) -> Iterator[None]:
    """Remember which modules are loaded inside, for `loaded_files`. Those of the user's own come from their source.

    A module that was loaded before is not seen. So make what is watched before anything else that shares its modules.
    """
    before = set(sys.modules)
    with from_source():
        try:
            yield
        finally:
            _loaded.setdefault(reference, set()).update(set(sys.modules) - before)


def loaded_files(reference: str, package: str) -> dict[str, Path]:
    """Return the files that making or calling a part has loaded in this process, whatever statement loaded them.

    The standard library, installed packages and `package` do not count. A module that does not come from a file of its
    own, such as one in an archive, has a path that is no file.
    """
    found: dict[str, Path] = {}
    for name in _loaded.get(reference, ()):
        place = getattr(sys.modules.get(name), "__file__", None)
        path = Path(place) if isinstance(place, str) else None
        if path is not None and name.partition(".")[0] != package and is_users(path):
            found[_file_name(name, path)] = path
    return found


@contextmanager
def from_source() -> Iterator[None]:
    """Compile modules of the user's own from their source, whatever their `__pycache__` holds.

    Nobody reads a cache of compiled code, and nothing binds it to the source that is read and digested.
    """
    finder = _SourceFinder()
    # Directly before Python's own finder, so that built-in modules and whatever else comes earlier still do.
    place = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
    sys.meta_path.insert(place, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _SourceFinder:
    """Finds what Python's own finder finds, and has sources of the user's own compiled anew."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader and is_users(Path(spec.loader.path)):
            spec.loader = _SourceLoader(spec.loader.name, spec.loader.path)
        return spec


class _SourceLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def packages_behind(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the installed packages that files of the user's own import, each with its version.

    A module that somebody put among the installed ones without a version is left out: `files_behind` gives its file.
    """
    tops = {
        base.partition(".")[0]
        for name, path in files.items()
        if is_users(path)
        for base, _ in imported_names(path, ".".join(name.split("/")[:-1]))
    }
    return {name: version(name) for top in sorted(tops) if _is_installed_module(top) for name in _distributions(top)}


def _is_installed_module(top: str) -> bool:
    spec = _spec(top) if top else None
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec is not None else []
    return any(place is not None and _is_installed(Path(place)) for place in places)


def _distributions(top: str) -> list[str]:
    return sorted(set(_providers().get(top, ())))


@lru_cache(maxsize=1)  # it reads the lists of all installed packages
def _providers() -> Mapping[str, list[str]]:
    return packages_distributions()
