"""Ctrl-C and SIGTERM end every phase of every command with one sentence, and the same command then goes on."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys

import pytest
from breakable import COMMANDS, Bench
from toy_protocol import contents

pytestmark = [pytest.mark.slow, pytest.mark.extras]
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
# What a command calls when a phase of it begins.
PHASES = {
    "run": (
        "ccfs.runs.preflight.preflight",
        "ccfs.runs.run.commit",
        "ccfs.runs.run.refuse_other_repeats",
        "ccfs.results.certify.derive",
    ),
    "certify": ("ccfs.results.certify.write_derived",),
    "report": ("ccfs.report.page.render", "ccfs.report.page.write_derived"),
    "image certify": ("ccfs.images.folder.Asked.model_of", "ccfs.images.run.commit", "ccfs.images.certificate.derived"),
    "train": ("ccfs.controllers.training.runner.write_curve",),
}


def stopped(bench, target, number):
    """Let a signal come when the command calls the target for the first time."""
    place, _, name = target.rpartition(".")
    try:
        owner = importlib.import_module(place)
    except ModuleNotFoundError:
        module, _, kind = place.rpartition(".")
        owner = getattr(importlib.import_module(module), kind)
    original = getattr(owner, name)

    def interrupted(*arguments, **options):
        setattr(owner, name, original)
        signal.raise_signal(number)
        return original(*arguments, **options)

    setattr(owner, name, interrupted)
    try:
        return bench.fresh()
    finally:
        setattr(owner, name, original)


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.name in PHASES], ids=lambda each: each.name)
def test_command_stopped_in_any_phase_says_so_and_goes_on(command, tmp_path):
    before = {number: signal.getsignal(number) for number in CODES}
    bench = Bench(command, tmp_path / "bench")
    for place, target in enumerate(PHASES[command.name]):
        for number in list(CODES)[place % 2 :: 2] if place else CODES:
            result = stopped(bench, target, number)
            assert (result.exit_code, result.stderr.count("\n")) == (CODES[number], 1), (target, result.stderr)
            assert result.stderr.startswith("Interrupted.")
            assert command.act(bench.run, bench.inputs).exit_code == command.code
            assert contents(bench.run) == bench.end, target
    assert {number: signal.getsignal(number) for number in CODES} == before


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("moment", ["import", "options"])
def test_signal_before_a_command_begins_gives_no_traceback(number, moment):
    program = (
        "import signal, sys\n"
        "class Watch:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == 'ccfs.files.reading': signal.raise_signal({int(number)})\n"
        "sys.meta_path.insert(0, Watch())\n"
        if moment == "import"
        else "import signal\n"
        "import ccfs.cli.main\n"
        f"ccfs.cli.main._Commands.parse_args = lambda *_: signal.raise_signal({int(number)})\n"
    )
    program += "from ccfs.cli.start import main\nmain()"
    command = [sys.executable, "-c", program, "--version"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    said = "Interrupted.\n" if moment == "import" else "Interrupted. Nothing was begun.\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (CODES[number], "", said)
