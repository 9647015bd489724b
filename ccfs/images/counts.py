"""Label counts of many images: count them in parts, store them as Parquet, read them back with what they belong to."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, JsonValue

from ccfs.certificates import checks
from ccfs.certificates.documents import refuse_other_format
from ccfs.certificates.images import CovarianceProof, LabelCounts, covariance_ratio
from ccfs.files.atomic import write_atomically
from ccfs.files.documents import Digest, Document, Infinite, Table
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.images.data import ImageSet
from ccfs.images.filters import Filter
from ccfs.images.smoother import Counter
from ccfs.images.streams import ESTIMATION, SELECTION, NoiseStream
from ccfs.images.torch import extra

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "PART",
    "CountRow",
    "CountTable",
    "ProofRecord",
    "RecordError",
    "RunKey",
    "certify_dataset",
    "model_digest",
    "pixels",
    "read_counts",
    "write_counts",
]

PART = 10  # images per part file, the most that an interruption can lose
_FORMAT, _KEY = b"format", b"run"
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

    format: Literal["ccfs/image-counts/1"] = Field(
        default="ccfs/image-counts/1", description="Kind and version of this document."
    )
    dataset: str = Field(description="Name of the images.")
    dataset_sha256: Digest = Field(description="SHA-256 of pixels and labels.")
    model_sha256: Digest = Field(description="SHA-256 of the network's structure, parameters and buffers.")
    filter: dict[str, JsonValue] = Field(description="What identifies the filter.")
    variants: tuple[str, ...] = Field(description="Names of the filter's variants, such as one per threshold.")
    proof: ProofRecord | None = Field(description="The covariance premise that the filter proves, or null.")
    sigma: float = Field(gt=0.0, description="Noise scale, in units of a pixel in [0, 1].")
    num_classes: int = Field(ge=2, description="Number of labels.")
    selection_trials: int = Field(ge=1, description="Selection proposals per image.")
    estimation_trials: int = Field(ge=1, description="Estimation proposals per image.")
    seed: int = Field(ge=0, description="Base seed of the noise.")
    stream: str = Field(description="Name of the set of noise streams under the seed. Empty for the first.")


def _refuse_unproved(key: RunKey) -> None:
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


def write_counts(path: Path, table: CountTable) -> None:
    """Write atomically, so that a reader sees the whole file or none."""
    arrow = extra("pyarrow", "pyarrow")
    rows, counts = table.rows, arrow.list_(arrow.int32())
    columns = {
        "index": arrow.array([row.index for row in rows], arrow.int32()),
        "label": arrow.array([row.label for row in rows], arrow.int16()),
        "variant": arrow.array([row.variant for row in rows], arrow.string()),
        "selection": arrow.array([list(row.selection.retained) for row in rows], counts),
        "selection_rejected": arrow.array([row.selection.rejected for row in rows], arrow.int32()),
        "estimation": arrow.array([list(row.estimation.retained) for row in rows], counts),
        "estimation_rejected": arrow.array([row.estimation.rejected for row in rows], arrow.int32()),
    }
    head = {_FORMAT: RunKey.format_name().encode(), _KEY: table.key.to_bytes()}
    write_atomically(path, parquet_bytes(arrow.table(columns).replace_schema_metadata(head)))


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
        raise RecordError(f"{path} is not readable as Parquet: {error}") from error
    metadata = stored.schema.metadata or {}
    # Files of the first edition have their format elsewhere, so they are refused here as files without one.
    found = metadata.get(_FORMAT)
    try:
        refuse_other_format(None if found is None else found.decode(errors="replace"), RunKey.format_name())
        key = RunKey.from_bytes(metadata.get(_KEY, b""), where=f"`{_KEY.decode()}` in its metadata")
    except ValueError as error:
        raise RecordError(f"{path} holds no image counts that can be read: {error}") from error
    _refuse_unproved(key)
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


def pixels(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return bytes (height, width, channels) as pixels in [0, 1], the center of an image's noise."""
    return np.ascontiguousarray(image, dtype=np.float32) / np.float32(255.0)


def model_digest(model: nn.Module) -> str:
    """Return the SHA-256 of a model's structure, parameters and buffers, which names it in stored counts."""
    # The printed structure tells apart networks with equal weights, such as two that differ in a stride.
    summary = hashlib.sha256(str(model).encode())
    for name, value in sorted(model.state_dict().items()):
        summary.update(name.encode())
        if hasattr(value, "detach"):
            array = value.detach().cpu().contiguous()
            array = array.int_repr() if array.is_quantized else array
            summary.update(f"{array.dtype}{tuple(array.shape)}".encode())
            summary.update(array.numpy().tobytes())
        else:
            summary.update(repr(value).encode())
    return summary.hexdigest()


def certify_dataset(
    model: nn.Module,
    images: ImageSet,
    rule: Filter,
    *,
    sigma: float,
    n0: int,
    n: int,
    seed: int,
    batch_size: int,
    folder: Path,
    indices: Sequence[int] | None = None,
    stream: str = "",
    progress: Callable[[int], None] | None = None,
) -> CountTable:
    """Count selection and estimation labels of many images. Every radius follows from these counts.

    Counts are written to `folder` ten images at a time and gathered in `folder/counts.parquet` at the end. After an
    interruption, call again to count what is missing. Each image draws from its own streams, so neither order nor batch
    size nor interruption changes a count.

    Args:
        model: network in evaluation mode, with as many labels as the images.
        images: the data set. An image's index is its position in it.
        rule: the filter. All its variants share the model calls.
        sigma: noise scale.
        n0: selection proposals per image.
        n: estimation proposals per image.
        seed: base seed.
        batch_size: proposals per model call.
        folder: where counts go. It belongs to one run.
        indices: which images, all by default.
        stream: name of another independent set of streams under the same seed.
        progress: called with the number of images done since the last call.

    Raises:
        RecordError: `folder` holds counts of another run.
    """
    chosen = list(range(len(images))) if indices is None else [checks.count("index", index) for index in indices]
    if len(set(chosen)) != len(chosen) or not all(index < len(images) for index in chosen):
        raise ValueError(f"`indices` must be different positions below {len(images)}.")
    key = RunKey(
        dataset=images.name,
        dataset_sha256=images.digest,
        model_sha256=model_digest(model),
        # As JSON gives it back, so that a stored key compares equal.
        filter=json.loads(json.dumps(rule.document())),
        variants=rule.variants,
        proof=ProofRecord.of(rule.proof(sigma)),
        sigma=checks.positive("sigma", sigma),
        num_classes=len(images.classes),
        selection_trials=checks.count("n0", n0, minimum=1),
        estimation_trials=checks.count("n", n, minimum=1),
        seed=checks.count("seed", seed),
        stream=stream,
    )
    counter = Counter(model, sigma, rule, len(images.classes), batch_size)
    folder.mkdir(parents=True, exist_ok=True)
    done = _stored(folder, key)
    told = len(done.keys() & set(chosen))
    if progress is not None and told:
        progress(told)
    missing = [index for index in chosen if index not in done]
    for start in range(0, len(missing), PART):
        part = {index: _count(counter, images, index, key) for index in missing[start : start + PART]}
        first, last = min(part), max(part)
        rows = tuple(row for index in sorted(part) for row in part[index])
        write_counts(folder / f"part-{first:06d}-{last:06d}.parquet", CountTable(key=key, rows=rows))
        done.update(part)
        if progress is not None:
            progress(len(part))
    everything = CountTable(key=key, rows=tuple(row for index in sorted(done) for row in done[index]))
    write_counts(folder / "counts.parquet", everything)
    # Only now: a crash before this line leaves every count in a part or in the whole.
    for path in folder.glob("part-*.parquet"):
        path.unlink()
    wanted = set(chosen)
    return CountTable(key=key, rows=tuple(row for row in everything.rows if row.index in wanted))


def _stored(folder: Path, key: RunKey) -> dict[int, tuple[CountRow, ...]]:
    """Return the rows of earlier calls, by image."""
    found: dict[int, tuple[CountRow, ...]] = {}
    for path in sorted(folder.glob("*.parquet")):
        table = read_counts(path)
        if table.key != key:
            changed = [name for name in RunKey.model_fields if getattr(key, name) != getattr(table.key, name)]
            raise RecordError(f"{path} belongs to another run: {', '.join(changed)} differ. Use another folder.")
        rows: dict[int, list[CountRow]] = {}
        for row in table.rows:
            rows.setdefault(row.index, []).append(row)
        # An image without all of its variants is counted again.
        found.update({index: tuple(group) for index, group in rows.items() if len(group) == len(key.variants)})
    return found


def _count(counter: Counter, images: ImageSet, index: int, key: RunKey) -> tuple[CountRow, ...]:
    center = pixels(images.images[index])
    prefix = f"{key.stream}/" if key.stream else ""
    counts = []
    for purpose, trials in ((SELECTION, key.selection_trials), (ESTIMATION, key.estimation_trials)):
        noise = NoiseStream(seed=key.seed, index=index, purpose=prefix + purpose, dimension=center.size)
        counts.append(counter.count(center, noise, trials))
    return tuple(
        CountRow(index=index, label=int(images.labels[index]), variant=variant, selection=chosen, estimation=estimated)
        for variant, chosen, estimated in zip(key.variants, *counts, strict=True)
    )
