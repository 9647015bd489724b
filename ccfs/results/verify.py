"""Verify a certificate file: its numbers from its counts and, with the run, its counts from the traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from ccfs.certificates.rounding import lower_text
from ccfs.certificates.stratified import StratifiedCertificate
from ccfs.certificates.trajectory import CertificateError
from ccfs.files.documents import Digest, Document, Table
from ccfs.files.reading import RefusedFileError, limits, read_bytes, read_json
from ccfs.files.signing import SignatureError, Signer
from ccfs.protocol.registry import IN_MEMORY
from ccfs.results.certificate import NotACertificateError, RunCertificate
from ccfs.results.derive import derive
from ccfs.runs.counting import Certificate, refuse_changed_events
from ccfs.runs.manifest import MANIFEST, manifest_faults
from ccfs.runs.signature import signed_by
from ccfs.runs.store import RunError, Store
from ccfs.runs.trust import UntrustedError

__all__ = ["SignatureCheck", "Verification", "refuse_no_file", "refused", "signature_check", "verification", "verify"]


class SignatureCheck(Table):
    """A signature that was checked, and what it is over."""

    signer: str = Field(description="Who signed, as the given file of signers names the key.")
    key: str = Field(description="Fingerprint of the key, as `ssh-keygen -l` shows it.")
    manifest: Digest = Field(description="SHA-256 of the manifest that was signed.")
    files: int = Field(ge=0, description="Number of files that this manifest lists. All of them are as it says.")
    certificate: str = Field(description="Under which name it lists the certificate.")
    signatures: tuple[str, ...] = Field(description="The files with signatures that were checked.")

    @property
    def sentence(self) -> str:
        """What was checked, in words."""
        return (
            f"the signature of {self.signer} (key {self.key}) in {' and '.join(self.signatures)}, over the {MANIFEST} "
            f"with SHA-256 {self.manifest}. Its {self.files} files are here and unchanged, and this certificate is "
            f"{self.certificate} among them."
        )


class Verification(Document):
    """Whether a certificate holds, and what it says."""

    format: Literal["ccfs/verification/1"] = Field(
        default="ccfs/verification/1", description="Kind and version of this document."
    )
    holds: bool = Field(description="Whether every number follows from the counts, and the counts from the traces.")
    is_recounted: bool = Field(description="Whether a run was given, so that the counts were compared with its traces.")
    reason: str | None = Field(description="What does not hold, or null.")
    sentence: str | None = Field(description="The claim in one sentence, or null if the certificate does not hold.")
    recomputed: tuple[str, ...] = Field(description="What was computed again here, in words.")
    quoted: tuple[str, ...] = Field(description="What is only quoted from the file, in words. Anybody can write it.")
    premises: tuple[str, ...] = Field(description="What the claim takes for granted, in words.")
    signature: SignatureCheck | None = Field(
        default=None, description="The checked signature, or null if none was asked for."
    )


def signature_check(certificate: Path, store: Store, signers: Sequence[Signer]) -> SignatureCheck:
    """Check that one of these signers signed a run that holds a certificate, and that all its files are as signed.

    Raises:
        SignatureError: nobody of them did, or something is not as it was signed.
    """
    found = signed_by(store, signers)
    faults = manifest_faults(store)
    if faults:
        raise SignatureError(f"{store.root}: {faults[0]}")
    content = read_bytes(certificate, most=limits().document)
    return SignatureCheck(
        signer=found.name,
        key=found.fingerprint,
        manifest=found.manifest,
        files=len(found.files),
        certificate=found.certificate_of(content),
        signatures=found.signatures,
    )


def refused(error: Exception, *, is_recounted: bool) -> Verification:
    """Return the verdict on a certificate that does not hold."""
    return Verification(
        holds=False,
        is_recounted=is_recounted,
        reason=str(error),
        sentence=None,
        recomputed=(),
        quoted=(),
        premises=(),
    )


def verification(
    document: RunCertificate, *, is_recounted: bool, signature: SignatureCheck | None = None
) -> Verification:
    """Return the verdict on a certificate that `verify` accepted, with the run (`is_recounted`) or without it."""
    proof = document.trajectory
    numbers = f"the lower bound {lower_text(proof.p_lower)} and what it certifies, from {_count(proof)}."
    if isinstance(proof, StratifiedCertificate):
        numbers = f"the size of shift that is certified, from the counts at {proof.strata} reset seeds."
    counts = [f"the count of {_count(proof)}."]
    counts += [f"under {part.attack}: {part.successes} of {part.trials} trials." for part in document.attacks]
    made_by = f"that the trials were made by the protocol {document.protocol} and by the code with these digests."
    run_tells = "that the counts follow from the traces. `ccfs verify --run RUN` counts them again."
    replay_tells = f"{made_by} `ccfs audit RUN --replay all` makes them again."
    if document.is_of_objects:
        replay_tells = f"{made_by} `ccfs.audit_policy` makes them again with the objects themselves."
    about = (
        f"what was counted: {document.event} ({document.definition.event}) in trials of {document.arm} with at most "
    )
    about += f"{document.horizon} steps in {document.environment.make}."
    if document.registration is not None:
        counts.append(f"that the key {document.registration.key} signed a registration of this protocol.")
    if document.root is not None:
        counts.append(f"the root {document.root} of the Merkle tree over the trials, which keep no traces.")
        replay_tells = f"{made_by} `ccfs audit RUN --replay K` makes K of them again, drawn at random."
        run_tells = "that the run has these verdicts. `ccfs verify --run RUN` counts them again."
    if document.definition.event == IN_MEMORY:
        counts.append(f"from the stored verdicts of {document.event}, an event in memory, which nobody asked again.")
    return Verification(
        holds=True,
        is_recounted=is_recounted,
        reason=None,
        sentence=document.sentence,
        recomputed=(numbers, *counts) if is_recounted else (numbers,),
        quoted=(replay_tells,) if is_recounted else (*counts, about, run_tells, replay_tells),
        premises=document.premises,
        signature=signature,
    )


def _count(proof: Certificate) -> str:
    return f"{proof.successes} of {proof.trials} nominal trials"


def refuse_no_file(path: Path) -> None:
    """Raise ValueError unless `path` is a file. If it is a run or a folder inside of one, name a certificate there."""
    if path.is_file():
        return
    below = "**/*.json" if "certificates" in path.parts else "certificates/**/*.json"
    inside = sorted(path.glob(below)) if path.is_dir() else []
    if inside:
        raise ValueError(f"{path}: must be a certificate file, got a folder. The first one there is {inside[0]}.")
    if path.is_dir():
        raise ValueError(f"{path}: must be a certificate file (RUN/certificates/...), got a folder without any.")
    raise ValueError(f"{path}: must be a certificate file, but there is none.")


def verify(path: Path, store: Store | None) -> RunCertificate:
    """Return the certificate if it holds. Raise CertificateError if it does not, and say why.

    Without the run, this proves that the numbers follow from the counts. With the run, it also proves that the counts
    follow from the traces. Only an audit with replay proves that the traces follow from the protocol. If the event is
    code that the protocol names, it is counted only if the run is trusted (`Store.trust`).
    """
    try:
        content = read_bytes(path, most=limits().document)
    except OSError as error:
        raise CertificateError(f"{path}: cannot be read: {error.strerror}.") from error
    except RefusedFileError as error:
        raise NotACertificateError(str(error)) from None
    _refuse_other_kinds(content, path)
    document = RunCertificate.from_bytes(content, where=str(path))
    if store is not None:
        faults = manifest_faults(store)
        if faults:
            raise CertificateError(f"{store.root}: {faults[0]}")
        protocol = store.protocol()
        if protocol.hash != document.protocol:
            raise CertificateError(f"{path}: belongs to another protocol than the run {store.root}.")
        try:
            refuse_changed_events(store, protocol)
        except RunError as error:
            raise CertificateError(str(error)) from error
        events = [spec for spec in protocol.events if spec.name == document.event]
        try:
            derived = [made for _, made in derive(store, protocol, events)]
        except UntrustedError:
            raise
        except RunError as error:
            raise CertificateError(str(error)) from error
        if not any(made.is_written_as(content) for made in derived):
            raise CertificateError(f"{path}: is not what the traces of {store.root} give.")
    return document


def _refuse_other_kinds(content: bytes, path: Path) -> None:
    """Refuse content that is not a JSON object, and say what is expected."""
    must = f"{path}: must be a certificate of a run (JSON, as in RUN/certificates/)"
    try:
        is_object = isinstance(read_json(content, "it"), dict)
    except RefusedFileError as error:
        raise NotACertificateError(f"{must}, but {error}") from None
    if not is_object:
        raise NotACertificateError(f"{must}, got something else.")
