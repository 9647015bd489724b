"""Count labels for many images, a part file at a time, so that an interrupted run goes on where it was."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.images.counting import Counter
from ccfs.images.data import ImageSet
from ccfs.images.filters import Filter
from ccfs.images.records import CountRow, CountTable, RecordError, RunKey, read_counts, write_counts
from ccfs.images.streams import ESTIMATION, SELECTION, NoiseStream

if TYPE_CHECKING:
    from torch import nn

__all__ = ["PART", "certify_dataset", "model_digest", "pixels"]

PART = 10


def pixels(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return bytes (height, width, channels) as pixels in [0, 1], the center of an image's noise."""
    return np.ascontiguousarray(image, dtype=np.float32) / np.float32(255.0)


def model_digest(model: nn.Module) -> str:
    """Return the SHA-256 of a model's structure, parameters and buffers, by which a record names it."""
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
    """Count selection and estimation labels of many images and return them; every radius follows from these counts.

    Counts are written to `folder` ten images at a time (atomically) and gathered in `folder/counts.parquet` at the end.
    Calling again after an interruption counts what is missing. Each image draws from its own streams, by (seed, image
    index, stream name and purpose), so that neither order nor batch size nor interruption changes a count.

    Args:
        model: network in evaluation mode; `num_classes` is that of the images.
        images: the data set; an image's index is its position in it.
        rule: the filter; all its arms share the model calls.
        sigma: noise scale.
        n0: selection proposals an image.
        n: estimation proposals an image.
        seed: base seed.
        batch_size: proposals per model call.
        folder: where counts go; it belongs to one run.
        indices: which images, all by default.
        stream: names a further independent set of streams under the same seed.
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
        filter=repr(rule.document()),
        arms=rule.arms,
        proof=rule.proof(sigma),
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
    for path in folder.glob("part-*.parquet"):
        path.unlink()
    wanted = set(chosen)
    return CountTable(key=key, rows=tuple(row for row in everything.rows if row.index in wanted))


def _stored(folder: Path, key: RunKey) -> dict[int, tuple[CountRow, ...]]:
    """Return the rows that earlier calls left, by image."""
    found: dict[int, tuple[CountRow, ...]] = {}
    for path in sorted(folder.glob("*.parquet")):
        table = read_counts(path)
        if table.key != key:
            changed = [slot for slot in key.__slots__ if getattr(key, slot) != getattr(table.key, slot)]
            raise RecordError(f"{path} belongs to another run: {', '.join(changed)} differ. Use another folder.")
        rows: dict[int, list[CountRow]] = {}
        for row in table.rows:
            rows.setdefault(row.index, []).append(row)
        found.update({index: tuple(group) for index, group in rows.items() if len(group) == len(key.arms)})
    return found


def _count(counter: Counter, images: ImageSet, index: int, key: RunKey) -> tuple[CountRow, ...]:
    center = pixels(images.images[index])
    prefix = f"{key.stream}/" if key.stream else ""
    counts = []
    for purpose, trials in ((SELECTION, key.selection_trials), (ESTIMATION, key.estimation_trials)):
        noise = NoiseStream(seed=key.seed, index=index, purpose=prefix + purpose, dimension=center.size)
        counts.append(counter.count(center, noise, trials))
    return tuple(
        CountRow(index=index, label=int(images.labels[index]), arm=arm, selection=chosen, estimation=estimated)
        for arm, chosen, estimated in zip(key.arms, *counts, strict=True)
    )
