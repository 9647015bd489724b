"""Write the tables of docs/benchmark.md and its picture from the kept rows: `python experiments/benchmark/page.py`."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import run
from _shared import figures
from run import Row

from ccfs.certificates.rounding import lower_text, upper_text
from ccfs.controllers import zoo
from ccfs.results.totals import RunTotals

PAGE = run.ROOT / "docs" / "benchmark.md"
_TABLES = re.compile(r"(?<=<!-- rows -->\n).*(?=<!-- end -->)", re.DOTALL)
_NOTHING = "–"
PICTURE = run.HERE / "benchmark.png"
_COLORS = {"ppolag": figures.BLUE, "trpolag": figures.ORANGE, "ppo-penalty": figures.GREEN, "cpo": figures.RED}
_EVENTS = ("no-cost-until-goal", "goal-before-cost")
_LONG = "ppolag, ten million steps"
_MILLION = 1_000_000


def kept_rows() -> list[Row]:
    """Return the rows that are kept, by task and algorithm."""
    return sorted((row for row in run.rows().values() if run.is_kept(row)), key=lambda row: row.name)


def card_of(row: Row) -> zoo.Card:
    """Return the card of a row's agent. Its weights are checked against it, and it against the row."""
    _, entry = run.agent_of(row)
    return entry.card


def costs(row: Row) -> str:
    """Return the bound on the expected cost, without shift and under a budget of 0.1."""
    totals = RunTotals.from_bytes((row.folder / "costs.json").read_bytes(), where=str(row.folder))
    (arm,) = totals.arms.values()
    expected = dict(zip(totals.budgets, arm.expected, strict=True))
    return f"{upper_text(expected[0.0], 1)} / {upper_text(expected[0.1], 1)}"


def cells(row: Row) -> Iterator[str]:
    """Yield the cells of a row: the agent, two for each event, and the cost where the task has one."""
    steps = card_of(row).steps
    yield row.task
    yield f"{row.algorithm} {row.seed}" + ("" if steps == _MILLION else f", {steps:,} steps")
    for certificate in run.certificates(row):
        sizes = certificate.budgets
        main = next(stage for stage in sizes if stage != "sensor")
        budgets = [_NOTHING if size is None else lower_text(size) for size in (sizes[main], sizes.get("sensor"))]
        yield f"{certificate.successes}: {lower_text(certificate.p_lower, 3)}"
        yield _NOTHING if set(budgets) == {_NOTHING} else " / ".join(budgets)
    if row.settings.greatest_cost is not None:
        yield costs(row)


def tables() -> str:
    """Return the tables in Markdown, one for the tasks that share their events."""
    groups: dict[int, list[Row]] = {}
    for row in kept_rows():
        groups.setdefault(id(row.settings), []).append(row)
    return "\n".join(_table(rows) for rows in sorted(groups.values(), key=len, reverse=True)) + f"\n{missing()}\n"


def _table(rows: list[Row]) -> str:
    settings = rows[0].settings
    heads = ["task", "agent", *(head for event in settings.events for head in (f"`{event['name']}`", "kept"))]
    heads += ["cost"] if settings.greatest_cost is not None else []
    lines = [heads, ["---"] * len(heads), *(list(cells(row)) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def missing() -> str:
    """Return how many of the declared rows are kept, and which tasks have none."""
    declared, kept = run.rows().values(), kept_rows()
    bare = dict.fromkeys(row.task for row in declared if row.task not in {row.task for row in kept})
    told = f" Tasks without a row yet: {', '.join(bare)}." if bare else ""
    return f"{len(kept)} of {len(declared)} declared rows are here.{told}"


def with_tables(page: str) -> str:
    """Return the page with its tables written anew."""
    return _TABLES.sub(lambda _: tables(), page)


def draw(path: Path) -> None:
    """Draw the certified probabilities of the tasks with these two events, one column per task."""
    rows = [row for row in kept_rows() if [event["name"] for event in row.settings.events] == list(_EVENTS)]
    # The robots side by side, because they share their tasks.
    tasks = sorted({row.task for row in rows}, key=lambda task: (task.removeprefix("Point").removeprefix("Car"), task))
    figure, (axes,) = figures.panels(1, width=9.6, height=3.8)
    seen: Counter[tuple[str, int]] = Counter()
    for row in rows:
        is_long = row.steps > _MILLION
        color = figures.GREY if is_long else _COLORS.get(row.algorithm, figures.INK)
        place = len(_COLORS) if is_long else (list(_COLORS).index(row.algorithm) if row.algorithm in _COLORS else -1)
        # Other seeds a little to the right.
        seen[row.task, place] += 1
        x = tasks.index(row.task) + 0.15 * (place - 2) + 0.04 * (seen[row.task, place] - 1)
        anyhow, arrives = (certificate.p_lower for certificate in run.certificates(row))
        axes.plot([x, x], [anyhow, arrives], color=color, lw=1.0, alpha=0.6)
        axes.plot(x, anyhow, "o", color=color, ms=5.5)
        axes.plot(x, arrives, "o", color=color, ms=5.5, mfc="white")
    used = {row.algorithm for row in rows if row.steps <= _MILLION}
    named = {name: color for name, color in _COLORS.items() if name in used}
    for name, color in {**named, _LONG: figures.GREY}.items():
        axes.plot([], [], "s", color=color, ms=6, label=name)
    for event, fill in zip(_EVENTS, (figures.INK, "white"), strict=True):
        axes.plot([], [], "o", color=figures.INK, ms=5.5, mfc=fill, label=event)
    axes.axhline(0.5, color=figures.INK, lw=0.8, ls=":")
    axes.set(
        xticks=range(len(tasks)), xticklabels=tasks, xlim=(-0.5, len(tasks) - 0.5), ylim=(0.0, 1.0),
        ylabel="certified probability", title="How likely is an agent to avoid cost, and how likely to arrive?",
    )  # fmt: skip
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncol=len(named) + 3)
    figures.save(figure, path)


def main() -> int:
    """Draw the picture and write the tables."""
    for row in kept_rows():
        run.refuse_broken(row)
    draw(PICTURE)
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE.relative_to(run.ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(run.from_the_root(main))
