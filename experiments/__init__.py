"""The studies that ship with the package: a protocol each, and the trial lines that are kept of its run.

The wheel holds this module, the protocols and the kept lines. The other files of these folders are for a clone.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ccfs.files.documents import Digest, Document, Table

if TYPE_CHECKING:
    import pyarrow as pa

    from ccfs.runs.store import Store

__all__ = ["Study", "StudyList", "list_studies", "studies", "study"]

_HERE = Path(__file__).resolve().parent
_KEY = ("controller", "schedule", "attack", "trial", "reset_seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One study.

    Args:
        name: the name of its protocol.
        protocol: the protocol file.
        kept: trial lines of a finished run, if there are any.
        paper: the paper's rows for the same arms, if it has them.
    """

    name: str
    protocol: Path
    kept: Path | None
    paper: Path | None

    def lines(self) -> pa.Table:
        """Return the kept trial lines."""
        from ccfs.files.parquet import read_parquet

        if self.kept is None:
            raise ValueError(f"the study {self.name} has no kept trial lines.")
        return read_parquet(self.kept.read_bytes())

    def paper_rows(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """Return the paper's cells by controller and proposals. They are counts and bounds, in the table's order."""
        if self.paper is None:
            return {}
        with self.paper.open(newline="", encoding="utf-8") as file:
            return {(row["controller"], row["proposals"]): tuple(row.values())[2:] for row in csv.DictReader(file)}

    def compared(self, store: Store) -> tuple[int, int]:
        """Return how many trials of a run are kept too, and how many of those have another trace hash."""
        from ccfs.results.trial_lines import trial_lines

        ours = {_key(line): line["chain"] for line in trial_lines(store, store.protocol()).to_pylist()}
        kept = {_key(line): line["chain"] for line in self.lines().to_pylist()}
        common = ours.keys() & kept.keys()
        return len(common), sum(ours[key] != kept[key] for key in common)


def studies() -> tuple[Study, ...]:
    """Return the studies. The table of the paper comes first."""
    folder = _HERE / "goal2"
    others = sorted(path.stem for path in folder.glob("*.toml") if path.stem != "protocol")
    table = _study("goal2", folder / "protocol.toml", "table", folder / "paper.csv")
    return (table, *(_study(f"goal2-{name}", folder / f"{name}.toml", name) for name in others))


class StudyEntry(Table):
    """One study of the package."""

    name: str = Field(description="Name of the study, for `ccfs study run`.")
    description: str = Field(description="What it asks.")
    protocol: Digest = Field(description="Hash of its protocol.")
    trials: int = Field(ge=1, description="Trials of all arms, with and without attacks.")
    is_kept: bool = Field(description="Whether the trial lines of a finished run are in the package, to compare with.")


class StudyList(Document):
    """The studies that ship with the package."""

    format: Literal["ccfs/study-list/1"] = Field(
        default="ccfs/study-list/1", description="Kind and version of this document."
    )
    studies: tuple[StudyEntry, ...] = Field(description="One entry for each study. The table of the paper comes first.")


def list_studies() -> StudyList:
    """Return what each study asks, and how many trials it has."""
    from ccfs.protocol.model import load_protocol

    entries = []
    for one in studies():
        made = load_protocol(one.protocol)
        entries.append(
            StudyEntry(
                name=one.name,
                description=made.description,
                protocol=made.hash,
                trials=len(made.arms) * (1 + len(made.attacks)) * made.trials.count,
                is_kept=one.kept is not None,
            )
        )
    return StudyList(studies=tuple(entries))


def study(name: str) -> Study:
    """Return the study of this name. Refuse a name that there is not."""
    found = {one.name: one for one in studies()}
    if name not in found:
        raise ValueError(f"`NAME` must be one of {', '.join(found)}, got {name!r}.")
    return found[name]


def _study(name: str, protocol: Path, results: str, paper: Path | None = None) -> Study:
    kept = protocol.parent / "results" / results / "trajectories.parquet"
    return Study(name=name, protocol=protocol, kept=kept if kept.is_file() else None, paper=paper)


def _key(line: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(line[name] for name in _KEY)
