"""Sign a finished run, and say who signed it: a signature over the manifest, which has the hash of every other file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from ccfs.files.digests import canonical_json
from ccfs.files.documents import Digest, Document
from ccfs.files.signing import (
    STATEMENT,
    PrivateKey,
    PublicKey,
    SignatureError,
    Signer,
    SshSignature,
    envelope,
    opened_envelope,
    ssh_signature,
)
from ccfs.runs.manifest import ATTESTATION, MANIFEST, SIGNATURE, Manifest, manifest_faults
from ccfs.runs.store import RunError, Store

__all__ = ["NAMESPACE", "Signed", "SignedRun", "sign_run", "signature_faults", "signed_by", "signing_key"]

NAMESPACE = "ccfs-run"
"""What `ssh-keygen -Y` calls the purpose of a signature. A key that signs mails or commits signs no run by that."""
_PREDICATE = "urn:ccfs:run:1"


class SignedRun(Document):
    """What a signature says about a run, as the predicate of an in-toto statement. It follows from manifest and key."""

    format: Literal["ccfs/signed-run/1"] = Field(
        default="ccfs/signed-run/1", description="Kind and version of this document."
    )
    protocol: Digest = Field(description="Hash of the protocol, or of the key of an image run.")
    files: int = Field(ge=0, description="Number of files that the manifest lists.")
    key: str = Field(description="The public key that signed, as OpenSSH writes it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """Who signed what.

    Args:
        name: the signer, as the reader's own list names the key.
        fingerprint: the key.
        manifest: SHA-256 of the signed manifest.
        files: what the manifest lists, by name.
        signatures: the files that hold a signature and were checked.
    """

    name: str
    fingerprint: str
    manifest: str
    files: dict[str, str]
    signatures: tuple[str, ...]

    def certificate_of(self, content: bytes) -> str:
        """Return under which name the manifest lists a certificate. Raise SignatureError if it lists none like this."""
        digest = hashlib.sha256(content).hexdigest()
        found = [name for name, value in self.files.items() if value == digest and name.startswith("certificates/")]
        if not found:
            raise SignatureError("this certificate is not among the files that were signed.")
        return found[0]


def sign_run(store: Store, key: PrivateKey) -> Signed:
    """Sign a finished run and return what was signed. The same key and run give the same bytes.

    Raises:
        RunError: a file is not as the manifest says, or somebody else has signed the run.
    """
    with store.locked():
        faults = manifest_faults(store)
        if faults:
            raise RunError(f"{store.root}: {faults[0]} Audit this run before signing it.")
        others = {found.fingerprint for found in _named_keys(store)} - {key.public.fingerprint}
        if others:
            raise RunError(
                f"{store.root}: is signed by another key, {', '.join(sorted(others))}. "
                f"Remove {SIGNATURE} and {ATTESTATION} to sign it yourself."
            )
        content = store.read(MANIFEST)
        store.write_together(
            {
                SIGNATURE: ssh_signature(key, content, NAMESPACE),
                ATTESTATION: envelope(key, _statement(content, key.public)),
            }
        )
    return signed_by(store, (Signer(name="you", key=key.public),))


def signed_by(store: Store, signers: Sequence[Signer]) -> Signed:
    """Return who signed a run, among signers that the reader accepts.

    Every signature beside the manifest must be valid, must be over the manifest as it is, and must be by one accepted
    key. The files that the manifest lists are not read here.

    Raises:
        SignatureError: the run is not signed, or not by one of them, or not as it is now.
    """
    if not store.exists(MANIFEST):
        raise SignatureError(f"{store.root}: has no {MANIFEST}, so the run is not finished and cannot be signed.")
    content = store.read(MANIFEST)
    present = tuple(name for name in (SIGNATURE, ATTESTATION) if store.exists(name))
    if not present:
        raise SignatureError(f"{store.root}: is not signed. `ccfs sign` signs a run.")
    found = [_accepted(key, signers, store) for key in _named_keys(store)]
    if len({signer.key for signer in found}) != 1:
        raise SignatureError(f"{store.root}: {SIGNATURE} and {ATTESTATION} are by different keys.")
    signer = found[0]
    signer.refuse(NAMESPACE)
    _refuse_invalid(store, content, signer.key)
    return Signed(
        name=signer.name,
        fingerprint=signer.key.fingerprint,
        manifest=hashlib.sha256(content).hexdigest(),
        files=dict(Manifest.from_bytes(content, where=MANIFEST).files),
        signatures=present,
    )


def signing_key(store: Store) -> PublicKey | None:
    """Return the key that a run says it was signed with, or None if it is not signed."""
    return next(iter(_named_keys(store)), None)


def signature_faults(store: Store) -> list[str]:
    """Return a fault if a run has a signature that is not valid, whoever the signer is."""
    try:
        keys = _named_keys(store)
        if keys:
            signed_by(store, [Signer(name=key.fingerprint, key=key) for key in keys])
    except (SignatureError, RunError) as error:
        return [str(error)]
    return []


def _accepted(key: PublicKey, signers: Sequence[Signer], store: Store) -> Signer:
    known = [signer for signer in signers if signer.key == key]
    if not known:
        raise SignatureError(
            f"{store.root}: is signed by the key {key.fingerprint}, which is none of the given signers."
        )
    # A list may name a key twice, once with a condition. One line without any is enough.
    return min(known, key=lambda signer: (signer.condition is not None, signer.namespaces is not None))


def _named_keys(store: Store) -> list[PublicKey]:
    """Return the key that each signature of a run names. Nothing is checked yet."""
    found = []
    if store.exists(SIGNATURE):
        found.append(SshSignature.read(store.read(SIGNATURE), store.path(SIGNATURE)).key)
    if store.exists(ATTESTATION):
        found.append(opened_envelope(store.read(ATTESTATION), store.path(ATTESTATION)).key)
    return found


def _refuse_invalid(store: Store, content: bytes, key: PublicKey) -> None:
    """Raise unless every signature of a run is valid, by this key, and over this manifest."""
    stale = (
        f"{MANIFEST} was changed after it was signed, or the signature is of another run. Sign after the last change."
    )
    if store.exists(SIGNATURE):
        found = SshSignature.read(store.read(SIGNATURE), store.path(SIGNATURE))
        if found.namespace != NAMESPACE:
            raise SignatureError(f"{store.path(SIGNATURE)}: must have the namespace {NAMESPACE}, got another one.")
        if found.key != key or not found.is_of(content, NAMESPACE):
            raise SignatureError(f"{store.path(SIGNATURE)}: does not fit. {stale}")
    if store.exists(ATTESTATION):
        opened = opened_envelope(store.read(ATTESTATION), store.path(ATTESTATION))
        if opened.key != key or canonical_json(opened.statement) != canonical_json(_statement(content, key)):
            raise SignatureError(f"{store.path(ATTESTATION)}: does not fit. {stale}")


def _statement(content: bytes, key: PublicKey) -> dict[str, object]:
    """Return the in-toto statement about a manifest. Its subjects are the manifest and every certificate in it."""
    manifest = Manifest.from_bytes(content, where=MANIFEST)
    listed = {name: digest for name, digest in manifest.files.items() if name.startswith("certificates/")}
    subjects = {MANIFEST: hashlib.sha256(content).hexdigest(), **listed}
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()],
        "predicateType": _PREDICATE,
        "predicate": SignedRun(protocol=manifest.protocol, files=len(manifest.files), key=key.line).model_dump(
            mode="json"
        ),
    }
