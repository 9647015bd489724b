"""The certificate of one arm and event as a file: the claim, its program, its counts, and the traces behind it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ccfs.certificates.bounds import Bound
from ccfs.certificates.rounding import exact_text, lower_text
from ccfs.certificates.trajectory import CertificateError, TrajectoryCertificate
from ccfs.files.digests import canonical_json
from ccfs.protocol.model import EventSpec
from ccfs.protocol.tables import EXACT, NAME, RESOLUTION, Name

__all__ = ["AttackedCount", "CodeDigests", "NotACertificateError", "RunCertificate", "in_words"]

FORMAT = "ccfs-run-certificate-1"


class NotACertificateError(CertificateError):
    """A file that is no certificate of a run at all: a key is missing, or a name is none."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


ArmName = Annotated[str, Field(pattern=f"^{NAME}/{NAME}$", max_length=161)]
Place = Annotated[str, Field(pattern=f"^{NAME}$", max_length=120)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class CodeDigests(_Part):
    """Digests of the code behind a claim: of ccfs as far as a trial depends on it, and of each part by its place."""

    ccfs: Digest
    parts: dict[Place, Digest | Literal["built in"]]


class AttackedCount(_Part):
    """What was observed under one attack: descriptive, no part of the claim. `energy` is the greatest one spent."""

    attack: Name
    budget: float | None
    energy_limit: float
    energy: float
    successes: int = Field(ge=0)
    trials: int = Field(ge=0)


class RunCertificate(_Part):
    """A trajectory certificate with everything that a stranger needs to recompute it from the run."""

    format: str = FORMAT
    protocol: str
    arm: ArmName
    event: Name
    definition: EventSpec
    horizon: int
    controller: str
    is_center_clipped: bool
    unverified_fallbacks: tuple[Name, ...]
    resolution: str = Field(
        pattern=RESOLUTION,
        description=(
            'Observations were rounded to multiples of this power of two, such as "2^-20", before anybody read them; '
            '"exact" means that they were not rounded.'
        ),
    )
    quick_look_of: str | None
    planned_trials: int
    attacks: tuple[AttackedCount, ...]
    traces: dict[str, str]
    provenance: CodeDigests
    claim: str

    @property
    def trajectory(self) -> TrajectoryCertificate:
        """The certificate proper; reading it recomputes every number from the counts."""
        return TrajectoryCertificate.from_json(self.claim)

    @property
    def premises(self) -> tuple[str, ...]:
        """What the claim takes for granted, one sentence or two each."""
        if self.resolution == EXACT:
            return self.trajectory.premises
        rounded = f"The environment is the one whose observations are rounded to multiples of {self.resolution}."
        return (*self.trajectory.premises, rounded)

    @property
    def sentence(self) -> str:
        """The claim in one sentence, as `in_words` says it."""
        return in_words(self)

    def to_bytes(self) -> bytes:
        """Return the file's content in its one canonical form."""
        return canonical_json(self.model_dump(mode="json")).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes, *, where: str) -> RunCertificate:
        """Read a certificate; refuse anything that is not exactly what `to_bytes` writes or does not recompute."""
        try:
            made = cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key, what = ".".join(str(part) for part in first["loc"]), first["msg"].lower()
            if first["type"] == "string_pattern_mismatch":
                what = f"must be written as a name or digest is, got {first['input']!r}"
            raise NotACertificateError(f"{where}: not a certificate of a run: `{key}` {what}.") from None
        if made.format != FORMAT:
            raise NotACertificateError(f"{where}: has format {made.format!r}; this release reads {FORMAT!r}.")
        if made.to_bytes() != content:
            raise CertificateError(f"{where}: was changed after it was written.")
        try:
            made.trajectory.recheck()
            made._refuse_contradictions()
        except CertificateError as error:
            raise CertificateError(f"{where}: {error}") from error
        return made

    def _refuse_contradictions(self) -> None:
        """Raise if what the document says about its claim is not what the claim says."""
        proof = self.trajectory
        if not self.event == self.definition.name == proof.event:
            raise CertificateError(f"names the events {self.event!r}, {self.definition.name!r} and {proof.event!r}.")
        may_stop = proof.bound is Bound.ANYTIME
        if not (proof.trials == self.planned_trials or (may_stop and proof.trials < self.planned_trials)):
            raise CertificateError(f"has {proof.trials} of {self.planned_trials} planned trials.")
        if not all(count.successes <= count.trials for count in self.attacks):
            raise CertificateError("counts more successes than trials under an attack.")
        if f"events.{self.event}" not in self.provenance.parts:
            raise CertificateError(f"has no digest of the code of its event {self.event!r}.")
        if not all(text.isascii() and text.isdigit() for text in self.definition.horizons(self.horizon)):
            raise CertificateError(f"has an event of {self.definition.horizons(self.horizon)} steps.")


def in_words(certificate: TrajectoryCertificate | RunCertificate) -> str:
    """Return the claim in one sentence, the same wherever it is read. Its numbers are rounded against us."""
    if isinstance(certificate, RunCertificate):
        proof = certificate.trajectory
        steps = " and ".join(certificate.definition.horizons(certificate.horizon))
        is_look = certificate.quick_look_of is not None
        what = f"Quick look, {certificate.planned_trials} trials: " if is_look else ""
        what += f"{certificate.arm}: P({certificate.event} within {steps} steps)"
    else:
        proof, what = certificate, "The probability"
    if proof.bound in (Bound.HOEFFDING, Bound.COHORT):
        what += ", on average over the cohort's fixed reset seeds,"
    counted = f"{proof.successes} of {proof.trials} nominal trials, failure probability {exact_text(proof.delta)}"
    counted += f" over {proof.family} claims" if proof.family > 1 else ""
    lower, target = lower_text(proof.p_lower), exact_text(proof.target)
    if proof.budget is None:
        return f"{what} is not certified to be at least {target}: its lower bound is {lower} ({counted})."
    return (
        f"{what} is at least {lower} without shift, and stays at least {target} under every causal shift of the "
        f"proposal centers with total Euclidean budget {lower_text(proof.budget)} ({counted})."
    )
