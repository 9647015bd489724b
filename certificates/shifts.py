"""What every certificate about shifts has in common: the ellipsoid that it covers, its premises and its document."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import ClassVar, TypeAlias, TypeVar

import numpy as np

from ccfs.certificates import checks
from ccfs.certificates.documents import CertificateError, DocumentError, encode_float, read_document
from ccfs.certificates.gaussian import Divergences, divergences
from ccfs.certificates.rounding import fraction_upper
from ccfs.certificates.schedule import NamedSigma, PerCoordinate, ProposalSchedule, Schedule, Stage, as_schedule
from ccfs.certificates.validated import exact, lower_float, precision, upper_float

__all__ = [
    "PREMISES",
    "ShiftCertificate",
    "Shifts",
    "as_plan",
    "ball",
    "event_name",
    "main_size",
    "schedule_entries",
    "stored_schedule",
]

Shifts: TypeAlias = "float | Sequence[float] | Mapping[str, float]"
"""A Euclidean budget of one stage: of all its shifts together, one per coordinate, or one per named slice."""

_FIXED = (
    "Program, schedule, event, target, delta, the number of claims and the plan of the trials "
    "were fixed before sampling."
)
_CAUSAL = (
    "Controller, verifier, fallbacks, environment and event are the same with and without shift. "
    "None of them reads the shift or a random generator that follows it."
)
_GAUSSIAN = (
    "The noise is taken for exact independent Gaussian draws. It was computed by the pseudo-random generator Philox "
    "and the ziggurat method and rounded to doubles."
)
_SENSOR = (
    "A sensor error is added to the observation where the sensor noise is added: after any rounding, and before "
    "anybody reads it. Costs, rewards and events are those of the environment itself."
)
_CONTROLLER_ONLY = (
    "Only the controller reads the noisy observation. Verifier and fallbacks are taken to read the true one, so errors "
    "of what they read are outside of the claim."
)

# What every claim about trials takes for granted. A premise that is added here stands on every certificate, in the
# threat model and in the report. Besides these a certificate has the premise of its bound. A changed sentence needs a
# new version of the format.
PREMISES = (_FIXED, _CAUSAL, _GAUSSIAN)

Kind = TypeVar("Kind", bound="ShiftCertificate")


class ShiftCertificate(ABC):
    """A claim about every shift of size `mu` under a schedule, and how it is written down.

    A subclass is a frozen dataclass with the fields `schedule` and `mu` among its own. Its `mu` is None if it claims
    nothing.
    """

    __slots__ = ()

    FORMAT: ClassVar[str]
    schedule: Schedule
    mu: float | None

    @property
    @abstractmethod
    def sampling_premise(self) -> str:
        """How the trials must have been sampled, in words."""

    @abstractmethod
    def lower_at_mu(self, mu: float) -> float:
        """Return the certified event probability under shifts of size `mu`, rounded down. `mu` may be infinite."""

    @abstractmethod
    def recheck(self) -> None:
        """Recompute every number from the counts. Raise CertificateError if one differs."""

    @abstractmethod
    def _entries(self) -> dict[str, object]:
        """Return the entries of its fields for JSON."""

    @classmethod
    @abstractmethod
    def _taken(cls: type[Kind], document: dict[str, object]) -> Kind:
        """Take the entries of its fields out of a document and return the certificate, checked entry by entry."""

    @property
    def is_certified(self) -> bool:
        """Whether the target probability is certified at all."""
        return self.mu is not None

    @property
    def premises(self) -> tuple[str, ...]:
        """What the claim takes for granted: how the trials were sampled, what holds for every claim, and the stages."""
        stages: list[str] = []
        if self.schedule.sensor is not None:
            stages.append(_SENSOR)
            if self.schedule.readers == "controller":
                stages.append(_CONTROLLER_ONLY)
        silent = (_without_noise(stage, self.schedule.blocks(stage)) for stage in self.schedule.stages)
        return (self.sampling_premise, *PREMISES, *stages, *(text for text in silent if text))

    @property
    def charges(self) -> dict[str, tuple[PerCoordinate, ...]]:
        """Energy of a shift by one, per stage and step, rounded up, with one entry for a constant schedule.

        An entry is one number, one per coordinate, or one per named slice. It is infinite where there is no noise. The
        certificate covers the ellipsoid in which charge times squared shift, summed over stages, steps and coordinates,
        is at most mu^2.
        """
        return {stage.value: tuple(block.charges for block in self.schedule.blocks(stage)) for stage in self._stages}

    @property
    def charge(self) -> float:
        """Greatest energy of a shift of length one in the stage of `budget`, rounded up."""
        return fraction_upper(self._greatest_charge(self.schedule.main))

    @property
    def budgets(self) -> dict[str, float | None]:
        """Per stage, the total Euclidean size of its shifts that is covered if no other stage is shifted.

        It is the radius of the largest ball inside the ellipsoid, over the coordinates that have noise, rounded down.
        """
        return {stage.value: self._ball(self._greatest_charge(stage)) for stage in self._stages}

    @property
    def budget(self) -> float | None:
        """The budget of the deciding stage, or of the sensor stage if it is the only one."""
        return self.budgets[self.schedule.main.value]

    @property
    def axes(self) -> dict[str, PerCoordinate | None]:
        """Per stage, how far each coordinate or named slice may be shifted if nothing else is, rounded down.

        These are the half-axes of the ellipsoid. A coordinate without noise has 0.
        """
        return {stage.value: self._axes(stage) for stage in self._stages}

    @property
    def divergences(self) -> Divergences | None:
        """How far shifts of the certified size can move the law of the public trace. None if nothing is certified."""
        return None if self.mu is None else divergences(self.mu)

    def lower_at(
        self,
        budget: float | None = None,
        *,
        sensor: Shifts | None = None,
        action: Shifts | None = None,
        score: Shifts | None = None,
    ) -> float:
        """Return the certified event probability under shifts of these Euclidean budgets together, rounded down.

        Args, Raises: as `size_of`.
        """
        return self.lower_at_mu(self.size_of(budget, sensor=sensor, action=action, score=score))

    def size_of(
        self,
        budget: float | None = None,
        *,
        sensor: Shifts | None = None,
        action: Shifts | None = None,
        score: Shifts | None = None,
    ) -> float:
        """Return the mu of shifts of these Euclidean budgets together, rounded up. It is infinite beyond all doubles.

        Args:
            budget: total Euclidean size of the shifts of the stage that `budget` is about.
            sensor: that of the sensor stage. Instead of one number it may be one per coordinate, or a mapping from
                named slices to numbers: {"goal_lidar": 0.02}.
            action: that of the action stage, as one number or one per coordinate.
            score: that of the score stage.

        Raises:
            TypeError: an argument has the wrong kind.
            ValueError: a budget is negative or not finite, a stage has no noise, or a coordinate without noise has a
                budget.
        """
        given = {"sensor": sensor, "action": action, "score": score}
        found = {Stage(name): value for name, value in given.items() if value is not None}
        if budget is not None:
            if self.schedule.main in found:
                raise ValueError(f"`budget` must not be given beside `{self.schedule.main.value}`: they are the same.")
            found[self.schedule.main] = checks.nonnegative("budget", budget)
        if not found:
            raise ValueError("`budget` must be given, or the budget of a stage, such as `sensor`.")
        terms = [term for stage, value in found.items() for term in self._terms(stage, value)]
        with precision():
            # A larger mu gives a smaller probability, so this rounding is on the safe side too.
            if len(terms) == 1:
                return upper_float(exact(terms[0][1]) * exact(terms[0][0]).sqrt())
            squares = sum((charge * Fraction(size) ** 2 for charge, size in terms), Fraction(0))
            return upper_float(exact(squares).sqrt())

    def curve(self, points: int = 101, budget: float | None = None) -> tuple[tuple[float, float], ...]:
        """Return (budget, certified probability) pairs from 0 to `budget`, by default twice the certified one."""
        number = checks.count("points", points, minimum=2)
        reach = 2.0 * (self.budget or 0.0) if budget is None else checks.nonnegative("budget", budget)
        # Nothing or everything is certified. Then any finite scale shows the curve.
        if not 0.0 < reach < math.inf:
            reach = 1.0 / math.sqrt(self.charge)
        return tuple((at, self.lower_at(at)) for at in (reach * i / (number - 1) for i in range(number)))

    def to_entries(self) -> dict[str, object]:
        """Return the entries of the certificate for JSON, after a recheck. `from_entries` loses nothing of them."""
        self.recheck()
        return {**self._entries(), **self._derived()}

    def to_json(self) -> str:
        """Return the certificate as a JSON document, after a recheck. `from_json` loses nothing of it."""
        return json.dumps({"format": self.FORMAT, **self.to_entries()}, indent=2, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls: type[Kind], text: str) -> Kind:
        """Read a certificate. Refuse another format or version, and a missing, extra or inconsistent entry."""
        try:
            document = read_document(text, cls.FORMAT)
        except DocumentError as error:
            raise CertificateError(f"the certificate {error}") from error
        del document["format"]
        return cls.from_entries(document)

    @classmethod
    def from_entries(cls: type[Kind], entries: Mapping[str, object]) -> Kind:
        """Read what `to_entries` gave. Refuse a missing, extra or inconsistent entry."""
        document = dict(entries)
        kind = cls.FORMAT.split("/")[1]
        try:
            certificate = cls._taken(document)
            # Stored for readers only, and compared below with what the counts give.
            stored = {name: document.pop(name) for name in ("premises", "budget", "budgets", "axes", "charges")}
            if "divergences" in document:  # certificates of earlier releases have none
                stored["divergences"] = document.pop("divergences")
        except (KeyError, TypeError, ValueError) as error:
            raise CertificateError(f"not a valid {kind} certificate: {type(error).__name__}: {error}") from error
        if document:
            raise CertificateError(f"unknown entries on the certificate: {', '.join(sorted(document))}.")
        certificate.recheck()
        for name, value in certificate._derived().items():
            if name in stored and stored[name] != value:
                raise CertificateError(
                    f"`{name}` is {stored[name]!r} on the certificate but {value!r} from its counts."
                )
        return certificate

    def _derived(self) -> dict[str, object]:
        """Return the entries that follow from the others. They are stored for readers only."""
        return {
            "premises": list(self.premises),
            "budget": encode_float(self.budget),
            "budgets": {name: encode_float(value) for name, value in self.budgets.items()},
            "axes": {name: _entry(value) for name, value in self.axes.items()},
            "charges": {name: [_entry(value) for value in steps] for name, steps in self.charges.items()},
            **({} if self.divergences is None else {"divergences": _divergence_entries(self.divergences)}),
        }

    @property
    def _stages(self) -> tuple[Stage, ...]:
        return self.schedule.stages

    def _greatest_charge(self, stage: Stage) -> Fraction:
        return max(block.charge_exact for block in self.schedule.blocks(stage))

    def _ball(self, charge: Fraction) -> float | None:
        return None if self.mu is None else ball(self.mu, charge)

    def _axes(self, stage: Stage) -> PerCoordinate | None:
        if self.mu is None:
            return None
        blocks = self.schedule.blocks(stage)
        keys = _coordinates(blocks)
        if not keys:
            return self._ball(self._greatest_charge(stage))
        greatest = {key: _charge_over_time(stage, blocks, key) for key in keys}
        axes = {key: 0.0 if charge is None else ball(self.mu, charge) for key, charge in greatest.items()}
        named = {key: value for key, value in axes.items() if isinstance(key, str)}
        return named or tuple(axes.values())

    def _terms(self, stage: Stage, budget: Shifts) -> list[tuple[Fraction, float]]:
        """Return pairs of charge and size, whose sum of charge times size squared bounds the energy of a stage."""
        blocks, name = self.schedule.blocks(stage), stage.value
        known = _coordinates(blocks)
        if isinstance(budget, Mapping):
            if not any(isinstance(key, str) for key in known):
                raise ValueError(f"`{name}` must be one number, because its noise has no names, got {dict(budget)}.")
            sizes: dict[int | str, float] = {
                key: checks.nonnegative(f"{name}[{key!r}]", value) for key, value in budget.items()
            }
        elif isinstance(budget, (Sequence, np.ndarray)):
            sizes = {i: checks.nonnegative(f"{name}[{i}]", value) for i, value in enumerate(budget)}
            if known and len(sizes) != len(known):
                raise ValueError(
                    f"`{name}` must have one budget for each of {len(known)} coordinates, got {len(sizes)}."
                )
        else:
            return [(self._greatest_charge(stage), checks.nonnegative(name, budget))]
        terms = []
        for key, size in sizes.items():
            charge = _charge_over_time(stage, blocks, key)
            if charge is not None:
                terms.append((charge, size))
            elif size > 0.0:
                raise ValueError(f"`{name}[{key!r}]` must be 0, because there is no noise there, got {size}.")
        return terms or [(Fraction(1), 0.0)]


def _divergence_entries(found: Divergences) -> dict[str, object]:
    numbers = {
        "total_variation": found.total_variation,
        "kl": found.kl,
        "chi_square": found.chi_square,
        "renyi_2": found.renyi(2.0),
    }
    return {name: encode_float(value) for name, value in numbers.items()}


def event_name(event: object) -> str:
    """Return the name of an event. Refuse what is no string."""
    if not isinstance(event, str):
        raise TypeError(f"`event` must be a string, got {event!r}.")
    return event


def as_plan(schedule: Schedule | ProposalSchedule | Sequence[ProposalSchedule]) -> Schedule:
    """Return a schedule in which a plan of a single step is a block for every step, which charges the same."""
    given = as_schedule(schedule)
    made: dict[Stage, ProposalSchedule | tuple[ProposalSchedule, ...]] = {}
    for stage in given.stages:
        blocks = given.blocks(stage)
        made[stage] = blocks[0] if len(blocks) == 1 else blocks
    return replace(given, action=made.get(Stage.ACTION), score=made.get(Stage.SCORE), sensor=made.get(Stage.SENSOR))


def schedule_entries(schedule: Schedule) -> dict[str, object]:
    """Return a schedule for JSON. A stage without noise is null."""
    stages: dict[str, object] = {stage.value: None for stage in Stage}
    for stage in schedule.stages:
        stages[stage.value] = [
            {"count": block.count, "sigma": _entry(block.sigma), "rho": block.rho} for block in schedule.blocks(stage)
        ]
    return {**stages, "readers": schedule.readers}


def stored_schedule(entries: object) -> Schedule:
    """Return what `schedule_entries` wrote."""
    names = {*(stage.value for stage in Stage), "readers"}
    if not isinstance(entries, dict) or set(entries) != names:
        raise TypeError(f"`schedule` must be an object with exactly {', '.join(sorted(names))}.")
    stages = {stage.value: _stored_blocks(entries[stage.value]) for stage in Stage}
    made = Schedule(**stages, readers=entries["readers"])
    if schedule_entries(made) != entries:
        raise ValueError("`schedule` must be written as this release writes it.")
    return made


def _stored_blocks(entries: object) -> ProposalSchedule | tuple[ProposalSchedule, ...] | None:
    if entries is None:
        return None
    names = {"count", "sigma", "rho"}
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and set(entry) == names for entry in entries):
        raise TypeError("`schedule` must have a list of objects with exactly count, sigma and rho for each stage.")
    # A null would be taken for a correlation that was not given, which a document always gives.
    blocks = tuple(ProposalSchedule(**entry | {"rho": checks.finite("rho", entry["rho"])}) for entry in entries)
    return blocks[0] if len(blocks) == 1 else blocks


def _entry(value: PerCoordinate | None) -> object:
    """Return what JSON holds for one number, one per coordinate, or one per name. It may be absent or infinite."""
    if isinstance(value, Mapping):
        return {name: encode_float(part) for name, part in value.items()}
    return [encode_float(part) for part in value] if isinstance(value, tuple) else encode_float(value)


def _coordinates(blocks: Sequence[ProposalSchedule]) -> list[int | str]:
    """Return the places or names that blocks tell apart. There are none if every block has one scale for all."""
    names = sorted({name for block in blocks if isinstance(block.sigma, NamedSigma) for name in block.sigma})
    if names:
        return [*names]
    return [*range(max((len(block.sigma) for block in blocks if isinstance(block.sigma, tuple)), default=0))]


def _charge_over_time(stage: Stage, blocks: Sequence[ProposalSchedule], key: int | str) -> Fraction | None:
    """Return the greatest charge of a coordinate or named slice over the steps, None if a step has no noise there."""
    found = [_charge_at(stage, block, key) for block in blocks]
    known = [charge for charge in found if charge is not None]
    return max(known) if len(known) == len(found) else None


def _charge_at(stage: Stage, block: ProposalSchedule, key: int | str) -> Fraction | None:
    sigma: float | None = None
    if isinstance(block.sigma, float):
        sigma = block.sigma  # of every coordinate, named elsewhere or not
    elif isinstance(block.sigma, tuple) and isinstance(key, int) and key < len(block.sigma):
        sigma = block.sigma[key]
    elif isinstance(block.sigma, NamedSigma) and isinstance(key, str):
        sigma = block.sigma.get(key, 0.0)
    if sigma is None:
        raise ValueError(f"`{stage.value}` must be one number, or given as its `sigma` is, {block.sigma}, got {key!r}.")
    return block.charge_of(sigma) if sigma > 0.0 else None


def _without_noise(stage: Stage, blocks: Sequence[ProposalSchedule]) -> str | None:
    """Return the premise about coordinates without noise, None if every coordinate has noise at every step."""
    keys = _coordinates(blocks)
    if not keys:
        return None
    noisy = [key for key in keys if _charge_over_time(stage, blocks, key) is not None]
    if isinstance(keys[0], str):
        shown = ", ".join(str(key) for key in noisy) or "no slice at every step"
        return f"Of the observation, only these slices have noise: {shown}. Errors elsewhere are outside of the claim."
    silent = [str(key) for key in keys if key not in noisy]
    if not silent:
        return None
    places = f"{stage.value} coordinate{'s' * (len(silent) > 1)} {', '.join(silent)}"
    return f"There is no noise on {places}, counted from 0. Shifts there are outside of the claim."


def ball(mu: float, charge: Fraction) -> float:
    """Return the length of a shift of energy mu squared, rounded down."""
    if mu in (0.0, math.inf):
        return mu
    with precision():
        return max(lower_float(exact(mu) / exact(charge).sqrt()), 0.0)


def main_size(schedule: Schedule, budget: float) -> float:
    """Return the mu of shifts of this Euclidean budget in the main stage of a schedule, rounded up."""
    charge = max(block.charge_exact for block in schedule.blocks(schedule.main))
    with precision():
        return upper_float(exact(checks.nonnegative("budget", budget)) * exact(charge).sqrt())
