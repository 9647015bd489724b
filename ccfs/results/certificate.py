"""The certificate of one arm and event as a file, and its claim as a sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, SerializerFunctionWrapHandler, Tag, model_serializer

from ccfs.certificates.bounds import Bound, Sampling
from ccfs.certificates.rounding import exact_text, lower_text
from ccfs.certificates.schedule import Stage
from ccfs.certificates.shifts import Shifts
from ccfs.certificates.stratified import StratifiedCertificate
from ccfs.certificates.trajectory import CertificateError, TrajectoryCertificate
from ccfs.files.digests import canonical_json
from ccfs.files.documents import OPTIONAL, ChangedDocumentError, Digest, Document, DocumentError, Infinite, Table
from ccfs.files.frames import axes, data_frame, html_table
from ccfs.protocol.model import EventSpec
from ccfs.protocol.registry import IN_MEMORY
from ccfs.protocol.tables import EXACT, NAME, RESOLUTION, EnvironmentSpec, Name
from ccfs.runs.counting import Certificate
from ccfs.runs.provenance import ControllerDigest
from ccfs.runs.registration import Time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

__all__ = [
    "AttackedCount",
    "ClaimRecord",
    "CodeDigests",
    "NotACertificateError",
    "RegistrationRecord",
    "RunCertificate",
    "StrataDocument",
    "StrataRecord",
    "TrajectoryDocument",
    "claim_record",
    "covered",
    "in_words",
]


class NotACertificateError(CertificateError):
    """A file that is not the certificate of a run: a key is missing, or a name breaks the rules for names."""


ArmName = Annotated[str, Field(pattern=f"^{NAME}/{NAME}$", max_length=161)]
Place = Annotated[str, Field(pattern=f"^{NAME}$", max_length=120)]
File = Annotated[str, Field(pattern=f"^{NAME}(/{NAME})*$", max_length=500)]
Ended = Literal["horizon", "goal", "cost", "abstained", "terminated", "truncated", "nonfinite", "crashed"]
"""The value of an `Outcome`."""

_BECAUSE: dict[Ended, str] = {
    "terminated": "the environment terminated the episode",
    "truncated": "the environment truncated the episode",
    "abstained": "no action was accepted",
    "crashed": "something raised an exception",
    "nonfinite": "a number was not finite",
    "cost": "the trial stopped at a cost",
    "goal": "the trial stopped at the goal",
    "horizon": "the horizon was reached",
}


class CodeDigests(Table):
    """Digests of the code behind a claim."""

    ccfs: Digest = Field(description="Digest of the modules of ccfs that a trial depends on.")
    parts: dict[Place, Digest | Literal["built in", "not here"]] = Field(
        description='Digest of the code of each part, by its place in the protocol. It is "not here" for an object in '
        "memory whose code is in no file."
    )
    packages: dict[Place, str] = Field(description="Version of Python and of each package that can change a number.")


class AttackedCount(Table):
    """What was observed under one attack. It is no part of the claim."""

    attack: Name = Field(description="Name of the attack in the protocol.")
    stages: tuple[StageName, ...] = Field(min_length=1, description="The stages that it shifts.")
    budget: float | None = Field(description="Its Euclidean budget, or null if it has a limit of energy.")
    energy_limit: float = Field(description="Its limit, as energy of this arm.")
    energy: float = Field(description="The greatest energy that a trial spent.")
    successes: int = Field(ge=0, description="Trials in the event.")
    trials: int = Field(ge=0, description="Trials under this attack.")

    def certified(self, proof: Certificate) -> float:
        """Return the probability that is certified at the limit of this attack, rounded down."""
        if self.budget is not None and len(self.stages) == 1:
            return proof.lower_at(**{self.stages[0]: self.budget})
        return proof.lower_at_mu(math.nextafter(math.sqrt(self.energy_limit), math.inf))


StageName = Literal["sensor", "action", "score"]
_PER_COORDINATE = "One number for all coordinates, a list with one per coordinate, or a table with one per named slice."


class BlockRecord(Table):
    """One proposal block as it was drawn."""

    count: int = Field(ge=1, description="Number of proposals in the block.")
    sigma: float | tuple[float, ...] | dict[str, float] = Field(
        description=f"Standard deviation of each proposal. {_PER_COORDINATE} A coordinate with 0, or in no slice, has "
        "no noise."
    )
    rho: float = Field(ge=0.0, lt=1.0, description="Correlation between two proposals.")


class ScheduleRecord(Table):
    """The blocks of each stage: one for every step, or one per step. Null is a stage without noise."""

    sensor: tuple[BlockRecord, ...] | None = Field(description="Noise of the observations that are read.")
    action: tuple[BlockRecord, ...] | None = Field(description="Blocks around the controller's action.")
    score: tuple[BlockRecord, ...] | None = Field(description="Blocks around the controller's scores.")
    readers: Literal["all", "controller"] = Field(
        description='Who reads the noisy observation. With "controller", verifier and fallbacks read the true one.'
    )


class DivergenceRecord(Table):
    """How far shifts of the certified size can move the law of the public trace, in either order, rounded up."""

    total_variation: float = Field(ge=0.0, le=1.0, description="No event changes its probability by more.")
    kl: Infinite = Field(description="Kullback-Leibler divergence.")
    chi_square: Infinite = Field(description="Chi-square divergence.")
    renyi_2: Infinite = Field(
        description="Rényi divergence of order 2. That of another order is proportional to the order."
    )


class _ShiftRecord(Table):
    """What the certificates about shifts have in common."""

    event: str = Field(description="Name of the event.")
    delta: float = Field(gt=0.0, lt=1.0, description="Failure probability of all claims of the family together.")
    family: int = Field(ge=1, description="Number of claims that share `delta`.")
    target: float = Field(gt=0.0, lt=1.0, description="The probability that the event keeps under shift.")
    schedule: ScheduleRecord = Field(description="The blocks of each stage.")
    mu: Infinite | None = Field(
        description="Square root of the greatest energy that is covered, rounded down. Null certifies nothing."
    )
    budget: Infinite | None = Field(
        description="Certified Euclidean shift budget, rounded down. Null says that the target is not certified. It is "
        "that of the action or score stage, or of the sensor stage if it is the only one."
    )
    budgets: dict[StageName, Infinite | None] = Field(
        description="Certified Euclidean shift budget of each stage if no other one is shifted, rounded down."
    )
    axes: dict[StageName, Infinite | tuple[Infinite, ...] | dict[str, Infinite] | None] = Field(
        description="How far the coordinates of each stage may be shifted if nothing else is, rounded down. "
        f"{_PER_COORDINATE}"
    )
    charges: dict[StageName, tuple[Infinite | tuple[Infinite, ...] | dict[str, Infinite], ...]] = Field(
        description="Energy of a shift by 1 for each stage, rounded up, one entry for every step or one per step. "
        f"{_PER_COORDINATE}"
    )
    premises: tuple[str, ...] = Field(description="What the claim takes for granted, in words.")
    divergences: DivergenceRecord | None = Field(
        default=None,
        json_schema_extra=OPTIONAL,
        description="How far shifts of the certified size can move everything that is public. It is not there if "
        "nothing is certified, nor on certificates of earlier releases.",
    )

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        content: dict[str, object] = handler(self)
        if self.divergences is None:
            content.pop("divergences", None)
        return content


class ClaimRecord(_ShiftRecord):
    """The certificate proper: the counts, the claim, and what follows from them. Reading it recomputes every number."""

    successes: int = Field(ge=0, description="Nominal trials in the event.")
    trials: int = Field(ge=1, le=1_000_000_000, description="Nominal trials.")
    bound: Literal["hoeffding", "cohort", "clopper-pearson", "anytime"] = Field(
        description="How the counts became the lower bound."
    )
    p_lower: float = Field(ge=0.0, le=1.0, description="Lower bound on the nominal probability, rounded down.")


_Counts = tuple[Annotated[int, Field(ge=0)], ...]


class StrataRecord(_ShiftRecord):
    """A stratified certificate: the counts at each reset seed, and what follows from them.

    Reading it recomputes every number.
    """

    pilot_successes: _Counts = Field(description="Pilot trials in the event at each reset seed.")
    pilot_draws: _Counts = Field(description="Pilot trials at each reset seed. They steer the bound and do not count.")
    main_successes: _Counts = Field(description="Counted trials in the event at each reset seed.")
    main_draws: _Counts = Field(description="Counted trials at each reset seed.")
    sampling: Literal["cohort", "law"] = Field(description="Whether the reset seeds were listed or drawn.")
    grid: tuple[float, ...] = Field(description="The sizes of shift that were tested in turn.")
    prior: tuple[float, float] = Field(description="Successes and failures that were added for the guess at a seed.")
    cap: float = Field(description="The guess was kept between 1 - `cap` and `cap`.")


class StrataDocument(StrataRecord, Document):
    """A stratified certificate on its own, as `StratifiedCertificate.to_json` writes it."""

    format: Literal["ccfs/strata/1"] = Field(default="ccfs/strata/1", description="Kind and version of this document.")


def _claim_kind(claim: object) -> str:
    is_strata = isinstance(claim, StrataRecord) or (isinstance(claim, dict) and "main_draws" in claim)
    return "strata" if is_strata else "count"


AnyClaim = Annotated[
    Annotated[ClaimRecord, Tag("count")] | Annotated[StrataRecord, Tag("strata")], Discriminator(_claim_kind)
]


class TrajectoryDocument(ClaimRecord, Document):
    """A trajectory certificate on its own, as `TrajectoryCertificate.to_json` writes it."""

    format: Literal["ccfs/trajectory/2"] = Field(
        default="ccfs/trajectory/2", description="Kind and version of this document."
    )


class RegistrationRecord(Table):
    """The registration of a protocol. Both times are those of the author's clocks."""

    record: Digest = Field(description="SHA-256 of the signed record, as whoever published it can show it.")
    key: str = Field(pattern="^SHA256:[A-Za-z0-9+/]{43}$", description="Fingerprint of the key that signed the record.")
    time: Time = Field(description="When the protocol was registered, in UTC.")
    begun: Time = Field(description="When the run began, in UTC, after it had taken in the record.")


class RunCertificate(Document):
    """A certificate of an arm and event, with everything that a stranger needs to recompute it from the run."""

    omitted: ClassVar[frozenset[str]] = frozenset({"registration", "root"})
    format: Literal["ccfs/certificate/2"] = Field(
        default="ccfs/certificate/2", description="Kind and version of this document."
    )
    protocol: Digest = Field(description="Hash of the protocol.")
    arm: ArmName = Field(description="Name of the arm: controller/schedule.")
    event: Name = Field(description="Name of the event.")
    definition: EventSpec = Field(description="The event as the protocol defines it.")
    horizon: int = Field(ge=1, description="Steps of a trial.")
    seed: int = Field(ge=0, description="Root of all random streams.")
    environment: EnvironmentSpec = Field(description="The environment as the protocol names it.")
    controller: ControllerDigest = Field(description="Digest of the controller.")
    is_center_clipped: bool = Field(description="Whether the center was clipped to the action box.")
    unverified_fallbacks: tuple[Name, ...] = Field(
        description="Fallbacks that ran without the consent of the verifier."
    )
    resolution: str = Field(
        pattern=RESOLUTION,
        description=(
            'Observations were rounded to multiples of this power of two, such as "2^-20", before anybody read them; '
            '"exact" means that they were not rounded.'
        ),
    )
    quick_look_of: Digest | None = Field(
        description="Hash of the whole protocol if this is a quick look at its first trials, else null."
    )
    planned_trials: int = Field(ge=1, description="Trials that the protocol plans for each arm.")
    outcomes: dict[Ended, Annotated[int, Field(ge=1)]] = Field(
        description="How the nominal trials ended: how many had each outcome."
    )
    lost: dict[Ended, Annotated[int, Field(ge=1)]] = Field(
        description="How many nominal trials failed the event because of how they ended, by their outcome."
    )
    attacks: tuple[AttackedCount, ...] = Field(description="What was observed under each attack.")
    traces: dict[File, Digest] = Field(
        description="SHA-256 of each file of traces that was counted. It is empty if the run keeps no traces."
    )
    provenance: CodeDigests = Field(description="Digests of the code that made and counted the trials.")
    claim: AnyClaim = Field(description="The certificate proper, from one count or from counts at each reset seed.")
    registration: RegistrationRecord | None = Field(
        default=None,
        description="The registration that the run took in before its first trial. A run without one has no such key.",
    )
    root: Digest | None = Field(
        default=None,
        description="Root of the Merkle tree over the nominal trials, if the run keeps no traces. Other certificates "
        "have no such key.",
    )

    @property
    def trajectory(self) -> Certificate:
        """The certificate proper. Reading it recomputes every number from the counts."""
        return _proof(canonical_json(self.claim.model_dump(mode="json")))

    @property
    def is_certified(self) -> bool:
        """Whether the target probability is certified at all."""
        return self.trajectory.is_certified

    @property
    def successes(self) -> int:
        """Nominal trials in the event."""
        return self.trajectory.successes

    @property
    def trials(self) -> int:
        """Nominal trials."""
        return self.trajectory.trials

    @property
    def delta(self) -> float:
        """Failure probability of all claims of the family together."""
        return self.claim.delta

    @property
    def family(self) -> int:
        """Number of claims that share `delta`."""
        return self.claim.family

    @property
    def target(self) -> float:
        """The probability that the event keeps under shift."""
        return self.claim.target

    @property
    def p_lower(self) -> float:
        """Lower bound on the nominal probability, rounded down. A stratified one is the target, or 0."""
        return self.trajectory.p_lower

    @property
    def mu(self) -> float | None:
        """Square root of the greatest energy that is covered, rounded down. None certifies nothing."""
        return self.trajectory.mu

    @property
    def budget(self) -> float | None:
        """Certified Euclidean shift budget of the main stage, rounded down. None if the target is not certified."""
        return self.trajectory.budget

    @property
    def budgets(self) -> dict[str, float | None]:
        """For each stage, the certified Euclidean budget if no other stage is shifted, rounded down."""
        return self.trajectory.budgets

    def lower_at(
        self,
        budget: float | None = None,
        *,
        sensor: Shifts | None = None,
        action: Shifts | None = None,
        score: Shifts | None = None,
    ) -> float:
        """Return the certified probability under shifts of these budgets, as `TrajectoryCertificate.lower_at` does."""
        return self.trajectory.lower_at(budget, sensor=sensor, action=action, score=score)

    @property
    def is_of_objects(self) -> bool:
        """Whether the trials were those of objects in memory, as `certify_policy` makes them."""
        return self.environment.make == IN_MEMORY

    @property
    def premises(self) -> tuple[str, ...]:
        """What the claim takes for granted, in one or two sentences each."""
        proof = self.trajectory
        found = list(proof.premises)
        if self.resolution != EXACT:
            rounded = f"The claim is about the environment with observations rounded to multiples of {self.resolution}."
            if proof.schedule.sensor is not None:
                rounded += (
                    " Sensor noise is added after rounding. An error that is there before rounding arrives larger by "
                    f"at most {self.resolution} in each coordinate."
                )
            found.append(rounded)
        if self.is_of_objects:
            found.append("The claim is about the policy, the verifier and the fallbacks as they were in memory.")
        found.append(self.registered)
        return tuple(found)

    @property
    def registered(self) -> str:
        """Whether the protocol was registered before the first trial, and what that rests on, in words."""
        found = self.registration
        if found is None:
            return "Not registered: only its author says that the protocol was fixed before the first trial."
        return (
            f"Registered: the key {found.key} signed the protocol and the number of its trials at {found.time}, and "
            f"the run began at {found.begun}. Both are the author's own times. A place that published the record with "
            f"SHA-256 {found.record} can show when it was there."
        )

    @property
    def sentence(self) -> str:
        """The claim in one sentence, as `in_words` begins."""
        return _sentence(self)

    @property
    def remarks(self) -> tuple[str, ...]:
        """A sentence for each way of ending that decided trials of the event."""
        trials = sum(self.outcomes.values())
        return tuple(
            f"{number} of {trials} nominal trials failed because {_BECAUSE[outcome]}."
            for outcome, number in sorted(self.lost.items())
        )

    def to_json(self) -> str:
        """Return the certificate as the JSON text of its file."""
        return self.to_bytes().decode()

    def is_written_as(self, content: bytes) -> bool:
        """Return whether a file holds this certificate, as we write it or as earlier releases did."""
        claim = self.claim.model_copy(update={"divergences": None})
        return content in (self.to_bytes(), self.model_copy(update={"claim": claim}).to_bytes())

    def to_frame(self) -> DataFrame:
        """Return a pandas frame with one line for each stage, so that several certificates can be put together."""
        common = {
            "arm": self.arm,
            "event": self.event,
            "successes": self.successes,
            "trials": self.trials,
            "delta": self.delta,
            "family": self.family,
            "target": self.target,
            "p_lower": self.p_lower,
            "is_certified": self.is_certified,
        }
        return data_frame([{**common, "stage": stage, "budget": size} for stage, size in self.budgets.items()])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the certified probability against the shift budget, and return the axes of matplotlib."""
        drawn, proof = axes(ax), self.trajectory
        budgets, lows = zip(*proof.curve(), strict=True)
        drawn.plot(budgets, lows, label="certified, whoever shifts")
        drawn.axhline(self.target, color="0.4", linewidth=1, linestyle="--", label=f"target {exact_text(self.target)}")
        for count in self.attacks:
            if count.budget is not None and count.trials and count.stages == (proof.schedule.main.value,):
                drawn.plot(count.budget, count.successes / count.trials, "o", label=f"observed under {count.attack}")
        drawn.set(xlabel=f"shift budget of the {proof.schedule.main.value} stage", ylabel=f"P({self.event})")
        drawn.set_title(self.arm, fontsize="medium")
        drawn.legend(fontsize="small")
        return drawn

    def __str__(self) -> str:
        """Return the claim in words, because the document itself fills a screen."""
        return in_words(self)

    def _repr_html_(self) -> str:
        rows = [(name, "not certified" if size is None else lower_text(size)) for name, size in self.budgets.items()]
        return html_table(("stage", "certified budget"), rows, caption=in_words(self))

    @classmethod
    def from_bytes(cls, content: bytes, *, where: str) -> RunCertificate:
        """Read a certificate. Refuse one that `to_bytes` would write otherwise, or whose numbers do not follow."""
        try:
            made = super().from_bytes(content, where=where)
        except ChangedDocumentError as error:
            raise CertificateError(str(error)) from None
        except DocumentError as error:
            raise NotACertificateError(str(error)) from None
        try:
            made._refuse_contradictions()
        except CertificateError as error:
            raise CertificateError(f"{where}: {error}") from error
        return made

    def _refuse_contradictions(self) -> None:
        """Raise if the document and the claim inside it contradict each other."""
        proof = self.trajectory
        if not self.event == self.definition.name == proof.event:
            raise CertificateError(f"names the events {self.event!r}, {self.definition.name!r} and {proof.event!r}.")
        may_stop = proof.may_stop if isinstance(proof, StratifiedCertificate) else proof.bound is Bound.ANYTIME
        if not (proof.trials == self.planned_trials or (may_stop and proof.trials < self.planned_trials)):
            raise CertificateError(f"has {proof.trials} of {self.planned_trials} planned trials.")
        if not all(count.successes <= count.trials for count in self.attacks):
            raise CertificateError("counts more successes than trials under an attack.")
        if sum(self.outcomes.values()) != proof.trials:
            raise CertificateError(f"has outcomes of {sum(self.outcomes.values())} trials, but {proof.trials} trials.")
        is_within = all(number <= self.outcomes.get(outcome, 0) for outcome, number in self.lost.items())
        if not (is_within and sum(self.lost.values()) <= proof.trials - proof.successes):
            raise CertificateError("has more trials that failed because of how they ended than trials that failed.")
        if f"events.{self.event}" not in self.provenance.parts:
            raise CertificateError(f"has no digest of the code of its event {self.event!r}.")
        if (self.root is None) != bool(self.traces):
            raise CertificateError("must have the hashes of its traces, or the root of a run without traces.")
        if self.registration is not None and not self.registration.time <= self.registration.begun:
            raise CertificateError("was begun before it was registered.")
        if not all(_is_number_up_to(self.horizon, text) for text in self.definition.horizons(self.horizon)):
            raise CertificateError(f"has an event of {self.definition.horizons(self.horizon)} steps.")


def _is_number_up_to(most: int, text: str) -> bool:
    """Return whether a text is a number from 1 to `most` as we print it, without signs, spaces or leading zeros."""
    is_number = text.isascii() and text.isdigit() and not text.startswith("0")
    return is_number and len(text) <= len(str(most)) and int(text) <= most


def claim_record(proof: Certificate) -> ClaimRecord | StrataRecord:
    """Return a certificate as a table of a document."""
    kind = StrataRecord if isinstance(proof, StratifiedCertificate) else ClaimRecord
    return kind.model_validate_json(canonical_json(proof.to_entries()))


@lru_cache(maxsize=64)  # a page asks for the same claim often, and strata take time. The answer is frozen.
def _proof(text: str) -> Certificate:
    entries = json.loads(text)
    kind = StratifiedCertificate if _claim_kind(entries) == "strata" else TrajectoryCertificate
    return kind.from_entries(entries)


def in_words(certificate: Certificate | RunCertificate) -> str:
    """Return the claim in one sentence, which is the same everywhere. Its numbers are rounded against us.

    A certificate of a run adds a sentence for each way of ending that decided trials.
    """
    remarks = certificate.remarks if isinstance(certificate, RunCertificate) else ()
    return " ".join((_sentence(certificate), *remarks))


def _sentence(certificate: Certificate | RunCertificate) -> str:
    if isinstance(certificate, RunCertificate) and not certificate.is_of_objects:
        proof = certificate.trajectory
        steps = " and ".join(certificate.definition.horizons(certificate.horizon))
        is_look = certificate.quick_look_of is not None
        what = f"Quick look, {certificate.planned_trials} trials: " if is_look else ""
        what += f"{certificate.arm}: P({certificate.event} within {steps} steps)"
    else:
        proof = certificate.trajectory if isinstance(certificate, RunCertificate) else certificate
        what = f"The probability of {_named(certificate)}"
    together = f" for all {proof.family} claims together" if proof.family > 1 else ""
    chance, target = f"failure probability {exact_text(proof.delta)}{together}", exact_text(proof.target)
    if isinstance(proof, StratifiedCertificate):
        return _stratified_sentence(proof, what, chance)
    if proof.bound in (Bound.HOEFFDING, Bound.COHORT):
        what += _ON_AVERAGE
    counted = f"{proof.successes} of {proof.trials} nominal trials, {chance}"
    lower = lower_text(proof.p_lower)
    if proof.budget is None:
        return f"{what} is not certified to be at least {target}: its lower bound is {lower} ({counted})."
    return f"{what} is at least {lower} without shift, and stays at least {target} under {_covered(proof)} ({counted})."


def _named(certificate: Certificate | RunCertificate) -> str:
    """Return what an event without a protocol file is called, a shipped one with its numbers."""
    if isinstance(certificate, RunCertificate) and certificate.definition.event != IN_MEMORY:
        return _made_as(certificate.definition)
    # A lambda has no name of its own: `certify_policy` calls it "event".
    return "the event" if certificate.event in ("", "event") else certificate.event


def _made_as(event: EventSpec) -> str:
    """Return how a shipped event is made in Python."""
    name = "".join(word.capitalize() for word in event.event.split("-"))
    numbers = (f"{key}={value!r}" for key, value in sorted(event.arguments.items()))
    return f"{name}({', '.join((*numbers, *map(_made_as, event.events)))})"


_ON_AVERAGE = ", on average over the cohort's fixed reset seeds,"


def _stratified_sentence(proof: StratifiedCertificate, what: str, chance: str) -> str:
    average = _ON_AVERAGE if proof.sampling is Sampling.COHORT else ""
    target = exact_text(proof.target)
    counted = f"{sum(proof.main_successes)} of {sum(proof.main_draws)} counted nominal trials at {proof.strata} reset "
    counted += f"seeds, after a pilot of {sum(proof.pilot_draws)}" if any(proof.pilot_draws) else "seeds"
    if proof.mu is None:
        return f"{what}{average} is not certified to be at least {target} ({counted}, {chance})."
    if proof.mu == 0.0:
        return f"{what}{average} is at least {target} without shift, and no shift is certified ({counted}, {chance})."
    return f"{what}{average} stays at least {target} without shift and under {_covered(proof)} ({counted}, {chance})."


# What a shift of each stage is called in words.
_SHIFTS = {
    Stage.SENSOR: "error of the readings",
    Stage.ACTION: "shift of the proposal centers",
    Stage.SCORE: "shift of the scores",
}
_MOST_COORDINATES = 4


def covered(proof: Certificate) -> tuple[tuple[str, float], ...]:
    """Return what a certificate covers, with the size of each if nothing else is shifted, rounded down.

    It also covers every mixture in which the squared shares of these sizes add up to at most 1. Nothing is covered
    without a certified budget.
    """
    found: list[tuple[str, float]] = []
    for stage in proof.schedule.stages:
        what, budget, axes = _SHIFTS[stage], proof.budgets[stage.value], proof.axes[stage.value]
        if budget is None:
            continue
        parts: list[tuple[str, float]] = []
        if isinstance(axes, Mapping):
            parts = [(f"{what} of {names}", size) for names, size in _alike(axes.items())]
        elif isinstance(axes, tuple) and len(set(axes)) > 1 and len(axes) <= _MOST_COORDINATES:
            alike = _alike((str(i), size) for i, size in enumerate(axes))
            parts = [(f"{what} in coordinate{'s' * (',' in places)} {places}", size) for places, size in alike]
        is_whole = isinstance(axes, float) or (isinstance(axes, tuple) and 0.0 not in axes)
        found += parts or [(what if is_whole else f"{what} in the coordinates with noise", budget)]
    return tuple(found)


def _alike(axes: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return names of one size together, because the same noise covers them together up to that size. Leave out 0."""
    groups: dict[float, list[str]] = {}
    for name, size in axes:
        if size > 0.0:
            groups.setdefault(size, []).append(name)
    return [(", ".join(names), size) for size, names in groups.items()]


def _covered(proof: Certificate) -> str:
    (first, size), *others = covered(proof)
    words = f"every causal {first} up to a total Euclidean size of {lower_text(size)}"
    if not others:
        return words
    more = "".join(f", or {what} up to {lower_text(size)}" for what, size in others)
    return f"{words}{more}, or a mixture of them in which the squared shares of these sizes add up to at most 1"
