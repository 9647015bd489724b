from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from exiting import exits, reading_commands
from toy_protocol import contents, protocol

from ccfs.runs.executors import serial_engine
from ccfs.runs.run import run

pytestmark = pytest.mark.slow
COMMAND = (sys.executable, "-c", "from ccfs.cli.main import app; app()", "run")
SLOW = ('make = "corridor"\narguments = { horizon = 6, post = 0.6 }', 'make = "toys:Slow"')


def is_alive(group):
    """Whether a process of the group runs. One that only waits to be taken note of by its parent does not."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                return True
    return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_run_stopped_with_busy_workers_ends_at_once_and_resumes(tmp_path, number, code):
    made = protocol(tmp_path, trials=12, x=SLOW)
    command = [*COMMAND, str(tmp_path / "protocol.toml"), "-o", str(tmp_path / "run"), "--workers", "2"]
    started = subprocess.Popen(
        command,
        env={**os.environ, "TOY_SLOW": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Tests started in the background inherit an ignored SIGINT; a command in a terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "run").rglob("batches/**/*.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)  # both workers are now in steps of half a minute
        os.killpg(started.pid, number)  # as a terminal does: to the main process and to the workers
        before = time.monotonic()
        _, errors = started.communicate(timeout=20)
        assert time.monotonic() - before < 3.0
        while is_alive(started.pid) and time.monotonic() - before < 3.0:
            time.sleep(0.01)
        assert not is_alive(started.pid)
    finally:
        if is_alive(started.pid):
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()
    assert started.returncode == code
    kept = f"Interrupted. Finished batches are kept in {tmp_path / 'run'}. The same command resumes."
    assert errors.split() == kept.split()
    assert list((tmp_path / "run").rglob("batches/**/*.json"))
    run(made, tmp_path / "run", serial_engine(), where="p")
    run(made, tmp_path / "whole", serial_engine(), where="p")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


THREADS = """
import time
from pathlib import Path
from ccfs.cli.main import app

def threads():
    return {path.name for path in Path("/proc/self/task").iterdir()}

import matplotlib.figure, numpy, pyarrow, scipy.linalg  # they bring their own threads
numpy.ones((600, 600)) @ numpy.ones((600, 600))
before = threads()
for words in COMMANDS:
    try:
        app(words)
    except SystemExit as end:
        print("exit", end.code or 0)
deadline = time.monotonic() + 5.0
while threads() - before and time.monotonic() < deadline:
    time.sleep(0.01)  # a thread that was joined may still be on its way out
print("new threads", len(threads() - before))
"""


def test_commands_read_a_run_without_threads_that_could_outlive_them(tmp_path):
    """A thread of Arrow that drops a Python object while the interpreter ends aborts the process."""
    protocol(tmp_path)
    run_folder = str(tmp_path / "run")
    commands = [
        ["run", str(tmp_path / "protocol.toml"), "-o", run_folder, "--workers", "1"],
        ["certify", run_folder],
        ["table", run_folder],
        ["costs", run_folder],
        ["audit", run_folder],
    ]
    program = THREADS.replace("COMMANDS", repr(commands))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    told = [line for line in ended.stdout.splitlines() if line.startswith(("exit ", "new threads "))]
    assert told == ["exit 0"] * len(commands) + ["new threads 0"]


def test_commands_that_read_parquet_never_abort_at_exit(tmp_path, monkeypatch):
    """A command aborted at its end about once in six times, when a thread of Arrow dropped a Python object too late.

    `experiments/faults/exits.py` does the same 200 times.
    """
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    quick, longer = reading_commands(tmp_path)
    commands = [*quick.items()] * 4 + [*longer.items()]
    assert exits(commands) == {name: [0] * (4 if name in quick else 1) for name, _ in commands}


def test_exits_show_how_a_process_ended():
    assert exits([("version", ["--version"]), ("nothing", ["no-such-command"])]) == {"version": [0], "nothing": [2]}


KILLED = """
import os, signal, sys
from pathlib import Path
from ccfs.runs.executors import serial_engine
from ccfs.protocol.model import load_protocol
from ccfs.runs.run import run

source, top, moments = Path(sys.argv[1]), Path(sys.argv[2]), map(int, sys.argv[3:])

def die_at(moment, folder):
    seen, sync = [0], os.fsync

    def count():
        seen[0] += 1
        if seen[0] == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(event, arguments):
        # Every change of the folder: an opened file, a new name, a new folder, a file gone.
        if event in ("open", "os.rename", "os.mkdir", "os.remove") and str(arguments[0]).startswith(str(folder)):
            count()

    def fsync(descriptor):  # there is no audit event for it
        count()
        sync(descriptor)

    os.fsync = fsync
    sys.addaudithook(watch)

for moment in moments:
    folder = top / str(moment)
    child = os.fork()  # as good as a new process, and twenty times as fast
    if child == 0:
        die_at(moment, folder)
        run(load_protocol(source), folder, serial_engine(), where=str(source))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    print(*sorted(path.name[:22] for path in folder.rglob("*")))
    run(load_protocol(source), folder, serial_engine(), where=str(source))
"""


def test_run_killed_at_every_write_of_its_first_moment_resumes_to_the_same_bytes(tmp_path):
    made = protocol(tmp_path, trials=8)
    run(made, tmp_path / "whole", serial_engine(), where="p")
    # The first files, and then the first batch. In between, and before the journal, only folders are made.
    moments = [*range(1, 76)]
    # From Python 3.12 on `os.fork` warns of threads. Arrow has one that tidies its memory, and holds no lock of ours.
    quiet = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", KILLED]
    command = [*quiet, str(tmp_path / "protocol.toml"), str(tmp_path / "killed"), *map(str, moments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    left = ended.stdout.split("\n")
    assert {"", "lock", ".partial-protocol.json lock", "lock protocol.json"} <= set(left)
    # So far does the first moment go: the files of the first batch have their names, and then its journal has.
    for count, journal in ((1, False), (2, False), (2, True)):
        assert any(
            names.split().count("batch-00000.parquet") == count and ("batch-00000.json" in names) is journal
            for names in left
        )
    whole = contents(tmp_path / "whole")
    for moment in moments:
        assert contents(tmp_path / "killed" / str(moment)) == whole, moment
