"""A signed run: what verify says about it, and that nothing forged, swapped, stale or resealed passes."""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64decode, b64encode

import keys
import pytest
from toy_protocol import contents, protocol
from typer.testing import CliRunner

from ccfs.audit.run import audit
from ccfs.cli.main import app
from ccfs.files.digests import canonical_json
from ccfs.files.signing import SignatureError, envelope, ssh_signature
from ccfs.results.certify import certify
from ccfs.results.verify import signature_check
from ccfs.runs.executors import serial_engine
from ccfs.runs.manifest import ATTESTATION, MANIFEST, SIGNATURE, Manifest, _digest, write_manifest
from ccfs.runs.run import run
from ccfs.runs.signature import NAMESPACE, sign_run, signed_by
from ccfs.runs.store import RunError, Store

pytestmark = pytest.mark.slow
CERTIFICATE = "certificates/steer/one/safe.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signed")
    few = protocol(folder, trials=16)
    certify(run(few, folder / "run", serial_engine(), where="p"))
    sign_run(Store(folder / "run"), keys.ada(folder)[0])
    other = protocol(folder, trials=16, seed=("seed = 7", "seed = 8"))
    certify(run(other, folder / "other", serial_engine(), where="p"))
    sign_run(Store(folder / "other"), keys.bob(folder)[0])
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "made")


@pytest.fixture
def store(folder):
    return Store(folder / "run")


def verify(folder, *words, run="run", signer="ada.pub"):
    certificate = folder / run / CERTIFICATE
    place = ["--run", folder / run, "--signer", folder / signer]
    return CliRunner().invoke(app, ["verify", *map(str, (certificate, *place, *words))])


def test_verify_says_what_was_signed_by_whom_and_which_certificate_belongs_to_it(folder, store):
    result = verify(folder)
    assert result.exit_code == 0, result.output
    digest = store.digest(MANIFEST)
    assert (
        f"the signature of ada@example.org (key {keys.FINGERPRINT}) in {SIGNATURE} and {ATTESTATION}" in result.output
    )
    assert f"with SHA-256 {digest}. Its {len(contents(store.root)) - 3} files are here and unchanged" in result.output
    assert f"this certificate is {CERTIFICATE} among them" in result.output
    told = json.loads(verify(folder, "--json").output)["signature"]
    assert told == {
        "signer": "ada@example.org",
        "key": keys.FINGERPRINT,
        "manifest": digest,
        "files": len(contents(store.root)) - 3,
        "certificate": CERTIFICATE,
        "signatures": [SIGNATURE, ATTESTATION],
    }


def test_signature_is_one_that_ssh_keygen_accepts_and_makes(folder, store):
    (folder / "allowed").write_text(f"ada {keys.ADA_PUBLIC}\n")
    manifest = store.read(MANIFEST)
    check = ("-Y", "verify", "-f", folder / "allowed", "-I", "ada", "-n", NAMESPACE, "-s", store.path(SIGNATURE))
    done = keys.keygen(*check, given=manifest)
    if done is not None:
        assert done.returncode == 0, done.stderr
        assert keys.keygen(*check, given=manifest + b" ").returncode != 0
        # Whoever has the key in an agent signs with ssh-keygen alone. Then there is no attestation, and verify says so.
        store.path(SIGNATURE).unlink()
        store.path(ATTESTATION).unlink()
        made = keys.keygen("-q", "-Y", "sign", "-f", folder / "ada", "-n", NAMESPACE, store.path(MANIFEST))
        assert made.returncode == 0, made.stderr
    assert verify(folder, signer="allowed").exit_code == 0


def test_statement_names_the_manifest_and_every_certificate_for_tools_of_others(store):
    statement = json.loads(b64decode(json.loads(store.read(ATTESTATION))["payload"]))
    listed = json.loads(store.read(MANIFEST))["files"]
    subjects = {part["name"]: part["digest"]["sha256"] for part in statement["subject"]}
    assert subjects == {
        MANIFEST: store.digest(MANIFEST),
        **{name: digest for name, digest in listed.items() if name.startswith("certificates/")},
    }
    assert CERTIFICATE in subjects
    assert statement["predicateType"] == "urn:ccfs:run:1"
    assert statement["predicate"]["protocol"] == store.protocol().hash


def test_sign_gives_the_same_bytes_again_and_leaves_the_manifest(folder, store):
    before = contents(store.root)
    sign_run(store, keys.ada(folder)[0])
    assert contents(store.root) == before
    assert SIGNATURE not in json.loads(store.read(MANIFEST))["files"]
    assert audit(store).is_clean


def test_sign_refuses_a_run_of_another_signer_and_changes_nothing(folder, store):
    before = contents(store.root)
    with pytest.raises(RunError, match=re.escape(f"is signed by another key, {keys.FINGERPRINT}. Remove {SIGNATURE}")):
        sign_run(store, keys.bob(folder)[0])
    assert contents(store.root) == before


@pytest.mark.parametrize("name", [CERTIFICATE, "protocol.json", "traces/steer/one/nominal/batch-00000.parquet"])
def test_sign_refuses_a_run_with_a_changed_file(folder, store, name):
    store.path(name).write_bytes(store.read(name) + b" ")
    with pytest.raises(RunError, match=f"{name}: was changed after it was written. Audit this run before signing"):
        sign_run(store, keys.ada(folder)[0])
    assert verify(folder).exit_code == 1


def resealed(store):
    """Write the manifest anew, as a forger does who has changed a file: every hash fits again."""
    write_manifest(store, store.protocol())


def _add_file(folder, store):
    store.write("traces/more.parquet", b"x")
    resealed(store)


def _drop_certificate_of_manifest(folder, store):
    manifest = json.loads(store.read(MANIFEST))
    del manifest["files"][CERTIFICATE]
    manifest["digest"] = _digest(manifest["protocol"], manifest["files"])
    store.write(MANIFEST, Manifest.model_validate_json(canonical_json(manifest)).to_bytes())


def _swap_run(folder, store):
    """Another run under the signatures of this one."""
    for name in (SIGNATURE, ATTESTATION):
        shutil.copy(store.path(name), folder / "other" / name)
    shutil.rmtree(store.root)
    shutil.move(folder / "other", store.root)


def _swap_signature(folder, store):
    shutil.copy(folder / "other" / SIGNATURE, store.path(SIGNATURE))


def _swap_attestation(folder, store):
    shutil.copy(folder / "other" / ATTESTATION, store.path(ATTESTATION))


def _swap_both(folder, store):
    _swap_signature(folder, store)
    _swap_attestation(folder, store)


def _sign_by_another(folder, store):
    store.path(SIGNATURE).unlink()
    store.path(ATTESTATION).unlink()
    sign_run(store, keys.bob(folder)[0])


def _remove_both(folder, store):
    store.path(SIGNATURE).unlink()
    store.path(ATTESTATION).unlink()


def _other_namespace(folder, store):
    store.write(SIGNATURE, ssh_signature(keys.ada(folder)[0], store.read(MANIFEST), "git"))


def _attest_less(folder, store):
    """A statement that the right key signed, about this manifest, but not the one that follows from it."""
    key = keys.ada(folder)[0]
    statement = json.loads(b64decode(json.loads(store.read(ATTESTATION))["payload"]))
    statement["subject"].pop()
    store.write(ATTESTATION, envelope(key, statement))


def _change_payload(folder, store):
    found = json.loads(store.read(ATTESTATION))
    statement = json.loads(b64decode(found["payload"]))
    statement["predicate"]["files"] += 1
    found["payload"] = b64encode(canonical_json(statement).encode()).decode()
    store.write(ATTESTATION, canonical_json(found).encode() + b"\n")


def _remove_manifest(folder, store):
    store.path(MANIFEST).unlink()


def _empty_signature(folder, store):
    store.write(SIGNATURE, b"")


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (_add_file, "was changed after it was signed"),
        (_drop_certificate_of_manifest, "was changed after it was signed"),
        (_swap_run, "was changed after it was signed, or the signature is of another run"),
        (_swap_signature, "which is none of the given signers"),
        (_swap_attestation, "which is none of the given signers"),
        (_swap_both, "which is none of the given signers"),
        (_sign_by_another, "which is none of the given signers"),
        (_remove_both, "is not signed. `ccfs sign` signs a run"),
        (_other_namespace, "must have the namespace ccfs-run"),
        (_attest_less, f"{ATTESTATION}: does not fit"),
        (_change_payload, "is not that of the key"),
        (_remove_manifest, "has no manifest.json"),
        (_empty_signature, "no signature as `ssh-keygen -Y sign` writes it"),
    ],
    ids=lambda value: value.__name__[1:] if callable(value) else "",
)
def test_verify_refuses_what_is_forged_swapped_or_resealed(folder, store, forge, words):
    forge(folder, store)
    result = verify(folder)
    assert result.exit_code == 1
    assert words in result.stderr
    told = json.loads(verify(folder, "--json").stdout)
    assert (told["holds"], told["signature"]) == (False, None)


@pytest.mark.parametrize(
    "forge", [_add_file, _swap_run, _swap_signature, _other_namespace, _attest_less, _change_payload]
)
def test_audit_calls_a_signature_that_does_not_fit_a_fault(folder, store, forge):
    forge(folder, store)
    assert not audit(store).is_clean


def test_audit_notes_the_key_and_leaves_the_name_to_the_reader(store):
    report = audit(store)
    assert report.is_clean
    assert any(f"signed by the key {keys.FINGERPRINT}" in note for note in report.notes)


def test_verify_refuses_the_certificate_of_another_run_that_is_signed_too(folder):
    result = CliRunner().invoke(
        app,
        [
            "verify",
            *map(str, (folder / "other" / CERTIFICATE, "--run", folder / "run", "--signer", folder / "ada.pub")),
        ],
    )
    assert result.exit_code == 1
    assert "this certificate is not among the files that were signed" in result.stderr


def test_verify_refuses_a_signer_file_that_is_none(folder):
    for signer, words in (("absent", "cannot be read"), ("ada", "got a private one"), ("ecdsa.pub", "Ed25519")):
        result = verify(folder, signer=signer)
        assert result.exit_code == 2
        assert words in result.stderr
    result = CliRunner().invoke(app, ["verify", str(folder / "run" / CERTIFICATE), "--signer", str(folder / "ada.pub")])
    assert result.exit_code == 2
    assert "`--signer` needs `--run RUN`" in result.stderr


def test_verify_honours_what_a_list_of_signers_says_about_a_key(folder):
    for options, code in (
        ("", 0),
        ('namespaces="ccfs-run"', 0),
        ('namespaces="git"', 1),
        ('valid-before="20200101"', 1),
    ):
        (folder / "allowed").write_text(f"ada {options} {keys.ADA_PUBLIC}\n")
        assert verify(folder, signer="allowed").exit_code == code
    with (folder / "allowed").open("a") as stream:
        stream.write(f"again {keys.ADA_PUBLIC}\n")  # one line without a condition is enough
    assert verify(folder, signer="allowed").exit_code == 0


def test_command_sign_asks_for_a_passphrase_and_refuses_wrong_keys(folder, store):
    for name in (SIGNATURE, ATTESTATION):
        store.path(name).unlink()

    def sign(key, given=""):
        return CliRunner().invoke(app, ["sign", str(store.root), "--key", str(folder / key)], input=given)

    result = sign("bob", "wrong\n")
    assert result.exit_code == 2
    assert "right passphrase" in result.stderr
    assert sign("bob").exit_code != 0  # nobody answers
    for key in ("ecdsa", "ada.pub", "absent"):
        assert sign(key).exit_code == 2
    assert not store.exists(SIGNATURE)
    result = sign("bob", f"{keys.PASSPHRASE}\n")
    assert result.exit_code == 0, result.output
    assert verify(folder, signer="bob.pub").exit_code == 0


def test_report_after_signing_makes_the_signature_stale_and_verify_says_so(folder, store):
    assert CliRunner().invoke(app, ["report", str(store.root)]).exit_code == 0
    result = verify(folder)
    assert result.exit_code == 1
    assert "was changed after it was signed" in result.stderr
    sign_run(store, keys.ada(folder)[0])
    assert verify(folder).exit_code == 0


@pytest.mark.parametrize("name", [SIGNATURE, ATTESTATION])
def test_a_signature_behind_a_link_is_refused(folder, store, name):
    store.path(name).rename(folder / "elsewhere")
    store.path(name).symlink_to(folder / "elsewhere")
    with pytest.raises(RunError, match="got a link"):
        signed_by(store, keys.ada(folder)[1])


def test_signature_check_refuses_a_changed_file_under_a_valid_signature(folder, store):
    name = "trajectories/steer/one/nominal/batch-00001.parquet"
    store.path(name).write_bytes(b"")
    with pytest.raises(SignatureError, match=f"{name}: was changed after it was written"):
        signature_check(store.root / CERTIFICATE, store, keys.ada(folder)[1])
