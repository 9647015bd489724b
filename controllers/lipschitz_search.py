"""Propose multipliers for the Lipschitz bound in floating point; nothing here is trusted, all is verified later."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Matrix", "approximate", "multipliers"]

Matrix = NDArray[np.float64]

_STEPS: Final = 300
_RATE: Final = 0.03
_SHARPNESS: Final = 200.0


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
    """Propose multipliers by gradient descent on the smoothed greatest eigenvalue; return them and that eigenvalue.

    Eliminating x_{m-1}, ..., x_1 from the inequality leaves L^2 = greatest eigenvalue of V' T_1 Y_1^-1 T_1 V with
    V = W_1 / S, Y_k = 2 T_k - W_{k+1}' T_{k+1} Y_{k+1}^-1 T_{k+1} W_{k+1} and Y of the last layer 2 T - W_m' W_m. It
    starts at the multipliers of the classical bound. Nothing here needs to be right: the result is verified.
    """
    scaled = [weights[0] / std, *weights[1:-1]]
    squares = [float(np.linalg.norm(weight, 2)) ** 2 + 1e-12 for weight in weights[1:]]
    logs = [np.full(len(weights[k]), math.log(math.prod(squares[k:]))) for k in range(len(weights) - 1)]
    best: tuple[list[Matrix], float] = ([np.exp(entry) for entry in logs], math.inf)
    first, second = [np.zeros_like(entry) for entry in logs], [np.zeros_like(entry) for entry in logs]
    for step in range(1, _STEPS + 1 if logs else 1):
        diagonals = [np.exp(entry) for entry in logs]
        found = _eigen(scaled, weights[-1], diagonals)
        if found is None:  # stepped out of the feasible set: go back to the best point and forget the momentum
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
