"""Commands that read Parquet, each in a process of its own, and how these processes end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import image_runs
from toy_protocol import protocol, text

from ccfs.protocol.model import load_protocol
from ccfs.results.certify import certify
from ccfs.runs.executors import serial_engine
from ccfs.runs.run import run
from ccfs.runs.store import Store

EXITS = """
import json, os, sys
# Once for all, because importing takes a second.
import matplotlib.figure, pyarrow.parquet, scipy.linalg, scipy.optimize, scipy.stats
import ccfs.audit.run, ccfs.report.page, ccfs.report.images, ccfs.results.certify, ccfs.results.retrace
import ccfs.results.scores, ccfs.results.table, ccfs.results.totals, ccfs.results.verify, ccfs.runs.preflight
import ccfs.runs.run, ccfs.study.compare, ccfs.controllers.zoo, ccfs.envs.registration, ccfs.images.exports
from ccfs.cli.main import app

for name, words in json.loads(sys.stdin.read()):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:  # leaves the program as any command does, through the end of the interpreter
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        app(words)
    _, status = os.waitpid(child, 0)
    print(json.dumps([name, os.waitstatus_to_exitcode(status)]))
"""


def reading_commands(folder: Path) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return commands that read Parquet, on a small run, on one without traces and on one of images.

    The first ones take a tenth of a second. The others start a process, draw, or load torch. NUMBER stands for another
    number in each call.
    """
    hashed = text().partition("[[attacks]]")[0].replace('name = "toy"', 'name = "hashed"\ntraces = "hashes"')
    (folder / "hashed.toml").write_text(hashed)
    run(protocol(folder), folder / "run", serial_engine(), where="p")
    run(load_protocol(folder / "hashed.toml"), folder / "hashed", serial_engine(), where="p")
    certify(Store(folder / "run"))
    image_runs.run(folder / "images", images=image_runs.images(4))
    root, hashes, images, out = (str(folder / name) for name in ("run", "hashed", "images", "out-NUMBER"))
    quick = {
        "certify": ["certify", root],
        "verify": ["verify", f"{root}/certificates/steer/one/safe.json", "--run", root],
        "audit": ["audit", root, "--replay", "0"],
        "table": ["table", root],
        "costs": ["costs", root],
        "returns": ["returns", root, "--least", "-100", "--most", "100"],
        "compare": ["compare", root, "--delta", "0.05"],
        # It finds all batches and reads them.
        "run, finished": ["run", str(folder / "protocol.toml"), "-o", root, "--workers", "1"],
    }
    longer = {
        "run": ["run", str(folder / "protocol.toml"), "-o", out, "--workers", "1"],
        "report": ["report", root, "--replay-steps", "0"],
        "score": ["score", root],
        "export": ["export", root, "--minari", "toy/number-NUMBER-v0", "--arm", "steer/one"],
        "retrace": ["retrace", hashes, "-o", out, "--trials", "0:2"],
        "image export": ["image", "export", images, "--format", "csv", "-o", f"{out}.csv"],
        "image report": ["image", "report", images],
    }
    return quick, longer


def exits(commands: Iterable[tuple[str, list[str]]], first: int = 0) -> dict[str, list[int]]:
    """Run commands one after the other, and return the exit codes of each. A signal is a negative code.

    Args:
        commands: names and words.
        first: what NUMBER stands for in the first command. It is one more in the next one.
    """
    numbered = [
        [name, [word.replace("NUMBER", str(number)) for word in words]]
        for number, (name, words) in enumerate(commands, start=first)
    ]
    program = [sys.executable, "-c", EXITS]
    ended = subprocess.run(program, input=json.dumps(numbered), capture_output=True, text=True, check=True)
    found: dict[str, list[int]] = {}
    for name, code in map(json.loads, ended.stdout.splitlines()):
        found.setdefault(name, []).append(code)
    if ended.stderr:
        raise AssertionError(ended.stderr)
    return found
