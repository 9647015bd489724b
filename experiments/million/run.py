"""Run, certify, verify and audit a protocol that keeps no traces, and write time, memory and bytes of each command."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ccfs.files.atomic import write_atomically
from ccfs.files.parquet import parquet_bytes
from ccfs.protocol.model import load_protocol
from ccfs.results.certificate import RunCertificate
from ccfs.runs.reader import RunReader
from ccfs.runs.record import TrajectoryRow, table_of
from ccfs.runs.store import Store

FOLDER = Path(__file__).resolve().parent


def measured(*words: object, minutes: float | None = None) -> dict[str, object]:
    """Run one command of ccfs, and return its time, its processor time, its greatest memory and its last line.

    After so many minutes the command gets a Ctrl-C, as a user would give it.
    """
    before = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen([sys.executable, "-m", "ccfs", *map(str, words)], stdout=said, cwd=FOLDER.parents[1])
        if minutes is not None:
            signal.signal(signal.SIGALRM, lambda number, frame: child.send_signal(signal.SIGINT))
            signal.alarm(round(60.0 * minutes))
        _, status, used = os.wait4(child.pid, 0)
        signal.alarm(0)
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        lines = said.read().strip().split("\n")
    if child.returncode not in (0, *([130] if minutes else [])):
        raise SystemExit(f"ccfs {' '.join(map(str, words))} ended with {child.returncode}: {lines[-1]}")
    return {
        "seconds": round(time.monotonic() - before, 1),
        "processor_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_megabytes": round(used.ru_maxrss / 1024, 1),
        "said": lines[-1],
        "is_done": child.returncode == 0,
    }


def total(folder: Path, *words: object, minutes: float) -> dict[str, object]:
    """Run a command that goes on where it was stopped, and return what all its calls took together."""
    path = folder / "calls.json"
    calls = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    if not (calls and calls[-1]["is_done"]):
        calls.append(measured(*words, minutes=minutes))
        write_atomically(path, json.dumps(calls).encode())
    if not calls[-1]["is_done"]:
        raise SystemExit(f"Stopped after {minutes:g} minutes. The same command goes on.")
    return {
        "seconds": round(sum(call["seconds"] for call in calls), 1),
        "processor_seconds": round(sum(call["processor_seconds"] for call in calls), 1),
        "peak_megabytes": max(call["peak_megabytes"] for call in calls),
        "calls": len(calls),
    }


def main() -> None:
    """Measure the protocol with so many trials, and write the summary."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--protocol", type=Path, default=FOLDER / "protocol.toml")
    arguments.add_argument("--trials", type=int, help="as many as the protocol says, unless given")
    arguments.add_argument("--replay", type=int, default=3000)
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--minutes", type=float, default=600.0, help="when to stop the run; call again to go on")
    arguments.add_argument("--run", type=Path, required=True, help="a new folder for the run")
    arguments.add_argument("--out", type=Path, required=True, help="file for the summary")
    arguments.add_argument("--lines", type=Path, help="file for the line of each trial")
    given = arguments.parse_args()
    text = given.protocol.read_text(encoding="utf-8")
    given.run.mkdir(parents=True, exist_ok=True)
    path = given.run / "protocol.toml"
    if given.trials is not None:
        text = re.sub(r"^initial_law = \d+$", f"initial_law = {given.trials}", text, flags=re.MULTILINE)
    path.write_text(text, encoding="utf-8")
    protocol, root = load_protocol(path), given.run / "run"
    (arm,), (event,) = protocol.arms, protocol.events
    certificate = root / "certificates" / arm.name / f"{event.name}.json"
    commands = {
        "run": total(given.run, "run", path, "-o", root, "--workers", given.workers, minutes=given.minutes),
        "certify": measured("certify", root),
        "verify": measured("verify", certificate, "--run", root),
        "audit": measured("audit", root, "--replay", given.replay, "--json"),
    }
    report = json.loads(str(commands["audit"].pop("said")))
    for part in commands.values():
        part.pop("said", None)
        part.pop("is_done", None)
    files = [part.stat().st_size for part in root.rglob("*") if part.is_file()]
    document = RunCertificate.from_bytes(certificate.read_bytes(), where=str(certificate))
    summary = {
        "trials": protocol.trials.count,
        "protocol": protocol.hash,
        "successes": document.successes,
        "p_lower": document.p_lower,
        "budget": document.budget,
        "root": document.root,
        "files": len(files),
        "bytes": sum(files),
        "workers": given.workers,
        "commands": commands,
        "audit": {key: report[key] for key in ("faults", "unchecked", "trajectories", "replayed", "seed", "exposure")},
        "certificate": document.model_dump(mode="json")["claim"],
        "processor": platform.machine(),
    }
    if given.lines is not None:
        reader = RunReader(Store(root), protocol)
        rows = [row for batch in reader.batches(arm, None) for row in reader.trajectories(batch)]
        write_atomically(given.lines, parquet_bytes(table_of(TrajectoryRow, rows)))
    write_atomically(given.out, (json.dumps(summary, indent=2, sort_keys=True) + "\n").encode())
    print(json.dumps({key: summary[key] for key in ("trials", "successes", "p_lower", "budget", "bytes", "commands")}))


if __name__ == "__main__":
    main()
