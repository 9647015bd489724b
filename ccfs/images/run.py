"""Count the labels of many images into a run folder: in shards, on any engine, resumable after a kill at any moment."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from ccfs.certificates import checks
from ccfs.files.digests import file_digest
from ccfs.images.counts import (
    CountRow,
    CountTable,
    ProofRecord,
    RecordError,
    RunKey,
    Span,
    Tally,
    added,
    counts_bytes,
    model_digest,
    part_bytes,
    read_counts,
    read_part,
)
from ccfs.images.data import Images
from ccfs.images.filters import Filter
from ccfs.images.folder import COUNTS, HEAD, Asked, ImageRun, image_store, joined, ranges, read_run, read_table
from ccfs.images.smoother import Counter
from ccfs.images.streams import ESTIMATION, SELECTION
from ccfs.runs.executors import Engine, Files, Pool, serial_engine
from ccfs.runs.journal import commit, is_finished
from ccfs.runs.manifest import MANIFEST, manifest_faults, write_manifest
from ccfs.runs.provenance import PROVENANCE, TABLES, Provenance, differences, modules_digest, packages, read_provenance
from ccfs.runs.store import RunError, Store

if TYPE_CHECKING:
    from ccfs.images.smoother import Network

__all__ = ["Live", "Shard", "certify_dataset", "merge_runs", "plan", "provenance_of", "recounted", "run_key"]

# Proposals of one image in one span, and the most proposals and images in one shard. They divide the work and change
# no count. An interruption loses at most the shards in flight.
_SPAN = 10_000
_SHARD = 20_000
_IMAGES = 10
_THIS = "ccfs.images.run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Spans of proposals that are counted and stored together."""

    spans: tuple[Span, ...]

    @property
    def name(self) -> str:
        """The name of the shard. Its first span is in no other shard."""
        first = self.spans[0]
        return f"image-{first.index:06d}-{first.purpose}-{first.start:09d}"

    @property
    def trials(self) -> tuple[int, ...]:
        """The images of the shard, for the journal."""
        return tuple(sorted({span.index for span in self.spans}))

    @property
    def files(self) -> tuple[str, ...]:
        """Its one file."""
        return (f"parts/{self.name}.parquet",)

    @property
    def journal(self) -> str:
        """Its journal entry."""
        return f"batches/{self.name}.json"


def plan(spans: Iterable[Span]) -> Iterator[Shard]:
    """Yield shards of at most ten images and 20,000 proposals, in the order of the spans."""
    group: list[Span] = []
    for span in spans:
        images = {part.index for part in group} | {span.index}
        if group and (sum(part.trials for part in group) + span.trials > _SHARD or len(images) > _IMAGES):
            yield Shard(spans=tuple(group))
            group = []
        group.append(span)
    if group:
        yield Shard(spans=tuple(group))


def _spans(key: RunKey, index: int) -> Iterator[Span]:
    for purpose, trials in ((SELECTION, key.selection_trials), (ESTIMATION, key.estimation_trials)):
        for start in range(0, trials, _SPAN):
            yield Span(index=index, purpose=purpose, start=start, stop=min(start + _SPAN, trials))


@dataclass(slots=True)
class _Counting:
    """Counts shards with live objects."""

    counter: Counter
    images: Images
    key: RunKey

    def __call__(self, shard: Shard) -> Files:
        return (part_bytes(self.key, [self.tally(span) for span in shard.spans]),)

    def tally(self, span: Span) -> Tally:
        """Count one span."""
        center = self.images.center(span.index)
        purpose = f"{self.key.stream}/{span.purpose}" if self.key.stream else span.purpose
        noise = self.key.noise_stream(span.index, purpose, center.size)
        return Tally(span=span, counts=self.counter.count(center, noise, span.trials, start=span.start))


def _count_elsewhere(asked: str, key: str, batch_size: int, shard: Shard) -> Files:
    """Count a shard on a worker, which loads everything from the description and compares every digest."""
    import torch

    torch.set_num_threads(1)  # there is one worker per core
    return _loaded(asked, key, batch_size)(shard)


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The objects that a Python program counted with, to count with them again."""

    model: Network
    images: Images
    rule: Filter
    declared: str | None = None


@lru_cache(maxsize=1)
def _loaded(asked: str, expected: str, batch_size: int) -> _Counting:
    described = Asked.model_validate_json(asked)
    live = Live(
        model=described.model_of(),
        images=described.image_set(),
        rule=described.rule(),
        declared=described.declared,
    )
    return _alive(live, RunKey.from_bytes(expected.encode(), where="the run's key"), batch_size)


def _alive(live: Live, wanted: RunKey, batch_size: int) -> _Counting:
    key = run_key(
        live.model,
        live.images,
        live.rule,
        sigma=wanted.sigma,
        n0=wanted.selection_trials,
        n=wanted.estimation_trials,
        seed=wanted.seed,
        stream=wanted.stream,
        declared=live.declared,
    )
    _refuse_other_key(wanted, key)
    return _Counting(Counter(live.model, key.sigma, live.rule, key.num_classes, batch_size), live.images, key)


def recounted(
    run: ImageRun, indices: Sequence[int], *, live: Live | None = None, batch_size: int = 250
) -> dict[int, tuple[CountRow, ...]] | str:
    """Count images of a run again with what it names, or with live objects.

    Returns:
        Their rows, or why that cannot be compared.
    """
    try:
        if live is not None:
            counting = _alive(live, run.key, batch_size)
        elif run.asked is not None:
            counting = _loaded(run.asked.model_dump_json(), run.key.to_bytes().decode(), batch_size)
        else:
            return f"{HEAD}: names no network that could be loaded."
    except _OtherKeyError as error:
        return f"{HEAD}: {error}"
    labels = {index: int(counting.images.labels[index]) for index in indices}
    tallies = [counting.tally(span) for index in indices for span in _spans(run.key, index)]
    return added(run.key, tallies, labels)


class _OtherKeyError(RuntimeError):
    """What a description loads is not what was counted."""


def _refuse_other_key(wanted: RunKey, key: RunKey) -> None:
    for name in RunKey.model_fields:
        if getattr(key, name) != getattr(wanted, name):
            raise _OtherKeyError(
                f"what is loaded here has another `{name}` than the run: {getattr(key, name)}, not "
                f"{getattr(wanted, name)}."
            )


def run_key(
    model: Network,
    images: Images,
    rule: Filter,
    *,
    sigma: float,
    n0: int,
    n: int,
    seed: int,
    stream: str = "",
    declared: str | None = None,
) -> RunKey:
    """Return what counts of these objects are counts of."""
    return RunKey(
        dataset=images.name,
        dataset_sha256=images.digest,
        model_sha256=model_digest(model, declared=declared),
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


def certify_dataset(
    model: Network,
    images: Images,
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
    declared: str | None = None,
    asked: Asked | None = None,
    engine: Engine | None = None,
    progress: Callable[[int], None] | None = None,
) -> CountTable:
    """Count selection and estimation labels of many images. Every radius follows from these counts.

    `folder` becomes a run: it is locked while it is written, each finished shard is journalled, and at the end
    `counts.parquet` and a manifest are written. After an interruption, even by kill -9, call again to count what is
    missing. Each image draws from its own streams, so neither order nor batch size nor division into shards nor an
    interruption changes a count.

    Args:
        model: network in evaluation mode, with as many labels as the images.
        images: the data set. An image's index is its position in it.
        rule: the filter. All its variants share the model calls.
        sigma: noise scale.
        n0: selection proposals per image.
        n: estimation proposals per image.
        seed: base seed.
        batch_size: proposals per model call.
        folder: where the run is. It belongs to one run, which may grow by more images.
        indices: which images, all by default.
        stream: name of another independent set of streams under the same seed.
        declared: what `model` is, if it is a plain function, see `model_digest`.
        asked: from what worker processes load model, images and filter again. Without it, counting is serial.
        engine: where shards are counted, see `ccfs.runs.executors`. By default in this process.
        progress: called with the number of images done since the last call.

    Returns:
        The counts of the chosen images.

    Raises:
        ValueError: the model answers the same images in two ways, or an argument is out of range.
        RunError: another process writes to `folder`, or it belongs to another run.
        RecordError: stored counts are damaged.
    """
    chosen = list(range(len(images))) if indices is None else [checks.count("index", index) for index in indices]
    if len(set(chosen)) != len(chosen) or not all(index < len(images) for index in chosen):
        raise ValueError(f"`indices` must be different positions below {len(images)}.")
    if engine is not None and engine.in_flight > 1 and asked is None:
        raise ValueError(
            "several processes need `asked`, because a live object cannot be sent to them. Use the command "
            "`ccfs image certify --model package.module:factory --workers N`."
        )
    key = run_key(model, images, rule, sigma=sigma, n0=n0, n=n, seed=seed, stream=stream, declared=declared)
    counter = Counter(model, sigma, rule, key.num_classes, batch_size)
    if chosen:
        counter.refuse_random(images.center(chosen[0]))
    live = engine is None or asked is None
    work: Callable[[Shard], Files] = (
        _Counting(counter, images, key)
        if live or asked is None
        else partial(_count_elsewhere, asked.model_dump_json(), key.to_bytes().decode(), batch_size)
    )
    run = ImageRun(key=key, images=ranges(chosen), asked=asked)
    store = image_store(folder)
    store.refuse_foreign()
    with store.locked():
        whole = _claim(store, run)
        labels = {index: int(images.labels[index]) for index in whole.indices}
        done = _Done(store, key, labels)
        told = _Told(progress, chosen)
        told.tell(done.rows)
        with Pool(serial_engine() if engine is None else engine, work) as pool:
            for shard, files in pool.completed(plan(done.missing(chosen))):
                commit(store, shard, files)
                done.take(files[0], where=shard.files[0])
                told.tell(done.rows)
        table = _finish(store, whole, done.rows)
    wanted = set(chosen)
    return CountTable(key=key, rows=tuple(row for row in table.rows if row.index in wanted))


def merge_runs(folders: Sequence[Path], output: Path) -> CountTable:
    """Join finished runs of one key into a run that has the images of all. Equal images must have equal counts."""
    heads = [read_run(folder) for folder in folders]
    if not heads:
        raise ValueError("`folders` must name at least one run.")
    run = heads[0]
    for head, folder in zip(heads[1:], folders[1:], strict=True):
        run = joined(run, head, where=folder)
    store = image_store(output)
    store.refuse_foreign()
    rows: dict[int, tuple[CountRow, ...]] = {}
    for folder in [*folders, *([output] if store.exists(COUNTS) else [])]:
        faults = manifest_faults(image_store(folder))
        if faults:
            raise RunError(f"{folder}: {faults[0]}")
        _, table = read_table(folder)
        for index, group in _by_image(table).items():
            if rows.setdefault(index, group) != group:
                raise RecordError(f"{folder}: image {index} has other counts than in another run.")
    with store.locked():
        return _finish(store, _claim(store, run), rows)


def _by_image(table: CountTable) -> dict[int, tuple[CountRow, ...]]:
    found: dict[int, tuple[CountRow, ...]] = {}
    for row in table.rows:
        found[row.index] = (*found.get(row.index, ()), row)
    return found


class _Done:
    """What is counted already: whole images, and parts of others."""

    def __init__(self, store: Store, key: RunKey, labels: Mapping[int, int]) -> None:
        self._key, self._labels = key, labels
        self.rows: dict[int, tuple[CountRow, ...]] = {}
        self._tallies: dict[Span, Tally] = {}
        if store.exists(COUNTS):
            table = read_counts(store.path(COUNTS))
            if table.key != key:
                raise RecordError(f"{store.path(COUNTS)} belongs to another run. Use another folder.")
            self.rows = _by_image(table)
        for name in sorted(store.files()):
            if name.startswith("parts/"):
                self._take_stored(store, name)

    def _take_stored(self, store: Store, name: str) -> None:
        journal = f"batches/{Path(name).stem}.json"
        if not store.exists(journal):  # a crash left the part alone, so it does not count
            return
        content = store.read(name)
        spans = tuple(tally.span for tally in read_part(content, self._key, where=name))
        shard = Shard(spans=spans)
        if shard.journal != journal or not is_finished(store, shard):
            raise RunError(f"{store.path(name)}: does not match its journal. Delete both to count it again.")
        self.take(content, where=name)

    def take(self, content: bytes, *, where: str) -> None:
        """Add a part, and the rows of the images that it completes."""
        fresh = read_part(content, self._key, where=where)
        self._tallies.update({tally.span: tally for tally in fresh if tally.span.index not in self.rows})
        touched = {tally.span.index for tally in fresh}
        mine = [tally for span, tally in self._tallies.items() if span.index in touched]
        self.rows.update(added(self._key, mine, self._labels))

    def missing(self, indices: Iterable[int]) -> list[Span]:
        """Return the spans that are not counted yet."""
        return [
            span
            for index in indices
            if index not in self.rows
            for span in _spans(self._key, index)
            if span not in self._tallies
        ]


class _Told:
    """Tells the progress in whole images."""

    def __init__(self, progress: Callable[[int], None] | None, chosen: Sequence[int]) -> None:
        self._progress, self._wanted, self._told = progress, set(chosen), 0

    def tell(self, rows: Mapping[int, object]) -> None:
        done = len(self._wanted & rows.keys())
        if self._progress is not None and done > self._told:
            self._progress(done - self._told)
        self._told = done


def _claim(store: Store, run: ImageRun) -> ImageRun:
    """Claim the folder for this run, and record what it depends on. Refuse another run before anything is written."""
    record = provenance_of(run)
    if not store.is_run:
        if any(True for _ in store.files()):
            raise RunError(f"{store.root}: has results but no {HEAD}. Choose another folder.")
        store.write(HEAD, run.to_bytes())
        store.write(PROVENANCE, record.to_bytes())
        return run
    whole = joined(store.read_document(ImageRun, HEAD), run, where=store.root)
    if store.exists(PROVENANCE):
        known, now = read_provenance(store), record.model_dump()
        for table in TABLES:
            for name, before, here in differences(known[table], now[table]):
                raise RunError(
                    f"{store.root}: was begun with `{table}` {name} {before}, got {here}. Restore it to resume, or "
                    "choose another folder."
                )
    elif any(name != HEAD for name in store.files()):
        raise RunError(f"{store.root}: has results but no {PROVENANCE}, so the code that made them is unknown.")
    else:
        store.write(PROVENANCE, record.to_bytes())
    if store.read(HEAD) != whole.to_bytes():
        store.remove(MANIFEST)
        store.write(HEAD, whole.to_bytes())
    return whole


def provenance_of(run: ImageRun) -> Provenance:
    """Return what an image run depends on besides its key, as it is here."""
    files = run.asked.files() if run.asked is not None else {}
    return Provenance(
        protocol=run.hash,
        controllers={"network": run.key.model_sha256},
        code={"ccfs": modules_digest(_THIS), **(run.asked.code() if run.asked is not None else {})},
        parts={},
        events={},
        files={str(path): file_digest(path) for path in files.values()},
        packages=packages(),
    )


def _finish(store: Store, run: ImageRun, done: Mapping[int, tuple[CountRow, ...]]) -> CountTable:
    """Write the whole table and the manifest, and remove the parts. A crash in between leaves every count somewhere."""
    table = CountTable(key=run.key, rows=tuple(row for index in sorted(done) for row in done[index]))
    content = counts_bytes(table)
    if not store.exists(COUNTS) or store.read(COUNTS) != content:
        store.remove(MANIFEST)
        store.write(COUNTS, content)
    if all(index in done for index in run.indices):
        store.remove(*[name for name in store.files() if name.startswith(("batches/", "parts/"))], "batches", "parts")
        if not store.exists(MANIFEST):
            write_manifest(store, run)
    return table
