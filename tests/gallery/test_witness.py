"""`ccfs witness`: what it prints must be what the exact modules prove, for people and for machines."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import fields, replace
from fractions import Fraction

import pytest
from typer.testing import CliRunner

from ccfs import __version__
from ccfs.certificates.rational import Interval
from ccfs.certificates.witnesses import StrictCheck, confidence_filter, l_shape, two_band
from ccfs.cli.main import app
from ccfs.gallery import witness

MAKERS = {"confidence-filter": confidence_filter, "l-shape": l_shape, "two-band": two_band}


@pytest.fixture(scope="module")
def printed() -> str:
    result = CliRunner().invoke(app, ["witness"], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def machine() -> dict:
    result = CliRunner().invoke(app, ["witness", "--json"], env={"COLUMNS": "40"})
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_witness_command_prints_paper_digits(printed):
    for digits in (
        "[0.575680482980531554452451, 0.575680482980531554452452]",
        "[0.190855207763199855950320, 0.190855207763199855950321]",
        "[1.091538667648430022208362, 1.091538667648430022208363]",
        "1/450 exactly",
        "0.04067994841241465132",
        "0.09470767664273030523",
        "0.11888914386462333130",
    ):
        assert digits in printed


def test_witness_command_says_what_each_shows(printed):
    text = " ".join(printed.split())
    for page in witness.pages():
        assert page.title in text
        assert f"What it shows: {page.shows}" in text
        for check in page.checks:
            assert f"proved {check.claim}" in text
    assert "NOT PROVED" not in text


def test_witness_command_marks_unsound_radii_wherever_printed(printed):
    assert printed.count("r_cond(a), unsound") == 3


def test_witness_json_states_schema_version_and_order(machine):
    assert machine["schema"] == witness.SCHEMA
    assert machine["version"] == __version__
    assert machine["is_proved"] is True
    assert [entry["name"] for entry in machine["witnesses"]] == list(MAKERS)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_witness_json_round_trips_every_enclosure(machine, name):
    (entry,) = (entry for entry in machine["witnesses"] if entry["name"] == name)
    expected = MAKERS[name]()
    assert [item["name"] for item in entry["quantities"]] == [field.name for field in fields(expected)]
    for item in entry["quantities"]:
        value = Interval.of(getattr(expected, item["name"]))
        assert Interval(lower=Fraction(item["lower_exact"]), upper=Fraction(item["upper_exact"])) == value
        assert Interval(lower=Fraction(item["lower"]), upper=Fraction(item["upper"])).contains(value)
        assert re.fullmatch(r"\d\.\d{24}", item["lower"])
        assert item["is_exact"] is (value.width == 0)
    assert entry["checks"] == [{"claim": check.claim, "holds": True} for check in expected.checks]


def test_witness_json_holds_no_number_that_could_lose_digits(machine):
    def walk(node: object) -> None:
        assert not isinstance(node, (int, float)) or isinstance(node, bool)
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(child)

    walk(machine)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_witness_command_exits_one_when_a_claim_is_not_proved(monkeypatch, flags):
    first, *rest = witness.pages()
    broken = replace(first, checks=(StrictCheck(claim="two is less than one", holds=False),))
    monkeypatch.setattr(witness, "pages", lambda: (broken, *rest))
    result = CliRunner().invoke(app, ["witness", *flags])
    assert result.exit_code == 1
    assert ('"is_proved": false' if flags else "NOT PROVED  two is less than one") in result.output


def test_witness_command_is_deterministic(machine):
    assert json.loads(witness.document(witness.pages())) == machine


def test_witness_command_refuses_unknown_options():
    assert CliRunner().invoke(app, ["witness", "--bogus"]).exit_code == 2


@pytest.mark.slow
def test_witness_command_takes_under_three_seconds_of_processor_time():
    """Start-up included; processor time, so that a busy machine does not decide."""
    before = os.times()
    subprocess.run(
        [sys.executable, "-c", "from ccfs.cli.main import app; app()", "witness", "--json"],
        check=True,
        capture_output=True,
    )
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 3.0
