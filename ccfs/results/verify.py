"""Verify a certificate file: its numbers from its counts and, with the run, its counts from the traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from ccfs.certificates.trajectory import CertificateError
from ccfs.files.documents import Document
from ccfs.results.certificate import NotACertificateError, RunCertificate
from ccfs.results.certify import derive
from ccfs.runs.build import event_references
from ccfs.runs.counting import refuse_changed_events
from ccfs.runs.manifest import manifest_faults
from ccfs.runs.store import RunError, Store

__all__ = ["Verification", "refuse_no_file", "verify"]


class Verification(Document):
    """Whether a certificate holds, and what it says."""

    format: Literal["ccfs/verification/1"] = Field(
        default="ccfs/verification/1", description="Kind and version of this document."
    )
    holds: bool = Field(description="Whether every number follows from the counts, and the counts from the traces.")
    is_recounted: bool = Field(description="Whether a run was given, so that the counts were compared with its traces.")
    reason: str | None = Field(description="What does not hold, or null.")
    sentence: str | None = Field(description="The claim in one sentence, or null if the certificate does not hold.")
    premises: tuple[str, ...] = Field(description="What the claim takes for granted, in words.")


def refuse_no_file(path: Path) -> None:
    """Raise ValueError unless `path` is a file. If it is the folder of a run, name a certificate inside."""
    if path.is_file():
        return
    inside = sorted(path.glob("certificates/**/*.json")) if path.is_dir() else []
    if inside:
        raise ValueError(f"{path}: must be a certificate file, got a run directory. Its first one is {inside[0]}.")
    if path.is_dir():
        raise ValueError(f"{path}: must be a certificate file (RUN/certificates/...), got a folder without any.")
    raise ValueError(f"{path}: must be a certificate file, but there is none.")


def verify(path: Path, store: Store | None) -> RunCertificate:
    """Return the certificate if it holds. Raise CertificateError if it does not, and say why.

    Without the run, this proves that the numbers follow from the counts. With the run, it also proves that the counts
    follow from the traces. Only an audit with replay proves that the traces follow from the protocol. Code that the
    protocol names is not run here, so a run whose events are such code is refused.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CertificateError(f"{path}: cannot be read: {error.strerror}.") from error
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
        foreign = event_references(protocol)
        if foreign:
            raise CertificateError(
                f"{store.root}: counting needs {foreign[0]}, code that the protocol names. Read it, then audit the run."
            )
        try:
            derived = {made.to_bytes() for _, made in derive(store, protocol)}
        except RunError as error:
            raise CertificateError(str(error)) from error
        if content not in derived:
            raise CertificateError(f"{path}: is not what the traces of {store.root} give.")
    return document


def _refuse_other_kinds(content: bytes, path: Path) -> None:
    """Refuse content that is not a JSON object, and say what is expected."""
    try:
        is_object = isinstance(json.loads(content), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise NotACertificateError(
            f"{path}: must be a certificate of a run (JSON, as in RUN/certificates/), got something else."
        )
