"""A certificate of a run states its resolution and its premises."""

from __future__ import annotations

import json

import pytest
from toy_protocol import protocol

from ccfs.certificates.trajectory import CertificateError
from ccfs.results.certificate import RunCertificate
from ccfs.results.certify import certify
from ccfs.runs.executors import serial_engine
from ccfs.runs.run import run


@pytest.fixture(scope="module", params=["exact", "2^-8"])
def document(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    declared = ("[[controllers]]", f'resolution = "{request.param}"\n\n[[controllers]]')
    made = protocol(folder, x=declared)
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
