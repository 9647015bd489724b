"""Proved enclosures of exp, log, pi, roots and the normal law in exact fractions: no floats, no library arithmetic.

Every function takes an int, a Fraction or an `Interval` and returns an `Interval` that contains the value at every
point of its argument. A theorem that is named in the docstring bounds what is cut off a series. Integer floor and
ceiling round outward. `bits` sets how tight the answer is (about 2**-bits of its size), never whether it is right.

This module does not use Arb, so that the two arithmetics check each other. It serves the exact witnesses of the
appendices on the compact witness and on the two-band family.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from math import isqrt

from ccfs.certificates._interval import Exact, Interval, from_scaled, magnitude, scaled_ceiling, scaled_floor

__all__ = [
    "BITS",
    "Exact",
    "Interval",
    "atanh",
    "exp",
    "gaussian_integral",
    "log",
    "normal_cdf",
    "normal_density",
    "normal_quantile",
    "pi",
    "sqrt",
]

BITS = 160
_GUARD = 16
# Beyond these an enclosure would take very long, and no witness comes near them.
_EXPONENT_LIMIT = 1 << 16
_ORDINATE_LIMIT = 64


# Typed, so that `bits=160.0` is refused and does not find the cached answer of 160.
@lru_cache(maxsize=64, typed=True)
def pi(*, bits: int = BITS) -> Interval:
    """Enclose pi by Machin's identity, pi = 16 arctan(1/5) - 4 arctan(1/239).

    Remainder: the arctangent series of 1/m alternates and its terms decrease from the first on. So the value is between
    two adjacent partial sums.

    >>> pi(bits=64).decimals(15)
    ('3.141592653589793', '3.141592653589794')
    """
    work = _precision(bits) + _GUARD
    return (16 * _arctan_inverse(5, work) - 4 * _arctan_inverse(239, work)).rounded(bits)


def sqrt(value: Interval | Exact, *, bits: int = BITS) -> Interval:
    """Enclose the square root of a nonnegative argument.

    Remainder: r = isqrt(floor(x 4**s)) satisfies r**2 <= x 4**s < (r + 1)**2, so the root is in [r, r + 1] / 2**s.
    """
    x, precision = Interval.of(value), _precision(bits)
    if not x.lower >= 0:
        raise ValueError(f"`value` must be at least 0 at every point, got {x}.")
    return Interval(lower=_sqrt_at(x.lower, precision).lower, upper=_sqrt_at(x.upper, precision).upper)


def exp(exponent: Interval | Exact, *, bits: int = BITS) -> Interval:
    """Enclose e**exponent.

    Remainder: e**-y = sum of (-1)**n y**n / n! alternates. For 0 <= y <= 1 its terms never increase, so the value is
    between two adjacent partial sums. A larger y is halved until it is at most 1, and the enclosure is squared as
    often. A positive exponent uses 1 / e**-y.
    """
    x, precision = Interval.of(exponent), _precision(bits)
    if not -_EXPONENT_LIMIT <= x.lower <= x.upper <= _EXPONENT_LIMIT:
        raise ValueError(f"`exponent` must lie in [-{_EXPONENT_LIMIT}, {_EXPONENT_LIMIT}], got {x}.")
    return Interval(lower=_exp_at(x.lower, precision).lower, upper=_exp_at(x.upper, precision).upper)


def atanh(value: Interval | Exact, *, bits: int = BITS) -> Interval:
    """Enclose the inverse hyperbolic tangent of an argument strictly between -1 and 1.

    Remainder: after the term of index N the series z + z**3/3 + z**5/5 + ... leaves at most
    z**(2N+3) / ((2N+3)(1 - z**2)), a geometric series with ratio z**2 (used for abs(z) <= 1/2). Beyond,
    atanh z = log((1 + z) / (1 - z)) / 2.
    """
    z, precision = Interval.of(value), _precision(bits)
    if not -1 < z.lower <= z.upper < 1:
        raise ValueError(f"`value` must lie strictly between -1 and 1, got {z}.")
    return Interval(lower=_atanh_at(z.lower, precision).lower, upper=_atanh_at(z.upper, precision).upper)


def log(value: Interval | Exact, *, bits: int = BITS) -> Interval:
    """Enclose the natural logarithm of a positive argument.

    Write x = m 2**k with 2/3 <= m <= 4/3: log x = 2 atanh((m - 1) / (m + 1)) + 2k atanh(1/3), with the remainder
    stated at `atanh`.
    """
    x, precision = Interval.of(value), _precision(bits)
    if not x.lower > 0:
        raise ValueError(f"`value` must be positive at every point, got {x}.")
    return Interval(lower=_log_at(x.lower, precision).lower, upper=_log_at(x.upper, precision).upper)


def gaussian_integral(ordinate: Interval | Exact, *, bits: int = BITS) -> Interval:
    """Enclose the integral of exp(-x**2 / 2) from 0 to `ordinate`.

    Remainder: the series sum of (-1)**n t**(2n+1) / (2**n n! (2n+1)) alternates. The quotient of adjacent terms,
    t**2 (2n+1) / (2 (n+1) (2n+3)), decreases in n to zero. Once it is at most 1 the terms never increase again, and the
    value is between two adjacent partial sums.
    """
    t, precision = _ordinates(ordinate), _precision(bits)
    return Interval(
        lower=_integral_at(t.lower, precision).rounded(precision).lower,
        upper=_integral_at(t.upper, precision).rounded(precision).upper,
    )


def normal_density(ordinate: Interval | Exact, *, bits: int = BITS) -> Interval:
    """Enclose the standard normal density exp(-x**2 / 2) / sqrt(2 pi)."""
    t, work = _ordinates(ordinate), _precision(bits) + _GUARD
    return (exp(-t.squared() / 2, bits=work) / _root_two_pi(work)).rounded(bits)


def normal_cdf(ordinate: Interval | Exact, *, bits: int = BITS) -> Interval:
    """Enclose the standard normal distribution function, 1/2 + gaussian_integral / sqrt(2 pi), which increases.

    The integral is computed with enough digits that a far tail such as the value at -40 keeps its relative accuracy.
    """
    t, precision = _ordinates(ordinate), _precision(bits)
    return Interval(lower=_cdf_at(t.lower, precision).lower, upper=_cdf_at(t.upper, precision).upper)


def normal_quantile(probability: Interval | Exact, *, bits: int = BITS) -> Interval:
    """Enclose the standard normal quantile, which increases, of a probability strictly between 0 and 1.

    The bracket at the start has proved signs of (cdf - p) at its ends. It is intersected with Newton's interval
    m - (cdf(m) - p) / density(bracket), which contains the root by the mean value theorem. Where cdf(m) - p has a
    proved sign, that interval is on one side of m, so each step also bisects. Nothing is dropped without proof, so the
    answer encloses the root wherever the iteration stops.
    """
    p, precision = Interval.of(probability), _precision(bits)
    if not 0 < p.lower <= p.upper < 1:
        raise ValueError(f"`probability` must lie strictly between 0 and 1, got {p}.")
    return Interval(lower=_quantile_at(p.lower, precision).lower, upper=_quantile_at(p.upper, precision).upper)


def _precision(bits: object) -> int:
    if isinstance(bits, bool) or not isinstance(bits, int):
        raise TypeError(f"`bits` must be an integer, got {bits!r} of type {type(bits).__name__}.")
    if not bits >= 8:
        raise ValueError(f"`bits` must be at least 8, got {bits}. {BITS} gives about 48 decimals.")
    return bits


def _ordinates(ordinate: Interval | Exact) -> Interval:
    t = Interval.of(ordinate)
    if not -_ORDINATE_LIMIT <= t.lower <= t.upper <= _ORDINATE_LIMIT:
        raise ValueError(f"`ordinate` must lie in [-{_ORDINATE_LIMIT}, {_ORDINATE_LIMIT}], got {t}.")
    return t


def _alternating(first: Fraction, quotient: Callable[[int], tuple[int, int]], work: int) -> Interval:
    """Enclose t_0 - t_1 + t_2 - ... where t_0 = first and t_{n+1} = t_n * numerator / denominator of quotient(n).

    Assumes: nonnegative terms, and quotients that end below 1/2 and stay at most 1 once they are. By Leibniz, from an
    index n after which terms never increase, the rest has the sign of t_n and at most its size. Terms are carried as
    integer bounds in units of 2**-work.
    """
    low, high = scaled_floor(first, work), scaled_ceiling(first, work)
    total_low = total_high = n = 0
    while True:
        numerator, denominator = quotient(n)
        # From here on terms never increase, and the next one is below one unit. Leibniz covers the rest.
        if numerator <= denominator and high <= 1:
            break
        if n % 2 == 0:
            total_low, total_high = total_low + low, total_high + high
        else:
            total_low, total_high = total_low - high, total_high - low
        low, high = low * numerator // denominator, -(-high * numerator // denominator)
        n += 1
    if n % 2 == 0:
        total_high += high
    else:
        total_low -= high
    return Interval(lower=from_scaled(total_low, work), upper=from_scaled(total_high, work))


def _arctan_inverse(m: int, work: int) -> Interval:
    return _alternating(Fraction(1, m), lambda n: (2 * n + 1, (2 * n + 3) * m * m), work)


def _sqrt_at(x: Fraction, bits: int) -> Interval:
    if x == 0:
        return Interval.of(x)
    shift = bits - magnitude(x) // 2
    root = isqrt(scaled_floor(x, 2 * shift))
    is_exact = root * root == scaled_ceiling(x, 2 * shift)
    return Interval(lower=from_scaled(root, shift), upper=from_scaled(root if is_exact else root + 1, shift))


def _exp_at(x: Fraction, bits: int) -> Interval:
    if x > 0:
        return (1 / _exp_at(-x, bits + _GUARD)).rounded(bits)
    # So often that abs(x) / 2**halvings is at most 1.
    halvings = max(0, magnitude(x) + 1) if x else 0
    y = from_scaled(1, halvings) * -x
    # Each squaring doubles the relative error, hence one more bit per halving.
    work = bits + halvings + _GUARD
    power = _alternating(Fraction(1), lambda n: (y.numerator, y.denominator * (n + 1)), work)
    for _ in range(halvings):
        power = power.squared().rounded(work)
    return power.rounded(bits)


def _atanh_at(z: Fraction, bits: int) -> Interval:
    if z < 0:
        return -_atanh_at(-z, bits)
    if z > Fraction(1, 2):
        return _log_at((1 + z) / (1 - z), bits) / 2
    return _atanh_series(z, bits + _GUARD).rounded(bits)


def _atanh_series(z: Fraction, bits: int) -> Interval:
    """Enclose atanh z for 0 <= z <= 1/2 to about 2**-bits of its size."""
    if z == 0:
        return Interval.of(z)
    work = bits - magnitude(z)
    square, unit = z.numerator**2, z.denominator**2
    low, high = scaled_floor(z, work), scaled_ceiling(z, work)
    total_low = total_high = n = 0
    while high > 1:
        total_low, total_high = total_low + low, total_high + high
        numerator, denominator = square * (2 * n + 1), unit * (2 * n + 3)
        low, high = low * numerator // denominator, -(-high * numerator // denominator)
        n += 1
    # What is left is below a geometric series with ratio z**2.
    tail = -(-high * unit // (unit - square))
    return Interval(lower=from_scaled(total_low, work), upper=from_scaled(total_high + tail, work))


@lru_cache(maxsize=64)
def _log_two(bits: int) -> Interval:
    return 2 * _atanh_series(Fraction(1, 3), bits)


def _log_at(x: Fraction, bits: int) -> Interval:
    work = bits + _GUARD
    power = magnitude(x)
    mantissa = x / from_scaled(1, -power)
    if mantissa > Fraction(4, 3):
        power, mantissa = power + 1, mantissa / 2
    elif mantissa < Fraction(2, 3):
        power, mantissa = power - 1, mantissa * 2
    z = (mantissa - 1) / (mantissa + 1)
    half = _atanh_series(abs(z), work)
    return (2 * (half if z >= 0 else -half) + power * _log_two(work)).rounded(bits)


def _integral_at(t: Fraction, bits: int) -> Interval:
    """Enclose the Gaussian integral with an error far below 2**-bits times both itself and the tail beyond t.

    Terms grow to at most exp(t**2 / 2), and the tail shrinks like exp(-t**2 / 2). 2 t**2 more bits outweigh both.
    """
    if t == 0:
        return Interval.of(t)
    if t < 0:
        return -_integral_at(-t, bits)
    square = t * t
    work = bits + 2 * scaled_ceiling(square, 0) + max(0, -magnitude(t)) + _GUARD
    return _alternating(
        t,
        lambda n: (square.numerator * (2 * n + 1), square.denominator * 2 * (n + 1) * (2 * n + 3)),
        work,
    )


@lru_cache(maxsize=64)
def _root_two_pi(bits: int) -> Interval:
    return sqrt(2 * pi(bits=bits + _GUARD), bits=bits)


def _cdf_at(t: Fraction, bits: int) -> Interval:
    work = bits + 2 * scaled_ceiling(t * t, 0) + _GUARD
    return (Fraction(1, 2) + _integral_at(t, bits) / _root_two_pi(work)).rounded(bits)


def _quantile_at(p: Fraction, bits: int) -> Interval:
    half = Fraction(1, 2)
    if p == half:
        return Interval.of(0)
    if p > half:
        # 1 - p is exact in fractions, so nothing is lost in the upper tail.
        return -_quantile_at(1 - p, bits)
    work = bits + max(0, -magnitude(half - p)) + _GUARD
    low = -1
    while not _cdf_at(Fraction(low), work).is_below(p):
        low *= 2
        if low < -_ORDINATE_LIMIT:
            raise ValueError(f"`probability` must have a quantile inside ±{_ORDINATE_LIMIT}, got {p}.")
    # The distribution function is 1/2 at 0, above p. So both ends have proved signs.
    bracket = Interval(lower=Fraction(low), upper=Fraction(0))
    while bracket.width > from_scaled(1, bits) * -bracket.upper:
        narrowed = bracket
        middle, slope = bracket.middle, normal_density(bracket, bits=work)
        # The quarters decide when the root is too near the middle for a sign there.
        for point in (middle, (bracket.lower + middle) / 2, (middle + bracket.upper) / 2):
            narrowed = narrowed.intersection((point - (_cdf_at(point, work) - p) / slope).rounded(work))
            if 4 * narrowed.width <= 3 * bracket.width:
                break
        else:
            # No point narrows the bracket any more: the working precision is used up. It still encloses the root.
            return narrowed.rounded(bits)
        bracket = narrowed
    return bracket.rounded(bits)
