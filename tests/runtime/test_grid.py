"""Observations are rounded to a declared grid: exactly, in their own dtype, and with one zero."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from ccfs.runtime.grid import Grid


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("exponent", [-60, -20, -3, 0, 4, 60])
def test_grid_gives_the_nearest_multiple_ties_to_even(dtype, exponent):
    # Oracle: Python's round of an exact fraction, which goes to the even neighbour at a tie.
    rng = np.random.default_rng(0)
    step = Fraction(2) ** exponent
    scales = 10.0 ** rng.uniform(-12, 4, 300)
    near_ties = (rng.integers(-9, 9, 100) + 0.5) * float(step)
    with np.errstate(over="ignore"):
        values = np.concatenate([rng.standard_normal(300) * scales, near_ties]).astype(dtype)
    values = values[np.isfinite(values)]
    rounded = Grid(2.0**exponent)(values)
    assert rounded.dtype == dtype
    for value, got in zip(values.tolist(), rounded.tolist(), strict=True):
        is_coarse = abs(Fraction(value)) >= step * 2 ** (np.finfo(dtype).nmant + 1)
        expected = Fraction(value) if is_coarse else round(Fraction(value) / step) * step
        assert Fraction(got) == expected or got == float(np.float64(float(expected)).astype(dtype))


def test_grid_is_idempotent_and_leaves_the_given_array_alone():
    given = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    before = given.copy()
    once = Grid(2.0**-20)(given)
    np.testing.assert_array_equal(given, before)
    assert Grid(2.0**-20)(once).tobytes() == once.tobytes() != given.tobytes()
    assert once.shape == given.shape


def test_grid_has_one_zero():
    # -0.0 and 0.0 are equal but hash differently, and arctan2 tells them apart.
    assert Grid(2.0**-20)(np.array([-1e-9, 1e-9, -0.0])).tobytes() == bytes(24)


def test_grid_passes_on_what_it_cannot_round():
    odd = np.array([math.nan, math.inf, -math.inf, 1e300, -1e17])
    np.testing.assert_array_equal(Grid(2.0**-20)(odd), odd)
    for other in (np.array([3, 4]), np.array([True]), np.array(["a"]), np.array([None])):
        got = Grid(2.0**-20)(other)
        assert (got.dtype, got.tolist()) == (other.dtype, other.tolist())


def test_grid_of_none_copies():
    given = np.array([0.1, -0.0])
    got = Grid(None)(given)
    assert got.tobytes() == given.tobytes()
    assert not np.shares_memory(got, given)


@pytest.mark.parametrize("wrong", [0.0, -0.5, 0.3, math.nan, math.inf, True, "2^-20", 2.0**-61, 2.0**61])
def test_grid_refuses_what_is_no_power_of_two(wrong):
    with pytest.raises(ValueError, match="`resolution` must be a power of two"):
        Grid(wrong)
