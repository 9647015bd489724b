"""Certificates for trajectory events: from success counts to the shift energy under which the event stays likely."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.binomial import bonferroni
from ccfs.certificates.bounds import Bound
from ccfs.certificates.documents import CertificateError, decode_float, encode_float
from ccfs.certificates.gaussian import event_lower
from ccfs.certificates.rounding import fraction_upper
from ccfs.certificates.schedule import (
    ObservationLayout,
    ProposalSchedule,
    Schedule,
    Stage,
    as_schedule,
    kappa,
    rho_for_multiplier,
)
from ccfs.certificates.shifts import (
    PREMISES,
    ShiftCertificate,
    as_plan,
    ball,
    event_name,
    schedule_entries,
    stored_schedule,
)
from ccfs.certificates.validated import exact, lower_float, normal_quantile, precision

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
    return None if mu is None else ball(mu, Fraction(multiplier) / Fraction(scale) ** 2)


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
class TrajectoryCertificate(ShiftCertificate):
    """What was counted, what was assumed, and the shift energy under which the event keeps its target probability.

    The claim: with probability at least 1 - delta over the nominal sampling, for all `family` certificates together,
    the event keeps at least the probability `target` under every causal shift rule whose energy is at most mu squared
    on every path. A certificate whose `mu` is None claims nothing.

    Assumes: what `premises` says.
    """

    FORMAT: ClassVar[str] = FORMAT

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
    def sampling_premise(self) -> str:
        """How the trials must have been sampled, in words."""
        return self.bound.premise

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

    def lower_at_mu(self, mu: float) -> float:
        """Return the certified event probability under shifts of size `mu`, rounded down. `mu` may be infinite."""
        if mu == math.inf:
            return 1.0 if self.p_lower == 1.0 else 0.0
        return event_lower(self.p_lower, mu)

    def _entries(self) -> dict[str, object]:
        return {
            "event": self.event,
            "successes": self.successes,
            "trials": self.trials,
            "delta": self.delta,
            "family": self.family,
            "target": self.target,
            "bound": self.bound.value,
            "schedule": schedule_entries(self.schedule),
            "p_lower": self.p_lower,
            "mu": encode_float(self.mu),
        }

    @classmethod
    def _taken(cls, document: dict[str, object]) -> TrajectoryCertificate:
        return cls(
            event=event_name(document.pop("event")),
            successes=checks.count("successes", document.pop("successes")),
            trials=checks.count("trials", document.pop("trials"), minimum=1),
            delta=checks.delta(document.pop("delta")),
            family=checks.count("family", document.pop("family"), minimum=1),
            target=checks.open_unit("target", document.pop("target")),
            bound=Bound(document.pop("bound")),
            schedule=stored_schedule(document.pop("schedule")),
            p_lower=checks.probability("p_lower", document.pop("p_lower")),
            mu=decode_float("mu", document.pop("mu")),
        )


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
    plan = as_plan(schedule)
    p_lower = rule.lower(hits, total, delta=bonferroni(delta, claims))
    return TrajectoryCertificate(
        event=event_name(event),
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
