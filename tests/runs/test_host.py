"""Code that a run names runs nowhere by default, and in a confined child process if the user trusts it."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy_protocol import contents, protocol, text
from typer.testing import CliRunner

from ccfs.audit.run import audit
from ccfs.cli.main import app
from ccfs.results.certify import certify
from ccfs.runs.counting import judged_here
from ccfs.runs.executors import serial_engine
from ccfs.runs.host import ChildHost, HereHost, HostError, host_of, receive, send
from ccfs.runs.reader import RunReader
from ccfs.runs.run import run
from ccfs.runs.store import Store, Trust
from ccfs.runs.trust import UntrustedError, foreign_parts, places_of

pytestmark = pytest.mark.slow
CORRIDOR = 'make = "corridor"\narguments = { horizon = 6, post = 0.6 }'
ENVIRONMENT = (CORRIDOR, 'make = "hostile:Running"')
EVENT = ('event = "no-cost-until-goal"', 'event = "hostile:Counting"')
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines the network and writes")


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished and certified run whose environment and event are code of a stranger."""
    folder = tmp_path_factory.mktemp("hosted")
    store = run(protocol(folder, trials=8, x=ENVIRONMENT, y=EVENT), folder / "run", serial_engine(), where="p")
    certify(store)
    return store.root


@pytest.fixture
def root(made, tmp_path, monkeypatch):
    """A copy of the run, as if it came from a stranger, on a machine where its code leaves marks."""
    monkeypatch.setenv("HOSTILE_MARK", str(tmp_path / "mark"))
    monkeypatch.delitem(sys.modules, "hostile", raising=False)
    return shutil.copytree(made, tmp_path / "run")


def test_no_command_runs_what_a_folder_names_by_default(root, tmp_path):
    before = contents(root)
    certificate = root / "certificates/steer/one/safe.json"
    for words, code in (
        (("audit", root), 3),
        (("audit", root, "--json"), 3),
        (("audit", root, "--replay", 3), 3),
        (("certify", root), 2),
        (("table", root), 2),
        (("table", root, "--json"), 2),
        (("costs", root), 0),
        (("verify", certificate), 0),
        (("verify", certificate, "--run", root), 2),
        (("export", root, "--minari", "toy/steer-v0", "--arm", "steer/one"), 2),
    ):
        result = call(*words)
        assert result.exit_code == code, (words, result.output)
        if code == 2:
            (line,) = result.output.strip().splitlines()
            assert "hostile:" in line
            assert line.endswith("Read it, then use --trust.")
    assert contents(root) == before
    assert call("report", root).exit_code == 0
    assert not (tmp_path / "mark").exists()
    assert "hostile" not in sys.modules


def test_audit_lists_what_it_would_run_and_says_what_it_did_not_check(root):
    report = audit(Store(root), replay=None)
    assert report.is_clean
    assert report.unchecked == (
        "whether the counts of the events safe follow from the traces.",
        "whether 32 of 32 trajectories replay.",
    )
    assert [part.partition("(")[0] for part in report.would_run] == [
        "environment: hostile:Running",
        "events.safe: hostile:Counting",
    ]
    assert report.replayed == 0


@pytest.mark.parametrize("words", [("audit",), ("certify",), ("table",)])
def test_trust_runs_it_elsewhere_after_a_list(root, tmp_path, words):
    result = call(words[0], root, "--trust")
    assert result.exit_code == 0, result.output
    assert "runs events.safe: hostile:Counting(), digest " in result.output
    assert "hostile" not in sys.modules
    if sys.platform == "linux":
        assert not (tmp_path / "mark").exists()  # it ran, and could not write there
    assert "\x1b" not in result.output


def test_trusted_audit_replays_everything(root):
    report = audit(Store(root, trust=Trust.CONFINED), replay=None)
    assert (report.faults, report.unchecked, report.replayed) == ((), (), 32)


def doing(tmp_path, what, **arguments):
    given = ", ".join(f'{name} = "{value}"' for name, value in {"what": what, **arguments}.items())
    environment = (CORRIDOR, f'make = "hostile:Doing"\narguments = {{ {given} }}')
    store = run(protocol(tmp_path, trials=2, x=environment), tmp_path / "run", serial_engine(), where="p")
    certify(store)
    return Store(store.root, trust=Trust.CONFINED)


@LINUX
@pytest.mark.parametrize("what", ["write", "connect", "kill", "start"])
def test_confined_code_cannot_write_connect_or_kill(tmp_path, monkeypatch, what):
    """The forbidden step raises in the child, so the trial crashes there and does not replay."""
    store = doing(tmp_path, what, place=str(tmp_path / "owned"))
    monkeypatch.setenv("HOSTILE_NOW", "1")
    report = audit(store, replay=1)
    error = "ValueError" if what == "start" else "PermissionError"
    assert any(
        f"does not replay: it crashed here with {error}. A replay has no net" in fault for fault in report.faults
    )
    assert not (tmp_path / "owned").exists()


def test_confined_code_that_takes_too_long_is_stopped(tmp_path, monkeypatch):
    store = doing(tmp_path, "sleep")
    monkeypatch.setenv("HOSTILE_NOW", "1")
    host = host_of(store, store.protocol())
    host.controllers(["steer"])  # whatever a busy machine takes to start and to import is over now
    host._seconds = 6
    report = audit(store, replay=1)
    assert report.faults == ()
    assert "took more than 6 seconds for one trial. It was stopped." in report.unchecked[0]
    assert report.replayed == 0


@LINUX
def test_confined_code_cannot_fill_the_memory(tmp_path, monkeypatch):
    store = doing(tmp_path, "allocate")
    monkeypatch.setenv("HOSTILE_NOW", "1")
    report = audit(store, replay=1)  # 64 gigabytes: the trial crashes
    assert any("does not replay" in fault for fault in report.faults)


@LINUX
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("hoard", "1,024 MiB of memory"),
        ("multiply", "(64 processes|1,024 MiB of memory)"),  # whichever is seen first
        ("fill", "256 MiB of files"),
        ("fill_hidden", "256 MiB of files"),
        ("fill_mapped", "256 MiB of files"),
        ("nest", "32 levels of folders"),
        ("share", "1,024 MiB of memory"),
    ],
)
def test_confined_code_cannot_have_too_much_in_all_its_processes_together(tmp_path, monkeypatch, what, told):
    store = doing(tmp_path, what)
    monkeypatch.setenv("HOSTILE_NOW", "1")
    monkeypatch.setattr("ccfs.runs.host._MEMORY", 4 << 30)
    report = audit(store, replay=1)
    assert report.faults == ()
    assert re.search(rf"it took more than {told} and was stopped\.", report.unchecked[0])
    assert ends(host_of(store, store.protocol())._child.pid)


def is_alive(group):
    """Return whether a group of processes has a member that has not ended."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


def ends(group):
    """Return whether all of a group end. Whatever was killed may take a moment to vanish."""
    deadline = time.monotonic() + 20.0
    while is_alive(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(group)


@LINUX
def test_confined_processes_end_with_the_first_of_them(tmp_path, monkeypatch):
    """Else nobody would watch the others any more."""
    store = doing(tmp_path, "orphan")
    monkeypatch.setenv("HOSTILE_NOW", "1")
    begun = time.monotonic()
    report = audit(store, replay=1)
    assert "ended its process" in report.unchecked[0]
    assert ends(host_of(store, store.protocol())._child.pid)
    assert time.monotonic() - begun < 40.0


KILLED = """
import sys, time
from pathlib import Path
from ccfs.runs.host import host_of
from ccfs.runs.reader import RunReader
from ccfs.runs.store import Store, Trust
store = Store(Path(sys.argv[1]), trust=Trust.CONFINED)
protocol = store.protocol()
host = host_of(store, protocol)
print(host._child.pid, host.scratch, flush=True)
batch = RunReader(store, protocol).batches(protocol.arms[0], None)[0]
host.replay(batch, batch.trials[0])
"""


@LINUX
def test_confined_processes_end_with_a_killed_audit(tmp_path, monkeypatch):
    """Those too that the child started. The system tells only the first one that its parent has ended."""
    store = doing(tmp_path, "multiply_a_little")
    monkeypatch.setenv("HOSTILE_NOW", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support"))
    program = [sys.executable, "-c", KILLED, str(store.root)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as audited:
        group, scratch = audited.stdout.readline().split()
        deadline = time.monotonic() + 60.0
        while not (Path(scratch) / "many").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        audited.kill()
    assert (Path(scratch) / "many").exists()
    assert ends(int(group))
    shutil.rmtree(scratch)


@LINUX
@pytest.mark.parametrize("what", ["nest", "close_off"])
def test_folder_of_confined_code_is_removed_whatever_is_in_it(tmp_path, monkeypatch, what):
    store = doing(tmp_path, what)
    monkeypatch.setenv("HOSTILE_NOW", "1")
    report = audit(store, replay=1)
    assert report.faults or report.unchecked
    host = host_of(store, store.protocol())
    host.close()
    assert not host.scratch.exists()


def test_confined_code_that_ends_its_process_is_a_sentence(tmp_path, monkeypatch):
    store = doing(tmp_path, "leave")
    monkeypatch.setenv("HOSTILE_NOW", "1")
    report = audit(store, replay=1)
    assert report.faults == ()
    assert "ended its process" in report.unchecked[0]
    assert call("audit", store.root, "--trust").exit_code == 3


def test_confined_code_that_writes_into_the_answers_is_no_answer(tmp_path, monkeypatch):
    store = doing(tmp_path, "answer")
    monkeypatch.setenv("HOSTILE_NOW", "1")
    report = audit(store, replay=1)
    assert report.replayed == 0
    assert report.unchecked or report.faults


def test_confined_code_that_prints_does_not_disturb(tmp_path, monkeypatch):
    store = doing(tmp_path, "talk")
    monkeypatch.setenv("HOSTILE_NOW", "1")
    assert audit(store, replay=2).replayed == 2


def test_child_leaves_no_process_and_no_folder_behind(root):
    store = Store(root, trust=Trust.CONFINED)
    host = ChildHost(store, store.protocol())
    pid, scratch = host._child.pid, host.scratch
    assert host.controllers(["steer"]).keys() == {"steer"}
    host.close()
    assert not scratch.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_child_gives_what_this_process_gives(made):
    here, there = Store(made, trust=Trust.HERE), Store(made, trust=Trust.CONFINED)
    made_here, made_there = (host_of(store, store.protocol()) for store in (here, there))
    assert isinstance(made_here, HereHost)
    assert isinstance(made_there, ChildHost)
    assert host_of(there, there.protocol()) is made_there
    protocol_here = here.protocol()
    for attack in (None, *protocol_here.attacks):
        batch = RunReader(here, protocol_here).batches(protocol_here.arms[0], attack)[1]
        assert made_here.replay(batch, batch.trials[2]) == made_there.replay(batch, batch.trials[2])
        assert judged_here(here, protocol_here, batch, ["safe"]) == made_there.judge(batch, ["safe"])
    assert made_here.controllers(["steer"]) == made_there.controllers(["steer"])
    if sys.platform == "linux":
        assert made_there.free == ()


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"judgements": []},
        {"judgements": {}},
        {"judgements": {"safe": [[True, False]]}},
        {"judgements": {"safe": [True, True, True, True]}},
        {"judgements": {"safe": [[1, 0]] * 4}},
        {"judgements": {"safe": [[True]] * 4}},
    ],
)
def test_child_is_not_believed(made, monkeypatch, told):
    store = Store(made, trust=Trust.CONFINED)
    host = host_of(store, store.protocol())
    monkeypatch.setattr(ChildHost, "ask", lambda self, question: (told, ()))
    batch = RunReader(store, store.protocol()).batches(store.protocol().arms[0], None)[0]
    with pytest.raises(HostError):
        host.judge(batch, ["safe"])
    with pytest.raises(HostError, match="must give 2 tables, got 0"):
        host.replay(batch, 0)
    with pytest.raises(HostError):
        host.controllers(["steer"])


def test_messages_refuse_what_is_too_long_cut_or_none():
    out = io.BytesIO()
    send(out, {"a": 1}, b"xyz", b"")
    whole = out.getvalue()
    assert receive(io.BytesIO(whole), 100) == ({"a": 1, "blobs": [3, 0]}, (b"xyz", b""))
    for content in (whole[:-1], whole[:3], b""):
        with pytest.raises(EOFError):
            receive(io.BytesIO(content), 100)
    with pytest.raises(ValueError, match="it sent"):
        receive(io.BytesIO(whole), 2)
    for head in (b"[]", b'{"blobs": [-1]}', b'{"blobs": [true]}', b"{}", b'{"blobs": 3}'):
        with pytest.raises(ValueError, match="it sent no message"):
            receive(io.BytesIO(len(head).to_bytes(4, "big") + head), 100)
    deep = b"[" * 100_000
    with pytest.raises(ValueError, match="it sent no message"):
        receive(io.BytesIO(len(deep).to_bytes(4, "big") + deep), 1 << 20)
    with pytest.raises(ValueError, match="it sent 17,825,792 bytes"):
        receive(io.BytesIO((17 << 20).to_bytes(4, "big")), 1 << 30)


@pytest.mark.parametrize(
    ("old", "new", "places"),
    [
        ('make = "steering"\narguments = { gain = 0.2 }', 'make = "numpy-actor"\narguments = { path = "a.npz" }', 1),
        ('make = "steering"\narguments = { gain = 0.2 }', 'make = "sb3"\narguments = { path_or_model = "a" }', 1),
        ('make = "steering"\narguments = { gain = 0.2 }', 'make = "zoo"\narguments = { name = "../a" }', 1),
        ('make = "steering"\narguments = { gain = 0.2 }', 'make = "zoo"\narguments = { name = "ppolag" }', 0),
        (CORRIDOR, 'make = "gymnasium"\narguments = { id = "CartPole-v1" }', 0),
        (CORRIDOR, 'make = "gymnasium"\narguments = { id = "os:CartPole-v1" }', 1),
        (CORRIDOR, 'make = "gymnasium"\narguments = { id = "X-v0", xml_file = "/x" }', 1),
        (CORRIDOR, 'make = "safety-gymnasium"\narguments = { env_id = "SafetyPointGoal2-v0" }', 0),
        (CORRIDOR, 'make = "safety-gymnasium"\narguments = { env_id = "X", config = { a = 1 } }', 1),
        ('rule = "constant"\nbudget = 0.1\narguments = { direction = [1.0] }', 'rule = "os:system"\nbudget = 1', 1),
        ('make = "box", arguments = { low = [-0.5], high = [0.5] }', 'make = "os:system"', 1),
        ('event = "no-cost-until-goal"', 'event = "no-abstention"', 0),
    ],
)  # fmt: skip
def test_parts_that_open_what_the_protocol_names_need_trust(tmp_path, old, new, places):
    made = protocol(tmp_path, x=(old, new))
    assert len(foreign_parts(made)) == places
    assert foreign_parts(protocol(tmp_path)) == ()


def test_audit_replays_what_needs_no_trust(tmp_path):
    """Only the attack is a stranger's, so the nominal trials replay."""
    rule = (
        'rule = "constant"\nbudget = 0.1\narguments = { direction = [1.0] }',
        'rule = "attacking:Push"\nbudget = 0.1',
    )
    (tmp_path / "attacking.py").write_text(
        "from ccfs.attacks.rules import NoShift\n\n\nclass Push(NoShift):\n    pass\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        store = run(protocol(tmp_path, trials=4, x=rule), tmp_path / "run", serial_engine(), where="p")
    finally:
        sys.path.remove(str(tmp_path))
    certify(store)
    report = audit(Store(store.root), replay=None)
    assert (report.faults, report.replayed) == ((), 8)
    assert report.unchecked == ("whether 8 of 16 trajectories replay.",)
    made = store.protocol()
    attacked = RunReader(store, made).batches(made.arms[0], made.attacks[0])[0]
    assert "attacks.push" in places_of(made, attacked)


def test_run_certifies_an_own_event_at_its_end_and_asks_later(tmp_path):
    (tmp_path / "p.toml").write_text(text(trials=8, x=EVENT))
    result = call("run", tmp_path / "p.toml", "-o", tmp_path / "run", "--workers", 1)
    assert result.exit_code == 0, result.output
    assert call("certify", tmp_path / "run").exit_code == 2
    with pytest.raises(UntrustedError):
        certify(Store(tmp_path / "run"))
    assert certify(Store(tmp_path / "run", trust=Trust.CONFINED))
