"""Run some trials again, and refuse a run whose trials depend on more than the protocol and their reset seed.

The trials of a claim must be independent of each other. A part with a memory that its `reset` does not clear, or with
random numbers of its own, breaks that without any visible error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ccfs.files.merkle import drawn
from ccfs.files.parquet import read_parquet
from ccfs.protocol.model import Protocol
from ccfs.runs.batches import Batch, Verdicts
from ccfs.runs.executors import Pool
from ccfs.runs.reader import RunReader
from ccfs.runs.record import StepRow, TrajectoryRow, lines_of
from ccfs.runs.store import PremiseError, Store

__all__ = ["MUST", "difference", "refuse_other_repeats", "repeated", "repeats", "spread"]

_FEWEST, _MOST = 16, 64

_WHO = {
    "center": "The controller answered differently. A policy must be deterministic: let it return the mean action, or "
    "the scores, and no sample.",
    "source": "The verifier or a fallback answered differently.",
    "index": "The verifier or a fallback answered differently.",
    "action": "The verifier or a fallback answered differently.",
    "skipped": "A fallback answered differently.",
}
_ENVIRONMENT = (
    "The environment behaved differently. If its simulator remembers earlier episodes, as Box2D's does, put "
    '`ccfs.MadeAnew` around it, or write make = "gymnasium-anew" in the protocol. Make a Safety-Gymnasium task by '
    "`ccfs.envs.make_repeatable`."
)
MUST = (
    "Trials must follow from the reset seed and the noise alone. Clear every memory in `reset`, and draw random "
    "numbers from the environment's `np_random` only. Nothing is certified."
)
"""What a refusal ends with."""


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` of the numbers 0 to `count` - 1, evenly spread, the first and the last among them.

    >>> spread(100, 4), spread(3, 8), spread(5, 1)
    ([0, 33, 66, 99], [0, 1, 2], [0])
    """
    if count <= most:
        return list(range(count))
    return [i * (count - 1) // max(most - 1, 1) for i in range(most)]


def repeats(trials: int) -> int:
    """Return how many of so many trials are run again with everything made anew: a tenth, but 16 to 64 of them.

    If something changes a share q of the trials of an arm whenever they are run again, all of them miss it with
    probability at most (1 - q) ** repeats(trials).

    >>> [repeats(trials) for trials in (3, 16, 100, 256, 1000)]
    [3, 16, 16, 25, 64]
    """
    return min(trials, max(_FEWEST, min(trials // 10, _MOST)))


def repeated(trials: int, chain: bytes) -> list[int]:
    """Return the numbers of the trials to run again: the first, the last, and others that are drawn.

    The draw follows from the hash chain of the last trial. So it is the same whenever the run is, and no part could
    know it while the trials ran.
    """
    count = repeats(trials)
    if count == trials:
        return list(range(trials))
    between = drawn(trials - 2, count - 2, seed="repeats", fixed=chain.hex())
    return [0, *(1 + number for number in between), trials - 1]


def refuse_other_repeats(store: Store, protocol: Protocol, pool: Pool[Batch]) -> None:
    """Run some nominal trials of each arm again, each in parts that are made anew. Refuse one that differs.

    A trial ran in an environment that other trials had used before, and runs again in a fresh one. So this finds a
    memory across trials, random numbers of a part's own, and random numbers drawn when a part is made, as far as they
    change one of these trials. A generator that a part holds is found if one of these trials draws from it at all.
    """
    reader = RunReader(store, protocol)
    origin: dict[Batch, Batch] = {}
    for arm in protocol.arms:
        trials = [(batch, trial) for batch in reader.batches(arm, None) for trial in batch.trials]
        last = reader.trajectories(trials[-1][0])[-1].chain
        for batch, trial in (trials[i] for i in repeated(len(trials), last)):
            origin[replace(batch, trials=(trial,), is_repeated=True)] = batch
    for alone, files in pool.completed(origin):
        found = difference(reader, origin[alone], alone.trials[0], files)
        if found is not None:
            raise PremiseError(
                f"{store.root}: trial {alone.trials[0]} of {alone.arm} gives another trace when it is run again with "
                f"everything made anew: {found} {MUST}"
            )


def difference(reader: RunReader, batch: Batch, trial: int, again: Sequence[bytes]) -> str | None:
    """Return in words where a stored trial first differs from its repetition and who caused it, None if nowhere.

    Args:
        reader: reads the stored trials.
        batch: the batch that holds the trial.
        trial: number of the trial.
        again: the files of the repetition, in the order of those of the batch.
    """
    files = dict(zip(batch.files, again, strict=False))
    (new_row,) = lines_of(TrajectoryRow, read_parquet(files[batch.trajectories]))
    if not batch.keeps_traces:
        return _difference_of_lines(reader, batch, trial, new_row, files[batch.verdicts])
    # The line has the last value of the hash chain, so equal lines have equal steps. The repr of a double is exact, and
    # unlike NaN itself the repr of NaN equals itself.
    if repr(reader.trajectories(batch)[batch.trials.index(trial)]) == repr(new_row):
        return None
    ((row, steps),) = reader.steps(batch, {trial})
    new_steps = lines_of(StepRow, read_parquet(files[batch.traces]))
    if repr(row.first_observation) != repr(new_row.first_observation):
        return f"it begins with another observation. {_ENVIRONMENT}"
    for before, now in zip(steps, new_steps, strict=False):
        for name in before._fields:
            if repr(getattr(before, name)) != repr(getattr(now, name)):
                return f"the first difference is at step {before.t}, {name}. {_WHO.get(name, _ENVIRONMENT)}"
    if repr((row, len(steps))) != repr((new_row, len(new_steps))):
        return (
            f"it ended after {len(steps)} steps as {row.outcome}, and now after {len(new_steps)} as {new_row.outcome}."
        )
    return None


def _difference_of_lines(reader: RunReader, batch: Batch, trial: int, now: TrajectoryRow, said: bytes) -> str | None:
    """Return in words how a trial of a run without traces differs from its repetition, None if it does not."""
    place = batch.trials.index(trial)
    before = reader.trajectories(batch)[place]
    for name in before._fields:
        if repr(getattr(before, name)) != repr(getattr(now, name)):
            return f"its line has another {name}, and the run keeps no trace that tells the step."
    again = Verdicts.from_bytes(said, where="the repetition")
    for name, judged in reader.judgements(batch).items():
        lost = (again.lost or {}).get(name, ())
        if judged[place] != (again.events[name][0], trial in lost):
            return f"its hash is the same, but the event {name} answered differently."
    return None
