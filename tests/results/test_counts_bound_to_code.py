"""Counts are bound to code: an event that is edited after its run counts nothing any more."""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import re
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
from ccfs.files import imports
from ccfs.files.imports import module_file
from ccfs.protocol.model import ProtocolError, load_protocol
from ccfs.results.certificate import RunCertificate
from ccfs.runs import provenance
from ccfs.runs.build import build_event
from ccfs.runs.manifest import write_manifest
from ccfs.runs.provenance import _code_tables_once, changed_events, event_digest, refuse_other_events
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
    for command in (("table", "--trust"), ("costs",), ("report",), ("certify", "--trust"), ("audit", "--trust")):
        result = call(command[0], store.root, *command[1:])
        assert result.exit_code == 0 or ("certify" in command and "not certified" in result.output), result.output
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
    assert document.provenance.parts == {**record["parts"], "events.safe": event_digest(record["events"]["safe"])}
    assert set(record["parts"]) == {
        "environment",
        "controllers.steer",
        "program.verifier",
        "program.fallbacks.center",
        "attacks.push",
    }
    assert {"own_event.py", "own_limits.py", "ccfs/runs/counting.py"} <= record["events"]["safe"].keys()
    content = json.loads(store.read(CERTIFICATE))
    del content["provenance"]["parts"]["events.safe"]
    changed = json.dumps(content, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    with pytest.raises(CertificateError, match="has no digest of the code of its event 'safe'"):
        RunCertificate.from_bytes(changed, where="c")


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.pop("events"),
        lambda r: r["events"].pop("safe"),
        lambda r: r["events"]["safe"].pop("own_limits.py"),
        lambda r: r["events"]["safe"].clear(),
    ],
)
def test_run_whose_provenance_does_not_tell_the_event_is_refused(folder, tmp_path, change):
    store = copied(folder, "plain", tmp_path, is_certified=True)
    record = store.read_json("provenance.json")
    change(record)
    store.write_json("provenance.json", record)
    write_manifest(store, store.protocol())
    for command in AFTER_RUN:
        assert call(command, store.root).exit_code == (1 if command == "audit" else 2)


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Run a protocol with a shipped event, and give a function that counts it with another `events.py`."""
    (tmp_path / "p.toml").write_text(text(trials=8))
    assert call("run", tmp_path / "p.toml", "-o", tmp_path / "run", "--workers", 1).exit_code in (0, 1)
    source, edited = module_file("ccfs.runs.events").read_text(), tmp_path / "events.py"

    def certified_with(edit):
        edited.write_text(edit(source))
        assert edited.read_text() != source
        monkeypatch.setattr(
            provenance, "module_file", lambda name: edited if name == "ccfs.runs.events" else module_file(name)
        )
        return call("certify", tmp_path / "run")

    return certified_with


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(cost <= 0.0)", "(cost <= 9.0)"),  # what the event asks
        ("met[0]", "met[-1]"),  # a function that it calls
        ("trace.outcome is Outcome.NONFINITE)", "False)"),  # one that this function calls
        ("Outcome.ABSTAINED, ", ""),  # a constant of what counts every event
        ("return bool(verdict)", "return True"),
        ("math.fsum(trace.cost[:horizon])", "0.0"),  # what `ccfs costs` adds up, whatever the event
        ("from ccfs.runs.outcomes import Outcome", "from ccfs.runs.others import Outcome"),
        ("_BROKEN = ", "print('loaded')\n_BROKEN = "),
    ],
)
def test_shipped_event_is_bound_to_all_code_that_it_reaches(shipped, tmp_path, old, new):
    result = shipped(lambda source: source.replace(old, new))
    assert (result.exit_code, f"{tmp_path / 'events.py'} was changed since." in result.output) == (2, True)


def test_shipped_event_is_not_bound_to_the_events_beside_it(shipped):
    """An event can be added or mended, and runs with the others are still counted."""
    added = "\n\n@dataclass(frozen=True)\nclass Late:\n    def holds(self, trace):\n        return Enum is None\n"
    result = shipped(
        lambda source: (
            (
                source.replace(
                    "from typing import Protocol", "from enum import Enum\nfrom typing import ClassVar, Protocol"
                )
                .replace(
                    "total_cost(trace, self.horizon) <= self.limit", "total_cost(trace, self.horizon) < self.limit"
                )
                .replace('"AllOf",', '"AllOf",\n    "Late",')
            )
            + added
        )
    )
    assert result.exit_code in (0, 1), result.output
    assert "is not the one" not in result.output


@pytest.mark.parametrize("module", ["trace", "outcomes", "reader", "record", "counting"])
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
    record = recorded(made)
    assert list(changed_events(made, record)) == []
    named.write_text("limit = 9\n")
    assert list(changed_events(made, record)) == [("safe", f"{named} was changed since")]
    named.unlink()
    assert list(changed_events(made, record)) == [("safe", f"{named} is gone")]
    record = recorded(made)
    named.write_text("limit = 0\n")
    assert list(changed_events(made, record)) == [("safe", f"{named} was not seen to belong to it then")]
    shipped = protocol(
        tmp_path,
        event=('event = "no-cost-until-goal"', f'event = "no-cost-until-goal"\narguments = {{ x = "{named}" }}'),
    )
    monkeypatch.setattr(provenance, "file_digest", lambda path: pytest.fail(f"{path} was read"))
    assert list(changed_events(shipped, recorded(shipped))) == []


def recorded(made):
    """Return the part of a run's provenance that tells its events."""
    return {"events": provenance.provenance(made, {})["events"]}


def own_event(folder, reference, arguments="{}"):
    """Return a protocol with an event of the user's own."""
    return protocol(folder, event=('event = "no-cost-until-goal"', f'event = "{reference}"\narguments = {arguments}'))


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


QUIET = "class Quiet:\n    def holds(self, trace):\n        return True\n"


def test_event_is_bound_to_the_folder_that_an_argument_names(tmp_path):
    folder = tmp_path / "limits"
    write(folder, {"a/one.txt": "1", "two.txt": "2"})
    made = own_event(tmp_path, "toys:Quiet", f'{{ folder = "{folder}" }}')
    record = recorded(made)
    assert list(changed_events(made, record, are_made=True)) == []
    for change in ({"a/one.txt": "9"}, {"a/one.txt": "1", "a/new.txt": ""}):
        write(folder, change)
        assert list(changed_events(made, record, are_made=True)) == [("safe", f"{folder} was changed since")]
    assert list(changed_events(made, record)) == []  # nobody who only looks reads a folder that a stranger names
    (folder / "a" / "new.txt").unlink()
    (folder / "a" / "one.txt").rename(folder / "a" / "other.txt")
    assert list(changed_events(made, record, are_made=True)) == [("safe", f"{folder} was changed since")]
    shutil.rmtree(folder)
    assert list(changed_events(made, record)) == [("safe", f"{folder} is gone")]


def test_event_with_a_folder_too_large_to_read_at_every_count_is_refused(tmp_path, monkeypatch):
    write(tmp_path / "many", {f"{i}.txt": "" for i in range(4)})
    monkeypatch.setattr(provenance, "_MOST_FILES", 3)
    with pytest.raises(ProtocolError, match=r"`events.safe` must name folders of at most 3 files, got .*many"):
        recorded(own_event(tmp_path, "toys:Quiet", f'{{ folder = "{tmp_path / "many"}" }}'))


@pytest.mark.parametrize("call_of", ["import_module('profile')", "import_module(name='profile')"])
def test_helper_named_like_a_standard_module_and_imported_by_a_call_belongs_to_its_event(
    tmp_path, monkeypatch, call_of
):
    write(tmp_path, {"odd_event.py": f"from importlib import import_module\nHELPER = {call_of}\n"})
    write(tmp_path, {"profile.py": "LIMIT = 0\n"})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "profile", raising=False)
    made = own_event(tmp_path, "odd_event:Quiet")
    record = recorded(made)
    assert list(changed_events(made, record)) == []
    (tmp_path / "profile.py").write_text("LIMIT = 9\n")
    assert list(changed_events(made, record)) == [("safe", f"{tmp_path / 'profile.py'} was changed since")]


def test_helper_behind_a_link_and_compiled_modules_belong_to_their_event(tmp_path, monkeypatch):
    write(tmp_path, {"linked_event/__init__.py": QUIET, "elsewhere/helper.py": "LIMIT = 0\n"})
    write(tmp_path, {"linked_event/compiled.pyc": "no source\n", "linked_event/machine.so": "code\n"})
    (tmp_path / "linked_event" / "behind").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "linked_event" / "loop").symlink_to(tmp_path / "linked_event")
    monkeypatch.syspath_prepend(tmp_path)
    made = own_event(tmp_path, "linked_event:Quiet")
    record = recorded(made)
    assert list(changed_events(made, record)) == []
    for name in ("behind/helper.py", "compiled.pyc", "machine.so"):
        path = tmp_path / "linked_event" / name
        before = path.read_text()
        path.write_text("LIMIT = 9\n")
        assert list(changed_events(made, record)) == [("safe", f"{path} was changed since")]
        path.write_text(before)


def test_installed_package_outside_of_the_list_belongs_to_the_event_that_imports_it(tmp_path, monkeypatch):
    site = tmp_path / "site-packages"
    write(tmp_path, {"shaped_event.py": "import shapes, stray, numpy\nfrom shapes.round import x\n" + QUIET})
    write(site, {"shapes/__init__.py": "", "shapes/round.py": "x = 1\n", "stray.py": "LIMIT = 0\n"})
    metadata = "Metadata-Version: 2.1\nName: Shapes-Lib\nVersion: {}\n"
    write(
        site, {"shapes_lib.dist-info/METADATA": metadata.format("1.0"), "shapes_lib.dist-info/top_level.txt": "shapes"}
    )
    write(site, {"shapes_lib.dist-info/RECORD": "shapes/__init__.py,,\n"})
    for folder in (tmp_path, site):
        monkeypatch.syspath_prepend(folder)
    imports._providers.cache_clear()
    made = own_event(tmp_path, "shaped_event:Quiet")
    record = recorded(made)
    named = {name: value for name, value in record["events"]["safe"].items() if not name.startswith("ccfs/")}
    assert named.pop("package Shapes-Lib") == "1.0"
    assert named.keys() == {"shaped_event.py", "stray.py"}  # numpy stands in the table of packages
    assert list(changed_events(made, record)) == []
    write(site, {"shapes_lib.dist-info/METADATA": metadata.format("1.1"), "stray.py": "LIMIT = 9\n"})
    assert list(changed_events(made, record)) == [
        ("safe", f"{site / 'stray.py'} was changed since"),
        ("safe", "the package Shapes-Lib was changed since"),
    ]
    imports._providers.cache_clear()


def test_event_that_could_count_from_an_archive_is_refused_and_one_that_is_not_here_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "zipped_event.py").write_text("class Quiet:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    made = own_event(tmp_path, "zipped_event:Quiet")
    record = recorded(made)
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("zipped_event.py", "class Quiet:\n    holds = lambda self, trace: True\n")
    (tmp_path / "zipped_event.py").unlink()
    importlib.invalidate_caches()
    assert list(changed_events(made, record)) == []
    monkeypatch.syspath_prepend(tmp_path / "archive.zip")
    assert list(changed_events(made, record)) == [("safe", "zipped_event is not in a file any more")]


def test_event_that_loads_from_an_archive_is_refused_before_the_first_trial(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("packed_limits.py", "LIMIT = 0\n")
    write(
        tmp_path, {"packing_event.py": f"import sys\nsys.path.append('{tmp_path}/archive.zip')\nimport packed_limits\n"}
    )
    (tmp_path / "packing_event.py").write_text((tmp_path / "packing_event.py").read_text() + QUIET)
    monkeypatch.syspath_prepend(tmp_path)
    made = own_event(tmp_path, "packing_event:Quiet")
    build_event(made, made.events[0])
    with pytest.raises(ProtocolError, match=r"must load its code from files, got .*archive.zip/packed_limits.py"):
        recorded(made)
    for module in ("packing_event", "packed_limits"):
        monkeypatch.delitem(sys.modules, module)


HIDDEN = """
import sys
from importlib import import_module
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "library"))
import beside

early = import_module("ear" + "ly").LIMIT


class Quiet:
    def __init__(self, late="", since=0):
        self.late, self.since = late, since

    def holds(self, trace):
        late = import_module(self.late).LIMIT if self.late and trace.trial >= self.since else 0.0
        return bool((trace.cost <= beside.LIMIT + early + late).all())
"""


def in_a_fresh_process(folder, *command):
    path = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    return subprocess.run(
        [sys.executable, "-m", "ccfs", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    """A run whose event finds helpers through a search path of its own, one of them by a computed name."""
    folder = tmp_path_factory.mktemp("hidden")
    change = (PLAIN[0], 'event = "hidden_event:Quiet"')
    write(folder, {"hidden_event.py": HIDDEN, "p.toml": text(trials=8, event=change)})
    write(folder, {f"library/{name}.py": "LIMIT = 0.0\n" for name in ("beside", "early", "late")})
    done = in_a_fresh_process(folder, "run", "p.toml", "-o", "run", "--workers", "1")
    assert done.returncode in (0, 1), done.stderr
    return folder


def test_event_that_extends_the_search_path_is_counted_as_long_as_nothing_changes(hidden):
    record = json.loads((hidden / "run" / "provenance.json").read_text())
    assert {"hidden_event.py", "beside.py", "early.py"} <= record["events"]["safe"].keys()
    resumed = in_a_fresh_process(hidden, "run", "p.toml", "-o", "run", "--workers", "1")  # it certifies again
    assert resumed.returncode in (0, 1), resumed.stderr
    audited = in_a_fresh_process(hidden, "audit", "run", "--replay", "1", "--trust")
    assert audited.returncode == 0, audited.stdout


@pytest.mark.parametrize(
    ("name", "command"),
    [("beside", ("certify", "run", "--trust")), ("early", ("run", "p.toml", "-o", "run", "--workers", "1"))],
)
def test_helper_that_only_the_loaded_event_shows_is_bound_to_it(hidden, name, command):
    path = hidden / "library" / f"{name}.py"
    path.write_text("LIMIT = 9.0\n")
    try:
        done = in_a_fresh_process(hidden, *command)
        assert (done.returncode, f"{path} was changed since." in done.stderr) == (2, True), done.stderr
    finally:
        path.write_text("LIMIT = 0.0\n")


def test_helper_that_an_event_loads_when_it_is_first_asked_is_bound_to_it(hidden, tmp_path):
    change = (PLAIN[0], 'event = "hidden_event:Quiet"\narguments = { late = "late" }')
    (tmp_path / "p.toml").write_text(text(trials=8, event=change))
    begin = ("run", str(tmp_path / "p.toml"), "-o", str(tmp_path / "run"), "--workers", "1")
    audit = ("audit", str(tmp_path / "run"), "--replay", "1", "--trust")
    for command in (begin, begin, ("certify", str(tmp_path / "run"), "--trust"), audit):
        done = in_a_fresh_process(hidden, *command)
        assert done.returncode in (0, 1), done.stderr
    assert "late.py" in json.loads((tmp_path / "run" / "provenance.json").read_text())["events"]["safe"]
    path = hidden / "library" / "late.py"
    path.write_text("LIMIT = 9.0\n")
    try:
        for command in (begin, ("certify", str(tmp_path / "run"), "--trust")):
            done = in_a_fresh_process(hidden, *command)
            assert (done.returncode, f"{path} was changed since." in done.stderr) == (2, True), done.stderr
        assert in_a_fresh_process(hidden, *audit).returncode == 3
    finally:
        path.write_text("LIMIT = 0.0\n")


def test_helper_that_an_event_loads_unseen_while_it_counts_is_refused(hidden, tmp_path):
    change = (PLAIN[0], 'event = "hidden_event:Quiet"\narguments = { late = "late", since = 1 }')
    (tmp_path / "p.toml").write_text(text(trials=8, event=change))
    done = in_a_fresh_process(hidden, "run", str(tmp_path / "p.toml"), "-o", str(tmp_path / "run"), "--workers", "1")
    assert done.returncode == 2
    assert f"{hidden / 'library' / 'late.py'} was not seen to belong to it then." in done.stderr
    assert "must import its helpers by their names" in done.stderr
    assert not (tmp_path / "run" / "certificates").exists()


def test_event_is_made_from_its_source_whatever_its_cache_holds(tmp_path, monkeypatch):
    source = tmp_path / "cached_event.py"
    source.write_text("class Quiet:\n    def holds(self, trace):\n        return False\n")
    monkeypatch.syspath_prepend(tmp_path)
    planted = tmp_path / "planted.py"
    planted.write_text(source.read_text().replace("False", "True "))
    os.utime(planted, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))
    cache = importlib.util.cache_from_source(str(source))
    py_compile.compile(str(planted), cfile=cache, dfile=str(source), doraise=True)
    assert importlib.import_module("cached_event").Quiet().holds(None) is True  # Python itself takes the cache
    monkeypatch.delitem(sys.modules, "cached_event")
    made = own_event(tmp_path, "cached_event:Quiet")
    assert build_event(made, made.events[0]).holds(None) is False
    monkeypatch.delitem(sys.modules, "cached_event")


def with_digest(folder, change, digest):
    """Write a protocol whose own event declares a digest, and return its path."""
    path = folder / "declared.toml"
    path.write_text(text(trials=8, event=(change[0], f'{change[1]}\ndigest = "{digest}"')))
    return path


@pytest.mark.parametrize(
    ("name", "change", "place"), [("plain", PLAIN, "events.0"), ("nested", NESTED, "events.0.events.1")]
)
def test_run_prints_the_digest_of_an_own_event_and_refuses_other_code(made, tmp_path, name, change, place):
    told = call("run", made / f"{name}.toml", "-o", tmp_path / "first", "--workers", 1).output
    (digest,) = re.findall(
        rf'note: `{place}` is code of your own. The hash covers it with: digest = "(\w{{64}})"', told
    )
    result = call("run", with_digest(tmp_path, change, digest), "-o", tmp_path / "run", "--workers", 1)
    assert result.exit_code in (0, 1)
    assert "is code of your own" not in result.output
    assert load_protocol(tmp_path / "declared.toml").hash != load_protocol(made / f"{name}.toml").hash
    for file, edited in EDITS.values():
        kept = (made / file).read_text()
        (made / file).write_text(edited)
        try:
            for folder in ("run", "other"):
                refused = call("run", tmp_path / "declared.toml", "-o", tmp_path / folder, "--workers", 1)
                assert refused.exit_code == 2
                words = rf"`{place}.digest` must be that of the code of own_event:Quiet, \w{{64}}, got {digest}"
                assert re.search(words, refused.output)
            assert not (tmp_path / "other").exists()
        finally:
            (made / file).write_text(kept)
    comment = (made / "own_event.py").read_text()
    (made / "own_event.py").write_text("# a comment does not count\n" + comment)
    refuse_other_events(load_protocol(tmp_path / "declared.toml"))
    (made / "own_event.py").write_text(comment)


def test_a_declared_digest_of_code_that_is_in_no_file_is_refused(tmp_path):
    path = with_digest(tmp_path, ('event = "no-cost-until-goal"', 'event = "sys:exit"'), "0" * 64)
    with pytest.raises(ProtocolError, match="must be that of the code of sys:exit, which is not here, got 000"):
        refuse_other_events(load_protocol(path))


def test_a_digest_is_for_code_of_ones_own(tmp_path):
    path = tmp_path / "protocol.toml"
    path.write_text(
        text(event=('event = "no-cost-until-goal"', f'event = "no-cost-until-goal"\ndigest = "{"0" * 64}"'))
    )
    with pytest.raises(ProtocolError, match="`digest` must be given for code of your own only"):
        load_protocol(path)


def test_a_digest_that_is_not_given_leaves_the_hash_as_it_was(tmp_path):
    """The canonical text of a protocol has no key `digest` unless somebody gave one, also inside of an all-of."""
    path = tmp_path / "protocol.toml"
    path.write_text(text(event=NESTED))
    (event,) = json.loads(load_protocol(path).canonical)["events"]
    assert set(event) == set(event["events"][0]) == {"name", "event", "arguments", "events"}
