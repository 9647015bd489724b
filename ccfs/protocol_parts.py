"""The tables of a protocol file: what each may hold, and what is refused in it."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, field_validator, model_validator

from ccfs.protocol_seeds import Part
from ccfs.runtime.grid import Grid
from ccfs.schedules import ProposalSchedule, Schedules

__all__ = [
    "EXACT",
    "NOMINAL",
    "RESOLUTION",
    "AttackSpec",
    "BlockSpec",
    "ClaimSpec",
    "ControllerSpec",
    "EnvironmentSpec",
    "EventSpec",
    "FallbackSpec",
    "Name",
    "ProgramSpec",
    "Reference",
    "ScheduleSpec",
    "StopSpec",
]

NOMINAL = "nominal"
EXACT = "exact"
RESOLUTION = r"^(exact|2\^(0|-?[1-9]\d?))$"
# Numpy computes the lidars of these tasks, and their last bits depend on the processor.
_ROUNDED = ("ccfs.envs:make", "safety-gymnasium")
NAME = "[A-Za-z0-9][A-Za-z0-9._-]*"
Name = Annotated[str, Field(pattern=f"^{NAME}$", max_length=80)]
DottedPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]


def _refuse_not_finite(arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Refuse NaN and infinity anywhere: JSON has neither, so that a worker would be given null instead."""
    pending: list[tuple[str, JsonValue]] = list(arguments.items())
    while pending:
        key, value = pending.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"`{key}` must be finite, got {value}")
        if isinstance(value, dict):
            pending.extend((f"{key}.{name}", part) for name, part in value.items())
        elif isinstance(value, list):
            pending.extend((f"{key}.{i}", part) for i, part in enumerate(value))
    return arguments


Arguments = Annotated[dict[str, JsonValue], AfterValidator(_refuse_not_finite)]


class Reference(Part):
    """Something made by calling `make`, "package.module:callable", with the arguments."""

    make: DottedPath
    arguments: Arguments = Field(default_factory=dict)


class EnvironmentSpec(Reference):
    """The environment, the `info` keys of cost and goal, and the grid of its observations."""

    cost: str = "cost"
    goal: str = "goal_met"
    resolution: str = Field(
        default=EXACT,
        pattern=RESOLUTION,
        description=(
            'Observations are rounded to multiples of this power of two, such as "2^-20", before anybody reads them. '
            'A replay on another processor then gives the same trace. "exact" does not round.'
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _rounds_safety_gymnasium(cls, content: object) -> object:
        """Fill in the default of shipped Safety-Gymnasium tasks, so that it stands in the hashed protocol."""
        is_ours = isinstance(content, dict) and content.get("make") in _ROUNDED
        return {"resolution": "2^-20", **content} if is_ours else content

    @field_validator("resolution")
    @classmethod
    def _is_a_grid(cls, resolution: str) -> str:
        Grid(_power(resolution))
        return resolution

    @property
    def grid(self) -> float | None:
        """The resolution as a number, None for exact observations."""
        return _power(self.resolution)


def _power(resolution: str) -> float | None:
    return None if resolution == EXACT else 2.0 ** int(resolution.removeprefix("2^"))


class ControllerSpec(Reference):
    """A controller; `digest`, if given, is the only one accepted."""

    name: Name
    digest: str | None = None


class BlockSpec(Part):
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


class ScheduleSpec(Part):
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


class ProgramSpec(Part):
    """Verifier, fallbacks in order, and the center and candidate maps."""

    verifier: Reference
    fallbacks: tuple[FallbackSpec, ...] = ()
    clip_center: bool = True
    candidate_map: Reference | None = None


class AttackSpec(Part):
    """A shift rule (a shipped name or "module:callable") under a Euclidean `budget` or an `energy` limit."""

    name: Name
    rule: str
    arguments: Arguments = Field(default_factory=dict)
    budget: float | None = Field(default=None, ge=0.0)
    energy: float | None = Field(default=None, ge=0.0)

    @model_validator(mode="after")
    def _has_one_limit(self) -> AttackSpec:
        if (self.budget is None) == (self.energy is None):
            raise ValueError("give `budget` or `energy`, and only one of them")
        if self.name == NOMINAL:
            raise ValueError(f"the name {NOMINAL!r} is the arm without shift")
        return self


class EventSpec(Part):
    """An event: a built-in name, "all_of" with `events`, or "module:callable"."""

    name: Name
    event: str
    arguments: Arguments = Field(default_factory=dict)
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


class StopSpec(Part):
    """Which happenings end a trajectory before the horizon."""

    goal: bool = False
    cost: bool = False


class ClaimSpec(Part):
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
