"""Arb enclosures behind every certificate, and their rounding to the double on the safe side.

A ball from Arb contains the exact value at every working precision. More bits only make it narrower. So a lack of
precision can make a bound loose, but never unsound. SciPy's answers serve as starting points only.

Long products are formed in doubles, because a ball per factor would take too long. There the proof is IEEE 754: each
sum, difference, product or quotient is the exact one times a number between 1 - u and 1 + u, where u = 2^-53.
`log_product` counts these roundings and returns a ball.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction

import numpy as np
from flint import arb, ctx, fmpq
from numpy.typing import NDArray
from scipy import special

__all__ = [
    "anytime_root",
    "binomial_root",
    "binomial_upper_tail",
    "exact",
    "log_product",
    "log_sum",
    "lower_float",
    "normal_cdf",
    "normal_quantile",
    "precision",
    "refined",
    "upper_float",
]

WORKING_BITS = 128
_ROUNDING_BITS = 4 * WORKING_BITS  # enough that rounding does not widen a ball
_SPARE_BITS = 58  # a root may lose this many of the working bits and still be narrower than a double's spacing
_NEWTON_STEPS = 400
# The working precision is one setting for all threads of the process.
_LOCK = threading.RLock()


@contextmanager
def precision(bits: int = WORKING_BITS) -> Iterator[None]:
    """Work with exactly `bits` bits inside the block, one thread at a time. Results are then the same everywhere."""
    with _LOCK, ctx.workprec(bits):
        yield


def refined(enclose: Callable[[], arb]) -> arb:
    """Return the ball that `enclose` gives at the first of three precisions at which its lower double is decided.

    Without this, the last bit of a bound could depend on the starting point of the iteration.
    """
    for bits in (WORKING_BITS, 2 * WORKING_BITS, 4 * WORKING_BITS):
        with precision(bits):
            ball = enclose()
            if lower_float(ball) == lower_float(ball.upper()) and upper_float(ball) == upper_float(ball.lower()):
                break
    return ball


def exact(value: int | float | Fraction) -> arb:
    """Return the ball of an exactly known number: a point for ints and doubles, the tightest ball for fractions."""
    if isinstance(value, Fraction):
        return arb(fmpq(value.numerator, value.denominator))
    return arb(value)


def lower_float(ball: arb) -> float:
    """Return the greatest double that is at most every point of `ball`."""
    with precision(_ROUNDING_BITS):
        bound = _finite(ball).lower()
        nearest = float(bound)
        # float() rounds to nearest, which may be above.
        while arb(nearest) > bound:
            nearest = math.nextafter(nearest, -math.inf)
        return nearest


def upper_float(ball: arb) -> float:
    """Return the least double that is at least every point of `ball`."""
    with precision(_ROUNDING_BITS):  # negation rounds, too
        return -lower_float(-ball)


def normal_cdf(x: arb) -> arb:
    """Enclose the standard normal distribution function at `x`."""
    return (-x / arb(2).sqrt()).erfc() / 2


def normal_quantile(p: arb) -> arb:
    """Enclose the standard normal quantile at `p`, inside (0, 1)."""
    return -arb(2).sqrt() * (2 * p).erfcinv()


def log_product(factors: NDArray[np.float64], *, roundings: int) -> arb:
    """Enclose the logarithm of a product of doubles in [2^-900, 2^900].

    Mantissas are multiplied in a fixed order, so the ball is the same on every machine. A product of n of them has the
    n - 1 roundings of its multiplications besides those of its factors.

    Args:
        factors: array [n]. Each entry is the exact factor, multiplied or divided by `roundings` numbers between 1 - u
            and 1 + u, where u = 2^-53.
        roundings: how often a factor was rounded.
    """
    if not len(factors):
        return arb(0)
    if not (factors.min() >= 2.0**-900 and factors.max() <= 2.0**900):
        raise ArithmeticError("a factor is outside of [2^-900, 2^900]; no bound is issued")
    mantissas, parts = np.frexp(factors)
    exponent = int(parts.sum(dtype=np.int64))
    while len(mantissas) > 1:
        # A product of two mantissas is at least 1/4, so that nothing underflows.
        half = len(mantissas) // 2
        paired = mantissas[:half] * mantissas[half : 2 * half]
        mantissas, parts = np.frexp(np.concatenate([paired, mantissas[2 * half :]]))
        exponent += int(parts.sum(dtype=np.int64))
    # One rounding changes the logarithm by at most u / (1 - u) < 2 u.
    error = arb(len(factors) * (roundings + 1)) * arb(2) ** -52
    return arb(float(mantissas[0])).log() + exponent * arb.const_log2() + (-error).union(error)


def log_sum(terms: Sequence[arb]) -> arb:
    """Enclose log(sum of exp(term))."""
    top = max(terms, key=lambda term: float(term.mid()))
    return top + sum(((term - top).exp() for term in terms), arb(0)).log()


def binomial_upper_tail(successes: int, trials: int, p: arb) -> arb:
    """Enclose P(Binomial(trials, p) >= successes) for an exact `p` inside (0, 1).

    The terms from `successes` upward have decreasing ratios r. So the rest after a term t with r < 1 is between 0 and
    t r / (1 - r). Below the mean the other tail is summed instead, with successes and failures exchanged.
    """
    if successes <= 0:
        return arb(1)
    if successes > trials:
        return arb(0)
    # Below the mean the sum would have many large terms.
    if successes < trials * float(p):
        return 1 - binomial_upper_tail(trials - successes + 1, trials, 1 - p)
    odds = p / (1 - p)
    small = arb(2) ** (_SPARE_BITS - 12 - int(ctx.prec))
    term, total, rest = arb(1), arb(1), arb(0)
    for done in range(successes, trials):
        ratio = odds * (trials - done) / (done + 1)
        # The test costs as much as a term, so it is made at every eighth only.
        if done % 8 == 0 and ratio < 1:
            rest = term * ratio / (1 - ratio)
            if rest < total * small:
                break
        term *= ratio
        total += term
    else:
        rest = arb(0)
    leading = _log_binomial(trials, successes) + successes * p.log() + (trials - successes) * (1 - p).log()
    return leading.exp() * total.union(total + rest)


def binomial_root(successes: int, trials: int, delta: float) -> arb:
    """Enclose the p with P(Binomial(trials, p) >= successes) = delta, for 1 <= successes <= trials."""
    level = exact(delta)
    if successes == trials:
        return (level.log() / trials).exp()
    if successes == 1:
        return -((-level).log1p() / trials).expm1()
    failures = trials - successes
    log_choices = _log_binomial(trials, successes)
    log_scale = log_choices + arb(successes).log()
    guess = float(special.betaincinv(successes, failures + 1, delta))
    if not 0.0 < guess < 1.0:
        guess = float(((level.log() - log_choices) / successes).exp())  # of the leading term alone

    def slope(p: arb) -> arb:
        return (log_scale + (successes - 1) * p.log() + failures * (1 - p).log()).exp()

    return _newton(lambda p: binomial_upper_tail(successes, trials, p) - level, slope, guess)


def anytime_root(successes: int, trials: int, delta: float, prior: tuple[float, float]) -> arb:
    """Enclose the p below successes / trials at which the beta mixture's likelihood ratio against p is 1 / delta.

    The logarithm of that ratio falls strictly from infinity to at most 0 on (0, successes / trials]. A root below
    1e-300 gives the ball [0, 1e-300].
    """
    failures = trials - successes
    a, b = prior
    evidence = _log_beta(exact(a) + successes, exact(b) + failures) - _log_beta(exact(a), exact(b)) + exact(delta).log()
    offset = float(evidence)

    def excess(log_p: float) -> float:
        p = math.exp(log_p)
        return offset - successes * log_p - float(special.xlog1py(failures, -p))

    # Doubles only find a starting point. The proof is in `_newton`.
    low, high = math.log(1e-300), math.log(successes / trials)
    if not excess(low) > 0.0:
        return arb(0).union(arb(1e-300))
    while high - low > 1e-13 * abs(low):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if excess(middle) > 0.0 else (low, middle)

    def value(p: arb) -> arb:
        return evidence - successes * p.log() - (failures * (1 - p).log() if failures else 0)

    return _newton(value, lambda p: failures / (1 - p) - successes / p, math.exp(low))


def _newton(value: Callable[[arb], arb], slope: Callable[[arb], arb], guess: float) -> arb:
    """Enclose the root in (0, 1) of a strictly monotone function by interval Newton steps from `guess`.

    Let X be a ball around the guess. If the Newton image guess - value(guess) / slope(X) is inside X, it contains the
    root by the mean value theorem. Nothing is returned without this proof.
    """
    point = min(max(guess, 1e-300), 1.0 - 2.0**-53) if math.isfinite(guess) else 0.5
    here, enclosure = arb(point), None
    for _ in range(_NEWTON_STEPS):
        residual = value(here)
        step = -residual / slope(here)
        # Twice the step, so that the Newton image has room inside.
        reach = 2 * step.abs_upper() + here.abs_upper() * arb(2) ** (8 - int(ctx.prec))
        candidate = (here - reach).union(here + reach)
        image = here - residual / slope(candidate)
        if candidate.contains_interior(image):
            enclosure = image if enclosure is None else enclosure.intersection(image)
            if enclosure.rel_accuracy_bits() >= ctx.prec - _SPARE_BITS:
                return enclosure
        here = _inside(here, (here + step).mid())
    if enclosure is None:
        raise ArithmeticError(f"no proved enclosure of the root near {guess}; no bound is issued")
    return enclosure


def _inside(here: arb, following: arb) -> arb:
    """Return the next point of the iteration, or a point half way to the end of (0, 1) that the step would pass."""
    if following > 0 and following < 1:
        return following
    return ((1 + here) / 2).mid() if following >= 1 else (here / 2).mid()


def _log_binomial(trials: int, successes: int) -> arb:
    return arb(trials + 1).lgamma() - arb(successes + 1).lgamma() - arb(trials - successes + 1).lgamma()


def _log_beta(a: arb, b: arb) -> arb:
    return a.lgamma() + b.lgamma() - (a + b).lgamma()


def _finite(ball: arb) -> arb:
    if not ball.is_finite():
        raise ArithmeticError(f"the enclosure {ball} is not finite; no bound is issued")
    return ball
