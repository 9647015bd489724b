"""A certificate of a run states its resolution and its premises, where it comes from, and how its trials ended."""

from __future__ import annotations

import json

import numpy as np
import pytest
from toy_protocol import protocol

from ccfs.certificates.trajectory import CertificateError
from ccfs.results.certificate import RunCertificate, in_words
from ccfs.results.certify import certify
from ccfs.runs.executors import serial_engine
from ccfs.runs.run import run


@pytest.fixture(scope="module", params=["exact", "2^-8"])
def document(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    declared = ("[[controllers]]", f'resolution = "{request.param}"\n\n[[controllers]]')
    made = protocol(folder, x=declared, narrow=("post = 0.6", "post = 0.3"))
    return certify(run(made, folder / "run", serial_engine(), where="toy"))[0], request.param


def test_run_certificate_states_the_resolution_and_the_premise_that_comes_with_it(document):
    certificate, resolution = document
    stored = json.loads(certificate.to_bytes())
    assert stored["resolution"] == resolution
    rest = certificate.premises[len(certificate.trajectory.premises) :]
    assert certificate.premises[: len(certificate.trajectory.premises)] == certificate.trajectory.premises
    assert [resolution in text for text in rest] == ([] if resolution == "exact" else [True]) + [False]
    assert rest[-1] == certificate.registered


@pytest.mark.parametrize("wrong", ["2^-08", "2^-61", "2^-99", "2^-1\u0665", "none", "", None, 0.5])
def test_run_certificate_refuses_a_resolution_that_is_none(document, wrong):
    content = json.loads(document[0].to_bytes())
    content["resolution"] = wrong
    with pytest.raises(CertificateError, match="`resolution`"):
        RunCertificate.from_bytes(json.dumps(content).encode(), where="file")


def with_horizon(certificate, steps):
    """Return the bytes of a certificate whose event looks at this many steps, with a digest that fits."""
    arguments = {**certificate.definition.arguments, "horizon": steps}
    definition = certificate.definition.model_copy(update={"arguments": arguments})
    return certificate.model_copy(update={"definition": definition}).to_bytes()


@pytest.mark.parametrize("wrong", [999, 10**30, 0, -1, "007", "6 steps", True, 2.0])
def test_run_certificate_refuses_an_event_of_more_steps_than_a_trial_has(document, wrong):
    with pytest.raises(CertificateError, match="steps"):
        RunCertificate.from_bytes(with_horizon(document[0], wrong), where="file")
    right = with_horizon(document[0], document[0].horizon)
    assert RunCertificate.from_bytes(right, where="file").definition.arguments["horizon"] == document[0].horizon


def changed(certificate, **updates):
    return certificate.model_copy(update=updates).to_bytes()


def test_run_certificate_knows_where_it_comes_from(document):
    certificate, resolution = document
    assert (certificate.seed, certificate.environment.make) == (7, "corridor")
    assert certificate.environment.resolution == resolution
    assert certificate.provenance.packages["numpy"] == np.__version__
    assert {"environment", "program.verifier", "events.safe"} <= set(certificate.provenance.parts)


def test_run_certificate_counts_how_trials_ended_and_says_which_endings_decided(document):
    certificate = document[0]
    assert sum(certificate.outcomes.values()) == certificate.trajectory.trials == 10
    assert (certificate.lost, certificate.remarks) == ({}, ())
    assert in_words(certificate) == certificate.sentence == str(certificate)
    failed = certificate.trajectory.trials - certificate.trajectory.successes
    assert failed, "the toy must fail at times, or the next lines test nothing"
    outcomes = {"horizon": 10 - failed, "terminated": failed}
    again = RunCertificate.from_bytes(changed(certificate, outcomes=outcomes, lost={"terminated": failed}), where="f")
    words = f"{failed} of 10 nominal trials failed because the environment terminated the episode."
    assert in_words(again) == f"{certificate.sentence} {words}"


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ({"outcomes": {"horizon": 9}}, "outcomes of 9 trials, but 10"),
        ({"outcomes": {}}, "outcomes of 0 trials"),
        ({"lost": {"terminated": 1}}, "more trials that failed because of how they ended"),
        ({"lost": {"horizon": 10}}, "more trials that failed because of how they ended"),
        ({"lost": {"horizon": 0}}, "`lost.horizon`"),
        ({"outcomes": {"won": 10}}, "`outcomes.won"),
    ],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_run_certificate_refuses_endings_that_contradict_its_counts(document, updates, message):
    with pytest.raises(CertificateError, match=message):
        RunCertificate.from_bytes(changed(document[0], **updates), where="file")


STAGED = (
    "[[schedules]]\nname = \"one\"\naction = { count = 1, sigma = 0.2 }",
    "[[schedules]]\nname = \"one\"\naction = { count = 1, sigma = 0.2 }\nsensor = { sigma = { position = 0.05 } }",
)  # fmt: skip


def test_run_certificate_of_a_sensor_stage_says_that_noise_comes_after_rounding(tmp_path):
    declared = ("[[controllers]]", 'resolution = "2^-8"\n\n[[controllers]]')
    documents = certify(run(protocol(tmp_path, x=declared, y=STAGED), tmp_path / "run", serial_engine(), where="toy"))
    sensed, plain = documents
    assert "arrives larger by at most 2^-8 in each coordinate" in sensed.premises[-2]
    assert "arrives larger" not in " ".join(plain.premises)
    assert "only these slices have noise: position." in " ".join(sensed.premises)
    assert sensed.claim.budgets["sensor"] == sensed.trajectory.budgets["sensor"]
    assert sensed.attacks[0].stages == ("action",)


def test_attacked_count_certifies_the_stage_that_was_attacked(tmp_path):
    sensor = ("budget = 0.1\narguments = { direction = [1.0] }", "stage = \"sensor\"\nbudget = 0.01")  # fmt: skip
    rule = ('rule = "constant"', 'rule = "random"')
    four = "action = { count = 4, sigma = 0.2, multiplier = 1.05 }"
    other = (f'\n[[schedules]]\nname = "four"\n{four}\n', "")
    made = protocol(tmp_path, trials=40, a=STAGED, b=sensor, c=rule, d=other)
    (document,) = certify(run(made, tmp_path / "run", serial_engine(), where="toy"))
    proof, (count,) = document.trajectory, document.attacks
    assert count.stages == ("sensor",)
    assert count.certified(proof) == proof.lower_at(sensor=0.01) < proof.lower_at(action=0.01)
    assert count.energy <= count.energy_limit == pytest.approx(0.04, rel=1e-12)
    by_energy = count.model_copy(update={"budget": None})
    assert by_energy.certified(proof) == pytest.approx(count.certified(proof), rel=1e-12)
