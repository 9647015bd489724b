"""Define the tables of a protocol file: their keys, their defaults, and what they refuse."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cached_property, partial
from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from ccfs.certificates.schedule import Blocks, ProposalSchedule, Schedule
from ccfs.files.documents import OPTIONAL, Digest
from ccfs.protocol.registry import ALL_OF, IN_MEMORY, accepted
from ccfs.protocol.seeds import Part
from ccfs.runtime.grid import Grid

__all__ = [
    "EXACT",
    "NOMINAL",
    "RESOLUTION",
    "AttackSpec",
    "BlockSpec",
    "CandidateMapSpec",
    "ClaimSpec",
    "ControllerSpec",
    "EnvironmentSpec",
    "EventSpec",
    "FallbackSpec",
    "FamilySpec",
    "Name",
    "ProgramSpec",
    "Reference",
    "ScheduleSpec",
    "SensorSpec",
    "StopSpec",
    "StrataSpec",
    "VerifierSpec",
]

# Names the folder of the trials without attack, so no attack may have this name.
NOMINAL = "nominal"
EXACT = "exact"
# The exponents are those of `Grid`. No `\d`, which takes digits of every script.
RESOLUTION = r"^(exact|2\^(0|-?([1-9]|[1-5][0-9]|60)))$"
# Numpy computes the lidars of these tasks, and their last bits depend on the processor.
_ROUNDED = ("safety-gymnasium",)
_MOST_SIZES = 1000  # all of them stand on every certificate
_MOST_BLOCKS = 100_000
NAME = "[A-Za-z0-9][A-Za-z0-9._-]*"
Name = Annotated[str, Field(pattern=f"^{NAME}$", max_length=80)]


def _refuse_not_finite(arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Refuse NaN and infinity at any depth. JSON has neither, so a worker would get null instead."""
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
_ARGUMENTS = (
    "Arguments of the call, by keyword: texts, numbers, booleans, lists (given as tuples) and tables. "
    "None of them may be NaN or infinite."
)


def _named(kind: str) -> AfterValidator:
    """Return the validator that refuses a name of no part of this kind."""
    return AfterValidator(partial(accepted, kind))


class Reference(Part):
    """Something made by calling `make` with the arguments."""

    make: str = Field(description='The short name of a shipped part, or "module:callable" of your own.')
    arguments: Arguments = Field(default_factory=dict, description=_ARGUMENTS)


class EnvironmentSpec(Reference):
    """The environment, the `info` keys of its cost and goal, and the grid of its observations."""

    make: Annotated[str, _named("environment")] = Field(
        description='The environment: the short name of a shipped one, or "module:callable" of your own.'
    )
    cost: str = Field(
        default="cost",
        description="Key of `info` that holds the cost of a step. An environment that returns six values gives "
        "the cost itself.",
    )
    goal: str = Field(
        default="goal_met", description="Key of `info` that is true if the goal is met. An absent key means not met."
    )
    resolution: str = Field(
        default=EXACT,
        pattern=RESOLUTION,
        description=(
            'Observations are rounded to multiples of this power of two, such as "2^-20", before anybody reads them. '
            'A replay on another processor then gives the same trace. "exact" does not round. '
            "Safety-Gymnasium tasks have 2^-20 unless another one is given."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _rounds_safety_gymnasium(cls, content: object) -> object:
        """Fill in the default of shipped Safety-Gymnasium tasks, so that it stands in the hashed protocol."""
        if isinstance(content, dict) and content.get("make") in _ROUNDED:
            return {"resolution": "2^-20", **content}
        return content

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
    """A controller, whose answer is the center of the proposals."""

    name: Name = Field(description="First part of the name of its arms. Names an arm in tables and folders.")
    make: Annotated[str, _named("controller")] = Field(
        description='The controller: the short name of a shipped one, or "module:callable" of your own.'
    )
    digest: str | None = Field(
        default=None,
        description="The only digest that is accepted. Without it, the run records the digest all the same.",
    )


PositiveNumber = Annotated[float, Field(gt=0.0)]
Scale = Annotated[float, Field(ge=0.0)]


def _sigma_kind(sigma: object) -> str:
    return (
        "sigma-list" if isinstance(sigma, (list, tuple)) else "sigma-table" if isinstance(sigma, dict) else "sigma-one"
    )


Scales = Annotated[
    Annotated[PositiveNumber, Tag("sigma-one")] | Annotated[tuple[Scale, ...], Tag("sigma-list")],
    Discriminator(_sigma_kind),
]
NamedScales = Annotated[
    Annotated[PositiveNumber, Tag("sigma-one")]
    | Annotated[tuple[Scale, ...], Tag("sigma-list")]
    | Annotated[dict[str, PositiveNumber], Tag("sigma-table")],
    Discriminator(_sigma_kind),
]


class BlockSpec(Part):
    """One proposal block: so many correlated Gaussian draws around the center. Give `rho` or `multiplier`, not both."""

    count: int = Field(ge=1, description="Number of proposals in the block, N.")
    sigma: Scales = Field(
        description="Standard deviation of each proposal, in the units of the action or score. A list has one number "
        "per coordinate. A coordinate with 0 has no noise and is outside of the claim."
    )
    rho: float | None = Field(
        default=None,
        ge=0.0,
        lt=1.0,
        description="Correlation between two proposals of a block. Without it, they are independent.",
    )
    multiplier: float | None = Field(
        default=None,
        ge=1.0,
        description="Instead of `rho`: the energy multiplier κ = N / (1 + (N - 1) ρ) that the block shall have, "
        "in (1, N].",
    )
    steps: int = Field(
        default=1,
        ge=1,
        exclude=True,  # a plan is kept with one block per step, however it was written
        description="In a list: for how many steps in a row this one is used.",
    )

    @model_validator(mode="after")
    def _is_one_block(self) -> BlockSpec:
        self.schedule  # noqa: B018  # made for its own checks, which then name the key
        return self

    @property
    def schedule(self) -> ProposalSchedule:
        """The block as the runtime takes it."""
        return ProposalSchedule(count=self.count, sigma=self.sigma, rho=self.rho, multiplier=self.multiplier)


Block = TypeVar("Block", "BlockSpec", "SensorSpec")


def _plan_kind(plan: object) -> str:
    return "per-step" if isinstance(plan, (list, tuple)) else "constant"


def _is_for_every_step(block: Block) -> Block:
    if block.steps != 1:
        raise ValueError(f"`steps` must stand in a list of blocks, got {block.steps} for the only one")
    return block


def _one_per_step(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    steps = sum(block.steps for block in blocks)
    if steps > _MOST_BLOCKS:  # before a short file fills the memory
        raise ValueError(f"a list must have blocks for at most {_MOST_BLOCKS:,} steps, got {steps:,}")
    return tuple(one for block in blocks for one in [block.model_copy(update={"steps": 1})] * block.steps)


BlockPlan = Annotated[
    Annotated[BlockSpec, AfterValidator(_is_for_every_step), Tag("constant")]
    | Annotated[tuple[BlockSpec, ...], AfterValidator(_one_per_step), Tag("per-step")],
    Discriminator(_plan_kind),
]


class SensorSpec(Part):
    """The noise of each observation that is read."""

    sigma: NamedScales = Field(
        description="Standard deviation of the noise, in the units of the observation. A list has one number per "
        "coordinate. A table has one number per named slice, such as `{ goal_lidar = 0.05 }`. A coordinate with 0, or "
        "in no slice, has no noise and is outside of the claim."
    )
    readers: Literal["all", "controller"] = Field(
        default="all",
        description='Who reads the noisy observation. With "controller", verifier and fallbacks read the true one. The '
        "certificate says so.",
    )
    steps: int = Field(
        default=1,
        ge=1,
        exclude=True,  # a plan is kept with one block per step, however it was written
        description="In a list: for how many steps in a row this one is used.",
    )

    @model_validator(mode="after")
    def _is_one_block(self) -> SensorSpec:
        self.schedule  # noqa: B018  # made for its own checks, which then name the key
        return self

    @property
    def schedule(self) -> ProposalSchedule:
        """The block as the runtime takes it."""
        return ProposalSchedule(count=1, sigma=self.sigma)


SensorPlan = Annotated[
    Annotated[SensorSpec, AfterValidator(_is_for_every_step), Tag("constant")]
    | Annotated[tuple[SensorSpec, ...], AfterValidator(_one_per_step), Tag("per-step")],
    Discriminator(_plan_kind),
]


class ScheduleSpec(Part):
    """A named schedule: for each stage with noise, its plan of blocks over time."""

    name: Name = Field(description="Second part of the name of its arms. Names an arm in tables and folders.")
    action: BlockPlan | None = Field(
        default=None,
        description="Block of the action stage: one for every step, or a list for the steps of the horizon. The "
        "proposals are noisy actions. It is for Box spaces.",
    )
    score: BlockPlan | None = Field(
        default=None,
        description="Block of the score stage, as that of the action stage. A proposal is the action with the greatest "
        "noisy score. It is for Discrete and MultiDiscrete spaces.",
    )
    sensor: SensorPlan | None = Field(
        default=None,
        description="Noise of the observations that are read: one for every step, or a list for the steps of the "
        "horizon. All of a list have the same readers.",
    )

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        content: dict[str, object] = handler(self)
        # A stage that is not there leaves no key, so that it does not change the hash of a schedule without it.
        return {key: value for key, value in content.items() if value is not None}

    @model_validator(mode="after")
    def _has_stages_that_fit(self) -> ScheduleSpec:
        self.plan  # noqa: B018  # made for its own checks
        return self

    @cached_property  # every batch asks for it
    def plan(self) -> Schedule:
        """The schedule as the runtime takes it."""
        sensors = self.sensor if isinstance(self.sensor, tuple) else (self.sensor,)
        readers = {"all" if sensor is None else sensor.readers for sensor in sensors}
        if len(readers) > 1:
            raise ValueError("`sensor` must have the same `readers` at every step, got both")
        return Schedule(
            action=_blocks(self.action),
            score=_blocks(self.score),
            sensor=_blocks(self.sensor),
            readers="controller" if readers == {"controller"} else "all",
        )


def _blocks(plan: BlockSpec | SensorSpec | tuple[BlockSpec | SensorSpec, ...] | None) -> Blocks | None:
    if isinstance(plan, tuple):
        return tuple(block.schedule for block in plan)
    return None if plan is None else plan.schedule


class VerifierSpec(Reference):
    """The verifier, which says what actions may run."""

    make: Annotated[str, _named("verifier")] = Field(
        description='The verifier: the short name of a shipped one, or "module:callable" of your own.'
    )


class CandidateMapSpec(Reference):
    """A map from the proposals of a block to the candidates."""

    make: Annotated[str, _named("candidate map")] = Field(
        description='The map: the short name of a shipped one, or "module:callable" of your own.'
    )


class FallbackSpec(Reference):
    """An action to take if the verifier accepts no proposal."""

    name: Name = Field(description="Names the fallback in traces and reports.")
    make: Annotated[str, _named("fallback")] = Field(
        description='The fallback: the short name of a shipped one, or "module:callable" of your own.'
    )
    unverified: bool = Field(
        default=False,
        description="Whether the fallback runs without the consent of the verifier. The certificate says so.",
    )


class ProgramSpec(Part):
    """What turns proposals into an action: candidate map, verifier and fallbacks."""

    verifier: VerifierSpec = Field(description="Says for each candidate whether it may run.")
    fallbacks: tuple[FallbackSpec, ...] = Field(
        default=(),
        description="Asked in this order if the verifier accepts no candidate. If it accepts none of them either, the "
        "trial ends as a failure.",
    )
    clip_center: bool = Field(
        default=True, description="Whether the center is clipped to the action box. If not, the certificate says so."
    )
    candidate_map: CandidateMapSpec | None = Field(
        default=None,
        description="Makes the candidates from the proposals. Without it, each proposal is clipped to the action box.",
    )


class AttackSpec(Part):
    """A shift rule under a limit. Attacks are tried and reported. The claim rests on the nominal trials alone."""

    name: Name = Field(description=f"Names the attack in tables and folders: anything but `{NOMINAL}`.")
    rule: Annotated[str, _named("attack")] = Field(
        description='The shift rule: the short name of a shipped one, or "module:callable" of your own.'
    )
    arguments: Arguments = Field(default_factory=dict, description=_ARGUMENTS)
    stage: Literal["sensor", "action", "score", "all"] | None = Field(
        default=None,
        json_schema_extra=OPTIONAL,
        description='The stage that it shifts. With "all" it shifts every stage that has noise. Without it, the action '
        "or score stage, or the sensor stage if it is the only one.",
    )
    budget: float | None = Field(
        default=None,
        ge=0.0,
        description="Greatest Euclidean size of all shifts of a trial together, in the units of the stage. If `sigma` "
        "is a list or table, it is the size along the coordinate with the least noise.",
    )
    energy: float | None = Field(
        default=None,
        ge=0.0,
        description="Greatest energy of a trial, the sum of κ‖Δ‖²/σ² over its stages and steps. Give it instead of "
        "`budget` if the attack shifts all stages, or if the block of a schedule differs from step to step.",
    )

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        content: dict[str, object] = handler(self)
        if self.stage is None:  # so that the key changes the hash of attacks that give it only
            content.pop("stage", None)
        return content

    @model_validator(mode="after")
    def _has_one_limit(self) -> AttackSpec:
        if (self.budget is None) == (self.energy is None):
            raise ValueError("give `budget` or `energy`, and only one of them")
        if self.stage == "all" and self.budget is not None:
            raise ValueError('give `energy` with stage = "all", because stages have different units')
        if self.name == NOMINAL:
            raise ValueError(f"the name {NOMINAL!r} is for trials without shift")
        return self


Limit = float | tuple[float, float]


class FamilySpec(Part):
    """A named disturbance: the center of a stage is shifted by features times theta, for every theta in a box."""

    name: Name = Field(description="Names the disturbance and its certificates.")
    features: Annotated[str, _named("features")] = Field(
        description="What one unit of theta adds to the center of a step: the short name of shipped features, or "
        '"module:callable" of your own, which is called with the arguments and must give a function.'
    )
    arguments: Arguments = Field(default_factory=dict, description=f"For code of your own. {_ARGUMENTS}")
    stage: Literal["sensor", "action", "score"] | None = Field(
        default=None,
        description="The stage that it shifts. Without it, the action or score stage, or the sensor stage if it is the "
        "only one. The sensor stage takes constant features only.",
    )
    box: tuple[Limit, ...] = Field(
        min_length=1,
        description="The values of theta, for each of its coordinates: `0.02` for at most 0.02 in either direction, or "
        "`[0.0, 0.3]` for a least and a greatest value.",
    )
    most: tuple[float, ...] | tuple[tuple[float, ...], ...] | None = Field(
        default=None,
        description="The greatest absolute value of a feature, for each coordinate of theta. Features beyond it are "
        "cut off, so that the energy is bounded on every path. Constant features need none. Features of your own need "
        "a table: for each coordinate of the stage a list with one number per coordinate of theta.",
    )
    coordinates: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        default=None,
        description="With shipped features: which coordinate of the stage each coordinate of theta shifts, from 0. "
        "Without it, all of them in order.",
    )
    cells: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        default=None,
        description="How many cells the net over the box has along each coordinate. Without it, so many that a cell "
        "reaches 1/32 in units of mu from its center.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> FamilySpec:
        size = len(self.box)
        for low, high in self.limits:
            if not low <= high:
                raise ValueError(f"`box` must have the least value first and no negative size, got {[low, high]}")
        for key, given in (("coordinates", self.coordinates), ("cells", self.cells)):
            if given is not None and len(given) != size:
                raise ValueError(f"`{key}` must have one entry for each of the {size} coordinates of `box`")
        if self.coordinates is not None and len(set(self.coordinates)) != size:
            raise ValueError(f"`coordinates` must be different ones, got {list(self.coordinates)}")
        if self.is_own and self.coordinates is not None:
            raise ValueError("`coordinates` must be given with shipped features only: your own make a whole matrix")
        if not self.is_own and self.arguments:
            raise ValueError(f"`arguments` must be given to features of your own only, got {self.arguments!r}")
        self._has_bounds()
        return self

    def _has_bounds(self) -> None:
        rows = self.most or ()
        numbers = [value for row in rows for value in (row if isinstance(row, tuple) else (row,))]
        if self.features == "constant":
            if self.most is not None:
                raise ValueError("`most` must not be given with constant features, which are 1")
        elif self.most is None:
            raise ValueError(
                "`most` must say the greatest absolute value of each feature, because only then the energy is bounded "
                "on every path. For an action box of [-1, 1] it is 1 for `center` and 2 for `lag`"
            )
        elif not all(0.0 <= value < math.inf for value in numbers):
            raise ValueError(f"`most` must be finite and at least 0, got {numbers}")
        elif self.is_own != all(isinstance(row, tuple) and len(row) == len(self.box) for row in rows):
            raise ValueError(
                f"`most` must be a list of lists with {len(self.box)} numbers each for features of your own, and a "
                "list of numbers for shipped ones"
            )
        elif not self.is_own and len(rows) != len(self.box):
            raise ValueError(f"`most` must have one number for each of the {len(self.box)} coordinates of `box`")

    @property
    def is_own(self) -> bool:
        """Whether the features are code of the user's own."""
        return ":" in self.features

    @property
    def limits(self) -> tuple[tuple[float, float], ...]:
        """Least and greatest value of each coordinate of theta."""
        return tuple(part if isinstance(part, tuple) else (-part, part) for part in self.box)

    def places(self, width: int) -> tuple[int, ...]:
        """Return the coordinate of the stage that each coordinate of theta shifts, given how many the stage has."""
        if self.coordinates is None and len(self.box) != width:
            raise ValueError(
                f"`families` {self.name!r} must have a `box` with one entry for each of the {width} coordinates of the "
                f"stage, or `coordinates`, got {len(self.box)}"
            )
        places = tuple(range(width)) if self.coordinates is None else self.coordinates
        if not max(places) < width:
            raise ValueError(f"`families` {self.name!r} must have `coordinates` below {width}, got {max(places)}")
        return places


class EventSpec(Part):
    """An event: what counts as success."""

    name: Name = Field(description="Names the claim and its certificate.")
    event: Annotated[str, _named("event")] = Field(
        description='The event: the short name of a shipped one, or "module:callable" of your own.'
    )
    arguments: Arguments = Field(
        default_factory=dict,
        description=f"{_ARGUMENTS} A shipped event has the `horizon` of the protocol unless a shorter one is given.",
    )
    events: tuple[EventSpec, ...] = Field(
        default=(), description=f"For `{ALL_OF}` only: the events that must all hold."
    )
    digest: Digest | None = Field(
        default=None,
        description="For code of your own: the only digest of that code that is accepted. `ccfs run` prints it. "
        "Without it, the run records the digest, but the protocol's hash does not cover the code.",
    )

    @model_validator(mode="after")
    def _has_its_own_keys(self) -> EventSpec:
        if self.digest is not None and ":" not in self.event and self.event != IN_MEMORY:
            raise ValueError(f"`digest` must be given for code of your own only, got event = {self.event!r}")
        if self.event != ALL_OF and self.events:
            raise ValueError(f"`events` must be given for event = {ALL_OF!r} only, got event = {self.event!r}")
        if self.event == ALL_OF and self.arguments:
            raise ValueError(f"`arguments` must be given to the `events` of an {ALL_OF}, got {self.arguments!r}")
        return self

    def horizons(self, horizon: int) -> tuple[str, ...]:
        """Return the numbers of steps that the event looks at, in a protocol of this horizon, as texts."""
        if self.event == ALL_OF:
            return tuple(dict.fromkeys(text for part in self.events for text in part.horizons(horizon)))
        return (str(horizon if ":" in self.event else self.arguments.get("horizon", horizon)),)


class StopSpec(Part):
    """What ends a trial before the horizon."""

    goal: bool = Field(default=False, description="Whether a trial ends at its first goal.")
    cost: bool = Field(default=False, description="Whether a trial ends at its first positive cost.")


class StrataSpec(Part):
    """How the stratified bound bets. The defaults are written into the protocol, so that its hash covers them."""

    step: float = Field(
        default=0.02,
        ge=1e-4,
        description="The sizes of shift 0, `step`, 2 `step`, ... are tested in turn until the first that fails. The "
        "last one that passed is certified.",
    )
    last: float = Field(default=6.0, gt=0.0, le=100.0, description="No greater size is tested.")
    prior: tuple[PositiveNumber, PositiveNumber] = Field(
        default=(0.25, 0.25),
        description="Successes and failures that are added to those of a seed when its probability is guessed. The "
        "guess decides how much the bound gains, never whether it holds.",
    )
    cap: float = Field(default=0.98, ge=0.5, lt=1.0, description="The guess is kept between 1 - `cap` and `cap`.")

    @model_validator(mode="after")
    def _has_few_sizes(self) -> StrataSpec:
        if not self.last / self.step <= _MOST_SIZES:
            raise ValueError(f"`last` must be at most {_MOST_SIZES} steps of {self.step}, got {self.last}")
        return self

    @property
    def grid(self) -> tuple[float, ...]:
        """The sizes of shift, each the double nearest to its decimal."""
        step = Fraction(repr(self.step))
        return tuple(float(i * step) for i in range(int(Fraction(repr(self.last)) / step) + 1))


class ClaimSpec(Part):
    """The statistical claim: what is to be certified, and how counts become a lower bound."""

    delta: float = Field(
        gt=0.0,
        lt=0.5,
        description="Failure probability of all claims of the family together: 0.001 for 99.9% confidence.",
    )
    target: float = Field(
        gt=0.0, lt=1.0, description="The probability that the event must keep under shift, such as 0.95 for 95%."
    )
    bound: Literal["hoeffding", "cohort", "clopper-pearson", "anytime", "stratified"] = Field(
        description="How counts become a lower bound on the nominal probability. The stratified bound goes with "
        "`trials.draws`, for a cohort and for an initial law."
    )
    strata: StrataSpec | None = Field(
        default=None,
        validate_default=True,
        description='With bound = "stratified": the sizes of shift that are tested, and how it bets.',
    )
    family: int | None = Field(
        default=None,
        ge=1,
        description="How many claims share `delta`. Without it, the claims of this protocol. Raise it if this protocol "
        "is one of several that you will choose among.",
    )
    stop_at_budget: float | None = Field(
        default=None,
        ge=0.0,
        description='With bound = "anytime", or with bound = "stratified" on an initial law: stop an arm as soon as '
        "all its events are certified for this shift budget.",
    )

    @field_validator("strata")
    @classmethod
    def _fills_in_strata(cls, strata: StrataSpec | None, info: ValidationInfo) -> StrataSpec | None:
        """Write the defaults of the stratified bound into the hashed protocol."""
        return StrataSpec() if strata is None and info.data.get("bound") == "stratified" else strata

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        content: dict[str, object] = handler(self)
        if self.strata is None:  # so that the key changes the hash of protocols that give it only
            content.pop("strata", None)
        return content

    @model_validator(mode="after")
    def _has_keys_of_its_bound(self) -> ClaimSpec:
        if self.stop_at_budget is not None and self.bound not in ("anytime", "stratified"):
            raise ValueError(f"`stop_at_budget` needs bound = 'anytime' or 'stratified', got {self.bound!r}")
        if (self.strata is not None) != (self.bound == "stratified"):
            raise ValueError(f"`strata` must be given with bound = 'stratified' only, got {self.bound!r}")
        return self
