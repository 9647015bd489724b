"""Stratified certificates: exact means of the evidence, exact coverage, 60 digits, a rule that fails on a law."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement, pairwise, product

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccfs.certificates import stratified
from ccfs.certificates.binomial import cohort_lower
from ccfs.certificates.bounds import Sampling
from ccfs.certificates.documents import CertificateError
from ccfs.certificates.gaussian import event_lower
from ccfs.certificates.schedule import ProposalSchedule, Schedule
from ccfs.certificates.stratified import GRID, StratifiedCertificate, certify_strata, stratified_evidence
from ccfs.certificates.trajectory import PREMISES, mu_certified

BLOCK = ProposalSchedule(count=1, sigma=0.2)
BOTH = ("cohort", "law")
PROBABILITIES = tuple(Fraction(i, 10) for i in range(11))


def certificate(counts, draws=30, *, sampling="cohort", delta=0.001, target=0.5, **options) -> StratifiedCertificate:
    return certify_strata(
        [0] * len(counts),
        0,
        counts,
        draws,
        delta=delta,
        family=options.pop("family", 1),
        target=target,
        schedule=BLOCK,
        sampling=sampling,
        **options,
    )


@cache
def kept(p: Fraction | float, mu: float) -> mpmath.mpf:
    """h_mu(p) by mpmath, from its definition."""
    number = mpmath.mpf(p.numerator) / p.denominator if isinstance(p, Fraction) else mpmath.mpf(p)
    if number in (0, 1):
        return number
    return mpmath.ncdf(-mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * number) - mpmath.mpf(mu))


@cache
def binomial(successes: int, draws: int, p: Fraction) -> Fraction:
    return math.comb(draws, successes) * p**successes * (1 - p) ** (draws - successes)


@pytest.mark.slow
@pytest.mark.parametrize(("pilot", "draws"), [((0, 0), 1), ((0, 0), 2), ((2, 3), 4), ((0, 2), 9), ((0, 0), 30)])
@pytest.mark.parametrize("mu", [0.0, 0.7, 2.0])
@pytest.mark.parametrize(
    ("sampling", "bets"), [("cohort", 0.125), ("cohort", 1.0), ("cohort", 8.0), ("law", 0.125), ("law", 0.9375)]
)
def test_evidence_of_one_stratum_has_a_mean_of_at_most_one_under_the_hypothesis(
    sampling, bets, pilot, draws, mu, monkeypatch
) -> None:
    """The core of the proof, exactly and for one bet alone: for every p with h_mu(p) <= q, up to the boundary.

    A small bet that is fair has a mean close to 1 at the boundary. So a factor that is too large would show.
    """
    monkeypatch.setattr(stratified, "_STRENGTHS", (bets / math.sqrt(draws),))
    monkeypatch.setattr(stratified, "_SHARES", (bets,))
    target = 0.55
    evidence = [
        stratified_evidence([pilot[0]], pilot[1], [s], draws, mu=mu, target=target, sampling=sampling)
        for s in range(draws + 1)
    ]
    with mpmath.workdps(40):
        boundary = mpmath.ncdf(mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(target) - 1) + mpmath.mpf(mu))
        edge = Fraction(math.floor(boundary * 2**60), 2**60)
        for p in [Fraction(0), *(edge * i / 40 for i in range(1, 41))]:
            mean = mpmath.fsum(
                mpmath.exp(mpmath.mpf(value)) * mpmath.mpf(mass.numerator) / mass.denominator
                for s, value in enumerate(evidence)
                if (mass := binomial(s, draws, p))
            )
            assert mean <= 1
        assert mean > 0.9 or bets > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 0.8])
@pytest.mark.parametrize("bets", [0.0625, 0.5])
def test_evidence_of_unequal_strata_has_a_mean_of_at_most_one_under_the_hypothesis(mu, bets, monkeypatch) -> None:
    """Three strata with 1, 2 and 3 draws and every p on a grid whose average of h_mu(p) is at most q, for one bet."""
    monkeypatch.setattr(stratified, "_STRENGTHS", (bets,))
    monkeypatch.setattr(stratified, "_SHARES", (bets,))
    target, draws = 0.5, (1, 2, 3)
    outcomes = list(product(*(range(k + 1) for k in draws)))
    for sampling in BOTH:
        evidence = {
            s: math.exp(stratified_evidence([0] * 3, 0, s, draws, mu=mu, target=target, sampling=sampling))
            for s in outcomes
        }
        greatest = 0.0
        for chances in product(PROBABILITIES, repeat=3):
            if sum(kept(p, mu) for p in chances) / 3 > target:
                continue
            masses = (
                math.prod(float(binomial(*entry)) for entry in zip(s, draws, chances, strict=True)) for s in outcomes
            )
            greatest = max(greatest, math.fsum(mass * evidence[s] for mass, s in zip(masses, outcomes, strict=True)))
        # Doubles suffice here: 24 products of a few roundings each.
        assert greatest <= 1.0 + 1e-13
        assert greatest > 0.9 or bets > 0.1


def sorted_counts(laws: Sequence[dict[Fraction, Fraction]], draws: int) -> dict[tuple[int, ...], Fraction]:
    """The law of the sorted counts when stratum i has a probability drawn from laws[i], exactly."""
    joint: dict[tuple[int, ...], Fraction] = {(): Fraction(1)}
    for law in laws:
        unit = [sum(weight * binomial(s, draws, p) for p, weight in law.items()) for s in range(draws + 1)]
        grown: dict[tuple[int, ...], Fraction] = {}
        for (counts, mass), (s, chance) in product(joint.items(), enumerate(unit)):
            if mass * chance:
                key = tuple(sorted((*counts, s)))
                grown[key] = grown.get(key, Fraction(0)) + mass * chance
        joint = grown
    return joint


STRATA, DRAWS, SIZES, TARGET = 8, 2, (0.0, 0.1, 0.3, 0.6), 0.3


@cache
def claimed(sampling: str, delta: float) -> dict[tuple[int, ...], float | None]:
    """The certified mu of every outcome of eight strata with two draws each."""
    return {
        s: certificate(s, DRAWS, sampling=sampling, delta=delta, target=TARGET, grid=SIZES).mu
        for s in combinations_with_replacement(range(DRAWS + 1), STRATA)
    }


def false_claims(laws: Sequence[dict[Fraction, Fraction]], sampling: str, delta: float) -> Fraction:
    """The exact probability of a claim whose average at its mu is below the target."""
    truth = {mu: sum(float(mass) * kept(p, mu) for law in laws for p, mass in law.items()) / len(laws) for mu in SIZES}
    claims = claimed(sampling, delta)
    return sum(
        (
            mass
            for counts, mass in sorted_counts(laws, DRAWS).items()
            if (mu := claims[counts]) is not None and truth[mu] < TARGET - 1e-12
        ),
        Fraction(0),
    )


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.5, 0.1])
def test_cohort_claims_are_false_with_probability_at_most_delta_by_enumeration(delta: float) -> None:
    """Every cohort of eight strata with p on a grid, every outcome."""
    assert any(mu is not None and mu > 0.0 for mu in claimed("cohort", delta).values())
    worst = max(
        false_claims([{p: Fraction(1)} for p in cohort], "cohort", delta)
        for cohort in combinations_with_replacement([Fraction(i, 20) for i in (0, 5, 8, 14, 20)], STRATA)
    )
    assert 0 < worst <= Fraction(delta)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.5, 0.1])
def test_law_claims_are_false_with_probability_at_most_delta_by_enumeration(delta: float) -> None:
    """Every law with two atoms on a grid, every outcome of eight initial states."""
    assert any(mu is not None and mu > 0.0 for mu in claimed("law", delta).values())
    worst = Fraction(0)
    for low, high in combinations_with_replacement(PROBABILITIES, 2):
        for weight in (Fraction(i, 8) for i in range(9)):
            law = {low: 1 - weight, high: weight} if low != high else {low: Fraction(1)}
            worst = max(worst, false_claims([law] * STRATA, "law", delta))
    assert 0 < worst <= Fraction(delta)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.5, 0.2])
def test_law_claims_are_false_with_probability_at_most_delta_at_the_best_moment_to_stop(delta: float) -> None:
    """A run that stops at the first false claim it can make, over every law with two atoms on a grid."""
    claims = {
        s: certificate(s, DRAWS, sampling="law", delta=delta, target=TARGET, grid=SIZES).mu
        for strata in range(1, 7)
        for s in combinations_with_replacement(range(DRAWS + 1), strata)
    }
    worst = at_end = Fraction(0)
    for low, high in combinations_with_replacement(PROBABILITIES, 2):
        for weight in (Fraction(i, 4) for i in range(5)):
            law = {low: 1 - weight, high: weight} if low != high else {low: Fraction(1)}
            truth = {mu: sum(float(mass) * kept(p, mu) for p, mass in law.items()) for mu in SIZES}
            unit = [sum(mass * binomial(s, DRAWS, p) for p, mass in law.items()) for s in range(DRAWS + 1)]
            alive, stopped = {(): Fraction(1)}, Fraction(0)
            for _ in range(6):
                grown: dict[tuple[int, ...], Fraction] = {}
                for (counts, mass), (s, chance) in product(alive.items(), enumerate(unit)):
                    key = tuple(sorted((*counts, s)))
                    mu = claims[key]
                    if mu is not None and truth[mu] < TARGET - 1e-12:
                        stopped += mass * chance
                    elif mass * chance:
                        grown[key] = grown.get(key, Fraction(0)) + mass * chance
                alive = grown
            worst = max(worst, stopped)
            at_end = max(
                at_end,
                sum(
                    (
                        mass
                        for counts, mass in sorted_counts([law] * 6, DRAWS).items()
                        if (mu := claims[counts]) is not None and truth[mu] < TARGET - 1e-12
                    ),
                    Fraction(0),
                ),
            )
    assert at_end < worst <= Fraction(delta)  # stopping helps, and not beyond delta


@pytest.mark.slow
@pytest.mark.parametrize("sampling", BOTH)
def test_claims_with_a_pilot_are_false_with_probability_at_most_delta_by_enumeration(sampling: str) -> None:
    """Four strata with one pilot draw and two main draws each, p on a grid, every outcome."""
    strata, delta, target = 4, 0.5, 0.5
    kinds = list(product(range(2), range(3)))

    def mu_of(outcome) -> float | None:
        pilot, main = ([entry[i] for entry in outcome] for i in (0, 1))
        options = {"delta": delta, "family": 1, "target": target, "schedule": BLOCK, "sampling": sampling}
        return certify_strata(pilot, 1, main, 2, grid=SIZES, **options).mu

    claims = {outcome: mu_of(outcome) for outcome in combinations_with_replacement(kinds, strata)}
    worst = Fraction(0)
    for chances in combinations_with_replacement([Fraction(i, 10) for i in (0, 2, 4, 5, 8, 10)], strata):
        truth = {mu: sum(kept(p, mu) for p in chances) / strata for mu in SIZES}
        masses: dict[tuple[tuple[int, int], ...], Fraction] = {(): Fraction(1)}
        for p in chances:
            grown: dict[tuple[tuple[int, int], ...], Fraction] = {}
            for (seen, mass), kind in product(masses.items(), kinds):
                key = tuple(sorted((*seen, kind)))
                grown[key] = grown.get(key, Fraction(0)) + mass * binomial(kind[0], 1, p) * binomial(kind[1], 2, p)
            masses = grown
        wrong = (mass for o, mass in masses.items() if (mu := claims[o]) is not None and truth[mu] < target - 1e-12)
        worst = max(worst, sum(wrong, Fraction(0)))
    assert worst <= Fraction(delta)
    assert any(mu is not None for mu in claims.values())


@pytest.mark.slow
def test_cohort_rule_is_wrong_on_a_law_and_the_rule_for_a_law_is_not() -> None:
    """Initial states that always or never succeed: 45% of the law succeed, so "at least 1/2" is false at every mu.

    The cohort rule sees the drawn initial states only. When 10 of 16 are good it claims one half, and rightly so for
    these 16. As a claim about the law it fails far more often than delta = 0.05.
    """
    strata, draws, share = 16, 400, Fraction(45, 100)
    false = dict.fromkeys(BOTH, Fraction(0))
    for good in range(strata + 1):
        counts = [draws] * good + [0] * (strata - good)
        for sampling in BOTH:
            if certificate(counts, draws, sampling=sampling, delta=0.05, grid=[0.0]).is_certified:
                false[sampling] += binomial(good, strata, share)
    assert false["cohort"] > Fraction(3, 20)
    assert false["law"] <= Fraction(1, 20)


def exact_evidence(counts, draws: int, mu: float, target: float, sampling: str) -> mpmath.mpf:
    """The docstring's evidence without a pilot, at the working digits and without any rounding to doubles."""
    strata = len(counts)
    a, b = (mpmath.mpf(value) for value in stratified.PRIOR)

    def tangent(at: float) -> tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]:
        point = mpmath.mpf(at)
        quantile = -mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * point)
        return point, mpmath.ncdf(quantile - mu), mpmath.exp(mpmath.mpf(mu) * quantile - mpmath.mpf(mu) ** 2 / 2)

    def chosen(seen: int, held_out: int) -> tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]:
        point = (seen + a) / (held_out + a + b)
        return tangent(min(max(float(point), 1 - stratified.CAP), stratified.CAP))

    terms = []
    if sampling == "cohort":
        for strength in stratified._STRENGTHS:
            total = strength * mpmath.sqrt(mpmath.mpf(draws) / strata)
            block = min(max(int(mpmath.ceil(6 * total)), 1), max(draws // 2, 1))
            stake = total / block
            usable = [line for line in map(tangent, stratified._SPARE) if stake * line[2] * line[0] <= 0.95]
            product_ = mpmath.mpf(1)
            for s in counts:
                average = mpmath.mpf(0)
                for won in range(max(0, s - draws + block), min(block, s) + 1):
                    weight = mpmath.mpf(math.comb(block, won) * math.comb(draws - block, s - won)) / math.comb(draws, s)
                    at, height, slope = chosen(s - won, draws - block)
                    if stake * slope * at > 0.95:
                        at, height, slope = usable[-1]
                    gain = (1 + stake * slope * (1 - at)) ** won * (1 - stake * slope * at) ** (block - won)
                    average += weight * gain * mpmath.exp(total * (height - mpmath.mpf(target)))
                product_ *= average
            terms.append(product_)
        return mpmath.log(sum(terms) / len(terms))

    def held_out_mean(s: int) -> mpmath.mpf:
        value = mpmath.mpf(0)
        for outcome, number in ((1, s), (0, draws - s)):
            if number:
                at, height, slope = chosen(s - outcome, draws - 1)
                value += number * (height + slope * (outcome - at)) / draws
        return value

    table = [held_out_mean(s) for s in range(draws + 1)]
    room = mpmath.mpf(target) - min(table)
    for share in stratified._SHARES:
        terms.append(mpmath.fprod(1 + share / room * (table[s] - mpmath.mpf(target)) for s in counts))
    return mpmath.log(sum(terms) / len(terms))


@pytest.mark.slow
@pytest.mark.parametrize("sampling", BOTH)
@pytest.mark.parametrize(
    ("counts", "mu", "target"),
    [([12, 0, 7], 0.0, 0.3), ([12, 12, 11, 3], 1.3, 0.5), ([5], 0.4, 0.9), ([0, 1], 2.0, 0.1)],
)
def test_evidence_is_the_docstrings_at_60_digits(counts, mu, target, sampling) -> None:
    """Bets and stakes are doubles, so the last bits may differ. The tests above show that they are on the safe side."""
    issued = stratified_evidence([0] * len(counts), 0, counts, 12, mu=mu, target=target, sampling=sampling)
    with mpmath.workdps(60):
        assert abs(issued - exact_evidence(counts, 12, mu, target, sampling)) < 1e-11


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.integers(1, 8),
    st.integers(0, 3),
    st.floats(0.0, 4.0),
    st.floats(0.02, 0.98),
    st.floats(0.0, 1.0),
    st.tuples(st.floats(0.01, 5.0), st.floats(0.01, 5.0)),
    st.floats(0.5, 0.9999),
    st.sampled_from([("cohort", 0.01), ("cohort", 0.7), ("cohort", 30.0), ("law", 0.01), ("law", 0.9375)]),
)
def test_issued_evidence_is_on_the_safe_side_at_60_digits(draws, pilot, mu, target, p, prior, cap, bet) -> None:
    """For random plans, one bet and every p: the exact mean of the issued doubles is at most what the proof allows."""
    sampling, size = bet
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stratified, "_STRENGTHS", (size / math.sqrt(draws),))
        patch.setattr(stratified, "_SHARES", (size,))
        issued = [
            stratified_evidence([pilot], 3, [s], draws, mu=mu, target=target, sampling=sampling, prior=prior, cap=cap)
            for s in range(draws + 1)
        ]
    with mpmath.workdps(60):
        chance = Fraction(p)
        mean = mpmath.fsum(
            mpmath.exp(mpmath.mpf(value)) * mpmath.mpf(mass.numerator) / mass.denominator
            for s, value in enumerate(issued)
            if (mass := binomial(s, draws, chance))
        )
        excess = kept(p, mu) - mpmath.mpf(target)
        if sampling == "cohort":
            # A is `size` up to the rounding of its square roots.
            assert mean <= mpmath.exp(size * excess) * (1 + mpmath.mpf(2) ** -45)
        elif excess <= 0:
            assert mean <= 1


def test_certificate_gains_on_strata_that_differ_and_loses_little_where_they_do_not() -> None:
    """Against `cohort_lower` from the same trials. Counts are the rounded quantiles of two families of p_i."""
    differ = [30] * 160 + [27] * 40 + [15] * 16 + [2] * 40
    alike = [24] * 256
    for counts, least, most in ((differ, 1.6, 2.2), (alike, 0.8, 1.0)):
        plain = mu_certified(cohort_lower(sum(counts), 256 * 30, delta=0.001 / 6), 0.5)
        ours = certificate(counts, family=6).mu
        assert plain is not None
        assert ours is not None
        assert least < ours / plain < most


def test_pilot_moves_the_tangents_and_is_not_counted() -> None:
    counts = [30] * 40 + [4] * 24
    arguments = {"mu": 0.8, "target": 0.5, "sampling": "cohort"}
    plain = stratified_evidence([0] * 64, 0, counts, 30, **arguments)
    right = stratified_evidence([8] * 40 + [1] * 24, 8, counts, 30, **arguments)
    wrong = stratified_evidence([0] * 40 + [8] * 24, 8, counts, 30, **arguments)
    assert wrong < plain < right
    # A pilot alone proves nothing, however good it is.
    assert stratified_evidence([50] * 64, 50, [0] * 64, 1, **arguments) < 0.0


def test_law_may_stop_after_any_stratum_because_bets_do_not_depend_on_their_number() -> None:
    """The evidence of one more stratum is a fixed mixture of products, so prefixes multiply bet by bet."""
    counts = [12, 3, 12, 9, 12]
    for share in stratified._SHARES:
        assert 0.0 < share < 1.0
    assert "may have stopped after any complete initial state" in certificate(counts, 12, sampling="law").premises[0]
    assert "may have stopped" not in certificate(counts, 12, sampling="cohort").premises[0]
    longer = [stratified_evidence([0] * m, 0, counts[:m], 12, mu=0.5, target=0.5, sampling="law") for m in range(1, 6)]
    with mpmath.workdps(60):
        for m, value in enumerate(longer, start=1):
            assert value <= exact_evidence(counts[:m], 12, 0.5, 0.5, "law")


@pytest.mark.slow
@given(st.lists(st.integers(0, 8), min_size=2, max_size=9), st.sampled_from(BOTH))
def test_mu_falls_with_the_target_and_grows_with_delta(counts, sampling) -> None:
    grid = [0.0, 0.3, 0.6]

    def mu(target: float, delta: float) -> float:
        found = certificate(counts, 8, sampling=sampling, target=target, delta=delta, grid=grid).mu
        return -1.0 if found is None else found

    assert mu(0.2, 0.4) >= mu(0.4, 0.4) >= mu(0.6, 0.4)
    assert mu(0.3, 0.5) >= mu(0.3, 0.1) >= mu(0.3, 0.001)


def test_curve_is_flat_up_to_mu_and_follows_the_composition_rule_beyond() -> None:
    proof = certificate([30] * 190 + [3] * 66)
    assert proof.mu is not None
    assert proof.budget is not None
    assert proof.lower_at_mu(0.0) == proof.lower_at_mu(proof.mu) == 0.5
    assert proof.lower_at(proof.budget) == 0.5
    # 2.0 - mu is exact in doubles, so the rule can be compared to the bit.
    assert 1.0 < proof.mu < 2.0
    assert proof.lower_at_mu(2.0) == event_lower(0.5, 2.0 - proof.mu)
    heights = [height for _, height in proof.curve()]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] == 0.5
    assert heights[-1] < 0.2
    assert proof.lower_at(1e300) == 0.0


@pytest.mark.parametrize("size", [0.1, 0.5, 1.5])
def test_curve_beyond_mu_is_below_the_truth(size: float) -> None:
    """Whatever the p_i with theta(mu_0) = q: the composition rule never exceeds the true average."""
    rng = np.random.default_rng(5)
    for chances in rng.beta(0.5, 0.3, size=(20, 12)):
        first = sum(kept(float(p), 0.7) for p in chances) / 12
        later = sum(kept(float(p), 0.7 + size) for p in chances) / 12
        assert event_lower(float(first) * (1 - 1e-14), size) <= later


def test_uncertified_certificate_has_no_mu_and_no_budget() -> None:
    proof = certificate([3] * 64)
    assert (proof.mu, proof.budget, proof.is_certified) == (None, None, False)
    assert proof.lower_at(0.0) == 0.0
    assert StratifiedCertificate.from_json(proof.to_json()) == proof
    assert all(height == 0.0 for _, height in proof.curve(5))


@pytest.mark.slow
@pytest.mark.parametrize("sampling", BOTH)
def test_certificate_survives_json_and_carries_its_premises(sampling: str) -> None:
    proof = certify_strata(
        [2, 1, 2, 0] * 30,
        2,
        [9, 8, 7, 1] * 30,
        [9, 9, 8, 9] * 30,
        delta=0.01,
        family=2,
        target=0.4,
        schedule=[BLOCK, ProposalSchedule(count=4, sigma=0.1, rho=0.5)],
        sampling=sampling,
        event="goal",
    )
    assert proof.mu is not None
    again = StratifiedCertificate.from_json(proof.to_json())
    assert again == proof
    assert again.to_json() == proof.to_json()
    assert proof.premises[0].startswith(Sampling(sampling).premise)
    # The plans differ, so that stopping early is not covered, also for a law.
    assert "The number of initial states was fixed" in proof.premises[0]
    assert proof.premises[0].endswith("Pilot trajectories are not among the counted ones.")
    assert proof.premises[1:] == PREMISES
    assert proof.budget == pytest.approx(proof.mu / math.sqrt(proof.charge), rel=1e-14)
    assert proof.budget <= proof.mu / math.sqrt(BLOCK.charge)


@pytest.mark.slow
def test_certificate_refuses_what_its_counts_do_not_give() -> None:
    proof = certificate([30] * 60 + [3] * 10)
    assert proof.mu is not None
    forged = replace(proof, mu=proof.mu + 0.02)
    with pytest.raises(CertificateError, match=r"`mu` is .* on the certificate but"):
        forged.recheck()
    with pytest.raises(CertificateError, match="`mu` is"):
        forged.to_json()
    document = json.loads(proof.to_json())
    for name, value, message in (
        ("mu", proof.mu + 0.02, "`mu` is"),
        ("budget", 9.0, "`budget` is 9.0 on the certificate"),
        ("premises", [], "`premises` is"),
        ("sampling", "neither", "`sampling` must be one of 'cohort', 'law'"),
        ("main_draws", [30] * 69, "must be one number or one for each of 70 strata"),
        ("main_successes", [31] + [30] * 69, "`main_successes` must be at most `main_draws`, got 31 of 30 at 0"),
        ("grid", [0.0, 0.0], "`grid` must increase"),
        ("mu", math.inf, "must be finite"),
        ("extra", 1, "unknown entries on the certificate: extra"),
        ("format", "ccfs/strata/0", "has the format"),
    ):
        with pytest.raises(CertificateError, match=message):
            StratifiedCertificate.from_json(json.dumps({**document, name: value}))
    del document["cap"]
    with pytest.raises(CertificateError, match="KeyError: 'cap'"):
        StratifiedCertificate.from_json(json.dumps(document))


def test_certificate_covers_stages_together() -> None:
    """mu^2 adds up over stages: half of each budget's square is the whole."""
    sensor = ProposalSchedule(count=1, sigma={"lidar": 0.05})
    proof = certify_strata(
        [0] * 80,
        0,
        [9, 8, 9, 1] * 20,
        9,
        delta=0.01,
        family=1,
        target=0.4,
        schedule=Schedule(action=BLOCK, sensor=sensor),
        sampling="cohort",
    )
    assert proof.budgets["action"] is not None
    assert proof.budgets["sensor"] is not None
    half = math.sqrt(0.5) * (1 - 1e-12)
    assert proof.lower_at(action=half * proof.budgets["action"], sensor=half * proof.budgets["sensor"]) == 0.4
    assert proof.lower_at(action=proof.budgets["action"], sensor=0.1 * proof.budgets["sensor"]) < 0.4
    assert any("sensor" in premise for premise in proof.premises)
    assert StratifiedCertificate.from_json(proof.to_json()) == proof


def test_default_grid_is_as_documented() -> None:
    assert GRID[0] == 0.0
    assert GRID[-1] == 6.0
    assert {round(after - before, 12) for before, after in pairwise(GRID)} == {0.02}


@pytest.mark.slow
@pytest.mark.parametrize(("pilot", "main"), [(0, 32), (8, 24)])
@pytest.mark.parametrize("sampling", BOTH)
def test_ten_thousand_strata_take_less_than_a_second(pilot: int, main: int, sampling: str) -> None:
    rng = np.random.default_rng(3)
    chances = rng.beta(0.5, 0.2, size=10_000)
    counts = rng.binomial(pilot, chances), rng.binomial(main, chances)
    began = time.process_time()
    proof = certify_strata(
        counts[0], pilot, counts[1], main, delta=0.001, family=6, target=0.5, schedule=BLOCK, sampling=sampling
    )
    assert time.process_time() - began < 1.0
    assert proof.mu is not None
    assert proof.mu > 0.8


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"main_successes": [-1, 2]}, ValueError, r"`main_successes\[0\]` must be at least 0, got -1"),
        ({"main_successes": [5, 2]}, ValueError, "`main_successes` must be at most `main_draws`, got 5 of 4 at 0"),
        ({"main_successes": [2.0, 2]}, TypeError, r"`main_successes\[0\]` must be an integer, got 2.0"),
        ({"main_successes": [math.nan, 2]}, TypeError, r"`main_successes\[0\]` must be an integer, got nan"),
        ({"main_successes": []}, ValueError, "`main_successes` must have at least one stratum, got none"),
        ({"main_draws": 0}, ValueError, "`main_draws` must be at least 1, got 0"),
        ({"main_draws": [4, 0]}, ValueError, r"`main_draws\[1\]` must be at least 1, got 0"),
        ({"main_draws": [4, 4, 4]}, ValueError, "one number or one for each of 2 strata, got 3"),
        ({"main_draws": 4.0}, TypeError, "`main_draws` must be a sequence of integers, got 4.0"),
        ({"main_draws": True}, TypeError, "`main_draws` must be an integer, got True"),
        ({"pilot_successes": [1, 0]}, ValueError, "`pilot_successes` must be at most `pilot_draws`, got 1 of 0 at 0"),
        ({"pilot_successes": [0]}, ValueError, "`pilot_successes` must have one entry for each of 2 strata, got 1"),
        ({"pilot_draws": -1}, ValueError, "`pilot_draws` must be at least 0, got -1"),
        ({"target": 1.0}, ValueError, r"`target` must be in \(0, 1\), got 1.0"),
        ({"target": math.nan}, ValueError, "`target` must be a number, got nan"),
        ({"sampling": "anytime"}, ValueError, "`sampling` must be one of 'cohort', 'law', got 'anytime'"),
        ({"prior": (0.0, 1.0)}, ValueError, r"`prior\[0\]` must be positive"),
        ({"prior": 0.5}, TypeError, "`prior` must be a pair"),
        ({"cap": 1.0}, ValueError, r"`cap` must be in \[0.5, 1\), got 1.0"),
        ({"cap": math.nan}, ValueError, "`cap` must be a number, got nan"),
        ({"delta": 0.0}, ValueError, r"`delta` must be in \(0, 1\)"),
        ({"family": 0}, ValueError, "`family` must be at least 1, got 0"),
        ({"schedule": []}, TypeError, "`schedule` must be a"),
        ({"event": 3}, TypeError, "`event` must be a string"),
        ({"grid": []}, ValueError, "`grid` must hold at least one size"),
        ({"grid": [0.0, 0.5, 0.5]}, ValueError, "`grid` must increase, got 0.5 before 0.5"),
        ({"grid": [0.0, math.nan]}, ValueError, r"`grid\[1\]` must be a number, got nan"),
        ({"grid": [0.0, math.inf]}, ValueError, r"`grid\[1\]` must be finite, got inf"),
        ({"grid": [-0.5, 0.0]}, ValueError, r"`grid\[0\]` must be at least 0, got -0.5"),
    ],
)
def test_certify_strata_refuses(change, error, message) -> None:
    arguments = {
        "pilot_successes": [0, 0],
        "pilot_draws": 0,
        "main_successes": [3, 2],
        "main_draws": 4,
        "delta": 0.1,
        "family": 1,
        "target": 0.5,
        "schedule": BLOCK,
        "sampling": "cohort",
        **change,
    }
    with pytest.raises(error, match=message):
        certify_strata(**arguments)


def test_certify_strata_refuses_a_pilot_that_is_used_again() -> None:
    counts = [3, 2]
    with pytest.raises(ValueError, match="must be counts of other draws than `pilot_successes`, got the same list"):
        certify_strata(counts, 4, counts, 4, delta=0.1, family=1, target=0.5, schedule=BLOCK, sampling="cohort")
    table = np.array([[3, 2], [4, 1]])
    with pytest.raises(ValueError, match="must be counts of other draws than `pilot_successes`"):
        certify_strata(table[0], 4, table[0], 4, delta=0.1, family=1, target=0.5, schedule=BLOCK, sampling="cohort")
    certify_strata(table[0], 4, table[1], 4, delta=0.1, family=1, target=0.5, schedule=BLOCK, sampling="cohort")


@pytest.mark.parametrize(("mu", "message"), [(-0.1, "at least 0"), (math.nan, "got nan"), (math.inf, "must be finite")])
def test_stratified_evidence_refuses_sizes(mu: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stratified_evidence([0], 0, [1], 1, mu=mu, target=0.5, sampling="law")


@pytest.mark.slow
def test_evidence_is_the_same_again_and_finite_at_extremes() -> None:
    first = stratified_evidence([0] * 9, 0, [200] * 9, 200, mu=0.4, target=0.9, sampling="cohort")
    assert first == stratified_evidence([0] * 9, 0, [200] * 9, 200, mu=0.4, target=0.9, sampling="cohort")
    assert stratified_evidence([0] * 3, 0, [0] * 3, 400, mu=5.0, target=0.999, sampling="cohort") < 0.0
    assert stratified_evidence([0] * 3, 0, [400] * 3, 400, mu=8.0, target=0.001, sampling="law") < 10.0
    # Powers that overflow are left out of the mixture and do not spoil it.
    assert stratified_evidence([0], 0, [1_990], 2_000, mu=0.0, target=0.5, sampling="cohort") > 5.0
