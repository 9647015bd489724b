"""Rounded numbers against the exact value they stand for: never on the wrong side, and the next one would be."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ccfs.certificates.rounding import exact_text, fraction_lower, fraction_upper, lower_text, upper_text

LARGEST = math.nextafter(math.inf, 0.0)


@given(st.fractions() | st.floats(allow_nan=False, allow_infinity=False).map(Fraction), st.integers(1, 10**30))
@example(Fraction(1, 3), 1)
@example(Fraction(-1, 3), 1)
@example(Fraction(5e-324), 3)
def test_fraction_lower_and_upper_are_the_doubles_next_to_the_value(numerator, denominator):
    value = Fraction(numerator) / denominator
    low, high = fraction_lower(value), fraction_upper(value)
    assert Fraction(low) <= value <= Fraction(high)
    assert high in (low, math.nextafter(low, math.inf))


def test_fraction_lower_and_upper_beyond_the_doubles_stay_on_their_side():
    huge = Fraction(10) ** 400
    assert (fraction_lower(huge), fraction_upper(huge)) == (LARGEST, math.inf)
    assert (fraction_lower(-huge), fraction_upper(-huge)) == (-math.inf, -LARGEST)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.fractions(), st.integers(0, 6))
def test_texts_are_the_decimals_next_to_the_value(value, decimals):
    low, high = lower_text(value, decimals), upper_text(value, decimals)
    unit = Fraction(1, 10**decimals)
    assert Fraction(value) - unit < Fraction(low) <= Fraction(value) <= Fraction(high) < Fraction(value) + unit
    assert all(len(text.partition(".")[2]) == decimals for text in (low, high))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_exact_text_reads_back(value):
    assert float(exact_text(value)) == value


@pytest.mark.parametrize(
    ("value", "decimals", "low", "high"),
    [
        (6e-5, 4, "0.0000", "0.0001"),
        (0.0, 4, "0.0000", "0.0000"),
        (-0.0, 4, "0.0000", "0.0000"),
        (-1e-9, 4, "-0.0001", "0.0000"),  # a zero has no sign
        (0.96669, 4, "0.9666", "0.9667"),
        (0.3, 4, "0.2999", "0.3000"),  # the double is below three tenths
        (0.2, 4, "0.2000", "0.2001"),  # and this one above a fifth
        (1.99995, 4, "1.9999", "2.0000"),
        (math.nextafter(0.123457, 0.0), 6, "0.123456", "0.123457"),
        (Fraction(-2, 3), 4, "-0.6667", "-0.6666"),
        (12.0, 0, "12", "12"),
        (math.inf, 4, "∞", "∞"),
        (-math.inf, 4, "-∞", "-∞"),
    ],
)
def test_texts_of_known_values(value, decimals, low, high):
    assert (lower_text(value, decimals), upper_text(value, decimals)) == (low, high)


@pytest.mark.parametrize("text", [lower_text, upper_text])
def test_texts_refuse_nan(text):
    with pytest.raises(ValueError, match="`value` must be a number, got nan"):
        text(math.nan)
