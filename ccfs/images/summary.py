"""Tables from stored counts: one line per rule, computed again from the counts each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from ccfs.certificates import checks
from ccfs.certificates.images import DIAGNOSTICS, Rule, Verdict, certified_count, verdict
from ccfs.certificates.rounding import lower_text
from ccfs.images.counts import CountRow, CountTable

__all__ = [
    "JOINT_RULES",
    "PROOF_RULES",
    "Line",
    "accuracy",
    "line",
    "retention",
    "scaled_thresholds",
    "table_lines",
    "verdicts",
]

JOINT_RULES = (
    Rule.SUBSTITUTED,
    Rule.COMPLEMENT,
    Rule.EXPLICIT,
    Rule.SIMULTANEOUS,
    Rule.SPLIT,
    Rule.SINGLE_BATCH,
)
PROOF_RULES = (Rule.FORWARD_KL, Rule.REVERSE_KL, Rule.RENYI)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One rule over all images: positive radii, the median radius, and correct images beyond each threshold.

    Images without a certificate stay in every denominator. `certified[i]` belongs to `thresholds[i]`.
    """

    rule: Rule
    images: int
    positive: int
    median: float
    thresholds: tuple[str, ...]
    certified: tuple[int, ...]
    is_strict: bool

    @property
    def is_sound(self) -> bool:
        """Whether the line reports certificates."""
        return self.rule not in DIAGNOSTICS

    @property
    def median_shown(self) -> str:
        """The median to four decimals, rounded down, so that the printed radius never exceeds the certified one."""
        return lower_text(self.median)


def scaled_thresholds(sigma: float, *radii: str) -> tuple[str, ...]:
    """Return radii that are stated for sigma 1/4, scaled to another sigma, as exact decimals.

    >>> scaled_thresholds(1.0, "0.3", "0.5")
    ('1.2', '2')
    """
    # The decimal that people write for sigma, not its binary expansion.
    scale = Decimal(repr(checks.positive("sigma", sigma))) * 4
    return tuple(f"{(Decimal(radius) * scale).normalize():f}" for radius in radii)


def verdicts(rows: Sequence[CountRow], rule: Rule, table: CountTable, *, delta: float) -> tuple[Verdict, ...]:
    """Return one verdict per row, under the covariance premise that is stored with the counts."""
    return tuple(
        verdict(rule, row.selection, row.estimation, sigma=table.key.sigma, delta=delta, proof=table.proof)
        for row in rows
    )


def line(found: Sequence[Verdict], labels: Sequence[int], thresholds: Sequence[str], *, strict: bool) -> Line:
    """Summarise the verdicts of one rule. With an even number of images the median is the lower middle radius."""
    checks.count("images", len(found), minimum=1)
    rules = {item.rule for item in found}
    if len(rules) != 1:
        raise ValueError(f"`found` must hold verdicts of one rule, got {sorted(rule.name for rule in rules)}.")
    # An image that abstains has radius 0 and pulls the median down, as it should.
    radii = sorted(item.radius for item in found)
    return Line(
        rule=rules.pop(),
        images=len(found),
        positive=sum(radius > 0.0 for radius in radii),
        median=radii[(len(radii) - 1) // 2],
        thresholds=tuple(thresholds),
        certified=tuple(certified_count(found, labels, threshold, strict=strict) for threshold in thresholds),
        is_strict=strict,
    )


def table_lines(
    table: CountTable, variant: str, *, delta: float, thresholds: Sequence[str], strict: bool
) -> tuple[Line, ...]:
    """Return the line of every rule that applies to the variant.

    The last line is the unfiltered one, if the table has counts of the variant `none`.
    """
    rows = table.variant(variant)
    labels = [row.label for row in rows]
    rules: tuple[Rule, ...] = (Rule.UNFILTERED,) if variant == "none" else JOINT_RULES
    if variant != "none" and table.proof is not None:
        rules = (*rules, *PROOF_RULES)
    lines = [line(verdicts(rows, rule, table, delta=delta), labels, thresholds, strict=strict) for rule in rules]
    if variant != "none" and "none" in table.key.variants:
        lines.extend(table_lines(table, "none", delta=delta, thresholds=thresholds, strict=strict))
    return tuple(lines)


def retention(rows: Sequence[CountRow]) -> Fraction:
    """Return the retained fraction of all estimation proposals."""
    drawn = sum(row.estimation.trials for row in rows)
    return Fraction(sum(sum(row.estimation.retained) for row in rows), drawn)


def accuracy(found: Sequence[Verdict], labels: Sequence[int]) -> Fraction:
    """Return the fraction of images whose selected label is correct, at any radius."""
    return Fraction(sum(item.selected == label for item, label in zip(found, labels, strict=True)), len(found))
