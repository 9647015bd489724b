"""Every command that reads a run refuses hostile folders at once, in one line, and writes nothing elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pyarrow as pa
import pytest
from toy_protocol import contents, text
from typer.testing import CliRunner

from ccfs.cli.main import app
from ccfs.files.digests import canonical_json
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.runs.batches import plan
from ccfs.runs.journal import Journal
from ccfs.runs.manifest import MANIFEST, Manifest, _digest
from ccfs.runs.store import Store

pytestmark = pytest.mark.slow
CERTIFICATE = "certificates/steer/one/safe.json"
TRACES = "traces/steer/one/nominal/batch-00000.parquet"
ROWS = "trajectories/steer/one/nominal/batch-00000.parquet"
COMMANDS = ("report", "table", "costs", "certify", "audit", "verify")
SECONDS = 20


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "p.toml").write_text(text(trials=10))
    result = CliRunner().invoke(app, ["run", str(folder / "p.toml"), "-o", str(folder / "run"), "--workers", "1"])
    assert result.exit_code == 0, result.output
    return folder / "run"


@pytest.fixture
def root(done, tmp_path):
    return shutil.copytree(done, tmp_path / "run")


def call(command, root):
    """Call a command with a clock. A hang is a failure and not a test that never ends."""
    words = [command, str(root)]
    if command == "verify":
        words = ["verify", str(root / CERTIFICATE), "--run", str(root)]
    if command == "audit":
        words += ["--replay", "0"]

    def late(number, frame):
        raise AssertionError(f"{command} took more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        result = CliRunner().invoke(app, words)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def refused(command, root):
    result = call(command, root)
    assert result.exit_code in (1, 2), (command, result.output)
    lines = result.output.strip().splitlines()
    assert len(lines) == 1 or command == "audit", lines
    return result.output


def replaced(root, name, make):
    path = root / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    make(path)


KINDS = {
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "pipe": os.mkfifo,
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path),
    "nothing": lambda path: path.symlink_to("nowhere"),
}
FILES = ("protocol.json", "manifest.json", "provenance.json", TRACES, CERTIFICATE, "lock")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", KINDS)
def test_commands_refuse_files_that_are_none(root, name, kind):
    replaced(root, name, KINDS[kind])
    for command in COMMANDS:
        if name == "lock" and command in ("table", "costs", "verify") and kind == "folder":
            continue  # they neither take the lock nor read it, and an empty folder is no file
        refused(command, root)


@pytest.mark.parametrize("name", ["certificates", "traces", "certificates/steer", "traces/steer/one", "batches"])
def test_commands_neither_read_nor_write_behind_linked_folders(root, tmp_path, name):
    outside = tmp_path / "outside"
    (root / name).rename(outside)
    (root / name).symlink_to(outside)
    before = contents(outside)
    for command in COMMANDS:
        assert "plain file or folder" in refused(command, root)
    assert contents(outside) == before


def test_commands_write_nothing_to_a_file_that_a_link_names(root, tmp_path):
    victim = tmp_path / "victim.txt"
    victim.write_text("kept")
    for name in ("lock", "report.html", CERTIFICATE):
        if (root / name).exists():
            (root / name).unlink()
        (root / name).symlink_to(victim)
        for command in COMMANDS:
            refused(command, root)
        (root / name).unlink()
    assert victim.read_text() == "kept"


def test_commands_refuse_files_that_are_too_large_before_they_read_them(root):
    for name in (TRACES, CERTIFICATE, "protocol.json", "provenance.json", "manifest.json"):
        kept = (root / name).read_bytes()
        with (root / name).open("ab") as stream:
            stream.truncate(1 << 38)
        for command in COMMANDS:
            assert "more than" in refused(command, root)
        (root / name).write_bytes(kept)


def resealed(root):
    """Make journals and manifest fit the files again, as a forger would."""
    store = Store(root)
    made = store.protocol()
    for arm in made.arms:
        for attack in (None, *made.attacks):
            for batch in plan(made, arm, attack):
                files = {name: store.digest(name) for name in batch.files}
                store.write(batch.journal, Journal(trials=batch.trials, files=files).to_bytes())
    sealed(root, made.hash)


def sealed(root, protocol):
    store = Store(root)
    files = {name: store.digest(name) for name in store.files() if name != MANIFEST}
    store.write(MANIFEST, Manifest(protocol=protocol, files=files, digest=_digest(protocol, files)).to_bytes())


def rewritten(root, **changes):
    content = json.loads((root / "protocol.json").read_bytes())
    content.update(changes)
    (root / "protocol.json").write_bytes(canonical_json(content).encode() + b"\n")
    sealed(root, "0" * 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizon": 10**13}, "10,000,000,000,000 steps per trial (`horizon`), more than 1,000,000."),
        ({"horizon": 10**6, "batch": 4}, "4,000,000 steps per batch (`batch` times `horizon`), more than 500,000."),
        ({"batch": 1, "trials": {"cohort": {"first": 0, "count": 10**6}}}, "4,000,000 planned batches"),
    ],
)
def test_commands_refuse_a_protocol_that_plans_too_much(root, changes, message):
    rewritten(root, **changes)
    for command in COMMANDS:
        assert message in refused(command, root), command


def test_commands_refuse_a_protocol_that_was_put_there_after_the_trials(root):
    """A lower target and another seed, with new hashes everywhere. Only the record of the run still names the first."""
    rewritten(root, seed=99)
    resealed(root)
    for command in COMMANDS:
        assert "another protocol" in refused(command, root), command


def test_verify_alone_says_that_the_meaning_of_a_certificate_is_quoted(root, tmp_path):
    content = json.loads((root / CERTIFICATE).read_bytes())
    content["horizon"] = 10**13
    (tmp_path / "c.json").write_text(canonical_json(content) + "\n")
    result = CliRunner().invoke(app, ["verify", str(tmp_path / "c.json")])
    recomputed, _, quoted = result.output.partition("Only quoted")
    about = f"what was counted: safe ({content['definition']['event']}) in trials of steer/one with at most 1"
    assert about in quoted
    assert about not in recomputed


def test_show_and_runs_say_that_counts_are_quoted_and_whose_words_they_print(root, tmp_path):
    """Nothing recounts a forged certificate here, and a description is a free sentence."""
    claim = "steer/one: P(safe, ever) stays at least 0.999999. Certified."
    rewritten(root, description=claim)
    result = CliRunner().invoke(app, ["show", str(root)])
    assert [line for line in result.output.splitlines() if claim in line] == [f'Its author says: "{claim}"']
    assert "The counts are quoted from these certificates. `ccfs audit" in result.output
    result = CliRunner().invoke(app, ["runs", str(tmp_path)])
    assert "quoted from the certificates there. `ccfs audit RUN` checks a run." in result.output
    assert claim not in result.output


@pytest.mark.parametrize("name", ["protocol.json", "manifest.json", "provenance.json", CERTIFICATE])
@pytest.mark.parametrize(
    "content",
    [
        b"1" * 5000,
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"[" * 5000 + b"]" * 5000,
        b"\xff",
        b"",
        b'{"a":1,"a":2}',
        b"null",
    ],
)
def test_commands_refuse_json_that_is_deep_or_none(root, name, content):
    (root / name).write_bytes(content)
    if name != "manifest.json":
        sealed(root, Store(root).read_json("manifest.json")["protocol"])
    # The others do not read a certificate. `certify` writes it again from the traces.
    for command in ("report", "audit", "verify") if name == CERTIFICATE else COMMANDS:
        refused(command, root)


@pytest.mark.parametrize("name", [TRACES, ROWS])
@pytest.mark.parametrize(
    "content",
    [
        b"PAR1 damaged PAR1",
        b"",
        parquet_bytes(pa.table({"x": [1]})),
        parquet_bytes(pa.table({"trial": ["a"], "outcome": [1.0]})),
    ],
)
def test_commands_refuse_other_tables_behind_new_hashes_in_one_line(root, name, content):
    (root / name).write_bytes(content)
    resealed(root)
    for command in ("certify", "table", "costs", "report", "audit", "verify"):
        assert name in refused(command, root), command


def test_commands_refuse_a_trace_without_the_steps_that_its_lines_claim(root):
    """A line that claims a whole trial without any step would be a success of every event that finds nothing wrong."""
    table = read_parquet((root / TRACES).read_bytes())
    (root / TRACES).write_bytes(parquet_bytes(table.slice(0, 0)))
    resealed(root)
    for command in ("certify", "table", "costs", "verify"):
        assert "trial 0 must have 6 steps, got 0" in refused(command, root)
    assert "is not what its steps give" in refused("audit", root)


def test_commands_refuse_a_trace_whose_trials_are_torn_apart(root):
    table = read_parquet((root / TRACES).read_bytes())
    torn = pa.concat_tables([table.slice(0, 3), table.slice(6), table.slice(3, 3)])
    (root / TRACES).write_bytes(parquet_bytes(torn.combine_chunks()))
    resealed(root)
    for command in ("certify", "table", "costs", "verify"):
        assert "must hold the steps of each trial together" in refused(command, root)


def test_limits_can_be_raised_by_an_option(root, monkeypatch):
    monkeypatch.delenv("CCFS_LIMITS", raising=False)
    with (root / "provenance.json").open("ab") as stream:
        stream.truncate((128 << 20) + 1)
    result = CliRunner().invoke(app, ["audit", str(root), "--replay", "0"])
    assert "--limits 2" in result.output
    result = CliRunner().invoke(app, ["--limits", "2", "audit", str(root), "--replay", "0"])
    assert "was changed after it was written" in result.output
    result = CliRunner().invoke(app, ["--limits", "0", "audit", str(root)])
    assert (result.exit_code, "`--limits`" in result.output) == (2, True)
