"""The report of a run: one HTML file with the claims, what is not claimed, figures and provenance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from ccfs.certificates.rounding import exact_text
from ccfs.certificates.schedule import Stage
from ccfs.files.digests import canonical_json, text_digest
from ccfs.files.terminal import printable
from ccfs.protocol.model import NOMINAL, Arm, AttackSpec, Protocol
from ccfs.report.charts import Figure, glyph, rendered
from ccfs.report.counts import Ending, bars, ended_trials, event_tables, shipped_events, shipped_lines, sources
from ccfs.report.drawings import Drawing, Shown, drawing_for
from ccfs.report.figures import (
    DELTA,
    Observed,
    curve_figure,
    drawing_figure,
    observed,
    overview_figure,
    rate_text,
    source_figure,
)
from ccfs.report.maps import end_mark, replayed
from ccfs.report.replay import MOST_STEPS
from ccfs.results.certificate import RunCertificate, covered
from ccfs.results.derive import certificate_name
from ccfs.results.families import stored_families
from ccfs.results.scores import SCORES, AttackScore, ScoresDocument
from ccfs.runs.counting import refuse_changed_events
from ccfs.runs.executors import Engine, serial_engine
from ccfs.runs.manifest import MANIFEST, manifest_faults, read_manifest, write_derived
from ccfs.runs.provenance import read_provenance
from ccfs.runs.reader import RunReader
from ccfs.runs.store import RunError, Store
from ccfs.runs.trace import Trace

__all__ = ["REPORT", "render", "write_report"]

REPORT = "report.html"
_DRAWN = 30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Claim:
    """One certificate as the page shows it."""

    file: str
    document: RunCertificate
    rates: tuple[Observed, ...]
    figure: Markup
    scores: tuple[AttackScore, ...] = ()

    @property
    def covered(self) -> tuple[tuple[str, float], ...]:
        """What may be shifted, and how far if nothing else is."""
        return covered(self.document.trajectory)


def write_report(
    store: Store, *, drawing: str | None = None, most_steps: int = MOST_STEPS, engine: Engine | None = None
) -> Path:
    """Write a certified run's report.html, add it to the manifest, and return its path.

    Code that the protocol names is not run, with one exception: an environment that we ship (`drawings.SCENES`)
    replays stored actions. The module of `drawing` is imported, if one is given.

    Args:
        store: a finished and certified run.
        drawing: the trajectory drawing, "module:callable". The default is the environment's own, if we ship one.
        most_steps: the greatest number of steps to replay for maps. 0 replays nothing.
        engine: where to replay. The default is this process. The page does not depend on it.
    """
    with store.locked():  # first, because it removes what a killed process left and nobody has a name for
        page = render(store, drawing=drawing, most_steps=most_steps, engine=engine).encode()
        write_derived(store, store.protocol(), {REPORT: page})
    return store.path(REPORT)


def render(
    store: Store, *, drawing: str | None = None, most_steps: int = MOST_STEPS, engine: Engine | None = None
) -> str:
    """Return the page. The same run gives the same bytes on a machine, wherever its folder stands."""
    if not most_steps >= 0:
        raise ValueError(f"`most_steps` must be at least 0, got {most_steps}.")
    faults = [fault for fault in manifest_faults(store) if not fault.startswith(f"{REPORT}:")]
    if faults:
        raise RunError(f"{store.root}: {faults[0]} Audit this run before reporting on it.")
    protocol = store.protocol()
    refuse_changed_events(store, protocol)
    scores = ScoresDocument.from_bytes(store.read(SCORES), where=SCORES).scores if store.exists(SCORES) else ()
    claims = [_claim(store, arm, event.name, scores) for arm in protocol.arms for event in protocol.events]
    if any(claim.document.protocol != protocol.hash for claim in claims):
        raise RunError(f"{store.root}: holds a certificate of another protocol. Audit this run.")
    files = {name: value for name, value in read_manifest(store).items() if name != REPORT}
    record = read_provenance(store)
    worst = _most_harmful(protocol, claims)
    # Without traces, the page shows the claims and what follows from them.
    lines = shipped_lines(store, protocol) if protocol.keeps_traces else None
    trials = [] if lines is None else ended_trials(lines)
    again = replayed(
        store,
        protocol,
        trials,
        None if worst is None else worst.name,
        most_steps=0 if lines is None else most_steps,
        engine=engine or serial_engine(),
    )
    shown = bars(trials)
    has_maps = again is not None and bool(again.maps)
    own_events = [part.name for part in protocol.events if part not in shipped_events(protocol).events]
    return rendered(
        "report.html.j2",
        protocol=protocol,
        claims=claims,
        premises=_premises(claims),
        families=stored_families(store, protocol),
        divergences=[(claim, claim.document.trajectory.divergences) for claim in claims],
        has_sensor=any(Stage.SENSOR in arm.schedule.plan.stages for arm in protocol.arms),
        has_several=any(arm.schedule.plan.stages != (Stage.ACTION,) for arm in protocol.arms),
        main_stages=sorted({arm.schedule.plan.main.value for arm in protocol.arms}),
        certified=sum(claim.document.trajectory.is_certified for claim in claims),
        contradictions=[(claim, rate) for claim in claims for rate in claim.rates if rate.is_contradiction],
        overviews=_overviews(protocol, claims),
        sources=[] if lines is None else [_source_figures(store, protocol, arm) for arm in protocol.arms],
        drawings=[]
        if lines is None or (has_maps and drawing is None)
        else _drawings(store, protocol, claims, drawing_for(protocol, drawing)),
        tables=[] if lines is None else event_tables(protocol, lines, worst),
        roots={claim.document.arm: claim.document.root for claim in claims if claim.document.root is not None},
        left_out_events=own_events,
        checkable=[] if own_events else claims,
        worst=worst,
        bars=shown,
        replayed=again,
        mark=lambda ending: Markup('<svg class="key" viewBox="0 0 14 14" aria-hidden="true">{}</svg>').format(
            end_mark(ending, "plain", 7.0, 7.0)
        ),
        ending=Ending,
        endings=list(dict.fromkeys((part.style, part.name) for bar in shown for part in bar.segments)),
        trial_count=len(trials),
        most_steps=most_steps,
        arm_count=len(protocol.arms),
        interval=exact_text(100.0 * (1.0 - DELTA)),
        glyph=lambda kind: Markup('<svg class="key" viewBox="0 0 14 14" aria-hidden="true">{}</svg>').format(
            glyph(kind, 7.0, 7.0)
        ),
        observed_rate=rate_text,
        kind="cohort" if protocol.trials.seeds is not None else "law",
        files=files,
        digest=text_digest(canonical_json(files)),
        packages=_table(record, "packages"),
        controllers=_table(record, "controllers"),
        code=_table(record, "code"),
        protocol_text=json.dumps(
            protocol.model_dump(mode="json", exclude_defaults=True), indent=2, ensure_ascii=False
        ).split("\n"),
        manifest=MANIFEST,
        newline=Markup("\n"),
    )


def _claim(store: Store, arm: Arm, event: str, scores: Sequence[AttackScore]) -> _Claim:
    spec = next(part for part in store.protocol().events if part.name == event)
    name = certificate_name(arm, spec)
    if not store.exists(name):
        raise RunError(f"{store.path(name)}: is missing: the run is not certified. Run `ccfs certify` first.")
    document = RunCertificate.from_bytes(store.read(name), where=str(store.path(name)))
    proof = document.trajectory
    rates = observed(proof, document.attacks)
    ours = tuple(score for score in scores if (score.arm, score.event) == (arm.name, event))
    return _Claim(file=name, document=document, rates=rates, figure=curve_figure(proof, rates), scores=ours)


def _premises(claims: Sequence[_Claim]) -> list[tuple[str, list[str]]]:
    """Return every premise of the claims once, with the arms that it is about. Of a premise of all arms, none."""
    arms = list(dict.fromkeys(claim.document.arm for claim in claims))
    found: dict[str, list[str]] = {}
    for claim in claims:
        for premise in claim.document.premises:
            about = found.setdefault(premise, [])
            if claim.document.arm not in about:
                about.append(claim.document.arm)
    return [(premise, [] if len(about) == len(arms) else about) for premise, about in found.items()]


def _overviews(protocol: Protocol, claims: Sequence[_Claim]) -> list[Figure]:
    """Return one figure per event with the curves of all arms, if there is more than one arm."""
    made = []
    for event in protocol.events:
        of_event = [
            (claim.document.arm, claim.document.trajectory, claim.rates)
            for claim in claims
            if claim.document.event == event.name
        ]
        if len(of_event) > 1:
            legend = tuple((f"line s{i % 6} dash{i // 6 % 3}", name, "") for i, (name, *_) in enumerate(of_event))
            made.append(Figure(title=event.name, figure=overview_figure(of_event), legend=legend))
    return made


def _source_figures(store: Store, protocol: Protocol, arm: Arm) -> tuple[str, tuple[Figure, ...]]:
    made = []
    for attack in (None, *protocol.attacks):
        found = sources(store, protocol, arm, attack)
        steps = max(sum(found.totals), 1)
        legend = tuple(
            (style, name, f"{100.0 * total / steps:.2f}%")
            for style, name, total in zip(found.styles, found.names, found.totals, strict=True)
        )
        title = NOMINAL if attack is None else f"under {attack.name}"
        made.append(Figure(title=f"{title}, {found.trials} trials", figure=source_figure(found), legend=legend))
    return arm.name, tuple(made)


def _drawings(store: Store, protocol: Protocol, claims: Sequence[_Claim], draw: Drawing) -> list[Figure]:
    """Draw each arm's nominal trials beside the same trials under the most harmful attack."""
    made = []
    for arm in protocol.arms:
        worst = _most_harmful(protocol, [claim for claim in claims if claim.document.arm == arm.name])
        shown = [Shown(attack=NOMINAL, traces=_first_traces(store, protocol, arm, None))]
        if worst is not None:
            shown.append(Shown(attack=worst.name, traces=_first_traces(store, protocol, arm, worst)))
        panel = draw(protocol, arm, shown)
        legend = tuple((f"line s{i % 6}", group.name, "") for i, group in enumerate(panel.groups))
        made.append(Figure(title=arm.name, figure=drawing_figure(panel), legend=legend, caption=panel.caption))
    return made


def _most_harmful(protocol: Protocol, claims: Sequence[_Claim]) -> AttackSpec | None:
    def successes(attack: AttackSpec) -> int:
        return sum(
            count.successes for claim in claims for count in claim.document.attacks if count.attack == attack.name
        )

    return min(protocol.attacks, key=successes, default=None)


def _first_traces(store: Store, protocol: Protocol, arm: Arm, attack: AttackSpec | None) -> tuple[Trace, ...]:
    def stored() -> Sequence[Trace]:
        found: list[Trace] = []
        reader = RunReader(store, protocol)
        for batch in reader.batches(arm, attack):
            found += reader.traces(batch)[: _DRAWN - len(found)]
            if len(found) >= _DRAWN:
                break
        return found

    return tuple(stored())


def _table(content: dict[str, object], key: str) -> dict[str, str]:
    table = content.get(key)
    entries = table.items() if isinstance(table, dict) else ()
    return {printable(str(name)): printable(str(value)) for name, value in entries}
