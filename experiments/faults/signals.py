"""Send Ctrl-C or SIGTERM to commands at random moments, and look what they say and what the next call makes of it.

    python experiments/faults/signals.py --out experiments/faults/signals.json

The signal goes to all processes of the command, as a terminal or a batch system sends it. A case is good if the command
ends within ten seconds with one sentence and the right exit code, or had finished, and if the next call gives the bytes
of an undisturbed one. A signal that comes before Python has begun to run our code is counted apart.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
SUPPORT = HERE.parents[1] / "tests" / "support"
sys.path[:0] = [str(HERE.parent), str(SUPPORT)]

from _shared.commands import parse, spelled  # noqa: E402
from breakable import make_inputs  # noqa: E402
from toy_protocol import contents  # noqa: E402

from ccfs.files.atomic import write_atomically  # noqa: E402

IMAGE = "image certify --dataset IN/images.npz --model image_runs:network --sigma 0.3 --n0 20 --n 20000 --threshold 0.5"
# A name, what is done before, and what is interrupted. RUN and IN stand for the folders of the run and of its inputs.
COMMANDS = {
    "run, two processes": ((), "run IN/protocol.toml -o RUN --workers 2"),
    "run, one process": ((), "run IN/protocol.toml -o RUN --workers 1"),
    "certify": (("run IN/protocol.toml -o RUN --workers 1",), "certify RUN"),
    "report": (("run IN/protocol.toml -o RUN --workers 1",), "report RUN"),
    "sign": (("run IN/protocol.toml -o RUN --workers 1",), "sign RUN --key IN/key"),
    "image certify, two processes": ((), f"{IMAGE} -o RUN --workers 2"),
}
PATH = os.pathsep.join(filter(None, (str(SUPPORT), os.environ.get("PYTHONPATH"))))
CODES = {signal.SIGINT: (130, -signal.SIGINT), signal.SIGTERM: (143,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """How often, and where the answer goes."""

    signals: int = field(default=40, metadata={"help": "signals per command"})
    seed: int = field(default=1, metadata={"help": "seed of the moments"})
    out: str = field(default="", metadata={"help": "file of the answer"})


class Command:
    """One command with its inputs and its undisturbed end."""

    def __init__(self, name: str, folder: Path) -> None:
        self.before, self.words = COMMANDS[name]
        self.inputs, self.begin, self.run = make_inputs(folder / "inputs"), folder / "begin", folder / "run"
        for words in self.before:
            self._start(words).wait()
        if self.run.exists():
            shutil.copytree(self.run, self.begin)
        begun = time.monotonic()
        assert self._start(self.words).wait() in (0, 1)
        self.seconds, self.end = time.monotonic() - begun, contents(self.run)

    def _start(self, words: str) -> subprocess.Popen[str]:
        filled = [word.replace("RUN", str(self.run)).replace("IN", str(self.inputs)) for word in words.split()]
        return subprocess.Popen(
            [sys.executable, "-m", "ccfs", *filled],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": PATH},
            cwd=self.inputs,
            # A program in the background inherits an ignored SIGINT. A command in a terminal does not.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def stopped(self, number: signal.Signals, after: float) -> tuple[str, str]:
        """Send a signal after some seconds, call again, and return what came of it, with what was said."""
        shutil.rmtree(self.run, ignore_errors=True)
        if self.begin.exists():
            shutil.copytree(self.begin, self.run)
        started = self._start(self.words)
        time.sleep(after)
        with suppress(ProcessLookupError):
            os.killpg(started.pid, number)
        begun = time.monotonic()
        _, said = started.communicate()
        seconds = time.monotonic() - begun
        kind = self._kind(number, started.returncode, said, seconds)
        again = self._start(self.words)
        _, more = again.communicate()
        if again.returncode not in (0, 1) or more or contents(self.run) != self.end:
            return "wrong", f"after {after:.2f} s: the next call ended with {again.returncode}: {more}"
        return kind, f"after {after:.2f} s: {started.returncode} within {seconds:.1f} s: {said}"

    def _kind(self, number: signal.Signals, code: int, said: str, seconds: float) -> str:
        if code in (0, 1) and not said:
            return "had finished"
        # Before its command line can handle signals, Python imports `ccfs/__init__.py`.
        is_ours = "ccfs/cli/" in said or "Interrupted." in said
        if not is_ours and (code == -number or "KeyboardInterrupt" in said):
            # Ended by the system, or by Python while it imported its own modules.
            return "before our code, or after it"
        is_right = code in CODES[number] and said.startswith("Interrupted.") and said.count("\n") == 1
        return "one sentence" if is_right and seconds < 10.0 else "wrong"


def main() -> int:
    """Send all signals and print what came of them."""
    arguments = parse(Arguments, __doc__ or "")
    command = spelled("experiments/faults/signals.py", arguments)
    out = Path(arguments.out) if arguments.out else None
    stored = json.loads(out.read_text(encoding="utf-8")) if out is not None and out.exists() else {}
    # A command that was interrupted goes on with the commands that are missing.
    before = stored if stored.get("command") == command else {"commands": {}, "wrong": []}
    found, wrong = dict(before["commands"]), list(before["wrong"])
    for name in COMMANDS:
        if name in found:
            continue
        draw = random.Random(f"{arguments.seed} {name}")
        with tempfile.TemporaryDirectory() as folder:
            tried, counts = Command(name, Path(folder)), Counter[str]()
            for _ in range(arguments.signals):
                number = draw.choice(list(CODES))
                kind, said = tried.stopped(number, draw.uniform(0.0, tried.seconds))
                counts[kind] += 1
                if kind == "wrong":
                    wrong.append(f"{name}, {number.name} {said}")
                    print(wrong[-1], file=sys.stderr, flush=True)
        found[name] = dict(sorted(counts.items()))
        print(f"{name} ({tried.seconds:.1f} s): {found[name]}", file=sys.stderr, flush=True)
        text = json.dumps({"command": command, "commands": found, "wrong": wrong}, indent=2) + "\n"
        if out is not None:
            write_atomically(out, text.encode())
    print(json.dumps(found, indent=2))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
