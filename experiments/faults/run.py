"""Let the disk fail at every moment of every command that writes, and look what the next call makes of it.

    python experiments/faults/run.py --out experiments/faults/summary.json

A case is good if the command says in one sentence what happened (a killed one says nothing), if the same command then
gives the bytes of an undisturbed one, and if a power cut after that takes nothing away. The moments come in a random
order, some of each command and fault at a time, and the summary is written after each round. If it is there, the study
goes on with what it lacks.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "tests" / "support")]

from _shared.commands import parse  # noqa: E402
from breakable import COMMANDS, Bench, Command  # noqa: E402
from failing_disk import Fault  # noqa: E402

from ccfs.files.atomic import write_atomically  # noqa: E402

ROUND = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """How long to go on."""

    minutes: float = field(default=600.0, metadata={"help": "when to stop, in processor time; call again to go on"})
    out: str = field(default="", metadata={"help": "file of the summary"})


def wrong_of(bench: Bench, fault: Fault, moment: int) -> list[str]:
    """Return what is wrong after a fault. An error that reaches us would be a traceback for a user."""
    try:
        found = bench.broken(fault, moment)
    except Exception as error:
        found = [f"traceback: {error!r}"]
    return [f"{bench.command.name}, {fault.value}, moment {moment}: {each}" for each in found]


def go_on(command: Command, tried: dict[str, dict[str, int]]) -> list[str]:
    """Break one command at some more moments of each fault, write down how many, and return what was wrong."""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(command, Path(folder) / "bench")
        for fault in Fault:
            moments = list(range(bench.moments(fault)))
            random.Random(f"{command.name} {fault.value}").shuffle(moments)
            counts = tried.setdefault(fault.value, {"tried": 0, "moments": len(moments)})
            if counts["moments"] != len(moments):
                raise SystemExit(f"{command.name} has {len(moments)} moments now. Begin with another `--out`.")
            for moment in moments[counts["tried"] : counts["tried"] + ROUND]:
                wrong += wrong_of(bench, fault, moment)
                counts["tried"] += 1
    return wrong


def is_done(tried: dict[str, dict[str, int]]) -> bool:
    """Return whether every moment of a command has been tried."""
    return bool(tried) and all(counts["tried"] == counts["moments"] for counts in tried.values())


def main() -> int:
    """Go through the moments that are not in the summary yet, and print it."""
    arguments = parse(Arguments, __doc__ or "")
    out = Path(arguments.out) if arguments.out else None
    summary = {"command": "python experiments/faults/run.py", "processor_minutes": 0.0, "commands": {}, "wrong": []}
    if out is not None and out.exists():
        summary = json.loads(out.read_text(encoding="utf-8"))
    before = summary["processor_minutes"]
    while not all(is_done(summary["commands"].get(command.name, {})) for command in COMMANDS):
        for command in COMMANDS:
            tried = summary["commands"].setdefault(command.name, {})
            if is_done(tried) or time.process_time() > 60.0 * arguments.minutes:
                continue
            summary["wrong"] += go_on(command, tried)
            summary["processor_minutes"] = round(before + time.process_time() / 60.0, 1)
            if out is not None:
                write_atomically(out, (json.dumps(summary, indent=2) + "\n").encode())
        if time.process_time() > 60.0 * arguments.minutes:
            break
    print(json.dumps(summary, indent=2))
    return 1 if summary["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
