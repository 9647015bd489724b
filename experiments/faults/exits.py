"""Run every command that reads Parquet many times, each in a process of its own, and count how they end.

    python experiments/faults/exits.py --out experiments/faults/exits.json

A process that ends while a thread of Arrow still holds a Python object aborts after everything was printed. A call adds
rounds to what is stored. In each round every command runs once.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
SUPPORT = HERE.parents[1] / "tests" / "support"
sys.path[:0] = [str(HERE.parent), str(SUPPORT)]

from _shared.commands import parse  # noqa: E402
from exiting import exits, reading_commands  # noqa: E402

from ccfs.files.atomic import write_atomically  # noqa: E402


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """How often, and where the answer goes."""

    rounds: int = field(default=200, metadata={"help": "how often each command runs in all"})
    out: str = field(default="", metadata={"help": "file of the answer"})


def main() -> int:
    """Run the rounds that are missing and print the counts."""
    arguments = parse(Arguments, __doc__ or "")
    out = Path(arguments.out) if arguments.out else None
    before = json.loads(out.read_text(encoding="utf-8")) if out is not None and out.exists() else {}
    found = {name: Counter(codes) for name, codes in before.get("exit_codes", {}).items()}
    done = before.get("rounds", 0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = f"{folder}/minari"
        quick, longer = reading_commands(Path(folder))
        commands = [*quick.items(), *longer.items()]
        while done < arguments.rounds:
            for name, codes in exits(commands, first=done * len(commands)).items():
                found.setdefault(name, Counter()).update(map(str, codes))
            done += 1
            summary = {"rounds": done, "exit_codes": {name: dict(sorted(each.items())) for name, each in found.items()}}
            if out is not None:
                write_atomically(out, (json.dumps(summary, indent=2) + "\n").encode())
    print(json.dumps(found, indent=2))
    return int(any(set(codes) != {"0"} for codes in found.values()))


if __name__ == "__main__":
    sys.exit(main())
