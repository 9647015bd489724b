"""Validate the trials of a protocol: a cohort of reset seeds or an initial law, and what was used before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from pydantic import (
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from ccfs.files.documents import Table

__all__ = ["DrawsSpec", "Part", "SeedRange", "TrialsSpec", "UsedProtocol", "UsedRange", "spent", "used_seeds"]

_MOST_TRIALS = 1_000_000
_SEEDS = 2**32  # Safety-Gymnasium takes no greater seed
Seed = Annotated[int, Field(ge=0, lt=_SEEDS)]
Interval = tuple[int, int]  # first, and one past the last


class Part(Table):
    """A table of a protocol file."""


class _Range(Part):
    first: Seed = Field(description="The first seed.")
    count: int

    @field_validator("count", check_fields=False)
    @classmethod
    def _ends_in_range(cls, count: int, info: ValidationInfo) -> int:
        first = info.data.get("first", 0)
        if not first + count <= _SEEDS:
            raise ValueError(f"`first` + `count` must be at most {_SEEDS}, got {first} + {count}")
        return count


class SeedRange(_Range):
    """A range of reset seeds."""

    count: int = Field(ge=1, le=_MOST_TRIALS, description="How many seeds there are from there on.")


class UsedRange(_Range):
    """A range of spent seeds, up to all there are. Nothing lists its members one by one."""

    count: int = Field(ge=1, le=_SEEDS, description="How many seeds there are from there on.")


def _kind(used: object) -> str:
    if isinstance(used, UsedProtocol) or (isinstance(used, dict) and not used.keys().isdisjoint(("protocol", "seeds"))):
        return "UsedProtocol"
    return "UsedRange" if isinstance(used, (dict, UsedRange)) else "constrained-int"


UsedSeeds = Annotated[Seed, Tag("constrained-int")] | Annotated[UsedRange, Tag("UsedRange")]


class UsedProtocol(Part):
    """A protocol whose results were seen before: its hash, and the reset seeds of its trials."""

    protocol: str = Field(pattern=r"^[0-9a-f]{64}$", description="The hash of a protocol whose results were seen.")
    seeds: tuple[Annotated[UsedSeeds, Discriminator(_kind)], ...] = Field(
        default=(), description="The reset seeds of its trials, single ones and ranges. A cohort needs them."
    )


Used = Annotated[UsedSeeds | Annotated[UsedProtocol, Tag("UsedProtocol")], Discriminator(_kind)]


class DrawsSpec(Part):
    """Several trials at each reset seed, with noise of their own: a stratum."""

    pilot: int = Field(
        default=0,
        ge=0,
        le=_MOST_TRIALS,
        description="The first trials at each reset seed. They only steer the bound and are not counted in it. 0 is "
        "often best, because the bound holds out some of the counted trials for the same purpose.",
    )
    main: int = Field(ge=1, le=_MOST_TRIALS, description="The trials at each reset seed that are counted, after these.")

    @property
    def total(self) -> int:
        """Trials at each reset seed."""
        return self.pilot + self.main


class TrialsSpec(Part):
    """Where the trials start, and how many there are. Give `cohort` or `initial_law`, not both."""

    cohort: tuple[Seed, ...] | SeedRange | None = Field(
        default=None,
        description="A fixed list of reset seeds, one trial each unless `draws` says more. The claim is about their "
        "average.",
    )
    initial_law: int | None = Field(
        default=None,
        ge=1,
        le=_MOST_TRIALS,
        description="Number of independent draws of the reset seed. The claim is about the law that they come from.",
    )
    draws: DrawsSpec | None = Field(
        default=None,
        description='With bound = "stratified": how many trials there are at each reset seed. Each has its own noise.',
    )
    used_before: tuple[Used, ...] = Field(
        default=(),
        description="What training or tuning has seen: reset seeds, ranges of them, and protocols that were run. A "
        "cohort must hold none of these seeds. Noise needs no such check: its keys contain the protocol's hash.",
    )

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        content: dict[str, object] = handler(self)
        if self.draws is None:  # so that the key changes the hash of protocols that give it only
            content.pop("draws", None)
        return content

    @model_validator(mode="after")
    def _is_one_of_both(self) -> TrialsSpec:
        if (self.cohort is None) == (self.initial_law is None):
            raise ValueError("give `cohort` (fixed reset seeds) or `initial_law` (a number of independent draws)")
        if isinstance(self.cohort, tuple) and not (self.cohort and len(set(self.cohort)) == len(self.cohort)):
            raise ValueError("`cohort` must hold at least one reset seed and none twice")
        if not self.count <= _MOST_TRIALS:
            raise ValueError(f"`draws` must leave at most {_MOST_TRIALS} trials in all, got {self.count}")
        if self.cohort is not None:
            # A hash alone does not tell which seeds were used, so nothing could be checked.
            for used in self.used_before:
                if isinstance(used, UsedProtocol) and not used.seeds:
                    raise ValueError(
                        f"`used_before` must give the `seeds` of protocol {used.protocol[:16]}: a cohort may hold none "
                        "of them, and `run` reads them from its run folder"
                    )
        held = self.cohort if isinstance(self.cohort, tuple) else [self.cohort] if self.cohort else []
        shared = [_text(part) for part in _overlaps(_intervals(held), _intervals(spent(self.used_before)))]
        if shared:
            more = f" and {len(shared) - 5} more" if len(shared) > 5 else ""
            raise ValueError(f"`cohort` must be disjoint from `used_before`, both hold {', '.join(shared[:5])}{more}")
        return self

    @property
    def seeds(self) -> Sequence[int] | None:
        """The reset seeds of a cohort."""
        if isinstance(self.cohort, SeedRange):
            return range(self.cohort.first, self.cohort.first + self.cohort.count)
        return self.cohort

    @property
    def strata(self) -> int:
        """The greatest number of reset seeds of one arm."""
        return self.initial_law if self.initial_law is not None else len(self.seeds or ())

    @property
    def per_seed(self) -> int:
        """Trials at each reset seed. Those of one seed follow each other, the pilot first."""
        return 1 if self.draws is None else self.draws.total

    @property
    def count(self) -> int:
        """The greatest number of trials of one arm."""
        return self.strata * self.per_seed


def spent(used: Iterable[int | UsedRange | UsedProtocol]) -> Iterator[int | UsedRange]:
    """Yield every used seed and range of seeds, including those of used protocols."""
    for part in used:
        if isinstance(part, UsedProtocol):
            yield from part.seeds
        else:
            yield part


def _intervals(seeds: Iterable[int | _Range]) -> list[Interval]:
    """Return the fewest intervals that hold the same seeds, in order."""
    pairs = ((part, part + 1) if isinstance(part, int) else (part.first, part.first + part.count) for part in seeds)
    # Intervals and not sets of seeds: a used range may hold all 2^32 of them.
    merged: list[Interval] = []
    for first, end in sorted(pairs):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return merged


def _overlaps(left: list[Interval], right: list[Interval]) -> Iterator[Interval]:
    """Yield the intersections of two ordered lists of disjoint intervals."""
    i = j = 0
    while i < len(left) and j < len(right):
        first, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if first < end:
            yield first, end
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1


def used_seeds(seeds: Iterable[int]) -> list[int | dict[str, int]]:
    """Return seeds in the form of `used_before`: as few single seeds and ranges as possible, in order."""
    merged = _intervals(seeds)
    return [first if end == first + 1 else {"first": first, "count": end - first} for first, end in merged]


def _text(part: Interval) -> str:
    first, end = part
    return str(first) if end == first + 1 else f"{first} to {end - 1}"
