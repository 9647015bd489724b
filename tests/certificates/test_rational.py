"""Oracles: mpmath at 80 digits and Arb at 500 bits, which the module may not import, and exact identities."""

from __future__ import annotations

import ast
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import mpmath
import pytest
from flint import arb, ctx, fmpq
from hypothesis import given, settings
from hypothesis import strategies as st

from ccfs.certificates import _interval, rational, witnesses
from ccfs.certificates.rational import (
    Interval,
    atanh,
    exp,
    gaussian_integral,
    log,
    normal_cdf,
    normal_density,
    normal_quantile,
    pi,
    sqrt,
)

EXACT_MODULES = (_interval, rational, witnesses)
ALLOWED_IMPORTS = {
    ("__future__", "annotations"),
    ("collections.abc", "Callable"),
    ("dataclasses", "dataclass"),
    ("fractions", "Fraction"),
    ("functools", "lru_cache"),
    ("math", "isqrt"),
}


def fractions(lower: str, upper: str) -> st.SearchStrategy[Fraction]:
    return st.fractions(min_value=Fraction(lower), max_value=Fraction(upper), max_denominator=10**12)


def intervals(lower: str, upper: str) -> st.SearchStrategy[tuple[Interval, Fraction]]:
    """An interval and a point inside it."""

    def build(ends: tuple[Fraction, Fraction, Fraction]) -> tuple[Interval, Fraction]:
        low, inside, high = sorted(ends)
        return Interval(lower=low, upper=high), inside

    return st.tuples(*[fractions(lower, upper)] * 3).map(build)


def to_mpf(value: Fraction) -> mpmath.mpf:
    return mpmath.mpf(value.numerator) / value.denominator


def contains_mpmath(enclosure: Interval, value: mpmath.mpf) -> bool:
    """Exact comparison: an mpf is a dyadic rational, 30 digits finer than the enclosures and exact where they are."""
    sign, mantissa, exponent, _ = value._mpf_
    return enclosure.contains(Fraction(mantissa) * Fraction(2) ** exponent * (-1 if sign else 1))


# (function, mpmath oracle, Arb oracle, lowest and highest argument of the property tests)
Case = tuple[Callable[..., Interval], Callable[[mpmath.mpf], mpmath.mpf], Callable[[arb], arb], str, str]
CASES: dict[str, Case] = {
    "exp": (exp, mpmath.exp, lambda x: x.exp(), "-300", "300"),
    "log": (log, mpmath.log, lambda x: x.log(), "1/1000000000000", "1000000000"),
    "sqrt": (sqrt, mpmath.sqrt, lambda x: x.sqrt(), "0", "1000000000"),
    "atanh": (atanh, mpmath.atanh, lambda x: x.atanh(), "-999999/1000000", "999999/1000000"),
    "gaussian_integral": (
        gaussian_integral,
        lambda x: mpmath.sqrt(mpmath.pi / 2) * mpmath.erf(x / mpmath.sqrt(2)),
        lambda x: (arb.pi() / 2).sqrt() * (x / arb(2).sqrt()).erf(),
        "-12",
        "12",
    ),
    "normal_density": (
        normal_density,
        lambda x: mpmath.exp(-x * x / 2) / mpmath.sqrt(2 * mpmath.pi),
        lambda x: (-x * x / 2).exp() / (2 * arb.pi()).sqrt(),
        "-30",
        "30",
    ),
    "normal_cdf": (
        normal_cdf,
        lambda x: mpmath.erfc(-x / mpmath.sqrt(2)) / 2,
        lambda x: (-x / arb(2).sqrt()).erfc() / 2,
        "-12",
        "12",
    ),
}
MONOTONE = sorted(set(CASES) - {"normal_density"})


@pytest.fixture(autouse=True)
def _oracle_precision():
    with mpmath.workdps(80):
        before, ctx.prec = ctx.prec, 500
        yield
        ctx.prec = before


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rational_functions_contain_mpmath_value(name, data):
    function, oracle, _, lowest, highest = CASES[name]
    interval, inside = data.draw(intervals(lowest, highest))
    assert contains_mpmath(function(inside), oracle(to_mpf(inside)))
    image = function(interval)
    assert contains_mpmath(image, oracle(to_mpf(inside)))
    for end in (interval.lower, interval.upper):
        assert image.contains(function(end))


@pytest.mark.slow
@pytest.mark.parametrize("name", MONOTONE)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_rational_increasing_functions_keep_order_of_arguments(name, data):
    function, _, _, lowest, highest = CASES[name]
    interval, _ = data.draw(intervals(lowest, highest))
    assert function(interval.lower).lower <= function(interval.upper).upper
    assert function(interval) == Interval(lower=function(interval.lower).lower, upper=function(interval.upper).upper)


def arb_bounds(ball: arb) -> Interval:
    """The exact rational ends of an Arb ball."""
    middle, radius = ball.mid().fmpq(), ball.rad().fmpq()
    return Interval(
        lower=Fraction(int((middle - radius).p), int((middle - radius).q)),
        upper=Fraction(int((middle + radius).p), int((middle + radius).q)),
    )


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("argument", ["1/7", "3/10", "9/10", "-9/10", "7/3", "-13/3", "51/5", "1/1000003"])
def test_rational_functions_agree_with_arb_both_ways(name, argument):
    function, _, oracle, lowest, highest = CASES[name]
    x = Fraction(argument)
    if not Fraction(lowest) <= x <= Fraction(highest):
        with pytest.raises(ValueError, match="must"):
            function(x)
        return
    enclosure = function(x, bits=160)
    tight = arb_bounds(oracle(arb(fmpq(x.numerator, x.denominator))))
    assert enclosure.contains(tight)
    ctx.prec = 53
    loose = arb_bounds(oracle(arb(fmpq(x.numerator, x.denominator))))
    assert loose.contains(enclosure)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(p=st.fractions(min_value=Fraction(1, 10**12), max_value=1 - Fraction(1, 10**12), max_denominator=10**13))
def test_normal_quantile_brackets_mpmath_root(p):
    enclosure = normal_quantile(p)
    root = mpmath.sqrt(2) * mpmath.erfinv(2 * to_mpf(p) - 1)
    assert contains_mpmath(enclosure, root)
    assert enclosure.width * 10**44 <= abs(enclosure.lower)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(pair=intervals("1/1000", "999/1000"))
def test_normal_quantile_of_interval_covers_both_ends(pair):
    interval, inside = pair
    image = normal_quantile(interval)
    assert normal_cdf(image.lower).lower <= interval.lower
    assert normal_cdf(image.upper).upper >= interval.upper
    assert image.contains(normal_quantile(inside))


@settings(max_examples=25, deadline=None)
@given(x=fractions("-8", "8"))
def test_normal_quantile_inverts_normal_cdf(x):
    assert normal_quantile(normal_cdf(x)).contains(x)


@pytest.mark.parametrize("x", ["-1/2", "-1", "-2", "-4", "-8", "-16", "-24", "2", "7/2", "1/1000000000"])
def test_normal_quantile_is_tight_where_iteration_starts_on_the_root(x):
    """Midpoints and ends of the first brackets: there the sign of (cdf - p) cannot be decided."""
    enclosure = normal_quantile(normal_cdf(Fraction(x), bits=400).middle)
    assert enclosure.width * 2**140 <= abs(enclosure.lower)
    assert abs(enclosure.lower - Fraction(x)) * 2**120 <= abs(Fraction(x))


@pytest.mark.parametrize("p", ["1/2", "1/10000000000000000000000000000000000000000", "0.97724986805182079"])
def test_normal_quantile_has_certified_signs_at_its_ends(p):
    probability = Fraction(p)
    enclosure = normal_quantile(probability)
    assert normal_cdf(enclosure.lower, bits=400).lower <= probability <= normal_cdf(enclosure.upper, bits=400).upper


def test_normal_quantile_half_is_exactly_zero():
    assert normal_quantile(Fraction(1, 2)) == Interval.of(0)


@pytest.mark.parametrize("bits", [8, 20, 53, 160, 1000])
def test_pi_contains_mpmath_and_tightens_with_bits(bits):
    with mpmath.workdps(400):
        enclosure = pi(bits=bits)
        assert enclosure.lower < Fraction(str(mpmath.nstr(mpmath.pi, 390))) < enclosure.upper
    assert enclosure.width * 2**bits <= 16


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("bits", [8, 40, 120, 300])
def test_rational_functions_reach_requested_bits(name, bits):
    function = CASES[name][0]
    enclosure = function(Fraction(3, 7), bits=bits)
    assert enclosure.width * 2**bits <= 16 * abs(enclosure.upper)
    assert function(Fraction(3, 7), bits=bits + 60).width < enclosure.width


@pytest.mark.parametrize(
    ("function", "argument", "expected"),
    [
        (exp, 0, 1),
        (log, 1, 0),
        (atanh, 0, 0),
        (sqrt, 0, 0),
        (sqrt, Fraction(9, 4), Fraction(3, 2)),
        (gaussian_integral, 0, 0),
        (normal_cdf, 0, Fraction(1, 2)),
    ],
)
def test_rational_functions_enclose_exact_values_tightly(function, argument, expected):
    enclosure = function(argument)
    assert enclosure.contains(expected)
    assert enclosure.width * 2**150 <= 1


def test_sqrt_of_exact_dyadic_square_is_a_point():
    assert sqrt(Fraction(9, 4)) == Interval.of(Fraction(3, 2))


@settings(max_examples=60, deadline=None)
@given(x=fractions("0", "1000000"))
def test_sqrt_squares_back_exactly(x):
    root = sqrt(x)
    assert root.lower**2 <= x <= root.upper**2


@settings(max_examples=40, deadline=None)
@given(x=fractions("-40", "40"), y=fractions("-40", "40"))
def test_exp_multiplies_and_log_inverts_it(x, y):
    assert (exp(x) * exp(y)).contains(exp(x + y, bits=400))
    assert log(exp(x)).contains(x)


def test_normal_density_of_interval_around_zero_peaks_at_zero():
    image = normal_density(Interval(lower=Fraction(-3), upper=Fraction(2)))
    assert image == Interval(lower=normal_density(3).lower, upper=normal_density(0).upper)


@pytest.mark.parametrize("t", [8, 20, 40, 64])
def test_normal_cdf_keeps_relative_accuracy_in_far_tail(t):
    tail = normal_cdf(-t)
    assert tail.lower > 0
    assert tail.width * 2**150 <= tail.lower
    # Mills' ratio: density * t / (1 + t**2) < tail < density / t.
    density = normal_density(t)
    assert (density * Fraction(t, 1 + t * t)).is_below(tail)
    assert tail.is_below(density / t)
    assert (normal_cdf(t) + tail).contains(1)


@pytest.mark.parametrize("shift", [2, 3, 4, 8])
@pytest.mark.parametrize("work", range(1, 25))
def test_alternating_series_keeps_the_omitted_tail(shift, work):
    """1 - x + x**2 - ... = 1 / (1 + x) with x = 2**-shift: terms need no rounding, so only the tail bound has slack."""
    enclosure = rational._alternating(Fraction(1), lambda n: (1, 1 << shift), work)
    assert enclosure.contains(Fraction(1 << shift, (1 << shift) + 1))
    assert enclosure.width <= Fraction(24, 1 << work)


def test_alternating_series_does_not_stop_before_terms_decrease():
    """A first term below the unit says nothing while later ones grow. Oracle: the exact sum of sixty terms."""

    def quotient(n: int) -> tuple[int, int]:
        return (2**20, 1) if n == 0 else (1, n + 1)

    enclosure = rational._alternating(Fraction(1, 2**30), quotient, 28)
    terms = [Fraction(1, 2**30)]
    for n in range(60):
        terms.append(terms[-1] * Fraction(*quotient(n)))
    assert enclosure.contains(sum(-term if n % 2 else term for n, term in enumerate(terms)))


@pytest.mark.parametrize("bits", range(1, 20))
@pytest.mark.parametrize("z", ["1/2", "1/3", "1/4", "1/8", "3/8", "7/16", "23/64", "29/64", "1/239"])
def test_atanh_series_keeps_the_omitted_tail(bits, z):
    assert contains_mpmath(rational._atanh_series(Fraction(z), bits), mpmath.atanh(to_mpf(Fraction(z))))


@pytest.mark.parametrize("module", EXACT_MODULES, ids=lambda m: m.__name__)
def test_rational_modules_import_nothing_inexact(module):
    for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
        assert not isinstance(node, ast.Import), ast.unparse(node)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                is_own = node.module in {"ccfs.certificates._interval", "ccfs.certificates.rational"}
                assert node.level == 0
                assert is_own or (node.module, alias.name) in ALLOWED_IMPORTS, ast.unparse(node)


@pytest.mark.parametrize("module", EXACT_MODULES, ids=lambda m: m.__name__)
def test_rational_modules_hold_no_float(module):
    for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant):
            assert not isinstance(node.value, (float, complex)), node.value
        if isinstance(node, ast.Name):
            assert node.id not in {"float", "complex", "eval", "exec", "__import__", "round"}
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"limit_denominator", "from_float", "as_integer_ratio"}


@pytest.mark.parametrize("value", [0.5, float("nan"), float("inf"), True, None, "0.5", mpmath.mpf(1), 1j])
def test_interval_refuses_everything_but_exact_numbers(value):
    with pytest.raises(TypeError, match="must be an int or a Fraction"):
        Interval(lower=value, upper=Fraction(1))
    with pytest.raises(TypeError, match="must be an int or a Fraction"):
        Interval(lower=Fraction(0), upper=value)
    for function, *_ in CASES.values():
        with pytest.raises(TypeError, match="must be an int or a Fraction"):
            function(value)
    with pytest.raises(TypeError, match="must be an int or a Fraction"):
        normal_quantile(value)


@pytest.mark.parametrize("name", sorted(CASES))
def test_interval_refuses_swapped_endpoints_of_any_enclosure(name):
    enclosure = CASES[name][0](Fraction(3, 10))
    with pytest.raises(ValueError, match="endpoints swapped"):
        Interval(lower=enclosure.upper, upper=enclosure.lower)


def test_interval_is_frozen():
    with pytest.raises(AttributeError):
        Interval.of(1).lower = Fraction(0)  # type: ignore[misc]


@pytest.mark.slow
@settings(max_examples=100)
@given(left=intervals("-10", "10"), right=intervals("-10", "10"))
def test_interval_arithmetic_contains_every_pointwise_result(left, right):
    (a, x), (b, y) = left, right
    assert (a + b).contains(x + y)
    assert (a - b).contains(x - y)
    assert (a * b).contains(x * y)
    assert (-a).contains(-x)
    assert (x + b).contains(x + y)
    assert (x - b).contains(x - y)
    assert (x * b).contains(x * y)
    assert a.squared().contains(x * x)
    assert (a * a).contains(a.squared())
    if b.contains(0):
        with pytest.raises(ZeroDivisionError, match="must not contain zero"):
            a / b
    else:
        assert (a / b).contains(x / y)
        assert (x / b).contains(x / y)


@pytest.mark.slow
@settings(max_examples=100)
@given(pair=intervals("-10", "10"), bits=st.integers(min_value=1, max_value=80))
def test_interval_rounding_is_outward_small_and_close(pair, bits):
    interval, _ = pair
    wider = interval.rounded(bits)
    assert wider.contains(interval)
    for before, after in ((interval.lower, wider.lower), (interval.upper, wider.upper)):
        assert abs(before - after) * 2 ** (bits - 1) <= abs(before)
        odd = abs(after.numerator)
        assert after.denominator & (after.denominator - 1) == 0
        while odd and odd % 2 == 0:
            odd //= 2
        assert odd.bit_length() <= bits + 1


@pytest.mark.slow
@settings(max_examples=100)
@given(pair=intervals("-10", "10"), places=st.integers(min_value=0, max_value=30))
def test_interval_decimals_are_outward_by_less_than_one_unit(pair, places):
    interval, _ = pair
    lower, upper = interval.decimals(places)
    assert Fraction(lower) <= interval.lower < Fraction(lower) + Fraction(1, 10**places)
    assert Fraction(upper) - Fraction(1, 10**places) < interval.upper <= Fraction(upper)
    assert len(lower.partition(".")[2]) == places


@pytest.mark.parametrize(
    ("function", "argument", "message"),
    [
        (sqrt, Fraction(-1, 10**9), "at least 0"),
        (sqrt, Interval(lower=Fraction(-1), upper=Fraction(1)), "at least 0"),
        (log, 0, "positive"),
        (log, Interval(lower=Fraction(0), upper=Fraction(1)), "positive"),
        (atanh, 1, "strictly between -1 and 1"),
        (atanh, -1, "strictly between -1 and 1"),
        (exp, 65537, "exponent"),
        (exp, -65537, "exponent"),
        (normal_cdf, 65, "ordinate"),
        (normal_density, -65, "ordinate"),
        (gaussian_integral, 65, "ordinate"),
        (normal_quantile, 0, "strictly between 0 and 1"),
        (normal_quantile, 1, "strictly between 0 and 1"),
        (normal_quantile, Fraction(1, 10**1000), "quantile inside"),
    ],
)
def test_rational_functions_refuse_arguments_outside_their_domain(function, argument, message):
    with pytest.raises(ValueError, match=message):
        function(argument)


@pytest.mark.parametrize("bits", [7, 0, -5])
def test_rational_functions_refuse_too_few_bits(bits):
    for function, *_ in CASES.values():
        with pytest.raises(ValueError, match="`bits` must be at least 8"):
            function(Fraction(1, 3), bits=bits)
    with pytest.raises(ValueError, match="`bits` must be at least 8"):
        pi(bits=bits)


@pytest.mark.parametrize("bits", [160.0, True, "160", None])
def test_rational_functions_refuse_bits_of_wrong_kind(bits):
    pi(bits=160)  # a cached answer must not let an equal float through
    for function, *_ in CASES.values():
        with pytest.raises(TypeError, match="`bits` must be an integer"):
            function(Fraction(1, 3), bits=bits)
    with pytest.raises(TypeError, match="`bits` must be an integer"):
        pi(bits=bits)
