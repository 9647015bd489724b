"""The wheel holds the tree and nothing else, importing it is light, and the command starts."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from importlib.metadata import metadata, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
MAPPED = {"ccfs": "ccfs", "certificates": "ccfs/certificates", "controllers": "ccfs/controllers", "envs": "ccfs/envs"}
BESIDE = ("pyproject.toml", "docs/package.md", "LICENSE")
# Of the studies, only what running one again needs.
OF_STUDIES = ("__init__.py", "goal2/*.toml", "goal2/paper.csv", "goal2/results/*/trajectories.parquet")
HEAVY = ("torch", "mujoco", "safety_gymnasium", "omnisafe", "stable_baselines3", "distributed", "pandas", "mpmath")


def source_tree(root: Path) -> dict[str, bytes]:
    """Every file of the four folders, and the studies' shipped files, under the name they must have in the wheel."""
    files: dict[str, bytes] = {}
    for path in (path for pattern in OF_STUDIES for path in (root / "experiments").glob(pattern)):
        files[f"ccfs/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    for folder, target in MAPPED.items():
        for path in (root / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                files[f"{target}/{path.relative_to(root / folder).as_posix()}"] = path.read_bytes()
    return files


def copy_sources(target: Path) -> Path:
    """A copy to build from: building in place would leave, and later reuse, a stale `build` folder."""
    target.mkdir()
    for name in BESIDE:
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    for folder in (*MAPPED, "experiments"):
        shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def build_wheel(sources: Path, out: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-q", "-w", str(out), "."]
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = out.glob("*.whl")
    return wheel


def wheel_files(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def packaged(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if ".dist-info/" not in name}


def run_python(code: str, *, path: Path | None = None) -> str:
    """Run away from the checkout, whose `ccfs` folder would shadow the installed package."""
    environment = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=path or Path(sys.prefix)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return build_wheel(copy_sources(folder / "sources"), folder)


def test_wheel_holds_exactly_the_files_of_the_tree(wheel):
    tree, built = source_tree(ROOT), packaged(wheel_files(wheel))
    assert sorted(set(tree) - set(built)) == [], "in the tree, not in the wheel: list it in pyproject.toml"
    assert sorted(set(built) - set(tree)) == [], "in the wheel, not in the tree"
    assert [name for name in tree if tree[name] != built[name]] == []


def test_wheel_comparison_notices_unlisted_package_and_data(tmp_path):
    sources = copy_sources(tmp_path / "sources")
    (sources / "envs" / "unlisted").mkdir()
    (sources / "envs" / "unlisted" / "__init__.py").write_text('"""Nobody listed me."""\n', encoding="utf-8")
    (sources / "certificates" / "unlisted.bin").write_bytes(b"data")
    missing = set(source_tree(sources)) - set(packaged(wheel_files(build_wheel(sources, tmp_path))))
    assert {"ccfs/envs/unlisted/__init__.py", "ccfs/certificates/unlisted.bin"} <= missing


def test_wheel_states_license_command_and_light_requirements(wheel):
    files = {name.partition(".dist-info/")[2]: content for name, content in wheel_files(wheel).items()}
    metadata = Parser().parsestr(files["METADATA"].decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert files["licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert "ccfs = ccfs.cli.start:main" in files["entry_points.txt"].decode()
    core = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert any(line.startswith("numpy") for line in core)
    assert [line for line in core if line.lower().replace("-", "_").startswith(HEAVY)] == []


def test_wheel_core_imports_with_every_extra_blocked(wheel, tmp_path):
    """Imports each module of the runtime and the certificates where torch, MuJoCo and the like do not exist.

    Gymnasium loads the plugins of other installed packages, which may need them; only ours is left.
    """
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = f"""
import importlib, importlib.metadata, pkgutil, sys
for name in {HEAVY!r}:
    sys.modules[name] = None
every = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **group: [found for found in every(**group) if found.module.startswith("ccfs")]
import ccfs
assert ccfs.__file__.startswith({str(tmp_path)!r}), ccfs.__file__
for module in pkgutil.walk_packages(ccfs.__path__, "ccfs."):
    if not module.name.startswith(("ccfs.controllers.", "ccfs.envs.")):  # there stand the adapters of the extras
        print(importlib.import_module(module.name).__name__)
"""
    imported = run_python(code, path=tmp_path).split()
    assert {"ccfs.cli.main", "ccfs.certificates.rational", "ccfs.envs", "ccfs.controllers"} <= set(imported)


def test_import_ccfs_takes_under_half_a_second():
    """Best of five fresh interpreters, so that a busy machine does not decide."""
    code = "import time; start = time.perf_counter(); import ccfs; print(time.perf_counter() - start)"
    assert min(float(run_python(code)) for _ in range(5)) < 0.5


@pytest.mark.parametrize("name", ["ccfs", "ccfs.certificates", "ccfs.controllers", "ccfs.envs", "ccfs.cli.main"])
def test_import_pulls_in_nothing_heavy(name):
    loaded = run_python(f"import sys, {name}; print(*sys.modules)").split()
    assert name in loaded
    assert set(HEAVY) & set(loaded) == set()


def run_command(*arguments: str) -> str:
    script = Path(sys.executable).with_name("ccfs")
    done = subprocess.run([str(script), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_command_prints_version_of_the_project():
    version = run_python("import ccfs; print(ccfs.__version__)").strip()
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert run_command("--version") == f"ccfs {version}\n"


def test_command_help_lists_subcommands():
    assert "witness" in run_command("--help")
    assert "--json" in run_command("witness", "--help")


DISTRIBUTION = "ccfs-rl"
TEXTS = ("README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml", *(f"docs/{part}" for part in ("*.md", "*/*.md")))
PIP = re.compile(r"pip install ((?:-[\w-]+ )*)([^\n`#|]*)")


def told_to_install(text: str) -> list[Requirement]:
    """What a text tells people to install, without folders, files of requirements and names that code fills in."""
    found = []
    for _, words in PIP.findall(text):
        for word in re.findall(r"'([^']+)'|\"([^\"]+)\"|(\S+)", words.replace('"\n', " ")):
            name = next(filter(None, word)).rstrip(".,;:)\"'")
            if not re.match(r"[A-Za-z][\w-]*(\[[\w,{}]+\])?([=<>~].*)?$", name):
                break  # prose, a folder or the end of a text goes on behind the command
            if "{" not in name:
                found.append(Requirement(name))
    return found


def sources_and_pages() -> list[Path]:
    modules = [path for folder in (*MAPPED, "experiments") for path in (ROOT / folder).rglob("*.py")]
    return [*modules, *(path for pattern in TEXTS for path in ROOT.glob(pattern))]


def test_install_commands_are_read_from_texts():
    told = told_to_install("Install it: pip install 'ccfs-rl[safety]' and then\npip install --no-deps a==1.0 b==2")
    assert [str(one) for one in told][:1] == ["ccfs-rl[safety]"]
    assert [str(one) for one in told][-2:] == ["a==1.0", "b==2"]


def test_every_install_command_names_what_the_metadata_has():
    extras = set(metadata(DISTRIBUTION).get_all("Provides-Extra"))
    pins = {}
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            pins[canonicalize_name(Requirement(line).name)] = Requirement(line).specifier
    seen = set()
    for path in sources_and_pages():
        for wanted in told_to_install(path.read_text(encoding="utf-8")):
            assert wanted.name != "ccfs", f"{path}: on package indexes, `ccfs` is another project"
            if wanted.name == DISTRIBUTION:
                assert wanted.extras <= extras, path
                seen |= wanted.extras
            elif wanted.specifier:
                assert wanted.specifier == pins[canonicalize_name(wanted.name)], path
    assert {"sb3", "onnx", "cluster", "minari", "safety"} <= seen


def extra_calls() -> list[tuple[str, str, str]]:
    """Where `extra(module, name of the extra)` is called."""
    found = []
    for path in (ROOT / "ccfs").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "extra":
                found.append((path.name, *(ast.literal_eval(value) for value in node.args)))
    return found


def test_extras_bring_the_modules_that_messages_say_they_bring():
    homes = packages_distributions()
    calls = extra_calls()
    assert {name for _, _, name in calls} == {"torch", "onnx"}
    for path, module, name in calls:
        brought = [Requirement(line) for line in requires(DISTRIBUTION) if f'extra == "{name}"' in line]
        assert {canonicalize_name(one.name) for one in brought} & set(homes[module.partition(".")[0]]), (path, module)


def test_extras_pin_torch_nowhere_and_leave_out_what_has_no_wheels():
    for line in requires(DISTRIBUTION):
        wanted = Requirement(line)
        if wanted.name == "torch":
            assert str(wanted.specifier) == ">=2.10"
        if wanted.marker is not None and 'extra == "safety"' in line:
            assert not wanted.marker.evaluate({"python_version": "3.12", "extra": "safety"}), line
            assert wanted.marker.evaluate({"python_version": "3.11", "extra": "safety"}), line


def test_page_of_the_package_index_has_no_links_into_the_repository():
    text = (ROOT / "docs/package.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((?!https://)", text) == []
    assert metadata(DISTRIBUTION).get_payload() == text or text in str(metadata(DISTRIBUTION).json["description"])
