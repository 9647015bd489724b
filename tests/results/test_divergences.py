"""Divergences on certificates: written, compared when they are read, and absent on files of earlier releases."""

from __future__ import annotations

import json

import pytest
from toy_protocol import protocol

from ccfs.audit.run import audit
from ccfs.certificates.gaussian import divergences
from ccfs.certificates.trajectory import CertificateError, TrajectoryCertificate
from ccfs.files.digests import canonical_json
from ccfs.report.page import render
from ccfs.results.certificate import RunCertificate
from ccfs.results.certify import certify
from ccfs.results.verify import verify
from ccfs.runs.executors import serial_engine
from ccfs.runs.manifest import write_manifest
from ccfs.runs.run import run

NAME = "certificates/steer/one/safe.json"


@pytest.fixture
def store(tmp_path):
    made = run(protocol(tmp_path, trials=24), tmp_path / "run", serial_engine(), where="p")
    certify(made)
    return made


def without(content: bytes) -> bytes:
    """A certificate as earlier releases wrote it."""
    entries = json.loads(content)
    del entries["claim"]["divergences"]
    return canonical_json(entries).encode() + b"\n"


@pytest.mark.slow
def test_certificate_carries_its_divergences_and_the_page_shows_them(store):
    document = RunCertificate.from_bytes(store.read(NAME), where=NAME)
    proof = document.trajectory
    found = divergences(proof.mu)
    told = document.claim.divergences
    assert (told.total_variation, told.kl, told.chi_square) == (found.total_variation, found.kl, found.chi_square)
    assert told.renyi_2 == found.renyi(2.0)
    assert "How far such shifts can move everything that is public" in render(store, most_steps=0)
    entries = json.loads(proof.to_json())
    entries["divergences"]["kl"] /= 2.0
    with pytest.raises(CertificateError, match="`divergences` is"):
        TrajectoryCertificate.from_json(json.dumps(entries))
    del entries["divergences"]
    assert TrajectoryCertificate.from_json(json.dumps(entries)) == proof


@pytest.mark.slow
def test_certificates_of_earlier_releases_are_read_verified_and_audited(store):
    before = without(store.read(NAME))
    old = RunCertificate.from_bytes(before, where=NAME)
    assert old.claim.divergences is None
    assert old.to_bytes() == before
    assert old.trajectory.divergences is not None
    store.write(NAME, before)
    write_manifest(store, store.protocol())
    assert verify(store.path(NAME), store) == old
    assert audit(store, replay=0).faults == ()
    certify(store)
    assert RunCertificate.from_bytes(store.read(NAME), where=NAME).claim.divergences is not None


def test_certificate_of_nothing_has_no_divergences():
    from ccfs.certificates.schedule import ProposalSchedule
    from ccfs.certificates.trajectory import certify_event

    block = ProposalSchedule(count=1, sigma=0.2)
    proof = certify_event(3, 10, delta=0.1, family=1, target=0.9, schedule=block, bound="cohort")
    assert "divergences" not in json.loads(proof.to_json())
    assert TrajectoryCertificate.from_json(proof.to_json()) == proof
