"""Write and check the manifest: the SHA-256 of every other file of a finished run. It names no machine."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Literal
from typing import Protocol as Interface

from pydantic import Field

from ccfs.files.digests import canonical_json, text_digest
from ccfs.files.documents import Digest, Document, DocumentError
from ccfs.runs.store import RunError, Store

__all__ = [
    "ATTESTATION",
    "MANIFEST",
    "SIGNATURE",
    "UNLISTED",
    "Manifest",
    "Owner",
    "manifest_faults",
    "read_manifest",
    "write_derived",
    "write_manifest",
]

MANIFEST = "manifest.json"
SIGNATURE, ATTESTATION = f"{MANIFEST}.sig", "run.intoto.jsonl"
UNLISTED = frozenset({MANIFEST, SIGNATURE, ATTESTATION})
"""The files that no manifest lists: itself, and what is signed over it."""


class Owner(Interface):
    """What a run belongs to: a protocol, or the key of an image run."""

    @property
    def hash(self) -> str:
        """SHA-256 that names it."""


class Manifest(Document):
    """The files of a finished run."""

    format: Literal["ccfs/manifest/1"] = Field(
        default="ccfs/manifest/1", description="Kind and version of this document."
    )
    protocol: Digest = Field(description="Hash of the protocol, or of the key of an image run.")
    files: dict[str, Digest] = Field(
        description="SHA-256 of every file of the run by its name, without this one and its signatures."
    )
    digest: Digest = Field(description="SHA-256 of the canonical text of this document without this key.")


def write_manifest(store: Store, owner: Owner) -> None:
    """Hash the files of the run as they are now, and write the manifest."""
    write_derived(store, owner, {})


def write_derived(store: Store, owner: Owner, files: Mapping[str, bytes]) -> None:
    """Write files that follow from the rest of a finished run, and the manifest with them.

    The manifest comes first, and a file that gets other content is removed before. So after a crash some of these files
    may be missing, but none contradicts the manifest, and whoever derives them again may go on. Hold the lock.
    """
    changed = {
        name: content for name, content in files.items() if not store.exists(name) or store.read(name) != content
    }
    digests = {name: store.digest(name) for name in store.files() if name not in UNLISTED | changed.keys()}
    digests |= {name: hashlib.sha256(content).hexdigest() for name, content in changed.items()}
    store.remove(*changed)
    # The manifest cannot hold its own hash. Its `digest` covers its content instead.
    made = Manifest(protocol=owner.hash, files=digests, digest=_digest(owner.hash, digests))
    store.write(MANIFEST, made.to_bytes())
    store.write_together(changed)


def read_manifest(store: Store) -> dict[str, str]:
    """Return the recorded SHA-256 of every file. Refuse a manifest whose own digest is wrong."""
    if not store.exists(MANIFEST):
        raise RunError(f"{MANIFEST}: is missing, so the run is not finished. Run the same `ccfs run` command again.")
    try:
        found = Manifest.from_bytes(store.read(MANIFEST), where=MANIFEST)
    except DocumentError as error:
        raise RunError(str(error)) from None
    if found.digest != _digest(found.protocol, found.files):
        raise RunError(f"{MANIFEST}: was changed after it was written.")
    return dict(found.files)


def _digest(protocol: str, files: dict[str, str]) -> str:
    return text_digest(canonical_json({"format": Manifest.format_name(), "protocol": protocol, "files": files}))


def manifest_faults(store: Store, *, may_be_missing: Collection[str] = ()) -> list[str]:
    """Return one line for each file that is missing, added or changed since the manifest was written.

    Args:
        store: the run.
        may_be_missing: files whose absence is no fault, because the caller is about to derive them again.
    """
    faults: list[str] = []
    try:
        recorded = read_manifest(store)
        present = set(store.files()) - UNLISTED
        faults += [f"{name}: is missing." for name in sorted(set(recorded) - present - set(may_be_missing))]
        faults += [f"{name}: is not part of the run." for name in sorted(present - set(recorded))]
        for name in sorted(present & set(recorded)):
            if store.digest(name) != recorded[name]:
                faults.append(f"{name}: was changed after it was written.")
    except (RunError, ValueError) as error:
        faults.append(str(error))
    return faults
