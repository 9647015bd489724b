"""Write the certificates of a finished run."""

from __future__ import annotations

from ccfs.files.documents import Document
from ccfs.results.certificate import RunCertificate
from ccfs.results.derive import certificate_name, derive
from ccfs.results.families import derive_families, family_name
from ccfs.runs.manifest import manifest_faults, write_derived
from ccfs.runs.store import RunError, Store

__all__ = ["certify"]


def certify(store: Store) -> list[RunCertificate]:
    """Write the certificates of a finished run and add them to its manifest.

    Assumes: the run is finished. A bound for a fixed number of trials does not cover a run that somebody stopped at a
    moment of choice, so an unfinished run is refused. (With the anytime bound, the protocol's rule stops the run.)
    A run with a changed, added or missing file is refused too. Only certificates may be missing, because they are
    derived here.
    """
    protocol = store.protocol()
    claims = [(arm, event) for arm in protocol.arms for event in protocol.events]
    planned = [certificate_name(arm, event) for arm, event in claims]
    planned += [family_name(arm, event, family) for arm, event in claims for family in protocol.families]
    with store.locked():
        faults = manifest_faults(store, may_be_missing=planned)
        if faults:
            raise RunError(f"{store.root}: {faults[0]} Audit this run before certifying it.")
        made, families = dict(derive(store, protocol)), dict(derive_families(store, protocol))
        documents: dict[str, Document] = {**made, **families}
        write_derived(store, protocol, {name: document.to_bytes() for name, document in documents.items()})
    return list(made.values())
