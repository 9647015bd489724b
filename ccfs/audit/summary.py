"""An audit's faults for people: each named, but of many of one kind only the first ones, with how many more."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

__all__ = ["MOST_OF_A_KIND", "fault_lines"]

MOST_OF_A_KIND = 10


def fault_lines(faults: Sequence[str], *, most: int = MOST_OF_A_KIND) -> Iterator[str]:
    """Yield the faults in their order, at most `most` of a kind, then how many more there are of it.

    Two faults are of one kind if they say the same about different files, trials or steps. This is for printing only:
    whether a run is clean is a matter of all faults.
    """
    if not most >= 1:
        raise ValueError(f"`most` must be at least 1, got {most}.")
    kinds = [_kind(fault) for fault in faults]
    totals, seen = Counter(kinds), Counter[str]()
    for fault, kind in zip(faults, kinds, strict=True):
        seen[kind] += 1
        if seen[kind] <= most:
            yield fault
        if seen[kind] == most < totals[kind]:
            yield f"... and {totals[kind] - most} more of this kind."


def _kind(fault: str) -> str:
    """Return what a fault says, without its file's name and without numbers and digests."""
    _, _, words = fault.partition(": ")
    return re.sub(r"\b(?:[0-9a-f]{16,}|\d[\d.e+-]*)", "#", words or fault)
