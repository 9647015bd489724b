from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from toy_protocol import contents, text
from typer.testing import CliRunner

from ccfs.certificates.rounding import lower_text
from ccfs.cli.demo import demo_protocol
from ccfs.cli.main import app
from ccfs.protocol.model import load_protocol

pytestmark = pytest.mark.slow
ARM = "certificates/steer/four/safe.json"


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run made by the command."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "p.toml").write_text(text(trials=30))
    result = call("run", folder / "p.toml", "-o", folder / "run", "--workers", 1)
    assert result.exit_code == 0, result.output
    return folder, result


def test_run_command_prints_the_claim_and_where_results_are(done):
    folder, result = done
    stored = json.loads((folder / "run" / ARM).read_text())
    (line,) = (line for line in result.output.splitlines() if "steer/four" in line)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells[:2] == ["steer/four", "safe"]
    assert cells[2] == f"{stored['claim']['successes']} of 30"
    assert cells[3] == lower_text(stored["claim"]["p_lower"])
    assert cells[5] == lower_text(stored["claim"]["budget"])
    assert cells[6:8] == ["push", f"{stored['attacks'][0]['successes']} of 30"]
    assert "toy: all 2 claims together fail with probability at most 0.05" in result.output
    assert f"Results: {folder / 'run'}" in result.output
    assert (
        result.output.splitlines()[-1]
        == f"Next: ccfs show {folder / 'run'}, ccfs report {folder / 'run'}, ccfs audit {folder / 'run'}"
    )
    assert (folder / "run" / ARM).is_file()


def test_run_command_resumes_quietly_and_changes_nothing(done):
    folder, first = done
    before = contents(folder / "run")
    again = call("run", folder / "p.toml", "-o", folder / "run", "--workers", 1)
    assert (again.exit_code, again.output) == (0, first.output)
    assert contents(folder / "run") == before


def test_audit_and_verify_commands_accept_an_honest_run(done):
    folder, _ = done
    result = call("audit", folder / "run", "--replay", 5)
    assert result.exit_code == 0
    assert "120 trajectories, 5 replayed bit for bit" in result.output
    result = call("verify", folder / "run" / ARM)
    assert result.exit_code == 0
    assert "- The noise is taken for exact independent Gaussian draws." in result.output
    result = call("verify", folder / "run" / ARM, "--run", folder / "run")
    assert result.exit_code == 0
    assert "and the counts from the traces" in result.output


def test_audit_and_verify_commands_exit_1_on_a_changed_file(done, tmp_path):
    import shutil

    folder, _ = done
    shutil.copytree(folder / "run", tmp_path / "run")
    path = tmp_path / "run" / ARM
    path.write_bytes(path.read_bytes() + b"\n")
    result = call("audit", tmp_path / "run")
    assert result.exit_code == 1
    assert f"FAULT {ARM}: was changed" in result.output
    assert call("verify", path).exit_code == 1
    assert call("certify", tmp_path / "run").exit_code == 2


def test_commands_print_the_protocol_hash_and_audit_can_expect_it(done):
    folder, first = done
    made = load_protocol(folder / "p.toml")
    for output in (first.output, call("certify", folder / "run").output):
        assert f"Protocol: {made.hash}" in output
    result = call("audit", folder / "run", "--replay", 0, "--expect-protocol", made.hash)
    assert (result.exit_code, f"Protocol: {made.hash}" in result.output) == (0, True)
    result = call("audit", folder / "run", "--replay", 0, "--expect-protocol", made.first(3).hash)
    assert result.exit_code == 1
    assert f"FAULT protocol.json: has the hash {made.hash}, expected {made.first(3).hash}." in result.output


def test_cluster_that_is_not_there_is_one_clear_error(tmp_path, monkeypatch):
    def refuse(address, timeout):
        raise OSError(f"Timed out trying to connect to {address}")

    (tmp_path / "p.toml").write_text(text())
    monkeypatch.setattr("distributed.Client", refuse)
    result = call("run", tmp_path / "p.toml", "-o", tmp_path / "run", "--cluster", "tcp://127.0.0.1:1")
    assert result.exit_code == 2
    assert "`--cluster` must be the address of a running scheduler, got 'tcp://127.0.0.1:1'" in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_certify_command_exits_1_when_nothing_is_certified(tmp_path):
    (tmp_path / "p.toml").write_text(text(trials=6, x=("post = 0.6", "post = -9.0")))  # the cart always hits it
    result = call("run", tmp_path / "p.toml", "-o", tmp_path / "run", "--workers", 1)
    assert result.exit_code == 1
    assert f"Results: {tmp_path / 'run'}" in result.output
    assert "not certified" in result.output
    assert "0 of 6" in result.output
    assert "is not certified to be at least 0.5" in call("show", tmp_path / "run").output
    assert call("certify", tmp_path / "run").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "absent.toml"), "absent.toml: cannot be read: No such file or directory."),
        (("run", "{p}", "--seeds", "0"), "`seeds` must be in [1, 30], got 0."),
        (("run", "{p}", "--workers", "0"), "`workers` must be at least 1, got 0."),
        (("run", "{p}", "--workers", "2", "--cluster", "tcp://x:1"), "must not be given together"),
        (("certify", "nowhere"), "nowhere: must be a run directory, but there is none."),
        (("audit", "nowhere"), "nowhere: must be a run directory, but there is none."),
        (("audit", "{run}", "--replay", "some"), "`--replay` must be a number or all, got 'some'."),
        (("verify", "nothing.json"), "nothing.json: must be a certificate file, but there is none."),
    ],
)
def test_commands_refuse_bad_input_in_one_line_with_exit_code_2(done, monkeypatch, tmp_path, arguments, message):
    folder, _ = done
    monkeypatch.chdir(tmp_path)
    result = call(*(part.format(p=folder / "p.toml", run=folder / "run") for part in arguments))
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_run_command_with_seeds_is_a_quick_look_under_another_name(tmp_path, monkeypatch):
    (tmp_path / "p.toml").write_text(text())
    monkeypatch.chdir(tmp_path)
    result = call("run", "p.toml", "--seeds", 3, "--workers", 1)
    assert result.exit_code == 1  # three trials certify nothing
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("toy-first-3-")
    assert "QUICK LOOK: no claim about the whole protocol" in result.output
    assert " of 3 " in result.output
    assert "QUICK LOOK" in result.output


def test_run_command_does_not_succeed_when_components_end_the_process(tmp_path):
    exits = ('make = "steering"\narguments = { gain = 0.2 }', 'make = "sys:exit"')
    (tmp_path / "p.toml").write_text(text(x=exits))
    result = call("run", tmp_path / "p.toml", "-o", tmp_path / "run", "--workers", 1)
    assert result.exit_code == 2
    assert "`controllers.0.arguments` were not accepted, got {}: SystemExit" in result.output


def test_demo_protocol_prints_and_parses():
    result = call("demo", "--protocol")
    assert result.exit_code == 0
    assert 'name = "demo"' in result.output
    assert demo_protocol().trials.count == 500


def test_demo_exits_1_when_a_claim_is_not_certified_and_still_writes_the_report(tmp_path, monkeypatch):
    quick = demo_protocol().first(3)
    monkeypatch.setattr("ccfs.cli.demo.demo_protocol", lambda: quick)
    result = call("demo", "-o", tmp_path / "run", "--workers", 1)
    assert result.exit_code == 1
    assert "not certified" in result.output
    assert (tmp_path / "run" / "report.html").is_file()


def test_import_of_the_package_is_light():
    code = "import sys, ccfs; print(sorted({'gymnasium', 'pyarrow', 'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_package_exports_exist():
    import ccfs

    assert all(getattr(ccfs, name) is not None for name in ccfs.__all__)
    assert set(ccfs.__all__) <= set(dir(ccfs))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        ccfs.nonsense  # noqa: B018


OWN_EVENT = "class Quiet:\n    def holds(self, trace):\n        return bool((trace.cost <= 0.0).all())\n"


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A folder with a protocol and the module that it names, which nothing else puts on the search path."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "a study"
    folder.mkdir()
    (folder / "event_beside_the_protocol.py").write_text(OWN_EVENT)
    change = ('event = "no-cost-until-goal"', 'event = "event_beside_the_protocol:Quiet"')
    (folder / "study.toml").write_text(text(trials=8, event=change))
    yield folder
    sys.modules.pop("event_beside_the_protocol", None)


def test_run_finds_modules_beside_the_protocol_and_prints_how_the_others_do(study, tmp_path):
    made = call("run", study / "study.toml", "-o", tmp_path / "run", "--workers", 1)
    assert made.exit_code in (0, 1), made.output
    follow = made.output.splitlines()[-1]
    assert follow.endswith(f"ccfs audit {tmp_path / 'run'} --modules '{study}' --trust")
    stored = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert str(study).encode() not in stored
    assert str(tmp_path).encode() not in stored


def test_commands_find_modules_in_the_named_folder_alone(study, tmp_path, monkeypatch):
    made = call("run", study / "study.toml", "-o", tmp_path / "run", "--workers", 1)
    assert made.exit_code in (0, 1), made.output
    without = [place for place in sys.path if place != str(study)]
    commands = (("certify",), ("table",), ("report",), ("audit",))
    # A stranger's run may hold a module of this name. It must not be found, wherever the command is started.
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / "event_beside_the_protocol.py").write_text("raise SystemExit('a trap')\n")
    monkeypatch.chdir(tmp_path / "stranger")
    for command in commands:
        monkeypatch.setattr(sys, "path", list(without))
        sys.modules.pop("event_beside_the_protocol", None)
        trust = () if command == ("report",) else ("--trust",)
        lost = call(*command, tmp_path / "run", *trust)
        assert "a trap" not in lost.output
        assert lost.exit_code == (0 if command == ("report",) else 3 if command == ("audit",) else 2), lost.output
        monkeypatch.setattr(sys, "path", list(without))
        found = call(*command, tmp_path / "run", "--modules", study, *trust)
        assert found.exit_code in (0, 1), found.output
        assert "No module named" not in found.output
    assert call("audit", tmp_path / "run", "--modules", tmp_path / "none").exit_code == 2


def test_run_refuses_a_module_that_another_one_hides(study, tmp_path):
    (study / "random.py").write_text(OWN_EVENT)
    change = ('event = "no-cost-until-goal"', 'event = "random:Quiet"')
    (study / "study.toml").write_text(text(trials=8, event=change))
    made = call("run", study / "study.toml", "-o", tmp_path / "run")
    assert made.exit_code == 2
    assert f"{study / 'random.py'}: Python finds another module of this name, " in made.output
    assert not (tmp_path / "run").exists()
