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
    assert [resolution in text for text in rest] == ([] if resolution == "exact" else [True])


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
    assert in_words(certificate) == certificate.sentence
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
