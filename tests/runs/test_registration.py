"""Registration before the first trial: the record, what a run takes in, and what the certificate says."""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64decode, b64encode

import keys
import pytest
from toy_protocol import contents, protocol, text
from typer.testing import CliRunner

from ccfs.audit.run import audit
from ccfs.certificates.trajectory import CertificateError
from ccfs.cli.main import app
from ccfs.files.digests import canonical_json
from ccfs.files.signing import SignatureError, envelope
from ccfs.report.page import render
from ccfs.results.certificate import RunCertificate
from ccfs.results.certify import certify
from ccfs.runs.executors import serial_engine
from ccfs.runs.manifest import write_manifest
from ccfs.runs.registration import BEGUN, REGISTRATION, Begun, read_registration, register, registered
from ccfs.runs.run import run
from ccfs.runs.store import RunError, Store

CERTIFICATE = "certificates/steer/one/safe.json"
EARLY = "2020-01-02T03:04:05Z"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tmp_path_factory.mktemp("registered")


@pytest.fixture(scope="module")
def study(made):
    return protocol(made, trials=8)


@pytest.fixture(scope="module")
def record(made, study):
    return register(study, keys.ada(made)[0], time=EARLY)


def begin(study, folder, record):
    return run(study, folder, serial_engine(), where="p", registration=record)


def test_record_holds_the_hash_the_trials_and_the_time(study, record):
    found = registered(record, "r")
    assert found.record.model_dump() == {
        "format": "ccfs/registration/1",
        "protocol": study.hash,
        "name": "toy",
        "trials": 8,
        "arms": 2,
        "claims": 2,
        "key": keys.ADA_PUBLIC.rsplit(" ", 1)[0],
        "time": EARLY,
    }
    statement = json.loads(b64decode(json.loads(record)["payload"]))
    assert statement["subject"] == [{"name": "toy", "digest": {"sha256": study.hash}}]
    assert len(record) < 2000


def forged(record, key=None, **changes):
    """A record with other words in it: signed again by a key, or with the old signature."""
    content = json.loads(record)
    statement = json.loads(b64decode(content["payload"]))
    statement["predicate"] |= changes
    if key is not None:
        statement["predicate"].setdefault("key", key.public.line)
        return envelope(key, statement)
    content["payload"] = b64encode(canonical_json(statement).encode()).decode()
    return canonical_json(content).encode() + b"\n"


def test_record_that_was_changed_is_refused(made, record):
    for changes in ({"time": "2019-01-01T00:00:00Z"}, {"trials": 9}, {"protocol": "0" * 64}):
        with pytest.raises(SignatureError, match="is not that of the key"):
            registered(forged(record, **changes), "r")
    key = keys.ada(made)[0]
    for changes in ({"time": "yesterday"}, {"trials": 0}, {"more": 1}, {"format": "ccfs/registration/2"}):
        with pytest.raises(SignatureError, match="is no registration"):
            registered(forged(record, key, **changes), "r")
    with pytest.raises(SignatureError, match="is no registration of a protocol"):
        registered(forged(record, key, protocol="0" * 64), "r")  # its subject is still the other protocol


@pytest.fixture(scope="module")
def store(made, study, record):
    found = begin(study, made / "run", record)
    certify(found)
    return Store(made / "run")


@pytest.mark.slow
def test_certificate_report_and_verify_say_that_the_run_was_registered(made, store, study, record):
    document = RunCertificate.from_bytes(store.read(CERTIFICATE), where="c")
    found, begun = read_registration(store, study)
    assert store.read(REGISTRATION) == record
    assert document.registration.model_dump() == {
        "record": found.digest,
        "key": keys.FINGERPRINT,
        "time": EARLY,
        "begun": begun.time,
    }
    words = document.registered
    assert words.startswith(f"Registered: the key {keys.FINGERPRINT} signed the protocol")
    assert "Both are the author's own times" in words
    assert words in document.premises
    assert keys.FINGERPRINT in render(store, most_steps=0)
    result = CliRunner().invoke(app, ["verify", str(store.root / CERTIFICATE), "--run", str(store.root)])
    assert result.exit_code == 0, result.output
    recomputed = result.output.partition("Only quoted")[0]
    assert f"that the key {keys.FINGERPRINT} signed a registration of this protocol" in recomputed
    alone = CliRunner().invoke(app, ["verify", str(store.root / CERTIFICATE)])
    assert "signed a registration" not in alone.output.partition("Only quoted")[0]
    assert "signed a registration" in alone.output.partition("Only quoted")[2]
    assert audit(store, replay=1).is_clean


@pytest.mark.slow
def test_certificate_without_registration_says_so_and_has_no_key_for_it(tmp_path, study):
    store = begin(study, tmp_path / "run", None)
    (document, *_) = certify(store)
    assert document.registered.startswith("Not registered: only its author says")
    assert document.registered in document.premises
    assert b"registration" not in store.read(CERTIFICATE)
    assert {REGISTRATION, BEGUN}.isdisjoint(store.files())
    assert "Not registered" in render(store, most_steps=0)
    with pytest.raises(RunError, match="was begun without a registration, so it cannot be registered any more"):
        begin(study, tmp_path / "run", register(study, keys.ada(tmp_path)[0], time=EARLY))


@pytest.mark.slow
def test_run_refuses_the_record_of_another_protocol_and_writes_nothing(tmp_path, record):
    other = protocol(tmp_path, trials=9)
    with pytest.raises(ValueError, match=r"registers the protocol 'toy' with hash .* and 8 trials, got 'toy'"):
        begin(other, tmp_path / "run", record)
    assert not (tmp_path / "run").exists()
    (tmp_path / "p.toml").write_text(text(trials=9))
    (tmp_path / "r").write_bytes(record)
    words = ["run", tmp_path / "p.toml", "-o", tmp_path / "new", "--registration", tmp_path / "r", "--workers", "1"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 2
    assert "registers the protocol" in result.stderr
    assert not (tmp_path / "new").exists()


def test_run_refuses_a_record_from_the_future(tmp_path, study):
    late = register(study, keys.ada(tmp_path)[0], time="2999-01-01T00:00:00Z")
    with pytest.raises(ValueError, match=r"which is not yet\. Check the clocks"):
        begin(study, tmp_path / "run", late)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_run_resumes_with_its_record_or_none_and_refuses_another(tmp_path, study, record, store):
    again = begin(study, tmp_path / "run", record)
    time = again.read(BEGUN)
    (again.path("batches/steer/one/nominal/batch-00001.json")).unlink()
    begin(study, tmp_path / "run", None)
    begin(study, tmp_path / "run", record)
    assert again.read(BEGUN) == time
    with pytest.raises(RunError, match="was begun with another registration"):
        begin(study, tmp_path / "run", register(study, keys.bob(tmp_path)[0], time=EARLY))
    # The trials do not depend on the registration.
    differ = {REGISTRATION, BEGUN, "manifest.json"}
    mine, theirs = contents(tmp_path / "run"), contents(store.root)
    assert {name: mine[name] for name in mine if name not in differ} == {
        name: theirs[name] for name in theirs if name not in differ and not name.startswith("certificates/")
    }


@pytest.mark.slow
def test_run_that_was_killed_between_its_first_files_resumes(tmp_path, study, record):
    """The first writes are the protocol, the record, the time and the provenance, in this order."""
    whole = begin(study, tmp_path / "whole", record)
    for kept in (("protocol.json",), ("protocol.json", REGISTRATION), ("protocol.json", REGISTRATION, BEGUN)):
        folder = tmp_path / str(len(kept))
        folder.mkdir()
        for name in kept:
            (folder / name).write_bytes(whole.read(name))
        found = begin(study, folder, record)
        assert read_registration(found, study)[0].digest == registered(record, "r").digest


def _other_signature(store, folder):
    store.write(REGISTRATION, forged(store.read(REGISTRATION), time="2019-01-01T00:00:00Z"))


def _other_key(store, folder):
    store.write(REGISTRATION, register(store.protocol(), keys.bob(folder)[0], time=EARLY))


def _no_record(store, folder):
    store.path(REGISTRATION).unlink()


def _no_time(store, folder):
    store.path(BEGUN).unlink()


def _begun_before(store, folder):
    entry = Begun.from_bytes(store.read(BEGUN), where="b")
    store.write(BEGUN, entry.model_copy(update={"time": "2019-01-01T00:00:00Z"}).to_bytes())


def _no_registration(store, folder):
    _no_record(store, folder)
    _no_time(store, folder)


@pytest.mark.slow
@pytest.mark.parametrize("forge", [_other_signature, _other_key, _no_record, _no_time, _begun_before, _no_registration])
def test_verify_and_audit_refuse_a_resealed_run_with_another_registration(tmp_path, made, store, forge):
    copy = Store(shutil.copytree(store.root, tmp_path / "run"))
    forge(copy, made)
    write_manifest(copy, copy.protocol())
    result = CliRunner().invoke(app, ["verify", str(copy.root / CERTIFICATE), "--run", str(copy.root)])
    assert result.exit_code == 1
    assert not audit(copy).is_clean


def test_certificate_that_contradicts_itself_about_its_registration_is_refused(store):
    content = json.loads(store.read(CERTIFICATE))
    content["registration"]["time"] = "2998-01-01T00:00:00Z"
    with pytest.raises(CertificateError, match="was begun before it was registered"):
        RunCertificate.from_bytes(canonical_json(content).encode() + b"\n", where="c")
    content["registration"] = None
    with pytest.raises(CertificateError, match="was changed after it was written"):
        RunCertificate.from_bytes(canonical_json(content).encode() + b"\n", where="c")


def test_command_register_writes_a_record_once(tmp_path):
    (tmp_path / "p.toml").write_text(text(trials=8))
    keys.write_keys(tmp_path)
    words = ["register", str(tmp_path / "p.toml"), "--key", str(tmp_path / "ada")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    path = tmp_path / f"p.{REGISTRATION}"
    digest = registered(path.read_bytes(), path).digest
    assert re.search(
        rf"8 trials of each of 2 arms, at 20\d\d-.*Z, by the key {re.escape(keys.FINGERPRINT)}", result.output
    )
    assert f"SHA-256 {digest}. Publish it before the first trial." in result.output
    before = path.read_bytes()
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "is there already" in result.stderr
    assert path.read_bytes() == before
