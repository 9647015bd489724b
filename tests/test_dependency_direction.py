"""Who may import whom, read from the syntax tree of every file. The checker is first shown to find what it must."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]
SIBLINGS = ("certificates", "controllers", "envs")
# The layers, lowest first: a room imports only itself and rooms that stand before it.
ROOMS = (
    "ccfs.certificates",
    "ccfs.files",
    "ccfs.runtime",
    "ccfs.attacks",
    "ccfs.protocol",
    "ccfs.runs",
    "ccfs.results",
    "ccfs.audit",
    "ccfs.images",
    "ccfs.report",
    "ccfs.gallery",
    "ccfs.study",
    "ccfs.cli",
)
# Modules whose job is to import what a user or an extra names; everybody else names modules in the code.
IMPORTERS = {
    "ccfs/__init__.py",
    "ccfs/schema.py",
    "ccfs/images/__init__.py",
    "ccfs/images/networks.py",
    "ccfs/images/torch.py",
    "ccfs/report/drawings.py",
    "ccfs/runs/build.py",
    "ccfs/runs/confined.py",
    "controllers/__init__.py",
    "controllers/adapters/rebuilt.py",
    "envs/safety/compat.py",
}
PACKAGED = ("ccfs", *SIBLINGS)
FOLDERS = (*PACKAGED, "tests", "experiments", "benchmarks")
CERTIFICATE_LIBRARIES = {"numpy", "scipy", "flint"}
HEAVY = {"torch", "mujoco", "safety_gymnasium", "omnisafe", "stable_baselines3", "dask", "distributed", "minari"}


VARIABLE = "<a module named by a variable>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module: absolute dotted name, line, and whether it waits until a function is called."""

    name: str
    line: int
    is_deferred: bool

    @property
    def room(self) -> str | None:
        """The room that the imported module belongs to, if it is one of ours."""
        return next((room for room in ROOMS if self.is_under(room)), None)

    def is_under(self, package: str) -> bool:
        return self.name == package or self.name.startswith(f"{package}.")


def package_of(path: PurePosixPath) -> str:
    """Dotted name of the package that holds a file; empty outside the package."""
    folders = path.parts[:-1]
    if not folders or folders[0] not in PACKAGED:
        return ""
    return ".".join(folders if folders[0] == "ccfs" else ("ccfs", *folders))


class _Collector(ast.NodeVisitor):
    def __init__(self, package: str) -> None:
        self.package, self.depth = package, 0
        self.found: list[Import] = []

    def _add(self, name: str, node: ast.AST) -> None:
        self.found.append(Import(name=name, line=getattr(node, "lineno", 0), is_deferred=self.depth > 0))

    def _deferred(self, nodes: list[ast.stmt] | list[ast.expr]) -> None:
        self.depth += 1
        for node in nodes:
            self.visit(node)
        self.depth -= 1

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parts = self.package.split(".")
            anchor = ".".join(parts[: len(parts) - node.level + 1])
            base = f"{anchor}.{base}" if base else anchor
        # `from ccfs import envs` imports ccfs.envs, so each imported name counts as a module too.
        for alias in node.names:
            self._add(f"{base}.{alias.name}", node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        named = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
        first = (node.args or named or [None])[0]
        if name in {"import_module", "_import_module", "__import__", "extra"}:
            is_text = isinstance(first, ast.Constant) and isinstance(first.value, str)
            self._add(first.value if is_text else VARIABLE, node)
        self.generic_visit(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for early in (*node.decorator_list, node.args):
            self.visit(early)
        self._deferred(node.body)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._deferred([node.body])

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            self._deferred(node.body)
            for other in node.orelse:
                self.visit(other)
        else:
            self.generic_visit(node)


def imports(source: str, path: PurePosixPath) -> list[Import]:
    collector = _Collector(package_of(path))
    collector.visit(ast.parse(source))
    return collector.found


def fault(found: Import, path: PurePosixPath) -> str | None:
    """Say what is wrong with one import in one file, or None."""
    root, folder = found.name.split(".")[0], path.parts[0]
    if found.name == VARIABLE:
        known = folder not in PACKAGED or path.as_posix() in IMPORTERS
        return None if known else "imports a module that a variable names: say which, or add the file to IMPORTERS"
    if root in (*SIBLINGS, "experiments"):
        return f"bare import of `{found.name}`: write `ccfs.{found.name}`, or every class exists twice"
    if folder == "certificates":
        pure = found.is_under("ccfs.certificates") or root in CERTIFICATE_LIBRARIES | sys.stdlib_module_names
        return None if pure else f"certificates may not import `{found.name}`"
    room = package_of(path)
    here = next((place for place, name in enumerate(ROOMS) if room == name or room.startswith(f"{name}.")), None)
    if here is not None and found.room in ROOMS[here + 1 :]:
        return f"`{ROOMS[here]}` stands below `{found.room}` and may not import it"
    if folder == "ccfs" and not found.is_deferred:
        if any(map(found.is_under, ("ccfs.controllers", "ccfs.envs", "ccfs.experiments"))):
            return f"the package imports `{found.name}` inside a function or not at all"
        if root in HEAVY:
            return f"`{root}` is an extra: import it inside the function that needs it"
    if folder == "envs" and found.is_under("ccfs.controllers"):
        return "environments know no controllers"
    if folder == "controllers" and found.is_under("ccfs.envs") and not found.is_deferred:
        return "a controller needs no environment: import it inside the function that trains"
    return None


def faults(source: str, path: str) -> list[str]:
    where = PurePosixPath(path)
    found = [(item.line, fault(item, where)) for item in imports(source, where)]
    return [f"{path}:{line}: {message}" for line, message in found if message]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("certificates/a.py", "import torch"),
        ("certificates/a.py", "def f():\n    import torch"),
        ("certificates/images.py", "def f():\n    import torchvision"),
        ("certificates/images.py", "def f():\n    torch = extra('torch', 'torch')"),
        ("certificates/a.py", "import importlib\nname = 'torch'\nimportlib.import_module(name)"),
        ("certificates/a.py", "from ccfs.images.smoother import Counter"),
        ("ccfs/files/a.py", "from ccfs.runtime.wrapper import ProposalWrapper"),
        ("ccfs/runtime/a.py", "def f():\n    from ccfs.attacks.attack import Attack"),
        ("ccfs/runs/a.py", "import ccfs.results.certify"),
        ("ccfs/protocol/a.py", "from ccfs import runs"),
        ("ccfs/results/a.py", "from ccfs.cli.main import app"),
        ("ccfs/audit/a.py", "from importlib import import_module\ndef f(name):\n    return import_module(name)"),
        ("ccfs/images/filters.py", "try:\n    import torch\nexcept ImportError:\n    torch = None"),
        ("ccfs/images/a.py", "class A:\n    import torch"),
        ("certificates/a.py", "import mpmath"),
        ("certificates/a.py", "import ccfs"),
        ("certificates/a.py", "from ccfs import __version__"),
        ("certificates/a.py", "import ccfs.runtime.program"),
        ("certificates/a.py", "from ccfs.files.parquet import read_parquet"),
        ("certificates/a.py", "from ccfs.runtime.program import CausalProgram"),
        ("certificates/a.py", "def f():\n    from ccfs import envs"),
        ("certificates/a.py", "if TYPE_CHECKING:\n    from ccfs.attacks.ledger import X"),
        ("certificates/a.py", "from .. import ledger"),
        ("certificates/a.py", "from ..ledger import EnergyLedger"),
        ("certificates/deep/a.py", "from ... import ledger"),
        ("certificates/a.py", "import importlib\nimportlib.import_module('ccfs.envs')"),
        ("ccfs/a.py", "from ccfs import controllers"),
        ("ccfs/a.py", "from ccfs.envs import make"),
        ("ccfs/a.py", "import ccfs.envs.safety as safety"),
        ("ccfs/a.py", "from . import envs"),
        ("ccfs/a.py", "from .controllers import actor"),
        ("ccfs/a.py", "if True:\n    import ccfs.envs"),
        ("ccfs/a.py", "def f(x=__import__('ccfs.envs')):\n    pass"),
        ("ccfs/a.py", "import torch"),
        ("ccfs/a.py", "from dask.distributed import Client"),
        ("ccfs/a.py", "import certificates"),
        ("controllers/a.py", "from envs import make"),
        ("controllers/a.py", "from ccfs.envs import make"),
        ("envs/a.py", "def f():\n    from ccfs.controllers import zoo"),
        ("certificates/a.py", "import importlib\nimportlib.import_module(name='ccfs.envs')"),
        ("envs/a.py", "def f():\n    import certificates.binomial"),
        ("tests/certificates/test_a.py", "from certificates.binomial import hoeffding_lower"),
        ("tests/envs/test_a.py", "import importlib\ndef test_a():\n    importlib.import_module('envs.fast')"),
        ("experiments/study/run.py", "import controllers as c"),
        ("tests/experiments/test_a.py", "import experiments"),
        ("ccfs/cli/a.py", "from ccfs.experiments import studies"),
        ("benchmarks/bench.py", "import os, certificates"),
    ],
)
def test_checker_finds_forbidden_import(path, source):
    assert len(faults(source, path)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("certificates/a.py", "import math, numpy as np\nfrom scipy import special\nfrom flint import arb"),
        ("certificates/a.py", "from __future__ import annotations\nimport collections.abc"),
        ("certificates/a.py", "from ccfs.certificates import checks\nfrom . import a\nfrom .checks import real"),
        ("certificates/a.py", "from ccfs import certificates"),
        ("ccfs/images/a.py", "def f():\n    import torch\n    extra('PIL.Image', 'pillow')"),
        ("ccfs/images/model.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("ccfs/runs/a.py", "from ccfs.runs import store\nfrom ccfs.runtime.wrapper import ProposalWrapper"),
        ("ccfs/cli/a.py", "from ccfs.results import certify\nfrom ccfs import __version__"),
        ("certificates/a.py", "text = 'import torch'  # import torch"),
        ("ccfs/a.py", "from ccfs.certificates.binomial import hoeffding_lower\nimport typer, rich, gymnasium"),
        ("ccfs/a.py", "def f():\n    from ccfs.envs import make\n    import torch"),
        ("ccfs/a.py", "async def f():\n    from ccfs import controllers"),
        ("ccfs/a.py", "from ccfs.envs_table import x\nfrom .certificates import binomial"),
        ("controllers/a.py", "import torch\nfrom ccfs.runtime.interfaces import Controller"),
        ("controllers/a.py", "def train():\n    from ccfs.envs import make"),
        ("envs/a.py", "import mujoco\nfrom ccfs.runtime.interfaces import Verifier\nfrom gymnasium import envs"),
        ("envs/a.py", "from . import _physics\nfrom ._physics import Physics"),
        ("tests/a.py", "from ccfs.certificates import binomial\nimport safety_gymnasium.envs"),
    ],
)
def test_checker_accepts_allowed_import(path, source):
    assert faults(source, path) == []


def sources() -> list[str]:
    return sorted(
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    )


def test_project_files_are_found():
    assert {"ccfs/cli/main.py", "certificates/rational.py", "controllers/__init__.py", "envs/__init__.py"} <= set(
        sources()
    )


def test_project_imports_follow_the_direction():
    found = [message for path in sources() for message in faults((ROOT / path).read_text(encoding="utf-8"), path)]
    assert found == []


def module_of(path: PurePosixPath) -> str:
    """Dotted name of a file of the package."""
    name = path.with_suffix("").name
    return package_of(path) if name == "__init__" else f"{package_of(path)}.{name}"


def imported_modules(texts: dict[str, str]) -> dict[str, set[str]]:
    """For each module of the package, which others it imports, also when that waits for a call."""
    paths = [PurePosixPath(path) for path in texts]
    modules = {module_of(path) for path in paths}
    found: dict[str, set[str]] = {}
    for path in paths:
        # `from ccfs.files import reading` names a module, and `from ccfs.files.reading import limits` something in it.
        names = {name for one in imports(texts[str(path)], path) for name in (one.name, one.name.rpartition(".")[0])}
        # A package's own `__init__` names its modules for others to find. That is no use of them.
        found[module_of(path)] = (names & modules) - {module_of(path)} if path.name != "__init__.py" else set()
    return found


@pytest.mark.parametrize("second", ["from ccfs.files import a", "def f():\n    from ccfs.files.a import g"])
def test_checker_finds_a_cycle(second):
    with pytest.raises(CycleError):
        TopologicalSorter(
            imported_modules({"ccfs/files/a.py": "import ccfs.files.b", "ccfs/files/b.py": second})
        ).prepare()


def test_no_module_imports_itself_through_others():
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in sources() if path.split("/")[0] in PACKAGED}
    TopologicalSorter(imported_modules(texts)).prepare()
