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


@pytest.mark.parametrize("wrong", ["2^-08", "none", "", None, 0.5])
def test_run_certificate_refuses_a_resolution_that_is_none(document, wrong):
    content = json.loads(document[0].to_bytes())
    content["resolution"] = wrong
    with pytest.raises(CertificateError, match="`resolution`"):
        RunCertificate.from_bytes(json.dumps(content).encode(), where="file")
