"""Oracles: the digits printed in the paper, mpmath at 60 digits (by quadrature for the L-shape), Arb at 300 bits."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from fractions import Fraction

import mpmath
import pytest
from flint import arb, ctx, fmpq

from ccfs.certificates.rational import Interval
from ccfs.certificates.witnesses import confidence_filter, l_shape, two_band

L_SHAPE_ROWS = {
    "kl": ("0.002423524", "0.002423525"),
    "gaussian_kl": ("1/450", "1/450"),
    "variance_ratio": ("1.091538667648430022208362", "1.091538667648430022208363"),
    "total_variation": ("0.028641422", "0.028641423"),
    "gaussian_total_variation": ("0.026591227", "0.026591228"),
    "event_nominal": ("0.527476587", "0.527476588"),
    "event_shifted": ("0.498885133", "0.498885134"),
    "event_excess": ("0.000900122", "0.000900123"),
    "crossing": ("0.623175082", "0.623175083"),
}
TWO_BAND_ROWS = {
    "retained_mass": ("0.05078446622171157326", "0.05078446622171157327"),
    "top_probability": ("0.54731840865059743984", "0.54731840865059743985"),
    "joint_mass_radius": ("0.04067994841241465132", "0.04067994841241465133"),
    "covariance_radius": ("0.09470767664273030523", "0.09470767664273030524"),
    "substituted_radius": ("0.11888914386462333130", "0.11888914386462333131"),
}
WITNESSES = {"confidence_filter": confidence_filter, "l_shape": l_shape, "two_band": two_band}


def printed(lower: str, upper: str) -> Interval:
    return Interval(lower=Fraction(lower), upper=Fraction(upper))


def contains_mpmath(enclosure: Interval, value: mpmath.mpf) -> bool:
    """Exact comparison. The oracle's own error, 1e-52, must fit inside too."""
    sign, mantissa, exponent, _ = value._mpf_
    exact = Fraction(mantissa) * Fraction(2) ** exponent * (-1 if sign else 1)
    slack = Fraction(1, 10**52)
    return enclosure.contains(Interval(lower=exact - slack, upper=exact + slack))


@pytest.fixture(autouse=True)
def _oracle_precision():
    with mpmath.workdps(60):
        before, ctx.prec = ctx.prec, 300
        yield
        ctx.prec = before


@pytest.mark.parametrize("name", sorted(L_SHAPE_ROWS))
def test_l_shape_enclosure_lies_within_printed_one(name):
    enclosure = Interval.of(getattr(l_shape(), name))
    assert printed(*L_SHAPE_ROWS[name]).contains(enclosure)
    assert enclosure.width < Fraction(1, 10**40)


@pytest.mark.parametrize("name", sorted(TWO_BAND_ROWS))
def test_two_band_enclosure_lies_within_printed_one(name):
    enclosure = getattr(two_band(), name)
    assert printed(*TWO_BAND_ROWS[name]).contains(enclosure)
    assert enclosure.width < Fraction(1, 10**40)


def test_confidence_filter_matches_printed_digits():
    witness = confidence_filter()
    assert printed("0.575680", "0.575681").contains(witness.top_probability)
    assert printed("0.190855", "0.190856").contains(witness.substituted_radius)
    assert witness.joint_mass_radius == witness.boundary_distance == Fraction("0.1")
    assert witness.joint_mass_radius_enclosed.contains(Fraction("0.1"))
    assert witness.joint_mass_radius_enclosed.width < Fraction(1, 10**40)
    assert witness.displacement == Fraction("0.11")


def test_confidence_filter_label_flips_at_shifted_center():
    witness = confidence_filter()
    assert witness.top_probability.lower > Fraction(1, 2) > witness.top_probability_shifted.upper


@pytest.mark.parametrize("name", sorted(WITNESSES))
def test_witness_checks_all_hold(name):
    checks = WITNESSES[name]().checks
    assert len(checks) >= 5
    assert [check.claim for check in checks if check.holds is not True] == []


def test_l_shape_excesses_match_appendix_margins():
    witness = l_shape()
    assert (witness.kl - witness.gaussian_kl).lower > Fraction("0.0002013")
    assert (witness.total_variation - witness.gaussian_total_variation).lower > Fraction("0.0020501")
    assert witness.substituted_radius.lower > witness.displacement == Fraction("0.01")


def test_confidence_filter_contains_mpmath():
    witness = confidence_filter()
    cdf = mpmath.ncdf
    a, b = mpmath.mpf(-1) / 10, mpmath.mpf(1) / 100
    top = cdf(-1 - a) / (cdf(-1 - a) + cdf(-1 + a))
    assert contains_mpmath(witness.top_probability, top)
    assert contains_mpmath(witness.top_probability_shifted, cdf(-1 - b) / (cdf(-1 - b) + cdf(-1 + b)))
    assert contains_mpmath(witness.substituted_radius, mpmath.sqrt(2) * mpmath.erfinv(2 * top - 1))


@pytest.mark.slow
def test_l_shape_contains_mpmath_quadrature():
    """Integrates the densities themselves: shares no closed form with the code under test."""
    witness = l_shape()
    sigma, height = mpmath.mpf(3) / 20, mpmath.mpf(49) / 100
    a, b, cut = mpmath.mpf(13) / 20, mpmath.mpf(66) / 100, mpmath.mpf(633) / 1000
    half, one = mpmath.mpf(1) / 2, mpmath.mpf(1)

    def density(x, center):
        return mpmath.exp(-((x - center) ** 2) / (2 * sigma**2)) / (sigma * mpmath.sqrt(2 * mpmath.pi))

    wide, narrow = (mpmath.quad(lambda y: density(y, height), mpmath.linspace(low, low + half, 5)) for low in (0, half))

    def integral(weight, center, right=one):
        def column(edge):
            return mpmath.quad(lambda x: weight(x) * density(x, center), mpmath.linspace(0, edge, 7))

        return column(min(right, one)) * wide + column(min(right, half)) * narrow

    mass_a, mass_b = integral(lambda x: 1, a), integral(lambda x: 1, b)
    mean = integral(lambda x: x, a) / mass_a
    log_mass = mpmath.log(mass_b / mass_a)
    # log of the density ratio is affine in x, so its mean is the KL divergence.
    kl = ((mean - b) ** 2 - (mean - a) ** 2) / (2 * sigma**2) + log_mass
    crossing = mpmath.findroot(
        lambda x: mpmath.log(density(x, a) / density(x, b)) + log_mass, (mpmath.mpf("0.6"), mpmath.mpf("0.65"))
    )
    event_a = integral(lambda x: 1, a, cut) / mass_a
    assert contains_mpmath(witness.kl, kl)
    assert contains_mpmath(witness.variance_ratio, integral(lambda x: (x - mean) ** 2, a) / mass_a / sigma**2)
    assert contains_mpmath(witness.crossing, crossing)
    assert contains_mpmath(
        witness.total_variation,
        integral(lambda x: 1, a, crossing) / mass_a - integral(lambda x: 1, b, crossing) / mass_b,
    )
    assert contains_mpmath(witness.gaussian_total_variation, mpmath.erf(1 / (30 * mpmath.sqrt(2))))
    assert contains_mpmath(witness.event_nominal, event_a)
    assert contains_mpmath(witness.event_shifted, integral(lambda x: 1, b, cut) / mass_b)
    assert contains_mpmath(witness.event_excess, event_a - mpmath.ncdf(mpmath.mpf(1) / 15))
    assert contains_mpmath(witness.substituted_radius, sigma * mpmath.sqrt(2) * mpmath.erfinv(2 * event_a - 1))


def test_two_band_contains_mpmath():
    witness = two_band()
    tenth = mpmath.mpf(1) / 10
    lower_band = mpmath.ncdf(9 * tenth) - mpmath.ncdf(8 * tenth)
    upper_band = mpmath.ncdf(11 * tenth) - mpmath.ncdf(1)
    p = lower_band / (lower_band + upper_band)
    q = 1 - p

    def quantile(probability):
        return mpmath.sqrt(2) * mpmath.erfinv(2 * probability - 1)

    assert contains_mpmath(witness.retained_mass, lower_band + upper_band)
    assert contains_mpmath(witness.top_probability, p)
    assert contains_mpmath(witness.joint_mass_radius, (quantile(lower_band) - quantile(upper_band)) / 2)
    divergence = p * mpmath.log(2 * p / (p + q)) + q * mpmath.log(2 * q / (p + q))
    assert contains_mpmath(witness.covariance_radius, mpmath.sqrt(2 * divergence))
    assert contains_mpmath(witness.substituted_radius, quantile(p))


def arb_cdf(x: arb) -> arb:
    return (-x / arb(2).sqrt()).erfc() / 2


def arb_bounds(ball: arb) -> Interval:
    middle, radius = ball.mid().fmpq(), ball.rad().fmpq()
    low, high = middle - radius, middle + radius
    return Interval(lower=Fraction(int(low.p), int(low.q)), upper=Fraction(int(high.p), int(high.q)))


def as_arb(value: Fraction) -> arb:
    return arb(fmpq(value.numerator, value.denominator))


def arb_two_band() -> dict[str, arb]:
    tenth = as_arb(Fraction(1, 10))
    lower_band = arb_cdf(9 * tenth) - arb_cdf(8 * tenth)
    upper_band = arb_cdf(11 * tenth) - arb_cdf(arb(1))
    p = lower_band / (lower_band + upper_band)
    divergence = p * (2 * p).log() + (1 - p) * (2 * (1 - p)).log()
    return {
        "retained_mass": lower_band + upper_band,
        "top_probability": p,
        "covariance_radius": (2 * divergence).sqrt(),
    }


def arb_confidence_filter() -> dict[str, arb]:
    left, right = (arb_cdf(as_arb(Fraction(x))) for x in ("-0.9", "-1.1"))
    return {"top_probability": left / (left + right)}


def arb_l_shape() -> dict[str, arb]:
    sigma = as_arb(Fraction(3, 20))

    def between(low: str, high: str, center: str) -> arb:
        ends = [(as_arb(Fraction(end)) - as_arb(Fraction(center))) / sigma for end in (low, high)]
        return arb_cdf(ends[1]) - arb_cdf(ends[0])

    wide, narrow = between("0", "0.5", "0.49"), between("0.5", "1", "0.49")

    def event(center: str) -> arb:
        corner = between("0", "0.5", center) * narrow
        return (between("0", "0.633", center) * wide + corner) / (between("0", "1", center) * wide + corner)

    return {
        "event_nominal": event("0.65"),
        "event_shifted": event("0.66"),
        "event_excess": event("0.65") - arb_cdf(as_arb(Fraction(1, 15))),
        "gaussian_total_variation": 2 * arb_cdf(as_arb(Fraction(1, 30))) - 1,
    }


@pytest.mark.parametrize(
    ("witness", "oracle"),
    [(confidence_filter, arb_confidence_filter), (l_shape, arb_l_shape), (two_band, arb_two_band)],
    ids=sorted(WITNESSES),
)
def test_witness_agrees_with_arb_both_ways(witness, oracle):
    ours = witness()
    for name, ball in oracle().items():
        assert getattr(ours, name).contains(arb_bounds(ball)), name
    ctx.prec = 80
    for name, ball in oracle().items():
        assert arb_bounds(ball).contains(getattr(ours, name)), name


@pytest.mark.parametrize("name", ["joint_mass_radius", "substituted_radius"])
def test_two_band_quantile_radii_agree_with_arb_through_the_cdf(name):
    """Arb has no quantile: compare Φ at the ends of the claimed radius with the probability it must bracket."""
    witness = two_band()
    if name == "substituted_radius":
        target = arb_bounds(arb_two_band()["top_probability"])
        enclosure = witness.substituted_radius
        assert arb_bounds(arb_cdf(as_arb(enclosure.lower))).is_below(target)
        assert arb_bounds(arb_cdf(as_arb(enclosure.upper))).is_above(target)
        return
    # With t = Φ⁻¹(upper mass), the lower mass is Φ(t + 2 r): find t by bisection in Arb, then test both ends.
    tenth = as_arb(Fraction(1, 10))
    masses = [arb_cdf(9 * tenth) - arb_cdf(8 * tenth), arb_cdf(11 * tenth) - arb_cdf(arb(1))]
    low, high = Fraction(-3), Fraction(0)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if arb_cdf(as_arb(middle)) < masses[1] else (low, middle)
    assert arb_cdf(as_arb(low + 2 * witness.joint_mass_radius.lower)) < masses[0]
    assert arb_cdf(as_arb(high + 2 * witness.joint_mass_radius.upper)) > masses[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "field"),
    [(name, field.name) for name, make in WITNESSES.items() for field in fields(make()) if field.type == "Interval"],
)
def test_witness_interchanged_endpoints_are_refused(name, field):
    enclosure = getattr(WITNESSES[name](), field)
    with pytest.raises(ValueError, match="endpoints swapped"):
        replace(enclosure, lower=enclosure.upper, upper=enclosure.lower)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "field", "value", "claim"),
    [
        ("confidence_filter", "top_probability", "0.5", "label zero"),
        ("confidence_filter", "top_probability_shifted", "0.5", "label one"),
        ("confidence_filter", "substituted_radius", "0.11", "strictly inside"),
        ("confidence_filter", "substituted_radius", "0.1", "crosses"),
        ("confidence_filter", "joint_mass_radius_enclosed", "0.1001", "joint-mass"),
        ("l_shape", "event_nominal", "0.52747658", "Q_a(E) >"),
        ("l_shape", "event_nominal", "0.5", "labels at a and b differ"),
        ("l_shape", "event_shifted", "0.49888514", "Q_b(E) <"),
        ("l_shape", "event_shifted", "0.5", "labels at a and b differ"),
        ("l_shape", "event_excess", "0.0009", "9/10000"),
        ("l_shape", "kl", "0.002422", "1/5000"),
        ("l_shape", "total_variation", "0.0285912", "1/500"),
        ("l_shape", "variance_ratio", "1", "variance ratio"),
        ("l_shape", "substituted_radius", "0.01", "strictly inside"),
        ("two_band", "top_probability", "0.5", "lower band"),
        ("two_band", "joint_mass_radius", "0.0948", "r_mass < r_cov"),
        ("two_band", "joint_mass_radius", "0.0474", "2 r_mass < r_cov"),
        ("two_band", "covariance_radius", "0.1", "stays inside"),
        ("two_band", "substituted_radius", "0.1", "crosses"),
    ],
)
def test_witness_check_fails_when_its_number_moves(name, field, value, claim):
    """Each check must notice the value at which its strict inequality turns into an equality or worse."""
    moved = replace(WITNESSES[name](), **{field: Interval.of(Fraction(value))})
    failed = [check.claim for check in moved.checks if not check.holds]
    assert any(claim in text for text in failed)


@pytest.mark.parametrize("name", sorted(WITNESSES))
def test_witness_check_is_not_claimed_from_wide_enclosures(name):
    """An enclosure that holds both sides of a threshold proves nothing."""
    witness = WITNESSES[name]()
    wide = {
        field.name: Interval(lower=Fraction(-1), upper=Fraction(2))
        for field in fields(witness)
        if isinstance(getattr(witness, field.name), Interval)
    }
    strict = [check for check in replace(witness, **wide).checks if "equals" not in check.claim]
    assert strict
    assert not any(check.holds for check in strict)


@pytest.mark.parametrize("name", sorted(WITNESSES))
def test_witness_is_frozen_and_deterministic(name):
    first, second = WITNESSES[name](), WITNESSES[name]()
    assert first == second
    with pytest.raises(FrozenInstanceError):
        setattr(first, fields(first)[0].name, Fraction(0))


@pytest.mark.parametrize("name", sorted(WITNESSES))
def test_witness_more_bits_refine_enclosures(name):
    coarse, fine = WITNESSES[name](bits=80), WITNESSES[name](bits=240)
    for field in fields(coarse):
        outer, inner = getattr(coarse, field.name), getattr(fine, field.name)
        assert outer == inner if isinstance(outer, Fraction) else outer.contains(inner), field.name
