"""One short trial with four proposals per step, for tests of traces and outcomes."""

from __future__ import annotations

from toys import Line, Push

from ccfs.certificates.schedule import ProposalSchedule
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.runs.record import TrajectoryRow, lines_of, table_of
from ccfs.runs.trace import traces
from ccfs.runs.trial import StopRule, run_trial
from ccfs.runtime.components import AcceptAll
from ccfs.runtime.program import CausalProgram
from ccfs.runtime.streams import Streams
from ccfs.runtime.wrapper import ProposalWrapper

__all__ = ["FOUR", "stored", "trial"]

FOUR = ProposalSchedule(count=4, sigma=0.2, rho=0.5)


def trial(
    env=None,
    *,
    schedule=FOUR,
    attack=None,
    verifier=None,
    horizon=30,
    stop=StopRule(),  # noqa: B008
    number=0,
    controller=None,
):
    """Run a short trial of a point on a line, and return its recorder and its trajectory line."""
    env = env or Line()
    program = CausalProgram.for_space(env.action_space, verifier=verifier or AcceptAll())
    wrapped = ProposalWrapper(env, program=program, schedule=schedule, seed=0, horizon=horizon, attack=attack)
    streams = Streams(protocol="test", root=5, arm="a", trial=number, reset_seed=11 + number)
    return run_trial(wrapped, controller or Push(), horizon=horizon, stop=stop, streams=streams)


def stored(recorder, row):
    """Return the trace of one trial after a way through the file format and back."""
    lines = lines_of(TrajectoryRow, read_parquet(parquet_bytes(table_of(TrajectoryRow, [row]))))
    return traces(lines, read_parquet(parquet_bytes(recorder.table)))[0]
