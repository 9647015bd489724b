"""A proved Lipschitz bound of the numpy actor, and the observation error that a certified shift budget covers.

A floating-point search proposes the bound. Then the bound is proved: nothing is returned unless a matrix inequality has
been verified in ball arithmetic (python-flint), which encloses all rounding errors. The search need not be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from flint import arb, arb_mat
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.rounding import fraction_upper
from ccfs.certificates.validated import exact, lower_float, precision
from ccfs.controllers.actor import GRID, NumpyActor

__all__ = [
    "LipschitzBound",
    "Matrix",
    "approximate",
    "is_positive_definite",
    "lipschitz_upper",
    "multipliers",
    "observation_budget",
    "spectral_norm_upper",
]

_BITS: Final = 192
_SINGLE, _DOUBLE = 2.0**-24, 2.0**-53  # unit roundoffs
_TINY: Final = 2.0**-140  # more than any error of a result that underflows in single precision
_ACTIVATION: Final = {"identity": 0.0, "relu": 0.0, "tanh": 2.0**-46}
"""Activations with slopes in [0, 1], and the premise on how far the machine's function is from the true one."""
_SLACK: Final = 1.0 + 2.0**-30  # more than the rounding errors of a few thousand non-negative terms in double precision
_INFLATIONS: Final = (1e-9, 1e-7, 1e-5, 1e-3, 1e-1, 1.0)
Matrix = NDArray[np.float64]
_STEPS: Final = 300
_RATE: Final = 0.03
_SHARPNESS: Final = 200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LipschitzBound:
    """|center(o) - center(o')| <= constant |o - o'| + rounding, for all o and o' that differ in `coordinates` only.

    Norms are Euclidean. Both centers are those that the actor really computes, before or after clipping to a box. o and
    o' are what the actor works on, which is observations in the precision of its normaliser. With single precision the
    actor first rounds a double, for the true observation and for the wrong one, so measure the error after that. On
    another machine the search may find another constant, which is proved as well.

    Args:
        constant: L, rounded up, in units of action per unit of observation.
        rounding: what the two centers may differ by although the observations agree as reals: grid of the centers and
            floating-point errors of both evaluations, rounded up.
        product: the product of the layers' norms, which is the classical bound, for comparison. It is proved too.
        coordinates: the coordinates of the observation in which o and o' may differ.
        digest: of the actor.
    """

    constant: float
    rounding: float
    product: float
    coordinates: tuple[int, ...]
    digest: str


def is_positive_definite(matrix: arb_mat, approximate: Matrix) -> bool:
    """Return True only if every symmetric matrix enclosed by `matrix` is positive definite.

    Let X be any square matrix of doubles. Here it is the inverse of a floating-point Cholesky factor of `approximate`.
    If |X P X' - I| < 1 in the greatest absolute row sum, then X P X' is positive definite, because its eigenvalues are
    within that distance of 1. Hence X is regular, and P = X^-1 (X P X') X^-T is positive definite too (Sylvester).
    False means only that this proof failed.
    """
    try:
        factor = np.linalg.inv(np.linalg.cholesky(approximate))
    except np.linalg.LinAlgError:
        return False
    if not np.isfinite(factor).all():
        return False
    with precision(_BITS):
        x = arb_mat(factor.tolist())
        distance = x * matrix * x.transpose() - arb_mat(len(factor), len(factor), 1)
        return all(sum((abs(entry) for entry in row), arb(0)) < 1 for row in distance.tolist())


def spectral_norm_upper(weight: NDArray[np.float64]) -> float:
    """Return an upper bound on the spectral norm of a matrix of exactly known entries, tight to about 1e-9."""
    matrix = np.array(weight, dtype=np.float64)
    if matrix.ndim != 2 or not matrix.size or not np.isfinite(matrix).all():
        raise ValueError(f"`weight` must be a finite matrix, got shape {matrix.shape} or a NaN or an infinity.")
    return _proved([matrix], np.ones(matrix.shape[1]), [], float(np.linalg.norm(matrix, 2)))


def lipschitz_upper(actor: NumpyActor, *, coordinates: Sequence[int] | None = None) -> LipschitzBound:
    """Return a proved Lipschitz bound of a numpy actor, for errors in some or all coordinates of the observation.

    The matrix inequality of Fazlyab et al. (2019, LipSDP) with one multiplier per neuron. Take two evaluations of the
    network. Let v_k be the difference of the inputs of layer k, and x_k that of its outputs. Slopes in [0, 1] give
    x_i (v_i - x_i) >= 0 for each neuron. So for diagonal multipliers T_k >= 0 and the normaliser's deviations S

        L^2 |S x_0|^2 - |W_m x_{m-1}|^2 >= 2 sum_k x_k' T_k (v_k - x_k) >= 0

    as soon as the block matrix of the first inequality is positive definite. That is what is verified. |S x_0| is at
    most |o - o'|, because clipping has slopes in [0, 1] too. The output activation and the clipping of the center to a
    box are 1-Lipschitz.

    Assumes: the machine's tanh is within 2^-46 of the true one (64 units in the last place at 1). Arithmetic is IEEE,
    with sums in any order, fused or not.

    Args:
        actor: with a normaliser and activations identity, relu or tanh.
        coordinates: where the error may be. None means everywhere.

    Raises:
        ValueError: another activation, no normaliser, or coordinates that the observation does not have.
        ArithmeticError: nothing could be proved.

    References:
        Fazlyab, Robey, Hassani, Morari, Pappas: Efficient and accurate estimation of Lipschitz constants for deep
        neural networks, 2019.
    """
    if not isinstance(actor, NumpyActor):
        raise TypeError(f"`actor` must be a NumpyActor, got {actor!r}. Export the policy as one first.")
    for name in (actor.activation, actor.output_activation):
        if name not in _ACTIVATION:
            raise ValueError(f"`activation` must be one of {sorted(_ACTIVATION)} to be bounded, got {name!r}.")
    if actor.normalizer is None:
        raise ValueError("`actor` must have a normaliser: without its clipping, rounding errors have no bound.")
    if actor.low is not None:
        raise ValueError("`actor` must answer without stretching to a box, got `low` and `high`. Rescale the actions.")
    chosen = _coordinates(actor.observation_size, coordinates)
    whole = [weight.astype(np.float64) for weight in actor.weights]
    weights, std = [whole[0][:, chosen], *whole[1:]], actor.normalizer.std.astype(np.float64)[chosen]
    norms = [spectral_norm_upper(weight) for weight in whole]
    first = _proved(weights[:1], std, [], float(np.linalg.norm(weights[0] / std, 2)))
    product, inner = _product_upper([first, *norms[1:]]), _product_upper(norms)
    return LipschitzBound(
        constant=_network_upper(weights, std, product),
        rounding=_rounding(actor, norms, _network_upper(whole, np.ones(len(actor.normalizer.std)), inner)),
        product=product,
        coordinates=tuple(chosen),
        digest=actor.digest,
    )


def observation_budget(budget: float, bound: LipschitzBound, *, horizon: int) -> float | None:
    """Return eta: observation errors with summed squares at most eta^2 shift the centers by at most `budget`.

    With errors e_t, the centers move by at most L |e_t| + r. By Minkowski, the square root of the summed squares is at
    most L eta + r sqrt(T) <= B. So the certificate at B (Theorem 14, thm:adaptive-trajectory, constant schedule) covers
    them for eta = (B - r sqrt(T)) / L, rounded down. The result is None if the rounding alone may use up B.

    Assumes:
        - The error is in the bound's coordinates, measured in single precision, and reaches the controller only.
          Verifier, fallbacks, stopping and event read the true observation. The center that a fallback receives and
          that the public trace holds is that of the true observation.
        - The controller has no memory, so that its center at the true history is the nominal one. A NumpyActor has
          none. A controller with memory would have to feed it the true observations.
        - The center is used only as the mean of the proposals, clipped to the box or not (clipping is 1-Lipschitz).
        - The error at step t is chosen before that step's block is drawn. It may depend on everything public before,
          because a shift may depend on it too.

    Args:
        budget: B, certified for the arm's constant schedule.
        bound: the Lipschitz bound of the arm's controller.
        horizon: T, the greatest number of steps of a trial.
    """
    total = checks.nonnegative("budget", budget)
    steps = checks.count("horizon", horizon, minimum=1)
    constant = checks.positive("bound.constant", bound.constant)
    rounding = checks.nonnegative("bound.rounding", bound.rounding)
    if Fraction(rounding) ** 2 * steps > Fraction(total) ** 2:
        return None
    with precision(_BITS):
        eta = (exact(total) - exact(rounding) * exact(steps).sqrt()) / exact(constant)
        return max(lower_float(eta), 0.0)


def _network_upper(weights: list[Matrix], std: Matrix, product: float) -> float:
    """Return a bound for the true network behind a normaliser with these deviations, at most the classical one."""
    diagonals, squared = multipliers(weights, std)
    is_found = bool(diagonals) and 0.0 < squared < product**2
    return min(_proved(weights, std, diagonals, math.sqrt(squared)), product) if is_found else product


def _proved(weights: list[Matrix], std: Matrix, diagonals: list[Matrix], start: float) -> float:
    """Return the least inflation of `start` at which the matrix inequality is verified."""
    if not all((diagonal >= 0.0).all() for diagonal in diagonals):
        raise ArithmeticError("the proposed multipliers are not all at least 0, so no Lipschitz bound is issued")
    for inflation in _INFLATIONS:
        constant = max(start, 1e-100) * (1.0 + inflation)
        proposal = approximate(weights, std, diagonals, constant)
        if is_positive_definite(_inequality(weights, std, diagonals, constant), proposal):
            return constant
    raise ArithmeticError(f"no Lipschitz bound near {start} could be proved, so none is issued")


def _inequality(weights: list[Matrix], std: Matrix, diagonals: list[Matrix], constant: float) -> arb_mat:
    """Enclose the block matrix: L^2 S^2, 2 T_k, minus W_m' W_m in the last, and -T_k W_k below the diagonal."""
    with precision(_BITS):
        sizes = [len(std), *(len(diagonal) for diagonal in diagonals)]
        starts = np.cumsum([0, *sizes]).tolist()
        rows = [[arb(0)] * starts[-1] for _ in range(starts[-1])]
        for i, deviation in enumerate(std.tolist()):
            rows[i][i] = (arb(constant) * arb(deviation)) ** 2
        for k, diagonal in enumerate(diagonals):
            for i, multiplier in enumerate(diagonal.tolist()):
                row = starts[k + 1] + i
                rows[row][row] = 2 * arb(multiplier)
                for j, entry in enumerate(weights[k][i].tolist()):
                    column = starts[k] + j
                    rows[row][column] = rows[column][row] = -arb(multiplier) * arb(entry)
        last = arb_mat(weights[-1].tolist())
        gram, offset = (last.transpose() * last).tolist(), starts[-2]
        for i, line in enumerate(gram):
            for j, value in enumerate(line):
                rows[offset + i][offset + j] -= value
        return arb_mat(rows)


def _rounding(actor: NumpyActor, norms: list[float], inner: float) -> float:
    """Return twice a bound on the distance of the computed center from the true network's, rounded up.

    Normaliser: a subtraction and a division, each with a relative error of at most 2^-24. In double precision both and
    the rounding to single precision have less together. So the error of the clipped result is at most that at the ends
    of the clipped range, and the network multiplies it by at most `inner`.
    Layers: a sum of n products and a bias, in any order, is within n + 1 roundings of each term (Higham 2002, section
    3.1). Every quantity is a sum of non-negative terms, so `_SLACK` outweighs what its computation in doubles loses.
    """
    sizes = np.zeros(0) if actor.normalizer is None else actor.normalizer.clip.astype(np.float64)
    # (1 + u)^2 - 1 <= 2.001 u
    off = inner * float(np.linalg.norm(2.001 * _SINGLE * sizes + _TINY)) * _SLACK
    error = 0.0
    activations = [*[actor.activation] * (len(norms) - 1), actor.output_activation]
    for weight, bias, norm, name in zip(actor.weights, actor.biases, norms, activations, strict=True):
        reached = (np.abs(weight.astype(np.float64)) @ sizes + np.abs(bias.astype(np.float64))) * _SLACK
        local = (weight.shape[1] + 2) * _DOUBLE * reached * _SLACK + _TINY
        error = (norm * error + float(np.linalg.norm(local)) + _ACTIVATION[name] * math.sqrt(len(bias))) * _SLACK
        sizes = (np.minimum(reached, 1.0) if name == "tanh" else reached) * _SLACK + _ACTIVATION[name]
    grid = 0.5 * GRID * math.sqrt(actor.action_size)
    return 2.0 * (off + error + grid) * _SLACK


def _coordinates(size: int, coordinates: Sequence[int] | None) -> list[int]:
    if coordinates is None:
        return list(range(size))
    chosen = [checks.count(f"coordinates[{i}]", value) for i, value in enumerate(coordinates)]
    if not (chosen and len(set(chosen)) == len(chosen) and max(chosen) < size):
        raise ValueError(f"`coordinates` must be different numbers below {size}, at least one, got {coordinates}.")
    return sorted(chosen)


def _product_upper(norms: list[float]) -> float:
    """Return the product, rounded up."""
    return fraction_upper(math.prod((Fraction(norm) for norm in norms), start=Fraction(1)))


def approximate(weights: list[Matrix], std: Matrix, diagonals: list[Matrix], constant: float) -> Matrix:
    """Return the block matrix of the inequality in doubles: L^2 S^2, 2 T_k, minus W_m' W_m in the last block."""
    sizes = [len(std), *(len(diagonal) for diagonal in diagonals)]
    starts = np.cumsum([0, *sizes]).tolist()
    matrix = np.zeros((starts[-1], starts[-1]))
    matrix[: sizes[0], : sizes[0]] = np.diag((constant * std) ** 2)
    for k, diagonal in enumerate(diagonals):
        here, before = slice(starts[k + 1], starts[k + 2]), slice(starts[k], starts[k + 1])
        matrix[here, here] = np.diag(2.0 * diagonal)
        matrix[here, before] = -diagonal[:, None] * weights[k]
        matrix[before, here] = matrix[here, before].T
    matrix[starts[-2] :, starts[-2] :] -= weights[-1].T @ weights[-1]
    return matrix


def multipliers(weights: list[Matrix], std: Matrix) -> tuple[list[Matrix], float]:
    """Propose multipliers by gradient descent on the smoothed greatest eigenvalue. Return both.

    Eliminating x_{m-1}, ..., x_1 from the inequality leaves L^2 = greatest eigenvalue of V' T_1 Y_1^-1 T_1 V with
    V = W_1 / S, Y_k = 2 T_k - W_{k+1}' T_{k+1} Y_{k+1}^-1 T_{k+1} W_{k+1} and Y of the last layer 2 T - W_m' W_m. The
    search starts at the multipliers of the classical bound. It need not be right, because the result is verified.
    """
    scaled = [weights[0] / std, *weights[1:-1]]
    squares = [float(np.linalg.norm(weight, 2)) ** 2 + 1e-12 for weight in weights[1:]]
    logs = [np.full(len(weights[k]), math.log(math.prod(squares[k:]))) for k in range(len(weights) - 1)]
    best: tuple[list[Matrix], float] = ([np.exp(entry) for entry in logs], math.inf)
    first, second = [np.zeros_like(entry) for entry in logs], [np.zeros_like(entry) for entry in logs]
    for step in range(1, _STEPS + 1 if logs else 1):
        diagonals = [np.exp(entry) for entry in logs]
        found = _eigen(scaled, weights[-1], diagonals)
        if found is None:  # outside of the feasible set, so go back towards the best point and forget the momentum
            logs = [0.5 * entry + 0.5 * np.log(safe) for entry, safe in zip(logs, best[0], strict=True)]
            first = [np.zeros_like(entry) for entry in logs]
            continue
        value, slopes = found
        if value < best[1]:
            best = (diagonals, value)
        rate = _RATE * (1.0 - step / (_STEPS + 1))
        for k, (diagonal, slope) in enumerate(zip(diagonals, slopes, strict=True)):
            gradient = diagonal * slope / value
            first[k] = 0.9 * first[k] + 0.1 * gradient
            second[k] = 0.99 * second[k] + 0.01 * gradient**2
            corrected = first[k] / (1.0 - 0.9**step) / (np.sqrt(second[k] / (1.0 - 0.99**step)) + 1e-12)
            logs[k] = logs[k] - rate * corrected
    return best


def _eigen(scaled: list[Matrix], last: Matrix, diagonals: list[Matrix]) -> tuple[float, list[Matrix]] | None:
    """Return the greatest eigenvalue and the slopes of its smoothed version in the multipliers, None if infeasible."""
    inverses: list[Matrix] = []
    tail = last.T @ last
    for k in range(len(diagonals) - 1, -1, -1):
        try:
            root = np.linalg.inv(np.linalg.cholesky(2.0 * np.diag(diagonals[k]) - tail))
        except np.linalg.LinAlgError:
            return None
        inverses.insert(0, root.T @ root)
        lifted = diagonals[k][:, None] * scaled[k]
        tail = lifted.T @ inverses[0] @ lifted
    values, vectors = np.linalg.eigh(tail)
    if not (np.isfinite(values).all() and values[-1] > 0.0):
        return None
    shares = np.exp(_SHARPNESS * (values / values[-1] - 1.0))
    shares /= shares.sum()
    slopes, moved = [], vectors
    for weight, diagonal, inverse in zip(scaled, diagonals, inverses, strict=True):
        into = weight @ moved
        moved = inverse @ (diagonal[:, None] * into)
        slopes.append(2.0 * (moved * (into - moved)) @ shares)
    return float(values[-1]), slopes
