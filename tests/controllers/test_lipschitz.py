from __future__ import annotations

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from flint import arb_mat
from hypothesis import given, settings
from hypothesis import strategies as st

from ccfs.controllers import zoo
from ccfs.controllers.actor import GRID, FrozenNormalizer, NumpyActor
from ccfs.controllers.lipschitz import (
    LipschitzBound,
    is_positive_definite,
    lipschitz_upper,
    observation_budget,
    spectral_norm_upper,
)

pytestmark = pytest.mark.slow


def normalizer(size, std=1.0, clip=5.0):
    return FrozenNormalizer(mean=np.zeros(size), std=np.full(size, std), clip=np.float32(clip))


def network(rng, sizes, activation="tanh", output="identity", std=0.3):
    pairs = list(itertools.pairwise(sizes))
    return NumpyActor(
        weights=tuple(rng.standard_normal((after, before)) / math.sqrt(before) for before, after in pairs),
        biases=tuple(0.1 * rng.standard_normal(after) for _, after in pairs),
        activation=activation,
        output_activation=output,
        normalizer=FrozenNormalizer(
            mean=rng.standard_normal(sizes[0]),
            std=std * np.exp(0.5 * rng.standard_normal(sizes[0])),
            clip=np.float32(3.0),
        ),
    )


def moved(actor, first, second):
    """Distance of the computed centers, and of the observations in single precision, both in doubles."""
    centers = actor.center(first) - actor.center(second)
    observations = np.float32(first).astype(np.float64) - np.float32(second).astype(np.float64)
    return float(np.linalg.norm(centers)), float(np.linalg.norm(observations))


def bound(constant=2.0, rounding=0.0):
    return LipschitzBound(constant=constant, rounding=rounding, product=constant, coordinates=(0,), digest="")


# Oracle: singular values that are known by construction.
@pytest.mark.parametrize(
    ("weight", "norm"),
    [
        ([[3.0, 0.0], [0.0, 4.0]], 4.0),
        ([[3.0, 4.0]], 5.0),
        ([[3.0], [4.0]], 5.0),
        ([[1.0, 1.0], [1.0, 1.0]], 2.0),
        ([[-7.0]], 7.0),
    ],
)
def test_spectral_norm_upper_is_just_above_the_exact_norm(weight, norm):
    found = spectral_norm_upper(np.array(weight))
    assert norm <= found <= norm * (1.0 + 1e-8)


@given(seed=st.integers(0, 10_000), rows=st.integers(1, 6), columns=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_spectral_norm_upper_is_never_below_an_exact_quotient(seed, rows, columns):
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((rows, columns))
    upper = Fraction(spectral_norm_upper(weight))
    top = np.linalg.svd(weight)[2][0]  # the direction in which a bound would fail first
    exactly = [[Fraction(value) for value in row] for row in weight.tolist()]
    direction = [Fraction(value) for value in top.tolist()]
    image = [sum((a * b for a, b in zip(row, direction, strict=True)), Fraction(0)) for row in exactly]
    assert sum(value**2 for value in image) <= upper**2 * sum(value**2 for value in direction)


@pytest.mark.parametrize("weight", [[[math.nan]], [[math.inf]], [1.0], [[]]])
def test_spectral_norm_upper_refuses_what_is_no_finite_matrix(weight):
    with pytest.raises(ValueError, match="`weight` must be a finite matrix"):
        spectral_norm_upper(np.array(weight))


@pytest.mark.parametrize("least", [-1e-3, -1e-12, 0.0])
def test_is_positive_definite_refuses_matrices_that_are_not(least):
    matrix = np.array([[1.0 + least, 1.0], [1.0, 1.0]])  # determinant: the first entry minus 1
    assert Fraction(matrix[0, 0]) - 1 <= 0
    for proposal in (matrix, matrix + 0.1 * np.eye(2), np.eye(2)):
        assert not is_positive_definite(arb_mat(matrix.tolist()), proposal)


def test_is_positive_definite_accepts_a_matrix_that_is():
    matrix = np.array([[2.0, 1.0], [1.0, 1.0]])
    assert is_positive_definite(arb_mat(matrix.tolist()), matrix)


def test_lipschitz_upper_of_a_linear_layer_is_its_scaled_norm():
    weight = np.array([[3.0, 0.0], [0.0, 8.0]])
    actor = NumpyActor(
        weights=(weight,),
        biases=(np.zeros(2),),
        activation="tanh",
        normalizer=FrozenNormalizer(mean=np.zeros(2), std=np.array([0.5, 2.0]), clip=np.float32(5.0)),
    )
    found = lipschitz_upper(actor)
    assert 6.0 <= found.constant <= 6.0 * (1.0 + 1e-8)
    assert found.digest == actor.digest


def test_lipschitz_upper_is_attained_where_the_network_is_linear():
    # relu of positive inputs: 2 * 3 * x exactly, so that the true constant is 6.
    actor = NumpyActor(
        weights=(np.array([[2.0]]), np.array([[3.0]])),
        biases=(np.zeros(1), np.zeros(1)),
        activation="relu",
        normalizer=normalizer(1, clip=100.0),
    )
    found = lipschitz_upper(actor)
    assert 6.0 <= found.constant <= 6.0 * (1.0 + 1e-6)
    assert moved(actor, [1.0], [3.0])[0] == 12.0


@given(seed=st.integers(0, 10_000))
@settings(max_examples=12, deadline=None)
def test_lipschitz_upper_is_never_exceeded_by_random_or_steepest_pairs(seed):
    rng = np.random.default_rng(seed)
    activation, output = rng.choice(["tanh", "relu"]), rng.choice(["identity", "tanh", "relu"])
    actor = network(rng, (4, 7, 5, 2), activation=str(activation), output=str(output))
    found = lipschitz_upper(actor)
    assert found.constant <= found.product
    assert actor.normalizer is not None
    for scale in (1e-6, 1e-3, 0.1, 1.0, 10.0):
        for _ in range(20):
            first = actor.normalizer.mean + rng.standard_normal(4)
            slope = np.array(
                [(actor.center(first + 1e-2 * e)[0] - actor.center(first)[0]) for e in np.eye(4)]
            )  # towards the steepest change: random directions alone would not come near the bound
            direction = slope if np.any(slope) else rng.standard_normal(4)
            far, near = moved(actor, first, first + scale * direction / np.linalg.norm(direction))
            assert far <= found.constant * near + found.rounding


def test_lipschitz_upper_rounding_covers_the_grid_and_cannot_be_dropped():
    # Two neighbouring observations on both sides of a grid point's middle: the centers jump by a whole step.
    actor = NumpyActor(
        weights=(np.array([[GRID]]),), biases=(np.zeros(1),), activation="tanh", normalizer=normalizer(1)
    )
    found = lipschitz_upper(actor)
    below, above = np.nextafter(np.float32(0.5), np.float32(0.0)), np.nextafter(np.float32(0.5), np.float32(1.0))
    far, near = moved(actor, [below], [above])
    assert far == GRID
    assert far > found.constant * near
    assert far <= found.constant * near + found.rounding
    assert found.rounding < 1.01 * GRID


def test_lipschitz_upper_of_chosen_coordinates_is_smaller_and_holds_for_errors_there():
    rng = np.random.default_rng(3)
    actor = network(rng, (5, 8, 2))
    every, some = lipschitz_upper(actor), lipschitz_upper(actor, coordinates=[3, 1])
    assert every == lipschitz_upper(actor)
    assert some.coordinates == (1, 3)
    assert some.constant < every.constant
    for _ in range(200):
        first = rng.standard_normal(5)
        error = np.zeros(5)
        error[[1, 3]] = 0.3 * rng.standard_normal(2)
        far, near = moved(actor, first, first + error)
        assert far <= some.constant * near + some.rounding


def test_lipschitz_upper_of_a_shipped_actor_beats_the_product_and_holds():
    actor = zoo.load(zoo.names()[0]).actor
    found = lipschitz_upper(actor)
    assert found.constant < 0.6 * found.product
    assert actor.normalizer is not None
    rng = np.random.default_rng(0)
    for _ in range(300):
        first = actor.normalizer.mean + actor.normalizer.std * rng.standard_normal(60)
        far, near = moved(actor, first, first + rng.choice([1e-4, 1e-2, 1.0]) * rng.standard_normal(60))
        assert far <= found.constant * near + found.rounding


def test_lipschitz_upper_refuses_what_it_cannot_bound():
    rng = np.random.default_rng(0)
    actor = network(rng, (3, 4, 2))
    with pytest.raises(ValueError, match="`activation` must be one of"):
        lipschitz_upper(network(rng, (3, 4, 2), activation="softplus"))
    with pytest.raises(ValueError, match="`activation` must be one of"):
        lipschitz_upper(network(rng, (3, 4, 2), output="sigmoid"))
    with pytest.raises(ValueError, match="`actor` must have a normaliser"):
        lipschitz_upper(dataclasses.replace(actor, normalizer=None))
    with pytest.raises(ValueError, match="without stretching to a box"):
        lipschitz_upper(dataclasses.replace(actor, low=np.zeros(2), high=np.ones(2)))
    with pytest.raises(TypeError, match="`actor` must be a NumpyActor"):
        lipschitz_upper(None)  # type: ignore[arg-type]
    for wrong in ([], [3], [0, 0], [-1]):
        with pytest.raises(ValueError, match="`coordinates"):
            lipschitz_upper(actor, coordinates=wrong)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lipschitz_upper_holds_for_either_precision_and_for_clipped_outputs(dtype):
    rng = np.random.default_rng(5)
    plain = network(rng, (3, 8, 2), output="tanh")
    scale = dataclasses.replace(plain.normalizer, mean=1000.0 + plain.normalizer.mean, dtype=dtype)
    actor = dataclasses.replace(plain, normalizer=scale, output_limit=0.5)
    bound = lipschitz_upper(actor)
    is_single = dtype == "float32"
    for _ in range(200):
        first, second = 1000.0 + rng.standard_normal((2, 3))
        if is_single:
            first, second = np.float32(first).astype(np.float64), np.float32(second).astype(np.float64)
        shift = np.linalg.norm(actor.center(first) - actor.center(second))
        assert shift <= bound.constant * np.linalg.norm(first - second) + bound.rounding


def test_observation_budget_is_the_budget_over_the_constant():
    assert observation_budget(0.5, bound(constant=2.0), horizon=500) == 0.25
    assert observation_budget(0.5, bound(constant=2.0, rounding=0.125), horizon=4) == 0.125


@given(
    budget=st.floats(0.0, 2.0),
    constant=st.floats(1e-3, 1e3),
    rounding=st.floats(0.0, 1e-2),
    root=st.integers(1, 40),
)
@settings(deadline=None)
def test_observation_budget_keeps_the_shift_within_the_budget_exactly(budget, constant, rounding, root):
    eta = observation_budget(budget, bound(constant, rounding), horizon=root**2)
    floor = Fraction(rounding) * root
    if eta is None:
        assert floor > Fraction(budget)
    else:
        assert Fraction(constant) * Fraction(eta) + floor <= Fraction(budget)
        after = Fraction(math.nextafter(eta, math.inf))
        assert Fraction(constant) * after + floor > Fraction(budget)


def test_observation_budget_covers_every_split_of_the_error_over_the_steps():
    limits = bound(constant=3.0, rounding=1e-3)
    eta = observation_budget(0.2, limits, horizon=50)
    assert eta is not None
    rng = np.random.default_rng(1)
    for power in (0.0, 1.0, 8.0):
        errors = rng.random(50) ** power
        errors *= eta / np.linalg.norm(errors)
        assert np.linalg.norm(limits.constant * errors + limits.rounding) <= 0.2 * (1.0 + 1e-12)


def test_observation_budget_is_none_where_rounding_uses_it_up():
    assert observation_budget(0.01, bound(rounding=0.01), horizon=2) is None
    assert observation_budget(0.02, bound(rounding=0.01), horizon=4) == 0.0


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.1])
def test_observation_budget_refuses_numbers_that_are_no_budget(wrong):
    with pytest.raises(ValueError, match="`budget`"):
        observation_budget(wrong, bound(), horizon=500)
    with pytest.raises(ValueError, match=r"`bound\.rounding`"):
        observation_budget(0.1, bound(rounding=wrong), horizon=500)
    with pytest.raises(ValueError, match=r"`bound\.constant`"):
        observation_budget(0.1, bound(constant=wrong), horizon=500)


def test_observation_budget_refuses_a_wrong_horizon_and_a_zero_constant():
    with pytest.raises(ValueError, match="`horizon` must be at least 1"):
        observation_budget(0.1, bound(), horizon=0)
    with pytest.raises(TypeError, match="`horizon`"):
        observation_budget(0.1, bound(), horizon=5.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`bound\.constant` must be positive"):
        observation_budget(0.1, bound(constant=0.0), horizon=5)
