"""Read, validate and hash a protocol, the TOML file that fixes a study before its first trial."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from ccfs.attacks.ledger import attacked_stages
from ccfs.certificates.bounds import Bound, Sampling
from ccfs.certificates.documents import DocumentError, refuse_other_format
from ccfs.files.digests import canonical_json, text_digest
from ccfs.files.documents import Document
from ccfs.files.reading import RefusedFileError, limits, read_bytes, read_json, read_text, too_much
from ccfs.files.toml import read_toml
from ccfs.protocol.errors import ProtocolError, explain
from ccfs.protocol.seeds import Part, TrialsSpec, used_seeds
from ccfs.protocol.tables import (
    NOMINAL,
    AttackSpec,
    ClaimSpec,
    ControllerSpec,
    EnvironmentSpec,
    EventSpec,
    FamilySpec,
    Name,
    ProgramSpec,
    Reference,
    ScheduleSpec,
    StopSpec,
)
from ccfs.runtime.streams import Streams

__all__ = [
    "NOMINAL",
    "Arm",
    "AttackSpec",
    "EventSpec",
    "FamilySpec",
    "Protocol",
    "ProtocolError",
    "Reference",
    "load_protocol",
    "parse_protocol",
    "refuse_large",
    "with_runs_read",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One controller under one schedule. Its name is part of the keys of the random streams."""

    controller: ControllerSpec
    schedule: ScheduleSpec

    @property
    def name(self) -> str:
        """The arm's name, which is also its relative folder."""
        return f"{self.controller.name}/{self.schedule.name}"


class Protocol(Part, Document):
    """Everything that is fixed before the first trial."""

    format: Literal["ccfs/protocol/1"] = Field(
        default="ccfs/protocol/1", description="Kind and version of this document. Leave it out of a TOML file."
    )
    name: Name = Field(
        description="Names the study and its default run folder: letters, digits, `.`, `_`, `-`, at most 80."
    )
    description: str = Field(default="", description="One sentence for the readers of the report.")
    seed: int = Field(ge=0, description="Root of all random streams. The same file gives the same bytes.")
    horizon: int = Field(ge=1, description="Steps of a trial, at most the environment's own time limit.")
    batch: int = Field(
        default=16,
        ge=1,
        description="Trials that run and are stored together. An interruption loses at most the batches that run then.",
    )
    trials: TrialsSpec = Field(description="Where the trials start, and how many there are.")
    claim: ClaimSpec = Field(description="What is to be certified.")
    environment: EnvironmentSpec = Field(description="The environment.")
    controllers: tuple[ControllerSpec, ...] = Field(
        min_length=1, description="The controllers. Each of them under each schedule is one arm."
    )
    schedules: tuple[ScheduleSpec, ...] = Field(min_length=1, description="The schedules of noise.")
    program: ProgramSpec = Field(description="Verifier, fallbacks and candidate map.")
    stop: StopSpec = Field(
        default=StopSpec(), description="What ends a trial early. Without it, every trial goes on to the horizon."
    )
    events: tuple[EventSpec, ...] = Field(
        min_length=1, description="What counts as success. Each arm and event is one claim with one certificate."
    )
    attacks: tuple[AttackSpec, ...] = Field(
        default=(), description="Shift rules to try. Each costs as many trials as the nominal ones again."
    )
    families: tuple[FamilySpec, ...] = Field(
        default=(),
        description="Named disturbances. Each of them is one more claim about each arm and event, and costs no trials.",
    )
    traces: Literal["full", "hashes"] = Field(
        default="full",
        description='What is kept of a trial. With "hashes" the events are asked when the trial has run, and its line, '
        "their verdicts and the last hash of its trace are kept, about 100 bytes. It is for very many trials, and "
        "without `attacks` and `families`. `ccfs retrace` makes traces again.",
    )
    quick_look_of: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{64}$",
        description="Hash of the whole protocol of which this is a quick look. `ccfs run --seeds` writes it. Leave it "
        "out.",
    )

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        content: dict[str, object] = handler(self)
        # A key that is not given is left out, so that it changes the hash of those protocols only that give it.
        if self.quick_look_of is None:
            content.pop("quick_look_of", None)
        if not self.families:
            content.pop("families", None)
        if self.keeps_traces:
            content.pop("traces", None)
        if "events" in content:  # somebody may have asked for some keys only
            content["events"] = _without_empty_digests(content["events"])
        return content

    @model_validator(mode="after")
    def _fits_together(self) -> Protocol:
        for key in ("controllers", "schedules", "events", "attacks", "families"):
            names = [part.name for part in getattr(self, key)]
            # They name files, and macOS and Windows do not tell upper from lower case there.
            if len({name.lower() for name in names}) != len(names):
                raise ValueError(f"`{key}` must have different names, also in lower case, got {names}")
        for schedule in self.schedules:
            length = schedule.plan.length
            if length not in (None, self.horizon):
                raise ValueError(
                    f"`schedules` {schedule.name!r} must have one block for each step of horizon {self.horizon}, "
                    f"got {length}"
                )
            for attack in self.attacks:
                _refuse_other_stages(attack, schedule)
        if (self.attacks or self.families) and not self.keeps_traces:
            raise ValueError(
                '`attacks` and `families` must be empty with traces = "hashes": run them in a protocol with full traces'
            )
        # A listed cohort is no sample of a law, so its trials are not identically distributed. The binomial bounds need
        # that they are.
        is_cohort, is_stratified = self.trials.seeds is not None, self.claim.bound == "stratified"
        if is_stratified != (self.trials.draws is not None):
            raise ValueError(
                "`trials.draws` must be given with `claim.bound` = 'stratified', and only then: "
                f"got draws = {self.trials.draws and self.trials.draws.total} with bound = {self.claim.bound!r}"
            )
        if not is_stratified and is_cohort != (self.claim.bound in ("hoeffding", "cohort")):
            accepted = "'hoeffding' or 'cohort'" if is_cohort else "'clopper-pearson' or 'anytime'"
            kind = "a fixed cohort" if is_cohort else "draws from an initial law"
            raise ValueError(f"`claim.bound` must be {accepted} for {kind}, got {self.claim.bound!r}")
        if is_stratified and self.claim.stop_at_budget is not None:
            self._refuse_stop_between_seeds(is_cohort=is_cohort)
        if self.claim.family is not None and self.claim.family < self.claims:
            raise ValueError(
                f"`claim.family` must be at least {self.claims} ({self._counted}), got {self.claim.family}"
            )
        if self.families and self.claim.stop_at_budget is not None:
            raise ValueError("`families` need a number of trials that is fixed: leave `claim.stop_at_budget` out")
        if self.families and is_stratified:
            raise ValueError("`families` need one trial at each reset seed: leave `trials.draws` out")
        return self

    def _refuse_stop_between_seeds(self, *, is_cohort: bool) -> None:
        """Raise unless a run may stop after any batch without a reset seed that is only half done."""
        if is_cohort:
            raise ValueError(
                "`claim.stop_at_budget` must not be given for a cohort: the claim is about the average over all of its "
                "reset seeds, so the run cannot leave out the last ones. With `initial_law` it may stop"
            )
        if self.batch % self.trials.per_seed:
            raise ValueError(
                f"`batch` must be a multiple of the {self.trials.per_seed} draws at a reset seed if the run may stop "
                f"early, because only whole seeds count, got {self.batch}"
            )

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of the validated content. Comments, key order and spelled-out defaults do not matter."""
        return text_digest(self.canonical)

    @property
    def canonical(self) -> str:
        """This protocol as canonical JSON."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Every controller under every schedule."""
        pairs = [(controller, schedule) for controller in self.controllers for schedule in self.schedules]
        return tuple(Arm(controller=controller, schedule=schedule) for controller, schedule in pairs)

    @property
    def keeps_traces(self) -> bool:
        """Whether the trace of every trial is stored."""
        return self.traces == "full"

    @property
    def claims(self) -> int:
        """Number of claims of this protocol. Each gives one certificate."""
        return len(self.controllers) * len(self.schedules) * len(self.events) * (1 + len(self.families))

    @property
    def _counted(self) -> str:
        """What the claims are, in words."""
        return "arms times events" if not self.families else "arms times events times one more than families"

    @property
    def family(self) -> int:
        """Number of claims that share `delta`."""
        return self.claim.family or self.claims

    @property
    def bound(self) -> Bound | None:
        """The rule that turns a count into a bound. None for the stratified bound, which counts at each seed."""
        return None if self.claim.bound == "stratified" else Bound(self.claim.bound)

    @property
    def sampling(self) -> Sampling:
        """How the reset seeds come about."""
        return Sampling.LAW if self.trials.seeds is None else Sampling.COHORT

    def streams(self, arm: Arm, trial: int) -> Streams:
        """Return the random streams of one trial.

        Their reset seed is a member of the cohort, or a draw from the initial law. Several trials at one reset seed
        share the seed and nothing else, because the key of a stream has the number of the trial.
        """
        stratum, seeds = trial // self.trials.per_seed, self.trials.seeds
        seed = None if seeds is None else seeds[stratum]
        streams = Streams(protocol=self.hash, root=self.seed, arm=arm.name, trial=trial, reset_seed=seed)
        if seed is not None:
            return streams
        first = stratum * self.trials.per_seed
        drawn = (streams if trial == first else replace(streams, trial=first)).drawn()
        return drawn if trial == first else replace(streams, reset_seed=drawn.reset_seed)

    def reset_seeds(self) -> Iterable[int]:
        """Return the reset seeds of all planned trials."""
        if self.trials.seeds is not None:
            return self.trials.seeds
        firsts = range(0, self.trials.count, self.trials.per_seed)
        streams = (self.streams(arm, trial) for arm in self.arms for trial in firsts)
        return [one.reset_seed for one in streams if one.reset_seed is not None]

    def first(self, count: int) -> Protocol:
        """Return a quick look at this protocol: `count` reset seeds, the first ones of a cohort, with all their trials.

        It names the whole protocol, and it has another name and another hash. Its noise is therefore its own. It is no
        part of the whole run, and the noise of the whole run is independent of what was seen here.
        """
        if not 1 <= count <= self.trials.strata:
            raise ProtocolError(f"`seeds` must be in [1, {self.trials.strata}], got {count}.")
        seeds = self.trials.seeds
        trials = {"initial_law": count} if seeds is None else {"cohort": list(seeds[:count])}
        content = self.model_dump(mode="json")
        kept = {key: value for key, value in content["trials"].items() if key in ("draws", "used_before")}
        content["trials"] = {**trials, **kept}
        content["quick_look_of"] = self.quick_look_of or self.hash
        name = f"{self.name[:60]}-first-{count}"
        return parse_protocol({**content, "name": name}, where=self.name)


def _refuse_other_stages(attack: AttackSpec, schedule: ScheduleSpec) -> None:
    """Raise if an attack shifts a stage without noise, or if its budget is no fixed energy."""
    try:
        stages = attacked_stages(schedule.plan, attack.stage)
    except ValueError as error:
        text = f"{error}".rstrip(".")
        raise ValueError(f"`attacks` {attack.name!r} does not fit `schedules` {schedule.name!r}: {text}") from None
    if attack.budget is not None and any(isinstance(schedule.plan.of(stage), tuple) for stage in stages):
        raise ValueError(f"`attacks` must give `energy`, not `budget`: schedule {schedule.name!r} varies")


def _without_empty_digests(events: object) -> object:
    """Return events, and the events inside of them, without the key `digest` where nobody gave one."""
    if not isinstance(events, (list, tuple)):
        return events
    return [
        {
            key: _without_empty_digests(value) if key == "events" else value
            for key, value in event.items()
            if (key, value) != ("digest", None)
        }
        for event in events
    ]


def parse_protocol(content: dict[str, object], *, where: str) -> Protocol:
    """Validate a protocol's content. `where` names it in errors."""
    try:
        refuse_other_format(content.get("format", Protocol.format_name()), Protocol.format_name())
    except DocumentError as error:
        raise ProtocolError(f"{where}: {error}") from None
    try:
        # Through JSON, so that a TOML file and a stored protocol.json pass the same strict checks.
        return Protocol.model_validate_json(_json(content, where))
    except ValidationError as error:
        raise ProtocolError(*(f"{where}: {line}" for line in explain(error, Protocol))) from None


def load_protocol(path: Path) -> Protocol:
    """Read and validate a protocol file."""
    try:
        content = read_toml(read_text(path))
    except OSError as error:
        raise ProtocolError(f"{path}: cannot be read: {error.strerror}.") from None
    except RefusedFileError as error:
        raise ProtocolError(str(error)) from None
    except (ValueError, RecursionError) as error:  # the parser's own, a huge number, deep nesting
        raise ProtocolError(f"{path}: must be a TOML file: {error}") from None
    made = parse_protocol(with_runs_read(content, path), where=str(path))
    refuse_large(made, where=str(path))
    return made


def refuse_large(protocol: Protocol, *, where: str) -> None:
    """Refuse a protocol that plans more than the limits, before anything of that size is made. See `Limits`."""
    most = limits()
    trials, groups = protocol.trials.count, 1 + len(protocol.attacks)
    batches = len(protocol.controllers) * len(protocol.schedules) * groups * -(-trials // protocol.batch)
    for what, got, limit in (
        ("steps per trial (`horizon`)", protocol.horizon, most.horizon),
        ("steps per batch (`batch` times `horizon`)", min(protocol.batch, trials) * protocol.horizon, most.rows),
        ("planned batches", batches, most.batches),
        ("claims", protocol.claims, most.batches),
    ):
        if got > limit:
            raise ProtocolError(str(too_much(where, what, got, limit)))


def with_runs_read(content: dict[str, object], path: Path) -> dict[str, object]:
    """Replace each run folder in `trials.used_before` by its protocol's hash and reset seeds.

    A relative folder starts at the folder of the protocol file. Its path is not hashed, because it differs between
    machines.
    """
    trials = content.get("trials")
    used = trials.get("used_before") if isinstance(trials, dict) else None
    if not (isinstance(trials, dict) and isinstance(used, list)):
        return content  # validation will say what is wrong
    read = [
        _used_run(part, path, f"trials.used_before.{i}") if isinstance(part, dict) and "run" in part else part
        for i, part in enumerate(used)
    ]
    return {**content, "trials": {**trials, "used_before": read}}


def _used_run(part: dict[str, object], path: Path, key: str) -> dict[str, object]:
    folder = part["run"]
    if not isinstance(folder, str) or len(part) != 1:
        raise ProtocolError(f"{path}: `{key}` must give `run`, a folder, and nothing else, got {part!r}.")
    file = path.parent / folder / "protocol.json"
    try:
        stored = read_json(read_bytes(file, most=limits().document), file)
    except (OSError, RefusedFileError):
        raise ProtocolError(f"{path}: `{key}.run` must be a run folder, but {file} cannot be read.") from None
    if not isinstance(stored, dict):
        raise ProtocolError(f"{path}: `{key}.run` must be a run folder, but {file} holds no protocol.")
    protocol = parse_protocol(stored, where=str(file))
    refuse_large(protocol, where=str(file))
    return {"protocol": protocol.hash, "seeds": used_seeds(protocol.reset_seeds())}


def _json(content: dict[str, object], where: str) -> str:
    try:
        return json.dumps(content)
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{where}: must hold texts, numbers, booleans, arrays and tables only: {error}") from None
