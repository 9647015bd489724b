from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from toy_protocol import contents, protocol

from ccfs.audit import audit
from ccfs.executors import serial_engine
from ccfs.rollouts import run
from ccfs.sources import own_digest, reference_digest
from ccfs.store import RunError, Store

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
ASK = "import sys; from ccfs.sources import reference_digest as d; print(*(d(name) for name in sys.argv[1:]))"


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


def test_sources_digest_changes_with_every_module_behind_a_reference_and_with_no_other(tmp_path):
    write(tmp_path, PACKAGE | FILES)
    before = digests(tmp_path, "mine.parts:make", "alone:make")
    write(tmp_path, {"stranger.py": "raise SystemExit(1)\n", "broken.py": "print 'still not'\n"})
    assert digests(tmp_path, "mine.parts:make", "alone:make") == before
    write(tmp_path, {"mine/deep/number.py": "VALUE = 3\n", "further/inner.py": "TWO = 3\n"})
    after = digests(tmp_path, "mine.parts:make", "alone:make")
    assert after[0] != before[0]
    assert after[1] != before[1]


def test_sources_digest_does_not_depend_on_where_the_files_lie(tmp_path):
    for name in ("here", "there"):
        write(tmp_path / name, PACKAGE | FILES)
    assert digests(tmp_path / "here", "mine.parts:make", "alone:make") == digests(
        tmp_path / "there", "mine.parts:make", "alone:make"
    )


def test_sources_of_ccfs_and_of_built_in_callables():
    assert len(own_digest()) == 64
    assert reference_digest("builtins:dict") == "built in"
    assert reference_digest("ccfs.envs.corridor:make") == "built in"  # own_digest holds it
    assert len(reference_digest("toys:Push")) == 64


def test_run_resumed_with_other_source_is_refused_in_one_line(tmp_path, monkeypatch):
    made = protocol(tmp_path)
    run(made, tmp_path / "run", serial_engine(), where="p")
    before = contents(tmp_path / "run")
    monkeypatch.setattr("ccfs.inputs.own_digest", lambda: "f" * 64)
    expected = rf"was begun with `sources` ccfs {own_digest()}, got f+\. Restore it to resume, or choose another run"
    with pytest.raises(RunError, match=expected) as caught:
        run(made, tmp_path / "run", serial_engine(), where="p")
    assert len(str(caught.value).splitlines()) == 1
    assert contents(tmp_path / "run") == before


def test_run_without_its_inputs_is_refused(tmp_path):
    made = protocol(tmp_path)
    run(made, tmp_path / "run", serial_engine(), where="p")
    (tmp_path / "run" / "inputs.json").unlink()
    (tmp_path / "run" / "manifest.json").unlink()
    with pytest.raises(RunError, match=r"has results but no inputs\.json, .* Restore inputs\.json to resume"):
        run(made, tmp_path / "run", serial_engine(), where="p")


def test_run_killed_between_protocol_and_inputs_resumes(tmp_path):
    made = protocol(tmp_path)
    run(made, tmp_path / "whole", serial_engine(), where="p")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "protocol.json").write_bytes((tmp_path / "whole" / "protocol.json").read_bytes())
    run(made, tmp_path / "run", serial_engine(), where="p")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_run_traces_do_not_depend_on_inputs_and_audit_only_notes_other_source(tmp_path, monkeypatch):
    made = protocol(tmp_path)
    run(made, tmp_path / "here", serial_engine(), where="p")
    with monkeypatch.context() as patch:
        patch.setattr("ccfs.inputs.own_digest", lambda: "f" * 64)
        store = run(made, tmp_path / "there", serial_engine(), where="p")
    here, there = contents(tmp_path / "here"), contents(tmp_path / "there")
    assert {name for name in here if here[name] != there[name]} == {"inputs.json", "manifest.json"}
    assert json.loads(there["inputs.json"])["sources"]["ccfs"] == "f" * 64
    for replay in (0, None):
        report = audit(Store(store.root), replay=replay)
        assert report.is_clean
        expected = "sources ccfs: " + "f" * 64 + f" when the run was made, {own_digest()} here: the code that audits"
        assert any(note.startswith(expected) for note in report.notes)
        assert not audit(Store(tmp_path / "here"), replay=replay).notes[1:]


def test_audit_of_a_run_whose_environment_is_not_here_is_no_crash(tmp_path, monkeypatch):
    change = (
        'make = "ccfs.envs.corridor:make"\narguments = { horizon = 6, post = 0.6 }',
        'make = "elsewhere:Priced"',
    )
    (tmp_path / "elsewhere.py").write_text("from toys import Priced\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        store = run(protocol(tmp_path, x=change), tmp_path / "run", serial_engine(), where="p")
    monkeypatch.delitem(sys.modules, "elsewhere")
    reference_digest.cache_clear()
    assert audit(store, replay=0).is_clean
    with pytest.raises(ValueError, match="must name something that can be imported, got 'elsewhere:Priced'"):
        audit(store, replay=1)


def test_run_resumed_with_another_file_that_an_argument_names_is_refused(tmp_path, monkeypatch):
    (tmp_path / "reader.py").write_text(
        "import pathlib\nfrom ccfs.components import BoxVerifier\n"
        "def read(path):\n"
        "    limit = float(pathlib.Path(path).read_text())\n"
        "    return BoxVerifier(low=[-limit], high=[limit])\n"
    )
    (tmp_path / "limit.txt").write_text("0.5")
    monkeypatch.syspath_prepend(tmp_path)
    old = '"ccfs.components:BoxVerifier", arguments = { low = [-0.5], high = [0.5] }'
    made = protocol(tmp_path, x=(old, f'"reader:read", arguments = {{ path = "{tmp_path}/limit.txt" }}'))
    store = run(made, tmp_path / "run", serial_engine(), where="p")
    assert f"file {tmp_path}/limit.txt" in store.read_json("inputs.json")["sources"]
    run(made, tmp_path / "run", serial_engine(), where="p")
    (tmp_path / "limit.txt").write_text("0.4")
    with pytest.raises(RunError, match=r"was begun with `sources` file .*limit\.txt"):
        run(made, tmp_path / "run", serial_engine(), where="p")
