"""Audit one batch: check its journal and columns, and derive seeds, hash chains, outcomes and energies again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from ccfs.attacks.ledger import EnergyLedger, attacked_stages
from ccfs.certificates.schedule import NamedSigma, Schedule, Stage
from ccfs.files.documents import DocumentError
from ccfs.files.parquet import read_parquet
from ccfs.files.reading import RefusedFileError
from ccfs.protocol.model import Arm, AttackSpec, Protocol
from ccfs.protocol.registry import IN_MEMORY
from ccfs.runs.batches import Batch
from ccfs.runs.build import attack_limit
from ccfs.runs.journal import Journal
from ccfs.runs.outcomes import Outcome
from ccfs.runs.reader import RunReader
from ccfs.runs.record import (
    ShiftRow,
    StepRow,
    TrajectoryRow,
    chain_start,
    chain_step,
    has_columns,
    lines_of,
    widths_of,
)
from ccfs.runs.store import RunError, Store
from ccfs.runs.trial import trajectory_row
from ccfs.runtime.wrapper import Widths

__all__ = ["batch_faults", "has_names"]

_BROKEN = (Outcome.ABSTAINED.value, Outcome.NONFINITE.value, Outcome.CRASHED.value)


def batch_faults(
    store: Store, protocol: Protocol, arm: Arm, attack: AttackSpec | None, batch: Batch, schedule: Schedule
) -> Iterator[str]:
    """Yield one line for each fault of a batch, beginning with the name of the file.

    Args:
        store: the run.
        protocol: its protocol.
        arm: the arm of the batch.
        attack: its attack, None for nominal trials.
        batch: the batch.
        schedule: the schedule of the arm. If it still has names in the place of numbers, shifts of named slices cannot
            be charged again, and their energies are not checked.
    """
    if not store.exists(batch.journal):
        yield f"{batch.journal}: is missing."
        return
    missing = [name for name in batch.files if not store.exists(name)]
    if missing:
        yield from (f"{name}: is missing." for name in missing)
        return
    digests = {name: store.digest(name) for name in batch.files}
    try:
        journal = Journal.from_bytes(store.read(batch.journal), where=batch.journal)
    except DocumentError as error:
        yield str(error)
        return
    if (journal.trials, journal.files) != (batch.trials, digests):
        yield f"{batch.journal}: is not the journal of these files."
    if not batch.keeps_traces:
        yield from _hashed_faults(store, protocol, arm, batch)
        return
    kinds = {batch.traces: StepRow, batch.trajectories: TrajectoryRow, batch.private: ShiftRow}
    tables: dict[str, pa.Table] = {}
    for name in batch.files if not batch.is_judged else batch.files[:-1]:
        most = len(batch.trials) * (1 if name == batch.trajectories else protocol.horizon)
        try:
            tables[name] = read_parquet(store.read(name), most=most, where=name)
        except RefusedFileError as error:
            yield str(error)
            return
    try:
        widths = widths_of(tables[batch.traces])
    except ValueError as error:
        yield f"{batch.traces}: {error}"
        return
    for name, table in tables.items():
        try:
            is_known = has_columns(kinds[name], table.schema)
        except ValueError as error:
            yield f"{name}: {error}"
            return
        if not is_known or (kinds[name] is ShiftRow and widths_of(table) != widths):
            yield f"{name}: has other columns than this format."
            return
    if (widths.sensor > 0) != (arm.schedule.sensor is not None):
        yield f"{batch.traces}: must have readings if, and only if, the schedule has a sensor stage."
        return
    if batch.is_judged:
        yield from _verdict_faults(store, protocol, batch, tables[batch.trajectories])
    steps, lines = lines_of(StepRow, tables[batch.traces]), lines_of(TrajectoryRow, tables[batch.trajectories])
    yield from _trial_faults(protocol, arm, batch, steps, lines, widths)
    if attack is not None:
        shifts = lines_of(ShiftRow, tables[batch.private])
        yield from _energy_faults(protocol, arm, attack, batch, steps, shifts, schedule)


def _verdict_faults(store: Store, protocol: Protocol, batch: Batch, lines: pa.Table) -> Iterator[str]:
    """Yield a fault if stored verdicts are not those of this batch, or call a broken trial a success."""
    try:
        found = RunReader(store, protocol).verdicts(batch)
    except RunError as error:
        yield f"{batch.verdicts}: {error}"
        return
    if set(found) != {spec.name for spec in protocol.events if spec.event == IN_MEMORY}:
        yield f"{batch.verdicts}: must have the verdicts of the events that are objects in memory."
    for name, said in found.items():
        for trial, outcome, is_inside in zip(batch.trials, lines.column("outcome").to_pylist(), said, strict=False):
            if is_inside and outcome in _BROKEN:
                yield f"{batch.verdicts}: trial {trial} has the outcome {outcome!r} and cannot be in {name}."


def _hashed_faults(store: Store, protocol: Protocol, arm: Arm, batch: Batch) -> Iterator[str]:
    """Yield the faults of a batch without traces: lines that no trial of the protocol has, and missing verdicts."""
    reader = RunReader(store, protocol)
    try:
        rows, judged = reader.trajectories(batch), reader.judgements(batch)
    except RunError as error:
        yield f"{batch.journal}: {error}"
        return
    if set(judged) != {spec.name for spec in protocol.events}:
        yield f"{batch.verdicts}: must have the verdicts of the events of the protocol and no others."
    for row in rows:
        if row.reset_seed != protocol.streams(arm, row.trial).reset_seed:
            yield f"{batch.trajectories}: trial {row.trial} has reset seed {row.reset_seed}, not the protocol's."
        if not _is_possible(row, protocol):
            yield f"{batch.trajectories}: trial {row.trial} has a line that no trial of the protocol can have."


def _is_possible(row: TrajectoryRow, protocol: Protocol) -> bool:
    """Return whether a line contradicts neither itself nor the protocol. Only a replay tells whether it is true."""
    outcome, horizon = Outcome(row.outcome), protocol.horizon
    steps = range(row.steps + 1)  # the step that abstained or broke off may be the last one
    marked = all(step is None or step in steps for step in (row.goal_step, row.first_cost_step))
    if not (0 <= row.steps <= horizon and marked and (row.error is not None) == (outcome is Outcome.CRASHED)):
        return False
    if outcome is Outcome.HORIZON:
        return row.steps == horizon
    if outcome is Outcome.GOAL:
        return protocol.stop.goal and row.goal_step == row.steps - 1
    if outcome is Outcome.COST:
        return protocol.stop.cost and row.first_cost_step == row.steps - 1
    return outcome is not Outcome.TRUNCATED or row.steps < horizon


def _trial_faults(
    protocol: Protocol, arm: Arm, batch: Batch, steps: list[StepRow], rows: list[TrajectoryRow], widths: Widths
) -> Iterator[str]:
    trace_file, row_file = batch.traces, batch.trajectories
    if tuple(row.trial for row in rows) != batch.trials:
        yield f"{row_file}: must hold the trials {batch.trials[0]} to {batch.trials[-1]}, each once and in order."
        return
    groups = [(trial, list(group)) for trial, group in groupby(steps, key=lambda step: step.trial)]
    by_trial = dict(groups)
    if [trial for trial, _ in groups] != [row.trial for row in rows if row.trial in by_trial] or len(groups) != len(
        by_trial
    ):
        yield f"{trace_file}: must hold the steps of its trials, each once and in order."
        return
    for row in rows:
        found = by_trial.get(row.trial, [])
        if row.reset_seed != protocol.streams(arm, row.trial).reset_seed:
            yield f"{row_file}: trial {row.trial} has reset seed {row.reset_seed}, not the protocol's."
        if [step.t for step in found] != list(range(len(found))) or len(found) > protocol.horizon:
            yield f"{trace_file}: trial {row.trial} must have the steps 0, 1, ... within the horizon."
        chain, fault = _chain(row, found, widths)
        if fault is not None:
            yield f"{trace_file}: trial {row.trial}: the hash chain breaks at step {fault}."
        again = trajectory_row(row, chain, found)
        if repr(again) != repr(row):  # exact, and NaN equals itself
            yield f"{row_file}: trial {row.trial} is not what its steps give."
        elif not _is_plausible(row, found, protocol):
            yield f"{row_file}: trial {row.trial} has the outcome {row.outcome!r}, which its steps contradict."


def _chain(row: TrajectoryRow, steps: list[StepRow], widths: Widths) -> tuple[bytes, int | None]:
    """Return the chain's last value and the first step where the stored one differs."""
    if not steps and row.outcome == Outcome.CRASHED.value and row.chain == b"\0" * 32:
        return row.chain, None  # the reset itself crashed: there is no first observation
    chain = chain_start(row.reset_seed, widths, row.first_observation)
    for step in steps:
        chain = chain_step(chain, step, widths)
        if chain != step.chain:
            return chain, step.t
    return chain, None


def _is_plausible(row: TrajectoryRow, steps: list[StepRow], protocol: Protocol) -> bool:
    """Return whether the outcome can follow from the steps. Some outcomes only a replay can check."""
    outcome = Outcome(row.outcome)
    has_abstained = bool(steps) and steps[-1].source == "abstain"
    if any(step.source == "abstain" or step.action is None for step in steps[:-1]):
        return False
    if has_abstained or outcome is Outcome.ABSTAINED:
        return has_abstained and outcome is Outcome.ABSTAINED
    if outcome is Outcome.HORIZON:
        return len(steps) == protocol.horizon and not steps[-1].terminated
    if outcome is Outcome.TERMINATED:
        return bool(steps) and steps[-1].terminated
    if outcome is Outcome.TRUNCATED:
        return 0 < len(steps) < protocol.horizon and steps[-1].truncated and not steps[-1].terminated
    if outcome is Outcome.GOAL:
        return protocol.stop.goal and bool(steps) and steps[-1].goal
    if outcome is Outcome.COST:
        return protocol.stop.cost and bool(steps) and (steps[-1].cost or 0.0) > 0.0
    return True


def _energy_faults(
    protocol: Protocol,
    arm: Arm,
    attack: AttackSpec,
    batch: Batch,
    steps: list[StepRow],
    shifts: list[ShiftRow],
    schedule: Schedule,
) -> Iterator[str]:
    """Charge every stored shift again."""
    private, counts = batch.private, Counter(step.trial for step in steps)
    if not _covers(shifts, counts, protocol.horizon):
        yield f"{private}: must hold the shifts of each step, and at most those of one more in each trial."
        return
    stages = attacked_stages(schedule, attack.stage)
    if any(has_names(schedule, stage) for stage in stages):
        return
    limit = attack_limit(attack, arm)
    for trial, group in groupby(shifts, key=lambda shift: shift.trial):
        ledger = EnergyLedger(limit=limit, schedule=schedule, stage=attack.stage)
        for shift in group:
            try:
                fault = _energy_fault(ledger, shift, stages, is_step=shift.t < counts[trial])
            except ValueError as error:
                fault = f": {error}"
            if fault is not None:
                yield f"{private}: trial {trial}{fault}"
                break


def has_names(schedule: Schedule, stage: Stage) -> bool:
    """Return whether a stage has names of slices that only the environment can turn into numbers."""
    return any(isinstance(block.sigma, NamedSigma) for block in schedule.blocks(stage))


def _covers(shifts: list[ShiftRow], counts: Counter[int], horizon: int) -> bool:
    """Return whether there is one line per step, in order, and at most one more after the last step of a trial."""
    groups = [(trial, [line.t for line in group]) for trial, group in groupby(shifts, key=lambda line: line.trial)]
    if len({trial for trial, _ in groups}) != len(groups) or not set(counts) <= {trial for trial, _ in groups}:
        return False
    lengths = ((times, counts[trial]) for trial, times in groups)
    return all(times in ([*range(steps)], [*range(min(steps + 1, horizon))]) for times, steps in lengths)


def _energy_fault(ledger: EnergyLedger, line: ShiftRow, stages: Sequence[Stage], *, is_step: bool) -> str | None:
    """Charge the shifts of one line again, and return what is wrong with them."""
    given = {Stage.SENSOR: line.sensor, Stage.ACTION: line.shift, Stage.SCORE: line.shift}
    for stage in Stage:
        shift = given[stage]
        if stage in stages and shift is not None:
            ledger.commit(line.t, np.array(shift), stage)
        elif stage in stages and (is_step or stage is Stage.SENSOR):
            return f" has no shift of the {stage.value} stage at step {line.t}."
    is_sensor, is_deciding = Stage.SENSOR in stages, bool(set(stages) - {Stage.SENSOR})
    if (line.sensor is not None and not is_sensor) or (line.shift is not None and not is_deciding):
        return f" has a shift of a stage that the attack does not shift at step {line.t}."
    if (ledger.spent_in_step, ledger.spent) != (line.energy, line.spent):
        return f" has another energy at step {line.t} than its shift costs."
    return None
