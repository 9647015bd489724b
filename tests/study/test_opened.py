"""Runs in Python and in lists, against what is stored in their files."""

from __future__ import annotations

import json
import sys

import pandas
import pytest
from toy_protocol import text
from typer.testing import CliRunner

import ccfs
from ccfs.cli.main import app
from ccfs.results.claims import claim_cells
from ccfs.study.opened import list_runs, load_run, summary

pytestmark = pytest.mark.slow


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("opened")
    (place / "p.toml").write_text(text(trials=20, a=("batch = 4", "batch = 20")))
    assert call("run", place / "p.toml", "-o", place / "runs/one", "--workers", 1).exit_code == 0
    (place / "runs/broken").mkdir()
    (place / "runs/broken/protocol.json").write_text("{}")
    return place


def test_load_run_gives_certificates_tables_and_trials(folder):
    run = ccfs.load_run(folder / "runs/one")
    stored = json.loads((folder / "runs/one/certificates/steer/four/safe.json").read_text())
    four = run.certificates[1]
    assert (four.arm, four.p_lower) == ("steer/four", stored["claim"]["p_lower"])
    frame = four.to_frame()
    assert frame.budget.tolist() == [four.budget]
    assert frame.stage.tolist() == ["action"]
    assert frame.successes.tolist() == [stored["claim"]["successes"]]
    table = run.table().to_frame()
    assert table[table.is_claim].budget.tolist() == [one.budget for one in run.certificates]
    assert table.Safe.tolist() == table.successes.tolist()
    trials = run.trials()
    assert len(trials) == 2 * 2 * 20
    nominal = trials[(trials.attack == "nominal") & (trials.schedule == "four")]
    assert nominal["in safe"].sum() == four.successes


def test_print_shows_a_run_and_a_table_as_text(folder):
    run = ccfs.load_run(folder / "runs/one")
    first, _, head, *_ = str(run).splitlines()
    assert first == f"{run.protocol.name}: {summary(folder / 'runs/one').state}"
    assert head.startswith("| arm | event | counted |")
    table = run.table()
    assert str(table).splitlines()[0] == table.title
    assert str(table).count("\n| steer |") == len(table.rows)


def test_certificates_tables_and_traces_draw_what_they_hold(folder):
    run = load_run(folder / "runs/one")
    certificate = run.certificates[0]
    curve = certificate.plot().get_lines()[0]
    assert list(zip(curve.get_xdata(), curve.get_ydata(), strict=True)) == [*certificate.trajectory.curve()]
    bars = run.table().plot().patches
    assert [bar.get_width() for bar in bars] == [one.budget for one in run.certificates]
    trace = run.trace(3, arm="steer/four", attack="push")
    actions = trace.plot().get_lines()[0]
    assert list(actions.get_ydata()) == trace.trace.actions[:, 0].tolist()
    for made in (run, certificate, run.table(), trace):
        assert made._repr_html_().startswith("<table><caption>")


def test_trace_has_the_stored_steps(folder):
    trace = load_run(folder / "runs/one").trace(3, arm="steer/one").to_frame()
    stored = pandas.read_parquet(folder / "runs/one/traces/steer/one/nominal")
    stored = stored[stored.trial == 3]
    assert trace.action_0.tolist() == stored.action_0.tolist()
    assert trace.source.tolist() == stored.source.tolist()
    assert trace.step.tolist() == list(range(1, len(stored) + 1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"arm": None}, "`arm` must be one of steer/one, steer/four, got None"),
        ({"arm": "steer/one", "attack": "x"}, "`attack` must be one of push, got 'x'"),
        ({"arm": "steer/one", "trial": 20}, "`trial` must be one of the run's trials, got 20"),
    ],
)
def test_trace_refuses(folder, given, message):
    with pytest.raises(ValueError, match=message):
        load_run(folder / "runs/one").trace(**given)


def test_frames_without_pandas_name_the_command(folder, monkeypatch):
    certificate = load_run(folder / "runs/one").certificates[0]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        certificate.to_frame()


def test_list_runs_finds_them_and_says_what_cannot_be_read(folder):
    found = {one.name: one for one in list_runs(folder).runs}
    assert found["broken"].state == "unreadable"
    assert "format" in found["broken"].description
    assert found["toy"].state == "2 of 2 certified"
    assert (found["toy"].batches, found["toy"].planned) == (4, 4)
    printed = call("runs", folder / "runs")
    assert printed.exit_code == 0
    assert "unreadable: " in printed.output
    assert json.loads(call("runs", folder / "runs", "--json").output)["format"] == "ccfs/run-list/1"
    assert call("runs", folder / "absent").exit_code == 2


def test_show_prints_claims_and_refuses_what_is_no_run(folder):
    shown = call("show", folder / "runs/one")
    assert shown.exit_code == 0
    assert "steer/one: P(safe within 6 steps)" in shown.output
    made = json.loads(call("show", folder / "runs/one", "--json").output)
    assert made == json.loads(call("certify", folder / "runs/one", "--json").output)
    assert [claim["arm"] for claim in made["claims"]] == ["steer/one", "steer/four"]
    assert call("show", folder / "runs/broken").exit_code == 2
    assert call("show", folder).exit_code == 2


def test_unfinished_run_says_how_far_it_is(folder, tmp_path):
    import shutil

    shutil.copytree(folder / "runs/one", tmp_path / "run")
    (tmp_path / "run/manifest.json").unlink()
    (tmp_path / "run/batches/steer/one/push/batch-00000.json").unlink()
    assert summary(tmp_path / "run").state == "3 of 4 batches"


def test_claim_cells_have_a_column_for_each_stage_and_the_worst_attack(folder):
    claims = summary(folder / "runs/one").claims
    heads, rows = claim_cells(claims)
    assert heads == ("arm", "event", "counted", "p_L", "target", "B", "worst attack", "observed", "certified there")
    assert rows[0][6] == "push"
    two = claims[0].model_copy(update={"budgets": {"sensor": 0.1, "action": None}})
    heads, rows = claim_cells([two])
    assert heads[5:7] == ("B sensor", "B action")
    assert rows[0][5:7] == ("0.1000", "not certified")
