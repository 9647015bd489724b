"""Register a protocol before its first trial: a small signed record, which a run takes in when it begins."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from ccfs.files.digests import canonical_json
from ccfs.files.documents import Digest, Document, DocumentError
from ccfs.files.signing import STATEMENT, PrivateKey, PublicKey, SignatureError, envelope, opened_envelope
from ccfs.protocol.model import Protocol
from ccfs.protocol.tables import Name
from ccfs.runs.store import RunError, Store

__all__ = [
    "BEGUN",
    "REGISTRATION",
    "Begun",
    "Registered",
    "Registration",
    "Time",
    "read_registration",
    "refuse_other",
    "register",
    "registered",
    "take_registration",
]

REGISTRATION, BEGUN = "registration.intoto.jsonl", "begun.json"
_PREDICATE = "urn:ccfs:registration:1"
Time = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")]
"""A moment in UTC, to the second. Two of them compare as texts do."""


class Registration(Document):
    """What is registered, as the predicate of an in-toto statement whose subject is the protocol."""

    format: Literal["ccfs/registration/1"] = Field(
        default="ccfs/registration/1", description="Kind and version of this document."
    )
    protocol: Digest = Field(description="Hash of the protocol.")
    name: Name = Field(description="Name of the protocol.")
    trials: int = Field(ge=1, description="Planned nominal trials of each arm.")
    arms: int = Field(ge=1, description="Number of arms.")
    claims: int = Field(ge=1, description="Number of claims that share `delta`.")
    key: str = Field(description="The public key that signed, as OpenSSH writes it.")
    time: Time = Field(description="When it was registered, in UTC, by the clock of whoever signed.")


class Begun(Document):
    """When a registered run began. It is written after the registration and before the first trial."""

    format: Literal["ccfs/begun/1"] = Field(default="ccfs/begun/1", description="Kind and version of this document.")
    protocol: Digest = Field(description="Hash of the protocol.")
    registration: Digest = Field(description="SHA-256 of the record that the run has taken in.")
    time: Time = Field(description="When the run began, in UTC, by the clock of its machine.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A registration whose signature is valid.

    Args:
        record: what was registered.
        digest: SHA-256 of the file, which a place of publication can show.
        key: the key that signed.
    """

    record: Registration
    digest: str
    key: PublicKey


def register(protocol: Protocol, key: PrivateKey, *, time: str | None = None) -> bytes:
    """Return the signed record of a protocol. `time` is now unless it is given."""
    record = Registration(
        protocol=protocol.hash,
        name=protocol.name,
        trials=protocol.trials.count,
        arms=len(protocol.arms),
        claims=protocol.family,
        key=key.public.line,
        time=time or _now(),
    )
    return envelope(key, _statement(record))


def registered(content: bytes, where: object) -> Registered:
    """Read a record. Raise SignatureError unless the key that it names has signed it as it is."""
    opened = opened_envelope(content, where)
    try:
        record = Registration.model_validate_json(canonical_json(opened.predicate))
    except ValidationError as error:
        raise SignatureError(f"{where}: is no registration: {error.errors()[0]['msg']}.") from None
    if canonical_json(_statement(record)) != canonical_json(opened.statement):
        raise SignatureError(f"{where}: is no registration of a protocol.")
    return Registered(record=record, digest=hashlib.sha256(content).hexdigest(), key=opened.key)


def refuse_other(found: Registered, protocol: Protocol, where: object) -> None:
    """Raise ValueError unless a record is that of this protocol, and not from the future."""
    record = found.record
    if (record.protocol, record.trials, record.arms, record.claims) != (
        protocol.hash,
        protocol.trials.count,
        len(protocol.arms),
        protocol.family,
    ):
        raise ValueError(
            f"{where}: registers the protocol {record.name!r} with hash {record.protocol[:16]} and {record.trials} "
            f"trials, got {protocol.name!r} with hash {protocol.hash[:16]}. Register this protocol before its first "
            "trial."
        )
    if not record.time <= _now():
        raise ValueError(f"{where}: was registered at {record.time}, which is not yet. Check the clocks.")


def take_registration(store: Store, protocol: Protocol, content: bytes | None, *, is_begun: bool) -> None:
    """Write a record into a run that has no trial yet, and after it the time. A run that has one keeps it.

    Args:
        store: the run, locked.
        protocol: its protocol.
        content: the record, which `refuse_other` has accepted, or None if none was given.
        is_begun: whether trials may have run. Then nothing is written.
    """
    if content is not None and not store.exists(REGISTRATION):
        if is_begun:
            raise RunError(
                f"{store.root}: was begun without a registration, so it cannot be registered any more. "
                "Choose another run directory for a protocol with another `seed`."
            )
        store.write(REGISTRATION, content)
    if not store.exists(REGISTRATION):
        return
    stored = store.read(REGISTRATION)
    if content not in (None, stored):
        raise RunError(f"{store.root}: was begun with another registration. Give that one, or none, to resume.")
    if not (store.exists(BEGUN) or is_begun):
        # The clock of this machine. A reader has only the author's word for it.
        digest = hashlib.sha256(stored).hexdigest()
        store.write(BEGUN, Begun(protocol=protocol.hash, registration=digest, time=_now()).to_bytes())
    read_registration(store, protocol)


def read_registration(store: Store, protocol: Protocol) -> tuple[Registered, Begun] | None:
    """Return the registration of a run and when the run began, or None if it is not registered.

    Raises:
        RunError: the record is not valid, is of another protocol, or is not older than the run.
    """
    if not (store.exists(REGISTRATION) or store.exists(BEGUN)):
        return None
    try:
        found = registered(store.read(REGISTRATION), REGISTRATION)
        refuse_other(found, protocol, REGISTRATION)
        begun = Begun.from_bytes(store.read(BEGUN), where=BEGUN)
    except (SignatureError, DocumentError, ValueError) as error:
        raise RunError(f"{store.root}: {error}") from None
    if (begun.protocol, begun.registration) != (protocol.hash, found.digest):
        raise RunError(f"{store.root}: {BEGUN} belongs to another registration.")
    if not found.record.time <= begun.time:
        raise RunError(
            f"{store.root}: was registered at {found.record.time}, but begun at {begun.time}. "
            "A registration must be older than the run. Check the clocks."
        )
    return found, begun


def _statement(record: Registration) -> dict[str, object]:
    return {
        "_type": STATEMENT,
        "subject": [{"name": record.name, "digest": {"sha256": record.protocol}}],
        "predicateType": _PREDICATE,
        "predicate": record.model_dump(mode="json"),
    }


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
