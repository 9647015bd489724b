"""Break a Dask cluster while a run is on it: kill a worker, cut one off from the network, kill the scheduler.

    python experiments/faults/cluster.py --out experiments/faults/cluster.json

Linux only. The cluster lives in network namespaces of its own, which end with this program. The scheduler and the run
are in one, each worker is in another, with a virtual cable in between. Nothing reaches the machine's network. A case
is good if the run ends with the bytes of an undisturbed one, or with a sentence after which the next call gives them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
SUPPORT = HERE.parents[1] / "tests" / "support"
sys.path[:0] = [str(HERE.parent), str(SUPPORT)]

from _shared.commands import parse, spelled  # noqa: E402
from clusters import scheduler, worker  # noqa: E402
from toy_protocol import contents, protocol  # noqa: E402

from ccfs.files.atomic import write_atomically  # noqa: E402

_INSIDE = "CCFS_IN_A_NAMESPACE"
_ANYWHERE = "0.0.0.0"  # within the namespace
_PORT = "8786"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """How large, and where the answer goes."""

    trials: int = field(default=400, metadata={"help": "trials per arm and attack"})
    seconds: float = field(default=8.0, metadata={"help": "how long a worker is cut off, once"})
    longer: float = field(default=50.0, metadata={"help": "how long it is cut off the other time"})
    out: str = field(default="", metadata={"help": "file of the answer"})


def command(*words: object) -> None:
    """Run a command that must work."""
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


class Cable:
    """A network namespace for one worker, and the cable to it."""

    def __init__(self, number: int, keeper: subprocess.Popen[bytes]) -> None:
        self.near, self.far, self.keeper = f"near{number}", f"far{number}", keeper
        self.here, self.there = f"10.77.{number}.1", f"10.77.{number}.2"
        command("ip", "link", "add", self.near, "type", "veth", "peer", "name", self.far, "netns", keeper.pid)
        command("ip", "addr", "add", f"{self.here}/30", "dev", self.near)
        command("ip", "link", "set", self.near, "up")
        command(*self.inside, "ip", "addr", "add", f"{self.there}/30", "dev", self.far)
        command(*self.inside, "ip", "link", "set", self.far, "up")
        command(*self.inside, "ip", "link", "set", "lo", "up")

    @property
    def inside(self) -> list[str]:
        """What stands before a command that runs at the far end."""
        return ["nsenter", "--target", str(self.keeper.pid), "--net"]

    def cut_for(self, seconds: float) -> None:
        """Cut the cable, wait, and mend it."""
        command("ip", "link", "set", self.near, "down")
        time.sleep(seconds)
        command("ip", "link", "set", self.near, "up")


@contextmanager
def cable(number: int) -> Iterator[Cable]:
    """Make a namespace with a cable, for as long as the block lasts."""
    with subprocess.Popen(["unshare", "--net", "sleep", "3600"]) as keeper:
        try:
            time.sleep(0.5)  # until it is in its namespace
            yield Cable(number, keeper)
        finally:
            keeper.kill()


class Stage:
    """One protocol, its undisturbed result, and a cluster of two workers to run it on."""

    def __init__(self, folder: Path, trials: int) -> None:
        self.folder, self.run = folder, folder / "run"
        protocol(folder, trials=trials)
        self._call(folder / "whole", "--workers", "1")
        self.whole = contents(folder / "whole")

    def _call(self, run: Path, *words: str) -> subprocess.CompletedProcess[str]:
        process = self._start(run, *words)
        out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def _start(self, run: Path, *words: str) -> subprocess.Popen[str]:
        call = [sys.executable, "-m", "ccfs", "run", str(self.folder / "protocol.toml"), "-o", str(run), *words]
        return subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=SUPPORT)

    @contextmanager
    def cluster(self) -> Iterator[tuple[subprocess.Popen[bytes], list[tuple[Cable, subprocess.Popen[bytes]]]]]:
        """Start a scheduler here and a worker at the end of each of two cables."""
        with ExitStack() as held:
            cables = [held.enter_context(cable(number)) for number in (1, 2)]
            process, _ = held.enter_context(scheduler(self.folder, "--port", _PORT, host=_ANYWHERE))
            workers = [
                held.enter_context(worker(f"tcp://{each.here}:{_PORT}", "--host", each.there, before=each.inside))
                for each in cables
            ]
            yield process, list(zip(cables, workers, strict=True))

    def broken(self, break_it: Callable[..., object]) -> dict[str, object]:
        """Run, break the cluster when the first batches are there, and say what came of it."""
        shutil.rmtree(self.run, ignore_errors=True)
        words = ("--cluster", f"tcp://10.77.1.1:{_PORT}")
        begun = time.monotonic()
        with self.cluster() as (process, workers):
            started = self._start(self.run, *words)
            while len(list(self.run.rglob("batches/**/*.json"))) < 8 and started.poll() is None:
                time.sleep(0.02)
            kept = len(list(self.run.rglob("batches/**/*.json")))
            break_it(process, workers)
            _, err = started.communicate(timeout=300)
        answer: dict[str, object] = {
            "batches_before": kept,
            "exit_code": started.returncode,
            "said": _told(err),
            "seconds": round(time.monotonic() - begun, 1),
        }
        if started.returncode == 2:
            with self.cluster():  # a new scheduler at the same address, and new workers
                again = self._call(self.run, *words)
            answer["exit_code_of_the_next_call"] = again.returncode
            answer["said_by_the_next_call"] = _told(again.stderr)
        answer["same_bytes"] = contents(self.run) == self.whole
        return answer


def _told(text: str) -> list[str]:
    """Return the lines without the note about encryption, which every call gives here."""
    return [line for line in text.splitlines() if not line.startswith("note: the connection")]


def main() -> int:
    """Go through the cases and print what came of them."""
    arguments = parse(Arguments, __doc__ or "")
    if _INSIDE not in os.environ:
        into = ["unshare", "--user", "--map-root-user", "--net", sys.executable, *sys.argv]
        return subprocess.run(into, env={**os.environ, _INSIDE: "1"}, check=False).returncode
    command("ip", "link", "set", "lo", "up")
    cases: dict[str, Callable[..., object]] = {
        "worker killed": lambda process, workers: workers[0][1].kill(),
        f"worker cut off for {arguments.seconds:g} s": lambda _, workers: workers[0][0].cut_for(arguments.seconds),
        f"worker cut off for {arguments.longer:g} s": lambda _, workers: workers[0][0].cut_for(arguments.longer),
        "scheduler killed, then started again": lambda process, workers: process.kill(),
        "both workers killed, then the scheduler": lambda process, workers: [
            each.kill() for each in (workers[0][1], workers[1][1], process)
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), arguments.trials)
        found = {}
        for name, break_it in cases.items():
            found[name] = stage.broken(break_it)
            print(f"{name}: {found[name]}", file=sys.stderr)
    summary = {"command": spelled("experiments/faults/cluster.py", arguments), "cases": found}
    text = json.dumps(summary, indent=2) + "\n"
    if arguments.out:
        write_atomically(Path(arguments.out), text.encode())
    print(text, end="")
    return 0 if all(case["same_bytes"] for case in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
