"""Score shift rules on nominal trials: how much of an event's probability each would cost, without running it.

Nominal trials are replayed, and every rule is asked for its shifts as if it attacked. The shifts are not applied. They
only say how much likelier each trial would have been under the rule.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from ccfs.attacks.attack import Attack
from ccfs.certificates.bounds import Sampling
from ccfs.certificates.families import (
    TRUNCATIONS,
    drop_lower,
    drop_upper,
    shifted_failure_lower,
    shifted_failure_upper,
)
from ccfs.certificates.rounding import fraction_lower, fraction_upper, lower_text, upper_text
from ccfs.certificates.schedule import Schedule, Stage
from ccfs.files.digests import canonical_json
from ccfs.files.documents import Digest, Document, Table
from ccfs.files.imports import from_source
from ccfs.files.reading import read_text
from ccfs.files.toml import read_toml
from ccfs.protocol.model import Arm, AttackSpec, Protocol, ProtocolError, parse_protocol
from ccfs.protocol.tables import Name
from ccfs.results.certificate import ArmName
from ccfs.results.derive import certified_trials
from ccfs.runs.batches import Batch
from ccfs.runs.build import attack_limit, build_arm, build_attack
from ccfs.runs.counting import recorded_events, tally
from ccfs.runs.host import HostError, child_of
from ccfs.runs.manifest import manifest_faults, write_manifest
from ccfs.runs.reader import RunReader
from ccfs.runs.record import TrajectoryRow
from ccfs.runs.store import RunError, Store, Trust
from ccfs.runs.trace import Trace
from ccfs.runs.trial import StopRule, run_trial
from ccfs.runs.trust import foreign_parts, places_of, untrusted
from ccfs.runs.weights import is_weighed, mean_noise
from ccfs.runtime.history import PublicStep
from ccfs.runtime.interfaces import ShiftRecord, Vector
from ccfs.runtime.streams import Streams
from ccfs.runtime.wrapper import Widths

__all__ = ["SCORES", "AttackScore", "ScoresDocument", "rules_in", "score", "score_lines", "scored_here"]

SCORES = "scores.json"
DELTA = 0.05
"""Failure probability of each interval alone. Scores are observations, as attacked trials are, and no claims."""


class Ratio(NamedTuple):
    """The logarithm of the likelihood ratio of one trial under a rule, and the energy of the rule's shifts on it."""

    log: float
    energy: float


class _Shadow:
    """Asks several attacks for their shifts during a nominal trial, keeps them, and applies none."""

    def __init__(self, attacks: Sequence[Attack]) -> None:
        self._attacks = tuple(attacks)
        self.kept: list[list[ShiftRecord]] = [[] for _ in attacks]

    @property
    def schedule(self) -> Schedule:
        return self._attacks[0].schedule

    @property
    def last(self) -> ShiftRecord | None:
        return None

    @property
    def pending(self) -> ShiftRecord | None:
        return None

    def resolve(self, schedule: Schedule) -> None:
        for attack in self._attacks:
            attack.resolve(schedule)

    def begin(self, rng: np.random.Generator) -> None:
        self.kept = [[] for _ in self._attacks]
        for attack in self._attacks:  # each rule draws from the stream that it would have in its own trials
            attack.begin(copy.deepcopy(rng))

    def commit(
        self,
        t: int,
        horizon: int,
        observation: Vector,
        center: Vector,
        stage: Stage | None = None,
        reading: Vector | None = None,
    ) -> Vector | None:
        for attack in self._attacks:
            attack.commit(t, horizon, observation, center, stage, reading)
        return None

    def publish(self, step: PublicStep) -> None:
        for attack, kept in zip(self._attacks, self.kept, strict=True):
            attack.publish(step)
            if attack.last is not None:
                kept.append(attack.last)


class AttackScore(Table):
    """What a shift rule would do to an event of an arm, estimated from nominal trials."""

    arm: ArmName = Field(description="Name of the arm: controller/schedule.")
    event: Name = Field(description="Name of the event.")
    attack: Name = Field(description="Name of the shift rule.")
    energy_limit: float = Field(description="Its limit, as energy of this arm.")
    held: tuple[bool, ...] = Field(description="Whether the event held, for each nominal trial whose ratio is known.")
    log_ratios: tuple[float, ...] = Field(description="Logarithm of the likelihood ratio of each of these trials.")
    energies: tuple[float, ...] = Field(description="Energy of the shifts on each of these trials.")
    unweighted: int = Field(ge=0, description="Further nominal trials, which may hide a block. They count as failures.")
    rate: float = Field(description="Estimated probability of the event under the rule: its weighted share.")
    rate_lower: float = Field(description="Lower end of the interval of the probability, rounded down.")
    rate_upper: float = Field(description="Upper end of the interval of the probability, rounded up.")
    drop: float = Field(description="Estimated loss of probability, nominal minus under the rule.")
    drop_error: float | None = Field(description="Standard error of that estimate, null for a single trial.")
    drop_lower: float = Field(description="Lower end of the interval of the loss, rounded down.")
    drop_upper: float = Field(description="Upper end of the interval of the loss, rounded up.")

    @property
    def trials(self) -> int:
        """Number of nominal trials."""
        return len(self.held) + self.unweighted

    def recheck(self) -> None:
        """Recompute the estimates and intervals from the ratios. Raise ValueError if one differs."""
        counted = (self.held, self.log_ratios, self.energies, self.unweighted)
        again = _scored(self.arm, self.event, self.attack, self.energy_limit, *counted)
        if again != self:
            raise ValueError(f"the score of {self.attack} on {self.arm} does not follow from its ratios.")


class ScoresDocument(Document):
    """Scores of shift rules that were not run, with what recomputes them."""

    format: Literal["ccfs/scores/1"] = Field(default="ccfs/scores/1", description="Kind and version of this document.")
    protocol: Digest = Field(description="Hash of the protocol of the run.")
    delta: float = Field(description="Failure probability of each interval alone.")
    truncations: tuple[float, ...] = Field(description="Where ratios are cut.")
    attacks: tuple[AttackSpec, ...] = Field(description="The shift rules.")
    scores: tuple[AttackScore, ...] = Field(description="One entry for each arm, event and shift rule.")


def rules_in(protocol: Protocol, path: Path) -> tuple[AttackSpec, ...]:
    """Return the shift rules of a TOML file with `[[attacks]]` tables, checked against a protocol."""
    content = read_toml(read_text(path))
    if set(content) != {"attacks"}:
        raise ProtocolError(f"{path}: must hold `[[attacks]]` and nothing else, got {', '.join(content) or 'nothing'}.")
    whole = {**protocol.model_dump(mode="json"), "attacks": content["attacks"]}
    return parse_protocol(whole, where=str(path)).attacks


def score(
    store: Store,
    attacks: Sequence[AttackSpec],
    *,
    advance: Callable[[int], None] = lambda trials: None,
    is_kept: bool = True,
) -> ScoresDocument:
    """Score shift rules on the nominal trials of a finished run. Keep the result in the run as `scores.json`.

    Every trial is replayed and must meet its stored hash. Code that the protocol or a rule names runs only as far as
    the run is trusted (`Store.trust`).

    Args:
        store: the run.
        attacks: the rules, such as those of its protocol. They need not have been run.
        advance: called with a number of trials when they are replayed.
        is_kept: whether the result is written into the run.
    """
    protocol = store.protocol()
    faults = manifest_faults(store)
    if faults:
        raise RunError(f"{store.root}: {faults[0]} Audit this run before scoring attacks on it.")
    if not attacks:
        raise ValueError(f"{store.root}: must have shift rules to score, but its protocol has no `attacks`. Give some.")
    if protocol.sampling is Sampling.LAW and protocol.trials.per_seed > 1:
        raise ValueError(f"{store.root}: must have one trial at each drawn reset seed, so that trials are independent.")
    asked = protocol.model_copy(update={"attacks": tuple(attacks)})
    scores: list[AttackScore] = []
    for arm in protocol.arms:
        certified_trials(store, protocol, arm)
        ratios = _ratios(store, asked, arm, advance)
        with recorded_events(store, protocol) as events:
            held = tally(store, protocol, arm, None, events)
        for event, flags in held.items():
            for spec in attacks:
                pairs = list(zip(flags, ratios[spec.name], strict=True))
                known = [(flag, ratio) for flag, ratio in pairs if ratio is not None]
                scores.append(
                    _scored(
                        arm.name,
                        event,
                        spec.name,
                        attack_limit(spec, arm),
                        tuple(flag for flag, _ in known),
                        tuple(ratio.log for _, ratio in known),
                        tuple(ratio.energy for _, ratio in known),
                        len(pairs) - len(known),
                    )
                )
    made = ScoresDocument(
        protocol=protocol.hash, delta=DELTA, truncations=TRUNCATIONS, attacks=tuple(attacks), scores=tuple(scores)
    )
    if is_kept:
        with store.locked():
            store.write(SCORES, made.to_bytes())
            write_manifest(store, protocol)
    return made


def _scored(
    arm: str,
    event: str,
    attack: str,
    limit: float,
    held: tuple[bool, ...],
    logs: tuple[float, ...],
    energies: tuple[float, ...],
    unweighted: int,
) -> AttackScore:
    """Return the estimates and intervals of one rule from the ratios of the trials."""
    if not held:
        raise RunError(f"all {unweighted} nominal trials of {arm} crashed, so {attack} cannot be scored.")
    mu = math.nextafter(math.sqrt(limit), math.inf)  # its square is at least the limit
    given = (np.array(held), np.array(logs), np.array(energies))
    ratios = [math.exp(min(log, 600.0)) for log in logs]
    lost = [0.0 if flag else ratio - 1.0 for flag, ratio in zip(held, ratios, strict=True)] + [0.0] * unweighted
    failures = [0.0 if flag else ratio for flag, ratio in zip(held, ratios, strict=True)] + [1.0] * unweighted
    spread = math.sqrt(math.fsum((x - fmean(lost)) ** 2 for x in lost) / (len(lost) - 1)) if len(lost) > 1 else None
    return AttackScore(
        arm=arm,
        event=event,
        attack=attack,
        energy_limit=limit,
        held=held,
        log_ratios=logs,
        energies=energies,
        unweighted=unweighted,
        rate=1.0 - fmean(failures),
        rate_lower=_turned(
            shifted_failure_upper(*given, unweighted=unweighted, mu=mu, delta=DELTA / 2), fraction_lower
        ),
        rate_upper=_turned(
            shifted_failure_lower(*given, unweighted=unweighted, mu=mu, delta=DELTA / 2), fraction_upper
        ),
        drop=fmean(lost),
        drop_error=None if spread is None else spread / math.sqrt(len(lost)),
        drop_lower=drop_lower(*given, unweighted=unweighted, mu=mu, delta=DELTA / 2),
        drop_upper=drop_upper(*given, unweighted=unweighted, mu=mu, delta=DELTA / 2),
    )


def _turned(failure: float, rounded: Callable[[Fraction], float]) -> float:
    """Return 1 minus a probability, rounded."""
    return min(max(rounded(1 - Fraction(failure)), 0.0), 1.0)


def _ratios(store: Store, asked: Protocol, arm: Arm, advance: Callable[[int], None]) -> dict[str, list[Ratio | None]]:
    """Return for each rule the ratio of each nominal trial of an arm, None for a trial that may hide a block."""
    protocol = store.protocol()
    batches = RunReader(store, protocol).batches(arm, None)
    rules = [f"attacks.{spec.name}" for spec in asked.attacks]
    parts = foreign_parts(asked, [*places_of(asked, batches[0]), *rules])
    if parts and store.trust is Trust.NONE:
        raise untrusted(store.root, "scoring attacks", parts)
    found: dict[str, list[Ratio | None]] = {spec.name: [] for spec in asked.attacks}
    if parts and store.trust is Trust.CONFINED:
        specs = [spec.model_dump(mode="json") for spec in asked.attacks]
        for batch in batches:
            told = child_of(store, protocol).call(
                f"{__name__}:scored_here", arm=arm.name, number=batch.number, attacks=specs
            )
            for name, ratios in found.items():
                ratios += _believed(told, name, len(batch.trials))
            advance(len(batch.trials))
        return found
    for batch in batches:
        for name, ratios in _scored_batch(store, asked, arm, batch).items():
            found[name] += ratios
        advance(len(batch.trials))
    return found


def scored_here(store: Store, *, arm: str, number: int, attacks: list[dict[str, object]]) -> dict[str, object]:
    """Score a batch in this process, for the confined child process."""
    protocol = store.protocol()
    specs = tuple(AttackSpec.model_validate_json(canonical_json(spec)) for spec in attacks)
    asked = protocol.model_copy(update={"attacks": specs})
    chosen = next(part for part in protocol.arms if part.name == arm)
    batch = RunReader(store, protocol).batches(chosen, None)[number]
    found = _scored_batch(store, asked, chosen, batch)
    return {name: [None if one is None else list(one) for one in ratios] for name, ratios in found.items()}


def _believed(told: object, name: str, trials: int) -> list[Ratio | None]:
    """Return the ratios that the confined child told, if they have the form of ratios."""
    found = told.get(name) if isinstance(told, dict) else None
    if not (isinstance(found, list) and len(found) == trials):
        raise HostError(f"each of {trials} trials must have its ratio under {name!r}.")
    made: list[Ratio | None] = []
    for one in found:
        is_pair = isinstance(one, list) and len(one) == 2 and all(isinstance(part, float) for part in one)
        if one is not None and not is_pair:
            raise HostError("a ratio must be a logarithm and an energy.")
        made.append(None if one is None else Ratio(*one))
    return made


def _scored_batch(store: Store, asked: Protocol, arm: Arm, batch: Batch) -> dict[str, list[Ratio | None]]:
    """Replay the nominal trials of a batch, with every rule in the shadow, and return their ratios."""
    protocol = store.protocol()  # its hash is part of the key of the noise
    shadow = _Shadow([build_attack(asked, spec, arm) for spec in asked.attacks])
    found: dict[str, list[Ratio | None]] = {spec.name: [] for spec in asked.attacks}
    with from_source():
        wrapped, controller = build_arm(protocol, arm, shadow)
    stop = StopRule(goal=protocol.stop.goal, cost=protocol.stop.cost)
    try:
        for trace, stored in zip(*_stored(store, protocol, batch), strict=True):
            streams = protocol.streams(arm, stored.trial)
            _, row = run_trial(wrapped, controller, horizon=protocol.horizon, stop=stop, streams=streams)
            if (row.chain, row.outcome, row.error) != (stored.chain, stored.outcome, stored.error):
                raise RunError(
                    f"{store.path(batch.trajectories)}: trial {stored.trial} does not replay to its stored hash. "
                    "Use the versions that `ccfs audit` names."
                )
            for spec, shifts in zip(asked.attacks, shadow.kept, strict=True):
                ratio = _ratio(shifts, wrapped.resolved, wrapped.widths, streams) if is_weighed(trace) else None
                found[spec.name].append(ratio)
    finally:
        wrapped.close()
    return found


def _stored(store: Store, protocol: Protocol, batch: Batch) -> tuple[list[Trace], list[TrajectoryRow]]:
    reader = RunReader(store, protocol)
    return reader.traces(batch), reader.trajectories(batch)


def _ratio(shifts: Sequence[ShiftRecord], schedule: Schedule, widths: Widths, streams: Streams) -> Ratio:
    """Return the likelihood ratio of a trial under shifts that were not applied. Sums are rounded once."""
    logs: list[float] = []
    energies: list[float] = []
    for stage in schedule.stages:
        is_sensor = stage is Stage.SENSOR
        width = widths.sensor if is_sensor else widths.center
        rows = [record.sensor if is_sensor else record.shift for record in shifts]
        table = np.array([np.zeros(width) if row is None else row for row in rows]).reshape(len(rows), width)
        noise, charges = mean_noise(stage, schedule.blocks(stage), width, len(rows), streams)
        logs += (charges * noise * table).ravel().tolist()
        energies += (charges * table * table).ravel().tolist()
    energy = math.fsum(energies)
    return Ratio(math.fsum([*logs, -0.5 * energy]), energy)


def score_lines(document: ScoresDocument) -> Iterator[str]:
    """Yield a line for each score, and what they are."""
    for one in document.scores:
        error = "" if one.drop_error is None else f" ± {upper_text(one.drop_error)}"
        yield (
            f"{one.arm}, {one.event} under {one.attack}: {lower_text(one.rate_lower)} to {upper_text(one.rate_upper)}, "
            f"estimate {one.rate:.4f}. It loses {lower_text(one.drop_lower)} to {upper_text(one.drop_upper)}, "
            f"estimate {one.drop:.4f}{error} ({one.trials} nominal trials)."
        )
    yield (
        f"Intervals hold with probability at least {1.0 - document.delta:g}, each alone. ± is one standard error. "
        "These are observations about the rules, not claims."
    )
