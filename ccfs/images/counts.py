"""Label counts of many images: what they are counts of, their Parquet files, and parts that add up to the whole."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import pyarrow as pa
from pydantic import Field, JsonValue

from ccfs.certificates.documents import refuse_other_format
from ccfs.certificates.images import CovarianceProof, LabelCounts, covariance_ratio
from ccfs.files.atomic import write_atomically
from ccfs.files.code import file_code_digest
from ccfs.files.digests import canonical_json, text_digest
from ccfs.files.documents import Digest, Document, Infinite, Table
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.images.streams import DERIVATION, ESTIMATION, SELECTION, NoiseStream

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ccfs.images.smoother import Network

__all__ = [
    "CountRow",
    "CountTable",
    "ProofRecord",
    "RecordError",
    "RunKey",
    "Span",
    "Tally",
    "added",
    "counts_bytes",
    "model_digest",
    "part_bytes",
    "read_counts",
    "read_part",
    "refuse_unproved",
    "write_counts",
]

_FORMAT, _KEY = b"format", b"run"
_PART_FORMAT = b"ccfs/image-part/1"
_COLUMNS = ("index", "label", "variant", "selection", "selection_rejected", "estimation", "estimation_rejected")


class RecordError(Exception):
    """Stored counts are damaged, incomplete or belong to another run."""


class ProofRecord(Table):
    """The covariance premise that the filter proves, see `ccfs.certificates.images.CovarianceProof`."""

    covariance_ratio: float = Field(
        description="Upper bound on the largest eigenvalue of the retained covariance over sigma squared."
    )
    statement: str = Field(description="The argument in words.")
    ball: Infinite = Field(description="The bound holds at every center closer than this to the image.")

    @classmethod
    def of(cls, proof: CovarianceProof | None) -> ProofRecord | None:
        """Return the record of a premise, or None for none."""
        if proof is None:
            return None
        ball: Infinite = "infinity" if proof.ball == math.inf else proof.ball
        return cls(covariance_ratio=proof.covariance_ratio, statement=proof.statement, ball=ball)

    @property
    def radius(self) -> float:
        """`ball` as a number."""
        return math.inf if self.ball == "infinity" else self.ball


class RunKey(Document):
    """What counts are counts of. Two runs with equal keys draw the same noise for the same images and filter."""

    format: Literal["ccfs/image-counts/2"] = Field(
        default="ccfs/image-counts/2", description="Kind and version of this document."
    )
    dataset: str = Field(description="Name of the images.")
    dataset_sha256: Digest = Field(description="SHA-256 of pixels and labels.")
    model_sha256: Digest = Field(description="SHA-256 of the network's structure, parameters and buffers.")
    filter: dict[str, JsonValue] = Field(description="What identifies the filter.")
    variants: tuple[str, ...] = Field(description="Names of the filter's variants, such as one per threshold.")
    proof: ProofRecord | None = Field(description="The covariance premise that the filter proves, or null.")
    sigma: float = Field(gt=0.0, description="Noise scale, in units of a pixel in [0, 1].")
    num_classes: int = Field(ge=2, le=100_000, description="Number of labels.")
    selection_trials: int = Field(ge=1, description="Selection proposals per image.")
    estimation_trials: int = Field(ge=1, description="Estimation proposals per image.")
    seed: int = Field(ge=0, description="Base seed of the noise.")
    stream: str = Field(description="Name of the set of noise streams under the seed. Empty for the first.")
    noise: str = Field(default=DERIVATION, description="How the noise follows from run, seed, image and purpose.")

    @property
    def hash(self) -> str:
        """SHA-256 of the key. It is part of every noise key, so that no two runs share noise."""
        return text_digest(canonical_json(self.model_dump(mode="json")))

    def noise_stream(self, index: int, purpose: str, dimension: int) -> NoiseStream:
        """Return the noise of one image for one purpose."""
        if self.noise != DERIVATION:
            raise RecordError(f"these counts were drawn with {self.noise!r}, this release draws {DERIVATION!r} only.")
        return NoiseStream(run=self.hash, seed=self.seed, index=index, purpose=purpose, dimension=dimension)


def refuse_unproved(key: RunKey) -> None:
    """Refuse a stored premise that our own filter does not prove. Users prove the premises of their own filters.

    Without this check a forged file could certify radii that are too large.
    """
    if key.proof is None:
        return
    kind = key.filter.get("kind")
    if not isinstance(kind, str):
        raise RecordError(f"counts with a covariance proof must name the kind of their filter, got {key.filter}.")
    if kind not in ("none", "projected-band", "confidence", "callable"):
        return
    if kind in ("confidence", "callable"):
        raise RecordError(f"counts of a {kind} filter must carry no covariance proof, because none is known.")
    try:
        bands = cast("Sequence[Mapping[str, float]]", key.filter.get("bands", ()))
        outers = [float(band["outer"]) for band in bands]
    except (ValueError, TypeError, KeyError) as error:
        raise RecordError(f"counts of a {kind} filter must carry its bands, got {key.filter}.") from error
    if (kind == "projected-band") != bool(outers) or not all(math.isfinite(outer) for outer in outers):
        raise RecordError(f"counts of a {kind} filter must carry its bands with finite limits, got {outers}.")
    least = covariance_ratio(outers, key.sigma) if outers else 1.0
    if not (key.proof.covariance_ratio >= least and key.proof.radius == math.inf):
        raise RecordError(
            f"counts of a {kind} filter must carry a covariance ratio of at least {least} at every center, "
            f"got {key.proof.covariance_ratio} within {key.proof.ball}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRow:
    """Counts of one image and one filter variant."""

    index: int
    label: int
    variant: str
    selection: LabelCounts
    estimation: LabelCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class CountTable:
    """Rows ordered by image, then variant, with the key of their run."""

    key: RunKey
    rows: tuple[CountRow, ...]

    def __post_init__(self) -> None:
        seen: set[tuple[int, str]] = set()
        for row in self.rows:
            if row.variant not in self.key.variants or (row.index, row.variant) in seen:
                raise RecordError(f"image {row.index}, variant {row.variant!r}: unknown variant or counted twice.")
            seen.add((row.index, row.variant))
            for counts, trials in (
                (row.selection, self.key.selection_trials),
                (row.estimation, self.key.estimation_trials),
            ):
                if counts.trials != trials or len(counts.retained) != self.key.num_classes:
                    raise RecordError(
                        f"image {row.index}, variant {row.variant!r}: counts must be of {trials} proposals and "
                        f"{self.key.num_classes} labels, got {counts.trials} and {len(counts.retained)}."
                    )

    @property
    def proof(self) -> CovarianceProof | None:
        """The covariance premise that is stored with the counts."""
        stored = self.key.proof
        if stored is None:
            return None
        return CovarianceProof(covariance_ratio=stored.covariance_ratio, statement=stored.statement, ball=stored.radius)

    def variant(self, name: str) -> tuple[CountRow, ...]:
        """Return the rows of one filter variant."""
        if name not in self.key.variants:
            raise ValueError(f"`name` must be one of {self.key.variants}, got {name!r}.")
        return tuple(row for row in self.rows if row.variant == name)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Span:
    """Consecutive proposals of one image for one purpose, from `start` to before `stop`."""

    index: int
    purpose: str
    start: int
    stop: int

    @property
    def trials(self) -> int:
        """How many proposals."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts of one span, one per filter variant."""

    span: Span
    counts: tuple[LabelCounts, ...]


def part_bytes(key: RunKey, tallies: Sequence[Tally]) -> bytes:
    """Return a part of a run as Parquet: one line per span and variant."""
    lines = [
        (tally.span, variant, counts)
        for tally in tallies
        for variant, counts in zip(key.variants, tally.counts, strict=True)
    ]
    columns = {
        "index": pa.array([span.index for span, _, _ in lines], pa.int32()),
        "purpose": pa.array([span.purpose for span, _, _ in lines], pa.string()),
        "start": pa.array([span.start for span, _, _ in lines], pa.int64()),
        "stop": pa.array([span.stop for span, _, _ in lines], pa.int64()),
        "variant": pa.array([variant for _, variant, _ in lines], pa.string()),
        "retained": pa.array([list(counts.retained) for _, _, counts in lines], pa.list_(pa.int32())),
    }
    head = {_FORMAT: _PART_FORMAT, _KEY: key.to_bytes()}
    return parquet_bytes(pa.table(columns).replace_schema_metadata(head))


def read_part(content: bytes, key: RunKey, *, where: str) -> list[Tally]:
    """Read a part of a run.

    Raises:
        RecordError: it is damaged, or a part of another run.
    """
    try:
        stored = read_parquet(content)
        metadata = stored.schema.metadata or {}
        if metadata.get(_FORMAT) != _PART_FORMAT or metadata.get(_KEY) != key.to_bytes():
            raise RecordError(f"{where}: must be a part of this run, but belongs to another one.")
        found: dict[Span, dict[str, LabelCounts]] = {}
        for line in stored.to_pylist():
            span = Span(index=line["index"], purpose=line["purpose"], start=line["start"], stop=line["stop"])
            retained = tuple(line["retained"])
            counts = LabelCounts(retained=retained, rejected=span.trials - sum(retained))
            if len(retained) != key.num_classes or line["variant"] in found.setdefault(span, {}):
                raise RecordError(f"{where}: a line of image {span.index} has other labels, or is there twice.")
            found[span][line["variant"]] = counts
        return [
            Tally(span=span, counts=tuple(counts[variant] for variant in key.variants))
            for span, counts in found.items()
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{where}: is no part of a run that can be read: {error}") from error


def added(key: RunKey, tallies: Iterable[Tally], labels: Mapping[int, int]) -> dict[int, tuple[CountRow, ...]]:
    """Return the rows of each image whose spans cover all its proposals exactly once.

    Args:
        key: what the counts are counts of.
        tallies: the counted spans, in any order.
        labels: the true label of each image.
    """
    groups: dict[tuple[int, str], list[Tally]] = {}
    for tally in tallies:
        groups.setdefault((tally.span.index, tally.span.purpose), []).append(tally)
    whole: dict[int, tuple[CountRow, ...]] = {}
    for index in sorted({index for index, _ in groups}):
        sums = [
            _sum(groups.get((index, purpose), []), trials)
            for purpose, trials in ((SELECTION, key.selection_trials), (ESTIMATION, key.estimation_trials))
        ]
        if sums[0] is not None and sums[1] is not None:
            whole[index] = tuple(
                CountRow(index=index, label=labels[index], variant=variant, selection=chosen, estimation=estimated)
                for variant, chosen, estimated in zip(key.variants, sums[0], sums[1], strict=True)
            )
    return whole


def _sum(tallies: list[Tally], trials: int) -> tuple[LabelCounts, ...] | None:
    """Return the counts of all proposals, or None if some are missing or were counted twice."""
    ordered = sorted(tallies, key=lambda tally: tally.span.start)
    reached = 0
    for tally in ordered:
        if tally.span.start != reached:
            return None
        reached = tally.span.stop
    if reached != trials or not ordered:
        return None
    return tuple(
        LabelCounts(
            retained=tuple(sum(column) for column in zip(*(counts.retained for counts in parts), strict=True)),
            rejected=sum(counts.rejected for counts in parts),
        )
        for parts in zip(*(tally.counts for tally in ordered), strict=True)
    )


def write_counts(path: Path, table: CountTable) -> None:
    """Write atomically, so that a reader sees the whole file or none."""
    write_atomically(path, counts_bytes(table))


def counts_bytes(table: CountTable) -> bytes:
    """Return counts as Parquet: one line per image and variant."""
    rows, counts = table.rows, pa.list_(pa.int32())
    columns = {
        "index": pa.array([row.index for row in rows], pa.int32()),
        "label": pa.array([row.label for row in rows], pa.int16()),
        "variant": pa.array([row.variant for row in rows], pa.string()),
        "selection": pa.array([list(row.selection.retained) for row in rows], counts),
        "selection_rejected": pa.array([row.selection.rejected for row in rows], pa.int32()),
        "estimation": pa.array([list(row.estimation.retained) for row in rows], counts),
        "estimation_rejected": pa.array([row.estimation.rejected for row in rows], pa.int32()),
    }
    head = {_FORMAT: RunKey.format_name().encode(), _KEY: table.key.to_bytes()}
    return parquet_bytes(pa.table(columns).replace_schema_metadata(head))


def read_counts(path: Path) -> CountTable:
    """Read and check one file of counts.

    Raises:
        RecordError: the file is missing, damaged, of another format, or its premise does not follow from its filter.
    """
    if not path.is_file():
        raise RecordError(f"{path} is missing. Count first: ccfs image certify")
    try:
        stored = read_parquet(path)
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} is not readable as Parquet: {str(error).rstrip('.')}.") from error
    metadata = stored.schema.metadata or {}
    # Files of the first edition have their format elsewhere, so they are refused here as files without one.
    found = metadata.get(_FORMAT)
    try:
        refuse_other_format(None if found is None else found.decode(errors="replace"), RunKey.format_name())
        key = RunKey.from_bytes(metadata.get(_KEY, b""), where=f"`{_KEY.decode()}` in its metadata")
    except ValueError as error:
        raise RecordError(f"{path} holds no image counts that can be read: {error}") from error
    refuse_unproved(key)
    columns = stored.to_pydict()
    missing = [name for name in _COLUMNS if name not in columns]
    if missing:
        raise RecordError(f"{path} lacks the columns {', '.join(missing)}.")
    try:
        rows = [_row(*values) for values in zip(*(columns[name] for name in _COLUMNS), strict=True)]
    except (TypeError, ValueError) as error:
        raise RecordError(f"{path} holds no counts: {error}") from error
    return CountTable(key=key, rows=tuple(rows))


def _row(
    index: int,
    label: int,
    variant: str,
    selection: Sequence[int],
    selection_rejected: int,
    estimation: Sequence[int],
    estimation_rejected: int,
) -> CountRow:
    return CountRow(
        index=index,
        label=label,
        variant=variant,
        selection=LabelCounts(retained=tuple(selection), rejected=selection_rejected),
        estimation=LabelCounts(retained=tuple(estimation), rejected=estimation_rejected),
    )


def model_digest(model: Network, *, declared: str | None = None) -> str:
    """Return the SHA-256 that names a network in stored counts.

    For a torch module it covers the printed structure, all parameters and buffers, and the source files of classes
    that are neither torch's nor ours. (Our own code is in the provenance of a run.) For TorchScript it also covers the
    code. A plain function shows nobody its weights, so whoever passes one must declare what it is.

    Args:
        model: the network.
        declared: a text that names a plain function, such as a version and the hash of its weights.
    """
    if not hasattr(model, "state_dict"):
        if not declared:
            raise ValueError(
                "a plain function has no weights that can be hashed. Say what it is with `declared` (--declared on the "
                "command line), for example with the SHA-256 of its weights. Two different functions must not share "
                "this text."
            )
        return hashlib.sha256(f"declared:{declared}".encode()).hexdigest()
    module = cast("nn.Module", model)
    # The printed structure tells apart networks with equal weights, such as two that differ in a stride.
    summary = hashlib.sha256(str(module).encode())
    summary.update("".join(_sources(module)).encode())
    for name, value in sorted(module.state_dict().items()):
        summary.update(name.encode())
        if hasattr(value, "detach"):
            array = value.detach().cpu().contiguous()
            array = array.int_repr() if array.is_quantized else array
            summary.update(f"{array.dtype}{tuple(array.shape)}".encode())
            summary.update(_bits(array))
        else:
            summary.update(repr(value).encode())
    return summary.hexdigest()


def _bits(array: Tensor) -> bytes:
    import torch

    # numpy has no bfloat16, so the bits are read as integers.
    return (array.view(torch.int16) if array.dtype == torch.bfloat16 else array).numpy().tobytes()


def _sources(module: nn.Module) -> list[str]:
    """Return a line for each source file behind a module's classes, without torch and without ours."""
    code = getattr(module, "code", None)
    lines = [f"script {code}\n"] if isinstance(code, str) else []
    for name in sorted({type(part).__module__ for part in module.modules()}):
        file = getattr(sys.modules.get(name), "__file__", None)
        if name.partition(".")[0] not in ("torch", "ccfs") and file is not None and file.endswith(".py"):
            lines.append(f"{name} {file_code_digest(Path(file))}\n")
    return lines
