"""Locked requirements hold every pin with hashes, builds repeat byte for byte, and weak spots are asked about."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as installed
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ccfs.files.toml import read_toml

ROOT = Path(__file__).parents[1]
PROJECT = read_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCKS = ("core", "full-3.10", "full-3.11", "modern", "site", "tools")


@pytest.fixture(scope="module")
def supply():
    spec = importlib.util.spec_from_file_location("supply_run", ROOT / "supply" / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def locked(name, python=None):
    """Return the locked version of each package, for one version of Python if one is given."""
    text = (ROOT / "supply" / f"{name}.txt").read_text(encoding="utf-8")
    found = {}
    for entry in re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]:
        lines = [line.rstrip(" \\\n") for line in entry.splitlines()]
        assert len(lines) > 1, f"{lines[0]} has no hash"
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", line) for line in lines[1:]), lines[0]
        requirement = Requirement(lines[0])
        environment = {"python_version": python, "python_full_version": f"{python}.9"} if python else {}
        if python is None or requirement.marker is None or requirement.marker.evaluate(environment):
            (version,) = requirement.specifier
            assert version.operator == "=="
            found[canonicalize_name(requirement.name)] = version.version
    return found


@pytest.mark.parametrize(
    ("lock", "pins"),
    [("full-3.11", "requirements.txt"), ("modern", "requirements-modern.txt"), ("site", "docs/requirements.txt")],
)
def test_lock_holds_the_pins_and_only_torch_is_left_out(lock, pins):
    lines = (ROOT / pins).read_text(encoding="utf-8").splitlines()
    wanted = {
        canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines) if version
    }
    assert wanted.pop("torch", "2.13.0") == "2.13.0"
    assert locked(lock) == wanted, "run `make lock`"


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_core_lock_meets_the_requirements_on_every_python(python):
    found = locked("core", python)
    for text in (*PROJECT["dependencies"], "pytest", "hypothesis", "mpmath", "setuptools", "wheel"):
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({"python_version": python}):
            assert wanted.specifier.contains(found[canonicalize_name(wanted.name)]), text


@pytest.mark.parametrize("python", ["3.10", "3.11"])
def test_full_lock_meets_the_requirements_of_every_extra(python):
    found = locked(f"full-{python}", python)
    extras = [text for each in PROJECT["optional-dependencies"].values() for text in each]
    for wanted in map(Requirement, (*PROJECT["dependencies"], *extras)):
        is_meant = wanted.marker is None or wanted.marker.evaluate({"python_version": python})
        if is_meant and wanted.name not in ("ccfs-rl", "torch"):
            assert wanted.specifier.contains(found[canonicalize_name(wanted.name)], prereleases=True), str(wanted)
    assert {"safety-gymnasium", "gymnasium-robotics", "omnisafe"} <= set(found)


@pytest.mark.parametrize(
    ("name", "python"),
    [*(("core", f"3.{minor}") for minor in range(10, 14)), ("full-3.10", "3.10"), ("full-3.11", "3.11")],
)
def test_lock_holds_what_its_packages_need(name, python):
    """Of packages that are installed here in the same version. pip does not follow those that come apart."""
    found = {**locked(name, python), "torch": ""}
    apart = {"safety-gymnasium", "gymnasium-robotics", "omnisafe", "axe-playwright-python"}  # of the last one, a script
    environment = {"python_version": python, "python_full_version": f"{python}.9", "extra": ""}
    missing = {
        f"{package} needs {wanted.name}"
        for package in set(found) - apart
        for wanted in map(Requirement, needs(package, found[package]))
        if wanted.marker is None or wanted.marker.evaluate(environment)
        if canonicalize_name(wanted.name) not in found
    }
    assert not missing, "add it to requirements.txt and run `make lock`"


def needs(package, version):
    try:
        return (requires(package) or ()) if installed(package) == version else ()
    except PackageNotFoundError:
        return ()


@pytest.mark.parametrize("name", LOCKS)
def test_lock_names_no_address(name):
    text = (ROOT / "supply" / f"{name}.txt").read_text(encoding="utf-8")
    assert locked(name)
    assert not re.search(r"://|--(extra-)?index|--find-links|^torch==|^nvidia", text, flags=re.MULTILINE)


def test_page_of_licences_names_every_pin():
    page = (ROOT / "supply" / "licences.md").read_text(encoding="utf-8")
    named = {
        canonicalize_name(name): licence for name, licence in re.findall(r"^\| (\S+) \| (.+) \|$", page, re.MULTILINE)
    }
    assert set(locked("full-3.11")) <= set(named), "run `make supply`"
    assert all(named.values())


@pytest.mark.slow
def test_wheel_and_sdist_are_the_same_bytes_again(supply, tmp_path):
    """The second builder has other permissions, another folder, and other times on its files."""
    builds = [supply.build(ROOT, tmp_path / name, mask) for name, mask in (("first", 0o022), ("second", 0o077))]
    assert [path.name for path in builds[0]] == ["ccfs_rl-0.1.0.tar.gz", "ccfs_rl-0.1.0-py3-none-any.whl"]
    for one, other in zip(*builds, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    # The sdist is whole: a wheel that is built from it is the same.
    subprocess.run(["tar", "xzf", builds[0][0], "-C", tmp_path], check=True)
    again = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "-o",
        str(tmp_path),
        str(tmp_path / "ccfs_rl-0.1.0"),
    ]
    epoch = {"SOURCE_DATE_EPOCH": str(supply._epoch(ROOT))}
    subprocess.run(again, check=True, capture_output=True, umask=0o022, env={**supply.os.environ, **epoch})
    assert (tmp_path / builds[0][1].name).read_bytes() == builds[0][1].read_bytes()


def answers(*vulnerable):
    def asked(pins):
        found = (pin.split("==") for pin in pins)
        return [
            {"name": name, "version": version, "vulns": [{"id": "CVE-1", "fix_versions": []}] * (name in vulnerable)}
            for name, version in found
        ]

    return asked


def test_vulnerabilities_are_not_checked_without_a_database_that_knows_any(supply, monkeypatch, capsys):
    for asked in (lambda pins: [], answers()):
        monkeypatch.setattr(supply, "_asked", asked)
        assert supply._vulnerabilities(["a==1"]) == 0
        told = capsys.readouterr().out
        assert told.startswith("Vulnerabilities: NOT CHECKED. This machine cannot ask")
        assert "none of our packages" in told


def test_vulnerability_fails_the_check_unless_it_is_accepted(supply, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(supply, "_asked", answers("jinja2", "a"))
    assert supply._vulnerabilities(["a==1", "b==2"]) == 1
    assert "VULNERABLE: a 1: CVE-1, mended in no release\n" in capsys.readouterr().out
    (tmp_path / "accepted.txt").write_text("# why\nCVE-1 we do not call it\n")
    monkeypatch.setattr(supply, "HERE", tmp_path)
    assert supply._vulnerabilities(["a==1", "b==2"]) == 0
    assert "asked about 2 of 2 packages, 1 known, 0 new" in capsys.readouterr().out
