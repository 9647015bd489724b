"""Certificates from several draws at each initial state: the adversary may move the noise, but not the layout.

One initial state with its draws is a stratum. Given stratum i, Theorem 14 holds with that stratum's own nominal
probability p_i. So under every shift of size mu the average probability of the event is at least

    theta(mu) = average of h_mu(p_i),   h_mu(p) = Phi(Phi^-1(p) - mu),

which is at least h_mu(average of the p_i), because h_mu is convex. The difference is large when some initial states
nearly always succeed and others nearly always fail.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from typing import ClassVar

import numpy as np
from flint import arb
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.binomial import bonferroni
from ccfs.certificates.bounds import Sampling
from ccfs.certificates.documents import CertificateError
from ccfs.certificates.gaussian import event_lower
from ccfs.certificates.schedule import ProposalSchedule, Schedule
from ccfs.certificates.shifts import ShiftCertificate, as_plan, event_name, schedule_entries, stored_schedule
from ccfs.certificates.validated import (
    exact,
    log_product,
    log_sum,
    lower_float,
    normal_cdf,
    normal_quantile,
    precision,
    upper_float,
)

__all__ = ["GRID", "StratifiedCertificate", "certify_strata", "stratified_evidence"]

FORMAT = "ccfs/strata/1"

# Sizes of shift that are tested in turn. Written down here, so that nobody who has seen the counts chooses them.
GRID = tuple(i / 50 for i in range(301))
PRIOR = (0.25, 0.25)
CAP = 0.98
# Strengths of the bet on a cohort, in units of sqrt(draws per stratum / strata). The p_i decide which of them gains
# most. The first mostly suffice.
_STRENGTHS = (8.0, 16.0, 4.0, 32.0, 2.0, 1.0)
_MOST = 0.95  # a failure multiplies the evidence by no less than 1 - 0.95
_LARGEST_BLOCK = 256  # so that the binomial coefficients stay small enough
_SPARE = tuple(i / 64 for i in range(1, 64))  # where a tangent may touch if the wanted one is too steep for a bet
# Bets on a law, as shares of the largest that keeps every factor positive.
_SHARES = (15 / 16, *(2.0**-j for j in range(1, 8)))
_TINY = 2.0**-900
# These sentences stand on certificates. A changed sentence needs a new version of the format.
_ANYTIME = "The run may have stopped after any complete initial state, also because of its results."
_FIXED_NUMBER = "The number of initial states was fixed before sampling."
_NO_PILOT = "Pilot trajectories are not among the counted ones."

Counts = Sequence[int] | NDArray[np.int64]


def stratified_evidence(
    pilot_successes: Counts,
    pilot_draws: int | Counts,
    main_successes: Counts,
    main_draws: int | Counts,
    *,
    mu: float,
    target: float,
    sampling: Sampling | str,
    prior: tuple[float, float] = PRIOR,
    cap: float = CAP,
) -> float:
    """Return the logarithm of the evidence against "the average probability under some shift of size mu is at most q".

    If theta(mu) <= q, the evidence is at least 1 / delta with probability at most delta. It is a mixture of products
    over the strata. What a stratum contributes is proved below. It holds for every p in [0, 1], so nothing need be
    known about the p_i.

    Notation. A stratum has k main draws, s of which succeed. Choose b of the k draws, and let c be any number in (0, 1)
    that depends on the pilot and on the other k - b draws only. The tangent of h_mu at c has the slope
    w = exp(mu Phi^-1(c) - mu^2 / 2) and lies below h_mu.

    Cohort. For a > 0 with a w c < 1 let

        e = exp(a b (h_mu(c) - q)) prod over the b draws X of (1 + a w (X - c)).

    Given the other draws, the mean of e is exp(a b (h_mu(c) - q)) (1 + a w (p - c))^b. From 1 + z <= exp(z) it is at
    most exp(a b (h_mu(c) + w (p - c) - q)), and so at most exp(A (h_mu(p) - q)) with A = a b. The average of e over all
    choices of the b draws has the same property, and depends on s alone. The strata are independent. With the same A
    for all m of them, the product of these averages has a mean of at most exp(A m (theta(mu) - q)) <= 1. So has any
    fixed mixture over A, and Markov's inequality ends the proof. Here b is at most half of k, and may depend on A.

    Law. Let b = 1 and f = h_mu(c) + w (X - c), averaged over the choices of the draw. Its mean is at most h_mu(p),
    given the initial state. Initial states are independent draws, so the f of different strata are independent with
    means of at most theta(mu). Every f is at least some number l that follows from the plan. For 0 < g < 1 / (q - l)
    the product of 1 + g (f - q) is positive, and its mean is at most 1. Given the earlier strata the next factor has a
    mean of at most 1. So by Ville's inequality the run may also stop after any complete stratum, if all have the same
    numbers of draws. (Otherwise l is known only when all strata are.)

    The rule for a cohort is NOT valid for a law. Given the initial states it tests their own average. A lucky choice
    of initial states is then taken for the law.

    Assumes: the premise of `sampling`. No main draw is also a pilot draw. `prior`, `cap` and the numbers of draws were
    fixed before the main draws, for a law before all draws.

    Args:
        pilot_successes: successes among the pilot draws of each stratum.
        pilot_draws: pilot draws of each stratum, or one number for all. 0 is usually best: the held-out main draws do
            what a pilot does.
        main_successes: successes among the main draws of each stratum.
        main_draws: main draws of each stratum, or one number for all, at least 1.
        mu: size of the shift, at least 0.
        target: the probability q that is to be kept, in (0, 1).
        sampling: "cohort" for a fixed list of initial states, "law" for independent draws of them.
        prior: c is (successes + prior[0]) / (draws + prior[0] + prior[1]) of pilot and held-out draws.
        cap: c is kept between 1 - cap and cap. A tangent close to 1 is so steep that one failure costs much.

    Returns:
        The logarithm, rounded down. Minus infinity if nothing can be said.

    Raises:
        TypeError: an argument has the wrong kind.
        ValueError: an argument is out of range, or the lists differ in length.

    >>> counts = [30] * 80 + [3] * 20
    >>> f"{stratified_evidence([0] * 100, 0, counts, 30, mu=1.0, target=0.5, sampling='cohort'):.1f}"
    '97.4'
    """
    strata = _strata(pilot_successes, pilot_draws, main_successes, main_draws)
    rule = _Rule(strata, Sampling.of(sampling), _prior(prior), _cap(cap))
    size, level = checks.nonnegative("mu", mu), checks.open_unit("target", target)
    with precision():
        evidence = rule.log_evidence(size, level)
        return -math.inf if evidence is None else lower_float(evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class StratifiedCertificate(ShiftCertificate):
    """What was counted at each initial state, and the shift energy under which the event keeps its target probability.

    The claim: with probability at least 1 - delta over the nominal sampling, for all `family` certificates together,
    the average probability of the event is at least `target` under every causal shift rule whose energy is at most mu
    squared on every path. A certificate whose `mu` is None claims nothing.

    Assumes: what `premises` says.
    """

    FORMAT: ClassVar[str] = FORMAT

    event: str
    pilot_successes: tuple[int, ...]
    pilot_draws: tuple[int, ...]
    main_successes: tuple[int, ...]
    main_draws: tuple[int, ...]
    delta: float
    family: int
    target: float
    sampling: Sampling
    schedule: Schedule
    grid: tuple[float, ...]
    prior: tuple[float, float]
    cap: float
    mu: float | None

    @property
    def strata(self) -> int:
        """Number of initial states."""
        return len(self.main_draws)

    @property
    def successes(self) -> int:
        """Nominal trials in the event, those of the pilot too. The bound counts those of `main_successes` alone."""
        return sum(self.pilot_successes) + sum(self.main_successes)

    @property
    def trials(self) -> int:
        """Nominal trials, those of the pilot too."""
        return sum(self.pilot_draws) + sum(self.main_draws)

    @property
    def may_stop(self) -> bool:
        """Whether the run may have stopped after any initial state."""
        # With unequal plans the bets on a law depend on all of them, so that its evidence is fair at the end only.
        is_one_plan = len(set(zip(self.pilot_draws, self.main_draws, strict=True))) == 1
        return self.sampling is Sampling.LAW and is_one_plan

    @property
    def p_lower(self) -> float:
        """Certified probability without shift: the target, or 0 if nothing is certified."""
        return self.lower_at_mu(0.0)

    @property
    def sampling_premise(self) -> str:
        """How the trials must have been sampled, in words."""
        number = _ANYTIME if self.may_stop else _FIXED_NUMBER
        return f"{self.sampling.premise} {number} {_NO_PILOT}"

    def lower_at_mu(self, mu: float) -> float:
        """Return the certified average probability under shifts of size `mu`, rounded down.

        It is the target up to the certified mu. From there on it is h_{mu - mu_0}(target) with the certified mu_0. By
        convexity the average of h_mu(p_i) = h_{mu - mu_0}(h_{mu_0}(p_i)) is at least h_{mu - mu_0} of the average. It
        is 0 if nothing is certified.
        """
        if self.mu is None or mu == math.inf:
            return 0.0
        size = checks.nonnegative("mu", mu)
        with precision():
            beyond = max(upper_float(exact(size) - exact(self.mu)), 0.0)
        return event_lower(self.target, beyond)

    def recheck(self) -> None:
        """Recompute mu from the counts. Raise CertificateError if it differs."""
        again = certify_strata(
            self.pilot_successes,
            self.pilot_draws,
            self.main_successes,
            self.main_draws,
            delta=self.delta,
            family=self.family,
            target=self.target,
            schedule=self.schedule,
            sampling=self.sampling,
            grid=self.grid,
            prior=self.prior,
            cap=self.cap,
            event=self.event,
        )
        if again.mu != self.mu:
            raise CertificateError(f"`mu` is {self.mu} on the certificate but {again.mu} from its counts.")

    def _entries(self) -> dict[str, object]:
        return {
            "event": self.event,
            "pilot_successes": list(self.pilot_successes),
            "pilot_draws": list(self.pilot_draws),
            "main_successes": list(self.main_successes),
            "main_draws": list(self.main_draws),
            "delta": self.delta,
            "family": self.family,
            "target": self.target,
            "sampling": self.sampling.value,
            "schedule": schedule_entries(self.schedule),
            "grid": list(self.grid),
            "prior": list(self.prior),
            "cap": self.cap,
            "mu": self.mu,
        }

    @classmethod
    def _taken(cls, document: dict[str, object]) -> StratifiedCertificate:
        columns = {name: _column(name, document.pop(name)) for name in _Strata.__dataclass_fields__}
        _strata(**columns)
        mu = document.pop("mu")
        return cls(
            **columns,
            event=event_name(document.pop("event")),
            delta=checks.delta(document.pop("delta")),
            family=checks.count("family", document.pop("family"), minimum=1),
            target=checks.open_unit("target", document.pop("target")),
            sampling=Sampling.of(document.pop("sampling")),
            schedule=stored_schedule(document.pop("schedule")),
            grid=_grid(_numbers("grid", document.pop("grid"))),
            prior=_prior(_numbers("prior", document.pop("prior"))),
            cap=_cap(document.pop("cap")),
            mu=None if mu is None else checks.nonnegative("mu", mu),
        )


def certify_strata(
    pilot_successes: Counts,
    pilot_draws: int | Counts,
    main_successes: Counts,
    main_draws: int | Counts,
    *,
    delta: float,
    family: int,
    target: float,
    schedule: Schedule | ProposalSchedule | Sequence[ProposalSchedule],
    sampling: Sampling | str,
    grid: Sequence[float] = GRID,
    prior: tuple[float, float] = PRIOR,
    cap: float = CAP,
    event: str = "event",
) -> StratifiedCertificate:
    """Certify an event from several nominal draws at each initial state.

    The sizes of `grid` are tested in turn, each at level delta / family, until `stratified_evidence` first stays below
    the logarithm of family / delta. The last size that passed is certified.

    Proof. theta(mu) falls when mu grows, so the sizes with theta(mu) <= target are an upper part of the grid. A wrong
    size can be certified only if the least of them passed, which has probability at most delta / family. So the number
    of sizes costs nothing, but they must be fixed in advance.

    Assumes: the premise of `sampling`, and what `certify_event` of `ccfs.certificates.trajectory` assumes. Do not take
    the better one of this bound and another after looking. Declare one before sampling, or let `family` count both.

    Args:
        pilot_successes, pilot_draws, main_successes, main_draws, target, sampling, prior, cap: as in
            `stratified_evidence`.
        delta: failure probability of the whole family.
        family: number of claims that share `delta`.
        schedule: as in `certify_event`.
        grid: sizes of shift to test, increasing, from at least 0. The default is 0, 0.02, ..., 6.
        event: the event's name, for readers.

    Returns:
        The certificate. Its `mu` is None if the first size of the grid did not pass.

    Raises:
        TypeError: an argument has the wrong kind.
        ValueError: an argument is out of range, the lists differ in length, or the grid does not increase.

    >>> counts = [30] * 190 + [3] * 66
    >>> block = ProposalSchedule(count=1, sigma=0.2)
    >>> certificate = certify_strata(
    ...     [0] * 256, 0, counts, 30, delta=0.001, family=6, target=0.5, schedule=block, sampling="cohort"
    ... )
    >>> certificate.mu
    1.76
    """
    both = (main_successes, pilot_successes)
    is_array = all(isinstance(counts, np.ndarray) for counts in both)
    if main_successes is pilot_successes or (is_array and np.shares_memory(*both)):
        raise ValueError("`main_successes` must be counts of other draws than `pilot_successes`, got the same list.")
    strata = _strata(pilot_successes, pilot_draws, main_successes, main_draws)
    claims = checks.count("family", family, minimum=1)
    level, share = checks.open_unit("target", target), bonferroni(delta, claims)
    plan = as_plan(schedule)
    rule = _Rule(strata, Sampling.of(sampling), _prior(prior), _cap(cap))
    sizes = _grid(grid)
    return StratifiedCertificate(
        event=event_name(event),
        pilot_successes=strata.pilot_successes,
        pilot_draws=strata.pilot_draws,
        main_successes=strata.main_successes,
        main_draws=strata.main_draws,
        delta=checks.delta(delta),
        family=claims,
        target=level,
        sampling=rule.sampling,
        schedule=plan,
        grid=sizes,
        prior=rule.prior,
        cap=rule.cap,
        mu=rule.last_rejected(sizes, level, share),
    )


@dataclass(frozen=True, slots=True)
class _Strata:
    """The counts, one entry per stratum."""

    pilot_successes: tuple[int, ...]
    pilot_draws: tuple[int, ...]
    main_successes: tuple[int, ...]
    main_draws: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Tangent:
    """The tangent of h_mu at `at`: its value and its slope there."""

    at: float
    height: arb
    slope: arb


class _Rule:
    """The test of one size of shift, for fixed counts."""

    def __init__(self, strata: _Strata, sampling: Sampling, prior: tuple[float, float], cap: float) -> None:
        self.sampling, self.prior, self.cap = sampling, prior, cap
        self._total = len(strata.main_draws)
        self._mean_draws = sum(strata.main_draws) / self._total
        # Strata of one plan (pilot draws, main draws) share all tables. Those with equal counts share an entry.
        outcomes = zip(*(getattr(strata, name) for name in _Strata.__dataclass_fields__), strict=True)
        self._plans: dict[tuple[int, int], Counter[tuple[int, int]]] = {}
        for pilot, pilot_draws, main, main_draws in outcomes:
            self._plans.setdefault((pilot_draws, main_draws), Counter())[pilot, main] += 1

    def last_rejected(self, sizes: Iterable[float], target: float, delta: float) -> float | None:
        """Return the last of the sizes that are rejected one after another from the first, None if not even that."""
        last = None
        with precision():
            threshold = -exact(delta).log()
            for mu in sizes:
                evidence = self.log_evidence(mu, target, enough=threshold)
                if evidence is None or not evidence >= threshold:
                    break
                last = mu
        return last

    def log_evidence(self, mu: float, target: float, *, enough: arb | None = None) -> arb | None:
        """Enclose a number that is at most the logarithm of the evidence, None for minus infinity.

        All terms of the mixture are positive. So the sum over the first of them is a lower bound, which will do once it
        is `enough`.
        """
        is_cohort = self.sampling is Sampling.COHORT
        log_weight = -arb(len(_STRENGTHS) if is_cohort else len(_SHARES)).log()
        terms: list[arb] = []
        for term in self._cohort_terms(mu, target) if is_cohort else self._law_terms(mu, target):
            terms.append(term + log_weight)
            if enough is not None and (total := log_sum(terms)) >= enough:
                return total
        return log_sum(terms) if terms else None

    def _cohort_terms(self, mu: float, target: float) -> Iterator[arb]:
        unit = math.sqrt(self._mean_draws / self._total)
        spare = [_tangent(mu, point) for point in _SPARE]
        for strength in (unit * strength for strength in _STRENGTHS):
            total: arb | None = arb(0)
            for plan, counts in self._plans.items():
                block = _block(plan[1], strength)
                part = _cohort_part(counts, block, plan[1], self._tangents(mu, plan, block), spare, strength, target)
                total = None if total is None or part is None else total + part
            if total is not None:
                yield total

    def _law_terms(self, mu: float, target: float) -> Iterator[arb]:
        values: list[tuple[arb, int]] = []
        least = 0.0  # f is at most h_mu(0) = 0 on average when p = 0, so some value is not above 0
        for plan, counts in self._plans.items():
            tangents = self._tangents(mu, plan, 1)
            # Over all that can happen and not only what did, so that the bets follow from the plan alone.
            for outcome in product(range(plan[0] + 1), range(plan[1] + 1)):
                value = _held_out_mean(plan, *outcome, tangents)
                least = min(least, value)
                if outcome in counts:
                    values.append((exact(value) - exact(target), counts[outcome]))
        room = exact(target) - exact(least)
        for share in _SHARES:
            bet = exact(share) / room
            yield sum(((1 + bet * excess).log() * count for excess, count in values), arb(0))

    def _tangents(self, mu: float, plan: tuple[int, int], block: int) -> list[_Tangent]:
        """Return the tangent for each number of successes among pilot and held-out draws."""
        held_out = plan[0] + plan[1] - block
        a, b = self.prior
        points = ((seen + a) / (held_out + a + b) for seen in range(held_out + 1))
        return [_tangent(mu, min(max(point, 1.0 - self.cap), self.cap)) for point in points]


def _block(draws: int, strength: float) -> int:
    """Return how many main draws are bet on at a time: few, so that many choose the tangent, yet with a small stake."""
    return min(max(math.ceil(6.0 * strength), 1), max(draws // 2, 1), _LARGEST_BLOCK)


def _tangent(mu: float, at: float) -> _Tangent:
    size, quantile = exact(mu), _quantile(at)
    return _Tangent(at, normal_cdf(quantile - size), (size * quantile - size**2 / 2).exp())


@lru_cache(maxsize=4096)
def _quantile(p: float) -> arb:
    return normal_quantile(exact(p))


def _cohort_part(
    counts: Counter[tuple[int, int]],
    block: int,
    draws: int,
    tangents: Sequence[_Tangent],
    spare: Sequence[_Tangent],
    strength: float,
    target: float,
) -> arb | None:
    """Enclose what all strata of one plan contribute to the logarithm at one strength A. None if it may be infinite."""
    stake = strength / block
    hit, miss, start = _bet(tangents, spare, stake, block, target)
    pilot, main = (np.array(column) for column in zip(*counts, strict=True))
    weights = np.stack([_held_out_weights(draws, block, successes) for successes in main.tolist()])
    evidence = np.zeros(len(main))
    hits, misses = _powers(hit, block), _powers(miss, block)
    for won in range(block + 1):
        seen = main - won
        possible = (seen >= 0) & (seen <= draws - block)
        at = np.where(possible, pilot + seen, 0)
        # Every intermediate product is 0 or at least 2^-900, so that each rounding is a relative one.
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
            term = _cut(_cut(weights[:, won] * misses[block - won, at]) * hits[won, at]) * start[at]
        evidence += np.where(possible, _cut(term), 0.0)
    if not (evidence.min() >= _TINY and evidence.max() <= 1.0 / _TINY):
        return None
    # A term is rounded once for its weight, `block` times for powers and 3 times for products, the sum `block` times.
    part = log_product(np.repeat(evidence, list(counts.values())), roundings=2 * block + 4)
    # `stake` was rounded, so that A differs a little between plans. |h_mu - q| <= 1.
    return part - counts.total() * abs(exact(stake) * block - exact(strength))


def _bet(
    tangents: Sequence[_Tangent], spare: Sequence[_Tangent], stake: float, block: int, target: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return what a success and a failure multiply by, and what a block starts with, for each tangent.

    For doubles x (success) and y (failure) near the ideal 1 + a w (1 - c) and 1 - a w c, and r = (x - y) / (y + (x - y)
    c), the mean y + (x - y) p is (y + (x - y) c) (1 + r (p - c)), at most (y + (x - y) c) exp(r (p - c)). This is at
    most exp(a (h_mu(p) - K)) if K <= h_mu(c) - log(y + (x - y) c) / a - |r / a - w|. So the block starts with exp(a b
    (K - q)), rounded down, and the rounding of x and y is paid for.
    """
    steepest = next((line for line in reversed(spare) if _loss(line, stake) <= _MOST), spare[0])
    size, level = exact(stake), exact(target)
    rows = []
    for line in tangents:
        used = line if _loss(line, stake) <= _MOST else steepest
        x = 1.0 + stake * float(used.slope) * (1.0 - used.at)
        y = 1.0 - min(_loss(used, stake), _MOST)
        mean = exact(y) + (exact(x) - exact(y)) * exact(used.at)
        ratio = (exact(x) - exact(y)) / mean
        height = used.height - mean.log() / size - abs(ratio / size - used.slope)
        rows.append((x, y, max(lower_float((size * block * (height - level)).exp()), 0.0)))
    hit, miss, start = np.array(rows).T
    return hit, miss, start


def _loss(line: _Tangent, stake: float) -> float:
    """Return how much of the evidence one failure takes, about. Only `_bet` proves something."""
    return stake * float(line.slope) * line.at


def _powers(base: NDArray[np.float64], last: int) -> NDArray[np.float64]:
    """Return base^0, ..., base^last as rows, with 0 for what is too small to have a relative rounding."""
    rows = [np.ones_like(base)]
    with np.errstate(over="ignore"):
        for _ in range(last):
            rows.append(_cut(rows[-1] * base))
    return np.stack(rows)


def _cut(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(values >= _TINY, values, 0.0)


@lru_cache(maxsize=8192)
def _held_out_weights(draws: int, block: int, successes: int) -> NDArray[np.float64]:
    """Return the share of the choices of `block` draws that have 0, 1, ... of the successes, each rounded once."""
    weights = np.zeros(block + 1)
    choices = math.comb(draws, successes)
    for won in range(max(0, successes - draws + block), min(block, successes) + 1):
        # Python divides integers with one rounding.
        share = math.comb(block, won) * math.comb(draws - block, successes - won) / choices
        weights[won] = share if share >= _TINY else 0.0
    weights.setflags(write=False)
    return weights


def _held_out_mean(plan: tuple[int, int], pilot: int, main: int, tangents: Sequence[_Tangent]) -> float:
    """Return f of a stratum, rounded down: each draw on the tangent that the others chose, averaged over the draws."""
    total = arb(0)
    for outcome, number, seen in ((1, main, pilot + main - 1), (0, plan[1] - main, pilot + main)):
        if number:
            line = tangents[seen]
            total += number * (line.height + line.slope * (outcome - exact(line.at)))
    return lower_float(total / plan[1])


def _strata(
    pilot_successes: Counts, pilot_draws: int | Counts, main_successes: Counts, main_draws: int | Counts
) -> _Strata:
    pilot = checks.counts("pilot_successes", pilot_successes, minimum_length=0)
    main = checks.counts("main_successes", main_successes, minimum_length=0)
    if not main:
        raise ValueError("`main_successes` must have at least one stratum, got none.")
    if len(pilot) != len(main):
        raise ValueError(
            f"`pilot_successes` must have one entry for each of {len(main)} strata, got {len(pilot)}. "
            "Without a pilot give zeros, and 0 for `pilot_draws`."
        )
    strata = _Strata(
        pilot, _draws("pilot_draws", pilot_draws, len(main), 0), main, _draws("main_draws", main_draws, len(main), 1)
    )
    for name, draws in (("pilot", strata.pilot_draws), ("main", strata.main_draws)):
        successes = getattr(strata, f"{name}_successes")
        for i, (hits, number) in enumerate(zip(successes, draws, strict=True)):
            if not hits <= number:
                raise ValueError(f"`{name}_successes` must be at most `{name}_draws`, got {hits} of {number} at {i}.")
    return strata


def _draws(name: str, draws: object, strata: int, minimum: int) -> tuple[int, ...]:
    if isinstance(draws, (int, np.integer)):
        return (checks.count(name, draws, minimum=minimum),) * strata
    numbers = checks.counts(name, draws, minimum_length=1)  # type: ignore[arg-type]
    if len(numbers) != strata:
        raise ValueError(f"`{name}` must be one number or one for each of {strata} strata, got {len(numbers)}.")
    return tuple(checks.count(f"{name}[{i}]", number, minimum=minimum) for i, number in enumerate(numbers))


def _prior(prior: object) -> tuple[float, float]:
    if not isinstance(prior, tuple) or len(prior) != 2:
        raise TypeError(f"`prior` must be a pair (a, b) of positive numbers, got {prior!r}.")
    return checks.positive("prior[0]", prior[0]), checks.positive("prior[1]", prior[1])


def _cap(cap: object) -> float:
    number = checks.real("cap", cap)
    if not 0.5 <= number < 1.0:
        raise ValueError(f"`cap` must be in [0.5, 1), got {number}.")
    return number


def _grid(grid: Sequence[float]) -> tuple[float, ...]:
    sizes = tuple(checks.nonnegative(f"grid[{i}]", size) for i, size in enumerate(grid))
    if not sizes:
        raise ValueError("`grid` must hold at least one size of shift, got none.")
    for before, after in pairwise(sizes):
        if not before < after:
            raise ValueError(f"`grid` must increase, got {before} before {after}.")
    return sizes


def _column(name: str, entries: object) -> tuple[int, ...]:
    if not isinstance(entries, list):
        raise TypeError(f"`{name}` must be a list of integers.")
    return checks.counts(name, entries, minimum_length=1)


def _numbers(name: str, entries: object) -> tuple[float, ...]:
    if not isinstance(entries, list):
        raise TypeError(f"`{name}` must be a list of numbers.")
    return tuple(checks.finite(f"{name}[{i}]", entry) for i, entry in enumerate(entries))
