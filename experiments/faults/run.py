"""Let the disk fail at every moment of every command that writes, and look what the next call makes of it.

    python experiments/faults/run.py --out experiments/faults/summary.json

A case is good if the command says in one sentence what happened (a killed one says nothing), if the same command then
gives the bytes of an undisturbed one, and if a power cut after that takes nothing away.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "tests" / "support")]

from _shared.commands import parse, spelled  # noqa: E402
from breakable import COMMANDS, Bench  # noqa: E402
from failing_disk import Fault  # noqa: E402

from ccfs.files.atomic import write_atomically  # noqa: E402


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What to break."""

    every: int = field(default=1, metadata={"help": "go through every so many-th moment"})
    out: str = field(default="", metadata={"help": "file of the summary"})


def wrong_of(bench: Bench, fault: Fault, moment: int) -> list[str]:
    """Return what is wrong after a fault. An error that reaches us would be a traceback for a user."""
    try:
        found = bench.broken(fault, moment)
    except Exception as error:
        found = [f"traceback: {error!r}"]
    return [f"{bench.command.name}, {fault.value}, moment {moment}: {each}" for each in found]


def main() -> int:
    """Go through all cases and print the summary."""
    arguments, begun = parse(Arguments, __doc__ or ""), time.monotonic()
    counts: dict[str, dict[str, int]] = {}
    wrong: list[str] = []
    for command in COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(command, Path(folder) / "bench")
            for fault in Fault:
                moments = range(0, bench.moments(fault), arguments.every)
                counts.setdefault(command.name, {})[fault.value] = len(moments)
                for moment in moments:
                    wrong += wrong_of(bench, fault, moment)
        print(f"{command.name}: {sum(counts[command.name].values())} cases, {len(wrong)} wrong", file=sys.stderr)
    summary = {
        "command": spelled("experiments/faults/run.py", arguments),
        "cases": sum(sum(by_fault.values()) for by_fault in counts.values()),
        "commands": counts,
        "wrong": wrong,
        "minutes": round((time.monotonic() - begun) / 60.0, 1),
    }
    text = json.dumps(summary, indent=2) + "\n"
    if arguments.out:
        write_atomically(Path(arguments.out), text.encode())
    print(text, end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
