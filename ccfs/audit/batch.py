"""Audit one batch: its journal, columns, keys, seeds, hash chains, trajectory lines and energies, all rederived."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import groupby

import numpy as np
import pyarrow as pa

from ccfs.attacks.ledger import EnergyLedger
from ccfs.files.digests import chain_start, chain_step, file_digest
from ccfs.files.documents import DocumentError
from ccfs.files.parquet import read_parquet
from ccfs.protocol.model import Arm, AttackSpec, Protocol
from ccfs.runs.batches import Batch, Journal
from ccfs.runs.build import attack_limit
from ccfs.runs.outcomes import Outcome
from ccfs.runs.recording import ShiftRow, StepRow, TrajectoryRow, trajectory_row
from ccfs.runs.store import Store
from ccfs.runs.tables import (
    dimension_of,
    shift_rows,
    shift_schema,
    step_rows,
    step_schema,
    trajectory_rows,
    trajectory_schema,
)

__all__ = ["batch_faults"]


def batch_faults(store: Store, protocol: Protocol, arm: Arm, attack: AttackSpec | None, batch: Batch) -> Iterator[str]:
    """Yield one line for each fault of a batch, beginning with the name of the file."""
    if not store.exists(batch.journal):
        yield f"{batch.journal}: is missing."
        return
    missing = [name for name in batch.files if not store.exists(name)]
    if missing:
        yield from (f"{name}: is missing." for name in missing)
        return
    digests = {name: file_digest(store.path(name)) for name in batch.files}
    try:
        journal = Journal.from_bytes(store.read(batch.journal), where=batch.journal)
    except DocumentError as error:
        yield str(error)
        return
    if (journal.trials, journal.files) != (batch.trials, digests):
        yield f"{batch.journal}: is not the journal of these files."
    tables = []
    for name in batch.files:
        try:
            tables.append(read_parquet(store.read(name)))
        except (OSError, pa.ArrowException) as error:
            yield f"{name}: cannot be read: {error}"
            return
    dimension = dimension_of(tables[0], "center")
    schemas = (step_schema(dimension), trajectory_schema(), shift_schema(dimension))
    for name, table, schema in zip(batch.files, tables, schemas, strict=False):
        if not table.schema.equals(schema, check_metadata=True):
            yield f"{name}: has other columns than this format."
            return
    steps, rows = step_rows(tables[0]), trajectory_rows(tables[1])
    yield from _trial_faults(protocol, arm, batch, steps, rows)
    if attack is not None:
        yield from _energy_faults(protocol, arm, attack, batch, steps, shift_rows(tables[2]))


def _trial_faults(
    protocol: Protocol, arm: Arm, batch: Batch, steps: list[StepRow], rows: list[TrajectoryRow]
) -> Iterator[str]:
    trace_file, row_file = batch.files[:2]
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
        chain, fault = _chain(row, found)
        if fault is not None:
            yield f"{trace_file}: trial {row.trial}: the hash chain breaks at step {fault}."
        again = trajectory_row(row.trial, row.reset_seed, row.outcome, row.error, row.first_observation, chain, found)
        if repr(again) != repr(row):  # exact, and NaN equals itself
            yield f"{row_file}: trial {row.trial} is not what its steps give."
        elif not _is_plausible(row, found, protocol):
            yield f"{row_file}: trial {row.trial} has the outcome {row.outcome!r}, which its steps contradict."


def _chain(row: TrajectoryRow, steps: list[StepRow]) -> tuple[bytes, int | None]:
    """Return the chain's last value and the first step where the stored one differs."""
    if not steps and row.outcome == Outcome.CRASHED.value and row.chain == b"\0" * 32:
        return row.chain, None  # the reset itself crashed: there is no first observation
    chain = chain_start(row.reset_seed, row.first_observation)
    for step in steps:
        chain = chain_step(
            chain,
            t=step.t,
            center=struct.pack(f"<{len(step.center)}d", *step.center),
            source=step.source,
            index=step.index,
            action=None if step.action is None else struct.pack(f"<{len(step.action)}d", *step.action),
            skipped=step.skipped,
            reward=step.reward,
            cost=step.cost,
            goal=step.goal,
            terminated=step.terminated,
            truncated=step.truncated,
            observation=step.observation,
        )
        if chain != step.chain:
            return chain, step.t
    return chain, None


def _is_plausible(row: TrajectoryRow, steps: list[StepRow], protocol: Protocol) -> bool:
    """Return whether the outcome can follow from the steps (what only a replay can tell is left to the replay)."""
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
    protocol: Protocol, arm: Arm, attack: AttackSpec, batch: Batch, steps: list[StepRow], shifts: list[ShiftRow]
) -> Iterator[str]:
    """Charge every stored shift again."""
    private = batch.files[2]
    if [(shift.trial, shift.t) for shift in shifts] != [(step.trial, step.t) for step in steps]:
        yield f"{private}: must hold one shift for each step."
        return
    limit = attack_limit(attack, arm)
    for trial, group in groupby(shifts, key=lambda shift: shift.trial):
        ledger = EnergyLedger(limit=limit, schedules=arm.schedule.schedules)
        for shift in group:
            try:
                energy = ledger.commit(shift.t, np.array(shift.shift))
            except ValueError as error:
                yield f"{private}: trial {trial}: {error}"
                break
            if (energy, ledger.spent) != (shift.energy, shift.spent):
                yield f"{private}: trial {trial} has another energy at step {shift.t} than its shift costs."
                break
