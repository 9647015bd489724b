"""Write the table of docs/benchmark.md from the kept rows: `python experiments/benchmark/page.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import run
from run import Row

from ccfs.certificates.rounding import lower_text, upper_text
from ccfs.controllers import zoo
from ccfs.results.certificate import RunCertificate
from ccfs.results.totals import RunTotals
from ccfs.results.verify import verify

PAGE = run.HERE.parents[1] / "docs" / "benchmark.md"
_TABLE = re.compile(r"(?<=<!-- rows -->\n).*(?=<!-- end -->)", re.DOTALL)
_HEADS = (
    "task", "algorithm", "seed", "steps", "event", "counted", "probability ≥", "commands ≤", "readings ≤", "cost ≤",
    "under 0.1 ≤",
)  # fmt: skip
_NOTHING = "–"


def kept_rows() -> list[Row]:
    """Return the rows that are kept, by task and algorithm."""
    return sorted((row for row in run.rows().values() if run.is_kept(row)), key=lambda row: row.name)


def card_of(row: Row) -> zoo.Card:
    """Return the card of a row's agent. Its weights are checked against it."""
    return zoo.load(row.agent or row.folder / "agent").card


def certificates(row: Row) -> Iterator[RunCertificate]:
    """Yield the certificates of a row, in the order of its events. Their numbers are recomputed from their counts."""
    for event in row.settings["events"]:
        yield verify(row.folder / "certificates" / "agent" / "noise" / f"{event['name']}.json", None)


def costs(row: Row) -> tuple[str, str]:
    """Return the bound on the expected cost, without shift and under a budget of 0.1."""
    path = row.folder / "costs.json"
    if not path.exists():
        return _NOTHING, _NOTHING
    totals = RunTotals.from_bytes(path.read_bytes(), where=str(path))
    (arm,) = totals.arms.values()
    expected = dict(zip(totals.budgets, arm.expected, strict=True))
    return upper_text(expected[0.0]), upper_text(expected[0.1])


def cells(row: Row) -> Iterator[tuple[str, ...]]:
    """Yield one line of the table for each event of a row."""
    card = card_of(row)
    about = (row.task, row.algorithm, str(row.seed), f"{card.steps:,}")
    for certificate in certificates(row):
        sizes = certificate.budgets
        main = next(stage for stage in sizes if stage != "sensor")
        counted = f"{certificate.successes} of {certificate.trials}"
        shown = [_NOTHING if size is None else lower_text(size) for size in (sizes[main], sizes["sensor"])]
        yield (*about, f"`{certificate.event}`", counted, lower_text(certificate.p_lower), *shown, *costs(row))


def table() -> str:
    """Return the table in Markdown."""
    lines = [_HEADS, tuple("---" for _ in _HEADS), *(line for row in kept_rows() for line in cells(row))]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{missing()}\n"


def missing() -> str:
    """Return how many of the declared rows are kept, and which tasks have none."""
    declared, kept = run.rows().values(), kept_rows()
    bare = dict.fromkeys(row.task for row in declared if row.task not in {row.task for row in kept})
    told = f" Tasks without a row yet: {', '.join(bare)}." if bare else ""
    return f"{len(kept)} of {len(declared)} declared rows are here.{told}"


def with_table(page: str) -> str:
    """Return the page with its table written anew."""
    return _TABLE.sub(lambda _: table(), page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE.relative_to(Path.cwd()))
