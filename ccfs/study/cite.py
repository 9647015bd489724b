"""BibTeX of the paper, of the software and of a run."""

from __future__ import annotations

import importlib.metadata

from ccfs.protocol.model import Protocol
from ccfs.study.doctor import distribution

__all__ = ["AUTHORS", "SOFTWARE", "TITLE", "bibtex"]

# The same as in CITATION.cff, which does not ship with the package. A test compares them.
TITLE = "The Geometry of Randomized Smoothing on Feasible Sets"
AUTHORS = (("Syed Izhan", "Khilji"), ("Alireza", "Furutanpey"), ("Schahram", "Dustdar"))
SOFTWARE = "CCFS: capped causal feasible smoothing"


def bibtex(run: Protocol | None = None) -> str:
    """Return BibTeX entries: the paper, the software and, if it is given, a run by the hash of its protocol."""
    version = importlib.metadata.version(distribution())
    authors = " and ".join(f"{family}, {given}" for given, family in AUTHORS)
    entries = [
        _entry("unpublished", "khilji-geometry", author=authors, title=f"{{{TITLE}}}", note="Manuscript"),
        _entry("software", "ccfs", author="{The CCFS maintainers}", title=f"{{{SOFTWARE}}}", version=version),
    ]
    if run is not None:
        name = run.name.replace("_", r"\_")
        note = f"Run of CCFS {version}. SHA-256 of its protocol: {run.hash}"
        entries.append(_entry("misc", f"ccfs-run-{run.hash[:8]}", title=f"{{Certified run {name}}}", note=note))
    return "\n".join(entries)


def _entry(kind: str, key: str, **fields: str) -> str:
    lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
    return f"@{kind}{{{key},\n{lines}}}\n"
