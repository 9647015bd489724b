from __future__ import annotations

import csv
import re
import subprocess
import sys
from zipfile import BadZipFile

import pytest
import typer.main
from typer.testing import CliRunner

from ccfs.cli import shared
from ccfs.cli.main import app
from ccfs.images.data import DataError
from ccfs.runs.store import RunError


@pytest.mark.slow
def test_python_dash_m_is_the_command():
    answer = subprocess.run([sys.executable, "-m", "ccfs", "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("ccfs ")
    refused = subprocess.run([sys.executable, "-m", "ccfs", "nothing"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "Usage: ccfs " in refused.stderr


def test_a_table_fits_a_terminal_and_breaks_no_number():
    heads = ("name of it", "what it asks", "long head", "seen")
    rows = [("a-name-in-one", "many words " * 8, "1", "495 of 500")]
    whole = [13, 88, 9, 10]
    assert shared._widths(heads, rows, 2, sys.maxsize) == whole
    assert shared._widths(heads, rows, 2, 60) == [13, 28, 9, 10]
    assert shared._widths(heads, rows, 2, 0) == [13, 5, 4, 10]  # words and numbers stay whole, whatever there is
    assert shared._widths(("schedules.one.action.sigma",), [("0.25",)], 0, 0) == [10]
    assert shared._broken("schedules.one.action.sigma", 10) == "schedules.\none.\naction.\nsigma"
    assert shared._broken("agent/one with 0.25", 8) == "agent/\none with\n0.25"


@pytest.mark.parametrize("columns", [30, 60, 80, 200])
def test_a_table_on_a_terminal_loses_no_word(columns, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, for rich
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    shared.print_table("t", ("arm", "what it asks", "seen"), [("a/b", "words to be told " * 6, "495 of 500")], left=2)
    printed = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    assert printed.count("told") == 6
    assert "495 of 500" in printed
    assert max(map(len, printed.splitlines())) <= max(columns, 29)


def test_commands_are_listed_in_order_of_work_and_none_is_lost():
    group = typer.main.get_command(app)
    listed = group.list_commands(None)
    assert listed[:6] == ["demo", "plan", "tune", "register", "run", "compare"]
    assert sorted(listed) == sorted(group.commands)


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (ValueError("`x` must be 1, got 2."), 2, "`x` must be 1, got 2."),
        (RunError("run: is locked."), 2, "run: is locked."),
        (DataError("mnist is missing."), 2, "mnist is missing."),
        (ImportError("needs the extra `minari`."), 2, "needs the extra `minari`."),
        (OSError("no room left"), 2, "no room left"),
        (csv.Error("no table"), 2, "A file that was named cannot be read as what its name says: no table."),
        (BadZipFile("no zip"), 2, "A file that was named cannot be read as what its name says: no zip."),
        (SystemExit(0), 2, "Code that this command ran tried to end the process: SystemExit(0). Remove that call."),
        (KeyboardInterrupt(), 130, "Interrupted."),
        (ValueError("forged\nline\x1b[2K"), 2, "forged\\x0aline\\x1b[2K"),
    ],
)
@pytest.mark.parametrize("command", [["schema"], ["train", "status"], ["image", "install", "mnist"]])
def test_every_command_shows_errors_as_the_same_one_line(monkeypatch, command, error, code, shown):
    def refuse(*arguments, **options):
        raise error

    monkeypatch.setattr("ccfs.cli.main.echo", refuse)
    monkeypatch.setattr("rich.table.Table.__init__", refuse)
    monkeypatch.setattr("ccfs.images.data.install", refuse)
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, result.stdout, result.stderr.strip()) == (code, "", shown)


@pytest.mark.parametrize(
    ("module", "code", "shown"),
    [("ccfs.own", 1, ""), ("own", 2, "own.py, line 2: raised KeyError: 'rewards'. This is code of your own: mend it.")],
)
def test_a_bug_keeps_its_traceback_unless_it_is_in_code_of_the_users_own(monkeypatch, tmp_path, module, code, shown):
    path, names = tmp_path / "own.py", {"__name__": module}
    path.write_text("def wrong(*lines):\n    return {}['rewards']\n")
    exec(compile(path.read_text(), str(path), "exec"), names)
    monkeypatch.setattr("ccfs.cli.main.echo", names["wrong"])
    result = CliRunner().invoke(app, ["schema"])
    assert (result.exit_code, isinstance(result.exception, KeyError)) == (code, code == 1)
    assert result.stderr.strip().endswith(shown)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run --help", "schema protocol"])
def test_output_that_nobody_reads_to_its_end_is_no_error(command):
    done = subprocess.run(
        f"{sys.executable} -m ccfs {command} | head -c 1", shell=True, capture_output=True, text=True, check=True
    )
    assert (len(done.stdout), done.stderr) == (1, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_offered_for_common_shells(shell, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "true")
    result = CliRunner().invoke(app, ["--show-completion", shell], prog_name="ccfs")
    assert result.exit_code == 0
    assert "_CCFS_COMPLETE" in result.output
