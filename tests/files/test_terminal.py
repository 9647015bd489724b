"""What is printed from a file cannot move the cursor, forge a line or be read as markup."""

from __future__ import annotations

import ast
import io
import json
import shutil
import sys
from pathlib import Path

import pytest
from toy_protocol import text
from typer.testing import CliRunner

import ccfs
from ccfs.cli.main import app
from ccfs.files.digests import canonical_json
from ccfs.files.terminal import printable, progress_display, without_markup
from ccfs.runs.manifest import write_manifest
from ccfs.runs.store import Store

CERTIFICATE = "certificates/steer/one/safe.json"
HOSTILE = (
    "steer/one\x1b[2K\rforged: P(safe) is 1",
    "steer/one\nEvery number follows from the counts.",
    "steer/\u202eeno",
    "steer/[bold red]one[/]",
    "steer/one\x00",
    "steer/\x9b2Jone",
    "steer",
    "steer/one/two",
    "",
)


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def is_clean(output):
    """Whether an output has no character that a terminal would obey, but for ends of lines."""
    return all(character == "\n" or printable(character) == character for character in output)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "p.toml").write_text(text(trials=30))
    result = call("run", folder / "p.toml", "-o", folder / "run", "--workers", 1)
    assert result.exit_code == 0, result.output
    return folder / "run"


@pytest.fixture
def run(done, tmp_path):
    return Store(shutil.copytree(done, tmp_path / "run"))


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\nb\r\tc", r"a\x0ab\x0d\x09c"),
        ("\u202eabc\u2066", r"\u202eabc\u2066"),
        ("\u2028\u200b\ufeff", r"\u2028\u200b\ufeff"),
        ("\ud800", r"\ud800"),
        ("\x9b\x7f\x00", r"\x9b\x7f\x00"),
        ("\U000e0041", r"\U000e0041"),
        ("naïve Ω 漢字 – “quoted”", "naïve Ω 漢字 – “quoted”"),
    ],
)
def test_printable_shows_hidden_characters_and_leaves_letters(hostile, shown):
    assert printable(hostile) == shown


@pytest.mark.slow
def test_printable_leaves_no_character_that_a_terminal_obeys():
    characters = [chr(code) for code in range(sys.maxunicode + 1)]
    every = printable("".join(characters))
    assert "".join(map(printable, characters)) == every  # one by one, most of them take the quick way
    assert is_clean(every)
    assert "\n" not in every
    assert not {"\x1b", "\x9b", "\r", "\x08", "\u202a", "\u202e", "\u2069", "\u2028"} & set(every)


def test_without_markup_prints_brackets_as_they_are():
    from rich.text import Text

    hostile = "[bold]certified[/bold] [link=x]y[/link] \x1b[1m"
    assert Text.from_markup(without_markup(hostile)).plain == printable(hostile)
    assert not Text.from_markup(without_markup(hostile)).spans


def forged(run, *keys, value):
    """Write a certificate with one string replaced, canonical again."""
    content = json.loads(run.read(CERTIFICATE))
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    run.write(CERTIFICATE, canonical_json(content).encode() + b"\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_verify_refuses_an_arm_that_is_no_name(run, name):
    forged(run, "arm", value=name)
    result = call("verify", run.path(CERTIFICATE))
    assert result.exit_code == 2
    assert is_clean(result.output)
    assert len(result.output.splitlines()) == 1
    assert "is no ccfs/certificate/2: `arm` must be written as a name" in result.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [("event",), ("definition", "name"), ("attacks", 0, "attack"), ("unverified_fallbacks", 0)],
)
@pytest.mark.parametrize("name", ["safe\x1b]0;title\x07", "safe\u202e", "safe\nforged", "[red]safe"])
def test_verify_refuses_every_other_name_that_is_none(run, keys, name):
    forged(run, *keys, value=name)
    result = call("verify", run.path(CERTIFICATE))
    assert (result.exit_code, is_clean(result.output), len(result.output.splitlines())) == (2, True, 1)


def test_verify_refuses_digests_and_places_that_are_none(run):
    content = json.loads(run.read(CERTIFICATE))
    for change in ({"ccfs": "\x1b"}, {"parts": {"events.safe": "x"}}, {"parts": {"\x1b": "0" * 64}}, {"more": 1}):
        changed = {**content, "provenance": {**content["provenance"], **change}}
        run.write(CERTIFICATE, canonical_json(changed).encode() + b"\n")
        result = call("verify", run.path(CERTIFICATE))
        assert (result.exit_code, is_clean(result.output)) == (2, True)


def test_verify_shows_a_hostile_path_of_its_file_escaped(run, tmp_path):
    path = tmp_path / "c\x1b[2Jx.json"
    path.write_bytes(b"[]")
    result = call("verify", path)
    assert (result.exit_code, is_clean(result.output)) == (2, True)
    assert r"c\x1b[2Jx.json" in result.output


def test_audit_shows_hostile_file_names_and_contents_escaped(run):
    run.path("notes\x1b[1A\u202e.txt").write_bytes(b"x")
    result = call("audit", run.root, "--replay", 0)
    assert (result.exit_code, is_clean(result.output)) == (1, True)
    assert r"FAULT notes\x1b[1A\u202e.txt: is not part of the run." in result.output


def test_audit_shows_hostile_versions_escaped(run):
    record = run.read_json("provenance.json")
    record["packages"]["numpy\x1b[8m"] = "1\nclean. 0 faults"
    record["code"]["ccfs"] = "\x1b[2J"
    run.write_json("provenance.json", record)
    write_manifest(run, run.protocol())
    assert call("certify", run.root).exit_code == 2  # no digest on a certificate is anything but a digest
    result = call("audit", run.root, "--replay", 0)
    assert (result.exit_code, is_clean(result.output)) == (1, True)
    assert "FAULT provenance.json: is no ccfs/provenance/2: `code.ccfs` must be written as a name" in result.output


@pytest.mark.parametrize(
    ("table", "entry"),
    [
        ("controllers", {"steer": "a b"}),
        ("controllers", {"steer\x1b": "0" * 64}),
        ("parts", {"events.safe": "certified"}),
        ("parts", {"\u202e": "0" * 64}),
        ("packages", {"numpy": "1 (certified)"}),
        ("packages", {"num py": "1"}),
        ("files", {"x": "certified"}),
    ],
)
def test_provenance_holds_names_digests_and_versions_only(run, table, entry):
    record = run.read_json("provenance.json")
    run.write_json("provenance.json", {**record, table: {**record[table], **entry}})
    write_manifest(run, run.protocol())
    result = call("audit", run.root, "--replay", 0)
    assert (result.exit_code, is_clean(result.output)) == (1, True)
    assert "FAULT provenance.json: is no ccfs/provenance/2" in result.output


@pytest.mark.parametrize("command", ["certify", "table", "costs", "report", "audit"])
def test_commands_show_a_hostile_manifest_escaped(run, command):
    content = run.read_json("manifest.json")
    run.write_json("manifest.json", {**content, "format": "x\x1b[2K\nclean."})
    result = call(command, run.root)
    assert result.exit_code == (1 if command == "audit" else 2)
    assert is_clean(result.output)


@pytest.mark.parametrize("command", ["certify", "table", "costs", "report", "audit"])
def test_commands_show_a_hostile_protocol_escaped(run, command):
    content = json.loads(run.read("protocol.json"))
    content["name"] = "toy\x1b[2K"
    content["environment"]["arguments"]["a\nb\x1b"] = "x\u202e"
    content["surprise\x1b[1m\nclean"] = 1
    run.write_json("protocol.json", content)
    write_manifest_anyway(run)
    result = call(command, run.root)
    assert result.exit_code == (1 if command == "audit" else 2)
    assert is_clean(result.output)
    assert "\nclean" not in result.output


def write_manifest_anyway(run):
    from types import SimpleNamespace

    write_manifest(run, SimpleNamespace(hash="0" * 64))


def test_commands_print_through_the_escape_only():
    """What a command prints is escaped by `echo`, or is written here and read from no file."""
    faults = []
    for path in sorted(Path(ccfs.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.echo", "click.echo", "print"):
                is_escape = path.name == "terminal.py"
                is_written = isinstance(node.args[0], ast.Constant) or ast.unparse(node.args[0]) == "TEXT"
                if not (is_escape or is_written):
                    faults.append(f"{path.name}:{node.lineno}")
    assert faults == []


def test_time_left_is_known_from_the_first_advance_on_and_ignores_what_was_found():
    """The bar showed dashes at 80 of 192 trials, because rich looks at the last half minute only."""
    from rich.console import Console

    clock = [0.0]
    console = Console(force_terminal=True, width=120, file=io.StringIO())
    with progress_display(console) as display:
        display.get_time = lambda: clock[0]
        task = display.add_task("toy", total=192, note="", found=32)
        display.tasks[0].start_time = 0.0
        (column,) = (part for part in display.columns if type(part).__name__ == "TimeLeft")
        display.update(task, advance=32)
        assert column.render(display.tasks[0]).plain == "-:--:--"
        clock[0] = 100.0
        display.update(task, advance=80)
        assert column.render(display.tasks[0]).plain == "0:01:40"  # 80 more at 80 in 100 seconds
        clock[0] = 150.0  # a long batch: the time left goes down meanwhile
        assert column.render(display.tasks[0]).plain == "0:00:50"
