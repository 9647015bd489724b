"""Certified expectations, quantiles and tails of a trial's total cost or return, under every shift of a given size.

Everything is done for a cost C in [lowest, highest], where more is worse. A return is a cost with its sign turned.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
from flint import arb
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.bands import cohort_band, law_band
from ccfs.certificates.betting import mean_upper
from ccfs.certificates.binomial import bonferroni
from ccfs.certificates.bounds import Sampling
from ccfs.certificates.documents import CertificateError, DocumentError, read_document
from ccfs.certificates.gaussian import chi_square, event_lower
from ccfs.certificates.rounding import fraction_upper
from ccfs.certificates.shifts import PREMISES
from ccfs.certificates.validated import exact, normal_cdf, normal_quantile, precision, upper_float

__all__ = ["Total", "TotalCertificate", "certify_totals"]

FORMAT = "ccfs/totals/1"
_FIXED = "The number of initial states was fixed before sampling."

Values = Sequence[float] | Sequence[Sequence[float]] | NDArray[np.float64]


class Total(Enum):
    """What is added up over a trial: a cost, of which less is better, or a return, of which more is better."""

    COST = "cost"
    RETURN = "return"


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalCertificate:
    """What the trials totalled, and bounds that hold together for every size of shift.

    With probability at least 1 - delta over the nominal sampling, for all `family` certificates together, everything
    that the methods return is true under every causal shift rule of size mu, for all mu, limits and levels at once. All
    of it is about the average over initial states.

    Assumes: what `premises` says.

    Fields:
        totals: per initial state, the totals of its trials.
        mean: bound on the nominal expectation, upper for a cost and lower for a return.
        variance: upper bound on the nominal variance, within initial states if they have several draws.
        band: pairs (x, p), increasing. A cost is at most x with probability at least p, a return at least x.
    """

    kind: Total
    totals: tuple[tuple[float, ...], ...]
    lowest: float
    highest: float
    delta: float
    family: int
    sampling: Sampling
    mean: float
    variance: float
    band: tuple[tuple[float, float], ...]

    @property
    def premises(self) -> tuple[str, ...]:
        """What the bounds take for granted."""
        reach = (
            f"Every total is in [{self.lowest!r}, {self.highest!r}], with and without shift. A trial whose total is "
            "not known counts with the worse end."
        )
        return (f"{self.sampling.premise} {_FIXED}", reach, *PREMISES)

    def expected(self, mu: float) -> float:
        """Return a bound on the expected total under shifts of size `mu`: upper for a cost, lower for a return.

        It is the better one of two bounds, which hold together.

        Moments. Let L be the likelihood ratio of the shifted law to the nominal one, for one initial state with the
        variance V. Padded to the energy mu^2 on every path it has E L^2 = exp(mu^2) (Theorem 14's proof). So the
        expectation changes by E (L - 1) (C - E C), at most sqrt((exp(mu^2) - 1) V) by the Cauchy-Schwarz inequality.
        On average over initial states V may be replaced by its average, because the square root is concave.

        Distribution. The expectation is the integral of P(C > c). By Theorem 14 and convexity, P(C > c) is at most
        1 - h_mu(F(c)), where F is the average distribution function and F >= p from x on, for each (x, p) of the band.
        """
        size = _size(mu)
        return self._sign(min(self._by_moments(size), self._by_band(size, self._low, 1.0), self._high))

    def probability(self, limit: float, mu: float) -> float:
        """Return a lower bound on the probability of a total within `limit` under shifts of size `mu`, rounded down.

        For a cost this is P(total <= limit), for a return P(total >= limit).
        """
        at = self._sign(checks.finite("limit", limit))
        size = _size(mu)
        if at >= self._high:
            return 1.0
        points = self._points
        before = bisect_right([point for point, _ in points], at)
        return _kept(points[before - 1][1], size) if before else 0.0

    def quantile(self, level: float, mu: float) -> float:
        """Return a limit that the total keeps with probability at least `level` under shifts of size `mu`.

        It is the least certified one for a cost and the greatest for a return. If the band proves nothing better, it is
        the worse end of the range.
        """
        share, size = checks.open_unit("level", level), _size(mu)
        reached = (point for point, p in self._points if _kept(p, size) >= share)
        return self._sign(next(reached, self._high))

    def cvar(self, level: float, mu: float) -> float:
        """Return a bound on the expected total in the worst 1 - `level` of the trials, under shifts of size `mu`.

        For a cost this is the conditional value at risk, min over t of t + E (C - t)_+ / (1 - level). Any t gives an
        upper bound, and E (C - t)_+ is the integral of P(C > c) from t on, bounded as in `expected`.
        """
        share, size = checks.open_unit("level", level), _size(mu)
        start = self._sign(self.quantile(share, size))
        return self._sign(min(self._by_band(size, start, share), self._high))

    def recheck(self) -> None:
        """Recompute every number from the totals. Raise CertificateError if one differs."""
        again = certify_totals(
            self.totals,
            kind=self.kind,
            lowest=self.lowest,
            highest=self.highest,
            delta=self.delta,
            family=self.family,
            sampling=self.sampling,
        )
        for name in ("mean", "variance", "band"):
            stored, derived = getattr(self, name), getattr(again, name)
            if stored != derived:
                raise CertificateError(f"`{name}` is {stored} on the certificate but {derived} from its totals.")

    def to_entries(self) -> dict[str, object]:
        """Return the entries of the certificate for JSON, after a recheck. `from_entries` loses nothing of them."""
        self.recheck()
        return {
            "kind": self.kind.value,
            "totals": [list(stratum) for stratum in self.totals],
            "lowest": self.lowest,
            "highest": self.highest,
            "delta": self.delta,
            "family": self.family,
            "sampling": self.sampling.value,
            "mean": self.mean,
            "variance": self.variance,
            "band": [list(pair) for pair in self.band],
            "premises": list(self.premises),
        }

    def to_json(self) -> str:
        """Return the certificate as a JSON document, after a recheck. `from_json` loses nothing of it."""
        return json.dumps({"format": FORMAT, **self.to_entries()}, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> TotalCertificate:
        """Read a certificate. Refuse another format or version, and a missing, extra or inconsistent entry."""
        try:
            document = read_document(text, FORMAT)
        except DocumentError as error:
            raise CertificateError(f"the certificate {error}") from error
        del document["format"]
        return cls.from_entries(document)

    @classmethod
    def from_entries(cls, entries: Mapping[str, object]) -> TotalCertificate:
        """Read what `to_entries` gave. Refuse a missing, extra or inconsistent entry."""
        document = dict(entries)
        try:
            again = certify_totals(
                document.pop("totals"),  # type: ignore[arg-type]
                kind=document.pop("kind"),  # type: ignore[arg-type]
                lowest=document.pop("lowest"),  # type: ignore[arg-type]
                highest=document.pop("highest"),  # type: ignore[arg-type]
                delta=document.pop("delta"),  # type: ignore[arg-type]
                family=document.pop("family"),  # type: ignore[arg-type]
                sampling=document.pop("sampling"),  # type: ignore[arg-type]
            )
            stored = {name: document.pop(name) for name in ("mean", "variance", "band", "premises")}
        except (KeyError, TypeError, ValueError) as error:
            raise CertificateError(f"not a valid totals certificate: {type(error).__name__}: {error}") from error
        if document:
            raise CertificateError(f"unknown entries on the certificate: {', '.join(sorted(document))}.")
        derived = {
            "mean": again.mean,
            "variance": again.variance,
            "band": [list(pair) for pair in again.band],
            "premises": list(again.premises),
        }
        for name, value in derived.items():
            if stored[name] != value:
                raise CertificateError(
                    f"`{name}` is {stored[name]!r} on the certificate but {value!r} from its totals."
                )
        return again

    @property
    def _low(self) -> float:
        return self.lowest if self.kind is Total.COST else -self.highest

    @property
    def _high(self) -> float:
        return self.highest if self.kind is Total.COST else -self.lowest

    @property
    def _points(self) -> list[tuple[float, float]]:
        """The band as that of a cost, with increasing limits."""
        points = [(self._sign(x), p) for x, p in self.band]
        return points if self.kind is Total.COST else points[::-1]

    def _sign(self, value: float) -> float:
        # The sum with 0 turns -0.0 into 0.0.
        return value if self.kind is Total.COST else -value + 0.0

    def _by_moments(self, mu: float) -> float:
        spread = math.inf if mu == math.inf else chi_square(mu)
        if spread == math.inf:
            return math.inf
        with precision():
            return upper_float(exact(self._sign(self.mean)) + (exact(spread) * exact(self.variance)).sqrt())

    def _by_band(self, mu: float, start: float, level: float) -> float:
        """Return start + integral of the bound on P(C > c) from `start` on, over 1 - level, rounded up.

        A level of 1 stands for the plain integral, without a quotient.
        """
        points = [(start, 0.0), *((x, p) for x, p in self._points if x > start)]
        before = [p for x, p in self._points if x <= start]
        points[0] = (start, max(before, default=0.0))
        edges = [*(x for x, _ in points), self._high]
        with precision():
            total, size = arb(0), None if mu == math.inf else exact(mu)
            for (left, right), (_, p) in zip(pairwise(edges), points, strict=True):
                if right > left:
                    total += (exact(right) - exact(left)) * (1 - _kept_ball(p, size))
            return upper_float(exact(start) + (total if level == 1.0 else total / (1 - exact(level))))


def certify_totals(
    totals: Values,
    *,
    kind: Total | str,
    lowest: float,
    highest: float,
    delta: float,
    family: int,
    sampling: Sampling | str,
) -> TotalCertificate:
    """Bound mean, variance and distribution of a total from nominal trials, for use under every shift.

    Half of the failure probability goes to the band, a quarter each to mean and variance.

    Mean. `mean_upper` of all trials of a cohort, which are independent. For a law, or when the numbers of draws
    differ, of the average at each initial state, because draws at one initial state share it.

    Variance. With several draws at each initial state, the sample variance there has the right mean, and lies between
    0 and a known number. With one draw, half of the squared difference of neighbouring trials has a mean of at least
    the average of their variances, and the last three trials are taken together if their number is odd. `mean_upper`
    bounds the average of either. It is never above a quarter of the squared range.

    Band. A level for every order statistic, all of them together: `cohort_band` of all trials, or `law_band`. A law
    with several draws uses the first draw of each initial state, because the others are not independent of it.

    Assumes: the premise of `sampling`, a number of initial states and a range that were fixed before sampling. With one
    draw per initial state, their order was fixed too.

    Args:
        totals: one total per initial state, or a sequence of totals for each. A trial without a known total counts
            with the worse end of the range.
        kind: "cost" if less is better, "return" if more is better.
        lowest: least total that a trial can have.
        highest: greatest total that a trial can have.
        delta: failure probability of the whole family.
        family: number of claims that share `delta`.
        sampling: "cohort" for a fixed list of initial states, "law" for independent draws of them.

    Returns:
        The certificate, every number rounded against us.

    Raises:
        TypeError: an argument has the wrong kind.
        ValueError: an argument is out of range, there are fewer than two initial states, or some have one draw and
            others more.

    >>> study = certify_totals(
    ...     [0.0] * 200 + [20.0] * 56, kind="cost", lowest=0.0, highest=500.0, delta=0.001, family=1, sampling="cohort"
    ... )
    >>> f"{study.expected(0.0):.2f} {study.expected(0.5):.2f} {study.quantile(0.6, 0.5)}"
    '22.69 55.79 20.0'
    """
    sense = _kind(kind)
    low, high = checks.finite("lowest", lowest), checks.finite("highest", highest)
    if not low < high:
        raise ValueError(f"`highest` must exceed `lowest`, got {low} and {high}.")
    strata = _strata(totals)
    share = bonferroni(delta, checks.count("family", family, minimum=1))
    law = Sampling.of(sampling)
    sign = 1.0 if sense is Total.COST else -1.0
    costs = [[sign * value for value in stratum] for stratum in strata]
    bottom, top = (low, high) if sense is Total.COST else (-high, -low)
    for i, value in ((i, value) for i, stratum in enumerate(strata) for value in stratum):
        if not low <= value <= high:
            raise ValueError(
                f"`totals` must be in [{low}, {high}], got {value} at {i}. "
                "`lowest` and `highest` are what a trial can total at all, not what was seen."
            )
    mean = mean_upper(_for_mean(costs, law), delta=share / 4, lowest=bottom, highest=top)
    band = _band(costs, law, share / 2)
    return TotalCertificate(
        kind=sense,
        totals=strata,
        lowest=low,
        highest=high,
        delta=checks.delta(delta),
        family=int(family),
        sampling=law,
        mean=sign * mean + 0.0,
        variance=_variance_upper(costs, share / 4, Fraction(top) - Fraction(bottom)),
        band=tuple(sorted((sign * x + 0.0, p) for x, p in band)),
    )


def _for_mean(costs: Sequence[Sequence[float]], law: Sampling) -> list[float]:
    """Return independent numbers whose average mean is that of the strata, rounded up."""
    if law is Sampling.COHORT and len({len(stratum) for stratum in costs}) == 1:
        return list(chain.from_iterable(costs))
    return [fraction_upper(sum(map(Fraction, stratum), Fraction(0)) / len(stratum)) for stratum in costs]


def _variance_upper(costs: Sequence[Sequence[float]], delta: float, reach: Fraction) -> float:
    """Return an upper bound on the average variance within strata, or on that of pairs if each has one draw."""
    exact_values, greatest, factor = _spreads(costs)
    most = fraction_upper(greatest * reach**2)
    values = [min(fraction_upper(value), most) for value in exact_values]
    bound = Fraction(mean_upper(values, delta=delta, highest=most)) * factor
    return fraction_upper(min(bound, reach**2 / 4))


def _spreads(costs: Sequence[Sequence[float]]) -> tuple[list[Fraction], Fraction, Fraction]:
    """Return independent numbers, the greatest that totals in [0, 1] can give, and a factor.

    The average mean of the numbers times the factor is the average variance of the strata, or more. With one draw at
    each, neighbours form pairs, the last three a group if their number is odd. The sample variance of a group has a
    mean of at least the average variance of its members, and counts as often as it has members.
    """
    if len(costs[0]) > 1:
        greatest = max(_greatest_variance(len(stratum)) for stratum in costs)
        return [_sample_variance(stratum) for stratum in costs], greatest, Fraction(1)
    single = [stratum[0] for stratum in costs]
    pairs = len(single) // 2
    groups = [single[2 * i : 2 * i + 2] for i in range(pairs - 1)] + [single[2 * pairs - 2 :]]
    # Two members have at most 2 * 1/2, three at most 3 * 1/3.
    return [len(group) * _sample_variance(group) for group in groups], Fraction(1), Fraction(pairs, len(single))


def _sample_variance(values: Sequence[float]) -> Fraction:
    numbers = [Fraction(value) for value in values]
    mean = sum(numbers, Fraction(0)) / len(numbers)
    return sum(((number - mean) ** 2 for number in numbers), Fraction(0)) / (len(numbers) - 1)


def _greatest_variance(draws: int) -> Fraction:
    """Return the greatest sample variance of numbers in [0, 1]: half of them at each end."""
    return Fraction((draws // 2) * ((draws + 1) // 2), draws * (draws - 1))


def _band(costs: Sequence[Sequence[float]], law: Sampling, delta: float) -> list[tuple[float, float]]:
    """Return pairs (x, p) such that the average distribution function at x is at least p, all together."""
    is_all = law is Sampling.COHORT and len({len(stratum) for stratum in costs}) == 1
    ordered = sorted(chain.from_iterable(costs) if is_all else (stratum[0] for stratum in costs))
    levels = (law_band if law is Sampling.LAW else cohort_band)(len(ordered), delta=delta)
    best: dict[float, float] = {}
    highest = 0.0
    for total, level in zip(ordered, levels, strict=True):
        if level > highest:  # an order statistic that proves no more than the one before it is left out
            highest = best[total] = level  # levels grow, so the last one of equal totals is the best
    return sorted(best.items())


def _kept(p: float, mu: float) -> float:
    if mu == math.inf:
        return 1.0 if p == 1.0 else 0.0
    return event_lower(p, mu)


def _kept_ball(p: float, mu: arb | None) -> arb:
    """Enclose h_mu(p), with None for an infinite mu."""
    if p in (0.0, 1.0) or mu is None:
        return arb(1 if p == 1.0 else 0)
    return exact(p) if mu == 0 else normal_cdf(_quantile(p) - mu)


@lru_cache(maxsize=2**15)  # a band has a quantile per order statistic, and every size of shift asks for all of them
def _quantile(p: float) -> arb:
    return normal_quantile(exact(p))


def _size(mu: object) -> float:
    size = checks.real("mu", mu)
    if not size >= 0.0:
        raise ValueError(f"`mu` must be at least 0, got {size}.")
    return size


def _kind(kind: object) -> Total:
    try:
        return Total(kind)
    except ValueError:
        raise ValueError(f"`kind` must be 'cost' or 'return', got {kind!r}.") from None


def _strata(totals: object) -> tuple[tuple[float, ...], ...]:
    if isinstance(totals, np.ndarray):
        totals = totals.tolist()
    if isinstance(totals, (str, bytes)) or not isinstance(totals, Sequence):
        raise TypeError(f"`totals` must be a sequence of numbers or of sequences, got {type(totals).__name__}.")
    strata = []
    for i, stratum in enumerate(totals):
        values = stratum if isinstance(stratum, Sequence) and not isinstance(stratum, str) else [stratum]
        strata.append(tuple(checks.finite(f"totals[{i}]", value) for value in values))
    if not len(strata) >= 2:
        raise ValueError(f"`totals` must have at least two initial states, got {len(strata)}.")
    fewest, most = (choose(len(stratum) for stratum in strata) for choose in (min, max))
    if not (fewest == most == 1 or fewest >= 2):
        raise ValueError(
            f"`totals` must have one draw at each initial state, or at least two at each, got {fewest} to {most}."
        )
    return tuple(strata)
