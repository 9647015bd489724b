"""Try a declared sweep of values on pilot seeds of their own, and write the protocol for the certifying run.

The trials are those of `ccfs run`: every setting and round is a run of its own. What is picked is picked by a
forecast. The certificate comes from the certifying run alone, whose seeds and noise nobody has seen.
"""

from __future__ import annotations

import copy
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, JsonValue, ValidationError, model_validator

from ccfs.files.atomic import write_together
from ccfs.files.documents import Digest, Document, Table
from ccfs.files.frames import axes, data_frame, html_table
from ccfs.files.reading import RefusedFileError, read_text
from ccfs.files.toml import read_toml, toml_text
from ccfs.protocol.errors import ProtocolError, explain
from ccfs.protocol.model import EventSpec, Protocol, parse_protocol, refuse_large, with_runs_read
from ccfs.protocol.seeds import Part, SeedRange, used_seeds
from ccfs.protocol.tables import Name
from ccfs.runs.counting import recorded_events, tally
from ccfs.runs.executors import Engine
from ccfs.runs.preflight import preflight
from ccfs.runs.run import run
from ccfs.runs.store import Store
from ccfs.study.plan import CountDesign, piloted_rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

__all__ = ["FRONT", "PROTOCOL", "RECORD", "Setting", "TuneSpec", "Tuning", "TuningFile", "load_tuning", "tune"]

RECORD, PROTOCOL, FRONT = "tuning.json", "protocol.toml", "front.svg"
_MOST = 1000  # settings
Advance = Callable[[int], None]
Content = dict[str, object]


class WantedSpec(Part):
    """The event rate that a setting must have."""

    event: Name = Field(description="Name of the event: one of the protocol, or one of `tune.events`.")
    rate: float = Field(ge=0.0, le=1.0, description="Least observed rate of it in the pilots.")


class TuneSpec(Part):
    """The table `[tune]` of a protocol file: what to try, on which pilot trials, and what is wanted."""

    sweep: dict[str, Annotated[list[JsonValue], Field(min_length=1)]] = Field(
        min_length=1,
        description='Values to try, by the place in the protocol, such as "schedules.one.action.sigma". Parts of a '
        "list are found by their name. A value may be a whole table. All combinations are tried.",
    )
    trials: int = Field(ge=1, description="Pilot trials of each setting in the first round. Every round doubles them.")
    keep: float = Field(
        default=0.5, gt=0.0, lt=1.0, description="Share of the settings that goes on to the next round."
    )
    seeds: SeedRange | None = Field(
        default=None, description="Reset seeds of the pilots, for a protocol with a cohort. It must hold none of these."
    )
    certify: Name | None = Field(
        default=None, description="Name of the event whose budget counts. Without it, the protocol's first."
    )
    stage: Literal["sensor", "action", "score"] | None = Field(
        default=None,
        description="Stage of the budget. Without it, the action or score stage, or the sensor stage alone.",
    )
    wanted: WantedSpec | None = Field(default=None, description="The event rate that a setting must have.")
    events: tuple[EventSpec, ...] = Field(
        default=(), description="Events that only the pilots count. They are no claims of the certifying run."
    )

    @model_validator(mode="after")
    def _is_not_too_large(self) -> TuneSpec:
        number = math.prod(len(tried) for tried in self.sweep.values())
        if number > _MOST:
            raise ValueError(f"`sweep` must have at most {_MOST} combinations, got {number}")
        return self


class Setting(Table):
    """One combination of values, and what its pilots showed."""

    name: Name = Field(description="Names its folders.")
    values: dict[str, JsonValue] = Field(description="The values that were tried, by their place in the protocol.")
    trials: int = Field(description="Pilot trials of each arm, over all rounds.")
    successes: int = Field(description="Pilot trials in the event that is to be certified, of the weakest arm.")
    reached: int = Field(description="Pilot trials in the wanted event, of the weakest arm.")
    expected: float = Field(
        description="Expected budget of the certifying run, as forecast, of the weakest arm. A target that is not "
        "certified counts as 0."
    )
    rounds: int = Field(description="Rounds that it took part in.")
    is_allowed: bool = Field(description="Whether the wanted rate is reached.")
    is_on_front: bool = Field(description="Whether no other setting is better in both the rate and the budget.")
    pilots: tuple[Digest, ...] = Field(description="Hashes of the protocols of its pilot runs.")

    @property
    def rate(self) -> float:
        """The observed rate of the wanted event."""
        return self.reached / self.trials


class Tuning(Document):
    """The record of a sweep. Its budgets are forecasts, no certificates."""

    format: Literal["ccfs/tuning/1"] = Field(default="ccfs/tuning/1", description="Kind and version of this document.")
    base: Digest = Field(description="Hash of the protocol as it was before tuning.")
    trials: int = Field(description="Trials of each arm of the certifying run, for which budgets are forecast.")
    event: Name = Field(description="The event whose budget counts.")
    stage: str = Field(description="The stage of the budget.")
    wanted_event: Name = Field(description="The event whose rate is wanted.")
    wanted_rate: float = Field(description="The wanted rate.")
    settings: tuple[Setting, ...] = Field(description="What was tried, in the order of the sweep.")
    left_out: dict[str, str] = Field(description="Combinations that are no valid protocol, each with the reason.")
    chosen: Name | None = Field(description="The setting that was picked. Null if none has the wanted rate.")
    protocol: Digest | None = Field(description="Hash of the certifying protocol that was written, or null.")

    @property
    def sentence(self) -> str:
        """The choice in words."""
        if self.chosen is None:
            most = max(setting.rate for setting in self.settings)
            return (
                f"No setting has the wanted rate {self.wanted_rate:g} of {self.wanted_event}: the highest one is "
                f"{most:.4f}. No protocol was written. Lower the rate, or sweep other values."
            )
        (chosen,) = (one for one in self.settings if one.name == self.chosen)
        return (
            f"Picked {chosen.name} ({_values_text(chosen)}): {self.wanted_event} in {chosen.reached} of "
            f"{chosen.trials} pilot trials, expected budget {chosen.expected:.4f} with {self.trials} trials, as "
            "forecast."
        )

    def heads(self) -> tuple[str, ...]:
        """Return the heads of the table."""
        rate = f"rate of {self.wanted_event}"
        return ("setting", *_short(self._places()), "rounds", "pilot trials", self.event, rate, "expected B", "")

    def cells(self) -> list[tuple[str, ...]]:
        """Return the settings as texts, the highest expected budget first."""
        return [
            (
                one.name,
                *(_text(one.values[place]) for place in self._places()),
                str(one.rounds),
                str(one.trials),
                str(one.successes),
                f"{one.rate:.4f}",
                f"{one.expected:.4f}",
                self._mark(one),
            )
            for one in sorted(self.settings, key=lambda one: -one.expected)
        ]

    def to_frame(self) -> DataFrame:
        """Return the settings as a pandas frame."""
        return data_frame(
            [{**one.values, "rate": one.rate, **one.model_dump(exclude={"values", "pilots"})} for one in self.settings]
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the expected budget against the wanted rate, with the front, and return the axes of matplotlib."""
        drawn = axes(ax)
        for is_allowed, marker, name in ((True, "o", "rate is reached"), (False, "x", "rate is too low")):
            group = [one for one in self.settings if one.is_allowed is is_allowed]
            if group:
                drawn.plot([one.rate for one in group], [one.expected for one in group], marker, label=name)
        front = sorted((one for one in self.settings if one.is_on_front), key=lambda one: one.rate)
        drawn.plot([one.rate for one in front], [one.expected for one in front], "-", color="0.6", label="front")
        for one in front:
            drawn.annotate(
                _values_text(one),
                (one.rate, one.expected),
                xytext=(-8, 5),
                textcoords="offset points",
                fontsize="x-small",
                ha="right",
            )
        if self.wanted_rate > 0.0:
            drawn.axvline(self.wanted_rate, color="0.4", linestyle="--", linewidth=1, label="wanted rate")
        for one in self.settings:
            if one.name == self.chosen:
                drawn.plot(one.rate, one.expected, "s", markersize=11, fillstyle="none", color="C3", label="picked")
        drawn.set(xlabel=f"pilot rate of {self.wanted_event}", ylabel=f"expected budget of {self.event} (forecast)")
        drawn.margins(x=0.15, y=0.12)
        drawn.legend(fontsize="small")
        return drawn

    def _repr_html_(self) -> str:
        return html_table(self.heads(), self.cells(), caption=self.sentence)

    def _places(self) -> tuple[str, ...]:
        return tuple(self.settings[0].values)

    def _mark(self, one: Setting) -> str:
        words = ["picked"] if one.name == self.chosen else []
        words += ["front"] if one.is_on_front else []
        return ", ".join(words + ([] if one.is_allowed else ["rate too low"]))


@dataclass(frozen=True, kw_only=True)
class TuningFile:
    """A protocol file with its table `[tune]`."""

    where: str
    content: Content
    spec: TuneSpec
    base: Protocol

    @property
    def event(self) -> str:
        """The event whose budget counts."""
        return self.spec.certify or self.base.events[0].name

    @property
    def wanted(self) -> tuple[str, float]:
        """The event whose rate is wanted, and the rate."""
        wanted = self.spec.wanted
        return (self.event, 0.0) if wanted is None else (wanted.event, wanted.rate)

    def combinations(self) -> list[dict[str, JsonValue]]:
        """Return all combinations of the sweep, in order."""
        places = list(self.spec.sweep)
        return [dict(zip(places, found, strict=True)) for found in product(*self.spec.sweep.values())]

    def with_values(self, values: Mapping[str, JsonValue]) -> Content:
        """Return the content of the protocol with some values."""
        content = copy.deepcopy(self.content)
        for place, value in values.items():
            _set(content, place, copy.deepcopy(value), self.where)
        return content

    def pilot(self, values: Mapping[str, JsonValue], name: str, number: int) -> Protocol:
        """Return the protocol of one setting's pilot in one round."""
        content = self.with_values(values)
        trials, first = self.spec.trials * 2**number, self.spec.trials * (2**number - 1)
        seeds = self.spec.seeds
        drawn: Content = {"initial_law": trials}
        if seeds is not None:
            drawn = {"cohort": {"first": seeds.first + first, "count": trials}}
        claim = dict(_table(content, "claim"))
        for key in ("family", "stop_at_budget"):
            claim.pop(key, None)
        return parse_protocol(
            {
                **content,
                "name": f"{self.base.name[:50]}-{name}-{number}",
                "trials": {**drawn, "used_before": _table(content, "trials").get("used_before", [])},
                "claim": claim,
                "events": [event.model_dump(mode="json") for event in (*self.base.events, *self.spec.events)],
                "attacks": [],
            },
            where=f"{self.where}, {name}",
        )

    def certifying(self, values: Mapping[str, JsonValue], pilots: Sequence[Protocol]) -> tuple[Content, Protocol]:
        """Return the protocol of the certifying run, as content and validated. It names every pilot as used before."""
        content = self.with_values(values)
        trials = _table(content, "trials")
        used = list(_list(trials, "used_before"))
        for pilot in pilots:
            seeds = [] if pilot.trials.seeds is None else used_seeds(pilot.trials.seeds)
            used.append({"protocol": pilot.hash, "seeds": seeds} if seeds else {"protocol": pilot.hash})
        content["trials"] = {**trials, "used_before": used}
        return content, parse_protocol(content, where=self.where)


def load_tuning(path: Path) -> TuningFile:
    """Read and validate a protocol file with a table `[tune]`."""
    where = str(path)
    try:
        content = read_toml(read_text(path))
    except OSError as error:
        raise ProtocolError(f"{path}: cannot be read: {error.strerror}.") from None
    except (RefusedFileError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{path}: must be a TOML file: {error}") from None
    if "tune" not in content:
        raise ProtocolError(f"{path}: must have a table [tune], which says what to try. docs/studies.md shows one.")
    try:
        # Through JSON, as the protocol itself, so that lists may stand for tuples.
        spec = TuneSpec.model_validate_json(json.dumps(content.pop("tune")))
    except TypeError as error:
        raise ProtocolError(
            f"{path}: [tune]: must hold texts, numbers, booleans, lists and tables only: {error}"
        ) from None
    except ValidationError as error:
        raise ProtocolError(*(f"{path}: [tune]: {line}" for line in explain(error, TuneSpec))) from None
    content = with_runs_read(content, path)
    base = parse_protocol(content, where=where)
    refuse_large(base, where=where)
    made = TuningFile(where=where, content=content, spec=spec, base=base)
    _refuse_mismatch(made)
    return made


def _refuse_mismatch(made: TuningFile) -> None:
    """Raise if the table does not fit the protocol. Nothing has run by then."""
    spec, base, where = made.spec, made.base, made.where
    names = [event.name for event in base.events]
    if made.event not in names:
        raise ProtocolError(f"{where}: `tune.certify` must be one of {', '.join(names)}, got {made.event!r}.")
    known = [*names, *(event.name for event in spec.events)]
    if made.wanted[0] not in known:
        raise ProtocolError(f"{where}: `tune.wanted.event` must be one of {', '.join(known)}, got {made.wanted[0]!r}.")
    if len(set(known)) != len(known):
        raise ProtocolError(f"{where}: `tune.events` must have other names than `events`, got {known}.")
    if base.bound is None:
        raise ProtocolError(
            f"{where}: `claim.bound` must be a rule for counts while tuning, got 'stratified', because pilots draw "
            "each reset seed once. Tune with 'cohort' or 'clopper-pearson', then set `draws` and the bound in the "
            "protocol that it writes."
        )
    is_cohort = base.trials.seeds is not None
    if is_cohort != (spec.seeds is not None):
        must = (
            "must be given, because the protocol has a cohort"
            if is_cohort
            else "must be left out, because the initial law draws them"
        )
        raise ProtocolError(f"{where}: `tune.seeds` {must}.")
    if spec.seeds is not None:
        needed = spec.trials * (2 ** _rounds(len(made.combinations()), spec.keep) - 1)
        if spec.seeds.count < needed:
            raise ProtocolError(f"{where}: `tune.seeds` must hold at least {needed} seeds, got {spec.seeds.count}.")
        # The certifying cohort may hold none of the pilot's seeds. Better to say so before the pilots run.
        trials = {**_table(made.content, "trials")}
        trials["used_before"] = [*_list(trials, "used_before"), spec.seeds.model_dump()]
        parse_protocol({**made.content, "trials": trials}, where=where)


def _rounds(settings: int, keep: float) -> int:
    """Return how many rounds there are at most."""
    rounds = 1
    while (settings := _kept(settings, keep)) > 1:
        rounds += 1
    return rounds


def _kept(settings: int, keep: float) -> int:
    return min(max(1, math.ceil(settings * keep)), max(settings - 1, 1))


def _pilot_trials(settings: int, spec: TuneSpec) -> int:
    """Return how many trials each arm has in all pilots. How many settings are left does not depend on results."""
    trials = 0
    for number in range(_rounds(settings, spec.keep)):
        trials += settings * spec.trials * 2**number
        settings = _kept(settings, spec.keep)
    return trials


@dataclass
class _Tried:
    """A setting while its pilots run: the counts of each arm and event, over all rounds."""

    name: str
    values: dict[str, JsonValue]
    trials: int = 0
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    pilots: list[Protocol] = field(default_factory=list)
    expected: float = 0.0

    def least(self, event: str) -> int:
        """Return the count of the weakest arm."""
        return min(count for (_, name), count in self.counts.items() if name == event)

    def order(self, event: str, rate: float) -> tuple[bool, float, float]:
        """Return what settings are sorted by: first those with the wanted rate, then by budget, then by rate."""
        reached = self.least(event) / self.trials
        return (reached >= rate, self.expected if reached >= rate else reached, reached)


def tune(
    made: TuningFile,
    folder: Path,
    engine: Engine,
    *,
    modules: Path | None = None,
    begin: Callable[[int], None] = lambda trials: None,
    advance: Advance = lambda trials: None,
    found: Advance | None = None,
) -> Tuning:
    """Run the pilots that are missing, pick a setting, and write the record, the front and the certifying protocol.

    Successive halving: every round doubles the pilot trials of the settings that are left, and keeps the better ones
    of them. The same call again resumes and gives the same files.

    Args:
        made: what to try.
        folder: where the pilots and the results go.
        engine: where batches run.
        modules: a folder with the user's own modules.
        begin: called once, with the number of trials of all pilots.
        advance, found: as in `run`.
    """
    alive, left_out = _settings(made)
    every = list(alive)
    begin(len(made.base.arms) * _pilot_trials(len(every), made.spec))
    number = 0
    while True:
        for one in alive:
            protocol = made.pilot(one.values, one.name, number)
            where = f"{made.where}, {one.name}"
            preflight(protocol, where=where)
            root = folder / "pilots" / f"round-{number}" / one.name
            store = run(protocol, root, engine, where=where, advance=advance, found=found, modules=modules)
            _count_pilot(made, one, protocol, store)
        alive.sort(key=lambda one: one.order(*made.wanted), reverse=True)
        if len(alive) == 1 or number + 1 == _rounds(len(every), made.spec.keep):
            break
        alive = alive[: _kept(len(alive), made.spec.keep)]
        number += 1
    # Of all settings and not of the last ones alone: the forecast itself weighs that some had fewer trials.
    best = max(every, key=lambda one: one.order(*made.wanted))
    return _written(made, every, best, left_out, folder)


def _settings(made: TuningFile) -> tuple[list[_Tried], dict[str, str]]:
    """Return the combinations that are valid protocols, and the reasons of the others."""
    found, left_out = [], {}
    for i, values in enumerate(made.combinations()):
        name = f"c{i:03d}"
        try:
            made.pilot(values, name, 0)
            made.certifying(values, ())
        except ProtocolError as error:
            left_out[", ".join(f"{place} = {_text(value)}" for place, value in values.items())] = error.lines[0]
        else:
            found.append(_Tried(name, values))
    if not found:
        raise ProtocolError(
            f"{made.where}: no combination of `tune.sweep` is a protocol: {next(iter(left_out.values()))}"
        )
    return found, left_out


def _count_pilot(made: TuningFile, one: _Tried, protocol: Protocol, store: Store) -> None:
    """Add what one setting's pilot of one round counted."""
    with recorded_events(store, protocol) as events:
        for arm in protocol.arms:
            for event, inside in tally(store, protocol, arm, None, events).items():
                key = (arm.name, event)
                one.counts[key] = one.counts.get(key, 0) + sum(inside)
    one.trials += protocol.trials.count
    one.pilots.append(protocol)
    one.expected = min(_expected(made, one, protocol))


def _expected(made: TuningFile, one: _Tried, protocol: Protocol) -> Iterator[float]:
    """Yield the expected budget of each arm of the certifying run, as forecast from the pilots."""
    if made.base.bound is None:
        raise AssertionError("a stratified bound was refused when the file was read")
    for arm in protocol.arms:
        layout = arm.schedule.plan
        design = CountDesign(
            schedule=layout,
            target=made.base.claim.target,
            delta=made.base.claim.delta,
            family=made.base.family,
            bound=made.base.bound,
            stage=made.spec.stage or layout.main.value,
            rates=piloted_rates(one.counts[arm.name, made.event], one.trials),
        )
        yield design.expected(made.base.trials.count)


def _written(made: TuningFile, every: Sequence[_Tried], best: _Tried, left_out: dict[str, str], folder: Path) -> Tuning:
    """Write the record, the front and the certifying protocol, and return the record."""
    wanted, rate = made.wanted
    points = [(one.least(wanted) / one.trials, one.expected) for one in every]
    settings = tuple(
        Setting(
            name=one.name,
            values=one.values,
            trials=one.trials,
            successes=one.least(made.event),
            reached=one.least(wanted),
            expected=one.expected,
            rounds=len(one.pilots),
            is_allowed=point[0] >= rate,
            is_on_front=not any(_is_better(other, point) for other in points),
            pilots=tuple(pilot.hash for pilot in one.pilots),
        )
        for one, point in zip(every, points, strict=True)
    )
    is_found = best.least(wanted) / best.trials >= rate
    content, protocol = made.certifying(best.values, [pilot for one in every for pilot in one.pilots])
    stage = made.spec.stage or made.base.arms[0].schedule.plan.main.value
    record = Tuning(
        base=made.base.hash,
        trials=made.base.trials.count,
        event=made.event,
        stage=stage,
        wanted_event=wanted,
        wanted_rate=rate,
        settings=settings,
        left_out=left_out,
        chosen=best.name if is_found else None,
        protocol=protocol.hash if is_found else None,
    )
    files = {folder / RECORD: record.to_bytes(), folder / FRONT: _svg(record)}
    if is_found:
        text = _protocol_text(content, record)
        if parse_protocol(read_toml(text), where=PROTOCOL).hash != protocol.hash:
            raise RuntimeError("the certifying protocol does not come back from its own text. Please report this.")
        files[folder / PROTOCOL] = text.encode()
    write_together(files)
    return record


def _is_better(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Return whether a setting is at least as good in both, and better in one."""
    return one[0] >= other[0] and one[1] >= other[1] and one != other


def _protocol_text(content: Content, record: Tuning) -> str:
    head = (
        f"# Written by `ccfs tune`. {RECORD} beside it says what was tried.\n"
        "# `used_before` names the pilots. Nothing that they showed is counted again.\n"
    )
    return head + toml_text(content)


def _svg(record: Tuning) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure

    file, figure = io.BytesIO(), Figure(figsize=(6.4, 4.4), layout="constrained")
    record.plot(figure.add_subplot())
    # Without a date and with fixed names inside, so that the same record gives the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "ccfs", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _set(content: Content, place: str, value: JsonValue, where: str) -> None:
    """Set a value in nested tables. A part of a list is found by its name."""
    *path, last = place.split(".")
    here: object = content
    for key in path:
        if isinstance(here, dict):
            here = here.setdefault(key, {})
        elif isinstance(here, list):
            here = next((part for part in here if isinstance(part, dict) and part.get("name") == key), None)
    if not isinstance(here, dict):
        raise ProtocolError(f"{where}: `tune.sweep` must name places of the protocol, got {place!r}.")
    here[last] = value


def _table(content: Mapping[str, object], key: str) -> dict[str, object]:
    found = content.get(key)
    return found if isinstance(found, dict) else {}


def _list(content: Mapping[str, object], key: str) -> list[object]:
    found = content.get(key)
    return found if isinstance(found, list) else []


def _values_text(one: Setting) -> str:
    names = _short(tuple(one.values))
    return ", ".join(f"{name} = {_text(value)}" for name, value in zip(names, one.values.values(), strict=True))


def _short(places: Sequence[str]) -> list[str]:
    """Return the last word of each place, or all of it if others end alike."""
    last = [place.rpartition(".")[2] for place in places]
    return [place if last.count(word) > 1 else word for place, word in zip(places, last, strict=True)]


def _text(value: JsonValue) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_text(part)}" for key, part in value.items()) + "}"
    return str(value)
