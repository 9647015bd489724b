"""Certify the named disturbances of a run: weigh its nominal trials, and write one certificate for each claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

from pydantic import Field

from ccfs.certificates.binomial import bonferroni
from ccfs.certificates.bounds import Bound
from ccfs.certificates.documents import CertificateError
from ccfs.certificates.families import FamilyCertificate, certify_family
from ccfs.certificates.gaussian import event_lower
from ccfs.certificates.rounding import exact_text, lower_text, upper_text
from ccfs.certificates.schedule import Stage
from ccfs.certificates.trajectory import mu_certified
from ccfs.files.digests import canonical_json
from ccfs.files.documents import ChangedDocumentError, Digest, Document, DocumentError, Table
from ccfs.files.reading import RefusedFileError, limits, read_bytes, read_json
from ccfs.protocol.model import Arm, EventSpec, FamilySpec, Protocol
from ccfs.protocol.tables import EnvironmentSpec, Name
from ccfs.results.certificate import ArmName, CodeDigests, File, NotACertificateError
from ccfs.results.derive import certified_trials, code_digests
from ccfs.results.verify import SignatureCheck, Verification
from ccfs.runs.counting import recorded_events, tally
from ccfs.runs.host import HostError, child_of
from ccfs.runs.manifest import manifest_faults
from ccfs.runs.provenance import ControllerDigest, code_tables, read_provenance
from ccfs.runs.reader import RunReader
from ccfs.runs.record import widths_of
from ccfs.runs.store import RunError, Store, Trust
from ccfs.runs.trust import UntrustedError, foreign_parts, untrusted
from ccfs.runs.weights import Disturbance, Weight, disturbance, is_weighed, stage_of

__all__ = [
    "FamiliesDocument",
    "FamilyDocument",
    "FamilyRecord",
    "derive_families",
    "families_document",
    "family_name",
    "family_verification",
    "is_family_certificate",
    "stored_families",
    "verify_family",
    "weighed_here",
]

Row = tuple[float, ...]
Limits = tuple[float, float]
_WHAT = {Stage.SENSOR: "the readings", Stage.ACTION: "the proposal centers", Stage.SCORE: "the scores"}
_WORDS = {
    "constant": "constant bias of {what}",
    "center": "error of the gain of {what}, as a share of it,",
    "lag": "lag of {what}, as a share of one step,",
}


class FamilyRecord(Table):
    """The certificate proper, with what each trial recorded. `recheck` recomputes every number from it."""

    name: Name = Field(description="Name of the disturbance.")
    held: tuple[bool, ...] = Field(
        description="Whether the event held, for each nominal trial whose weights are known."
    )
    scores: tuple[Row, ...] = Field(description="S of each of these trials, one number per coordinate of theta.")
    energies: tuple[tuple[Row, ...], ...] = Field(description="Q of each of these trials, a symmetric matrix.")
    unweighted: int = Field(
        ge=0, description="Further nominal trials, which failed and hide a block. They count with the greatest weight."
    )
    box: tuple[Limits, ...] = Field(description="Least and greatest value of each coordinate of theta.")
    ceiling: tuple[Row, ...] = Field(description="A matrix that bounds the energy on every path, rounded up.")
    cells: tuple[int, ...] = Field(description="Cells of the net along each coordinate of theta.")
    truncations: Row = Field(description="Where weights are cut. Each has its share of `delta`.")
    delta: float = Field(gt=0.0, lt=1.0, description="Failure probability of all claims of the family together.")
    family: int = Field(ge=1, description="Number of claims that share `delta`.")
    sampling: Literal["cohort", "law"] = Field(description="Whether reset seeds were listed or drawn.")
    gap: float = Field(description="Size of the shift from the center of a cell to a point of it, at most, rounded up.")
    lower: float | None = Field(
        description="Probability that the event keeps for every theta in the box, rounded down. Null certifies nothing."
    )
    worst: Row = Field(description="Center of the cell where `lower` is attained.")
    net: int = Field(description="Number of cells.")
    size: float = Field(description="Greatest size mu of a disturbance of the box on any path, rounded up.")
    premises: tuple[str, ...] = Field(description="What the claim takes for granted, in words.")

    @property
    def successes(self) -> int:
        """Nominal trials in the event."""
        return sum(self.held)

    @property
    def trials(self) -> int:
        """Nominal trials."""
        return len(self.held) + self.unweighted

    def recheck(self) -> None:
        """Recompute every number from what the trials recorded. Raise CertificateError if one differs."""
        FamilyCertificate.from_entries(self.model_dump(mode="json"))


class FamilyDocument(Document):
    """The certificate of one arm, event and named disturbance, which a stranger can recompute from the run."""

    format: Literal["ccfs/family-certificate/1"] = Field(
        default="ccfs/family-certificate/1", description="Kind and version of this document."
    )
    protocol: Digest = Field(description="Hash of the protocol.")
    arm: ArmName = Field(description="Name of the arm: controller/schedule.")
    event: Name = Field(description="Name of the event.")
    definition: EventSpec = Field(description="The event as the protocol defines it.")
    disturbance: FamilySpec = Field(description="The disturbance as the protocol defines it.")
    stage: Literal["sensor", "action", "score"] = Field(description="The stage that it shifts.")
    horizon: int = Field(ge=1, description="Steps of a trial.")
    environment: EnvironmentSpec = Field(description="The environment as the protocol names it.")
    controller: ControllerDigest = Field(description="Digest of the controller.")
    fallbacks: tuple[Name, ...] = Field(description="Fallbacks of the program. What they do is not shifted.")
    quick_look_of: Digest | None = Field(
        description="Hash of the whole protocol if this is a quick look at its first trials, else null."
    )
    target: float = Field(gt=0.0, lt=1.0, description="The probability that the event is to keep.")
    bound: Literal["hoeffding", "cohort", "clopper-pearson", "anytime"] = Field(
        description="How the count becomes `alone`."
    )
    alone: float = Field(
        ge=0.0,
        le=1.0,
        description="What the count alone gives by Theorem 14 for every causal shift of the size of the box, rounded "
        "down.",
    )
    traces: dict[File, Digest] = Field(description="SHA-256 of each file of traces that was weighed.")
    provenance: CodeDigests = Field(description="Digests of the code that made and weighed the trials.")
    claim: FamilyRecord = Field(description="The certificate proper.")

    @property
    def lower(self) -> float | None:
        """The probability that the event keeps in the whole box, rounded down. None certifies nothing."""
        return self.claim.lower

    @property
    def kept(self) -> float | None:
        """The better one of `lower` and `alone`. Both are claims of one family, so they hold together."""
        best = max(self.lower or 0.0, self.alone)
        return best if best > 0.0 else None

    @property
    def is_certified(self) -> bool:
        """Whether the target of the protocol is certified in the whole box."""
        return self.kept is not None and self.kept >= self.target

    @property
    def what(self) -> str:
        """The disturbances of the box, in words."""
        spec, shifted = self.disturbance, _WHAT[Stage(self.stage)]
        words = _WORDS.get(spec.features)
        if words is None:
            return f"shift of {shifted} by the features {spec.features} with theta {_box_words(spec)}"
        return f"{words.format(what=shifted)} {_box_words(spec)}"

    @property
    def sentence(self) -> str:
        """The claim in one sentence. Its numbers are rounded against us."""
        claim, steps = self.claim, " and ".join(self.definition.horizons(self.horizon))
        look = "" if self.quick_look_of is None else f"Quick look, {claim.trials} trials: "
        about = ", on average over the cohort's fixed reset seeds," if claim.sampling == "cohort" else ""
        what = f"{look}{self.arm}: P({self.event} within {steps} steps){about}"
        counted = f"{claim.successes} of {claim.trials} nominal trials, failure probability {exact_text(claim.delta)}"
        counted += f" for all {claim.family} claims together" if claim.family > 1 else ""
        if self.kept is None:
            return f"{what}: nothing is certified under every {self.what} ({counted})."
        return f"{what} stays at least {lower_text(self.kept)} under every {self.what} ({counted})."

    @property
    def comparison(self) -> str:
        """What the weights and what Theorem 14 alone give for the same box, in one sentence."""
        by_weights = "nothing" if self.lower is None else f"at least {lower_text(self.lower)}"
        told = (
            f"Weights give {by_weights} in this box. The count alone gives at least {lower_text(self.alone)}, by "
            f"Theorem 14 for every causal shift of size mu = {upper_text(self.claim.size)}."
        )
        share = self.share_of_count
        return told if share is None else f"{told} What the weights give, it gives for {upper_text(share)} of the box."

    @property
    def share_of_count(self) -> float | None:
        """The part of the box, in size, for which the count alone gives what the weights give in all of it.

        None if the weights give nothing or less than the count alone.
        """
        claim = self.claim
        if claim.lower is None or not (self.alone < claim.lower < 1.0 and claim.size > 0.0):
            return None
        count = Bound(self.bound).lower(claim.successes, claim.trials, delta=bonferroni(claim.delta, claim.family))
        mu = mu_certified(count, claim.lower)
        return None if mu is None else mu / claim.size

    @property
    def premises(self) -> tuple[str, ...]:
        """What the claim takes for granted, in one or two sentences each."""
        spec, found = self.disturbance, list(self.claim.premises)
        if spec.most is not None:
            found.append(f"Features beyond these limits are cut off: {canonical_json(spec.most)}.")
        if self.fallbacks:
            found.append(
                f"What a fallback does is not disturbed: {', '.join(self.fallbacks)}. If your motor has a bias for "
                "them too, it is outside of the claim."
            )
        return tuple(found)

    @classmethod
    def from_bytes(cls, content: bytes, *, where: str) -> FamilyDocument:
        """Read a certificate. Refuse one that `to_bytes` would write otherwise, or that contradicts itself.

        This does not weigh anything again, which may take a minute: see `FamilyRecord.recheck`.
        """
        try:
            made = super().from_bytes(content, where=where)
        except ChangedDocumentError as error:
            raise CertificateError(str(error)) from None
        except DocumentError as error:
            raise NotACertificateError(str(error)) from None
        try:
            made._refuse_contradictions()
        except (CertificateError, ValueError) as error:
            raise CertificateError(f"{where}: {error}") from error
        return made

    def _refuse_contradictions(self) -> None:
        claim = self.claim
        if (self.event, self.disturbance.name) != (self.definition.name, claim.name):
            raise CertificateError(f"names the claims {self.event!r} and {claim.name!r} in two ways.")
        if claim.box != self.disturbance.limits:
            raise CertificateError(f"has the box {claim.box}, but declares {self.disturbance.limits}.")
        if (claim.sampling == "cohort") != (self.bound in ("hoeffding", "cohort")):
            raise CertificateError(f"is about a {claim.sampling}, but its bound is {self.bound!r}.")
        derived = alone(Bound(self.bound), claim.successes, claim.trials, claim.delta, claim.family, claim.size)
        if self.alone != derived:
            raise CertificateError(f"`alone` is {self.alone} on the certificate but {derived} from its counts.")
        for place in (f"events.{self.event}", *([f"families.{claim.name}"] if self.disturbance.is_own else [])):
            if place not in self.provenance.parts:
                raise CertificateError(f"has no digest of the code of `{place}`.")


def _box_words(spec: FamilySpec) -> str:
    """Return the box in words, coordinate by coordinate unless all are alike."""
    parts = [
        f"of at most {exact_text(high)}" if low == -high else f"from {exact_text(low)} to {exact_text(high)}"
        for low, high in spec.limits
    ]
    places = spec.coordinates or tuple(range(len(parts)))
    if len(set(parts)) == 1 and spec.coordinates is None:
        return parts[0] + (" in each coordinate" if len(parts) > 1 else "")
    return ", ".join(f"{part} in coordinate {place}" for part, place in zip(parts, places, strict=True))


def alone(rule: Bound, successes: int, trials: int, delta: float, family: int, size: float) -> float:
    """Return what the count gives by Theorem 14 for every causal shift of a size, rounded down."""
    return event_lower(rule.lower(successes, trials, delta=bonferroni(delta, family)), size)


def family_name(arm: Arm, event: EventSpec, family: FamilySpec) -> str:
    """Return the file of a certificate inside the run."""
    return f"families/{arm.name}/{event.name}/{family.name}.json"


def derive_families(
    store: Store,
    protocol: Protocol,
    events: Sequence[EventSpec] | None = None,
    families: Sequence[FamilySpec] | None = None,
) -> Iterator[tuple[str, FamilyDocument]]:
    """Yield every certificate of named disturbances with its file name, computed from the stored traces alone.

    Args:
        store: the run. Its trials must be the planned ones.
        protocol: the protocol of the run.
        events: the events to count. The default is all of them.
        families: the disturbances. The default is all of them.
    """
    chosen = protocol.families if families is None else tuple(families)
    if not chosen:
        return
    wanted = protocol.events if events is None else tuple(events)
    reader = RunReader(store, protocol)
    with recorded_events(store, protocol.model_copy(update={"events": wanted})) as judged:
        held = {arm.name: tally(store, protocol, arm, None, judged) for arm in protocol.arms}
    rule = protocol.bound
    if rule is None:
        raise RunError(f"{store.root}: named disturbances need one trial at each reset seed.")
    record = read_provenance(store)
    controllers = cast(Mapping[str, str], record["controllers"])
    for arm in protocol.arms:
        certified_trials(store, protocol, arm)
        traces = {name: store.digest(name) for batch in reader.batches(arm, None) for name in batch.files}
        for spec in chosen:
            weights, bounds = _weighed(store, protocol, arm, spec), _bounds(store, protocol, arm, spec)
            for event in wanted:
                proof = _certified(protocol, spec, held[arm.name][event.name], weights, bounds)
                claim = FamilyRecord.model_validate_json(canonical_json(proof))
                own = {f"families.{spec.name}"} if spec.is_own else set[str]()
                yield (
                    family_name(arm, event, spec),
                    FamilyDocument(
                        protocol=protocol.hash,
                        arm=arm.name,
                        event=event.name,
                        definition=event,
                        disturbance=spec,
                        stage=stage_of(spec, arm.schedule.plan).value,
                        horizon=protocol.horizon,
                        environment=protocol.environment,
                        controller=controllers.get(arm.controller.name, ""),
                        fallbacks=tuple(part.name for part in protocol.program.fallbacks),
                        quick_look_of=protocol.quick_look_of,
                        target=protocol.claim.target,
                        bound=rule.value,
                        alone=alone(rule, claim.successes, claim.trials, claim.delta, claim.family, claim.size),
                        traces=traces,
                        provenance=code_digests(record, arm, event, own),
                        claim=claim,
                    ),
                )


Bounded = tuple[tuple[Row, ...], tuple[int, ...]]


def _certified(
    protocol: Protocol, spec: FamilySpec, held: list[bool], weights: list[Weight | None], bounds: Bounded
) -> dict[str, object]:
    """Return the entries of the certificate of one event.

    A trial that may hide a block counts as a failure with the greatest weight, even if the event held: never in our
    favour.
    """
    ceiling, cells = bounds
    known = [(flag, weight) for flag, weight in zip(held, weights, strict=True) if weight is not None]
    if not known:
        raise RunError(f"all {len(held)} nominal trials crashed, so nothing can be said about {spec.name!r}.")
    made = certify_family(
        [flag for flag, _ in known],
        [weight.score for _, weight in known],
        [weight.energy for _, weight in known],
        name=spec.name,
        box=spec.limits,
        ceiling=ceiling,
        cells=cells,
        delta=protocol.claim.delta,
        family=protocol.family,
        sampling=protocol.sampling,
        unweighted=len(held) - len(known),
    )
    return made.entries  # computed just now


def _disturbance(store: Store, protocol: Protocol, arm: Arm, spec: FamilySpec, *, is_made: bool) -> Disturbance:
    """Return a family of an arm of a run. Without `is_made`, code of the user's own is not touched."""
    reader = RunReader(store, protocol)
    first = reader.batches(arm, None)[0]
    widths = widths_of(reader.columns(first, ["trial"]))
    return disturbance(protocol, arm, spec, widths, is_made=is_made)


def _bounds(store: Store, protocol: Protocol, arm: Arm, spec: FamilySpec) -> Bounded:
    made = _disturbance(store, protocol, arm, spec, is_made=False)
    return made.ceiling, made.cells


def _weighed(store: Store, protocol: Protocol, arm: Arm, spec: FamilySpec) -> list[Weight | None]:
    """Return the weights of each nominal trial of an arm, None for a trial that may hide a block.

    Features of the user's own are code that the protocol names. It runs as far as the run is trusted (`Store.trust`).
    """
    if not spec.is_own or store.trust is Trust.HERE:
        return list(_weights_here(store, protocol, arm, spec))
    if store.trust is Trust.NONE:
        raise untrusted(store.root, f"weighing {spec.name}", foreign_parts(protocol, [f"families.{spec.name}"]))
    told = child_of(store, protocol).call("ccfs.results.families:weighed_here", arm=arm.name, family=spec.name)
    trials = sum(len(batch.trials) for batch in RunReader(store, protocol).batches(arm, None))
    return _believed(told, trials, len(spec.box))


def weighed_here(store: Store, *, arm: str, family: str) -> list[object]:
    """Weigh the trials of an arm in this process, for the confined child process."""
    protocol = store.protocol()
    chosen = next(part for part in protocol.arms if part.name == arm)
    spec = next(part for part in protocol.families if part.name == family)
    return [None if weight is None else list(weight) for weight in _weights_here(store, protocol, chosen, spec)]


def _weights_here(store: Store, protocol: Protocol, arm: Arm, spec: FamilySpec) -> Iterator[Weight | None]:
    _refuse_changed_features(store, spec)
    made = _disturbance(store, protocol, arm, spec, is_made=True)
    reader = RunReader(store, protocol)
    for batch in reader.batches(arm, None):
        for trace in reader.traces(batch):
            yield made.weight(trace, protocol.streams(arm, trace.trial)) if is_weighed(trace) else None


def _refuse_changed_features(store: Store, spec: FamilySpec) -> None:
    """Refuse features of the user's own whose code has changed since the run. Nothing is run."""
    if not spec.is_own:
        return
    place = f"families.{spec.name}"
    recorded = cast(Mapping[str, str], read_provenance(store)["parts"]).get(place)
    now = code_tables(((place, (spec.features,)),))["parts"][place]
    if recorded != now:
        raise RunError(
            f"{store.root}: the features of {spec.name!r} are not those that the run was made with. Restore them, or "
            "run a protocol with another `seed`."
        )


def _believed(told: object, trials: int, size: int) -> list[Weight | None]:
    """Return the weights that the confined child told, if they have the form of weights."""

    def row(part: object) -> Row:
        if not (isinstance(part, list) and len(part) == size and all(isinstance(value, float) for value in part)):
            raise HostError(f"a weight must have {size} numbers.")
        return tuple(part)

    if not (isinstance(told, list) and len(told) == trials):
        raise HostError(f"each of {trials} trials must have its weights.")
    found: list[Weight | None] = []
    for entry in told:
        if entry is not None and not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], list)):
            raise HostError("weights must be a score and an energy.")
        found.append(None if entry is None else Weight(row(entry[0]), tuple(map(row, entry[1]))))
    return found


def stored_families(store: Store, protocol: Protocol) -> list[FamilyDocument]:
    """Return the certificates of named disturbances that a run holds. Refuse a run in which one is missing."""
    found = []
    for arm in protocol.arms:
        for event in protocol.events:
            for family in protocol.families:
                name = family_name(arm, event, family)
                if not store.exists(name):
                    raise RunError(f"{store.path(name)}: is missing. Run `ccfs certify` first.")
                made = FamilyDocument.from_bytes(store.read(name), where=str(store.path(name)))
                if made.protocol != protocol.hash:
                    raise RunError(f"{store.path(name)}: belongs to another protocol. Audit this run.")
                found.append(made)
    return found


class FamilyLine(Table):
    """What is certified about one arm, event and disturbance."""

    arm: ArmName = Field(description="Name of the arm: controller/schedule.")
    event: Name = Field(description="Name of the event.")
    disturbance: FamilySpec = Field(description="The disturbance as the protocol defines it.")
    kept: float | None = Field(description="Certified probability in the whole box: the greater one of the next two.")
    lower: float | None = Field(description="What the weights certify in the whole box, rounded down, or null.")
    alone: float = Field(
        description="What the count alone gives for every causal shift of the same size, rounded down."
    )
    size: float = Field(description="Greatest size mu of a disturbance of the box, rounded up.")
    worst: Row = Field(description="Center of the cell of the box where `lower` is attained.")
    net: int = Field(description="Number of cells.")
    gap: float = Field(description="Size of the shift from the center of a cell to a point of it, at most, rounded up.")
    is_certified: bool = Field(description="Whether the target of the protocol is certified in the whole box.")
    file: File = Field(description="The certificate, inside the run.")
    sentence: str = Field(description="The claim in one sentence.")


class FamiliesDocument(Document):
    """What a run certifies about its named disturbances."""

    format: Literal["ccfs/families/1"] = Field(
        default="ccfs/families/1", description="Kind and version of this document."
    )
    protocol: Digest = Field(description="Hash of the protocol.")
    quick_look_of: Digest | None = Field(description="Hash of the whole protocol if this is a quick look, else null.")
    delta: float = Field(description="Failure probability of all claims of the family together.")
    family: int = Field(description="Number of claims that share `delta`.")
    target: float = Field(description="The probability that the event is to keep.")
    claims: tuple[FamilyLine, ...] = Field(description="One entry for each arm, event and disturbance.")


def families_document(protocol: Protocol, documents: Sequence[FamilyDocument]) -> FamiliesDocument:
    """Return the certificates of a run as one document for machines, without the numbers of the trials."""
    lines = [
        FamilyLine(
            arm=made.arm,
            event=made.event,
            disturbance=made.disturbance,
            kept=made.kept,
            lower=made.lower,
            alone=made.alone,
            size=made.claim.size,
            worst=made.claim.worst,
            net=made.claim.net,
            gap=made.claim.gap,
            is_certified=made.is_certified,
            file=f"families/{made.arm}/{made.event}/{made.disturbance.name}.json",
            sentence=made.sentence,
        )
        for made in documents
    ]
    return FamiliesDocument(
        protocol=protocol.hash,
        quick_look_of=protocol.quick_look_of,
        delta=protocol.claim.delta,
        family=protocol.family,
        target=protocol.claim.target,
        claims=tuple(lines),
    )


def is_family_certificate(path: Path) -> bool:
    """Return whether a file says that it is the certificate of a named disturbance."""
    try:
        content = read_json(read_bytes(path, most=limits().document), path)
    except (OSError, RefusedFileError):
        return False
    found = content.get("format") if isinstance(content, dict) else None
    return isinstance(found, str) and found.startswith("ccfs/family-certificate/")


def family_verification(
    document: FamilyDocument, *, is_recounted: bool, signature: SignatureCheck | None = None
) -> Verification:
    """Return the verdict on a certificate that `verify_family` accepted, with the run (`is_recounted`) or without."""
    claim = document.claim
    numbers = (
        f"the bound {'none' if claim.lower is None else lower_text(claim.lower)} in {claim.net} cells of the box, "
    )
    numbers += f"from the weights of {claim.trials} nominal trials."
    weights = f"the event and the weights of each of {claim.trials} nominal trials."
    made_by = f"that the trials were made by the protocol {document.protocol} and by the code with these digests."
    run_tells = "that the weights follow from the traces and the noise. `ccfs verify --run RUN` computes them again."
    replay_tells = f"{made_by} `ccfs audit RUN --replay all` makes them again."
    return Verification(
        holds=True,
        is_recounted=is_recounted,
        reason=None,
        sentence=document.sentence,
        recomputed=(numbers, weights) if is_recounted else (numbers,),
        quoted=(replay_tells,) if is_recounted else (weights, run_tells, replay_tells),
        premises=document.premises,
        signature=signature,
    )


def verify_family(path: Path, store: Store | None) -> FamilyDocument:
    """Return the certificate if it holds. Raise CertificateError if it does not, and say why.

    Without the run, every number is computed again from the stored numbers of the trials. With the run, those numbers
    are computed again from the traces and from the noise.
    """
    content = read_bytes(path, most=limits().document)
    document = FamilyDocument.from_bytes(content, where=str(path))
    if store is None:
        try:
            document.claim.recheck()
        except CertificateError as error:
            raise CertificateError(f"{path}: {error}") from None
        return document
    faults = manifest_faults(store)
    if faults:
        raise CertificateError(f"{store.root}: {faults[0]}")
    protocol = store.protocol()
    if protocol.hash != document.protocol:
        raise CertificateError(f"{path}: belongs to another protocol than the run {store.root}.")
    events = [spec for spec in protocol.events if spec.name == document.event]
    families = [spec for spec in protocol.families if spec.name == document.disturbance.name]
    try:
        derived = {made.to_bytes() for _, made in derive_families(store, protocol, events, families)}
    except UntrustedError:
        raise
    except RunError as error:
        raise CertificateError(str(error)) from error
    if content not in derived:
        raise CertificateError(f"{path}: is not what the traces of {store.root} give.")
    return document
