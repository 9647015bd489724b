"""What contributors and the public forge rely on: make targets that exist, and files in the shape the forge expects."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
WORKFLOW = ROOT / ".github" / "workflows" / "test.yml"
HOOKS = ROOT / ".pre-commit-config.yaml"
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
# What a forge's issue form may hold, and which kinds of field need an id to be told apart.
KINDS = {"markdown", "input", "textarea", "dropdown", "checkboxes"}


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.M))


def called(text: str) -> set[str]:
    """The make targets that a text calls: at the start of a line or after a backtick."""
    return set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M))


def commands(target: str) -> str:
    """What make would run for a target, with every environment taken as ready."""
    ready = [f"--old-file={name}/.ready" for name in (".venv", ".venv-modern", "build/typed")]
    done = subprocess.run(["make", "-n", *ready, target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def steps() -> dict[str, str]:
    jobs = yaml.safe_load(text_of(WORKFLOW))["jobs"]
    return {name: "\n".join(step["run"] for step in job["steps"] if "run" in step) for name, job in jobs.items()}


def test_called_finds_targets() -> None:
    assert called("make test # x\nrun `make quick`, make no, remake it\n  make core PYTHON=p") == {"test", "quick"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_pages_name_make_targets_that_exist(path: Path) -> None:
    assert called(text_of(path)) <= targets()


def test_workflow_calls_make_targets_that_exist() -> None:
    found = {name: called(text) for name, text in steps().items()}
    ours = {"everything": {"test"}, "supply": {"dist", "supply"}, "site": {"site"}, "core": {"core"}}
    assert found == ours
    assert set().union(*ours.values()) <= targets()


def supported() -> list[str]:
    """Every supported Python, the oldest first."""
    text = text_of(ROOT / "pyproject.toml")
    first, last = map(int, re.findall(r'^requires-python = ">=3\.(\d+),<3\.(\d+)"$', text, re.M)[0])
    return [f"3.{minor}" for minor in range(first, last)]


def test_types_are_checked_for_the_oldest_supported_python() -> None:
    (checked,) = re.findall(r'^python_version = "(.+?)"', text_of(ROOT / "pyproject.toml"), re.M)
    assert checked == supported()[0]


def test_workflow_runs_the_core_on_every_supported_python() -> None:
    job = yaml.safe_load(text_of(WORKFLOW))["jobs"]["core"]
    assert job["strategy"]["matrix"]["python"] == supported()
    assert "PYTHON=python${{ matrix.python }}" in steps()["core"]


def test_hooks_are_local_and_call_what_exists() -> None:
    (repository,) = yaml.safe_load(text_of(HOOKS))["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    entries = [hook["entry"] for hook in repository["hooks"]]
    assert {"make lint", "make quick"} <= set(entries)
    for entry in entries:
        assert entry.startswith(".venv/bin/ruff ") or set() < called(entry) <= targets(), entry


def test_quick_leaves_slow_tests_out_and_test_leaves_nothing_out() -> None:
    assert '-m "not slow"' in commands("quick")
    assert "ruff check" in commands("quick")
    everything = commands("test")
    assert "not slow" not in everything
    for part in ("ruff check", "mypy --strict", "pytest -q"):
        assert part in everything


@pytest.mark.parametrize("target", ["modern", "core"])
def test_make_names_tests_that_exist(target: str) -> None:
    named = re.findall(r"(?<![\w/])(?:\.\./)?(tests/\S+)", commands(target))
    assert len(named) >= 5
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_contributing_lists_the_layers_in_their_order() -> None:
    tested = re.search(r"^ROOMS = \((.*?)^\)", text_of(ROOT / "tests" / "test_dependency_direction.py"), re.M | re.S)
    listed = re.search(r"^(`files`, .*)\.$", text_of(ROOT / "CONTRIBUTING.md"), re.M)
    assert tested is not None
    assert listed is not None
    rooms = re.findall(r'"ccfs\.(\w+)"', tested[1])
    assert rooms == ["certificates", *re.findall(r"`(\w+)`", listed[1])]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_form_has_the_shape_that_a_forge_reads(path: Path) -> None:
    form = yaml.safe_load(text_of(path))
    assert {"name", "description", "body"} <= set(form)
    assert {field["type"] for field in form["body"]} <= KINDS
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in asked}) == len(asked)
    assert all(field["attributes"]["label"] for field in asked)
    assert any(field.get("validations", {}).get("required") for field in asked)


def test_issue_forms_are_those_that_the_pages_name() -> None:
    assert [path.stem for path in FORMS] == ["bug", "feature", "unsound-certificate"]
    assert f'"{yaml.safe_load(text_of(FORMS[2]))["name"]}"' in text_of(ROOT / "SECURITY.md")
