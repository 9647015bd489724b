from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from toy_protocol import contents, protocol

from ccfs.audit.run import audit
from ccfs.files.imports import closure, files_behind
from ccfs.runs.build import part_targets
from ccfs.runs.executors import serial_engine
from ccfs.runs.provenance import _code_tables_once, code_tables
from ccfs.runs.run import run
from ccfs.runs.store import RunError, Store

pytestmark = pytest.mark.slow
PACKAGE = {
    "mine/__init__.py": "",
    "mine/parts.py": "from mine.deep import number\n\ndef make():\n    return number.VALUE\n",
    "mine/deep/__init__.py": "",
    "mine/deep/number.py": "VALUE = 1\n",
}
FILES = {
    "alone.py": "import helper\n\ndef make():\n    return helper.two()\n",
    "helper.py": "def two():\n    from further import inner\n    return inner.TWO\n",
    "further/__init__.py": "",
    "further/inner.py": "TWO = 2\n",
    "stranger.py": "raise SystemExit\n",
    "broken.py": "print 'not Python 3'\n",
}
ASK = """
import sys
from ccfs.runs.provenance import code_tables
print(*code_tables(tuple((name, (name,)) for name in sys.argv[1:]))["parts"].values())
assert not {"mine", "mine.parts", "alone", "helper"} & set(sys.modules)
"""


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def digests(folder, *references):
    """Digests as a fresh process sees them."""
    path = os.pathsep.join((str(folder), os.environ["PYTHONPATH"]))
    command = [sys.executable, "-B", "-c", ASK, *references]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_code_digest_changes_with_every_module_behind_a_reference_and_with_no_other(tmp_path):
    write(tmp_path, PACKAGE | FILES)
    before = digests(tmp_path, "mine.parts:make", "alone:make")
    write(tmp_path, {"stranger.py": "raise SystemExit(1)\n", "broken.py": "print 'still not'\n"})
    assert digests(tmp_path, "mine.parts:make", "alone:make") == before
    write(tmp_path, {"mine/deep/number.py": "VALUE = 3\n", "further/inner.py": "TWO = 3\n"})
    after = digests(tmp_path, "mine.parts:make", "alone:make")
    assert after[0] != before[0]
    assert after[1] != before[1]


def test_code_digest_does_not_depend_on_where_the_files_lie(tmp_path):
    for name in ("here", "there"):
        write(tmp_path / name, PACKAGE | FILES)
    assert digests(tmp_path / "here", "mine.parts:make", "alone:make") == digests(
        tmp_path / "there", "mine.parts:make", "alone:make"
    )


def parts(*names):
    return list(code_tables(tuple((name, (name,)) for name in names))["parts"].values())


def test_code_of_built_in_absent_shipped_and_own_callables():
    built_in, absent, shipped, own = parts("builtins:dict", "nowhere:make", "ccfs.envs.toys.corridor:make", "toys:Push")
    assert (built_in, absent) == ("built in", "not here")
    assert len(shipped) == len(own) == 64
    assert shipped == parts("ccfs.envs.toys.corridor:make_steering")[0]


def test_code_of_a_callable_includes_the_module_that_it_comes_from(tmp_path, monkeypatch):
    write(tmp_path / "here", {"front.py": "from behind import make as give\n"})
    write(tmp_path / "there", {"behind.py": "def make():\n    return 1\n"})
    for folder in ("here", "there"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    assert set(files_behind("front:give", "ccfs")) == {"front.py", "behind.py"}
    assert set(files_behind("ccfs:BoxVerifier", "ccfs")) == {"ccfs/__init__.py", "ccfs/runtime/components.py"}
    assert set(files_behind("ccfs.envs:make", "ccfs")) == {"ccfs/envs/__init__.py", "ccfs/envs/registration.py"}


def test_code_behind_a_callable_follows_imports_to_whatever_is_not_installed(tmp_path, monkeypatch):
    write(tmp_path / "here", {"start.py": "def make():\n    import shared.deep\n    import numpy, json\n"})
    write(
        tmp_path / "there", {"shared/__init__.py": "", "shared/deep.py": "from .rest import x\n", "shared/rest.py": ""}
    )
    write(tmp_path / "site-packages", {"single.py": "import start\n", "library/__init__.py": "", "library/a.py": ""})
    for folder in ("here", "there", "site-packages"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    shared = {"shared/__init__.py", "shared/deep.py", "shared/rest.py"}
    assert set(files_behind("start:make", "ccfs")) == {"start.py", *shared}
    assert set(files_behind("single:x", "ccfs")) == {"single.py"}
    assert files_behind("library.a:x", "ccfs") == {"library": tmp_path / "site-packages" / "library"}
    before = parts("library.a:x")
    (tmp_path / "site-packages" / "library" / "a.py").write_text("# another release\n")
    assert parts("library.a:x") != before
    monkeypatch.setattr("ccfs.files.imports._MOST_FILES", 2)  # now the shared package is a library
    assert set(files_behind("start:make", "ccfs")) == {"start.py", *shared}
    (tmp_path / "there" / "shared" / "unused.py").write_text("")
    assert set(files_behind("start:make", "ccfs")) == {"start.py", *shared}


# A policy becomes a controller in `controllers/intake.py`, so that its answers depend on that room too.
ROOMS = {"certificates", "files", "runtime", "attacks", "protocol", "runs", "controllers"}


def test_own_code_is_what_a_trial_depends_on_and_no_page():
    found = {name.partition(".")[2] for name in closure(["ccfs.runs.batches"], "ccfs")}
    assert {name.partition(".")[0] for name in found} == ROOMS
    assert {f"runtime.{name}" for name in ("wrapper", "selector", "program", "streams", "environment")} <= found
    assert {f"runs.{name}" for name in ("batches", "build", "trial", "trace", "events", "provenance")} <= found
    assert {"attacks.ledger", "protocol.registry", "files.code", "files.imports", "certificates.schedule"} <= found


def test_own_code_includes_what_a_protocol_names_by_short_name_and_lazily(tmp_path):
    small, whole = (
        closure(["ccfs.runs.batches"], "ccfs"),
        closure(["ccfs.runs.batches", "ccfs.envs.registration"], "ccfs"),
    )
    assert "ccfs.envs.safety.fast" not in small  # registration imports it in a function, by its written name
    assert {"ccfs.envs.safety.fast", "ccfs.envs.safety.lidar", "ccfs.envs.safety.selftest"} <= set(whole)
    targets = part_targets(protocol(tmp_path))
    assert targets["attacks.push"] == ("ccfs.attacks.rules:ConstantShift",)
    assert targets["events.safe"] == ("ccfs.runs.events:NoCostUntilGoal",)
    assert {place: len(digest) for place, digest in code_tables(tuple(targets.items()))["parts"].items()} == {
        "environment": 64,
        "controllers.steer": 64,
        "program.verifier": 64,
        "program.fallbacks.center": 64,
        "attacks.push": 64,
        "events.safe": 64,
    }
    modules = {name.partition(":")[0] for names in targets.values() for name in names}
    named = closure(["ccfs.runs.batches", *modules], "ccfs")
    assert {"ccfs.attacks.rules", "ccfs.envs.toys.corridor", "ccfs.runtime.components", "ccfs.runs.events"} <= set(
        named
    )


def test_own_code_includes_what_own_code_of_the_user_imports(tmp_path, monkeypatch):
    write(
        tmp_path,
        {"careful.py": "def make():\n    from ccfs import BoxVerifier\n    from ccfs.envs.safety import lidar_box\n"},
    )
    found = closure(["ccfs.runs.batches"], "ccfs", users=[tmp_path / "careful.py"])
    assert {"ccfs.runtime.components", "ccfs.envs.safety.lidar_box"} <= set(found)
    monkeypatch.syspath_prepend(tmp_path)
    plain, careful = (
        code_tables((("program.verifier", (name,)),))["code"]["ccfs"] for name in ("toys:x", "careful:make")
    )
    assert plain != careful


def other_own_digest(*given):
    return "f" * 64


@pytest.fixture(autouse=True)
def _fresh_code():
    """Forget what this process has read of code, as a new one would."""
    _code_tables_once.cache_clear()
    yield
    _code_tables_once.cache_clear()


def test_run_resumed_with_other_source_is_refused_in_one_line(tmp_path, monkeypatch):
    made = protocol(tmp_path)
    run(made, tmp_path / "run", serial_engine(), where="p")
    before = contents(tmp_path / "run")
    monkeypatch.setattr("ccfs.runs.provenance.own_digest", other_own_digest)
    _code_tables_once.cache_clear()
    digest = json.loads(before["provenance.json"])["code"]["ccfs"]
    expected = rf"was begun with `code` ccfs {digest}, got f+\. Restore it to resume, or choose another run"
    with pytest.raises(RunError, match=expected) as caught:
        run(made, tmp_path / "run", serial_engine(), where="p")
    assert len(str(caught.value).splitlines()) == 1
    assert contents(tmp_path / "run") == before


def test_run_without_its_provenance_is_refused(tmp_path):
    made = protocol(tmp_path)
    run(made, tmp_path / "run", serial_engine(), where="p")
    (tmp_path / "run" / "provenance.json").unlink()
    (tmp_path / "run" / "manifest.json").unlink()
    with pytest.raises(RunError, match=r"has results but no provenance\.json, .* Restore provenance\.json to resume"):
        run(made, tmp_path / "run", serial_engine(), where="p")


def test_run_killed_between_protocol_and_provenance_resumes(tmp_path):
    made = protocol(tmp_path)
    run(made, tmp_path / "whole", serial_engine(), where="p")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "protocol.json").write_bytes((tmp_path / "whole" / "protocol.json").read_bytes())
    run(made, tmp_path / "run", serial_engine(), where="p")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_run_traces_do_not_depend_on_provenance_and_audit_only_notes_other_source(tmp_path, monkeypatch):
    made = protocol(tmp_path)
    run(made, tmp_path / "here", serial_engine(), where="p")
    with monkeypatch.context() as patch:
        patch.setattr("ccfs.runs.provenance.own_digest", other_own_digest)
        _code_tables_once.cache_clear()
        store = run(made, tmp_path / "there", serial_engine(), where="p")
    here, there = contents(tmp_path / "here"), contents(tmp_path / "there")
    assert {name for name in here if here[name] != there[name]} == {"provenance.json", "manifest.json"}
    assert json.loads(there["provenance.json"])["code"]["ccfs"] == "f" * 64
    digest = json.loads(here["provenance.json"])["code"]["ccfs"]
    for replay in (0, None):
        report = audit(Store(store.root), replay=replay)
        assert report.is_clean
        expected = "code ccfs: " + "f" * 64 + f" when the run was made, {digest} here. The code that audits"
        assert any(note.startswith(expected) for note in report.notes)
        assert not audit(Store(tmp_path / "here"), replay=replay).notes[1:]


def test_audit_of_a_run_whose_environment_is_not_here_is_no_crash(tmp_path, monkeypatch):
    change = (
        'make = "corridor"\narguments = { horizon = 6, post = 0.6 }',
        'make = "elsewhere:Priced"',
    )
    (tmp_path / "elsewhere.py").write_text("from toys import Priced\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        store = run(protocol(tmp_path, x=change), tmp_path / "run", serial_engine(), where="p")
    monkeypatch.delitem(sys.modules, "elsewhere")
    assert audit(store, replay=0).is_clean
    report = audit(store, replay=1)
    assert (report.faults, report.replayed) == ((), 0)
    assert "must name something that can be imported, got 'elsewhere:Priced'" in report.unchecked[0]
    assert "elsewhere:Priced(), which is not found here: give its folder with --modules" in report.would_run[0]


def test_run_resumed_with_another_file_that_an_argument_names_is_refused(tmp_path, monkeypatch):
    (tmp_path / "reader.py").write_text(
        "import pathlib\nfrom ccfs.runtime.components import BoxVerifier\n"
        "def read(path):\n"
        "    limit = float(pathlib.Path(path).read_text())\n"
        "    return BoxVerifier(low=[-limit], high=[limit])\n"
    )
    (tmp_path / "limit.txt").write_text("0.5")
    monkeypatch.syspath_prepend(tmp_path)
    old = '"box", arguments = { low = [-0.5], high = [0.5] }'
    made = protocol(tmp_path, x=(old, f'"reader:read", arguments = {{ path = "{tmp_path}/limit.txt" }}'))
    store = run(made, tmp_path / "run", serial_engine(), where="p")
    assert f"{tmp_path}/limit.txt" in store.read_json("provenance.json")["files"]
    run(made, tmp_path / "run", serial_engine(), where="p")
    (tmp_path / "limit.txt").write_text("0.4")
    with pytest.raises(RunError, match=r"was begun with `files` .*limit\.txt"):
        run(made, tmp_path / "run", serial_engine(), where="p")
