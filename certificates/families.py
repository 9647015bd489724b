"""Certificates for disturbances that an engineer names: a motor bias, a gain error, any linear feedback, over a box.

A family of disturbances shifts the center of each block by A_t theta. The matrix A_t of features is known, a function
of the public past. The vector theta is unknown and lies in a declared box. Examples: a constant bias of each motor has
the unit matrix, and a gain error has the center on its diagonal.

The likelihood ratio of such a shift is a function of nominal traces, because the noise of every block can be drawn
again from its stream. So nominal trials alone say how likely failures would be under theta.

What a trial must record. Let t run over all blocks that were drawn, that of an abstaining step too. Block t has N_t
draws with the mean Zbar_t around the center m_t, the standard deviation sigma_t,i in coordinate i, and the energy
multiplier kappa_t. With D_t = diag(kappa_t / sigma_t,i^2),

    S = sum_t A_t' D_t (Zbar_t - m_t)   (k numbers),
    Q = sum_t A_t' D_t A_t              (k times k numbers).

A coordinate without noise must not be shifted: its row of A_t is 0, and it is left out of D_t. Then the logarithm of
the likelihood ratio at theta is theta' S - theta' Q theta / 2, and theta' Q theta is the energy of the path.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
from flint import arb
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.betting import mean_upper
from ccfs.certificates.binomial import bonferroni, cohort_lower
from ccfs.certificates.bounds import Bound, Sampling
from ccfs.certificates.documents import CertificateError, DocumentError, read_document
from ccfs.certificates.gaussian import event_lower
from ccfs.certificates.rounding import fraction_upper
from ccfs.certificates.shifts import PREMISES
from ccfs.certificates.validated import exact, normal_cdf, precision, upper_float

__all__ = [
    "TRUNCATIONS",
    "FamilyCertificate",
    "certify_family",
    "drop_lower",
    "drop_upper",
    "shifted_failure_lower",
    "shifted_failure_upper",
]

FORMAT = "ccfs/family/1"
# Where weights are cut. Written down here, so that nobody who has seen the weights chooses the point.
TRUNCATIONS = (0.0, 3.0, 10.0, 30.0)
# The excess over tau of trials in the event may be cut far out, because it enters with a minus sign.
_CAP = 100.0
# What the logarithm of a weight and an energy may be off by, because S and Q are sums of doubles.
SLACK = 2.0**-30
_MOST_POINTS = 100_000
_ROOMS = 129
_FEATURES = (
    "The disturbance is theta times features that are functions of the public past, the same with and without it. On "
    "every path its energy is at most that of `ceiling`, and S and Q are those of the noise that was really drawn, up "
    "to rounding. A shift rule moves what was drawn around, so an action that a fallback takes instead is not moved."
)

Flags = Sequence[bool] | NDArray[np.bool_]
Numbers = Sequence[float] | NDArray[np.float64]
Matrix = Sequence[Sequence[float]] | NDArray[np.float64]


def shifted_failure_upper(
    held: Flags,
    log_ratios: Numbers,
    energies: Numbers,
    *,
    mu: float,
    delta: float,
    unweighted: int = 0,
    truncations: Sequence[float] = TRUNCATIONS,
) -> float:
    """Return an upper confidence bound on the probability that the event fails under a shift that was not run.

    Let L be the likelihood ratio of the shifted to the nominal law along a trial, whose energy is at most mu^2 on every
    path. Multiply it by an independent lognormal number with mean 1 that tops its energy up to exactly mu^2, and call
    the product L'. Then P_shifted(fail) = E[1_fail L'], and under the nominal law log L' is normal with mean -mu^2 / 2
    and variance mu^2, as in the proof of Theorem 14 (thm:adaptive-trajectory). For tau > 0 let

        W = E[min(L', tau) | path],   V = E[(L' - tau)_+ | path] = L - W,

    which have closed forms: with s^2 = mu^2 - energy, W is
    L Phi((log(tau / L) - s^2 / 2) / s) + tau Phi(-(log(tau / L) + s^2 / 2) / s). The mean of V over all paths is known,
    because the law of L' is: it is e(tau) = Phi(d) - tau Phi(d - mu) with d = (mu^2 / 2 - log tau) / mu. So

        P_shifted(fail) = E[1_fail W] + E[V] - E[1_event V] <= e(tau) + E[1_fail W - 1_event min(V, 100)].

    The last mean is that of numbers in [-100, tau], and `mean_upper` bounds it. With tau = 0, W is 0 and V is L, so
    the bound is 1 - E[1_event min(L, 100)]. It needs no mu and pays for the energy of the paths that were taken only.
    Greater tau let failures be weighed, which vary less if they are rare or early, and pay for what e(tau) leaves open.
    Each tau has its share of delta, and the least of the bounds is returned.

    Assumes: independent nominal trials whose number was fixed in advance, from one initial law or one for each member
    of a cohort, and a shift rule and truncations that were fixed before.

    Args:
        held: whether the event held, for each trial.
        log_ratios: log L of each trial, up to `SLACK`.
        energies: energy of the shift along each trial, up to `SLACK`.
        mu: the energy is at most mu^2 on every path that can happen.
        delta: failure probability.
        unweighted: number of further trials that failed and whose ratios are not known.
        truncations: values of tau, 0 or at least 1.

    Returns:
        The bound, rounded up.

    Raises:
        TypeError: an argument has the wrong kind.
        ValueError: an argument is out of range, or a trial's energy exceeds mu^2.

    >>> f"{shifted_failure_upper([True] * 95 + [False] * 5, [0.0] * 100, [0.0] * 100, mu=0.0, delta=0.01):.3f}"
    '0.272'
    """
    trials, limit = _Trials.of(held, log_ratios, energies, mu, unweighted)
    cuts = _truncations(truncations)
    return _upper(trials, limit, _weights(cuts, float(limit)), bonferroni(delta, len(cuts)))


def shifted_failure_lower(
    held: Flags,
    log_ratios: Numbers,
    energies: Numbers,
    *,
    mu: float,
    delta: float,
    unweighted: int = 0,
    truncations: Sequence[float] = TRUNCATIONS,
) -> float:
    """Return a lower confidence bound on the probability that the event fails under a shift that was not run.

    It is 1 minus the bound of `shifted_failure_upper` for the opposite event.

    Assumes, Args, Raises: as `shifted_failure_upper`.

    Returns:
        The bound, rounded down.
    """
    trials, limit = _Trials.of(held, log_ratios, energies, mu, unweighted)
    cuts = _truncations(truncations)
    found = _upper(trials.opposite, limit, _weights(cuts, float(limit)), bonferroni(delta, len(cuts)))
    return max(-fraction_upper(Fraction(found) - 1), 0.0)


def drop_upper(
    held: Flags,
    log_ratios: Numbers,
    energies: Numbers,
    *,
    mu: float,
    delta: float,
    unweighted: int = 0,
    truncations: Sequence[float] = TRUNCATIONS,
) -> float:
    """Return an upper confidence bound on how much of its probability the event loses under a shift that was not run.

    The loss is P(event) - P_shifted(event) = P_shifted(fail) - E[1_fail]. So it is at most
    e(tau) + E[1_fail (W - 1) - 1_event min(V, 100)] with the names of `shifted_failure_upper`. Nominal and shifted
    trials are the same ones here, so their common luck cancels.

    Assumes, Args, Raises: as `shifted_failure_upper`.

    Returns:
        The bound, rounded up. It is negative if the shift was shown to help.
    """
    trials, limit = _Trials.of(held, log_ratios, energies, mu, unweighted)
    cuts = _truncations(truncations)
    return _upper(trials, limit, _weights(cuts, float(limit)), bonferroni(delta, len(cuts)), less=1.0)


def drop_lower(
    held: Flags,
    log_ratios: Numbers,
    energies: Numbers,
    *,
    mu: float,
    delta: float,
    unweighted: int = 0,
    truncations: Sequence[float] = TRUNCATIONS,
) -> float:
    """Return a lower confidence bound on how much of its probability the event loses under a shift that was not run.

    What the event loses, the opposite event gains. So this is minus the bound of `drop_upper` for the opposite event.

    Assumes, Args, Raises: as `shifted_failure_upper`.

    Returns:
        The bound, rounded down. It is positive if the shift was shown to do harm.
    """
    trials, limit = _Trials.of(held, log_ratios, energies, mu, unweighted)
    cuts = _truncations(truncations)
    return -_upper(trials.opposite, limit, _weights(cuts, float(limit)), bonferroni(delta, len(cuts)), less=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyCertificate:
    """What each trial recorded, and the probability that the event keeps under every disturbance of the box.

    The claim: with probability at least 1 - delta over the nominal sampling, for all `family` certificates together,
    the event keeps at least the probability `lower` under A_t theta, for every theta in `box`. A certificate whose
    `lower` is None claims nothing.

    Assumes: what `premises` says.

    Fields:
        name: the disturbance, for readers.
        held: whether the event held, for each trial whose weights are known.
        scores: S of each of these trials.
        energies: Q of each of these trials.
        unweighted: further trials, which failed and have no weights. Each counts with the greatest weight.
        box: the least and greatest value of each coordinate of theta.
        ceiling: a matrix such that theta' Q theta <= theta' ceiling theta for all theta, on every path.
        cells: number of cells of the net along each coordinate.
        gap: the size of the shift between a point of a cell and its center, at most.
        worst: the center of the cell where `lower` is attained.
    """

    name: str
    held: tuple[bool, ...]
    scores: tuple[tuple[float, ...], ...]
    energies: tuple[tuple[tuple[float, ...], ...], ...]
    unweighted: int
    box: tuple[tuple[float, float], ...]
    ceiling: tuple[tuple[float, ...], ...]
    cells: tuple[int, ...]
    truncations: tuple[float, ...]
    delta: float
    family: int
    sampling: Sampling
    gap: float
    lower: float | None
    worst: tuple[float, ...]

    @property
    def is_certified(self) -> bool:
        """Whether anything is certified."""
        return self.lower is not None

    @property
    def size(self) -> float:
        """Greatest size mu of a disturbance of the box on any path, rounded up."""
        return _gap(np.array(self.ceiling), [Fraction(max(abs(low), abs(high))) for low, high in self.box])

    @property
    def trials(self) -> int:
        """Number of nominal trials."""
        return len(self.held) + self.unweighted

    @property
    def net(self) -> int:
        """Number of cells, each of which has its share of delta."""
        return math.prod(self.cells)

    @property
    def premises(self) -> tuple[str, ...]:
        """What the claim takes for granted."""
        sampled = Bound.COHORT if self.sampling is Sampling.COHORT else Bound.CLOPPER_PEARSON
        return (sampled.premise, _FEATURES, *PREMISES)

    def recheck(self) -> None:
        """Recompute every number from what the trials recorded. Raise CertificateError if one differs."""
        again = certify_family(
            self.held,
            self.scores,
            self.energies,
            name=self.name,
            unweighted=self.unweighted,
            box=self.box,
            ceiling=self.ceiling,
            cells=self.cells,
            truncations=self.truncations,
            delta=self.delta,
            family=self.family,
            sampling=self.sampling,
        )
        for field in ("gap", "lower", "worst"):
            stored, derived = getattr(self, field), getattr(again, field)
            if stored != derived:
                raise CertificateError(f"`{field}` is {stored} on the certificate but {derived} from its trials.")

    def to_entries(self) -> dict[str, object]:
        """Return the entries of the certificate for JSON, after a recheck. `from_entries` loses nothing of them."""
        self.recheck()
        return self.entries

    @property
    def entries(self) -> dict[str, object]:
        """The entries of the certificate for JSON, without a recheck, which may take a minute."""
        return {
            "name": self.name,
            "held": list(self.held),
            "scores": [list(row) for row in self.scores],
            "energies": [[list(row) for row in table] for table in self.energies],
            "unweighted": self.unweighted,
            "box": [list(pair) for pair in self.box],
            "ceiling": [list(row) for row in self.ceiling],
            "cells": list(self.cells),
            "truncations": list(self.truncations),
            "delta": self.delta,
            "family": self.family,
            "sampling": self.sampling.value,
            "gap": self.gap,
            "lower": self.lower,
            "worst": list(self.worst),
            "net": self.net,
            "size": self.size,
            "premises": list(self.premises),
        }

    def to_json(self) -> str:
        """Return the certificate as a JSON document, after a recheck. `from_json` loses nothing of it."""
        return json.dumps({"format": FORMAT, **self.to_entries()}, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> FamilyCertificate:
        """Read a certificate. Refuse another format or version, and a missing, extra or inconsistent entry."""
        try:
            document = read_document(text, FORMAT)
        except DocumentError as error:
            raise CertificateError(f"the certificate {error}") from error
        del document["format"]
        return cls.from_entries(document)

    @classmethod
    def from_entries(cls, entries: Mapping[str, object]) -> FamilyCertificate:
        """Read what `to_entries` gave. Refuse a missing, extra or inconsistent entry."""
        document = dict(entries)
        try:
            again = certify_family(
                document.pop("held"),  # type: ignore[arg-type]
                document.pop("scores"),  # type: ignore[arg-type]
                document.pop("energies"),  # type: ignore[arg-type]
                name=document.pop("name"),  # type: ignore[arg-type]
                unweighted=document.pop("unweighted"),  # type: ignore[arg-type]
                box=document.pop("box"),  # type: ignore[arg-type]
                ceiling=document.pop("ceiling"),  # type: ignore[arg-type]
                cells=document.pop("cells"),  # type: ignore[arg-type]
                truncations=document.pop("truncations"),  # type: ignore[arg-type]
                delta=document.pop("delta"),  # type: ignore[arg-type]
                family=document.pop("family"),  # type: ignore[arg-type]
                sampling=document.pop("sampling"),  # type: ignore[arg-type]
            )
            stored = {name: document.pop(name) for name in ("gap", "lower", "worst", "net", "size", "premises")}
        except (KeyError, TypeError, ValueError) as error:
            raise CertificateError(f"not a valid family certificate: {type(error).__name__}: {error}") from error
        if document:
            raise CertificateError(f"unknown entries on the certificate: {', '.join(sorted(document))}.")
        derived = {
            "gap": again.gap,
            "lower": again.lower,
            "worst": list(again.worst),
            "net": again.net,
            "size": again.size,
            "premises": list(again.premises),
        }
        for name, value in derived.items():
            if stored[name] != value:
                raise CertificateError(
                    f"`{name}` is {stored[name]!r} on the certificate but {value!r} from its trials."
                )
        return again


def certify_family(
    held: Flags,
    scores: Matrix,
    energies: Sequence[Matrix] | NDArray[np.float64],
    *,
    name: str,
    box: Sequence[tuple[float, float]],
    ceiling: Matrix,
    cells: Sequence[int],
    delta: float,
    family: int,
    sampling: Sampling | str,
    unweighted: int = 0,
    truncations: Sequence[float] = TRUNCATIONS,
) -> FamilyCertificate:
    """Certify the probability of an event under every disturbance A_t theta with theta in a box, from nominal trials.

    The box is cut into cells. At the center of each, the failure probability has the bound of `shifted_failure_upper`
    with mu^2 = theta' ceiling theta, or that of Theorem 14 itself if it is smaller. From the center to another point
    theta' of the cell the shift changes by A_t (theta' - theta), whose energy is at most gap^2 on every path. So
    Theorem 14 gives P_theta'(event) >= Phi(Phi^-1(P_theta(event)) - gap), and the least of these over all cells holds
    in the whole box. Each pair of a cell and a truncation has an equal share of delta, and so has the nominal count.

    Assumes: the trials were sampled as `sampling` says, one nominal trajectory per initial state, their number fixed in
    advance. Features, box, ceiling, cells and truncations were fixed before sampling. `ceiling` bounds the energy on
    every path that can happen, not only on those that did: for a constant bias it is the horizon times kappa / sigma^2
    on the diagonal.

    Args:
        held: whether the event held, for each trial whose weights are known.
        scores: S of each of them, see the module's docstring, array [trials, k].
        energies: Q of each trial, array [trials, k, k].
        name: the disturbance, for readers.
        box: least and greatest value of each coordinate of theta.
        ceiling: array [k, k], symmetric.
        cells: number of cells along each coordinate. More cells have a smaller gap, and each a smaller share of delta.
        delta: failure probability of the whole family.
        family: number of claims that share `delta`.
        sampling: "cohort" or "law".
        unweighted: number of further trials that failed and whose weights are not known, as when an exception hid
            the last block. They count as failures with the greatest weight.
        truncations: values of tau, 0 or at least 1.

    Returns:
        The certificate, its `lower` rounded down. It is None if nothing is certified.

    Raises:
        TypeError: an argument has the wrong kind.
        ValueError: an argument is out of range, shapes differ, or a trial's energy exceeds the ceiling.

    >>> rng = np.random.default_rng(0)
    >>> noise = rng.standard_normal((2000, 25))
    >>> certificate = certify_family(
    ...     noise.max(axis=1) < 3.0, noise.sum(axis=1, keepdims=True), np.full((2000, 1, 1), 25.0), name="bias",
    ...     box=[(-0.1, 0.1)], ceiling=[[25.0]], cells=[9], delta=0.01, family=1, sampling="law",
    ... )
    >>> f"{certificate.lower:.3f} at {certificate.worst[0]:.3f}"
    '0.918 at 0.089'
    """
    if not isinstance(name, str):
        raise TypeError(f"`name` must be a string, got {name!r}.")
    limits = _box(box)
    width = len(limits)
    flags = _flags(held)
    table = _table("scores", scores, (len(flags), width))
    squares = _table("energies", energies, (len(flags), width, width))
    top = _table("ceiling", ceiling, (width, width))
    for label, matrices in (("energies", squares), ("ceiling", top[None])):
        if not (matrices == matrices.transpose(0, 2, 1)).all():
            raise ValueError(f"`{label}` must be symmetric. Q is a sum of A' D A.")
    _refuse_ceiling(squares, top)
    numbers, cuts = _cells(cells, width), _truncations(truncations)
    law, claims = Sampling.of(sampling), checks.count("family", family, minimum=1)
    lost = checks.count("unweighted", unweighted)
    share = bonferroni(bonferroni(delta, claims), math.prod(numbers) * len(cuts) + 1)
    nominal = cohort_lower(int(flags.sum()), len(flags) + lost, delta=share)
    centers, reach = _net(limits, numbers)
    gap = _gap(top, reach)
    most = float(max(_quadratic(top, theta) for theta in centers))
    weights = _weights(cuts, most)
    every = _Weighed(flags, table, squares, lost)
    lower, worst = math.inf, centers[0]
    for theta in centers:
        found = event_lower(_held_lower(every, theta, top, weights, share, nominal), gap)
        if found < lower:
            lower, worst = found, theta
    return FamilyCertificate(
        name=name,
        held=tuple(flags.tolist()),
        scores=tuple(map(tuple, table.tolist())),
        energies=tuple(tuple(map(tuple, square)) for square in squares.tolist()),
        unweighted=lost,
        box=limits,
        ceiling=tuple(map(tuple, top.tolist())),
        cells=numbers,
        truncations=cuts,
        delta=checks.delta(delta),
        family=claims,
        sampling=law,
        gap=gap,
        lower=lower if lower > 0.0 else None,
        worst=worst,
    )


@dataclass(frozen=True, slots=True)
class _Side:
    """The trials in an event, or those outside of it: log ratios, energies, and how many have neither."""

    log_ratios: NDArray[np.float64]
    energies: NDArray[np.float64]
    unweighted: int = 0

    def ratios(self, slack: float) -> NDArray[np.float64]:
        """Return L of each trial after a slack was added to its logarithm: rounded up for +, rounded down for -.

        Logarithms beyond 600 stand for 600, where every truncation and the cap are far below, and rounded down those
        below -600 give 0.
        """
        rounded, logs = _above if slack > 0.0 else _below, self.log_ratios + slack
        with precision():
            found = np.array([rounded(arb(log).exp()) for log in np.clip(logs, -600.0, 600.0).tolist()])
        return found if slack > 0.0 else np.where(logs > -600.0, found, 0.0)

    def rooms(self, limit: Fraction) -> NDArray[np.float64]:
        """Return limit - energy of each trial, up to a small part of the slack, and at least 0.

        Ratios are padded to the energy limit + SLACK. So the room of a trial is at least this, even if its energy is
        off by the slack.
        """
        if not limit < 2**20:
            raise ValueError(f"`mu` must be below 1024, so that doubles resolve the energy, got mu^2 = {float(limit)}.")
        return np.maximum(float(limit) - self.energies, 0.0)


@dataclass(frozen=True, slots=True)
class _Trials:
    """All trials: those in which the event failed, and the others."""

    failed: _Side
    held: _Side

    @property
    def opposite(self) -> _Trials:
        return _Trials(self.held, self.failed)

    @classmethod
    def of(
        cls, held: Flags, log_ratios: Numbers, energies: Numbers, mu: float, unweighted: int
    ) -> tuple[_Trials, Fraction]:
        """Return checked trials, and mu^2."""
        limit = Fraction(checks.nonnegative("mu", mu)) ** 2
        flags = _flags(held)
        logs, squares = checks.doubles("log_ratios", log_ratios), checks.doubles("energies", energies)
        for name, values in (("log_ratios", logs), ("energies", squares)):
            if len(values) != len(flags):
                raise ValueError(f"`{name}` must have one entry for each of {len(flags)} trials, got {len(values)}.")
        if not -SLACK <= float(squares.min()) <= float(squares.max()) <= float(limit) + SLACK:
            raise ValueError(
                f"`energies` must be in [0, mu^2], got {float(squares.min())} to {float(squares.max())} with mu^2 = "
                f"{float(limit)}."
            )
        return cls.split(flags, logs, squares, checks.count("unweighted", unweighted)), limit

    @classmethod
    def split(
        cls, held: NDArray[np.bool_], logs: NDArray[np.float64], energies: NDArray[np.float64], unweighted: int
    ) -> _Trials:
        return cls(_Side(logs[~held], energies[~held], unweighted), _Side(logs[held], energies[held]))


def _upper(trials: _Trials, limit: Fraction, weights: Sequence[_Weights], delta: float, *, less: float = 0.0) -> float:
    """Return the least bound on P_shifted(fail) - less P(fail) over the truncations, mu^2 = limit, less = 0 or 1."""
    failed, held = trials.failed, trials.held
    above, below = failed.ratios(SLACK), held.ratios(-SLACK)
    failed_rooms, held_rooms = failed.rooms(limit), held.rooms(limit)
    padded, least = limit + Fraction(SLACK), 1.0
    with precision():
        for part in weights:
            lost = np.concatenate([part.upper(above, failed_rooms), np.full(failed.unweighted, part.tau)])
            if less:
                lost = np.minimum(np.nextafter(lost - less, np.inf), part.tau - less)
            kept = np.concatenate([part.excess_lower(below, held_rooms), np.zeros(held.unweighted)])
            values = np.concatenate([lost, -np.minimum(kept, _CAP)])
            # The range has 0 and -less in it whatever the truncation.
            mean = mean_upper(values, delta=delta, lowest=-_CAP, highest=max(part.tau - less, 0.0))
            least = min(least, upper_float(exact(mean) + _excess(padded, part.tau)))
    return least


def _weights(cuts: Sequence[float], most: float) -> list[_Weights]:
    return [_Weights(tau, most) for tau in cuts]


class _Weights:
    """Bounds on W from above and on V = L - W from below for one truncation, by tangents for all points of a net.

    W is a concave function of L, because min(., tau) is, and falls when the room s^2 for padding grows. So a tangent at
    another L and at a smaller room lies above it. Tangents touch at tau times powers of 2^(1/8), for rooms on a grid,
    and are computed when they are first needed. W is also at most L and at most tau.
    """

    def __init__(self, tau: float, most: float) -> None:
        self.tau = tau
        # Finer for small rooms, where W depends on the room most.
        self._rooms = most * (np.arange(_ROOMS) / (_ROOMS - 1)) ** 2
        self._powers = np.arange(-128, 129)  # where L is within 2^16 of tau. Farther away L or tau itself will do.
        self._offsets = np.full((_ROOMS, len(self._powers)), np.nan)
        self._slopes = self._offsets.copy()

    def upper(self, ratios: NDArray[np.float64], rooms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a number above W for each trial, given a number above its L and a number below its room."""
        if self.tau == 0.0:
            return np.zeros_like(ratios)
        offsets, slopes = self._lines(ratios, rooms)
        # One product and one sum of positive numbers, each off by at most 2^-53 of itself.
        lines = (offsets + slopes * ratios) * (1.0 + 2.0**-50)
        return np.minimum(np.minimum(lines, ratios), self.tau)

    def excess_lower(self, ratios: NDArray[np.float64], rooms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a number below V, and at least 0, for each trial, given numbers below its L and its room.

        V is at least L minus a tangent, which grows with L, and at least L - tau.
        """
        if self.tau == 0.0:
            return ratios
        offsets, slopes = self._lines(ratios, rooms)
        rest = 1.0 - slopes
        # Three roundings, each of at most 2^-53 of a number that is at most this sum.
        lines = rest * ratios - offsets - (np.abs(rest) * ratios + offsets) * 2.0**-50
        plain = ratios - self.tau - (ratios + self.tau) * 2.0**-52
        return np.maximum(np.maximum(lines, plain), 0.0)

    def _lines(
        self, ratios: NDArray[np.float64], rooms: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the value at 0 and the slope of a tangent near each ratio, at a room that is not greater."""
        row = np.searchsorted(self._rooms, rooms, side="right") - 1
        with np.errstate(divide="ignore"):
            place = 8.0 * np.log2(ratios / self.tau) - self._powers[0]
        column = np.clip(np.nan_to_num(np.round(place)), 0, len(self._powers) - 1).astype(np.int64)
        missing = np.isnan(self._slopes[row, column])
        for i, j in sorted(set(zip(row[missing].tolist(), column[missing].tolist(), strict=True))):
            self._offsets[i, j], self._slopes[i, j] = self._tangent(i, j)
        return self._offsets[row, column], self._slopes[row, column]

    def _tangent(self, row: int, column: int) -> tuple[float, float]:
        """Return the value at 0 and the slope of a tangent, both rounded up, so that the line lies above W."""
        room = float(self._rooms[row])
        if room == 0.0:
            return 0.0, 1.0
        spread = exact(room).sqrt()
        ahead = -int(self._powers[column]) * arb.const_log2() / 8  # log(tau / L)
        # The slope is the shifted probability that the padded ratio stays below tau. L times it, and tau times the
        # nominal probability that it does not, is W. So the value at 0 is the second part alone.
        slope = normal_cdf((ahead - exact(room) / 2) / spread)
        return _above(exact(self.tau) * normal_cdf(-(ahead + exact(room) / 2) / spread)), _above(slope)


def _excess(limit: Fraction, tau: float) -> arb:
    """Enclose E (L' - tau)_+ for log L' normal with mean -limit / 2 and variance limit."""
    if tau == 0.0 or limit == 0:
        return max(arb(1) - exact(tau), arb(0))
    mu = exact(limit).sqrt()
    d = (exact(limit) / 2 - exact(tau).log()) / mu
    return normal_cdf(d) - exact(tau) * normal_cdf(d - mu)


@dataclass(frozen=True, slots=True)
class _Weighed:
    """What each trial recorded, and the number of failed trials that recorded nothing."""

    held: NDArray[np.bool_]
    scores: NDArray[np.float64]
    energies: NDArray[np.float64]
    unweighted: int

    @property
    def number(self) -> int:
        return len(self.held) + self.unweighted

    def at(self, theta: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return log L and the energy of each trial at theta, off by less than a quarter of the slack."""
        point = np.array(theta)
        linear, square = self.scores * point, self.energies * np.outer(point, point)
        size = np.abs(linear).sum(axis=1) + np.abs(square).sum(axis=(1, 2))
        # Sums of k + k^2 products of doubles. Their roundings must be well within the slack.
        if len(size) and not float(size.max()) * (len(point) + 2) ** 2 * 2.0**-52 < 0.25 * SLACK:
            raise ValueError(
                "`scores` and `energies` must be small enough that doubles resolve log ratios. Scale theta."
            )
        energies = square.sum(axis=(1, 2))
        return linear.sum(axis=1) - 0.5 * energies, energies


def _held_lower(
    trials: _Weighed,
    theta: tuple[float, ...],
    ceiling: NDArray[np.float64],
    weights: Sequence[_Weights],
    share: float,
    nominal: float,
) -> float:
    """Return the best lower bound on the probability of the event at theta: by weights, or by Theorem 14."""
    limit = _quadratic(ceiling, theta)
    with precision():
        mu = upper_float(exact(limit).sqrt())
    split = _Trials.split(trials.held, *trials.at(theta), trials.unweighted)
    return max(-fraction_upper(Fraction(_upper(split, limit, weights, share)) - 1), event_lower(nominal, mu))


def _quadratic(matrix: NDArray[np.float64], theta: Sequence[float]) -> Fraction:
    values = [Fraction(value) for value in theta]
    rows = matrix.tolist()
    total = sum((Fraction(rows[i][j]) * a * b for i, a in enumerate(values) for j, b in enumerate(values)), Fraction(0))
    if total < 0:
        raise ValueError("`ceiling` must not have a direction of negative energy.")
    return total


def _net(
    box: Sequence[tuple[float, float]], cells: Sequence[int]
) -> tuple[list[tuple[float, ...]], tuple[Fraction, ...]]:
    """Return the centers of all cells, as doubles, and how far a cell reaches from its center along each coordinate."""
    axes, reaches = [], []
    for (low, high), number in zip(box, cells, strict=True):
        edges = [Fraction(low) + (Fraction(high) - Fraction(low)) * i / number for i in range(number + 1)]
        middles = [float((left + right) / 2) for left, right in pairwise(edges)]
        axes.append(middles)
        # The center was rounded, so the cell may reach a little farther on one side.
        reaches.append(max(max(Fraction(m) - edges[i], edges[i + 1] - Fraction(m)) for i, m in enumerate(middles)))
    return list(product(*axes)), tuple(reaches)


def _gap(ceiling: NDArray[np.float64], reach: Sequence[Fraction]) -> float:
    """Return the size of the shift by any point of the box with these half widths, at most, rounded up."""
    rows = ceiling.tolist()
    total = sum(
        (abs(Fraction(rows[i][j])) * a * b for i, a in enumerate(reach) for j, b in enumerate(reach)), Fraction(0)
    )
    with precision():
        return max(upper_float(exact(total).sqrt()), 0.0)  # not the -0.0 that rounding gives


def _above(ball: arb) -> float:
    """Return a double above the ball, quickly: it may be the second one."""
    return math.nextafter(float(ball.upper()), math.inf)


def _below(ball: arb) -> float:
    """Return a double below the ball, quickly: it may be the second one."""
    return math.nextafter(float(ball.lower()), -math.inf)


def _refuse_ceiling(energies: NDArray[np.float64], ceiling: NDArray[np.float64]) -> None:
    """Refuse a trial whose energy exceeds the ceiling in some direction, by more than rounding."""
    rounding = 1e-9 * max(float(np.abs(ceiling).max()), 1e-300)
    for i, least in _least_eigenvalues(ceiling[None] - energies):
        if not least >= -rounding:
            raise ValueError(
                f"`ceiling` must bound the energy of every path, but trial {i} exceeds it. For a bias it is the "
                "horizon times kappa / sigma^2."
            )
    for i, least in _least_eigenvalues(energies):
        if not least >= -rounding:
            raise ValueError(f"`energies` must have no direction of negative energy, but trial {i} has one.")


def _least_eigenvalues(matrices: NDArray[np.float64]) -> Iterator[tuple[int, float]]:
    return enumerate(np.linalg.eigvalsh(matrices)[:, 0].tolist())


def _flags(held: object) -> NDArray[np.bool_]:
    flags = np.asarray(held)
    if flags.ndim != 1 or flags.dtype != np.bool_:
        raise TypeError(f"`held` must be one bool per trial, got {flags.dtype} of shape {flags.shape}.")
    if not len(flags):
        raise ValueError("`held` must hold at least one trial, got none.")
    return flags


def _table(name: str, values: object, shape: tuple[int, ...]) -> NDArray[np.float64]:
    table = np.asarray(values)
    if table.dtype.kind not in "fiu" or table.dtype.itemsize > 8:
        raise TypeError(f"`{name}` must be an array of doubles, got {table.dtype}.")
    if table.shape != shape:
        raise ValueError(f"`{name}` must have shape {shape}, got {table.shape}.")
    if not np.isfinite(table).all():
        raise ValueError(f"`{name}` must be finite, got nan or infinity.")
    return table.astype(np.float64)


def _box(box: object) -> tuple[tuple[float, float], ...]:
    if isinstance(box, (str, bytes)) or not isinstance(box, Sequence) or not len(box):
        raise TypeError(f"`box` must be a sequence of pairs (least, greatest), got {box!r}.")
    limits = []
    for i, pair in enumerate(box):
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise TypeError(f"`box[{i}]` must be a pair (least, greatest), got {pair!r}.")
        low, high = checks.finite(f"box[{i}][0]", pair[0]), checks.finite(f"box[{i}][1]", pair[1])
        if not low <= high:
            raise ValueError(f"`box[{i}]` must have its least value first, got {low} and {high}.")
        limits.append((low, high))
    return tuple(limits)


def _cells(cells: object, width: int) -> tuple[int, ...]:
    numbers = checks.counts("cells", cells, minimum_length=1)  # type: ignore[arg-type]
    if len(numbers) != width:
        raise ValueError(f"`cells` must have one number for each of {width} coordinates, got {len(numbers)}.")
    for i, number in enumerate(numbers):
        checks.count(f"cells[{i}]", number, minimum=1)
    if not math.prod(numbers) <= _MOST_POINTS:
        raise ValueError(f"`cells` must make at most {_MOST_POINTS} cells, got {math.prod(numbers)}.")
    return numbers


def _truncations(truncations: object) -> tuple[float, ...]:
    if isinstance(truncations, (str, bytes)) or not isinstance(truncations, Sequence) or not len(truncations):
        raise TypeError(f"`truncations` must be a sequence of numbers, got {truncations!r}.")
    cuts = tuple(checks.finite(f"truncations[{i}]", tau) for i, tau in enumerate(truncations))
    for i, tau in enumerate(cuts):
        if not (tau == 0.0 or 1.0 <= tau <= 1e100):
            raise ValueError(f"`truncations[{i}]` must be 0 or in [1, 1e100], got {tau}.")
    return cuts
