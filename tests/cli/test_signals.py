"""Ctrl-C and SIGTERM end every phase of every command with one sentence, and the same command then goes on."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
import weakref

import pytest
from breakable import COMMANDS, Bench
from toy_protocol import contents

from ccfs.cli import signals
from ccfs.cli.signals import TerminatedError, stoppable

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


def test_command_starts_no_python_helper_that_a_signal_would_make_noisy():
    """glfw, which MuJoCo imports, would ask another Python process for its version, here and in each worker."""
    program = (
        "import sys\n"
        "from ccfs.cli.start import main\n"
        "def saw(event, given):\n"
        "    if event == 'subprocess.Popen' and given[0] == sys.executable: print('helper', given[1])\n"
        "sys.addaudithook(saw)\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    import glfw, mujoco\n"
        "    print('loaded', glfw.get_version()[0], hasattr(mujoco, 'GLContext'))\n"
    )
    own = {name: value for name, value in os.environ.items() if name != "PYGLFW_LIBRARY"}
    command = [sys.executable, "-c", program, "--version"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=own)
    assert ended.stdout.splitlines()[1:] == ["loaded 3 True"]


class Watch:
    """Does something when Python looks for a module, and swallows what that raises, as some libraries in C do."""

    def __init__(self, act):
        self._act = act

    def find_spec(self, name, *_):
        if name == "no_such_module":
            try:
                self._act()
            except BaseException:
                time.sleep(0.0)


def look_for(act):
    """Import a module that is not there, and do something in the middle of that."""
    sys.meta_path.insert(0, Watch(act))
    try:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("no_such_module")
    finally:
        del sys.meta_path[0]


class Dying:
    """Does something when it dies."""

    def __init__(self, number):
        self._number = number

    def __del__(self):
        signal.raise_signal(self._number)


def die(number):
    dying = Dying(number)
    del dying


def die_watched(number):
    """Let a signal come in the callback of a weak reference."""
    one = {1}
    watch = weakref.ref(one, lambda _: signal.raise_signal(number))
    del one
    assert watch() is None


@pytest.fixture
def unchanged():
    """Check that a test leaves signals, alarms and hooks as they were."""

    def state():
        numbers = (*CODES, signal.SIGALRM)
        return [*map(signal.getsignal, numbers), sys.unraisablehook, signal.getitimer(signal.ITIMER_REAL)]

    before = state()
    yield
    assert state() == before


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize(
    "moment",
    [lambda number: look_for(lambda: signal.raise_signal(number)), die, die_watched],
    ids=["import", "del", "weakref"],
)
@pytest.mark.usefixtures("unchanged")
def test_signal_that_nobody_could_pass_on_is_raised_a_little_later(number, moment, capfd):
    def work():
        moment(number)
        time.sleep(60.0)

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt) as caught, stoppable():
        work()
    assert isinstance(caught.value, TerminatedError) == (number == signal.SIGTERM)
    assert time.monotonic() - begun < 5.0
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("unchanged")
def test_signal_in_the_last_moment_of_a_command_is_not_lost():
    with pytest.raises(TerminatedError), stoppable():
        die(signal.SIGTERM)


@pytest.mark.usefixtures("unchanged")
def test_signal_does_not_wait_for_an_import_without_end(monkeypatch):
    monkeypatch.setattr(signals, "_PATIENCE", 0.1)

    def forever():
        signal.raise_signal(signal.SIGINT)
        time.sleep(60.0)

    begun = time.monotonic()
    with stoppable():
        look_for(forever)
    assert time.monotonic() - begun < 5.0


@pytest.mark.usefixtures("unchanged")
def test_signal_around_an_import_that_calls_the_command_is_raised_at_once():
    """A module may call a command while it is imported. Those imports will not end before the command."""
    found = []

    def command():
        with stoppable():
            try:
                signal.raise_signal(signal.SIGINT)
                found.append("went on")
            except KeyboardInterrupt:
                found.append("stopped")

    look_for(command)
    assert found == ["stopped"]


@pytest.mark.parametrize("number", CODES)
def test_second_signal_ends_at_once_while_the_first_one_waits(number):
    program = (
        "import signal, sys, time\n"
        "from ccfs.cli.signals import stoppable\n"
        "class Watch:\n"
        "    def find_spec(self, name, *_):\n"
        f"        signal.raise_signal({int(number)})\n"
        "        print('waits', flush=True)\n"
        f"        signal.raise_signal({int(number)})\n"
        "        print('still here')\n"
        "sys.meta_path.insert(0, Watch())\n"
        "with stoppable():\n"
        "    import no_such_module\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-number, "waits\n", "")
