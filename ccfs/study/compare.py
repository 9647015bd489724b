"""Set arms of one or more runs side by side, and certify differences between them on common reset seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ccfs.certificates import checks
from ccfs.certificates.betting import mean_lower, mean_upper
from ccfs.certificates.binomial import bonferroni
from ccfs.certificates.rounding import exact_text, lower_text, upper_text
from ccfs.files.documents import Digest, Document, Table
from ccfs.files.frames import axes, data_frame, html_table
from ccfs.protocol.model import NOMINAL, EventSpec, Protocol
from ccfs.report.charts import Chart
from ccfs.report.figures import observed, overview_figure
from ccfs.report.pages import INDEX, Figure, is_ours, rendered, report_link
from ccfs.results.certificate import RunCertificate
from ccfs.results.claims import ClaimLine, claim_lines, size_text
from ccfs.results.derive import refuse_missing_trials
from ccfs.results.trial_lines import event_column, trial_lines
from ccfs.runs.store import Store
from ccfs.study.opened import OpenedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

__all__ = ["HEADS", "Comparison", "Difference", "compare", "page", "paired_bounds"]

HEADS = ("event", "first", "second", "at least", "at most", "observed", "pairs", "only first", "only second")
_BOUNDS = (3, 4)  # the claim comes first on the page, so that a phone shows it
_MOST_DRAWN = 40


class Difference(Table):
    """The certified difference between two arms: nominal probability under the first minus that under the second."""

    event: str = Field(description="Name of the event.")
    first: str = Field(description="Name of the first arm.")
    second: str = Field(description="Name of the second arm.")
    about: Literal["cohort", "law"] = Field(
        description='"cohort": the average over the common reset seeds. "law": over a reset drawn from the initial law.'
    )
    pairs: int = Field(description="Common reset seeds, or pairs of trials from the law.")
    only_first: int = Field(description="Pairs in which the first did better.")
    only_second: int = Field(description="Pairs in which the second did better.")
    observed: float = Field(description="Observed difference of the success rates. It bounds nothing.")
    lower: float = Field(description="Lower bound on the difference, rounded down.")
    upper: float = Field(description="Upper bound on the difference, rounded up.")

    @property
    def sentence(self) -> str:
        """The claim in words."""
        where = (
            f"on average over {self.pairs} common reset seeds"
            if self.about == "cohort"
            else "for a start drawn from the initial law"
        )
        return (
            f"{self.event}, without shift, {where}: P({self.first}) - P({self.second}) is at least "
            f"{_signed(self.lower, is_lower=True)} and at most {_signed(self.upper, is_lower=False)}. {self.verdict}"
        )

    @property
    def better(self) -> Literal["first", "second", "undecided"]:
        """Which of the two is certified to be better, if any is."""
        return "first" if self.lower > 0.0 else "second" if self.upper < 0.0 else "undecided"

    @property
    def verdict(self) -> str:
        """Who is certified to be better, in words."""
        words = {"first": f"{self.first} is better.", "second": f"{self.second} is better."}
        return words.get(self.better, "Undecided.")

    @property
    def cells(self) -> tuple[str, ...]:
        """The difference as texts, in the order of `HEADS`. Bounds are rounded outwards."""
        return (
            self.event,
            self.first,
            self.second,
            _signed(self.lower, is_lower=True),
            _signed(self.upper, is_lower=False),
            f"{self.observed:+.4f}",
            str(self.pairs),
            str(self.only_first),
            str(self.only_second),
        )


class ComparedRun(Table):
    """One of the runs."""

    name: str = Field(description="How it is called here.")
    study: str = Field(description="Name of its protocol.")
    protocol: Digest = Field(description="Hash of its protocol.")
    claims: tuple[ClaimLine, ...] = Field(description="One line for each of its certificates.")


class Comparison(Document):
    """Runs side by side, with certified differences between arms."""

    format: Literal["ccfs/comparison/1"] = Field(
        default="ccfs/comparison/1", description="Kind and version of this document."
    )
    runs: tuple[ComparedRun, ...] = Field(description="The runs.")
    delta: float = Field(description="Failure probability of all bounds of all differences together.")
    bounds: int = Field(description="Number of bounds that share `delta`: two for each difference.")
    differences: tuple[Difference, ...] = Field(description="One for each pair of arms and event.")
    notes: tuple[str, ...] = Field(description="What was not compared, and why.")

    @property
    def premises(self) -> tuple[str, ...]:
        """What the differences take for granted."""
        return (
            "Which runs, arms and events are compared was fixed before the results were seen. Otherwise give every "
            "pair that you might have chosen.",
            f"All bounds of all differences hold together with failure probability {exact_text(self.delta)}. It comes "
            "on top of the delta of the runs' own certificates.",
            "Trials of different reset seeds are independent, and their number was fixed in advance.",
            "The differences are about trials without shift. Nothing is said about how arms compare under shift.",
        )

    def to_frame(self) -> DataFrame:
        """Return the differences as a pandas frame."""
        return data_frame([difference.model_dump() for difference in self.differences])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the differences with their certified intervals, and return the axes of matplotlib."""
        drawn = axes(ax)
        for place, one in enumerate(self.differences):
            drawn.plot([one.lower, one.upper], [place, place], color="C0")
            drawn.plot(one.observed, place, "o", color="C0")
        names = [f"{one.event}: {one.first} - {one.second}" for one in self.differences]
        drawn.set_yticks(range(len(names)), names, fontsize="small")
        drawn.axvline(0.0, color="0.4", linewidth=1)
        drawn.invert_yaxis()
        drawn.set(xlabel="difference of nominal probabilities")
        return drawn

    def _repr_html_(self) -> str:
        return html_table(HEADS, [one.cells for one in self.differences], caption=" ".join(self.premises))


@dataclass(frozen=True)
class _Side:
    """One arm of one run with the outcomes of its nominal trials about one event, by what pairs them."""

    name: str
    protocol: Protocol
    event: EventSpec
    rates: dict[int, float]

    @property
    def about(self) -> Literal["cohort", "law"]:
        return "law" if self.protocol.trials.seeds is None else "cohort"


def paired_bounds(first: Sequence[float], second: Sequence[float], *, delta: float) -> tuple[float, float]:
    """Return bounds on the average of E[first_i] - E[second_i], each with failure probability `delta`.

    They are the betting bounds of the mean of first_i - second_i, which lies in [-1, 1].

    Assumes: pairs of different i are independent, and their number was fixed in advance. The two numbers of a pair may
    depend on each other, and pairs may have different laws.

    Returns:
        The lower bound, rounded down, and the upper one, rounded up.

    >>> low, high = paired_bounds([1.0] * 90 + [0.0] * 10, [1.0] * 50 + [0.0] * 50, delta=0.001)
    >>> f"{low:.3f} {high:.3f}"
    '0.216 0.606'
    """
    values = [a - b for a, b in zip(first, second, strict=True)]
    share = checks.delta(delta)
    return mean_lower(values, delta=share, lowest=-1.0), mean_upper(values, delta=share, lowest=-1.0)


def compare(
    stores: Sequence[Store], *, delta: float, event: str | None = None, against: str | None = None
) -> Comparison:
    """Compare the arms of finished runs.

    Args:
        stores: the runs.
        delta: failure probability of all bounds of all differences together.
        event: name of the one event to compare. None compares every event that two runs define in the same way.
        against: name of the one arm with which every other one is compared. None compares all pairs.
    """
    level = checks.delta(delta)
    if len({store.root.resolve() for store in stores}) != len(stores):
        raise ValueError("`runs` must be different folders, got one of them twice.")
    names = _names([store.root for store in stores])
    for store in stores:
        refuse_missing_trials(store, store.protocol())
    protocols = [store.protocol() for store in stores]
    known = list(dict.fromkeys(spec.name for protocol in protocols for spec in protocol.events))
    if event is not None and event not in known:
        raise ValueError(f"`event` must be one of {', '.join(known)}, got {event!r}.")
    sides = [
        side
        for store, protocol, name in zip(stores, protocols, names, strict=True)
        for side in _sides(store, protocol, name if len(stores) > 1 else "", event)
    ]
    pairs, notes = _pairs(sides, against)
    bounds = max(2 * len(pairs), 1)
    share = bonferroni(level, bounds)
    return Comparison(
        runs=tuple(
            ComparedRun(
                name=name,
                study=protocol.name,
                protocol=protocol.hash,
                claims=claim_lines(OpenedRun(store).certificates),
            )
            for store, protocol, name in zip(stores, protocols, names, strict=True)
        ),
        delta=level,
        bounds=bounds,
        differences=tuple(_difference(first, second, share) for first, second in pairs),
        notes=notes,
    )


def _sides(store: Store, protocol: Protocol, run: str, event: str | None) -> Iterator[_Side]:
    wanted = tuple(spec for spec in protocol.events if event in (None, spec.name))
    lines = trial_lines(store, protocol.model_copy(update={"events": wanted})).to_pylist()
    # Members of a cohort are paired by their reset seed. Draws from a law have no partner, so their number pairs them.
    key = "trial" if protocol.trials.seeds is None else "reset_seed"
    for spec in wanted:
        for arm in protocol.arms:
            found: dict[int, list[bool]] = {}
            for line in lines:
                if (line["controller"], line["schedule"], line["attack"]) == (*arm.name.split("/"), NOMINAL):
                    found.setdefault(line[key], []).append(line[event_column(spec.name)])
            rates = {place: sum(hits) / len(hits) for place, hits in found.items()}
            yield _Side(f"{run}:{arm.name}" if run else arm.name, protocol, spec, rates)


def _pairs(sides: Sequence[_Side], against: str | None) -> tuple[list[tuple[_Side, _Side]], tuple[str, ...]]:
    """Return the pairs to compare, and a note for each reason not to compare others."""
    arms = list(dict.fromkeys(side.name for side in sides))
    if against is not None and against not in arms:
        raise ValueError(f"`against` must be one of {', '.join(arms)}, got {against!r}.")
    pairs, notes = [], []
    for one, other in combinations(sides, 2):
        first, second = (other, one) if one.name == against else (one, other)
        if first.event.name != second.event.name or against not in (None, second.name):
            continue
        why = _obstacle(first, second)
        if why is None:
            pairs.append((first, second))
        else:
            notes.append(f"{first.name} and {second.name}, {first.event.name}: not compared, because {why}.")
    if not (pairs or notes):
        notes.append(f"nothing to compare: no event is counted for two arms. The arms are: {', '.join(arms)}.")
    return pairs, tuple(dict.fromkeys(notes))


def _obstacle(first: _Side, second: _Side) -> str | None:
    """Return why two arms cannot be compared, or None."""
    one, other = first.protocol, second.protocol
    if any(protocol.claim.stop_at_budget is not None for protocol in (one, other)):
        return "a run stopped because of its results, so its number of trials was not fixed"
    for what, left, right in (
        ("environment", one.environment, other.environment),
        ("horizon", one.horizon, other.horizon),
        ("definition of the event", first.event, second.event),
        ("stop", one.stop, other.stop),
        ("kind of trials (cohort or law)", first.about, second.about),
    ):
        if left != right:
            return f"their `{what}` differs" if " " not in what else f"their {what} differs"
    return None if first.rates.keys() & second.rates.keys() else "they have no reset seed in common"


def _difference(first: _Side, second: _Side, share: float) -> Difference:
    common = [place for place in first.rates if place in second.rates]
    left, right = ([side.rates[place] for place in common] for side in (first, second))
    lower, upper = paired_bounds(left, right, delta=share)
    return Difference(
        event=first.event.name,
        first=first.name,
        second=second.name,
        about=first.about,
        pairs=len(common),
        only_first=sum(a > b for a, b in zip(left, right, strict=True)),
        only_second=sum(a < b for a, b in zip(left, right, strict=True)),
        observed=(sum(left) - sum(right)) / len(common),
        lower=lower,
        upper=upper,
    )


def _names(roots: Sequence[Path]) -> list[str]:
    """Return a different short name for each folder: its last part, or all of it if others have the same."""
    last = [root.resolve().name for root in roots]
    return [str(root) if last.count(name) > 1 else name for root, name in zip(roots, last, strict=True)]


def page(made: Comparison, stores: Sequence[Store], folder: Path) -> str:
    """Return the comparison as a page without scripts. It stands in a folder, from which it links to other pages."""
    documents = [
        (run.name, document)
        for run, store in zip(made.runs, stores, strict=True)
        for document in OpenedRun(store).certificates
    ]
    runs = [(run, report_link(store.root, folder)) for run, store in zip(made.runs, stores, strict=True)]
    return rendered(
        "compare.html.j2",
        links=[(INDEX, "All runs")] if is_ours(folder / INDEX) else [],
        made=made,
        heads=HEADS,
        order=(*_BOUNDS, *(i for i in range(len(HEADS)) if i not in _BOUNDS)),
        forest=_forest(made.differences[:_MOST_DRAWN]) if made.differences else None,
        drawn=_MOST_DRAWN,
        runs=runs,
        groups=[(run.name, run.claims) for run in made.runs],
        size=size_text,
        curves=_curves(documents, has_several=len(made.runs) > 1),
        delta=exact_text(made.delta),
    )


def _curves(documents: Sequence[tuple[str, RunCertificate]], *, has_several: bool) -> list[Figure]:
    made = []
    for event in dict.fromkeys(document.event for _, document in documents):
        arms = [
            (f"{run}:{one.arm}" if has_several else one.arm, one.trajectory, observed(one.trajectory, one.attacks))
            for run, one in documents
            if one.event == event
        ]
        legend = tuple((f"line s{i % 6} dash{i // 6 % 3}", name, "") for i, (name, *_) in enumerate(arms))
        made.append(Figure(title=f"event {event}", chart=overview_figure(arms), legend=legend))
    return made


def _forest(differences: Sequence[Difference]) -> Figure:
    """Draw each difference as an interval on a line of its own, numbered as in the table."""
    reach = max(max(abs(one.lower), abs(one.upper)) for one in differences) * 1.05
    chart = Chart(
        x_range=(-reach, reach),
        y_range=(-len(differences) - 0.5, -0.5),
        label="Differences of nominal probabilities with their certified intervals",
        x_label="first minus second: difference of nominal probabilities",
        height=70.0 + 26.0 * len(differences),
    )
    chart.line([(0.0, -0.5), (0.0, -len(differences) - 0.5)], "target")
    for number, one in enumerate(differences, start=1):
        chart.line([(one.lower, -number), (one.upper, -number)], "curve s0")
        chart.marker(one.observed, -number, 0, title=one.sentence)
        chart.text(-reach, -number, str(number), anchor="end", dx=-8, dy=4)
    chart.heads = ("event", "first", "second", "at least", "at most", "observed")
    chart.rows = [(one.event, one.first, one.second, one.lower, one.upper, one.observed) for one in differences]
    named = tuple(
        ("", f"{i}: {one.event}, {one.first} − {one.second}", "") for i, one in enumerate(differences, start=1)
    )
    return Figure(title="certified differences", chart=chart, legend=named, is_keyed=False)


def _signed(value: float, *, is_lower: bool) -> str:
    """Return a bound with its sign, rounded outwards."""
    if value < 0.0:
        return f"-{upper_text(-value) if is_lower else lower_text(-value)}"
    return f"+{lower_text(value) if is_lower else upper_text(value)}"
