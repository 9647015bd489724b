"""Certificates for trajectory events: from success counts to the shift energy under which the event stays likely."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.binomial import bonferroni
from ccfs.certificates.bounds import Bound
from ccfs.certificates.documents import CertificateError, DocumentError, decode_float, encode_float, read_document
from ccfs.certificates.gaussian import event_lower
from ccfs.certificates.rounding import fraction_upper
from ccfs.certificates.schedule import ProposalSchedule, as_schedule, kappa, rho_for_multiplier
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

FORMAT = "ccfs/trajectory/1"
_DERIVED = ("premises", "budget", "charges")

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


def energy(shifts: NDArray[np.float64], schedule: ProposalSchedule | Sequence[ProposalSchedule]) -> float:
    """Return the energy of a shift sequence, the sum of kappa_t |shift_t|^2 / sigma_t^2.

    This is the left side of the condition of Theorem 14 (thm:adaptive-trajectory).

    Args:
        shifts: array [steps, dim], in the units of the proposal centers.
        schedule: one schedule for all steps, or one per step.

    Returns:
        The energy, rounded up. It has no unit and is compared with mu squared.

    Raises:
        TypeError: `shifts` is not an array of doubles with two dimensions.
        ValueError: a shift is not finite, or the number of schedules does not fit.

    >>> energy(np.array([[0.2, 0.0], [0.0, 0.2]]), ProposalSchedule(count=1, sigma=0.2))
    2.0
    """
    table = np.asarray(shifts)
    if table.ndim != 2 or table.dtype.kind != "f" or table.dtype.itemsize > 8:
        raise TypeError(f"`shifts` must be an array [steps, dim] of doubles, got {table.dtype} of shape {table.shape}.")
    if not np.isfinite(table).all():
        raise ValueError("`shifts` must be finite, got nan or infinity. Refuse such a shift before charging it.")
    schedules = _schedules(schedule)
    if len(schedules) not in (1, len(table)):
        raise ValueError(
            f"`schedule` must be one schedule or one per step, got {len(schedules)} for {len(table)} steps."
        )
    charges = [entry.charge_exact for entry in schedules]
    # Exact sums, because doubles could round an energy above the limit down to it.
    total = Fraction(0)
    for step, row in enumerate(table):
        norm_squared = sum((Fraction(float(value)) ** 2 for value in row), Fraction(0))
        total += charges[step % len(charges)] * norm_squared
    return fraction_upper(total)


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
    schedule: tuple[ProposalSchedule, ...]
    p_lower: float
    mu: float | None

    @property
    def is_certified(self) -> bool:
        """Whether the target probability is certified at all."""
        return self.mu is not None

    @property
    def premises(self) -> tuple[str, ...]:
        """What the claim takes for granted: how the trials were sampled, and what holds for every claim."""
        return (self.bound.premise, *PREMISES)

    @property
    def charges(self) -> tuple[float, ...]:
        """Energy of a shift of length one per step, rounded up, with one entry for a constant schedule.

        The certificate covers the ellipsoid sum_t charges[t] |shift_t|^2 <= mu^2.
        """
        return tuple(entry.charge for entry in self.schedule)

    @property
    def budget(self) -> float | None:
        """Radius of the largest Euclidean ball inside the ellipsoid of shift sequences, rounded down."""
        return None if self.mu is None else _ball(self.mu, self._greatest_charge())

    def lower_at(self, budget: float) -> float:
        """Return the certified event probability under shifts of Euclidean budget `budget`, rounded down."""
        size = checks.nonnegative("budget", budget)
        with precision():
            # A larger mu gives a smaller probability, so this rounding is on the safe side too.
            mu = upper_float(exact(size) * exact(self._greatest_charge()).sqrt())
        if mu == math.inf:
            return 1.0 if self.p_lower == 1.0 else 0.0
        return event_lower(self.p_lower, mu)

    def curve(self, points: int = 101, budget: float | None = None) -> tuple[tuple[float, float], ...]:
        """Return (budget, certified probability) pairs from 0 to `budget`, by default twice the certified one."""
        number = checks.count("points", points, minimum=2)
        reach = 2.0 * (self.budget or 0.0) if budget is None else checks.nonnegative("budget", budget)
        # Nothing or everything is certified. Then any finite scale shows the curve.
        if not 0.0 < reach < math.inf:
            reach = 1.0 / math.sqrt(max(self.charges))
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
            **asdict(self),
            "schedule": [{"count": block.count, "sigma": block.sigma, "rho": block.rho} for block in self.schedule],
            "mu": encode_float(self.mu),
            "bound": self.bound.value,
            "premises": list(self.premises),
            "budget": encode_float(self.budget),
            "charges": list(self.charges),
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
                schedule=_stored_schedules(document.pop("schedule")),
                p_lower=checks.probability("p_lower", document.pop("p_lower")),
                mu=decode_float("mu", document.pop("mu")),
            )
            # Stored for readers only, and compared below with what the counts give.
            stored = {name: document.pop(name) for name in _DERIVED}
        except (KeyError, TypeError, ValueError) as error:
            raise CertificateError(f"not a valid trajectory certificate: {type(error).__name__}: {error}") from error
        if document:
            raise CertificateError(f"unknown entries on the certificate: {', '.join(sorted(document))}.")
        certificate.recheck()
        derived = {
            "premises": list(certificate.premises),
            "budget": encode_float(certificate.budget),
            "charges": list(certificate.charges),
        }
        for name, value in derived.items():
            if stored[name] != value:
                raise CertificateError(
                    f"`{name}` is {stored[name]!r} on the certificate but {value!r} from its counts."
                )
        return certificate

    def _greatest_charge(self) -> Fraction:
        return max(entry.charge_exact for entry in self.schedule)


def certify_event(
    successes: int,
    trials: int,
    *,
    delta: float,
    family: int,
    target: float,
    schedule: ProposalSchedule | Sequence[ProposalSchedule],
    bound: Bound | str,
    event: str = "event",
) -> TrajectoryCertificate:
    """Certify a trajectory event from its nominal success count, as Algorithm 2 (alg:ccfs-trajectory) does.

    Theorem 14 (thm:adaptive-trajectory): one causal program runs with fresh Gaussian blocks. The shifts are chosen
    before each block, and their energy is at most mu^2 on every path. Then an event of nominal probability p keeps at
    least the probability Phi(Phi^-1(p) - mu). The lower bound on p fails with probability at most delta / family.

    Assumes: controller, verifier, fallbacks, dynamics, event, schedule and stopping rule are the same with and without
    shift and were fixed before sampling. The trials were sampled as the bound's premise says. `family` counts every
    claim of the study.

    Args:
        successes: nominal trials in the event.
        trials: nominal trials, M in the paper.
        delta: failure probability of the whole family.
        family: number of claims that share `delta`.
        target: probability that the event must keep, q in the paper, in (0, 1).
        schedule: one block for every step, or one per step of the horizon.
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
    schedules = _schedules(schedule)
    p_lower = rule.lower(hits, total, delta=bonferroni(delta, claims))
    return TrajectoryCertificate(
        event=_event_name(event),
        successes=hits,
        trials=total,
        delta=checks.delta(delta),
        family=claims,
        target=level,
        bound=rule,
        schedule=schedules,
        p_lower=p_lower,
        mu=mu_certified(p_lower, level),
    )


def _event_name(event: object) -> str:
    if not isinstance(event, str):
        raise TypeError(f"`event` must be a string, got {event!r}.")
    return event


def _schedules(schedule: ProposalSchedule | Sequence[ProposalSchedule]) -> tuple[ProposalSchedule, ...]:
    fixed = as_schedule(schedule)
    return (fixed,) if isinstance(fixed, ProposalSchedule) else fixed


def _stored_schedules(entries: object) -> tuple[ProposalSchedule, ...]:
    names = {"count", "sigma", "rho"}
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and set(entry) == names for entry in entries):
        raise TypeError("`schedule` must be a list of objects with exactly count, sigma and rho.")
    # A null would be taken for a correlation that was not given, which a document always gives.
    return _schedules([ProposalSchedule(**entry | {"rho": checks.finite("rho", entry["rho"])}) for entry in entries])


def _ball(mu: float, charge: Fraction) -> float:
    if mu in (0.0, math.inf):
        return mu
    with precision():
        return max(lower_float(exact(mu) / exact(charge).sqrt()), 0.0)
