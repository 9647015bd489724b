"""The protocol: one TOML file that fixes everything before the first rollout, validated, frozen and hashed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from ccfs.certificates.bounds import Bound
from ccfs.hashing import canonical_json, text_digest
from ccfs.protocol_errors import ProtocolError, explain
from ccfs.schedules import ProposalSchedule, Schedules
from ccfs.streams import Streams
from ccfs.toml import read_toml

__all__ = ["NOMINAL", "Arm", "Protocol", "ProtocolError", "load_protocol"]

NOMINAL = "nominal"
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
DottedPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Reference(_Part):
    """Something made by calling `make`, "package.module:callable", with the arguments."""

    make: DottedPath
    arguments: dict[str, JsonValue] = {}


class EnvironmentSpec(Reference):
    """The environment, and the `info` keys of cost and goal."""

    cost: str = "cost"
    goal: str = "goal_met"


class ControllerSpec(Reference):
    """A controller; `digest`, if given, is the only one accepted."""

    name: Name
    digest: str | None = None


class BlockSpec(_Part):
    """One proposal block: `rho` or `multiplier`, not both."""

    count: int = Field(ge=1)
    sigma: float = Field(gt=0.0)
    rho: float | None = Field(default=None, ge=0.0, lt=1.0)
    multiplier: float | None = Field(default=None, ge=1.0)

    @model_validator(mode="after")
    def _is_one_block(self) -> BlockSpec:
        if self.rho is not None and self.multiplier is not None:
            raise ValueError("give `rho` or `multiplier`, not both")
        self.schedule  # noqa: B018  # its own checks raise here, with the key
        return self

    @property
    def schedule(self) -> ProposalSchedule:
        """The block's law."""
        if self.multiplier is not None:
            return ProposalSchedule.from_multiplier(self.count, self.sigma, self.multiplier)
        return ProposalSchedule(count=self.count, sigma=self.sigma, rho=self.rho or 0.0)


class ScheduleSpec(_Part):
    """A named schedule: one block for every step, or `steps` with one block each."""

    name: Name
    block: BlockSpec | None = None
    steps: tuple[BlockSpec, ...] | None = None

    @model_validator(mode="after")
    def _is_one_of_both(self) -> ScheduleSpec:
        if (self.block is None) == (self.steps is None):
            raise ValueError("give `block` (the same at every step) or `steps` (one a step)")
        return self

    @property
    def schedules(self) -> Schedules:
        """The schedules as the runtime takes them."""
        if self.block is not None:
            return self.block.schedule
        return tuple(step.schedule for step in self.steps or ())


class FallbackSpec(Reference):
    """A fallback; `unverified` lets it run without the verifier's consent, and stands on the certificate."""

    name: Name
    unverified: bool = False


class ProgramSpec(_Part):
    """Verifier, fallbacks in order, and the center and candidate maps."""

    verifier: Reference
    fallbacks: tuple[FallbackSpec, ...] = ()
    clip_center: bool = True
    candidate_map: Reference | None = None


class AttackSpec(_Part):
    """A shift rule (a shipped name or "module:callable") under a Euclidean `budget` or an `energy` limit."""

    name: Name
    rule: str
    arguments: dict[str, JsonValue] = {}
    budget: float | None = Field(default=None, ge=0.0)
    energy: float | None = Field(default=None, ge=0.0)

    @model_validator(mode="after")
    def _has_one_limit(self) -> AttackSpec:
        if (self.budget is None) == (self.energy is None):
            raise ValueError("give `budget` or `energy`, and only one of them")
        if self.name == NOMINAL:
            raise ValueError(f"the name {NOMINAL!r} is the arm without shift")
        return self


class EventSpec(_Part):
    """An event: a built-in name, "all_of" with `events`, or "module:callable"."""

    name: Name
    event: str
    arguments: dict[str, JsonValue] = {}
    events: tuple[EventSpec, ...] = ()

    @model_validator(mode="after")
    def _has_its_own_keys(self) -> EventSpec:
        if self.event != "all_of" and self.events:
            raise ValueError(f"`events` must be given for event = 'all_of' only, got event = {self.event!r}")
        if self.event == "all_of" and self.arguments:
            raise ValueError(f"`arguments` must be given to the `events` of an all_of, got {self.arguments!r}")
        return self

    def horizons(self, horizon: int) -> tuple[str, ...]:
        """Return the numbers of steps that the event looks at, in a protocol of this horizon, as texts."""
        if self.event == "all_of":
            return tuple(dict.fromkeys(text for part in self.events for text in part.horizons(horizon)))
        return (str(horizon if ":" in self.event else self.arguments.get("horizon", horizon)),)


class SeedRange(_Part):
    """`count` reset seeds from `first` on."""

    first: Seed
    count: int = Field(ge=1, le=1_000_000)

    @field_validator("count")
    @classmethod
    def _ends_in_range(cls, count: int, info: ValidationInfo) -> int:
        first = info.data.get("first", 0)
        if not first + count <= 2**32:
            raise ValueError(f"`first` + `count` must be at most {2**32}, got {first} + {count}")
        return count


class TrialsSpec(_Part):
    """A fixed `cohort` of reset seeds, one trial each, or `initial_law` independent draws of the reset seed."""

    cohort: tuple[Seed, ...] | SeedRange | None = None
    initial_law: int | None = Field(default=None, ge=1)
    used_before: tuple[Seed, ...] = ()

    @model_validator(mode="after")
    def _is_one_of_both(self) -> TrialsSpec:
        if (self.cohort is None) == (self.initial_law is None):
            raise ValueError("give `cohort` (fixed reset seeds) or `initial_law` (a number of independent draws)")
        seeds = self.seeds
        if seeds is not None:
            if not seeds or len(set(seeds)) != len(seeds):
                raise ValueError("`cohort` must hold at least one reset seed and none twice")
            if shared := sorted(set(seeds) & set(self.used_before)):
                raise ValueError(f"`cohort` must be disjoint from `used_before`, both hold {shared[:5]}")
        return self

    @property
    def seeds(self) -> tuple[int, ...] | None:
        """The reset seeds of a cohort."""
        if isinstance(self.cohort, SeedRange):
            return tuple(range(self.cohort.first, self.cohort.first + self.cohort.count))
        return self.cohort

    @property
    def count(self) -> int:
        """The greatest number of trials of one arm."""
        return self.initial_law if self.initial_law is not None else len(self.seeds or ())


class StopSpec(_Part):
    """Which happenings end a trajectory before the horizon."""

    goal: bool = False
    cost: bool = False


class ClaimSpec(_Part):
    """The statistical claim: delta over the whole family, target, bound rule, and when an anytime run may stop."""

    delta: float = Field(gt=0.0, lt=1.0)
    target: float = Field(gt=0.0, lt=1.0)
    bound: Literal["hoeffding", "cohort", "clopper-pearson", "anytime"]
    family: int | None = Field(default=None, ge=1)
    stop_at_budget: float | None = Field(default=None, ge=0.0)

    @model_validator(mode="after")
    def _stops_only_anytime(self) -> ClaimSpec:
        if self.stop_at_budget is not None and self.bound != "anytime":
            raise ValueError(f"`stop_at_budget` needs bound = 'anytime', got {self.bound!r}")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One certified program: a controller under a schedule. Its name keys the random streams."""

    controller: ControllerSpec
    schedule: ScheduleSpec

    @property
    def name(self) -> str:
        """The arm's name, also a relative folder."""
        return f"{self.controller.name}/{self.schedule.name}"


class Protocol(_Part):
    """Everything that is fixed before the first rollout."""

    format: Literal["ccfs-protocol-1"] = "ccfs-protocol-1"
    name: Name
    description: str = ""
    seed: int = Field(ge=0)
    horizon: int = Field(ge=1)
    batch: int = Field(default=16, ge=1)
    trials: TrialsSpec
    claim: ClaimSpec
    environment: EnvironmentSpec
    controllers: tuple[ControllerSpec, ...] = Field(min_length=1)
    schedules: tuple[ScheduleSpec, ...] = Field(min_length=1)
    program: ProgramSpec
    stop: StopSpec = StopSpec()
    events: tuple[EventSpec, ...] = Field(min_length=1)
    attacks: tuple[AttackSpec, ...] = ()
    quick_look_of: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        content: dict[str, object] = handler(self)
        if self.quick_look_of is None:  # so that a whole protocol's hash does not depend on quick looks
            content.pop("quick_look_of", None)
        return content

    @model_validator(mode="after")
    def _fits_together(self) -> Protocol:
        for key in ("controllers", "schedules", "events", "attacks"):
            names = [part.name for part in getattr(self, key)]
            if len(set(names)) != len(names):
                raise ValueError(f"`{key}` must have different names, got {names}")
        for schedule in self.schedules:
            if schedule.steps is not None and len(schedule.steps) != self.horizon:
                raise ValueError(
                    f"`schedules` {schedule.name!r} must have one step for each of horizon {self.horizon}, "
                    f"got {len(schedule.steps)}"
                )
            if schedule.steps is not None and any(attack.budget is not None for attack in self.attacks):
                raise ValueError(f"`attacks` must give `energy`, not `budget`: schedule {schedule.name!r} varies")
        is_cohort = self.trials.seeds is not None
        if is_cohort != (self.claim.bound in ("hoeffding", "cohort")):
            accepted = "'hoeffding' or 'cohort'" if is_cohort else "'clopper-pearson' or 'anytime'"
            kind = "a fixed cohort" if is_cohort else "draws from an initial law"
            raise ValueError(f"`claim.bound` must be {accepted} for {kind}, got {self.claim.bound!r}")
        if self.claim.family is not None and self.claim.family < self.claims:
            raise ValueError(
                f"`claim.family` must be at least {self.claims} (arms times events), got {self.claim.family}"
            )
        return self

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of the validated content; comments, key order and spelled-out defaults do not matter."""
        return text_digest(self.canonical)

    @property
    def canonical(self) -> str:
        """The one JSON text of this protocol."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Every controller under every schedule."""
        pairs = [(controller, schedule) for controller in self.controllers for schedule in self.schedules]
        return tuple(Arm(controller=controller, schedule=schedule) for controller, schedule in pairs)

    @property
    def claims(self) -> int:
        """Number of certificates this protocol issues."""
        return len(self.controllers) * len(self.schedules) * len(self.events)

    @property
    def family(self) -> int:
        """Number of claims that share `delta`."""
        return self.claim.family or self.claims

    @property
    def bound(self) -> Bound:
        """The bound rule."""
        return Bound(self.claim.bound)

    def streams(self, arm: Arm, trial: int) -> Streams:
        """Return the random streams of one trial."""
        return Streams(root=self.seed, arm=arm.name, trial=trial)

    def reset_seed(self, arm: Arm, trial: int) -> int:
        """Return the reset seed of one trial: the cohort's member, or a fresh draw of the initial law."""
        seeds = self.trials.seeds
        return self.streams(arm, trial).reset_seed() if seeds is None else seeds[trial]

    def first(self, count: int) -> Protocol:
        """Return a quick look at this protocol: its first `count` trials.

        It has another name and another hash, and says of which protocol it is a part: whoever looks first and then
        decides whether to run the whole has made two claims.
        """
        if not 1 <= count <= self.trials.count:
            raise ProtocolError(f"`seeds` must be in [1, {self.trials.count}], got {count}.")
        seeds = self.trials.seeds
        trials = {"initial_law": count} if seeds is None else {"cohort": list(seeds[:count])}
        content = self.model_dump(mode="json")
        content["trials"] = {**trials, "used_before": list(self.trials.used_before)}
        content["quick_look_of"] = self.quick_look_of or self.hash
        name = f"{self.name[:60]}-first-{count}"
        return parse_protocol({**content, "name": name}, where=self.name)


def parse_protocol(content: dict[str, object], *, where: str) -> Protocol:
    """Validate a protocol's content; `where` names it in errors."""
    try:
        return Protocol.model_validate_json(_json(content, where))
    except ValidationError as error:
        raise ProtocolError("\n".join(f"{where}: {line}" for line in explain(error, Protocol))) from None


def load_protocol(path: Path) -> Protocol:
    """Read and validate a protocol file."""
    try:
        content = read_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProtocolError(f"{path}: cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:  # besides the parser's own: no UTF-8, a huge number, deep nesting
        raise ProtocolError(f"{path}: must be a TOML file: {error}") from None
    return parse_protocol(content, where=str(path))


def _json(content: dict[str, object], where: str) -> str:
    try:
        return json.dumps(content)
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{where}: must hold texts, numbers, booleans, arrays and tables only: {error}") from None
