"""Trajectory certificates against the paper's table, exact fractions, and documents that were tampered with."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from ccfs.certificates.binomial import anytime_lower, clopper_pearson_lower, cohort_lower, hoeffding_lower
from ccfs.certificates.bounds import Bound
from ccfs.certificates.documents import decode_float, encode_float
from ccfs.certificates.gaussian import divergences, event_lower
from ccfs.certificates.schedule import ProposalSchedule, Schedule, as_schedule
from ccfs.certificates.trajectory import (
    PREMISES,
    CertificateError,
    TrajectoryCertificate,
    budget,
    certify_event,
    energy,
    mu_certified,
)

ONE = ProposalSchedule(count=1, sigma=0.2 / math.sqrt(1.05))
FOUR = ProposalSchedule(count=4, sigma=0.2, rho=59 / 63)


def blocks(*entries: dict[str, object]) -> dict[str, object]:
    """Return the entry `schedule` of a certificate with these blocks of the action stage."""
    return {"action": list(entries), "score": None, "sensor": None, "readers": "all"}


def goal2(successes: int, schedule: ProposalSchedule, bound: str) -> TrajectoryCertificate:
    return certify_event(successes, 256, delta=0.001, family=6, target=0.5, schedule=schedule, bound=bound)


# Paper, table tab:goal2-trajectory: successes of 256, p_L, B_cert, L at B = 0.02, as printed.
PRINTED = [
    (211, ONE, "0.694", "0.0989", "0.657"),
    (210, FOUR, "0.690", "0.0968", "0.653"),
    (187, ONE, "0.600", "0.0495", "0.560"),
    (189, FOUR, "0.608", "0.0535", "0.568"),
    (205, ONE, "0.670", "0.0861", "0.633"),
    (207, FOUR, "0.678", "0.0903", "0.641"),
]


@pytest.mark.parametrize(("successes", "schedule", "p_lower", "radius", "lower"), PRINTED)
def test_certify_event_reproduces_the_goal2_table(
    successes: int, schedule: ProposalSchedule, p_lower: str, radius: str, lower: str
) -> None:
    certificate = goal2(successes, schedule, "hoeffding")
    assert f"{certificate.p_lower:.3f}" == p_lower
    assert f"{certificate.budget:.4f}" == radius
    assert f"{certificate.lower_at(0.02):.3f}" == lower


@pytest.mark.parametrize(("successes", "schedule"), [row[:2] for row in PRINTED])
def test_cohort_bound_raises_every_goal2_budget_by_nineteen_to_twenty_three_percent(successes, schedule) -> None:
    paper, ours = goal2(successes, schedule, "hoeffding"), goal2(successes, schedule, "cohort")
    assert 0.0215 <= ours.p_lower - paper.p_lower <= 0.0325
    assert 1.18 <= ours.budget / paper.budget <= 1.235


def test_mu_certified_and_budget_distinguish_not_certified_from_zero() -> None:
    assert mu_certified(0.5, 0.5) == 0.0
    assert mu_certified(math.nextafter(0.5, 0.0), 0.5) is None
    assert budget(0.4999, 0.5, sigma=0.2, kappa=1.0) is None
    assert budget(0.5, 0.5, sigma=0.2, kappa=1.0) == 0.0
    assert mu_certified(1.0, 0.5) == math.inf


@given(st.floats(0.01, 0.999), st.floats(0.01, 0.999), st.floats(0.01, 10.0), st.floats(1.0, 16.0))
def test_budget_keeps_the_target_and_is_not_wasteful(p: float, q: float, sigma: float, multiplier: float) -> None:
    value = budget(p, q, sigma=sigma, kappa=multiplier)
    if p < q:
        assert value is None
        return
    truth = sigma / math.sqrt(multiplier) * (norm.ppf(p) - norm.ppf(q))
    assert value == pytest.approx(truth, rel=1e-9, abs=1e-12 * sigma)


@given(st.integers(1, 256), st.floats(0.01, 3.0), st.floats(1.01, 4.0), st.floats(0.05, 0.95))
def test_budget_and_curve_round_against_us(successes: int, sigma: float, multiplier: float, target: float) -> None:
    """In exact fractions: B^2 charge <= mu^2, and the curve at B belongs to a mu that is not below sqrt(charge) B."""
    schedule = ProposalSchedule(count=4, sigma=sigma, multiplier=multiplier)
    certificate = certify_event(
        successes, 256, delta=0.01, family=1, target=target, schedule=schedule, bound="clopper-pearson"
    )
    if certificate.is_certified:
        assert Fraction(certificate.budget) ** 2 * schedule.charge_exact <= Fraction(certificate.mu) ** 2
        direct = budget(certificate.p_lower, target, sigma=sigma, kappa=schedule.kappa)
        assert direct == pytest.approx(certificate.budget, rel=1e-14)
        assert Fraction(direct) ** 2 * Fraction(schedule.kappa) <= Fraction(certificate.mu) ** 2 * Fraction(sigma) ** 2
    at = sigma / 3
    exact_mu = math.sqrt(schedule.charge_exact) * at
    assert certificate.lower_at(at) <= event_lower(certificate.p_lower, exact_mu * (1 - 1e-15))
    assert certificate.lower_at(at) == pytest.approx(event_lower(certificate.p_lower, exact_mu), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("hoeffding", hoeffding_lower),
        ("cohort", cohort_lower),
        ("clopper-pearson", clopper_pearson_lower),
        ("anytime", anytime_lower),
    ],
)
def test_each_bound_rule_is_its_function(name: str, function) -> None:
    for successes in (1, 7, 20):
        certificate = certify(successes=successes, trials=20, bound=name, delta=0.2, family=2)
        assert certificate.p_lower == function(successes, 20, delta=0.1)
    values = {rule: certify(successes=1, trials=20, bound=rule.value, delta=0.2, family=1).p_lower for rule in Bound}
    assert values[Bound.COHORT] == 0.0 < values[Bound.ANYTIME] < values[Bound.CLOPPER_PEARSON]


@given(st.floats(0.01, 0.999), st.floats(0.01, 0.999))
def test_mu_certified_round_trip_is_sound(p: float, q: float) -> None:
    """At the certified mu the event comparison gives the target back, up to one rounding step of the comparison."""
    mu = mu_certified(p, q)
    if mu is not None:
        assert event_lower(p, mu) >= math.nextafter(math.nextafter(q, 0.0), 0.0)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=6), st.data())
def test_energy_is_the_exact_sum_rounded_up(rows: list[tuple[float, float]], data) -> None:
    schedules = [
        ProposalSchedule(count=data.draw(st.integers(2, 5)), sigma=data.draw(st.floats(0.1, 2)), rho=0.3) for _ in rows
    ]
    truth = sum(
        (
            (Fraction(x) ** 2 + Fraction(y) ** 2)
            * s.count
            / (1 + (s.count - 1) * Fraction(0.3))
            / Fraction(s.sigma) ** 2
            for (x, y), s in zip(rows, schedules, strict=True)
        ),
        Fraction(0),
    )
    value = Fraction(energy(np.array(rows), schedules))
    assert truth <= value <= truth * (1 + Fraction(1, 2**51)) + Fraction(5e-324)


def test_energy_of_the_tested_goal2_shift_matches_its_budget() -> None:
    shifts = np.full((500, 2), 0.02 / math.sqrt(500) / math.sqrt(2))
    assert energy(shifts, FOUR) == pytest.approx(26.25 * 0.02**2, rel=1e-12)


def test_varying_schedules_keep_the_ellipsoid_and_the_inscribed_ball() -> None:
    wide, narrow = ProposalSchedule(count=1, sigma=0.4), ProposalSchedule(count=1, sigma=0.2)
    certificate = certify_event(
        250, 256, delta=0.01, family=1, target=0.8, schedule=[wide, narrow], bound="clopper-pearson"
    )
    assert certificate.charges == {"action": (wide.charge, narrow.charge)}
    constant = certify_event(250, 256, delta=0.01, family=1, target=0.8, schedule=narrow, bound="clopper-pearson")
    assert certificate.budget == constant.budget
    assert energy(np.array([[0.0], [certificate.budget]]), certificate.schedule) <= certificate.mu**2 * (1 + 1e-12)
    assert energy(np.array([[certificate.budget], [0.0]]), certificate.schedule) < certificate.mu**2 / 3


def test_certificate_curve_falls_from_p_lower_through_the_target() -> None:
    certificate = goal2(211, FOUR, "cohort")
    curve = certificate.curve(points=21)
    assert curve[0] == (0.0, certificate.p_lower)
    assert curve[10][0] == pytest.approx(certificate.budget)
    assert curve[10][1] == pytest.approx(certificate.target, abs=1e-12)
    assert all(a[1] >= b[1] for a, b in pairwise(curve))
    assert certificate.lower_at(certificate.budget) >= certificate.target - 1e-15
    assert certificate.lower_at(1e308) == 0.0


def test_certificate_without_success_certifies_nothing_and_still_has_a_curve() -> None:
    certificate = goal2(0, FOUR, "cohort")
    assert not certificate.is_certified
    assert certificate.mu is None
    assert certificate.budget is None
    assert {value for _, value in certificate.curve(points=5)} == {0.0}


@pytest.mark.parametrize("bound", [rule.value for rule in Bound])
@pytest.mark.parametrize("successes", [0, 128, 211, 256])
def test_certificate_json_round_trip_is_exact(bound: str, successes: int) -> None:
    certificate = goal2(successes, FOUR, bound)
    again = TrajectoryCertificate.from_json(certificate.to_json())
    assert again == certificate
    assert again.to_json() == certificate.to_json()
    assert json.loads(certificate.to_json())["premises"] == list(certificate.premises)


def test_certificate_states_every_premise_and_that_the_gaussian_is_idealised() -> None:
    premises = goal2(211, FOUR, "cohort").premises
    assert premises == (Bound.COHORT.premise, *PREMISES)
    assert any("Gaussian" in text and "Philox" in text and "rounded to doubles" in text for text in premises)
    assert all(text.endswith(".") for text in premises)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("successes", 212),
        ("trials", 255),
        ("delta", 0.01),
        ("family", 1),
        ("target", 0.4),
        ("bound", "cohort"),
        ("p_lower", 0.9),
        ("p_lower", math.nan),
        ("mu", 0.9),
        ("mu", None),
        ("mu", -1.0),
        ("budget", 0.2),
        ("charges", [1.0]),
        ("premises", "none"),
        ("premises", []),
        ("schedule", blocks({"count": 4, "sigma": 0.4, "rho": 59 / 63})),
        ("schedule", blocks()),
        ("schedule", blocks({"count": 4, "sigma": 0.2, "rho": 59 / 63}) | {"readers": "controller"}),
        ("schedule", blocks({"count": 4, "sigma": 0.2, "rho": 59 / 63}) | {"readers": "nobody"}),
        ("schedule", blocks({"count": 4, "sigma": 0.2, "rho": 59 / 63}) | {"sensor": []}),
        ("schedule", blocks({"count": 4, "sigma": [0.2, 0.2], "rho": 59 / 63})),
        ("schedule", [{"count": 4, "sigma": 0.2, "rho": 59 / 63}]),
        ("budgets", {"action": 0.2}),
        ("budgets", {}),
        ("axes", {"action": 0.2}),
        ("schedule", []),
        ("schedule", 3),
        ("version", 2),
        ("format", "other"),
        ("extra", 1),
        ("bound", "guess"),
        ("successes", 211.0),
        ("successes", "211"),
        ("event", None),
        ("event", {"a": 1}),
        ("version", True),
        ("version", 1.0),
        ("delta", 10**400),
        ("schedule", blocks({"count": 4, "sigma": 0.2})),
        ("schedule", blocks({"count": 4, "sigma": 0.2, "rho": 59 / 63, "extra": 1})),
    ],
)
def test_certificate_from_json_refuses_any_changed_entry(entry: str, value: object) -> None:
    document = json.loads(goal2(211, FOUR, "hoeffding").to_json())
    assert repr(document.get(entry)) != repr(value)
    document[entry] = value
    with pytest.raises(CertificateError):
        TrajectoryCertificate.from_json(json.dumps(document))


def test_certificate_from_json_refuses_a_correlation_that_is_left_open() -> None:
    document = json.loads(goal2(211, ONE, "hoeffding").to_json())
    document["schedule"]["action"][0]["rho"] = None
    with pytest.raises(CertificateError, match="`rho`"):
        TrajectoryCertificate.from_json(json.dumps(document))


@pytest.mark.parametrize("entry", ["successes", "mu", "premises", "schedule", "event", "budget"])
def test_certificate_from_json_refuses_a_missing_entry(entry: str) -> None:
    document = json.loads(goal2(211, FOUR, "hoeffding").to_json())
    del document[entry]
    with pytest.raises(CertificateError):
        TrajectoryCertificate.from_json(json.dumps(document))


def test_certificate_from_json_refuses_repeated_entries_and_non_json() -> None:
    text = goal2(211, FOUR, "hoeffding").to_json()
    with pytest.raises(CertificateError, match="repeats"):
        TrajectoryCertificate.from_json(text.replace('"trials": 256', '"trials": 256, "trials": 256'))
    with pytest.raises(CertificateError, match="JSON"):
        TrajectoryCertificate.from_json(text[:-5])
    with pytest.raises(CertificateError, match="format"):
        TrajectoryCertificate.from_json("[1, 2]")
    with pytest.raises(CertificateError, match="JSON"):
        TrajectoryCertificate.from_json("[" * 100_000)
    with pytest.raises(CertificateError, match="JSON"):
        TrajectoryCertificate.from_json(text.replace('"trials": 256', f'"trials": {"9" * 6_000}'))


def test_certificate_of_certainty_round_trips() -> None:
    """No count gives a lower bound of 1, so no certificate has an infinite mu. The encoding keeps it all the same."""
    assert decode_float("mu", encode_float(math.inf)) == math.inf
    assert decode_float("mu", encode_float(None)) is None
    assert decode_float("mu", encode_float(0.25)) == 0.25


def test_recheck_names_what_differs() -> None:
    good = goal2(211, FOUR, "hoeffding")
    good.recheck()
    fields = {name: getattr(good, name) for name in good.__slots__}
    forged = TrajectoryCertificate(**{**fields, "p_lower": 0.9})
    with pytest.raises(CertificateError, match=r"`p_lower` is 0\.9 on the certificate"):
        forged.recheck()
    with pytest.raises(CertificateError, match=r"`p_lower` is 0\.9 on the certificate"):
        forged.to_json()


def certify(**changes) -> TrajectoryCertificate:
    arguments = {
        "successes": 3,
        "trials": 4,
        "delta": 0.1,
        "family": 1,
        "target": 0.5,
        "schedule": ONE,
        "bound": "cohort",
    }
    arguments.update(changes)
    return certify_event(arguments.pop("successes"), arguments.pop("trials"), **arguments)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"bound": "wald"}, ValueError, "`bound` must be one of 'hoeffding', 'cohort', 'clopper-pearson', 'anytime'"),
        ({"target": 0.0}, ValueError, r"`target` must be in \(0, 1\), got 0.0"),
        ({"target": 1.0}, ValueError, r"`target` must be in \(0, 1\), got 1.0"),
        ({"target": math.nan}, ValueError, "`target` must be a number, got nan"),
        ({"family": 0}, ValueError, "`family` must be at least 1, got 0"),
        ({"family": 1.0}, TypeError, "`family` must be an integer"),
        ({"schedule": []}, TypeError, "`schedule` must be a ProposalSchedule"),
        ({"schedule": [0.2]}, TypeError, "`schedule` must be a ProposalSchedule"),
        ({"delta": math.nan}, ValueError, "`delta` must be a number, got nan"),
        ({"successes": 5}, ValueError, "`successes` must be at most `trials`, got 5 of 4"),
    ],
)
def test_certify_event_refuses(changes: dict[str, object], error, message: str) -> None:
    with pytest.raises(error, match=message):
        certify(**changes)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: budget(0.9, 0.5, sigma=0.2, kappa=0.5), ValueError, "`kappa` must be at least 1, got 0.5"),
        (lambda: energy(np.array([[math.nan]]), ONE), ValueError, "`shifts` must be finite"),
        (lambda: energy(np.array([0.1]), ONE), TypeError, r"`shifts` must be an array \[steps, dim\] of doubles"),
        (lambda: energy(np.ones((1, 1), np.longdouble), ONE), TypeError, "of doubles, got float128"),
        (lambda: energy(np.zeros((3, 2)), [ONE, ONE]), ValueError, "one per step, got 2 for 3 steps"),
        (lambda: goal2(211, ONE, "cohort").lower_at(-1.0), ValueError, "`budget` must be at least 0"),
        (lambda: goal2(211, ONE, "cohort").lower_at(math.nan), ValueError, "`budget` must be a number"),
    ],
)
def test_trajectory_refuses(call, error, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_linear_gaussian_event_attains_the_certified_bound() -> None:
    """Sharpness: for the event 'the sum of proposals stays below a line' a constant shift attains the comparison."""
    steps, sigma, threshold = 25, 0.3, 0.4
    nominal = norm.cdf((threshold) / (sigma * math.sqrt(steps)))
    for size in (0.05, 0.3, 1.0):
        shifts = np.full((steps, 1), size / math.sqrt(steps))
        mu = math.sqrt(energy(shifts, ProposalSchedule(count=1, sigma=sigma)))
        attacked = norm.cdf((threshold - shifts.sum()) / (sigma * math.sqrt(steps)))
        assert attacked == pytest.approx(event_lower(float(nominal), mu), rel=1e-9)


def true_lower(p_lower: float, schedules: tuple[ProposalSchedule, ...], size: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Oracle in 70 digits: Phi(Phi^-1(p_lower) - mu) and mu, from the exact value of every double that goes in."""
    charge = max(entry.charge_exact for entry in schedules)
    mu = mpmath.mpf(size) * mpmath.sqrt(mpmath.mpf(charge.numerator) / charge.denominator)
    quantile = -mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(p_lower))
    return mpmath.erfc((mu - quantile) / mpmath.sqrt(2)) / 2, mu


@pytest.mark.slow
def test_lower_at_is_at_most_the_true_value_and_at_most_two_roundings_below() -> None:
    """Two roundings: the length mu of the shift up, the probability down. Turning one round breaks over 100 cases."""
    made = goal2(200, FOUR, "clopper-pearson")
    rng = np.random.default_rng(20)
    with mpmath.workdps(70):
        for _ in range(400):
            p_lower = float(rng.choice([rng.uniform(0.01, 0.99), 1.0 - 10.0 ** -rng.uniform(2, 12)]))
            blocks = tuple(
                ProposalSchedule(count=4, sigma=float(rng.uniform(0.05, 2.0)), rho=float(rng.uniform(0.0, 0.99)))
                for _ in range(int(rng.integers(1, 4)))
            )
            size = float(rng.uniform(0.0, 9.0) / math.sqrt(max(block.charge for block in blocks)))
            found = replace(made, p_lower=p_lower, schedule=as_schedule(blocks)).lower_at(size)
            truth, mu = true_lower(p_lower, blocks, size)
            assert mpmath.mpf(found) <= truth
            longest = mpmath.mpf(math.nextafter(float(mu), math.inf))  # at least the least double above mu
            least, _ = true_lower(p_lower, (ProposalSchedule(count=1, sigma=1.0),), float(longest))
            assert mpmath.mpf(math.nextafter(found, 1.0)) >= least


def test_lower_at_without_shift_is_the_lower_bound_itself_and_never_above() -> None:
    made = goal2(200, FOUR, "clopper-pearson")
    for p_lower in np.random.default_rng(21).uniform(0.0, 1.0, 200).tolist():
        assert replace(made, p_lower=p_lower).lower_at(0.0) == p_lower


@pytest.mark.parametrize(("p_lower", "expected"), [(0.9, 0.0), (1.0, 1.0), (0.0, 0.0)])
def test_lower_at_of_a_shift_beyond_all_doubles(p_lower: float, expected: float) -> None:
    wide = replace(goal2(200, ProposalSchedule(count=1, sigma=1e-150), "clopper-pearson"), p_lower=p_lower)
    assert wide.lower_at(1e300) == expected


SENSOR = ProposalSchedule(count=1, sigma={"lidar": 0.05, "compass": 0.01})
DIAGONAL = ProposalSchedule(count=4, sigma=[0.2, 0.4], rho=59 / 63)
BOTH = Schedule(action=FOUR, sensor=SENSOR)


def staged(schedule, successes: int = 240) -> TrajectoryCertificate:
    return certify_event(successes, 256, delta=0.01, family=1, target=0.5, schedule=schedule, bound="clopper-pearson")


def exact_lower(certificate: TrajectoryCertificate, squares: Fraction) -> float:
    """Oracle: Phi(Phi^-1(p) - sqrt(squares)) in 60 decimals of mpmath."""
    with mpmath.workdps(60):
        p, mu = mpmath.mpf(certificate.p_lower), mpmath.sqrt(mpmath.mpf(squares.numerator) / squares.denominator)
        quantile = mpmath.findroot(lambda x: mpmath.ncdf(x) - p, norm.ppf(certificate.p_lower))
        return float(mpmath.ncdf(quantile - mu))


def test_certificate_of_several_stages_has_the_mu_of_the_count_and_a_budget_per_stage() -> None:
    plain, both = staged(FOUR), staged(BOTH)
    assert both.mu == plain.mu
    assert both.budget == plain.budget == both.budgets["action"]
    # In exact fractions: the energy of a shift of that size in the narrowest coordinate is at most mu^2.
    for stage, block in (("action", FOUR), ("sensor", SENSOR)):
        budget = Fraction(both.budgets[stage])
        assert budget**2 * block.charge_exact <= Fraction(both.mu) ** 2
        assert budget**2 * block.charge_exact >= Fraction(both.mu) ** 2 * (1 - Fraction(1, 2**50))
    assert both.axes["sensor"]["compass"] == both.budgets["sensor"]
    assert both.axes["sensor"]["lidar"] == pytest.approx(5 * both.budgets["sensor"], rel=1e-14)
    assert Fraction(both.axes["sensor"]["lidar"]) ** 2 * SENSOR.charge_of(0.05) <= Fraction(both.mu) ** 2
    only = staged(Schedule(sensor=SENSOR))
    assert only.budget == both.budgets["sensor"]
    assert list(only.budgets) == ["sensor"]


@given(
    st.floats(0.0, 0.3),
    st.floats(0.0, 0.02),
    st.floats(0.0, 0.02),
    st.sampled_from([[0.2, 0.4], [0.3, 0.3], [0.1, 2.0]]),
)
def test_lower_at_adds_the_energies_of_the_stages_up_and_rounds_down(action, lidar, compass, sigmas) -> None:
    block = ProposalSchedule(count=4, sigma=sigmas, rho=0.25)
    certificate = staged(Schedule(action=block, sensor=SENSOR))
    kappa_exact = Fraction(4) / (1 + 3 * Fraction(1, 4))
    squares = (
        kappa_exact * Fraction(action) ** 2 / Fraction(min(sigmas)) ** 2
        + Fraction(lidar) ** 2 / Fraction(0.05) ** 2
        + Fraction(compass) ** 2 / Fraction(0.01) ** 2
    )
    truth = exact_lower(certificate, squares)
    found = certificate.lower_at(action=action, sensor={"lidar": lidar, "compass": compass})
    assert found <= truth
    assert found == pytest.approx(truth, rel=1e-12, abs=1e-300)
    # One number for the sensor charges every coordinate by the least noise.
    assert certificate.lower_at(action=action, sensor=math.hypot(lidar, compass)) <= found * (1 + 1e-12)


def test_lower_at_takes_a_budget_per_coordinate_and_zero_where_there_is_no_noise() -> None:
    certificate = staged(ProposalSchedule(count=1, sigma=[0.2, 0.4, 0.0]))
    squares = Fraction(0.1) ** 2 / Fraction(0.2) ** 2 + Fraction(0.3) ** 2 / Fraction(0.4) ** 2
    assert certificate.lower_at(action=[0.1, 0.3, 0.0]) == pytest.approx(exact_lower(certificate, squares), rel=1e-12)
    assert certificate.lower_at(action=[0.0, 0.0, 0.0]) == certificate.p_lower
    assert certificate.lower_at(action=0.1) == certificate.lower_at(0.1) == certificate.lower_at(action=[0.1, 0, 0])
    assert certificate.axes == {"action": (certificate.budget, pytest.approx(2 * certificate.budget), 0.0)}
    with pytest.raises(ValueError, match=r"`action\[2\]` must be 0, because there is no noise there, got 1e-09"):
        certificate.lower_at(action=[0.0, 0.0, 1e-9])


def test_lower_at_over_blocks_that_differ_takes_the_least_noise_of_each_coordinate() -> None:
    wide, narrow = ProposalSchedule(count=1, sigma=[0.4, 0.1]), ProposalSchedule(count=1, sigma=[0.2, 0.3])
    certificate = staged([wide, narrow])
    worst = ProposalSchedule(count=1, sigma=[0.2, 0.1])
    assert certificate.lower_at(action=[0.05, 0.03]) == staged(worst).lower_at(action=[0.05, 0.03])
    assert certificate.axes == staged(worst).axes
    silent = staged([wide, ProposalSchedule(count=1, sigma=[0.2, 0.0])])
    assert silent.axes["action"][1] == 0.0
    with pytest.raises(ValueError, match="no noise there"):
        silent.lower_at(action=[0.0, 0.1])


def test_energy_adds_stages_up_and_is_infinite_where_there_is_no_noise() -> None:
    shifts = {"action": np.array([[0.1, 0.0], [0.0, 0.2]]), "sensor": np.array([[0.01, 0.0, 0.0], [0.0, 0.0, 0.003]])}
    layout = {"lidar": (0, 2), "compass": (2, 3)}
    truth = FOUR.charge_exact * (Fraction(0.1) ** 2 + Fraction(0.2) ** 2)
    truth += Fraction(0.01) ** 2 / Fraction(0.05) ** 2 + Fraction(0.003) ** 2 / Fraction(0.01) ** 2
    found = Fraction(energy(shifts, BOTH, layout=layout))
    assert truth <= found <= truth * (1 + Fraction(1, 2**51))
    assert energy({"sensor": np.array([[0.0, 0.0, 0.0, 1e-9]])}, Schedule(sensor=SENSOR), layout=layout) == math.inf
    assert energy({"sensor": np.zeros((1, 4))}, Schedule(sensor=SENSOR), layout=layout) == 0.0
    diagonal = energy(np.array([[0.2, 0.4]]), DIAGONAL)
    assert diagonal == pytest.approx(2 * DIAGONAL.kappa, rel=1e-15)


@pytest.mark.parametrize(
    "schedule",
    [
        BOTH,
        Schedule(sensor=SENSOR, readers="controller"),
        Schedule(score=ProposalSchedule(count=8, sigma=[1.0, 0.0, 2.0], rho=0.3)),
        Schedule(action=[ONE, DIAGONAL], sensor=[ProposalSchedule(count=1, sigma=0.1), SENSOR]),
        Schedule(action=[ONE], sensor=[SENSOR]),
    ],
)
@pytest.mark.parametrize("successes", [10, 256])
def test_certificate_of_stages_comes_back_from_json_and_states_what_is_outside(schedule, successes) -> None:
    certificate = staged(schedule, successes)
    again = TrajectoryCertificate.from_json(certificate.to_json())
    assert again == certificate
    assert again.to_json() == certificate.to_json()
    assert again.is_certified == (successes == 256)


def test_certificate_premises_name_the_stages_and_what_has_no_noise() -> None:
    def said(schedule) -> str:
        premises = staged(schedule).premises
        assert premises[:4] == (Bound.CLOPPER_PEARSON.premise, *PREMISES)
        return " ".join(premises[4:])

    assert said(FOUR) == ""
    assert "only these slices have noise: compass, lidar. Errors elsewhere are outside of the claim." in said(BOTH)
    assert "Verifier and fallbacks are taken to read the true one" not in said(BOTH)
    assert "Verifier and fallbacks are taken to read the true one" in said(
        Schedule(sensor=SENSOR, readers="controller")
    )
    partly = ProposalSchedule(count=1, sigma=[0.2, 0.0, 0.1, 0.0])
    assert (
        said(partly)
        == "There is no noise on action coordinates 1, 3, counted from 0. Shifts there are outside of the claim."
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schedule", "sensor", 0, "sigma", "lidar"), 0.06),
        (("schedule", "sensor", 0, "sigma"), 0.05),
        (("schedule", "sensor", 0, "sigma"), {}),
        (("schedule", "sensor", 0, "sigma", "lidar"), 0.0),
        (("schedule", "sensor", 0, "count"), 2),
        (("schedule", "sensor"), None),
        (("schedule", "readers"), "controller"),
        (("budgets", "sensor"), 0.5),
        (("axes", "sensor", "lidar"), 0.5),
        (("axes", "sensor", "gyro"), 0.5),
        (("charges", "sensor", 0, "lidar"), 1.0),
        (("premises", 5), "Everything is covered."),
    ],
)
def test_certificate_of_stages_refuses_any_changed_entry(path, value) -> None:
    document = json.loads(staged(BOTH).to_json())
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(CertificateError):
        TrajectoryCertificate.from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: staged(BOTH).lower_at(), "`budget` must be given, or the budget of a stage"),
        (lambda: staged(BOTH).lower_at(0.1, action=0.1), "`budget` must not be given beside `action`"),
        (
            lambda: staged(BOTH).lower_at(score=0.1),
            "`stage` must be one of sensor, action, which have noise, got score",
        ),
        (lambda: staged(BOTH).lower_at(sensor={"gyro": 0.1}), r"`sensor\['gyro'\]` must be 0"),
        (
            lambda: staged(BOTH).lower_at(sensor=[0.1]),
            "`sensor` must have one budget for each of 2|given as its `sigma`",
        ),
        (
            lambda: staged(BOTH).lower_at(action={"x": 0.1}),
            "`action` must be one number, because its noise has no names",
        ),
        (lambda: staged(BOTH).lower_at(sensor=-0.1), "`sensor` must be at least 0"),
        (lambda: staged(BOTH).lower_at(sensor=math.nan), "`sensor` must be a number, got nan"),
        (lambda: staged(BOTH).lower_at(sensor={"lidar": math.inf}), r"`sensor\['lidar'\]` must be finite"),
        (lambda: staged(DIAGONAL).lower_at(action=[0.1]), "one budget for each of 2 coordinates, got 1"),
        (lambda: energy({"sensor": np.zeros((1, 2))}, FOUR), "`stage` must be one of action, which have noise"),
        (
            lambda: energy({"motor": np.zeros((1, 2))}, FOUR),
            "`stage` must be one of sensor, action, score, got 'motor'",
        ),
        (lambda: energy({"sensor": np.zeros((1, 2))}, BOTH), "`observation_layout`"),
    ],
)
def test_stages_of_a_certificate_refuse(call, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_certificate_carries_its_divergences() -> None:
    proof = certify_event(256, 256, delta=0.001, family=6, target=0.9, schedule=ONE, bound="cohort")
    assert proof.mu is not None
    assert proof.divergences == divergences(proof.mu)
    nothing = certify_event(3, 256, delta=0.001, family=6, target=0.9, schedule=ONE, bound="cohort")
    assert nothing.divergences is None
