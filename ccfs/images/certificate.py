"""The certificate of an image run: every radius with the counts that it follows from, in one file for a stranger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from ccfs.certificates.images import DIAGNOSTICS, LabelCounts, Rule, verdict
from ccfs.certificates.rounding import lower_text
from ccfs.files.digests import canonical_json, text_digest
from ccfs.files.documents import Digest, Document, Table
from ccfs.files.reading import RefusedFileError, limits, read_bytes, read_json
from ccfs.images.counts import CountRow, CountTable, RecordError, RunKey, refuse_unproved
from ccfs.images.folder import ImageRun, image_store, read_table
from ccfs.images.summary import JOINT_RULES, PROOF_RULES
from ccfs.runs.manifest import MANIFEST, manifest_faults
from ccfs.runs.manifest import write_derived as write_with_manifest

__all__ = [
    "FOLDER",
    "ImageCertificate",
    "ImageClaim",
    "certificate_name",
    "certify_run",
    "derived",
    "is_image_certificate",
    "main_rules",
    "verify_image",
    "write_derived",
]

FOLDER = "certificates"


class ImageClaim(Table):
    """One image: what was counted, and the label and radius that follow."""

    index: int = Field(ge=0, description="Position of the image in the data set.")
    label: int = Field(ge=0, description="Its true label.")
    selected: int | None = Field(description="The selected label, or null if no selection proposal was retained.")
    radius: float = Field(ge=0.0, description="Certified radius, rounded down. 0 if nothing is certified.")
    selection: dict[str, int] = Field(description="Retained selection proposals by label, without zeros.")
    selection_rejected: int = Field(ge=0, description="Rejected selection proposals.")
    estimation: dict[str, int] = Field(description="Retained estimation proposals by label, without zeros.")
    estimation_rejected: int = Field(ge=0, description="Rejected estimation proposals.")


class ImageCertificate(Document):
    """Certified labels of images by one rule."""

    format: Literal["ccfs/image-certificate/1"] = Field(
        default="ccfs/image-certificate/1", description="Kind and version of this document."
    )
    key: RunKey = Field(description="What the counts are counts of.")
    rule: str = Field(description="The rule that turns counts into radii.")
    variant: str = Field(description="The filter variant that the rule is applied to.")
    delta: float = Field(gt=0.0, lt=1.0, description="Failure probability of each image.")
    claims: tuple[ImageClaim, ...] = Field(description="One entry per image, by ascending position.")
    digest: Digest = Field(description="SHA-256 of the canonical text of this document without this key.")

    @property
    def sentence(self) -> str:
        """The claim in words."""
        certified = [claim for claim in self.claims if claim.radius > 0.0]
        median = sorted(claim.radius for claim in self.claims)[(len(self.claims) - 1) // 2] if self.claims else 0.0
        return (
            f"Of {len(self.claims)} images of {self.key.dataset}, {len(certified)} have a certified label by "
            f"{self.rule} at noise scale {self.key.sigma:g}. The median radius is {lower_text(median)}. For each "
            f"image, with probability at least 1 - {self.delta:g} over its noise, the filtered classifier "
            f"({self.variant}) answers the selected label at every image closer than its radius in Euclidean distance."
        )

    @property
    def premises(self) -> tuple[str, ...]:
        """What the claim takes for granted, in words."""
        found = [
            f"The network with digest {self.key.model_sha256} and the filter are fixed functions of the noisy image.",
            f"The noise ({self.key.noise}) stands for independent Gaussian proposals. It is not clipped.",
            "Each image has its own failure probability. All images together need delta divided by their number.",
        ]
        if self.key.proof is not None and self.rule in {rule.value for rule in PROOF_RULES}:
            found.append(f"Covariance of the retained proposals: {self.key.proof.statement}.")
        return tuple(found)


def derived(table: CountTable, variant: str, rule: Rule, *, delta: float) -> ImageCertificate:
    """Derive the certificate of one rule from counts. Every radius is computed again."""
    if rule in DIAGNOSTICS:
        raise ValueError(f"{rule.value} is no certificate.")
    claims = tuple(_claim(table, row, rule, delta) for row in table.variant(variant))
    fields = {"key": table.key, "rule": rule.value, "variant": variant, "delta": delta, "claims": claims}
    draft = ImageCertificate(**fields, digest="0" * 64)  # type: ignore[arg-type]
    return ImageCertificate(**fields, digest=_digest(draft))  # type: ignore[arg-type]


def _digest(document: ImageCertificate) -> str:
    content = document.model_dump(mode="json")
    del content["digest"]
    return text_digest(canonical_json(content))


def _claim(table: CountTable, row: CountRow, rule: Rule, delta: float) -> ImageClaim:
    found = verdict(rule, row.selection, row.estimation, sigma=table.key.sigma, delta=delta, proof=table.proof)
    return ImageClaim(
        index=row.index,
        label=row.label,
        selected=found.selected,
        radius=found.radius,
        selection=_sparse(row.selection),
        selection_rejected=row.selection.rejected,
        estimation=_sparse(row.estimation),
        estimation_rejected=row.estimation.rejected,
    )


def _sparse(counts: LabelCounts) -> dict[str, int]:
    return {str(label): count for label, count in enumerate(counts.retained) if count}


def _dense(counts: dict[str, int], rejected: int, classes: int) -> LabelCounts:
    retained = [0] * classes
    for name, count in counts.items():
        if not name.isdecimal() or str(int(name)) != name or not int(name) < classes:
            raise RecordError(f"a count has the label {name!r}, labels are 0 to {classes - 1}.")
        retained[int(name)] = count
    return LabelCounts(retained=tuple(retained), rejected=rejected)


def main_rules(table: CountTable, variant: str) -> Iterator[tuple[str, Rule]]:
    """Yield (variant, rule) for each certificate that a run gets by default."""
    if "none" in table.key.variants:
        yield "none", Rule.UNFILTERED
    if variant != "none":
        yield from ((variant, rule) for rule in JOINT_RULES if rule not in DIAGNOSTICS)
        if table.proof is not None:
            yield from ((variant, rule) for rule in PROOF_RULES)


def certificate_name(rule: Rule) -> str:
    """Return the name of a rule's file in a run."""
    return f"{FOLDER}/{rule.name.lower().replace('_', '-')}.json"


def certify_run(folder: Path, *, delta: float) -> dict[str, ImageCertificate]:
    """Write the certificates of a counted run, one file per rule, and return them by file name."""
    run, table = read_table(folder)
    made = {
        certificate_name(rule): derived(table, variant, rule, delta=delta)
        for variant, rule in main_rules(table, run.variant)
    }
    write_derived(folder, run, {name: document.to_bytes() for name, document in made.items()})
    return made


def write_derived(folder: Path, run: ImageRun, files: dict[str, bytes]) -> None:
    """Write files that follow from a run into its folder, and the manifest again if the run is finished."""
    store = image_store(folder)
    with store.locked():
        if store.exists(MANIFEST):
            write_with_manifest(store, run, files)
        else:
            store.write_together(files)


def verify_image(path: Path, folder: Path | None) -> ImageCertificate:
    """Recompute every radius of a certificate from its counts and, with a run, compare its counts with the run's.

    Raises:
        DocumentError: the file is no image certificate.
        RecordError: a number does not follow.
    """
    found = ImageCertificate.from_bytes(read_bytes(path, most=limits().document), where=str(path))
    if found.digest != _digest(found):
        raise RecordError(f"{path}: was changed after it was written.")
    rules = {rule.value: rule for rule in Rule if rule not in DIAGNOSTICS}
    if found.rule not in rules or found.variant not in found.key.variants:
        raise RecordError(
            f"{path}: names the rule {found.rule!r} and the variant {found.variant!r}, which are unknown."
        )
    refuse_unproved(found.key)
    rows = tuple(
        CountRow(
            index=claim.index,
            label=claim.label,
            variant=found.variant,
            selection=_dense(claim.selection, claim.selection_rejected, found.key.num_classes),
            estimation=_dense(claim.estimation, claim.estimation_rejected, found.key.num_classes),
        )
        for claim in found.claims
    )
    table = CountTable(key=found.key, rows=rows)
    if derived(table, found.variant, rules[found.rule], delta=found.delta).to_bytes() != found.to_bytes():
        raise RecordError(f"{path}: a radius or a label does not follow from the counts.")
    if folder is not None:
        faults = manifest_faults(image_store(folder))
        if faults:
            raise RecordError(f"{folder}: {faults[0]}")
        _, counted = read_table(folder)
        if counted.key != found.key or counted.variant(found.variant) != rows:
            raise RecordError(f"{path}: its counts are not those of {folder}.")
    return found


def is_image_certificate(path: Path) -> bool:
    """Return whether a file says that it is an image certificate."""
    try:
        content = read_json(read_bytes(path, most=limits().document), path)
    except (OSError, RefusedFileError):
        return False
    found = content.get("format") if isinstance(content, dict) else None
    return isinstance(found, str) and found.startswith("ccfs/image-certificate/")
