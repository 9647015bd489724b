"""What printed radii of other programs are worth: read their logs and counts, and compute what follows from them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from pydantic import Field
from scipy.special import ndtr

from ccfs.certificates import checks
from ccfs.certificates.binomial import clopper_pearson_lower
from ccfs.certificates.filtered import Abstention, certify_counts, substituted_one_sided
from ccfs.certificates.gaussian import radius as gaussian_radius
from ccfs.certificates.rounding import fraction_upper
from ccfs.files.documents import OPTIONAL, Document, Table
from ccfs.files.reading import RefusedFileError, read_arrays, read_bytes
from ccfs.images.counts import RecordError
from ccfs.images.endpoints import Claim, Endpoint
from ccfs.images.filters import Filter, NoFilter
from ccfs.images.smoother import FilteredSmoother

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "Assessment",
    "AssessmentDocument",
    "LogRow",
    "Smooth",
    "assess",
    "assessment",
    "claims_of",
    "read_log",
    "wrapped",
]

_NAMES = {
    "index": ("idx", "index", "image", "id"),
    "label": ("label", "y", "true", "target"),
    "selected": ("predict", "prediction", "pred", "selected", "cahat"),
    "radius": ("radius", "r"),
    "top": ("top", "na", "count_a", "counta", "selected_count"),
    "retained": ("retained", "kept", "n_retained", "n_kept"),
    "drawn": ("drawn", "n", "trials", "total", "n_drawn"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One image of a log: what was printed, and counts if the log has them. A missing value is None.

    `radius` is the printed text, because its last digit tells how it was rounded.
    """

    index: int
    label: int | None
    selected: int | None
    radius: str | None
    top: int | None = None
    retained: int | None = None
    drawn: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What a row is worth: a radius that is certified, and why it differs from the printed one."""

    row: LogRow
    printed: float | None
    worth: float
    reason: str

    @property
    def is_overstated(self) -> bool:
        """Whether more was printed than follows."""
        return self.printed is not None and self.printed > self.worth


class AssessedImage(Table):
    """One image of a log of another program."""

    image: int = Field(description="Number of the image in the log.")
    printed: float | None = Field(description="The radius that was printed, or null if the image abstained.")
    worth: float = Field(description="The radius that follows, rounded down. 0 certifies nothing.")
    reason: str = Field(description="Why it is this one, in words.")
    is_overstated: bool = Field(description="Whether more was printed than follows.")


class ProvedChange(Table):
    """A label change that was proved closer to an image than the radius that was printed."""

    image: int = Field(description="Number of the image in the log.")
    label: int = Field(description="Its label.")
    changed: int = Field(description="The label at the moved image.")
    distance: float = Field(description="Distance of the moved image, rounded up.")


class AssessmentDocument(Document):
    """What the radii that another program printed are worth."""

    omitted: ClassVar[frozenset[str]] = frozenset({"searched", "changes"})

    format: Literal["ccfs/image-assessment/1"] = Field(
        default="ccfs/image-assessment/1", description="Kind and version of this document."
    )
    sigma: float = Field(description="Noise scale of the log.")
    delta: float = Field(gt=0.0, lt=1.0, description="Failure probability per image.")
    is_filtered: bool = Field(description="Whether the classifier discarded some noisy copies.")
    images: tuple[AssessedImage, ...] = Field(description="One entry for each image, in the order of the log.")
    searched: tuple[int, ...] | None = Field(
        default=None,
        description="Images at which label changes inside the printed radius were searched for.",
        json_schema_extra=OPTIONAL,
    )
    changes: tuple[ProvedChange, ...] | None = Field(
        default=None, description="The changes that were proved.", json_schema_extra=OPTIONAL
    )


def claims_of(found: Sequence[Assessment]) -> dict[int, Claim]:
    """Return the positive printed radii of a log as claims that can be attacked, by image.

    Raises:
        RecordError: an image stands in the log twice.
    """
    claims: dict[int, Claim] = {}
    for item in found:
        if item.row.index in claims:
            raise RecordError(f"image {item.row.index} must stand in the log once, it does twice.")
        if item.printed is not None and item.printed > 0.0:
            claims[item.row.index] = Claim(label=item.row.selected, radius=item.printed, worth=item.worth)
    return claims


def assessment(
    found: Sequence[Assessment],
    *,
    sigma: float,
    delta: float,
    filtered: bool,
    endpoints: Sequence[Endpoint] | None = None,
) -> AssessmentDocument:
    """Return what `assess` found as a document, with what a search for label changes found."""
    images = tuple(
        AssessedImage(
            image=item.row.index,
            printed=item.printed,
            worth=item.worth,
            reason=item.reason,
            is_overstated=item.is_overstated,
        )
        for item in found
    )
    searched, changes = None, None
    if endpoints is not None:
        searched = tuple(item.index for item in endpoints)
        changes = tuple(
            ProvedChange(image=item.index, label=item.selected, changed=item.target, distance=item.distance)
            for item in endpoints
            if item.is_verified and item.selected is not None and item.target is not None and item.distance is not None
        )
    return AssessmentDocument(
        sigma=sigma, delta=delta, is_filtered=filtered, images=images, searched=searched, changes=changes
    )


class Smooth(Protocol):
    """The well-known object of Cohen and others: a classifier, its number of labels and its noise scale."""

    base_classifier: nn.Module
    num_classes: int
    sigma: float


def wrapped(smooth: Smooth, *, filter: Filter | None = None, seed: int = 0) -> FilteredSmoother:
    """Return a `Smooth` object as our smoother, whose certificates count every proposal.

    Args:
        smooth: the object.
        filter: the rule by which the program discards noisy copies. None if it discards none.
        seed: base seed.
    """
    rule = NoFilter() if filter is None else filter
    return FilteredSmoother(smooth.base_classifier, smooth.sigma, rule, smooth.num_classes, seed=seed)


def read_log(path: Path) -> tuple[LogRow, ...]:
    """Read a table of other programs. Nothing in it is run.

    It reads the TSV of Cohen's `certify.py` (idx, label, predict, radius, correct, time), any CSV or TSV with such
    names or with counts (top, retained, drawn), and an .npz file with `prediction` and `radius`, as ART returns them.

    Raises:
        RecordError: the file has no such columns, or a cell is no number.
    """
    if not path.is_file():
        raise RecordError(f"{path}: is missing.")
    rows = tuple(_npz_rows(path) if path.suffix == ".npz" else _text_rows(path))
    if not rows:
        raise RecordError(f"{path}: must hold at least one image.")
    return rows


def _npz_rows(path: Path) -> Iterator[LogRow]:
    try:
        arrays = {name.lower(): array for name, array in read_arrays(path, path).items()}
    except (OSError, RefusedFileError) as error:
        raise RecordError(f"{path}: must be an .npz file of plain arrays: {error}") from None
    found = {key: next((arrays[name] for name in names if name in arrays), None) for key, names in _NAMES.items()}
    predicted, radii = found["selected"], found["radius"]
    if predicted is None or radii is None or predicted.shape != radii.shape or predicted.ndim != 1:
        raise RecordError(f"{path}: must hold `prediction` and `radius` of equal length, it holds {', '.join(arrays)}.")
    for place, (label, value) in enumerate(zip(predicted.tolist(), radii.tolist(), strict=True)):
        yield LogRow(index=place, label=None, selected=None if label < 0 else int(label), radius=repr(float(value)))


def _text_rows(path: Path) -> Iterator[LogRow]:
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RecordError(f"{path}: must be a text table or an .npz file.") from None
    first = text.partition("\n")[0]
    reader = csv.DictReader(io.StringIO(text), delimiter="\t" if "\t" in first else ",")
    header = {str(name).strip().lower(): name for name in reader.fieldnames or ()}
    columns = {key: next((header[name] for name in names if name in header), None) for key, names in _NAMES.items()}
    if columns["radius"] is None and (columns["top"] is None or columns["drawn"] is None):
        raise RecordError(f"{path}: must have the column `radius`, or `top`, `retained` and `drawn`, got {first!r}.")
    for place, line in enumerate(reader):
        cells = {key: None if name is None else (line.get(name) or "").strip() for key, name in columns.items()}
        where = f"{path}, line {place + 2}"
        selected = _integer(cells["selected"], where)
        yield LogRow(
            index=place if cells["index"] is None else _integer(cells["index"], where) or 0,
            label=_integer(cells["label"], where),
            selected=None if selected is None or selected < 0 else selected,
            radius=cells["radius"] or None,
            top=_integer(cells["top"], where),
            retained=_integer(cells["retained"], where),
            drawn=_integer(cells["drawn"], where),
        )


def _integer(text: str | None, where: str) -> int | None:
    if text is None or text == "":
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise RecordError(f"{where}: must hold a whole number, got {text!r}.") from None
    if not number.is_finite() or number != int(number):
        raise RecordError(f"{where}: must hold a whole number, got {text!r}.")
    return int(number)


def assess(
    rows: Sequence[LogRow], *, sigma: float, delta: float, n: int | None = None, filtered: bool = False
) -> tuple[Assessment, ...]:
    """Say what each row is worth.

    With counts, a radius follows by Algorithm 1 from the selected, the other retained and the rejected proposals. With
    a printed radius alone, the least count of `n` proposals that prints so gives the radius that surely follows. A
    printed radius of a classifier with a filter, without the number of proposals drawn, is worth nothing: the same
    conditional counts also come from a classifier whose label changes at once.

    *Assumes* that the label was selected on other proposals, and that the number drawn was fixed in advance.

    Args:
        rows: the log.
        sigma: noise scale, in the units of the radius.
        delta: failure probability per image, `alpha` in Cohen's program.
        n: estimation proposals per image, for rows without counts.
        filtered: whether the classifier discarded noisy copies.
    """
    scale, level = checks.positive("sigma", sigma), checks.delta(delta)
    return tuple(_assessed(row, scale, level, n, filtered=filtered) for row in rows)


def _assessed(row: LogRow, sigma: float, delta: float, n: int | None, *, filtered: bool) -> Assessment:
    printed = _number(row)
    if row.top is not None and row.drawn is not None:
        return _from_counts(row, printed, sigma, delta)
    if row.selected is None or printed is None or not printed > 0.0:
        return Assessment(row=row, printed=None, worth=0.0, reason="abstains")
    if filtered:
        reason = "conditional counts without the number of proposals drawn certify nothing"
        return Assessment(row=row, printed=printed, worth=0.0, reason=reason)
    if n is None:
        raise ValueError("`n` must be given for a log without counts: the estimation proposals per image.")
    count = _least_count(str(row.radius), sigma, delta, n)
    if count is None:
        return Assessment(row=row, printed=printed, worth=0.0, reason=f"no count of {n} proposals prints this radius")
    worth = _unfiltered(count, n, sigma, delta)
    reason = f"at least {count} of {n} proposals" + (", printed rounded up" if printed > worth else "")
    return Assessment(row=row, printed=printed, worth=worth, reason=reason)


def _number(row: LogRow) -> float | None:
    if row.radius is None:
        return None
    try:
        value = float(row.radius)
    except ValueError:
        raise RecordError(f"image {row.index}: `radius` must be a number, got {row.radius!r}.") from None
    if not value >= 0.0 or value == float("inf"):
        raise RecordError(f"image {row.index}: `radius` must be finite and at least 0, got {row.radius!r}.")
    return value


def _from_counts(row: LogRow, printed: float | None, sigma: float, delta: float) -> Assessment:
    top, drawn = row.top or 0, row.drawn or 0
    retained = drawn if row.retained is None else row.retained
    if not 0 <= top <= retained <= drawn or drawn == 0:
        raise RecordError(f"image {row.index}: must have top <= retained <= drawn, got {top}, {retained} and {drawn}.")
    if printed is None:
        printed = substituted_one_sided(top, retained, sigma=sigma, delta=delta)
    if retained == drawn:
        worth = _unfiltered(top, drawn, sigma, delta)
        return Assessment(row=row, printed=printed, worth=worth, reason="nothing was rejected")
    # All competitors count as one label. A bound on their sum bounds each of them.
    answer = certify_counts([top, retained - top], drawn - retained, selected=0, sigma=sigma, delta=delta)
    worth = 0.0 if isinstance(answer, Abstention) else answer.radius
    return Assessment(
        row=row, printed=printed, worth=worth, reason=f"joint mass, {drawn - retained} of {drawn} proposals rejected"
    )


@lru_cache(maxsize=4096)
def _unfiltered(top: int, drawn: int, sigma: float, delta: float) -> float:
    lower = clopper_pearson_lower(top, drawn, delta=delta)
    return gaussian_radius(lower, fraction_upper(1 - Fraction(lower)), sigma)


@lru_cache(maxsize=4096)
def _least_count(printed: str, sigma: float, delta: float, n: int) -> int | None:
    """Return the least count whose radius may have been printed so, rounded to the last digit shown."""
    value = Decimal(printed)
    # Trailing zeros may be missing, as after "{:.3}", so at least three digits count.
    digits = max(len(value.as_tuple().digits), 3)
    exponent = value.adjusted() - digits + 1
    # Programs round to the nearest or down, so the radius is at most a whole unit above what is printed.
    low, high = value - Decimal(5).scaleb(exponent - 1), value + Decimal(1).scaleb(exponent)
    guess = int(n * float(ndtr(float(low) / sigma)))
    first, last = max(guess, n // 2), n
    if Fraction(_unfiltered(n, n, sigma, delta)) < Fraction(low):
        return None
    while first < last:
        middle = (first + last) // 2
        if Fraction(_unfiltered(middle, n, sigma, delta)) >= Fraction(low):
            last = middle
        else:
            first = middle + 1
    return first if Fraction(_unfiltered(first, n, sigma, delta)) <= Fraction(high) else None
