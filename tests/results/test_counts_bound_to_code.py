"""Counts are bound to code: an event that is edited after its run counts nothing any more."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from toy_protocol import contents, protocol, text
from typer.testing import CliRunner

from ccfs.audit.run import audit
from ccfs.certificates.trajectory import CertificateError
from ccfs.cli.main import app
from ccfs.files.digests import file_digest
from ccfs.files.imports import module_file
from ccfs.results.certificate import RunCertificate
from ccfs.runs import provenance
from ccfs.runs.build import part_targets
from ccfs.runs.manifest import write_manifest
from ccfs.runs.provenance import _code_tables_once, changed_events, code_tables
from ccfs.runs.store import Store

pytestmark = pytest.mark.slow
EVENT = '''"""The event of this test."""

from own_limits import limit


class Quiet:
    """Hold where the total cost is small."""

    def holds(self, trace):
        """Return whether the cost is small."""
        return bool((trace.cost <= limit()).all())  # a missing cost is NaN
'''
LIMITS = "def limit():\n    return 0.0\n"
PLAIN = ('event = "no-cost-until-goal"', 'event = "own_event:Quiet"')
NESTED = (
    'event = "no-cost-until-goal"',
    'event = "all-of"\n[[events.events]]\nname = "a"\nevent = "no-abstention"\n'
    '[[events.events]]\nname = "b"\nevent = "own_event:Quiet"',
)
CERTIFICATE = "certificates/steer/one/safe.json"
EDITS = {
    "event": ("own_event.py", EVENT.replace("return bool((trace.cost <= limit()).all())", "return True")),
    "helper": ("own_limits.py", LIMITS.replace("0.0", "9.0")),
}
AFTER_RUN = ("certify", "table", "costs", "report", "audit")


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folder with the code of an own event and, for each protocol, a run of it: certified and not."""
    folder = tmp_path_factory.mktemp("bound")
    (folder / "own_event.py").write_text(EVENT)
    (folder / "own_limits.py").write_text(LIMITS)
    sys.path.insert(0, str(folder))
    _code_tables_once.cache_clear()
    for name, change in (("plain", PLAIN), ("nested", NESTED)):
        (folder / f"{name}.toml").write_text(text(trials=8, event=change))
        result = call("run", folder / f"{name}.toml", "-o", folder / name, "--workers", 1)
        assert result.exit_code in (0, 1), result.output
    yield folder
    sys.path.remove(str(folder))
    for module in ("own_event", "own_limits"):
        sys.modules.pop(module, None)
    _code_tables_once.cache_clear()


@pytest.fixture
def folder(made, tmp_path):
    """The folder as made, whatever a test writes there."""
    yield made
    (made / "own_event.py").write_text(EVENT)
    (made / "own_limits.py").write_text(LIMITS)


def copied(folder, name, tmp_path, *, is_certified):
    store = Store(shutil.copytree(folder / name, tmp_path / name).resolve())
    if not is_certified:
        shutil.rmtree(store.root / "certificates")
        write_manifest(store, store.protocol())
    return store


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("name", ["plain", "nested"])
@pytest.mark.parametrize("is_certified", [False, True])
def test_every_command_refuses_an_event_edited_after_the_run_and_names_the_file(
    folder, tmp_path, edit, name, is_certified
):
    store = copied(folder, name, tmp_path, is_certified=is_certified)
    before = contents(store.root)
    file, content = EDITS[edit]
    (folder / file).write_text(content)
    commands = [(command, store.root) for command in AFTER_RUN]
    commands.append(("audit", store.root, "--replay", 0))
    if is_certified:
        commands.append(("verify", store.path(CERTIFICATE), "--run", store.root))
    for command in commands:
        result = call(*command)
        assert result.exit_code == (1 if command[0] in ("verify", "audit") else 2), (command, result.output)
        assert "the event 'safe' is not the one" in result.output, command
        assert f"{folder / file} was changed since." in result.output, command
    assert contents(store.root) == before


@pytest.mark.parametrize("name", ["plain", "nested"])
def test_every_command_accepts_the_event_as_it_was_and_with_other_comments(folder, tmp_path, name):
    store = copied(folder, name, tmp_path, is_certified=True)
    mended = EVENT.replace("The event of this test.", "The event, mended.").replace("# a missing", "# An absent")
    (folder / "own_event.py").write_text(
        "# new\n\n" + mended.replace('        """Return whether the cost is small."""\n', "")
    )
    for command in ("table", "costs", "report", "certify", "audit"):
        result = call(command, store.root)
        assert result.exit_code == 0 or (command == "certify" and "not certified" in result.output), result.output
    assert audit(store, replay=None).is_clean


def test_edited_event_is_refused_in_a_fresh_process_where_it_would_be_loaded(folder, tmp_path):
    """The path that was open: the edited event would have counted every trial."""
    store = copied(folder, "plain", tmp_path, is_certified=True)
    (folder / "own_event.py").write_text(EDITS["event"][1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))}
    resume = ("run", str(folder / "plain.toml"), "-o", str(store.root), "--workers", "1")
    for command in (("certify", str(store.root)), resume):
        done = subprocess.run(
            [sys.executable, "-B", "-m", "ccfs", *command], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stderr
        assert "own_event.py" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_event_that_names_a_file_is_bound_to_its_content(made, tmp_path, monkeypatch):
    (tmp_path / "filed_event.py").write_text(
        "from pathlib import Path\n\n\nclass Filed:\n    def __init__(self, path):\n"
        "        self.limit = float(Path(path).read_text())\n\n"
        "    def holds(self, trace):\n        return bool((trace.cost <= self.limit).all())\n"
    )
    (tmp_path / "limit.txt").write_text("0.0")
    monkeypatch.syspath_prepend(tmp_path)
    change = (PLAIN[0], f'event = "filed_event:Filed"\narguments = {{ path = "{tmp_path}/limit.txt" }}')
    (tmp_path / "p.toml").write_text(text(trials=8, event=change))
    assert call("run", tmp_path / "p.toml", "-o", tmp_path / "run", "--workers", 1).exit_code in (0, 1)
    (tmp_path / "limit.txt").write_text("9.0")
    result = call("certify", tmp_path / "run")
    assert (result.exit_code, f"{tmp_path}/limit.txt was changed since." in result.output) == (2, True)


def test_certificate_carries_the_digests_of_its_parts(folder):
    store = Store(folder / "plain")
    record = store.read_json("provenance.json")
    document = RunCertificate.from_bytes(store.read(CERTIFICATE), where="c")
    assert document.provenance.ccfs == record["code"]["ccfs"]
    assert document.provenance.parts == record["parts"]
    assert set(record["parts"]) == {
        "environment",
        "controllers.steer",
        "program.verifier",
        "program.fallbacks.center",
        "attacks.push",
        "events.safe",
    }
    content = json.loads(store.read(CERTIFICATE))
    del content["provenance"]["parts"]["events.safe"]
    changed = json.dumps(content, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    with pytest.raises(CertificateError, match="has no digest of the code of its event 'safe'"):
        RunCertificate.from_bytes(changed, where="c")


@pytest.mark.parametrize("change", [lambda r: r.pop("parts"), lambda r: r["parts"].pop("events.safe")])
def test_run_whose_provenance_does_not_tell_the_event_is_refused(folder, tmp_path, change):
    store = copied(folder, "plain", tmp_path, is_certified=True)
    record = store.read_json("provenance.json")
    change(record)
    store.write_json("provenance.json", record)
    write_manifest(store, store.protocol())
    for command in AFTER_RUN:
        assert call(command, store.root).exit_code == (1 if command == "audit" else 2)


def test_shipped_event_is_bound_to_its_code_too(folder, tmp_path, monkeypatch):
    (tmp_path / "p.toml").write_text(text(trials=8))
    assert call("run", tmp_path / "p.toml", "-o", tmp_path / "run", "--workers", 1).exit_code in (0, 1)
    record = json.loads((tmp_path / "run" / "provenance.json").read_text())
    assert {"ccfs/runs/events.py", "ccfs/runs/trace.py", "ccfs/files/parquet.py"} <= record["code"].keys()
    from ccfs.files import imports

    other = tmp_path / "events.py"
    other.write_text(imports.module_file("ccfs.runs.events").read_text().replace("<= 0.0", "<= 9.0"))
    found = imports.module_file
    monkeypatch.setattr(imports, "module_file", lambda name: other if name == "ccfs.runs.events" else found(name))
    result = call("certify", tmp_path / "run")
    assert (result.exit_code, f"{other} was changed since." in result.output) == (2, True)


@pytest.mark.parametrize("module", ["trace", "events", "reader", "record", "counting"])
def test_every_command_refuses_a_change_of_our_own_code_that_counts(folder, tmp_path, monkeypatch, module):
    store = copied(folder, "plain", tmp_path, is_certified=True)
    found = provenance.module_file(f"ccfs.runs.{module}")
    edited = tmp_path / f"{module}.py"
    edited.write_text(found.read_text(encoding="utf-8") + "\nEDITED = True\n", encoding="utf-8")
    monkeypatch.setattr(
        provenance, "module_file", lambda name: edited if name == f"ccfs.runs.{module}" else module_file(name)
    )
    for command in AFTER_RUN:
        result = call(command, store.root)
        assert result.exit_code == (1 if command == "audit" else 2), (command, result.output)
        assert f"{edited} was changed since." in result.output, command


def test_file_of_an_event_that_is_gone_is_a_change_and_no_file_of_a_shipped_event_is_read(tmp_path, monkeypatch):
    named = tmp_path / "limits.toml"
    named.write_text("limit = 0\n")
    own = ('event = "no-cost-until-goal"', f'event = "toys:Quiet"\narguments = {{ file = "{named}" }}')
    made = protocol(tmp_path, event=own)
    record = {**code_tables(tuple(part_targets(made).items())), "files": {str(named): file_digest(named)}}
    assert list(changed_events(made, record)) == []
    named.unlink()
    assert list(changed_events(made, record)) == [("safe", str(named))]
    named.write_text("limit = 0\n")
    assert list(changed_events(made, {**record, "files": {}})) == [("safe", str(named))]
    shipped = protocol(
        tmp_path,
        event=('event = "no-cost-until-goal"', f'event = "no-cost-until-goal"\narguments = {{ x = "{named}" }}'),
    )
    monkeypatch.setattr(provenance, "file_digest", lambda path: pytest.fail(f"{path} was read"))
    assert list(changed_events(shipped, code_tables(tuple(part_targets(shipped).items())))) == []


@pytest.mark.parametrize("call_of", ["import_module('profile')", "import_module(name='profile')"])
def test_helper_named_like_a_standard_module_and_imported_by_a_call_belongs_to_its_event(
    tmp_path, monkeypatch, call_of
):
    (tmp_path / "odd_event.py").write_text(f"from importlib import import_module\nHELPER = {call_of}\n")
    (tmp_path / "profile.py").write_text("LIMIT = 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "profile", raising=False)
    made = protocol(tmp_path, event=('event = "no-cost-until-goal"', 'event = "odd_event:Quiet"'))
    record = {**code_tables(tuple(part_targets(made).items())), "files": {}}
    assert list(changed_events(made, record)) == []
    (tmp_path / "profile.py").write_text("LIMIT = 9\n")
    assert list(changed_events(made, record)) == [("safe", str(tmp_path / "profile.py"))]


def test_event_that_could_count_from_an_archive_is_refused_and_one_that_is_not_here_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "zipped_event.py").write_text("class Quiet:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    made = protocol(tmp_path, event=('event = "no-cost-until-goal"', 'event = "zipped_event:Quiet"'))
    record = {**code_tables(tuple(part_targets(made).items())), "files": {}}
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("zipped_event.py", "class Quiet:\n    holds = lambda self, trace: True\n")
    (tmp_path / "zipped_event.py").unlink()
    importlib.invalidate_caches()
    assert list(changed_events(made, record)) == []
    monkeypatch.syspath_prepend(tmp_path / "archive.zip")
    assert list(changed_events(made, record)) == [("safe", "zipped_event")]
