"""What the doctor says about this machine, and that the commands it prints follow from the package's metadata."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from typer.testing import CliRunner

from ccfs.cli.demo import demo_protocol
from ccfs.cli.main import app
from ccfs.study import doctor
from ccfs.study.cite import AUTHORS, SOFTWARE, TITLE, bibtex

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def bare(monkeypatch):
    """A machine on which nothing but this package is installed."""

    def version(name):
        if name == doctor.distribution():
            return "0.1.0"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)


def test_commands_on_a_bare_machine_are_the_requirements_of_the_project(bare):
    found = {check.name: check for check in doctor.diagnosis(is_quick=True).checks}
    assert found["core packages"].state == "broken"
    for name, wanted in PROJECT["optional-dependencies"].items():
        check = found[f"extra {name}"]
        assert check.state == "missing"
        printed = [part for command in check.mend for part in shlex.split(command)[4:] if not part.startswith("--")]
        plain = [text for text in wanted if not text.startswith(PROJECT["name"])]
        # A command is for this Python, so it has no marker.
        without_marker = {str(Requirement(text.partition(";")[0])) for text in plain}
        assert without_marker <= {str(Requirement(text)) for text in printed}, name
    assert found["browser"].mend == ("apt-get install chromium",)


def test_no_command_installs_the_package_of_that_name_on_pypi(bare):
    commands = [command for check in doctor.diagnosis(is_quick=True).checks for command in check.mend]
    assert len(commands) >= 8
    for command in commands:
        assert not re.search(r"install.*[ ']ccfs([\[' ]|$)", command), command


def test_packages_that_go_in_without_dependencies_are_those_that_the_project_pins():
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    for wanted in doctor.WITHOUT_DEPENDENCIES.values():
        assert set(wanted) <= set(pins)


def test_missing_requirements_follow_extras_of_extras(monkeypatch):
    monkeypatch.setattr(doctor, "_is_met", lambda wanted: wanted.name != "mujoco")
    assert doctor.missing_requirements("safety") == ["mujoco==2.3.3"]
    assert doctor.missing_requirements("omnisafe") == ["mujoco==2.3.3"]
    assert doctor.missing_requirements("sb3") == []
    monkeypatch.setattr(doctor, "_is_met", lambda wanted: False)
    assert len(doctor.missing_requirements(None)) == len(PROJECT["dependencies"]) - 1  # tomli is for older Pythons


def test_a_command_keeps_the_pins_of_an_extra_that_works(monkeypatch):
    """pip would bring a newer Gymnasium beside Stable-Baselines3, and Safety-Gymnasium would be gone."""
    monkeypatch.setattr(doctor, "_is_met", lambda wanted: "stable" not in wanted.name)
    (command,) = doctor._extra("sb3").mend
    assert "'stable-baselines3>=2.3.2' " in command
    assert {"gymnasium==0.28.1", "mujoco==2.3.3", "numpy<2", "pyarrow<26"} <= set(shlex.split(command))
    monkeypatch.setattr(doctor, "_is_met", lambda wanted: wanted.name not in ("stable-baselines3", "mujoco"))
    (alone,) = doctor._extra("sb3").mend
    assert "gymnasium" not in alone


def test_a_build_of_a_release_meets_its_pin(monkeypatch):
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "2.13.0+cpu")
    assert doctor._is_met(Requirement("torch==2.13.0"))
    assert not doctor._is_met(Requirement("torch>=2.14"))


@pytest.mark.slow
def test_code_that_ends_its_process_is_reported_and_not_fatal():
    check = doctor._tried("renderer", "import os; os.abort()", "works", "no pictures", ("do this",))
    assert (check.state, check.mend) == ("broken", ("do this",))
    fine = doctor._tried("renderer", "pass", "works", "no pictures", ("do this",))
    assert (fine.state, fine.mend) == ("works", ())


@pytest.mark.slow
def test_doctor_command_prints_states_and_json():
    answer = CliRunner().invoke(app, ["doctor", "--quick"])
    assert answer.exit_code == 0, answer.output
    assert "certified arithmetic" in answer.output
    found = json.loads(CliRunner().invoke(app, ["doctor", "--quick", "--json"]).output)
    assert found["format"] == "ccfs/doctor/1"


def test_bibtex_names_the_paper_as_the_citation_file_does():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f'  title: "{TITLE}"' in text
    assert f'title: "{SOFTWARE}"' in text
    given = re.findall(r'given-names: "(.+)"', text)
    family = re.findall(r'family-names: "(.+)"', text)
    assert tuple(zip(given, family, strict=True)) == AUTHORS


def test_bibtex_of_a_run_has_its_protocol_hash_and_balanced_braces():
    protocol = demo_protocol()
    made = bibtex(protocol)
    assert protocol.hash in made
    assert made.count("{") == made.count("}")
    assert len(re.findall(r"^@\w+\{[\w-]+,$", made, re.M)) == 3


@pytest.mark.slow
def test_zoo_commands_show_the_shipped_cards():
    from ccfs.controllers.zoo import load, names

    listed = CliRunner().invoke(app, ["zoo", "list"])
    assert all(name in listed.output for name in names())
    cards = json.loads(CliRunner().invoke(app, ["zoo", "list", "--json"]).output)
    assert [card["name"] for card in cards] == list(names())
    shown = CliRunner().invoke(app, ["zoo", "show", names()[0]])
    assert load(names()[0]).card.digest in shown.output
    assert CliRunner().invoke(app, ["zoo", "show", "absent"]).exit_code == 2
