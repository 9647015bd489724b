"""The journal of a run: a batch of files counts when its last file, the journal entry, is written."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, Protocol

from pydantic import Field

from ccfs.files.documents import Digest, Document
from ccfs.runs.manifest import MANIFEST
from ccfs.runs.store import RunError, Store

__all__ = ["Journal", "Journalled", "commit", "is_finished"]


class Journal(Document):
    """Says that a batch is finished. It is the last file of a batch to be written."""

    format: Literal["ccfs/batch/1"] = Field(default="ccfs/batch/1", description="Kind and version of this document.")
    trials: tuple[int, ...] = Field(description="Numbers of the trials of the batch, or of its images, in order.")
    files: dict[str, Digest] = Field(description="SHA-256 of each file of the batch, by its name.")


class Journalled(Protocol):
    """A batch of a run: trials of an arm, or images of a data set."""

    @property
    def trials(self) -> tuple[int, ...]:
        """Numbers of its trials or images."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of its files."""

    @property
    def journal(self) -> str:
        """Name of its journal entry."""


def commit(store: Store, batch: Journalled, files: Sequence[bytes]) -> None:
    """Remove the manifest, write the batch's files, and last the journal, which makes the batch count."""
    # A manifest says that a run is finished and complete, so it must not stand beside a batch that it does not list.
    store.remove(MANIFEST)
    contents = dict(zip(batch.files, files, strict=True))
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    store.write_together(contents)
    store.write(batch.journal, Journal(trials=batch.trials, files=digests).to_bytes())


def is_finished(store: Store, batch: Journalled) -> bool:
    """Return whether a batch has a journal. Refuse a batch whose files are not those in its journal."""
    if not store.exists(batch.journal):
        return False
    entry = store.read_document(Journal, batch.journal)
    found = {name: store.digest(name) if store.exists(name) else None for name in batch.files}
    if (entry.trials, entry.files) != (batch.trials, found):
        absent = [name for name, digest in found.items() if digest is None]
        what = f", of which {absent[0]} is missing" if absent else ""
        raise RunError(
            f"{store.path(batch.journal)}: does not match the files of its batch{what}. Something changed this run. "
            "Delete this journal file to run the batch again."
        )
    return True
