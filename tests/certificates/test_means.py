"""Certified means, quantiles and tails: exact worst-case tilting, exact coverage, signs, refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement, product

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfs.certificates import means
from ccfs.certificates.documents import CertificateError
from ccfs.certificates.means import Total, TotalCertificate, certify_totals

SIZES = (0.0, 0.3, 1.0)
VALUES = (0.0, 1.0, 4.0)
Law = dict[float, Fraction]


def study(totals, **options) -> TotalCertificate:
    arguments = {"kind": "cost", "lowest": 0.0, "highest": 4.0, "delta": 0.1, "family": 1, "sampling": "cohort"}
    return certify_totals(totals, **{**arguments, **options})


@cache
def kept(p: float, mu: float) -> float:
    if p <= 0.0 or p >= 1.0:
        return min(max(p, 0.0), 1.0)
    return float(mpmath.ncdf(-mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(p)) - mpmath.mpf(mu)))


def worst_mean(law: Law, mu: float) -> float:
    """The greatest expectation that a shift of size mu reaches, by Neyman-Pearson tilting of the whole law."""
    below, total, ordered = 0.0, 0.0, sorted(law)
    for left, right in zip(ordered, [*ordered[1:], None], strict=True):
        below += float(law[left])
        if right is not None:
            total += (right - left) * (1.0 - kept(below, mu))
    return ordered[0] + total


def mixture(laws: Sequence[Law]) -> Law:
    return {value: sum((law.get(value, Fraction(0)) for law in laws), Fraction(0)) / len(laws) for value in VALUES}


def test_worst_mean_is_attained_by_exponential_tilting_of_a_normal() -> None:
    """Oracle of the oracle: C = 1 if Z > 0.4 and 4 if Z > 1.2. A shift of the normal Z by mu is the worst one."""
    law = {value: Fraction(chance) for value, chance in zip(VALUES, _chances(0.4, 1.2, 0.0), strict=True)}
    for mu in SIZES:
        shifted = dict(zip(VALUES, _chances(0.4, 1.2, mu), strict=True))
        assert worst_mean(law, mu) == pytest.approx(sum(v * p for v, p in shifted.items()), abs=1e-12)


def _chances(low: float, high: float, mean: float) -> list[float]:
    above = [0.5 * math.erfc((edge - mean) / math.sqrt(2.0)) for edge in (low, high)]
    return [1.0 - above[0], above[0] - above[1], above[1]]


@given(st.lists(st.integers(0, 20), min_size=3, max_size=3).filter(any), st.floats(0.0, 3.0))
def test_both_bounds_of_an_expectation_are_above_exact_tilting(weights: list[int], mu: float) -> None:
    """With the true mean, variance and band instead of bounds on them, neither bound is below the worst case."""
    law = {value: Fraction(weight, sum(weights)) for value, weight in zip(VALUES, weights, strict=True)}
    mean = sum(Fraction(value) * mass for value, mass in law.items())
    variance = sum((Fraction(value) - mean) ** 2 * mass for value, mass in law.items())
    levels, below = [], 0.0
    for value in VALUES:
        below += float(law[value])
        levels.append((value, min(below, 1.0)))
    exact = replace(
        study([0.0, 1.0]), mean=float(mean), variance=float(variance), band=tuple(pair for pair in levels if pair[1])
    )
    truth = worst_mean(law, mu)
    assert exact._by_moments(mu) >= truth - 1e-9
    assert exact._by_band(mu, 0.0, 1.0) == pytest.approx(truth, abs=1e-9)
    assert exact.expected(mu) >= truth - 1e-9


def outcomes(laws: Sequence[Law], draws: int) -> dict[tuple[tuple[float, ...], ...], Fraction]:
    """The law of the totals of all strata, exactly, with equal ones collected."""
    joint: dict[tuple[tuple[float, ...], ...], Fraction] = {(): Fraction(1)}
    for law in laws:
        unit: dict[tuple[float, ...], Fraction] = {}
        for values in product(VALUES, repeat=draws):
            mass = math.prod((law[value] for value in values), start=Fraction(1))
            key = tuple(sorted(values)) if draws > 1 else values
            unit[key] = unit.get(key, Fraction(0)) + mass
        joint = {
            (*strata, key): mass * chance
            for (strata, mass), (key, chance) in product(joint.items(), unit.items())
            if mass * chance
        }
    return joint


@cache
def claims(strata: tuple[tuple[float, ...], ...], sampling: str, delta: float) -> TotalCertificate:
    return study(strata, sampling=sampling, delta=delta)


LAWS: list[Law] = [
    dict(zip(VALUES, map(Fraction, chances), strict=True))
    for chances in (("1", "0", "0"), ("1/2", "1/2", "0"), ("3/5", "0", "2/5"), ("0", "1/4", "3/4"), ("0", "0", "1"))
]


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.9, 0.5])
@pytest.mark.parametrize(("number", "draws"), [(5, 1), (3, 2)])
def test_claims_about_cohorts_fail_with_probability_at_most_delta_by_enumeration(number, draws, delta) -> None:
    """Every cohort from a list of laws. A failure at any size, limit or level counts, because all hold together."""
    worst = Fraction(0)
    for cohort in combinations_with_replacement(LAWS, number):
        truths = {mu: sum(worst_mean(law, mu) for law in cohort) / number for mu in SIZES}
        average = mixture(cohort)
        failing = Fraction(0)
        for strata, mass in outcomes(cohort, draws).items():
            proof = claims(strata, "cohort", delta)
            wrong = any(proof.expected(mu) < truth - 1e-9 for mu, truth in truths.items())
            wrong = wrong or any(
                Fraction(proof.probability(limit, 0.0)) > sum(average[v] for v in VALUES if v <= limit)
                for limit in (0.0, 1.0)
            )
            failing += mass * wrong
        worst = max(worst, failing)
    assert 0 < worst <= Fraction(delta)  # some claims do fail, so the test could


@pytest.mark.slow
@pytest.mark.parametrize("draws", [1, 2])
def test_claims_about_a_law_fail_with_probability_at_most_delta_by_enumeration(draws: int) -> None:
    """Initial states of two kinds, drawn with every share on a grid. Draws at one initial state share its kind."""
    number, delta, worst = 5 - draws, 0.6, Fraction(0)
    for first, second in combinations_with_replacement(LAWS, 2):
        for share in (Fraction(1, 5), Fraction(1, 2)):
            truths = {
                mu: float(1 - share) * worst_mean(first, mu) + float(share) * worst_mean(second, mu) for mu in SIZES
            }
            failing = Fraction(0)
            for kinds in product((0, 1), repeat=number):
                chance = math.prod(((share, 1 - share)[kind == 0] for kind in kinds), start=Fraction(1))
                for strata, mass in outcomes([(first, second)[kind] for kind in kinds], draws).items():
                    proof = claims(strata, "law", delta)
                    if any(proof.expected(mu) < truth - 1e-9 for mu, truth in truths.items()):
                        failing += chance * mass
            worst = max(worst, failing)
    assert 0 < worst <= Fraction(delta)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.5, 0.1])
def test_band_fails_with_probability_at_most_delta_by_enumeration(delta: float) -> None:
    """All points of the band together, for every cohort of seven draws from a list of laws on three values."""
    worst = Fraction(0)
    issued: dict[tuple[float, ...], TotalCertificate] = {}
    for cohort in combinations_with_replacement(LAWS[1:4], 7):
        average = mixture(cohort)
        counts: dict[tuple[float, ...], Fraction] = {(): Fraction(1)}
        for law in cohort:
            grown: dict[tuple[float, ...], Fraction] = {}
            for (values, mass), (value, chance) in product(counts.items(), law.items()):
                if mass * chance:
                    key = tuple(sorted((*values, value)))
                    grown[key] = grown.get(key, Fraction(0)) + mass * chance
            counts = grown
        failing = Fraction(0)
        for values, mass in counts.items():
            proof = issued.setdefault(values, study(values, delta=delta))
            if any(Fraction(p) > sum(average[v] for v in VALUES if v <= x) for x, p in proof.band):
                failing += mass
        worst = max(worst, failing)
    assert 0 <= worst <= Fraction(delta) / 2  # the band has half of delta
    assert any(proof.band for proof in issued.values())


def test_returns_are_costs_with_the_sign_turned() -> None:
    rng = np.random.default_rng(4)
    values = rng.normal(3.0, 2.0, size=300).clip(-10.0, 20.0)
    returns = study(values, kind="return", lowest=-10.0, highest=20.0)
    costs = study(-values, kind="cost", lowest=-20.0, highest=10.0)
    assert returns.kind is Total.RETURN
    for mu in SIZES:
        assert returns.expected(mu) == -costs.expected(mu)
        assert returns.quantile(0.6, mu) == -costs.quantile(0.6, mu)
        assert returns.cvar(0.7, mu) == -costs.cvar(0.7, mu)
        assert returns.probability(1.0, mu) == costs.probability(-1.0, mu)
    assert returns.mean < values.mean() < -costs.mean + 2 * (values.mean() - returns.mean)


def test_strata_use_the_variance_within_them() -> None:
    """Initial states at 0 or 400 with little noise: the variance between them is no matter of a shift."""
    rng = np.random.default_rng(5)
    levels = np.repeat([0.0, 400.0], 500)
    pairs = np.stack([levels + rng.uniform(0.0, 5.0, size=1000) for _ in range(2)], axis=1)
    options = {"highest": 500.0, "delta": 0.001}
    apart = study(pairs, **options)
    mixed = study(rng.permutation(pairs[:, 0]), **options)
    assert apart.variance < 0.1 * mixed.variance
    assert apart.expected(0.5) < mixed.expected(0.5)
    # Draws at one initial state are not independent draws of the law. So its mean has the units of the strata.
    assert study(pairs, sampling="law", **options).mean > apart.mean


@given(st.lists(st.sampled_from(range(len(LAWS))), min_size=2, max_size=5))
def test_spreads_have_a_mean_of_at_least_the_average_variance(kinds: list[int]) -> None:
    """Exactly, for every number of trials, odd ones too: no member of a cohort is left out."""
    cohort = [LAWS[kind] for kind in kinds]
    variance = Fraction(0)
    for law in cohort:
        mean = sum(Fraction(value) * mass for value, mass in law.items())
        variance += sum((Fraction(value) - mean) ** 2 * mass for value, mass in law.items()) / len(cohort)
    found = Fraction(0)
    for strata, mass in outcomes(cohort, 1).items():
        values, greatest, factor = means._spreads(strata)
        assert max(values) <= greatest * 4**2
        found += mass * factor * sum(values, Fraction(0)) / len(values)
    assert found >= variance


@given(
    st.lists(st.floats(0.0, 4.0), min_size=4, max_size=40),
    st.floats(0.0, 2.0),
    st.floats(0.0, 2.0),
    st.floats(0.05, 0.95),
)
def test_bounds_worsen_with_the_size_and_are_consistent(values, mu, more, level) -> None:
    proof = study(values, delta=0.3)
    assert proof.expected(mu) <= proof.expected(mu + more) <= 4.0
    assert proof.quantile(level, mu) <= proof.quantile(level, mu + more)
    assert proof.cvar(level, mu) >= proof.quantile(level, mu)
    assert proof.cvar(level, mu) <= 4.0
    limit = proof.quantile(level, mu)
    assert proof.probability(limit, mu) >= level or limit == 4.0
    assert proof.probability(4.0, mu) == 1.0
    assert proof.probability(-1.0, mu) == 0.0


def test_cvar_is_at_least_the_expectation_of_the_band_and_reaches_it() -> None:
    """At a level close to 0 the worst share is everything, and the bound is that of the band alone."""
    proof = study([0.0] * 50 + [1.0] * 30 + [2.0] * 20, delta=0.01)
    for mu in SIZES:
        assert proof.cvar(1e-12, mu) == pytest.approx(proof._by_band(mu, 0.0, 1.0), rel=1e-9)
        assert proof.cvar(0.5, mu) >= proof._by_band(mu, 0.0, 1.0)


def test_infinite_shift_leaves_the_range() -> None:
    proof = study([1.0] * 100)
    assert proof.expected(math.inf) == 4.0
    assert proof.quantile(0.5, math.inf) == 4.0
    assert proof.probability(1.0, math.inf) == 0.0
    assert proof.expected(1e6) == 4.0


def test_certificate_survives_json_and_refuses_what_its_totals_do_not_give() -> None:
    proof = study([[0.0, 1.0], [2.0, 0.5], [0.25, 4.0]] * 20, sampling="law", family=2)
    assert TotalCertificate.from_json(proof.to_json()) == proof
    assert "in [0.0, 4.0], with and without shift" in proof.premises[1]
    with pytest.raises(CertificateError, match="`mean` is"):
        replace(proof, mean=proof.mean / 2).recheck()
    document = json.loads(proof.to_json())
    for name, value, message in (
        ("mean", 0.0, "`mean` is 0.0 on the certificate"),
        ("variance", 0.0, "`variance` is 0.0 on the certificate"),
        ("band", [[0.0, 1.0]], "`band` is"),
        ("premises", [], "`premises` is"),
        ("highest", 3.0, r"`totals` must be in \[0.0, 3.0\], got 4.0 at 2"),
        ("totals", [1.0], "at least two initial states"),
        ("kind", "loss", "`kind` must be 'cost' or 'return', got 'loss'"),
        ("extra", 1, "unknown entries on the certificate: extra"),
        ("format", "ccfs/totals/0", "has the format"),
    ):
        with pytest.raises(CertificateError, match=message):
            TotalCertificate.from_json(json.dumps({**document, name: value}))
    del document["delta"]
    with pytest.raises(CertificateError, match="KeyError: 'delta'"):
        TotalCertificate.from_json(json.dumps(document))


def test_bounds_are_on_the_safe_side_at_60_digits() -> None:
    """The moments bound from its own mean and variance, and the integral of the band, against mpmath."""
    rng = np.random.default_rng(6)
    for _ in range(20):
        proof = study(rng.uniform(0.0, 4.0, size=50), delta=0.01)
        mu = float(rng.uniform(0.0, 2.0))
        with mpmath.workdps(60):
            spread = mpmath.expm1(mpmath.mpf(mu) ** 2) * mpmath.mpf(proof.variance)
            moments = mpmath.mpf(proof.mean) + mpmath.sqrt(spread)
            assert moments <= proof._by_moments(mu) <= moments * (1 + mpmath.mpf(10) ** -14)
            edges = [0.0, *(x for x, _ in proof.band), 4.0]
            kept_at = [mpmath.mpf(0)] + [
                mpmath.ncdf(-mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(p)) - mpmath.mpf(mu))
                for _, p in proof.band
            ]
            cells = zip(edges[:-1], edges[1:], kept_at, strict=True)
            band = sum((mpmath.mpf(b) - mpmath.mpf(a)) * (1 - p) for a, b, p in cells)
            assert band <= proof._by_band(mu, 0.0, 1.0) <= band * (1 + mpmath.mpf(10) ** -14)


@pytest.mark.parametrize(
    ("totals", "change", "error", "message"),
    [
        ([1.0], {}, ValueError, "at least two initial states, got 1"),
        ([], {}, ValueError, "at least two initial states, got 0"),
        ([1.0, math.nan], {}, ValueError, r"`totals\[1\]` must be a number, got nan"),
        ([1.0, math.inf], {}, ValueError, r"`totals\[1\]` must be finite, got inf"),
        ([1.0, 5.0], {}, ValueError, r"`totals` must be in \[0.0, 4.0\], got 5.0 at 1"),
        ([[1.0, 1.0], [3.0, 5.0]], {"sampling": "law"}, ValueError, r"`totals` must be in \[0.0, 4.0\], got 5.0 at 1"),
        ([[1.0], [1.0, 2.0]], {}, ValueError, "or at least two at each, got 1 to 2"),
        ([[1.0], []], {}, ValueError, "or at least two at each, got 0 to 1"),
        ("12", {}, TypeError, "`totals` must be a sequence"),
        ([True, False], {}, TypeError, r"`totals\[0\]` must be a real number"),
        ([1.0, 2.0], {"delta": 1.0}, ValueError, r"`delta` must be in \(0, 1\)"),
        ([1.0, 2.0], {"family": 0}, ValueError, "`family` must be at least 1"),
        ([1.0, 2.0], {"kind": "loss"}, ValueError, "`kind` must be 'cost' or 'return'"),
        ([1.0, 2.0], {"sampling": "iid"}, ValueError, "`sampling` must be one of"),
        ([1.0, 2.0], {"lowest": 4.0}, ValueError, "`highest` must exceed `lowest`"),
        ([1.0, 2.0], {"highest": math.inf}, ValueError, "`highest` must be finite"),
    ],
)
def test_certify_totals_refuses(totals, change, error, message) -> None:
    with pytest.raises(error, match=message):
        study(totals, **change)


@pytest.mark.parametrize("value", [-0.1, math.nan, -math.inf])
def test_methods_refuse_sizes_and_levels(value: float) -> None:
    proof = study([1.0, 2.0, 3.0])
    for call in (proof.expected, lambda mu: proof.quantile(0.5, mu), lambda mu: proof.probability(1.0, mu)):
        with pytest.raises(ValueError, match="`mu` must be"):
            call(value)
    for call in (proof.quantile, proof.cvar):
        with pytest.raises(ValueError, match="`level` must be"):
            call(value, 0.0)
    with pytest.raises(ValueError, match="`limit` must be"):
        proof.probability(math.nan, 0.0)
