"""Forecasts for named disturbances: against certificates of whole runs, and what they refuse."""

from __future__ import annotations

import json

import numpy as np
import pytest
from toy_protocol import protocol
from typer.testing import CliRunner

from ccfs.cli.main import app
from ccfs.results.certify import certify
from ccfs.results.families import stored_families
from ccfs.runs.executors import serial_engine
from ccfs.runs.run import run
from ccfs.study.plan_families import FamilyDesign, plan_families

pytestmark = pytest.mark.slow
BIAS = '[[families]]\nname = "bias"\nfeatures = "constant"\nbox = [0.01]\ncells = [3]\n\n[[attacks]]'


def planned(folder, name, trials, box="0.01"):
    place = folder / name
    place.mkdir()
    return protocol(place, trials=trials, families=("[[attacks]]", BIAS.replace("0.01", box)))


@pytest.fixture(scope="module")
def pilot(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pilot")
    store = run(planned(folder, "pilot", 64), folder / "run", serial_engine(), where="p")
    certify(store)
    return store


def test_the_trials_of_the_pilot_themselves_give_nearly_its_certificate(pilot):
    for known in stored_families(pilot, pilot.protocol()):
        design = FamilyDesign(known, delta=known.claim.delta, family=known.claim.family)
        found = design.kept(range(known.claim.trials))
        # One cell is weighed and not three, so it is at least what the certificate has.
        assert found is not None
        assert found >= known.kept
        assert found == pytest.approx(known.kept, abs=0.01)


def test_more_trials_promise_more_and_the_needed_number_does_it(pilot):
    known = stored_families(pilot, pilot.protocol())[0]
    design = FamilyDesign(known, delta=0.1, family=1)
    medians = [np.median(design.simulated(trials)) for trials in (32, 128, 512)]
    assert medians == sorted(medians)
    assert medians[0] < medians[-1]
    target = float(medians[1])
    needed = design.needed(target, 0.9)
    assert 32 <= needed <= 512
    assert design.chance(needed, target) >= 0.9
    assert FamilyDesign(known, delta=0.1, family=1).simulated(128) == design.simulated(128)


def test_plan_command_forecasts_named_disturbances_from_a_pilot(pilot, tmp_path):
    planned(tmp_path, "study", 40)
    file = tmp_path / "study" / "protocol.toml"
    done = CliRunner().invoke(app, ["plan", str(file), "--pilot", str(pilot.root), "--target", "0.5", "--json"])
    found = json.loads(done.stdout)
    assert [one["name"].rpartition(", ")[2] for one in found["families"]] == ["bias"] * len(found["plans"])
    shown = CliRunner().invoke(app, ["plan", str(file), "--pilot", str(pilot.root)])
    assert "keeps, nearly always" in shown.output
    assert "bias" in shown.output
    assumed = CliRunner().invoke(app, ["plan", str(file), "--rate", "0.99"])
    assert "Named disturbances are forecast from a pilot that has them: --pilot RUN." in assumed.output


def test_plan_families_refuses_a_pilot_with_another_box(pilot, tmp_path):
    other = planned(tmp_path, "other", 40, box="0.02")
    with pytest.raises(ValueError, match=r"must have the disturbance bias of .* but has none or another one"):
        plan_families(other, pilot, chance=0.9)
