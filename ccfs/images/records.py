"""Label counts of many images in Parquet, with everything that identifies the run that made them."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ccfs.certificates.images import CovarianceProof, LabelCounts, covariance_ratio
from ccfs.files.atomic import write_atomically
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.images.torch import extra

__all__ = ["CountRow", "CountTable", "RecordError", "RunKey", "read_counts", "write_counts"]

_METADATA = b"ccfs.images"
_FORMAT = 1
_PROVED = ("none", "projected-band")


class RecordError(Exception):
    """Stored counts are damaged, incomplete or belong to another run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKey:
    """What the counts are counts of: two runs with equal keys draw the same noise for the same images and rule."""

    dataset: str
    dataset_sha256: str
    model_sha256: str
    filter: str
    arms: tuple[str, ...]
    proof: CovarianceProof | None
    sigma: float
    num_classes: int
    selection_trials: int
    estimation_trials: int
    seed: int
    stream: str

    def text(self) -> str:
        """Return the key as canonical JSON."""
        fields = {slot: getattr(self, slot) for slot in self.__slots__}
        fields["arms"] = list(self.arms)
        if self.proof is not None:
            # JSON has no infinity: a global proof has no "ball" entry.
            finite = {} if self.proof.ball == float("inf") else {"ball": self.proof.ball}
            fields["proof"] = {
                "covariance_ratio": self.proof.covariance_ratio,
                "statement": self.proof.statement,
                **finite,
            }
        return json.dumps({"format": _FORMAT, **fields}, sort_keys=True, allow_nan=False)

    @classmethod
    def of(cls, text: str) -> RunKey:
        """Read a key back."""
        fields = json.loads(text)
        found = fields.pop("format", None)
        if found != _FORMAT:
            raise RecordError(f"counts have format {found}, this version reads format {_FORMAT}.")
        proof = fields.pop("proof")
        fields["arms"] = tuple(fields["arms"])
        key = cls(proof=None if proof is None else CovarianceProof(**proof), **fields)
        _refuse_unproved(key)
        return key


def _refuse_unproved(key: RunKey) -> None:
    """Refuse a stored premise that our own filters do not prove; of another's filter it is the user's to prove."""
    if key.proof is None:
        return
    try:
        rule = ast.literal_eval(key.filter)
        kind, outers = rule["kind"], [float(band["outer"]) for band in rule.get("bands", ())]
    except (ValueError, SyntaxError, TypeError, KeyError, AttributeError) as error:
        raise RecordError(f"counts must name their filter, got {key.filter!r}.") from error
    if kind not in _PROVED and kind not in ("confidence", "callable"):
        return
    if kind not in _PROVED:
        raise RecordError(f"counts of a {kind} filter must carry no covariance proof: none is known.")
    if (kind == "projected-band") != bool(outers) or not all(math.isfinite(outer) for outer in outers):
        raise RecordError(f"counts of a {kind} filter must carry its bands with finite limits, got {outers}.")
    least = covariance_ratio(outers, key.sigma) if outers else 1.0
    if not (key.proof.covariance_ratio >= least and key.proof.ball == math.inf):
        raise RecordError(
            f"counts of a {kind} filter must carry a covariance ratio of at least {least} at every center, "
            f"got {key.proof.covariance_ratio} within {key.proof.ball}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRow:
    """Counts of one image and one arm."""

    index: int
    label: int
    arm: str
    selection: LabelCounts
    estimation: LabelCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class CountTable:
    """Rows ordered by image, then arm, with the key of their run."""

    key: RunKey
    rows: tuple[CountRow, ...]

    def __post_init__(self) -> None:
        seen: set[tuple[int, str]] = set()
        for row in self.rows:
            if row.arm not in self.key.arms or (row.index, row.arm) in seen:
                raise RecordError(f"image {row.index}, arm {row.arm!r}: unknown arm or counted twice.")
            seen.add((row.index, row.arm))
            for counts, trials in (
                (row.selection, self.key.selection_trials),
                (row.estimation, self.key.estimation_trials),
            ):
                if counts.trials != trials or len(counts.retained) != self.key.num_classes:
                    raise RecordError(
                        f"image {row.index}, arm {row.arm!r}: counts must be of {trials} proposals and "
                        f"{self.key.num_classes} labels, got {counts.trials} and {len(counts.retained)}."
                    )

    def arm(self, name: str) -> tuple[CountRow, ...]:
        """Return the rows of one arm."""
        if name not in self.key.arms:
            raise ValueError(f"`name` must be one of {self.key.arms}, got {name!r}.")
        return tuple(row for row in self.rows if row.arm == name)


def write_counts(path: Path, table: CountTable) -> None:
    """Write atomically: a reader sees the whole file or none."""
    arrow = extra("pyarrow", "pyarrow")
    rows, counts = table.rows, arrow.list_(arrow.int32())
    columns = {
        "index": arrow.array([row.index for row in rows], arrow.int32()),
        "label": arrow.array([row.label for row in rows], arrow.int16()),
        "arm": arrow.array([row.arm for row in rows], arrow.string()),
        "selection": arrow.array([list(row.selection.retained) for row in rows], counts),
        "selection_rejected": arrow.array([row.selection.rejected for row in rows], arrow.int32()),
        "estimation": arrow.array([list(row.estimation.retained) for row in rows], counts),
        "estimation_rejected": arrow.array([row.estimation.rejected for row in rows], arrow.int32()),
    }
    built = arrow.table(columns).replace_schema_metadata({_METADATA: table.key.text().encode()})
    write_atomically(path, parquet_bytes(built))


def read_counts(path: Path) -> CountTable:
    """Read and check one file of counts."""
    if not path.is_file():
        raise RecordError(f"{path} is missing. Count first: ccfs image certify")
    try:
        stored = read_parquet(path)
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} is not readable as Parquet: {error}") from error
    metadata = stored.schema.metadata or {}
    if _METADATA not in metadata:
        raise RecordError(f"{path} holds no image counts of this project.")
    columns = stored.to_pydict()
    names = ("index", "label", "arm", "selection", "selection_rejected", "estimation", "estimation_rejected")
    missing = [name for name in names if name not in columns]
    if missing:
        raise RecordError(f"{path} lacks the columns {', '.join(missing)}.")
    rows = [_row(*values) for values in zip(*(columns[name] for name in names), strict=True)]
    return CountTable(key=RunKey.of(metadata[_METADATA].decode()), rows=tuple(rows))


def _row(
    index: int,
    label: int,
    arm: str,
    selection: Sequence[int],
    selection_rejected: int,
    estimation: Sequence[int],
    estimation_rejected: int,
) -> CountRow:
    return CountRow(
        index=index,
        label=label,
        arm=arm,
        selection=LabelCounts(retained=tuple(selection), rejected=selection_rejected),
        estimation=LabelCounts(retained=tuple(estimation), rejected=estimation_rejected),
    )
