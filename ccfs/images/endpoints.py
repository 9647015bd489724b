"""Attack a cohort of images. Each image is one line of JSON, so an interrupted attack continues where it stopped.

The radii that are attacked are the substituted ones of our own counts, or those that another program printed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ccfs.certificates.filtered import top_label
from ccfs.certificates.images import Rule, verdict
from ccfs.files.atomic import write_atomically
from ccfs.files.digests import canonical_json, text_digest
from ccfs.files.documents import OPTIONAL, Digest, Document, Table
from ccfs.files.lock import locked
from ccfs.files.reading import limits, read_array, read_bytes, refuse_links
from ccfs.images.attack import SearchPlan, confirm, refuse_without_gradients, search
from ccfs.images.counts import CountRow, CountTable, RecordError, RunKey, model_digest
from ccfs.images.data import Images
from ccfs.images.filters import ConfidenceFilter
from ccfs.images.folder import HEAD, image_store, read_run
from ccfs.images.smoother import Counter
from ccfs.runs.manifest import MANIFEST, write_manifest

if TYPE_CHECKING:
    from ccfs.images.smoother import Network

__all__ = [
    "AttackHead",
    "AttackPlan",
    "Claim",
    "Endpoint",
    "attack_cohort",
    "claims_digest",
    "inside_sound_radius",
    "read_attack",
    "shifted_center",
]


class AttackPlan(Table):
    """Everything that decides an attack besides the counts that it starts from."""

    search: SearchPlan = Field(description="How hard to search.")
    variant: str = Field(description="The filter variant to attack.")
    members: int = Field(ge=1, description="Size of the cohort, which sets the family of the confirmation.")
    confirmation: int = Field(ge=1, description="Fresh proposals per endpoint of a confirmation.")
    delta: float = Field(gt=0.0, lt=1.0, description="Failure probability of the family, and per image of a radius.")
    seed: int = Field(ge=0, description="Base seed of the noise.")


class AttackHead(Document):
    """First line of `endpoints.jsonl`: the plan of the attack and the key of the counts that it started from."""

    omitted: ClassVar[frozenset[str]] = frozenset({"gradients", "claims"})

    format: Literal["ccfs/image-endpoints/1"] = Field(
        default="ccfs/image-endpoints/1", description="Kind and version of this document."
    )
    plan: AttackPlan = Field(description="Everything that decides the attack besides the counts.")
    counts: RunKey = Field(description="What the counts are counts of.")
    gradients: Digest | None = Field(
        default=None,
        description="SHA-256 of the network whose gradients led the search, if it is another one than that of the "
        "counts.",
        json_schema_extra=OPTIONAL,
    )
    claims: Digest | None = Field(
        default=None,
        description="SHA-256 of the radii of another program, if these were attacked and not those of the counts.",
        json_schema_extra=OPTIONAL,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What another program says of an image: its label does not change closer than `radius`.

    `worth` is the radius that follows from its log. The label is None where the log has none. Then it is the one that
    our selection counts give.
    """

    label: int | None
    radius: float
    worth: float


def claims_digest(claims: Mapping[int, Claim]) -> str:
    """Return a SHA-256 that names the claims."""
    return text_digest(canonical_json({str(index): asdict(claims[index]) for index in sorted(claims)}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What the attack found at one image. Fields from `distance` on are None unless a screen was positive.

    `is_changed` says that both endpoint labels are proved and differ. `is_verified` says that also the distance is
    below a fresh lower bound on the substituted radius. Where radii of another program were attacked, these stand in
    the place of the substituted ones, and what they are worth in that of the sound ones.
    """

    index: int
    label: int
    selected: int | None
    substituted_radius: float
    sound_radius: float
    target: int | None = None
    screen_margin: int | None = None
    distance: float | None = None
    radius_lower: float | None = None
    nominal: tuple[int, ...] | None = None
    shifted: tuple[int, ...] | None = None
    nominal_error: float | None = None
    shifted_error: float | None = None
    is_changed: bool = False
    is_verified: bool = False


class _EndpointRecord(Table):
    """An `Endpoint` as a line of the log, read strictly."""

    index: int = Field(ge=0)
    label: int = Field(ge=0)
    selected: int | None = Field(ge=0)
    substituted_radius: float
    sound_radius: float
    target: int | None
    screen_margin: int | None
    distance: float | None
    radius_lower: float | None
    nominal: tuple[int, ...] | None
    shifted: tuple[int, ...] | None
    nominal_error: float | None
    shifted_error: float | None
    is_changed: bool
    is_verified: bool


def inside_sound_radius(endpoints: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    """Return proved label changes closer than a certified radius. There are none, except with probability delta."""
    return tuple(e for e in endpoints if e.is_changed and e.distance is not None and e.distance < e.sound_radius)


def attack_cohort(
    model: Network,
    images: Images,
    table: CountTable,
    cohort: Sequence[int],
    plan: AttackPlan,
    *,
    batch_size: int,
    folder: Path,
    declared: str | None = None,
    gradients: Network | None = None,
    claims: Mapping[int, Claim] | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Endpoint, ...]:
    """Search, screen and confirm at every image of the cohort whose substituted radius is positive.

    Args:
        model: the network that gave the counts.
        images: the images of the counts.
        table: counts of a confidence filter. They give the labels and radii to attack.
        cohort: image indices, fixed before anybody saw a count.
        plan: sizes and seeds.
        batch_size: proposals per model call.
        folder: where `endpoints.jsonl` goes, and moved centers under `pairs/`. One process at a time may write there.
        declared: what `model` is, if it is a plain function, see `model_digest`.
        gradients: another network, whose gradients lead the search. It is for networks that have none, such as 8-bit
            ones. Screens and confirmations count `model`, so a claim needs nothing from this one.
        claims: radii of another program to attack, one for each image of the cohort. By default the substituted radii
            of the counts are attacked.
        progress: called with 1 after each image.
    """
    if len(cohort) > plan.members:
        raise ValueError(f"`cohort` must hold at most {plan.members} images, the size of the family.")
    rows = {row.index: row for row in table.variant(plan.variant)}
    ranks = {row.index: row for row in table.variant("none")} if plan.search.ranking == "drawn" else rows
    missing = [index for index in cohort if index not in rows]
    if missing:
        raise ValueError(f"`table` lacks counts of {len(missing)} images of the cohort, the first is {missing[0]}.")
    unclaimed = [] if claims is None else [index for index in cohort if index not in claims]
    if unclaimed:
        raise ValueError(f"`claims` must have a radius for each image of the cohort, image {unclaimed[0]} has none.")
    if model_digest(model, declared=declared) != table.key.model_sha256:
        raise RecordError(
            "`model` is not the network of the counts: its digest differs. Attack the one that was counted."
        )
    if images.digest != table.key.dataset_sha256:
        raise RecordError("`images` are not those of the counts: their digest differs.")
    counter, climber = (
        Counter(part, table.key.sigma, ConfidenceFilter(plan.search.threshold), table.key.num_classes, batch_size)
        for part in (model, model if gradients is None else gradients)
    )
    leader = None if gradients is None else model_digest(gradients)
    named = None if claims is None else claims_digest({index: claims[index] for index in cohort})
    head = AttackHead(plan=plan, counts=table.key, gradients=leader, claims=named)
    if cohort:
        refuse_without_gradients(climber, images.center(cohort[0]))
    # The folder of a run is locked as a whole. An attack may also have a folder of its own.
    with locked(folder.parent if (folder.parent / HEAD).is_file() else folder):
        path = refuse_links(folder, "endpoints.jsonl")
        done = _started(path, head)
        try:
            for index in cohort:
                if index not in done:
                    center = images.center(index)
                    claim = None if claims is None else claims[index]
                    done[index], moved = _attacked(
                        counter, climber, center, rows[index], ranks[index], table, plan, claim
                    )
                    # The center first: a line in the log promises that its file exists.
                    if moved is not None:
                        write_atomically(folder / "pairs" / f"{index}.npy", _npy(moved))
                    write_atomically(path, _log(head, done.values()))
                if progress is not None:
                    progress(1)
        finally:
            # Also after Ctrl-C: every line of the log is whole, and an audit knows the files of the manifest only.
            _renew_manifest(folder.parent)
    return tuple(done[index] for index in cohort)


def _npy(array: NDArray[np.float32]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def _renew_manifest(folder: Path) -> None:
    """Write the manifest of a finished run again, now with the attack in it."""
    store = image_store(folder)
    if store.is_run and store.exists(MANIFEST):
        write_manifest(store, read_run(folder))


def shifted_center(folder: Path, index: int) -> NDArray[np.float32]:
    """Return the moved center of a proved label change, (height, width, channels)."""
    path = refuse_links(folder, f"pairs/{index}.npy")
    return np.asarray(read_array(read_bytes(path), path), dtype=np.float32)


def read_attack(path: Path) -> tuple[AttackHead, tuple[Endpoint, ...]]:
    """Return the head and the endpoints of `endpoints.jsonl`. A last line that was cut short is left out.

    Raises:
        RecordError: the file is empty, or of another format.
    """
    try:
        lines = read_bytes(path, most=limits().document).splitlines(keepends=True)
        if not lines:
            raise RecordError(f"{path} is empty.")
        head = AttackHead.from_bytes(lines[0], where=str(path))
        records = [_EndpointRecord.model_validate_json(line) for line in lines[1:] if line.endswith(b"\n")]
    except ValueError as error:
        raise RecordError(f"{path}: {error}") from error
    return head, tuple(Endpoint(**record.model_dump()) for record in records)


def _started(path: Path, head: AttackHead) -> dict[int, Endpoint]:
    if not path.exists():
        write_atomically(path, head.to_bytes())
        return {}
    found, endpoints = read_attack(path)
    if found != head:
        raise RecordError(f"{path} belongs to another attack. Use another folder.")
    return {endpoint.index: endpoint for endpoint in endpoints}


def _log(head: AttackHead, endpoints: Iterable[Endpoint]) -> bytes:
    lines = [f"{json.dumps(asdict(endpoint))}\n" for endpoint in endpoints]
    return head.to_bytes() + "".join(lines).encode()


def _start(row: CountRow, table: CountTable, plan: AttackPlan, claim: Claim | None) -> Endpoint:
    """Return the label and the radius to attack, and the radius that no change may be inside."""
    if claim is not None:
        kept = row.selection.retained
        selected = claim.label if claim.label is not None else top_label(kept) if sum(kept) else None
        attacked, sound = claim.radius, claim.worth
    else:
        # The attack aims at the unsound radius. The sound one is kept to show that no change is inside it.
        unsound, proved = (
            verdict(rule, row.selection, row.estimation, sigma=table.key.sigma, delta=plan.delta)
            for rule in (Rule.SUBSTITUTED, Rule.SIMULTANEOUS)
        )
        selected, attacked, sound = unsound.selected, unsound.radius, proved.radius
    return Endpoint(
        index=row.index, label=row.label, selected=selected, substituted_radius=attacked, sound_radius=sound
    )


def _attacked(
    counter: Counter,
    climber: Counter,
    center: NDArray[np.float32],
    row: CountRow,
    ranked: CountRow,
    table: CountTable,
    plan: AttackPlan,
    claim: Claim | None,
) -> tuple[Endpoint, NDArray[np.float32] | None]:
    start, sigma = _start(row, table, plan, claim), table.key.sigma
    if start.selected is None or not start.substituted_radius > 0.0:
        return start, None
    # Two attacks of one run must not share noise.
    run = table.key.hash if claim is None else f"{table.key.hash} {claims_digest({row.index: claim})}"
    best = search(
        counter,
        center,
        ranked.estimation,
        original=start.selected,
        radius=start.substituted_radius,
        sigma=sigma,
        plan=plan.search,
        run=run,
        seed=plan.seed,
        index=row.index,
        climber=climber,
    )[0]
    screened = {**asdict(start), "target": best.target, "screen_margin": best.margin}
    if not best.margin > 0:
        return Endpoint(**screened), None
    result = confirm(
        counter,
        center,
        best.center,
        original=start.selected,
        changed=best.target,
        trials=plan.confirmation,
        sigma=sigma,
        delta=plan.delta,
        members=plan.members,
        run=run,
        seed=plan.seed,
        index=row.index,
    )
    # A printed radius is a number. A substituted one is estimated, so a fresh lower bound on it counts.
    reach = result.radius_lower if claim is None else claim.radius
    screened |= {
        "distance": result.distance,
        "radius_lower": reach,
        "nominal": result.nominal.retained,
        "shifted": result.shifted.retained,
        "nominal_error": result.nominal_error,
        "shifted_error": result.shifted_error,
        "is_changed": result.is_changed,
        "is_verified": result.is_changed and result.distance < reach,
    }
    return Endpoint(**screened), best.center if result.is_changed else None
