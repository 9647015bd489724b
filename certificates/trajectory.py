"""Certificates for trajectory events: from success counts to the shift energy under which the event stays likely."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.binomial import bonferroni
from ccfs.certificates.bounds import Bound
from ccfs.certificates.documents import CertificateError, DocumentError, decode_float, encode_float, read_document
from ccfs.certificates.gaussian import event_lower
from ccfs.certificates.rounding import fraction_upper
from ccfs.certificates.schedule import (
    NamedSigma,
    ObservationLayout,
    PerCoordinate,
    ProposalSchedule,
    Schedule,
    Stage,
    as_schedule,
    kappa,
    rho_for_multiplier,
)
from ccfs.certificates.validated import exact, lower_float, normal_quantile, precision, upper_float

__all__ = [
    "PREMISES",
    "Bound",
    "CertificateError",
    "TrajectoryCertificate",
    "budget",
    "certify_event",
    "energy",
    "kappa",
    "mu_certified",
    "rho_for_multiplier",
]

FORMAT = "ccfs/trajectory/2"

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


def mu_certified(p_lower: float, target: float) -> float | None:
    """Return the greatest mu at which `event_lower` still gives the target.

    It is Phi^-1(p_lower) - Phi^-1(target), as in Algorithm 2 (alg:ccfs-trajectory).

    Args:
        p_lower: valid lower bound on the nominal event probability, p_L in the paper.
        target: probability that the event must keep, q in the paper, in (0, 1).

    Returns:
        mu, rounded down. None when p_lower < target, because the target is then not certified even without a shift.
        0.0 says that it is certified without shift only.

    Raises:
        TypeError: an argument is not a real number.
        ValueError: an argument is out of range.

    >>> mu_certified(0.5, 0.5), mu_certified(0.4, 0.5)
    (0.0, None)
    """
    lower = checks.probability("p_lower", p_lower)
    level = checks.open_unit("target", target)
    if lower < level:
        return None
    if lower == level:
        return 0.0
    # The two laws have the same null sets, so a certain event stays certain.
    if lower == 1.0:
        return math.inf
    with precision():
        return max(lower_float(normal_quantile(exact(lower)) - normal_quantile(exact(level))), 0.0)


def budget(p_lower: float, target: float, *, sigma: float, kappa: float) -> float | None:
    """Return the certified Euclidean shift budget B = sigma mu / sqrt(kappa).

    Theorem 14 (thm:adaptive-trajectory) with a constant schedule: if the squared norms of a causal shift sequence add
    up to at most B^2 on every path, the event keeps at least the probability `target`.

    Assumes: as `certify_event`.

    Args:
        p_lower: valid lower bound on the nominal event probability.
        target: probability that the event must keep, q, in (0, 1).
        sigma: standard deviation of a proposal, in the units of the budget.
        kappa: energy multiplier of a block, at least 1.

    Returns:
        B, rounded down. None when p_lower < target.

    Raises:
        TypeError: an argument is not a real number.
        ValueError: an argument is out of range.

    >>> f"{budget(0.6938, 0.5, sigma=0.2, kappa=1.05):.4f}"
    '0.0989'
    """
    scale = checks.positive("sigma", sigma)
    multiplier = checks.positive("kappa", kappa)
    if not multiplier >= 1.0:
        raise ValueError(
            f"`kappa` must be at least 1, got {multiplier}. `ccfs.certificates.trajectory.kappa` gives it."
        )
    mu = mu_certified(p_lower, target)
    return None if mu is None else _ball(mu, Fraction(multiplier) / Fraction(scale) ** 2)


def energy(
    shifts: NDArray[np.float64] | Mapping[str, NDArray[np.float64]],
    schedule: Schedule | ProposalSchedule | Sequence[ProposalSchedule],
    *,
    layout: ObservationLayout | None = None,
) -> float:
    """Return the energy of a shift sequence, the sum of kappa_t shift_t,i^2 / sigma_t,i^2 over stages and coordinates.

    This is the left side of the condition of Theorem 14 (thm:adaptive-trajectory).

    Args:
        shifts: array [steps, dim], in the units of the centers of the main stage. For several stages a mapping from
            the stage's name to such an array: {"sensor": ..., "action": ...}.
        schedule: the schedule, or one block for all steps, or one per step.
        layout: where the named slices of an observation are, if `sigma` of the sensor stage has names.

    Returns:
        The energy, rounded up. It has no unit and is compared with mu squared. It is infinite if a coordinate without
        noise is shifted.

    Raises:
        TypeError: `shifts` is not an array of doubles with two dimensions.
        ValueError: a shift is not finite, the number of blocks does not fit, or a stage has no noise.

    >>> energy(np.array([[0.2, 0.0], [0.0, 0.2]]), ProposalSchedule(count=1, sigma=0.2))
    2.0
    """
    plan = as_schedule(schedule)
    tables = shifts if isinstance(shifts, Mapping) else {plan.main.value: shifts}
    # Exact sums, because doubles could round an energy above the limit down to it.
    total = Fraction(0)
    for name, values in tables.items():
        table, stage = _table(values), _stage(name)
        blocks = plan.blocks(stage)
        if len(blocks) not in (1, len(table)):
            raise ValueError(
                f"`schedule` must be one schedule or one per step, got {len(blocks)} for {len(table)} steps."
            )
        resolved = [block.resolved(table.shape[1], layout) for block in blocks]
        for step, row in enumerate(table):
            cost = block_energy(resolved[step % len(resolved)], row.tolist())
            if cost is None:
                return math.inf
            total += cost
    return fraction_upper(total)


def block_energy(block: ProposalSchedule, shift: Sequence[float]) -> Fraction | None:
    """Return the exact energy of one shift, or None if a coordinate without noise is shifted.

    Assumes: the block is resolved for the width of the shift, and the shift is finite.
    """
    if isinstance(block.sigma, float):
        return block.charge_exact * sum((Fraction(value) ** 2 for value in shift), Fraction(0))
    scales = block.scales(len(shift)).tolist()
    if any(value != 0.0 and scale == 0.0 for value, scale in zip(shift, scales, strict=True)):
        return None
    return sum(
        (block.charge_of(scale) * Fraction(value) ** 2 for value, scale in zip(shift, scales, strict=True) if value),
        Fraction(0),
    )


def _table(shifts: object) -> NDArray[np.float64]:
    table = np.asarray(shifts)
    if table.ndim != 2 or table.dtype.kind != "f" or table.dtype.itemsize > 8:
        raise TypeError(f"`shifts` must be an array [steps, dim] of doubles, got {table.dtype} of shape {table.shape}.")
    if not np.isfinite(table).all():
        raise ValueError("`shifts` must be finite, got nan or infinity. Refuse such a shift before charging it.")
    return table.astype(np.float64)


def _stage(name: object) -> Stage:
    try:
        return Stage(name)
    except ValueError:
        accepted = ", ".join(stage.value for stage in Stage)
        raise ValueError(f"`stage` must be one of {accepted}, got {name!r}.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryCertificate:
    """What was counted, what was assumed, and the shift energy under which the event keeps its target probability.

    The claim: with probability at least 1 - delta over the nominal sampling, for all `family` certificates together,
    the event keeps at least the probability `target` under every causal shift rule whose energy is at most mu squared
    on every path. A certificate whose `mu` is None claims nothing.

    Assumes: what `premises` says.
    """

    event: str
    successes: int
    trials: int
    delta: float
    family: int
    target: float
    bound: Bound
    schedule: Schedule
    p_lower: float
    mu: float | None

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
        return (self.bound.premise, *PREMISES, *stages, *(text for text in silent if text))

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

    def lower_at(
        self,
        budget: float | None = None,
        *,
        sensor: Shifts | None = None,
        action: Shifts | None = None,
        score: Shifts | None = None,
    ) -> float:
        """Return the certified event probability under shifts of these Euclidean budgets together, rounded down.

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
                mu = upper_float(exact(terms[0][1]) * exact(terms[0][0]).sqrt())
            else:
                squares = sum((charge * Fraction(size) ** 2 for charge, size in terms), Fraction(0))
                mu = upper_float(exact(squares).sqrt())
        if mu == math.inf:
            return 1.0 if self.p_lower == 1.0 else 0.0
        return event_lower(self.p_lower, mu)

    def curve(self, points: int = 101, budget: float | None = None) -> tuple[tuple[float, float], ...]:
        """Return (budget, certified probability) pairs from 0 to `budget`, by default twice the certified one."""
        number = checks.count("points", points, minimum=2)
        reach = 2.0 * (self.budget or 0.0) if budget is None else checks.nonnegative("budget", budget)
        # Nothing or everything is certified. Then any finite scale shows the curve.
        if not 0.0 < reach < math.inf:
            reach = 1.0 / math.sqrt(self.charge)
        return tuple((at, self.lower_at(at)) for at in (reach * i / (number - 1) for i in range(number)))

    def recheck(self) -> None:
        """Recompute every number from the counts. Raise CertificateError if one differs."""
        again = certify_event(
            self.successes,
            self.trials,
            delta=self.delta,
            family=self.family,
            target=self.target,
            schedule=self.schedule,
            bound=self.bound,
            event=self.event,
        )
        for name in ("p_lower", "mu"):
            stored, derived = getattr(self, name), getattr(again, name)
            if stored != derived:
                raise CertificateError(f"`{name}` is {stored} on the certificate but {derived} from its counts.")

    def to_entries(self) -> dict[str, object]:
        """Return the entries of the certificate for JSON, after a recheck. `from_entries` loses nothing of them."""
        self.recheck()
        return {
            "event": self.event,
            "successes": self.successes,
            "trials": self.trials,
            "delta": self.delta,
            "family": self.family,
            "target": self.target,
            "bound": self.bound.value,
            "schedule": _schedule_entries(self.schedule),
            "p_lower": self.p_lower,
            "mu": encode_float(self.mu),
            **self._derived(),
        }

    def to_json(self) -> str:
        """Return the certificate as a JSON document, after a recheck. `from_json` loses nothing of it."""
        return json.dumps({"format": FORMAT, **self.to_entries()}, indent=2, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> TrajectoryCertificate:
        """Read a certificate. Refuse another format or version, and a missing, extra or inconsistent entry."""
        try:
            document = read_document(text, FORMAT)
        except DocumentError as error:
            raise CertificateError(f"the certificate {error}") from error
        del document["format"]
        return cls.from_entries(document)

    @classmethod
    def from_entries(cls, entries: Mapping[str, object]) -> TrajectoryCertificate:
        """Read what `to_entries` gave. Refuse a missing, extra or inconsistent entry."""
        document = dict(entries)
        try:
            certificate = cls(
                event=_event_name(document.pop("event")),
                successes=checks.count("successes", document.pop("successes")),
                trials=checks.count("trials", document.pop("trials"), minimum=1),
                delta=checks.delta(document.pop("delta")),
                family=checks.count("family", document.pop("family"), minimum=1),
                target=checks.open_unit("target", document.pop("target")),
                bound=Bound(document.pop("bound")),
                schedule=_stored_schedule(document.pop("schedule")),
                p_lower=checks.probability("p_lower", document.pop("p_lower")),
                mu=decode_float("mu", document.pop("mu")),
            )
            # Stored for readers only, and compared below with what the counts give.
            stored = {name: document.pop(name) for name in ("premises", "budget", "budgets", "axes", "charges")}
        except (KeyError, TypeError, ValueError) as error:
            raise CertificateError(f"not a valid trajectory certificate: {type(error).__name__}: {error}") from error
        if document:
            raise CertificateError(f"unknown entries on the certificate: {', '.join(sorted(document))}.")
        certificate.recheck()
        derived = certificate._derived()
        for name, value in derived.items():
            if stored[name] != value:
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
        }

    @property
    def _stages(self) -> tuple[Stage, ...]:
        return self.schedule.stages

    def _greatest_charge(self, stage: Stage) -> Fraction:
        return max(block.charge_exact for block in self.schedule.blocks(stage))

    def _ball(self, charge: Fraction) -> float | None:
        return None if self.mu is None else _ball(self.mu, charge)

    def _axes(self, stage: Stage) -> PerCoordinate | None:
        if self.mu is None:
            return None
        blocks = self.schedule.blocks(stage)
        keys = _coordinates(blocks)
        if not keys:
            return self._ball(self._greatest_charge(stage))
        greatest = {key: _charge_over_time(stage, blocks, key) for key in keys}
        axes = {key: 0.0 if charge is None else _ball(self.mu, charge) for key, charge in greatest.items()}
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


def certify_event(
    successes: int,
    trials: int,
    *,
    delta: float,
    family: int,
    target: float,
    schedule: Schedule | ProposalSchedule | Sequence[ProposalSchedule],
    bound: Bound | str,
    event: str = "event",
) -> TrajectoryCertificate:
    """Certify a trajectory event from its nominal success count, as Algorithm 2 (alg:ccfs-trajectory) does.

    Theorem 14 (thm:adaptive-trajectory): one causal program runs with fresh Gaussian blocks. The shifts are chosen
    before each block, and their energy is at most mu^2 on every path. Then an event of nominal probability p keeps at
    least the probability Phi(Phi^-1(p) - mu). The lower bound on p fails with probability at most delta / family.

    The proof uses of a block only that it is Gaussian around a center that the past fixes, with a shift that the past
    fixes. So the blocks of several stages of a step count as blocks at successive times, each whitened with its own
    covariance, and the energies of all stages add up.

    Assumes: controller, verifier, fallbacks, dynamics, event, schedule and stopping rule are the same with and without
    shift and were fixed before sampling. The trials were sampled as the bound's premise says. `family` counts every
    claim of the study.

    Args:
        successes: nominal trials in the event.
        trials: nominal trials, M in the paper.
        delta: failure probability of the whole family.
        family: number of claims that share `delta`.
        target: probability that the event must keep, q in the paper, in (0, 1).
        schedule: the blocks of each stage. One block for every step, or one per step of the horizon, are those of the
            action stage.
        bound: "hoeffding", "cohort", "clopper-pearson" or "anytime".
        event: the event's name, for readers.

    Returns:
        The certificate. Its `p_lower`, `mu` and `budget` are rounded down. `mu` is None if the target is not certified.

    Raises:
        TypeError: an argument has the wrong kind.
        ValueError: an argument is out of range, or the rule is unknown.

    >>> certificate = certify_event(
    ...     256, 256, delta=0.001, family=6, target=0.9, schedule=ProposalSchedule(count=1, sigma=0.2), bound="cohort"
    ... )
    >>> f"{certificate.p_lower:.4f} {certificate.budget:.3f}"
    '0.9666 0.110'
    """
    hits, total = checks.tally(successes, trials)
    claims = checks.count("family", family, minimum=1)
    try:
        rule = Bound(bound)
    except ValueError:
        accepted = ", ".join(repr(entry.value) for entry in Bound)
        raise ValueError(f"`bound` must be one of {accepted}, got {bound!r}.") from None
    level = checks.open_unit("target", target)
    plan = _shortest(as_schedule(schedule))
    p_lower = rule.lower(hits, total, delta=bonferroni(delta, claims))
    return TrajectoryCertificate(
        event=_event_name(event),
        successes=hits,
        trials=total,
        delta=checks.delta(delta),
        family=claims,
        target=level,
        bound=rule,
        schedule=plan,
        p_lower=p_lower,
        mu=mu_certified(p_lower, level),
    )


def _event_name(event: object) -> str:
    if not isinstance(event, str):
        raise TypeError(f"`event` must be a string, got {event!r}.")
    return event


def _shortest(schedule: Schedule) -> Schedule:
    """Return a schedule whose plans of a single step are blocks for every step, which charge the same."""
    made: dict[Stage, ProposalSchedule | tuple[ProposalSchedule, ...]] = {}
    for stage in schedule.stages:
        blocks = schedule.blocks(stage)
        made[stage] = blocks[0] if len(blocks) == 1 else blocks
    return replace(schedule, action=made.get(Stage.ACTION), score=made.get(Stage.SCORE), sensor=made.get(Stage.SENSOR))


def _schedule_entries(schedule: Schedule) -> dict[str, object]:
    """Return a schedule for JSON. A stage without noise is null."""
    stages: dict[str, object] = {stage.value: None for stage in Stage}
    for stage in schedule.stages:
        stages[stage.value] = [
            {"count": block.count, "sigma": _entry(block.sigma), "rho": block.rho} for block in schedule.blocks(stage)
        ]
    return {**stages, "readers": schedule.readers}


def _stored_schedule(entries: object) -> Schedule:
    """Return what `_schedule_entries` wrote."""
    names = {*(stage.value for stage in Stage), "readers"}
    if not isinstance(entries, dict) or set(entries) != names:
        raise TypeError(f"`schedule` must be an object with exactly {', '.join(sorted(names))}.")
    stages = {stage.value: _stored_blocks(entries[stage.value]) for stage in Stage}
    made = Schedule(**stages, readers=entries["readers"])
    if _schedule_entries(made) != entries:
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


def _ball(mu: float, charge: Fraction) -> float:
    if mu in (0.0, math.inf):
        return mu
    with precision():
        return max(lower_float(exact(mu) / exact(charge).sqrt()), 0.0)
