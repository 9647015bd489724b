"""The manifest: SHA-256 of every file of a finished run, with its own digest, free of the machine it was made on."""

from __future__ import annotations

from collections.abc import Collection

from ccfs.files.digests import canonical_json, file_digest, text_digest
from ccfs.protocol.model import Protocol
from ccfs.runs.store import RunError, Store

__all__ = ["MANIFEST", "manifest_faults", "read_manifest", "write_manifest"]

MANIFEST = "manifest.json"
FORMAT = "ccfs-run-1"


def write_manifest(store: Store, protocol: Protocol) -> None:
    """Write the manifest of the files that are there now."""
    content: dict[str, object] = {
        "format": FORMAT,
        "protocol": protocol.hash,
        "files": {name: file_digest(store.path(name)) for name in store.files() if name != MANIFEST},
    }
    store.write_json(MANIFEST, {**content, "digest": text_digest(canonical_json(content))})


def read_manifest(store: Store) -> dict[str, str]:
    """Return the recorded SHA-256 of every file; refuse a manifest that is not what it says."""
    if not store.exists(MANIFEST):
        raise RunError(f"{MANIFEST}: is missing: the run is not finished. Run the same `ccfs run` command again.")
    content = store.read_json(MANIFEST)
    digest = content.pop("digest", None)
    if content.get("format") != FORMAT:
        raise RunError(f"{MANIFEST}: has format {content.get('format')!r}; this release reads {FORMAT!r}.")
    canonical = canonical_json({**content, "digest": digest}).encode() + b"\n"
    if digest != text_digest(canonical_json(content)) or store.read(MANIFEST) != canonical:
        raise RunError(f"{MANIFEST}: was changed after it was written.")
    files = content.get("files")
    if not isinstance(files, dict):
        raise RunError(f"{MANIFEST}: must list the files of the run.")
    return {str(name): str(value) for name, value in files.items()}


def manifest_faults(store: Store, *, may_be_missing: Collection[str] = ()) -> list[str]:
    """Return one line for each file that is missing, added or changed since the manifest was written.

    Args:
        store: the run.
        may_be_missing: files whose absence is no fault, because the caller is about to derive them again.
    """
    try:
        recorded = read_manifest(store)
    except (RunError, ValueError) as error:
        return [str(error)]
    present = set(store.files()) - {MANIFEST}
    faults = [f"{name}: is missing." for name in sorted(set(recorded) - present - set(may_be_missing))]
    faults += [f"{name}: is not part of the run." for name in sorted(present - set(recorded))]
    for name in sorted(present & set(recorded)):
        if file_digest(store.path(name)) != recorded[name]:
            faults.append(f"{name}: was changed after it was written.")
    return faults
