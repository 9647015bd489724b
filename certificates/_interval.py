"""Closed intervals with exact fractions as endpoints. Arithmetic is exact, and rounding only widens."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

__all__ = ["Exact", "Interval", "fraction", "from_scaled", "magnitude", "scaled_ceiling", "scaled_floor"]

Exact = int | Fraction


def fraction(name: str, value: object) -> Fraction:
    """Return an int or a Fraction as a Fraction. Refuse everything else, in particular floats."""
    if isinstance(value, bool) or not isinstance(value, (int, Fraction)):
        raise TypeError(
            f"`{name}` must be an int or a Fraction, got {value!r} of type {type(value).__name__}. "
            "Write decimals as Fraction('0.1')."
        )
    return value if isinstance(value, Fraction) else Fraction(value)


def magnitude(value: Fraction) -> int:
    """Return an e with 2**(e - 1) < abs(value) < 2**(e + 1), for a nonzero value."""
    return value.numerator.bit_length() - value.denominator.bit_length()


def scaled_floor(value: Fraction, shift: int) -> int:
    """Return the greatest integer at most value * 2**shift, where `shift` may be negative."""
    if shift >= 0:
        return (value.numerator << shift) // value.denominator
    return value.numerator // (value.denominator << -shift)


def scaled_ceiling(value: Fraction, shift: int) -> int:
    """Return the least integer at least value * 2**shift."""
    return -scaled_floor(-value, shift)


def from_scaled(integer: int, shift: int) -> Fraction:
    """Return integer / 2**shift exactly."""
    return Fraction(integer, 1 << shift) if shift >= 0 else Fraction(integer << -shift)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The closed set [lower, upper] of real numbers, with exact endpoints.

    The result of an operation contains the result for every choice of real numbers inside the operands, because each
    endpoint is computed exactly. An int or a Fraction stands for the interval of this one number.

    >>> print(Interval(lower=Fraction(1, 3), upper=Fraction(1, 2)) * -2)
    [-1, -2/3]
    """

    lower: Fraction
    upper: Fraction

    def __post_init__(self) -> None:
        lower, upper = fraction("lower", self.lower), fraction("upper", self.upper)
        if not lower <= upper:
            raise ValueError(f"`lower` must be at most `upper`, got {lower} and {upper}. Are the endpoints swapped?")
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @classmethod
    def of(cls, value: Interval | Exact) -> Interval:
        """Return an interval unchanged, and an exact number as the interval of this one number."""
        if isinstance(value, Interval):
            return value
        number = fraction("value", value)
        return cls(lower=number, upper=number)

    @property
    def width(self) -> Fraction:
        """Distance between the endpoints."""
        return self.upper - self.lower

    @property
    def middle(self) -> Fraction:
        """Exact midpoint."""
        return (self.lower + self.upper) / 2

    def contains(self, other: Interval | Exact) -> bool:
        """Say whether every point of `other` is in this interval."""
        inner = Interval.of(other)
        return self.lower <= inner.lower and inner.upper <= self.upper

    def is_above(self, other: Interval | Exact) -> bool:
        """Say whether every point here is strictly greater than every point of `other`."""
        return self.lower > Interval.of(other).upper

    def is_below(self, other: Interval | Exact) -> bool:
        """Say whether every point here is strictly less than every point of `other`."""
        return self.upper < Interval.of(other).lower

    def intersection(self, other: Interval) -> Interval:
        """Return the common points. Two enclosures of one number always have some."""
        return Interval(lower=max(self.lower, other.lower), upper=min(self.upper, other.upper))

    def __neg__(self) -> Interval:
        return Interval(lower=-self.upper, upper=-self.lower)

    def __add__(self, other: Interval | Exact) -> Interval:
        right = Interval.of(other)
        return Interval(lower=self.lower + right.lower, upper=self.upper + right.upper)

    __radd__ = __add__

    def __sub__(self, other: Interval | Exact) -> Interval:
        return self + -Interval.of(other)

    def __rsub__(self, other: Exact) -> Interval:
        return -self + other

    def __mul__(self, other: Interval | Exact) -> Interval:
        right = Interval.of(other)
        # The extremes of a bilinear function on a rectangle are at its corners.
        products = [x * y for x in (self.lower, self.upper) for y in (right.lower, right.upper)]
        return Interval(lower=min(products), upper=max(products))

    __rmul__ = __mul__

    def __truediv__(self, other: Interval | Exact) -> Interval:
        right = Interval.of(other)
        if right.contains(0):
            raise ZeroDivisionError(f"The divisor must not contain zero, got {right}. Enclose it with more bits.")
        # The inverse falls on either side of zero, so the ends change places.
        return self * Interval(lower=1 / right.upper, upper=1 / right.lower)

    def __rtruediv__(self, other: Exact) -> Interval:
        return Interval.of(other) / self

    def squared(self) -> Interval:
        """Return the squares of the points. With zero inside, this is tighter than the product with itself."""
        ends = sorted((self.lower * self.lower, self.upper * self.upper))
        return Interval(lower=Fraction(0) if self.contains(0) else ends[0], upper=ends[1])

    def rounded(self, bits: int) -> Interval:
        """Return a superset whose endpoints have at most `bits` + 1 significant binary digits."""
        # Each end has its own shift: a small end keeps as many digits as a large one.
        shifts = [bits - magnitude(end) if end else 0 for end in (self.lower, self.upper)]
        return Interval(
            lower=from_scaled(scaled_floor(self.lower, shifts[0]), shifts[0]),
            upper=from_scaled(scaled_ceiling(self.upper, shifts[1]), shifts[1]),
        )

    def decimals(self, places: int) -> tuple[str, str]:
        """Return the endpoints as decimals with `places` digits after the point, rounded outward.

        >>> Interval.of(Fraction(-2, 3)).decimals(4)
        ('-0.6667', '-0.6666')
        """
        scale = 10**places
        floor = self.lower.numerator * scale // self.lower.denominator
        ceiling = -(-self.upper.numerator * scale // self.upper.denominator)
        return _decimal(floor, places), _decimal(ceiling, places)

    def __str__(self) -> str:
        return f"[{self.lower}, {self.upper}]"


def _decimal(scaled: int, places: int) -> str:
    whole, part = divmod(abs(scaled), 10**places)
    digits = f"{whole}.{part:0{places}d}" if places else str(whole)
    return f"-{digits}" if scaled < 0 else digits
