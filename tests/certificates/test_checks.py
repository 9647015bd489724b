"""Argument checks: what each accepts, and that NaN, bools, wrong kinds and inexact numbers are refused everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from ccfs.certificates import checks

NAMED = [checks.real, checks.finite, checks.positive, checks.nonnegative, checks.probability, checks.open_unit]


@pytest.mark.parametrize("check", NAMED)
def test_number_checks_accept_every_kind_of_exact_number_as_a_float(check) -> None:
    for value in (0.5, Fraction(1, 2), np.float32(0.5), np.float64(0.5)):
        assert check("x", value) == 0.5
        assert type(check("x", value)) is float


@pytest.mark.parametrize("check", NAMED)
@pytest.mark.parametrize("value", [True, np.True_, "0.5", None, [0.5], np.array([0.5]), 0.5 + 0j])
def test_number_checks_refuse_other_kinds(check, value: object) -> None:
    with pytest.raises(TypeError, match="`x` must be a real number"):
        check("x", value)


@pytest.mark.parametrize("check", NAMED)
def test_number_checks_refuse_nan_and_numbers_that_a_double_would_round(check) -> None:
    with pytest.raises(ValueError, match="`x` must be a number, got nan"):
        check("x", math.nan)
    with pytest.raises(ValueError, match="exactly representable"):
        check("x", Fraction(1, 3))
    with pytest.raises(ValueError, match="exactly representable"):
        check("x", 2**53 + 1)
    with pytest.raises(ValueError, match="range of a double"):
        check("x", 10**400)


@pytest.mark.parametrize(
    ("check", "inside", "outside"),
    [
        (checks.finite, [0.0, -1.0], [math.inf, -math.inf]),
        (checks.positive, [5e-324], [0.0, -0.0, -1.0, math.inf]),
        (checks.nonnegative, [0.0, 1.0], [-5e-324, math.inf]),
        (checks.probability, [0.0, 1.0], [-5e-324, math.nextafter(1.0, 2.0), math.inf]),
        (checks.open_unit, [5e-324, math.nextafter(1.0, 0.0)], [0.0, 1.0, math.inf]),
    ],
)
def test_number_checks_stop_at_the_stated_ends(check, inside: list[float], outside: list[float]) -> None:
    assert [check("x", value) for value in inside] == inside
    for value in outside:
        with pytest.raises(ValueError, match="`x` must be"):
            check("x", value)


def test_delta_is_an_open_probability_and_says_what_it_means() -> None:
    assert checks.delta(0.001) == 0.001
    for value in (0.0, 1.0, 1.5, math.inf):
        with pytest.raises(ValueError, match="It is the failure probability"):
            checks.delta(value)


@pytest.mark.parametrize("check", [checks.probability, checks.open_unit])
def test_probability_in_percent_is_refused_with_the_number_to_write(check: Callable[[str, float], float]) -> None:
    with pytest.raises(ValueError, match=r"got 95\.0\. Write 0\.95 for 95%\.$"):
        check("target", 95)
    with pytest.raises(ValueError, match=r"got 1\.5\.$"):
        check("target", 1.5)


@pytest.mark.parametrize("value", [True, np.True_, 3.0, "3", None, np.array([3]), Fraction(3)])
def test_count_refuses_whatever_is_not_an_integer(value: object) -> None:
    with pytest.raises(TypeError, match="`n` must be an integer"):
        checks.count("n", value)


def test_count_and_tally_stop_at_the_stated_ends() -> None:
    assert checks.count("n", np.int32(0)) == 0
    with pytest.raises(ValueError, match="`n` must be at least 1, got 0"):
        checks.count("n", 0, minimum=1)
    assert checks.tally(4, 4) == (4, 4)
    with pytest.raises(ValueError, match="`successes` must be at most `trials`, got 5 of 4"):
        checks.tally(5, 4)
    with pytest.raises(ValueError, match="`trials` must be at least 1, got 0"):
        checks.tally(0, 0)


def test_counts_take_a_sequence_and_refuse_what_iterates_otherwise() -> None:
    assert checks.counts("c", np.array([3, 4])) == checks.counts("c", (3, 4)) == (3, 4)
    for value in ({0: 3, 1: 4}, {3, 4}, "34", b"34", iter([3, 4])):
        with pytest.raises(TypeError, match="`c` must be a sequence of integers"):
            checks.counts("c", value)
    with pytest.raises(ValueError, match="one dimension"):
        checks.counts("c", np.array([[3, 4]]))
    with pytest.raises(ValueError, match="at least 2 labels, got 1"):
        checks.counts("c", [3])
    with pytest.raises(ValueError, match=r"`c\[1\]` must be at least 0, got -1"):
        checks.counts("c", [3, -1])
