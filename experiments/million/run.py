"""Run, certify, verify and audit a protocol that keeps no traces, and write time, memory and bytes of each command."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from ccfs.files.atomic import write_atomically
from ccfs.protocol.model import load_protocol
from ccfs.results.certificate import RunCertificate

FOLDER = Path(__file__).resolve().parent


def measured(*words: object) -> dict[str, object]:
    """Run one command of ccfs, and return its time, its processor time and its greatest memory."""
    before = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-m", "ccfs", *map(str, words)], stdout=subprocess.PIPE, text=True, cwd=FOLDER.parents[1]
    )
    said = child.stdout.read() if child.stdout is not None else ""
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"ccfs {' '.join(map(str, words))} ended with {os.waitstatus_to_exitcode(status)}: {said}")
    return {
        "seconds": round(time.monotonic() - before, 1),
        "processor_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_megabytes": round(used.ru_maxrss / 1024, 1),
        "said": said.strip().split("\n")[-1],
    }


def main() -> None:
    """Measure the protocol with so many trials, and write the summary."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--trials", type=int, default=1_000_000)
    arguments.add_argument("--replay", type=int, default=3000)
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--run", type=Path, required=True, help="a new folder for the run")
    arguments.add_argument("--out", type=Path, required=True, help="file for the summary")
    given = arguments.parse_args()
    text = (FOLDER / "protocol.toml").read_text(encoding="utf-8")
    given.run.mkdir(parents=True, exist_ok=True)
    path = given.run / "protocol.toml"
    path.write_text(text.replace("initial_law = 1000000", f"initial_law = {given.trials}"), encoding="utf-8")
    protocol, root = load_protocol(path), given.run / "run"
    certificate = root / "certificates/steering/one/passes.json"
    commands = {
        "run": measured("run", path, "-o", root, "--workers", given.workers),
        "certify": measured("certify", root),
        "verify": measured("verify", certificate, "--run", root),
        "audit": measured("audit", root, "--replay", given.replay, "--json"),
    }
    report = json.loads(str(commands["audit"].pop("said")))
    for part in commands.values():
        part.pop("said", None)
    files = [part.stat().st_size for part in root.rglob("*") if part.is_file()]
    document = RunCertificate.from_bytes(certificate.read_bytes(), where=str(certificate))
    summary = {
        "trials": given.trials,
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
    write_atomically(given.out, (json.dumps(summary, indent=2, sort_keys=True) + "\n").encode())
    print(json.dumps({key: summary[key] for key in ("trials", "successes", "p_lower", "budget", "bytes", "commands")}))


if __name__ == "__main__":
    main()
