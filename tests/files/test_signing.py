"""Ed25519 signatures in the formats of OpenSSH and DSSE: the bytes of ssh-keygen, and no other bytes accepted."""

from __future__ import annotations

import base64
import json
import os
import struct

import keys
import pytest

from ccfs.files.digests import canonical_json
from ccfs.files.signing import (
    STATEMENT,
    KeyFileError,
    PublicKey,
    SignatureError,
    SshSignature,
    envelope,
    opened_envelope,
    pae,
    read_private_key,
    read_signers,
    ssh_signature,
)


@pytest.fixture
def folder(tmp_path):
    return keys.write_keys(tmp_path)


def never():
    raise AssertionError("nobody must be asked for a passphrase")


def test_ssh_signature_is_that_of_ssh_keygen_byte_for_byte(folder):
    """Oracle: OpenSSH 9.2, whose signature is stored. Ed25519 is deterministic, so there is one right answer."""
    key = read_private_key(folder / "ada", never)
    assert ssh_signature(key, keys.MESSAGE, keys.NAMESPACE) == keys.SIGNATURE
    assert key.public.fingerprint == keys.FINGERPRINT
    assert keys.ADA_PUBLIC.startswith(key.public.line)


def test_ssh_signature_agrees_with_the_ssh_keygen_of_this_machine(folder):
    message = os.urandom(5000)
    (folder / "m").write_bytes(message)
    key = read_private_key(folder / "ada", never)
    made = keys.keygen("-q", "-Y", "sign", "-f", folder / "ada", "-n", "ccfs-run", folder / "m")
    if made is None:
        return  # the stored signature above is from another machine's
    assert made.returncode == 0, made.stderr
    assert (folder / "m.sig").read_bytes() == ssh_signature(key, message, "ccfs-run")
    (folder / "allowed").write_text(f"ada@example.org {keys.ADA_PUBLIC}\n")
    check = ("-Y", "verify", "-f", folder / "allowed", "-I", "ada@example.org", "-s", folder / "m.sig", "-n")
    assert keys.keygen(*check, "ccfs-run", given=message).returncode == 0
    assert keys.keygen(*check, "git", given=message).returncode != 0
    assert keys.keygen(*check, "ccfs-run", given=message + b"\0").returncode != 0
    fingerprint = keys.keygen("-l", "-f", folder / "bob.pub").stdout.decode().split()[1]
    assert read_signers(folder / "bob.pub")[0].key.fingerprint == fingerprint


def test_ssh_signature_holds_for_its_message_and_namespace_alone():
    found = SshSignature.read(keys.SIGNATURE, "m.sig")
    assert found.is_of(keys.MESSAGE, "ccfs-run")
    assert not found.is_of(keys.MESSAGE + b"\n", "ccfs-run")
    assert not found.is_of(keys.MESSAGE, "file")
    assert found.key.fingerprint == keys.FINGERPRINT


def test_ssh_signature_with_any_other_byte_is_refused():
    """Every byte of the armoured file is changed once: it is refused, or it is not valid any more."""
    accepted = []
    for place in range(len(keys.SIGNATURE)):
        changed = bytearray(keys.SIGNATURE)
        changed[place] ^= 1
        try:
            found = SshSignature.read(bytes(changed), "m.sig")
        except SignatureError:
            continue
        if found.is_of(keys.MESSAGE, "ccfs-run"):
            accepted.append(place)
    assert accepted == []


def armoured(blob):
    text = base64.b64encode(blob).decode()
    return f"-----BEGIN SSH SIGNATURE-----\n{text}\n-----END SSH SIGNATURE-----\n".encode()


BLOB = base64.b64decode("".join(keys.SIGNATURE.decode().split("\n")[1:-2]))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "begin and end"),
        (b"\xff\xfe", "no signature"),
        (keys.SIGNATURE + b"x", "begin and end"),
        (armoured(b""), "version 1"),
        (armoured(BLOB[:6] + struct.pack(">I", 2) + BLOB[10:]), "version 1"),
        (armoured(BLOB + b"\0"), "nothing left over"),
        (armoured(BLOB[:-1]), "nothing missing"),
        (armoured(BLOB[:10] + struct.pack(">I", 2**32 - 1) + BLOB[14:]), "no signature"),
        (armoured(BLOB.replace(b"sha512", b"sha111")), "sha256 or sha512"),
        (armoured(BLOB.replace(b"ssh-ed25519", b"ssh-ed25518", 1)), "Ed25519"),
    ],
)
def test_ssh_signature_of_another_form_is_refused(content, words):
    with pytest.raises(SignatureError, match=words):
        SshSignature.read(content, "m.sig")


def test_private_key_with_a_passphrase_is_opened_by_it_alone(folder):
    key = read_private_key(folder / "bob", lambda: keys.PASSPHRASE)
    assert keys.BOB_PUBLIC.startswith(key.public.line)
    with pytest.raises(KeyFileError, match="right passphrase"):
        read_private_key(folder / "bob", lambda: "other")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent", "absent: must be a private key, but cannot be read: No such file"),
        ("ecdsa", "must be an Ed25519 key, got EC.*ssh-keygen -t ed25519"),
        ("ada.pub", "must be a private key in the OpenSSH format, got something else. Give .*ada instead"),
        ("noise", "must be a private key in the OpenSSH format, got something else"),
        ("damaged", "must be a private key in the OpenSSH format with the right passphrase"),
        ("pem", "must be a private key in the OpenSSH format"),
        (".", "must be a plain file"),
    ],
)
def test_private_key_of_another_kind_is_refused_with_a_sentence(folder, name, words):
    (folder / "noise").write_bytes(os.urandom(100))
    (folder / "damaged").write_text(keys.ADA[:100] + keys.ADA[110:])
    (folder / "pem").write_text("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQ==\n-----END PRIVATE KEY-----\n")
    with pytest.raises(KeyFileError, match=words):
        read_private_key(folder / name, never)


def test_signers_are_read_from_a_public_key_and_from_allowed_signers(folder):
    line = keys.ADA_PUBLIC.rsplit(" ", 1)[0]
    (one,) = read_signers(folder / "ada.pub")
    assert (one.name, one.key.line) == ("ada@example.org", line)
    (folder / "bare.pub").write_text(f"{line}\n")
    assert read_signers(folder / "bare.pub")[0].name == keys.FINGERPRINT
    (folder / "allowed").write_text(
        "# our people\n\n"
        f"ada@example.org,*@lab.org {line} a comment\n"
        f'grace namespaces="ccfs-run,git" {line}\n'
        f'old valid-before="20200101",namespaces="git" {line}\n'
        f"authority cert-authority {line}\n"
        f"rsa {keys.ECDSA_PUBLIC}\n"
    )
    found = read_signers(folder / "allowed")
    assert [signer.name for signer in found] == ["ada@example.org,*@lab.org", "grace", "old", "authority"]
    found[0].refuse("ccfs-run")
    found[1].refuse("ccfs-run")
    with pytest.raises(SignatureError, match="may sign ccfs-run, git, but not file"):
        found[1].refuse("file")
    with pytest.raises(SignatureError, match="`valid-before`, which is not judged here"):
        found[2].refuse("git")
    with pytest.raises(SignatureError, match="`cert-authority`"):
        found[3].refuse("ccfs-run")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "at least one Ed25519 key"),
        (keys.ECDSA_PUBLIC, "at least one Ed25519 key"),
        (keys.ADA, "got a private one"),
        ("nothing here", "line 1: must be a public key"),
        ("ssh-ed25519", "line 1: must be a public key"),
        ("ssh-ed25519 AAAA", "whole Ed25519 key"),
        (keys.ADA_PUBLIC[:-30], "line 1: must be base64"),
        (f'ada namespaces="git {keys.ADA_PUBLIC}', "quote that does not end"),
        ('{"a":' * 200_000, "line 1: must have at most 16,384 characters"),
    ],
)
def test_signers_of_another_form_are_refused_with_a_sentence(folder, text, words):
    (folder / "signers").write_text(text)
    with pytest.raises(KeyFileError, match=words):
        read_signers(folder / "signers")


def test_pae_is_that_of_the_dsse_specification():
    """Oracle: the test vector in the specification of DSSE v1."""
    assert pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    assert pae("ä", b"") == b"DSSEv1 2 \xc3\xa4 0 "


def test_envelope_is_one_that_other_tools_verify(folder):
    """Oracle: the specification read again here, with `cryptography` called directly."""
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    key, _ = keys.ada(folder)
    made = json.loads(envelope(key, {"_type": STATEMENT, "predicate": {"key": key.public.line}}))
    payload = base64.b64decode(made["payload"])
    signed = f"DSSEv1 28 application/vnd.in-toto+json {len(payload)} ".encode() + payload
    (signature,) = made["signatures"]
    load_ssh_public_key(keys.ADA_PUBLIC.encode()).verify(base64.b64decode(signature["sig"]), signed)
    assert made["payloadType"] == "application/vnd.in-toto+json"
    assert signature["keyid"] == keys.FINGERPRINT


def test_envelope_that_was_changed_anywhere_is_refused(folder):
    key, _ = keys.ada(folder)
    made = envelope(key, {"_type": STATEMENT, "predicate": {"key": key.public.line}, "n": 1})
    assert opened_envelope(made, "e").statement["n"] == 1
    for place in range(len(made) - 1):
        changed = bytearray(made)
        changed[place] ^= 1
        with pytest.raises(SignatureError):
            opened_envelope(bytes(changed), "e")


def test_envelope_of_another_form_is_refused(folder):
    key, _ = keys.ada(folder)
    good = json.loads(envelope(key, {"_type": STATEMENT, "predicate": {"key": key.public.line}}))
    (signature,) = good["signatures"]
    other = keys.bob(folder)[0]
    broken = [
        [],
        {},
        {**good, "signatures": []},
        {**good, "signatures": [signature, signature]},
        {**good, "signatures": [{**signature, "keyid": other.public.fingerprint}]},
        {**good, "payloadType": "text/plain"},
        {**good, "payload": base64.b64encode(b"[]").decode()},
        {**good, "more": 1},
        json.loads(envelope(key, {"_type": "other", "predicate": {"key": key.public.line}})),
        json.loads(envelope(key, {"_type": STATEMENT, "predicate": {}})),
        json.loads(envelope(key, {"_type": STATEMENT, "predicate": {"key": other.public.line}})),  # another's key
    ]
    for content in broken:
        with pytest.raises(SignatureError):
            opened_envelope(canonical_json(content).encode() + b"\n", "e")
    for text in (json.dumps(good), canonical_json(good), canonical_json(good) + "\n\n"):
        with pytest.raises(SignatureError, match="canonical JSON and one line"):
            opened_envelope(text.encode(), "e")


def test_public_key_refuses_a_signature_of_another_length(folder):
    key, _ = keys.ada(folder)
    assert key.public.has_signed(b"m", key.sign(b"m"))
    for signature in (b"", key.sign(b"m")[:-1], key.sign(b"m") + b"\0", bytes(64)):
        assert not key.public.has_signed(b"m", signature)
    assert not PublicKey(bytes(32)).has_signed(b"m", key.sign(b"m"))
